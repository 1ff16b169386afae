"""Locate the rows of a harvest in their contexts, from their documents and positions.

Shapes: N rows, n contexts, T tokens in all contexts, W tokens in a window.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from osae.data.harvest import CONTEXTS, Contexts, read_contexts
from osae.data.shards import Shards

_FAR = 1 << 40  # beyond the last position of any document
OUTSIDE = -1


class PlacedRows(NamedTuple):
    """The slot of each row among the tokens of all contexts, and where its context starts and stops."""

    slots: Int[np.ndarray, "N"]
    starts: Int[np.ndarray, "N"]
    stops: Int[np.ndarray, "N"]


@dataclass(frozen=True, eq=False)
class PlacedText:
    """The contexts of a harvest, prepared for locating rows."""

    contexts: Contexts
    keys: Int[np.ndarray, "n"]
    order: Int[np.ndarray, "n"]

    @property
    def longest(self) -> int:
        """The number of tokens in the longest context."""
        return int(np.diff(self.contexts.starts).max())

    def place(self, documents: Int[np.ndarray, "N"], positions: Int[np.ndarray, "N"]) -> PlacedRows:
        """Return the location of each row; raise `ValueError` if a row is in no context."""
        wanted = documents.astype(np.int64) * _FAR + positions.astype(np.int64)
        found = self.order[np.maximum(np.searchsorted(self.keys, wanted, "right") - 1, 0)]
        starts, stops = self.contexts.starts[found], self.contexts.starts[found + 1]
        slots = starts + positions - self.contexts.offsets[found]
        right = (self.contexts.documents[found] == documents) & (slots >= starts) & (slots < stops)
        if not right.all():
            raise ValueError(
                f"rows are in none of the contexts in {CONTEXTS}: harvest the activations again."
            )
        return PlacedRows(slots, starts, stops)

    def windows(self, slots: Int[np.ndarray, "N W"], at: Int[np.ndarray, "N"]) -> Int[np.ndarray, "N W"]:
        """Return the tokens in windows of slots, -1 outside the context of the slot `at`."""
        found = np.searchsorted(self.contexts.starts, at, "right") - 1
        starts, stops = self.contexts.starts[found], self.contexts.starts[found + 1]
        inside = (slots >= starts[:, None]) & (slots < stops[:, None])
        ids = self.contexts.ids[np.clip(slots, 0, len(self.contexts.ids) - 1)]
        return np.where(inside, ids, OUTSIDE).astype(np.int32)

    def documents(self, at: Int[np.ndarray, "N"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the document of each slot, and the slot's position in it."""
        found = np.searchsorted(self.contexts.starts, at, "right") - 1
        return self.contexts.documents[found], at - self.contexts.starts[found] + self.contexts.offsets[found]


def place_text(shards: Shards) -> PlacedText:
    """Return the contexts of harvested shards; raise `ValueError` if the shards are not from a harvest."""
    if "harvest" not in shards.manifest:
        raise ValueError(
            f"{shards.path} has activations without their text: give a folder written by `osae harvest`."
        )
    path = shards.bring(shards.folder / CONTEXTS)
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it too, or harvest the activations again.")
    contexts = read_contexts(path)
    keys = contexts.documents.astype(np.int64) * _FAR + contexts.offsets
    order = np.argsort(keys)
    return PlacedText(contexts, keys[order], order)
