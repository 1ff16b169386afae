"""Dependencies: each is imported and has a licence, the lock has their versions, changes are noticed."""

import base64
import hashlib
import re
import tomllib
from importlib.metadata import Distribution, PathDistribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import ROOT
from benchmarks.reliability.dependencies import (
    LOCK,
    UNLOCKED,
    _hashes_of,
    find_changes,
    find_licence,
    find_packages,
    read_lock,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"pyyaml": "yaml"}
BY_OTHERS = {"gguf": "transformers", "accelerate": "transformers"}  # which reads GGUF files with them
OF_USERS = ("hub", "pandas", "lm")  # extras that the package itself has a use for


def list_needed() -> list[str]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in OF_USERS for line in extras[extra])]
    return sorted({Requirement(line).name for line in lines})


@pytest.mark.parametrize("name", list_needed())
def test_every_dependency_is_imported_by_the_package(name):
    if name in BY_OTHERS:
        assert BY_OTHERS[name] in list_needed()
        return
    module = IMPORTED_AS.get(name, name)
    imports = re.compile(rf"^\s*(import|from) {module}\b|files\(\"{module}\"\)|\"{module}\"", re.M)
    sources = (ROOT / "src").rglob("*.py")
    assert any(imports.search(path.read_text()) for path in sources), f"nothing imports {name}"


def test_the_lock_has_the_versions_of_the_constraints_and_a_hash_for_each():
    text = LOCK.read_text()
    locked = read_lock(text)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    for name in locked.keys() & pinned.keys():
        assert locked[name] == pinned[name], name
    dev = PROJECT["optional-dependencies"]["dev"][1:]
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lm"], *dev]:
        assert canonicalize_name(Requirement(line).name) in {*locked, *UNLOCKED}
    for entry in re.split(r"^(?=[a-z0-9.-]+==)", text, flags=re.M)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_the_digests_of_a_version_are_those_of_its_own_files():
    links = [
        f"../a_b-1.0-py3-none-any.whl#sha256={'1' * 64}",
        f"../a-b-1.0.tar.gz#sha256={'2' * 64}",
        f"../a_b-1.0.1.tar.gz#sha256={'3' * 64}",
        "../a_b-1.0.zip",
    ]
    assert sorted(_hashes_of(links, "a-b", "1.0")) == ["1" * 64, "2" * 64]


def test_every_package_states_a_licence():
    packages = find_packages()
    assert {"torch", "numpy", "pytest", "transformers"} <= packages.keys()
    assert [name for name, package in packages.items() if find_licence(package) == "not stated"] == []


def test_an_installed_file_that_was_changed_is_named(tmp_path):
    def record(data: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    about = tmp_path / "thing-1.0.dist-info"
    about.mkdir()
    (tmp_path / "thing.py").write_bytes(b"x = 1\n")
    (about / "RECORD").write_text(
        f"thing.py,sha256={record(b'x = 1')},6\ngone.py,sha256={record(b'')},0\n"
        "thing-1.0.dist-info/RECORD,,\n"
    )
    package: Distribution = PathDistribution(about)
    assert find_changes(package) == ["thing.py was changed", "gone.py is missing"]
    (tmp_path / "thing.py").write_bytes(b"x = 1")
    (tmp_path / "gone.py").touch()
    assert find_changes(package) == []
