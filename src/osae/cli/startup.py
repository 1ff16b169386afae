"""Process settings that make commands start faster and work faster on large arrays.

Together they save about a second, measured on `osae compare` of two SAEs with 4,096 units. `import osae`
changes none of them, since a library should not change settings of its host process.
"""

import ctypes
import gc
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path


def leave_a_core() -> None:
    """Leave one core free for the thread that computes chance levels, unless OPENBLAS_NUM_THREADS is set.

    Call this before importing numpy, which reads the setting only once.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 2) - 1)))


def load_libraries() -> None:
    """Import numba while another thread loads the shared libraries of torch, which takes 0.2 s.

    The subsequent import of torch finds them loaded.
    """
    torch = find_spec("torch")
    folders = (torch and torch.submodule_search_locations) or ()
    found = [library for folder in folders if (library := Path(folder) / "lib/libtorch_cpu.so").is_file()]
    loading = threading.Thread(target=_load_shared, args=(found,), daemon=True)
    loading.start()
    import numba  # noqa: F401

    loading.join()


def _load_shared(libraries: list[Path]) -> None:
    """Load shared libraries; ignore failures, which whoever needs the library reports."""
    # called as a C function, which lets other threads run Python meanwhile; loading by ctypes itself does not
    load = ctypes.CDLL(None).dlopen
    load.restype, load.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    for library in libraries:
        load(os.fsencode(library), os.RTLD_LAZY)


def freeze_imports() -> None:
    """Exempt imported modules from garbage collection: they are never freed, and scanning them costs 0.5 s.

    Do nothing if triton is installed, which reports a leak if it is not collected.
    """
    if "triton" not in sys.modules:
        gc.freeze()
