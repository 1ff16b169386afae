"""Splice SAEs into a language model, and measure the cost of replacing activations with reconstructions.

Shapes: n contexts, t tokens in each, T tokens in all, d width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum, isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor

from osae.array_files import read_arrays, read_first
from osae.config import from_json, to_json
from osae.data.harvest import CONTEXTS, Contexts, Harvest, batch_contexts, build_contexts, open_model
from osae.data.lm import LanguageModel, Splice
from osae.data.shards import Shards
from osae.data.text import TextFiles
from osae.model import SAE
from osae.progress import Steps
from osae.results.evaluation import CrossEntropy, ModelInfo, SplicedCrossEntropy
from osae.studies.subjects import BATCH, Data

Announce = Callable[[int], None]

_LOGITS = 2**26  # logits that the model computes in a pass (256 MB)


class SplicedLosses(NamedTuple):
    """Mean cross-entropies of the unmodified model, with zeros spliced in, and with each SAE."""

    clean: float
    zero: float
    spliced: list[float]

    def describe_splice(self, place: int) -> SplicedCrossEntropy:
        """Return the loss with one of the SAEs, and the share recovered."""
        spliced, lost = self.spliced[place], self.zero - self.clean
        recovered = (self.zero - spliced) / lost if lost != 0 else float("nan")
        return SplicedCrossEntropy(_number(spliced), _number(recovered))


class Batch(NamedTuple):
    """Contexts of similar length, padded on the right, and which predictions count."""

    ids: Int[Tensor, "n t"]
    counted: Bool[Tensor, "n t-1"]


@dataclass(frozen=True, eq=False)
class Language:
    """A model, hooked where the activations were taken, and the batches that it reads."""

    lm: LanguageModel
    spec: Harvest
    contexts: int
    batches: list[Batch]

    @property
    def tokens(self) -> int:
        """Return the number of predictions that count."""
        return sum(int(batch.counted.sum()) for batch in self.batches)

    def describe(self, losses: SplicedLosses) -> CrossEntropy:
        """Return the model and text used, and the losses without any SAE."""
        spec = self.spec
        return CrossEntropy(
            model=ModelInfo(spec.model, self.lm.revision, spec.layer, spec.module),
            text=to_json(spec.text),
            contexts=self.contexts,
            tokens=self.tokens,
            skip=spec.skip,
            clean=_number(losses.clean),
            zero=_number(losses.zero),
        )


def open_language(
    data: Data, model: str, text: Sequence[str], tokens: int, device: str, announce: Announce
) -> tuple[Language | None, list[str]]:
    """Return the model with its contexts, if any, and a note if the model chosen by "auto" cannot be used.

    `announce` is called with the bytes that the passes of the model need; it may raise `ValueError`.
    """
    if model == "none":
        return None, []
    try:
        found = _open_language(data, model, text, tokens, device)
        announce(found.lm.forecast_bytes(found.tokens, found.spec.context, losses=True))
        return found, []
    except (ValueError, OSError) as error:
        if model != "auto":
            raise
        return None, [f"No cross-entropy: {error}"]


def _open_language(data: Data, model: str, text: Sequence[str], tokens: int, device: str) -> Language:
    spec = harvest_of(data, model)
    if text:
        spec = replace(spec, text=TextFiles(tuple(text), spec.text.field), tokens=tokens)
    lm = open_model(spec, device)
    if text:
        built = build_contexts(spec, lm)
        pieces = _split(built.ids, _first_starts(built.starts, spec.skip, tokens), spec.skip)
    else:
        assert isinstance(data, Shards)  # or it would have no manifest
        pieces = _read_contexts(data.bring(data.folder / CONTEXTS), spec.skip, tokens)
    if not pieces:
        raise ValueError(f"no context has a token to predict after the first {spec.skip}: give longer text.")
    _check_fit(lm, pieces, data)
    batches = _batch(pieces, spec.skip, lm.limit_tokens(max(1, _LOGITS // lm.vocabulary)))
    return Language(lm, spec, len(pieces), batches)


def harvest_of(data: Data, model: str) -> Harvest:
    """Return the settings of the harvest, with the model replaced by the requested one."""
    if "harvest" not in data.manifest:
        raise ValueError(
            f"{data.path} does not name the model that produced its activations: give a folder written by "
            "`osae harvest`."
        )
    spec = from_json(data.manifest["harvest"])
    if not isinstance(spec, Harvest):
        raise ValueError(
            f"{data.path}: the manifest's 'harvest' entry is invalid: harvest the activations again."
        )
    if model != "auto":
        return replace(spec, model=model, revision=None)
    known = data.manifest.get("model")
    exact = known.get("revision") if isinstance(known, Mapping) else None
    return replace(spec, revision=exact or spec.revision)


def _read_contexts(path: Path, skip: int, tokens: int) -> list[Int[np.ndarray, "t"]]:
    """Return the first contexts of the shards, which are shuffled, with up to `tokens` tokens to predict."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it too, or give text files.")
    try:
        starts = _first_starts(read_arrays(path, ["starts"])["starts"], skip, tokens)
        return _split(read_first(path, "ids", int(starts[-1])), starts, skip)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it again, or give text files.") from error


