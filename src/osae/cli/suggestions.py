"""What was probably meant: the known word that is nearest to an unknown one."""

from collections.abc import Iterable

RENAMED = {  # options of release 0.1.0, and what they are called now
    "--abs": "--absolute",
    "--activations": "--data",
    "--active": "--world-active",
    "--dictionary": "--units",
    "--samples": "--world-samples",
    "--width": "--world-width",
    "--zipf": "--world-zipf",
}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a question that names the known word that was probably meant; empty if there is none."""
    import difflib

    by_letters = {name.lstrip("-"): name for name in known}
    if RENAMED.get(word) in by_letters.values():
        return f"did you mean {RENAMED[word]}?"
    near = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1, cutoff=0.6)
    return f"did you mean {by_letters[near[0]]}?" if near else ""
