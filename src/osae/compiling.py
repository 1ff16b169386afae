"""Where numba caches compiled code: next to the source, or in the home directory.

If neither is writable, numba refuses to compile at all. Compiled code then goes to a temporary directory that
only its owner can read and write.
"""

import os
import stat
import sys
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def choose_cache() -> None:
    """Set the directory for compiled code if numba would not find one."""
    if os.environ.get(VARIABLE):
        return
    beside = Path(__file__).parent / "metrics" / "__pycache__"
    if not any(map(_can_write, (beside, _find_user_cache()))):
        os.environ[VARIABLE] = str(_make_private())
        if "numba" in sys.modules:  # too late for the variable
            sys.modules["numba"].config.CACHE_DIR = os.environ[VARIABLE]


def _find_user_cache() -> Path:
    """Return the directory in which numba stores compiled code for a user."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _can_write(folder: Path) -> bool:
    """Return whether files can be created in the folder, which may not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _make_private() -> Path:
    """Return this user's directory, the same one each time; a new one if another user has taken its name.

    Code is loaded from it, so nobody else may write to it.
    """
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"osae-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="osae-numba-"))
