"""The memory of this process, and the bound that is promised for files that nobody should trust."""

import os
from pathlib import Path

BESIDE = 16_000_000  # bytes that a command may take beyond a few times the files it reads
TIMES = 8
CLEAR = Path("/proc/self/clear_refs")


def resident(which: str, *, anew: bool = False) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most (VmHWM); the peak begins anew if asked."""
    if not os.access(CLEAR, os.W_OK):
        return 0
    if anew:
        CLEAR.write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def is_within_bound(path: Path, before: int) -> bool:
    """Whether reading these files took as little memory as promised since the peak began anew."""
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    return resident("VmHWM") - before < TIMES * size + BESIDE
