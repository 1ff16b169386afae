"""The versions that a result was made with."""

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from osae import __version__


def versions() -> dict[str, str]:
    """Return the versions of osae, of Python and of the libraries that numbers depend on."""
    return {"osae": __version__, "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "numpy", "scipy", "numba")
    }


@cache
def find_commit() -> str | None:
    """Return the commit of the repository that osae runs from, with "+" if files were changed since.

    None if osae runs from an installed package, or git is not at hand.
    """
    here = Path(__file__).resolve().parent
    if here.parent.name != "src" or not (here.parent.parent / ".git").exists():
        return None
    try:
        head, changed = (
            subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "."))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+" if changed else head
