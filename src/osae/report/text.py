"""Text that is safe to display, and descriptions of data."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from osae.results.base import count

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # Unicode categories that control text or are invisible


def visible(text: str, limit: int = 2000) -> str:
    r"""Return the text with control characters escaped, and shortened in the middle if it is long.

    Names and notes may come from untrusted files: a terminal must not interpret them. Spaces are kept; line
    breaks and tabs become spaces.
    """
    if len(text) > limit:
        half = (limit - 3) // 2
        text = f"{text[:half]} … {text[-half:]}"
    plain = (" " if char in "\t\n\r" else char for char in text)
    return "".join(_escape(char) if unicodedata.category(char) in HIDDEN else char for char in plain)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def describe_world(world: Mapping[str, Any] | None) -> str:
    """Return a one-line description of the data: its kind, then each of its numbers by name."""
    if not world:
        return ""
    numbers = {key: value for key, value in world.items() if key != "kind" and value is not None}
    parts = [f"{key.replace('_', ' ')} {_plain(value)}" for key, value in numbers.items()]
    kind = str(world.get("kind", ""))
    return f"{kind}: {', '.join(parts)}" if kind and parts else kind or ", ".join(parts)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({describe_world(value)})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    if isinstance(value, list | tuple):
        shown = [_plain(item) for item in value]
        return f"({', '.join(shown)})" if len(shown) <= 8 else f"({shown[0]}, {shown[1]}, ..., {shown[-1]})"
    return str(value)


def describe_seeds(seeds: Sequence[int]) -> str:
    """Return the number of seeds and pairs, and which seeds there are."""
    if not seeds:
        return ""
    total, first, last = len(seeds), seeds[0], seeds[-1]
    if total == 1:
        return f"1 (seed {first})"
    named = (
        f"{first} to {last}" if list(seeds) == list(range(first, last + 1)) else ", ".join(map(str, seeds))
    )
    pairs = total * (total - 1) // 2
    return f"{total} (seeds {named}), {count(pairs, 'pair')}"
