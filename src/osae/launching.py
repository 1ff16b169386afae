"""What torchrun, or a similar launcher, tells the processes that it starts. Nothing here needs torch."""

import os


def is_launched() -> bool:
    """Return whether this process is one of several that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_first() -> bool:
    """Return whether this process is the one that writes files and prints messages."""
    return not is_launched() or os.environ["RANK"] == "0"


def count_restarts() -> int:
    """Return how often the processes were restarted because one of them had died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def agent_port() -> int | None:
    """Return the port of torchrun's own rendezvous store; None if one of the processes has to provide it."""
    helps = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return int(os.environ["MASTER_PORT"]) if helps else None


def local_rank() -> int | None:
    """Return the number of this process among those on this machine; None if it was started alone."""
    return int(os.environ["LOCAL_RANK"]) if is_launched() and "LOCAL_RANK" in os.environ else None
