"""Suggestions for options that do not exist."""

from collections.abc import Iterable

from osae.messages import suggest

RENAMED = {  # options of release 0.1.0, and what they are called now
    "--abs": "--absolute",
    "--activations": "--data",
    "--active": "--world-active",
    "--dictionary": "--units",
    "--samples": "--world-samples",
    "--width": "--world-width",
    "--world-zipf": "--exponents",  # of `reproduce zipf`, which sweeps them
    "--zipf": "--world-zipf",
}


def suggest_flag(flag: str, known: Iterable[str]) -> str:
    """Return a question suggesting the option that was probably meant; empty if there is none."""
    known = tuple(known)
    return f"did you mean {RENAMED[flag]}?" if RENAMED.get(flag) in known else suggest(flag, known)
