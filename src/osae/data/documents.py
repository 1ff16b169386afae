"""Parts of harvested activations that share no document, and mixtures of such parts.

Harvested shards store the document number of each row. Documents are assigned to parts in the order of their
numbers, so that a part has its share of the rows and no document is in two parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from osae.data.shards import DTYPES, Shards, is_shards, write_shards
from osae.defaults import DType
from osae.seeds import generator
from osae.tensor_files import read_tensors

DOCUMENTS = "documents"
SLICE = 8192  # rows of a mixture that are shuffled together


@dataclass(frozen=True)
class RowPart:
    """A subset of the rows of some activations, by index."""

    shards: Shards
    rows: Int[Tensor, "n"]

    def read(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop` of the part."""
        wanted = self.rows[start:stop]
        if not len(wanted):
            return torch.empty(0, self.shards.width)
        first = int(wanted[0])
        return self.shards.read(first, int(wanted[-1]) + 1)[wanted - first]


def read_documents(shards: Shards) -> Int[Tensor, "N"]:
    """Return the document number of each row."""
    found = []
    for shard in shards.shards:
        if shard.file.suffix != ".safetensors":
            raise _unknown(shards)
        try:
            found.append(read_tensors(shards.bring(shard.file), [DOCUMENTS])[DOCUMENTS].long())
        except KeyError:
            raise _unknown(shards) from None
    return torch.cat(found)


def _unknown(shards: Shards) -> ValueError:
    return ValueError(
        f"{shards.path} does not record the document of each row: harvest it with `osae harvest`."
    )


def split_documents(shards: Shards, shares: Sequence[float]) -> list[RowPart]:
    """Return parts with these shares of the rows, in the order of documents; no document is in two parts.

    A document belongs to the part in which its middle row falls.
    """
    documents = read_documents(shards)
    numbers, place, counts = documents.unique(return_inverse=True, return_counts=True)
    middles = counts.cumsum(0).double() - counts / 2
    ends = torch.tensor(shares, dtype=torch.float64).cumsum(0) / sum(shares) * len(documents)
    part_of = torch.bucketize(middles, ends[:-1].contiguous(), right=True)[place]
    parts = [RowPart(shards, (part_of == part).nonzero()[:, 0]) for part in range(len(shares))]
    if any(not len(part.rows) for part in parts):
        raise ValueError(
            f"{shards.path} has {len(numbers)} documents, too few for {len(shares)} parts: harvest more text."
        )
    return parts


def write_parts(folder: Path, parts: Sequence[RowPart], shares: Sequence[float]) -> Shards:
    """Write a mixture of parts as shards; `shares` are the shares of its rows from each part.

    The mixture has as many rows as the parts allow. Each slice contains rows of every part in these shares,
    in random order. A folder that already contains the mixture is left unchanged.
    """
    total = min(len(part.rows) / share for part, share in zip(parts, shares, strict=True)) * sum(shares)
    counts = [int(total * share / sum(shares)) for share in shares]
    about = _describe(parts, counts)
    if is_shards(folder):
        if Shards(folder).manifest.get("mixture") != about["mixture"]:
            raise ValueError(f"{folder} contains activations of other documents: give another --out.")
        return Shards(folder)
    dtypes: dict[str, DType] = {name: name for name in DTYPES}
    dtype = dtypes[parts[0].shards.dtype]
    return write_shards(folder, _slices(parts, counts), dtype=dtype, about=about)


def _slices(parts: Sequence[RowPart], counts: Sequence[int]) -> Iterator[Tensor]:
    """Yield the mixture, slice by slice."""
    number = max(1, -(-sum(counts) // SLICE))
    for i in range(number):
        rows = torch.cat(
            [
                part.read(count * i // number, count * (i + 1) // number)
                for part, count in zip(parts, counts, strict=True)
            ]
        )
        if len(rows):
            yield rows[torch.randperm(len(rows), generator=generator(0, "mixture", i))]


def _describe(parts: Sequence[RowPart], counts: Sequence[int]) -> dict[str, Any]:
    """Return the manifest fields that describe a mixture: the model, the text, and the rows of each part."""
    manifests = [part.shards.manifest for part in parts]
    texts = [manifest.get("text", {}) for manifest in manifests]
    mixture = [
        {
            "sha256": part.shards.provenance()["sha256"],
            "first": int(part.rows[0]),
            "last": int(part.rows[-1]),
            "rows": count,
        }
        for part, count in zip(parts, counts, strict=True)
    ]
    files = [file for text in texts for file in text.get("files", [])]
    return {"model": manifests[0].get("model", {}), "text": {"files": files}, "mixture": mixture}
