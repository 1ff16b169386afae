"""The versions that a result was made with."""

import platform
from importlib.metadata import version

from osae import __version__


def versions() -> dict[str, str]:
    """Return the versions of osae, of Python and of the libraries that numbers depend on."""
    return {"osae": __version__, "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "numpy", "scipy", "numba")
    }
