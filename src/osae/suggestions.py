"""Suggestions: the known word nearest to an unknown one. Does not need torch."""

from collections.abc import Iterable


def suggest(word: object, known: Iterable[str]) -> str:
    """Return a question suggesting the known word that was probably meant; empty if there is none."""
    import difflib

    by_letters = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(str(word).lstrip("-"), by_letters, n=1, cutoff=0.6)
    return f"did you mean {by_letters[near[0]]}?" if near else ""


def list_choices(word: object, known: Iterable[str], lead: str = "there are") -> str:
    """Return the alternatives to an unknown word: the nearest as a question, then all of them."""
    known = tuple(known)
    hint, listed = suggest(word, known), f"{lead} {', '.join(known)}."
    return f"{hint} {listed[0].upper()}{listed[1:]}" if hint else listed
