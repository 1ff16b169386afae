"""Contexts of tokens, batched for a language model by similar length and padded on the right."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int


def group_contexts(contexts: Sequence[Int[np.ndarray, "_"]], most_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of the contexts in each batch: contexts of similar length, the shortest first.

    Padded to its longest context, a batch has at most `most_tokens` tokens; a longer context forms a batch of
    its own.
    """
    group: list[int] = []
    for index in sorted(range(len(contexts)), key=lambda index: len(contexts[index])):
        if group and len(contexts[index]) * (len(group) + 1) > most_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def pad_contexts(contexts: Sequence[Int[np.ndarray, "_"]]) -> Int[np.ndarray, "n t"]:
    """Return the contexts as rows of one matrix, padded with zeros on the right."""
    ids = np.zeros((len(contexts), max(map(len, contexts))), dtype=np.int32)
    for row, context in zip(ids, contexts, strict=True):
        row[: len(context)] = context
    return ids
