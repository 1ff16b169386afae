"""Parts of messages: errors in one line, and suggestions for unknown words. Does not need torch."""

from collections.abc import Iterable

_LONGEST = 300  # characters of another library's message


def one_line(message: object) -> str:
    """Return the message in one line."""
    return " ".join(str(message).split())


def shorten(error: object) -> str:
    """Return another library's error message in one line, cut off if it is long."""
    return one_line(error)[:_LONGEST]


def suggest(word: object, known: Iterable[str]) -> str:
    """Return a question suggesting the known word that was probably meant; empty if there is none."""
    import difflib

    by_letters = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(str(word).lstrip("-"), by_letters, n=1, cutoff=0.6)
    return f"did you mean {by_letters[near[0]]}?" if near else ""


def list_choices(word: object, known: Iterable[str], lead: str = "choose from") -> str:
    """Return the alternatives to an unknown word: the nearest as a question, then all of them."""
    known = tuple(known)
    hint, listed = suggest(word, known), f"{lead} {', '.join(known)}."
    return f"{hint} {listed[0].upper()}{listed[1:]}" if hint else listed