def _first_starts(starts: Int[np.ndarray, "starts"], skip: int, tokens: int) -> Int[np.ndarray, "first"]:
    """Return where the first contexts start, enough of them for `tokens` tokens to predict."""
    predicted = np.maximum(np.diff(starts) - 1 - skip, 0).cumsum()
    return starts[: np.searchsorted(predicted, tokens) + 2]


def _split(ids: Int[np.ndarray, "T"], starts: Int[np.ndarray, "starts"], skip: int) -> list[np.ndarray]:
    """Return the contexts that have a token to predict after a position that is not skipped."""
    pieces = [ids[start:stop] for start, stop in pairwise(starts)]
    return [piece for piece in pieces if len(piece) > skip + 1]


def _batch(pieces: Sequence[np.ndarray], skip: int, most: int) -> list[Batch]:
    """Return the contexts in batches of at most that many tokens, and the predictions that count."""
    lengths = np.array([len(piece) for piece in pieces])
    starts = np.concatenate([[0], lengths.cumsum()])
    nothing = np.zeros(len(pieces), dtype=np.int64)  # no document
    contexts = Contexts(np.concatenate(pieces), starts, nothing, nothing, np.array([0, len(pieces)]))
    batches = []
    for ids, group in batch_contexts(contexts, 0, most):
        place = torch.arange(ids.shape[1] - 1)
        ends = torch.from_numpy(lengths[group] - 1)[:, None]
        batches.append(Batch(torch.from_numpy(ids).long(), (place >= skip) & (place < ends)))
    return batches


def _check_fit(lm: LanguageModel, pieces: Sequence[np.ndarray], data: Data) -> None:
    """Raise `ValueError` if the model cannot read the contexts, or has activations of another width."""
    highest = max(int(ids.max()) for ids in pieces)
    if highest >= lm.vocabulary:
        raise ValueError(
            f"{lm.name} knows {lm.vocabulary} tokens, but the contexts contain token {highest}: give the "
            "model that produced the activations, or text files."
        )
    width = lm.activations(torch.from_numpy(pieces[0][None]).long()).shape[-1]
    if width != data.width:
        raise ValueError(
            f"{lm.name} has width {width} at this layer, but {data.path} has width {data.width}: give the "
            "model that produced the activations."
        )


def splice_losses(language: Language, saes: Sequence[SAE], steps: Steps) -> SplicedLosses:
    """Return the mean losses over all predictions at positions where something is spliced in."""
    splices: list[Splice | None] = [None, torch.zeros_like, *map(_splice, saes)]

    def add_up(batch: Batch) -> list[float]:
        sums = []
        for splice in splices:
            losses = language.lm.losses(batch.ids, splice, skip=language.spec.skip)
            sums.append(float(losses[batch.counted].double().sum()))
            steps("cross-entropy")
        return sums

    each = language.lm.map_batches(add_up, language.batches)
    clean, zero, *spliced = (fsum(sums) / language.tokens for sums in zip(*each, strict=True))
    return SplicedLosses(clean, zero, spliced)


def _splice(sae: SAE) -> Splice:
    """Return the function that replaces activations with their reconstruction, a batch at a time."""

    def reconstruct(hidden: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        parts = [sae(rows).reconstruction for rows in hidden.flatten(0, 1).split(BATCH)]
        return torch.cat(parts).view_as(hidden)

    return reconstruct


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
