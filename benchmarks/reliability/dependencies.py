"""Dependencies of osae: licences of all packages, and a lock file with the hashes of their files.

    python -m benchmarks.reliability.dependencies licences [--out evidence/dependencies]
    python -m benchmarks.reliability.dependencies lock [--index URL ...] > requirements.lock
    python -m benchmarks.reliability.dependencies check

The packages are the installed direct and indirect dependencies of `osae[dev]`. `lock` queries package indexes
for the SHA-256 digests of all files of each version, so that the lock file works on every platform. `check`
works offline: it compares every installed file with the digest recorded by its package, and every version
with the lock file.
"""

import argparse
import base64
import hashlib
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import ROOT

LOCK = ROOT / "requirements.lock"
INDEX = "https://pypi.org/simple"
UNLOCKED = ("torch", "triton")  # users choose among builds for the CPU and for several versions of CUDA
HEAD = f"""\
# All packages that `osae[dev]` needs, with the digests of their files: `make setup-locked` installs these.
# Made by `python -m benchmarks.reliability.dependencies lock`.
# Without {" and ".join(UNLOCKED)}, whose builds differ by device: constraints.txt has their versions.
"""


def find_packages(root: str = "osae", extra: str = "dev") -> dict[str, Distribution]:
    """Return every installed dependency of the root with an extra, by canonical name."""
    found: dict[str, Distribution] = {}
    waiting = [(root, frozenset({extra}))]
    done = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:  # its marker applies, but it is optional on this platform
            continue
        found[canonicalize_name(name)] = package
        for line in package.requires or ():
            needed = Requirement(line)
            if _applies(needed, extras):
                waiting.append((needed.name, frozenset(needed.extras)))
    del found[root]
    return dict(sorted(found.items()))


def _applies(needed: Requirement, extras: frozenset[str]) -> bool:
    if needed.marker is None:
        return True
    return any(needed.marker.evaluate({"extra": extra}) for extra in (extras or {""}))


# --- licences ---------------------------------------------------------------------------------------


def find_licence(package: Distribution) -> str:
    """Return the licence that a package declares, in short form."""
    about = package.metadata
    if stated := about.get("License-Expression"):
        return stated
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License ::")
    ]
    if classified:
        return ", ".join(classified)
    return (about.get("License") or "not stated").splitlines()[0][:60]


def format_licences(packages: Mapping[str, Distribution]) -> str:
    """Return the licences as Markdown."""
    lines = [f"| {name} | {one.version} | {find_licence(one)} |" for name, one in packages.items()]
    return "\n".join(["| package | version | licence |", "| :-- | :-- | :-- |", *lines]) + "\n"


# --- hashes -----------------------------------------------------------------------------------------


class _Links(HTMLParser):
    """A parser that collects the links of an index page, with the names of the files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def find_hashes(name: str, version: str, indexes: Sequence[str]) -> list[str]:
    """Return the SHA-256 digests of all files of a version, from the first index that has it."""
    for index in indexes:
        page = f"{index}/{name}/" + ("index.html" if index.startswith("file:") else "")
        try:
            with urllib.request.urlopen(page, timeout=60) as answer:
                links = _Links()
                links.feed(answer.read().decode())
        except urllib.error.URLError:
            continue
        if found := sorted(_hashes_of(links.found, name, version)):
            return found
    raise SystemExit(f"no index has {name} {version}: {', '.join(indexes)}")


def _hashes_of(links: Sequence[str], name: str, version: str) -> Iterator[str]:
    spelt = "[-_.]".join(map(re.escape, name.split("-")))
    stem = re.compile(rf"{spelt}-{re.escape(version)}(-|\.tar\.gz$|\.zip$)", re.IGNORECASE)
    for link in links:
        path, _, digest = link.partition("#sha256=")
        if digest and stem.match(path.rpartition("/")[2]):
            yield digest


def format_lock(packages: Mapping[str, Distribution], indexes: Sequence[str]) -> str:
    """Return the lock file."""
    lines = [HEAD]
    for name, package in packages.items():
        if name not in UNLOCKED:
            hashes = find_hashes(name, package.version, indexes)
            lines.append(
                " \\\n    ".join([f"{name}=={package.version}", *(f"--hash=sha256:{h}" for h in hashes)])
            )
    return "\n".join(lines) + "\n"


def read_lock(text: str) -> dict[str, str]:
    """Return the version of every package in a lock file."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.M))


# --- offline ----------------------------------------------------------------------------------------


def find_changes(package: Distribution) -> list[str]:
    """Return the installed files of a package that are missing or have been changed."""
    changed = []
    for file in package.files or ():
        if file.hash is None or file.name.endswith(".pyc"):
            continue
        path = Path(str(file.locate()))
        if not path.is_file():
            changed.append(f"{file} is missing")
            continue
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(f"{file} was changed")
    return changed


def check(packages: Mapping[str, Distribution]) -> list[str]:
    """Return the problems with the installed packages."""
    locked = read_lock(LOCK.read_text())
    wrong = [
        f"{name} {package.version} is installed, but the lock file has {locked.get(name, 'none')}"
        for name, package in packages.items()
        if name not in UNLOCKED and locked.get(name) != package.version
    ]
    return wrong + [f"{name}: {what}" for name, package in packages.items() for what in find_changes(package)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("licences", "lock", "check"))
    parser.add_argument("--out", type=Path, help="write the licences to this folder")
    parser.add_argument("--index", action="append", default=[], help="an additional package index to query")
    asked = parser.parse_args()
    packages = find_packages()
    match asked.what:
        case "lock":
            print(format_lock(packages, [INDEX, *asked.index]), end="")
        case "check":
            wrong = check(packages)
            print("\n".join([*wrong, f"{len(packages)} packages, {len(wrong)} problems"]))
            return int(bool(wrong))
        case _:
            print(table := format_licences(packages), end="")
            if asked.out:
                asked.out.mkdir(parents=True, exist_ok=True)
                (asked.out / "table.md").write_text(f"# Licences\n\n{table}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
