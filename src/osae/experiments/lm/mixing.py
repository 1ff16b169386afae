"""Texts that share no documents: mixtures of two texts, and a part of a text for every seed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from osae.data.documents import split_documents, write_parts
from osae.data.shards import Shards
from osae.experiments.lm.activations import PARTS, Part, TextShards
from osae.progress import Progress


def mix_texts(
    texts: Mapping[str, TextShards], share: float, folder: Path, progress: Progress
) -> dict[str, TextShards]:
    """Return two mixtures of the first two texts that share no documents.

    One has `share` of its rows from the first text and the rest from the second, the other the reverse.
    """
    (one, first), (other, second) = list(texts.items())[:2]
    shares = ((share, 1 - share), (1 - share, share))
    names = [f"{one}{round(100 * a)}-{other}{round(100 * b)}" for a, b in shares]
    mixtures = {name: {} for name in names}
    for part in PARTS:
        # both texts are split by the shares of the mixture, so nothing is left over
        cut = split_documents(_open(first, part), shares[0]), split_documents(_open(second, part), shares[1])
        for i, name in enumerate(names):
            progress(i, len(names), f"mixing {name}, {part}")
            mixtures[name][part] = write_parts(
                folder / f"{name}-{part}", [cut[0][i], cut[1][i]], shares[i]
            ).path
    return {name: TextShards(found["train"], found["held-out"]) for name, found in mixtures.items()}


def split_for_seeds(
    texts: Mapping[str, TextShards], seeds: int, folder: Path, progress: Progress
) -> dict[str, TextShards]:
    """Return the texts with a part of the training documents for every seed; no document is in two parts."""
    found = {}
    for count, (name, text) in enumerate(texts.items()):
        progress(count, len(texts), f"splitting {name}")
        parts = split_documents(Shards(text.train), [1.0] * seeds)
        written = [
            write_parts(folder / f"{name}-seed{seed}", [part], [1.0]).path for seed, part in enumerate(parts)
        ]
        found[name] = replace(text, by_seed=tuple(written))
    return found


def _open(text: TextShards, part: Part) -> Shards:
    return Shards(text.train if part == "train" else text.held_out)
