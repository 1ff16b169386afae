"""The software versions behind a result."""

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from osae import __version__


def versions() -> dict[str, str]:
    """Return the versions of osae, of Python and of the libraries that numbers depend on, and the processor.

    The libraries select code by the processor's instruction set, so the last bits of results depend on it.
    """
    import torch

    return {
        "osae": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scipy", "numba")},
        "cpu": f"{_processor()} ({torch.backends.cpu.get_cpu_capability()})",
    }


def _processor() -> str:
    """Return the name of the processor, if the system reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def find_commit() -> str | None:
    """Return the commit of the repository that osae runs from, with "+" if files were changed since.

    None if osae runs from an installed package, or git is not available.
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
