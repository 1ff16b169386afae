"""How well SAEs rebuild activations they were not trained on, prefix by prefix, and what a model loses by it.

Shapes: d width, n contexts, t tokens in each, K units.

The result is a plain dict: docs/evaluate.md says what its fields are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from osae import metrics
from osae.comparison import BATCH, Progress, SAELike, about, opened, runnable
from osae.config import from_json, to_json
from osae.data.harvest import CONTEXTS, Harvest, build_contexts, open_model
from osae.data.lm import LanguageModel, Splice
from osae.data.shards import Shards
from osae.data.text import TextFiles
from osae.devices import choose_device
from osae.interop import Loaded
from osae.model import SAE
from osae.versions import versions

SCHEMA = 1
TOKENS = 20_000  # predictions that the cross-entropy is the mean of

_LOGITS = 2**26  # numbers that the model puts out at once (256 MB)


def evaluate(
    saes: Sequence[SAELike],
    shards: Shards | Path | str,
    *,
    prefixes: Sequence[int] = (),
    model: str = "auto",
    text: Sequence[str] = (),
    tokens: int = TOKENS,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What there is to say about each SAE on all rows of the shards, as a plain dict.

    The folder of a run stands for all SAEs that it finished. `prefixes` adds to the lengths 1, 2, 4, ..., K
    of the prefix curve. `model` is what the SAEs are put into for the cross-entropy: "auto" is the model that
    the shards are from, if it can be opened; "none" is none. It is measured on `tokens` tokens of the
    contexts that the shards are from, or of the `text` files; the model runs on `device`.
    `progress(done, total, text)` is called after each step.
    """
    _check_choices(saes, model, text, tokens)
    choose_device(device)
    loaded = [sae for one in saes for sae in _members(one)]
    shards = shards if isinstance(shards, Shards) else Shards(shards)
    running = [runnable(one, shards) for one in loaded]
    lengths = [_lengths(prefixes, loaded, one) for one in loaded]
    language, notes = _language(shards, model, text, tokens, device)

    steps = -(-shards.rows // BATCH)
    if language is not None:
        steps += len(language.groups) * (2 + len(loaded))
    done = count(1)

    def tell(what: str) -> None:
        if progress is not None:
            progress(next(done), steps, what)

    activations = shards.provenance()
    found = [
        about(one) | numbers
        for one, numbers in zip(loaded, _rebuilt(running, lengths, shards, tell), strict=True)
    ]
    losses = None if language is None else _cross_entropy(language, running, tell)
    for place, sae in enumerate(found):
        sae["cross_entropy"] = None if losses is None else losses.of(place)
    return {
        "schema": SCHEMA,
        "kind": "evaluation",
        "options": {"prefixes": list(prefixes), "model": model, "text": list(text), "tokens": tokens},
        "provenance": {"versions": versions()},
        "activations": activations,
        "cross_entropy": None if language is None or losses is None else language.about | losses.bounds(),
        "saes": found,
        "notes": notes + _remarks(loaded, found, losses, activations["sha256"]),
    }


def _check_choices(saes: Sequence[SAELike], model: str, text: Sequence[str], tokens: int) -> None:
    if isinstance(saes, str | Path) or len(saes) < 1:
        raise ValueError("no SAE to evaluate: give a list of at least one.")
    if tokens < 1:
        raise ValueError(f"tokens={tokens}: give at least 1, or model='none' for no cross-entropy.")
    if text and model == "none":
        raise ValueError(
            "text is for the cross-entropy, which model 'none' leaves out: leave out one of them."
        )


def _members(one: SAELike) -> list[Loaded]:
    """The SAE itself; of the folder of a run, all SAEs that are finished."""
    if isinstance(one, Loaded):
        return [one]
    folder = Path(one)
    if not (folder / "run.json").is_file() or (folder / "sae.json").is_file():
        return [opened(one)]
    names = sorted(file.parent.name for file in folder.glob("*/sae.json"))
    if not names:
        raise ValueError(f"{one}: this run has no finished SAE yet: `osae resume {one}` goes on with it.")
    return [opened(folder / name) for name in names]


def _lengths(prefixes: Sequence[int], loaded: Sequence[Loaded], one: Loaded) -> list[int]:
    """The powers of two and K, and of the lengths asked for those that the SAE reaches."""
    longest = max(each.units for each in loaded)
    for length in prefixes:
        if not 1 <= length <= longest:
            raise ValueError(f"prefix length {length}: give 1 to {longest}, the number of units.")
    powers = {2**power for power in range(one.units.bit_length())}
    return sorted(powers | {one.units} | {length for length in prefixes if length <= one.units})


# --- on the activations -----------------------------------------------------------------------------


class _Measures(NamedTuple):
    """What is summed up over the batches for one SAE."""

    whole: metrics.Reconstruction
    curve: metrics.PrefixCurve
    speaking: metrics.Speaking


@torch.no_grad()
def _rebuilt(
    saes: Sequence[SAE], lengths: Sequence[Sequence[int]], shards: Shards, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The measures of each SAE that need no model, from one pass over the rows."""
    measures = [
        _Measures(
            metrics.Reconstruction(sae.config.units),
            metrics.PrefixCurve(sae.decoder),
            metrics.Speaking(sae.config.units),
        )
        for sae in saes
    ]
    for x in shards.batches(BATCH):
        for sae, (whole, curve, speaking) in zip(saes, measures, strict=True):
            code = sae.encode(x)
            whole.update(x, sae.decode(code), *code)
            curve.update(*code, x - sae.decoder_bias)
            speaking.update(*code)
        tell("activations")
    return [_numbers(each, chosen) for each, chosen in zip(measures, lengths, strict=True)]


def _numbers(measures: _Measures, lengths: Sequence[int]) -> dict[str, Any]:
    whole, errors = measures.whole.result(), measures.curve.mse()
    explained = measures.curve.explained_variance()
    return {
        "mse": whole.mse,
        "explained_variance": _number(whole.explained_variance),
        "l0": whole.l0,
        "dead": whole.dead_share,
        "frequencies": measures.speaking.histogram()._asdict(),
        "prefixes": [
            {
                "length": length,
                "mse": float(errors[length - 1]),
                "explained_variance": _number(float(explained[length - 1])),
            }
            for length in lengths
        ],
    }


# --- in the language model --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Language:
    """A model, opened where the activations are from, and contexts of like length beside each other."""

    lm: LanguageModel
    skip: int
    groups: list[list[Int[np.ndarray, "t"]]]
    about: dict[str, Any]


def _language(
    shards: Shards, model: str, text: Sequence[str], tokens: int, device: str
) -> tuple[_Language | None, list[str]]:
    """The model with its contexts if there are any, and a note if a model was not asked for and fails."""
    if model == "none":
        return None, []
    try:
        return _opened_language(shards, model, text, tokens, device), []
    except (ValueError, OSError) as error:
        if model != "auto":
            raise
        return None, [f"No cross-entropy: {error}"]


def _opened_language(shards: Shards, model: str, text: Sequence[str], tokens: int, device: str) -> _Language:
    spec = _spec(shards, model)
    if text:
        spec = replace(spec, text=TextFiles(tuple(text), spec.text.field), tokens=tokens)
    lm = open_model(spec, device)
    if text:
        made = build_contexts(spec, lm)
        contexts = _split(made.ids, _starts(made.starts, spec.skip, tokens), spec.skip)
    else:
        contexts = _stored(shards.path / CONTEXTS, spec.skip, tokens)
    if not contexts:
        raise ValueError(f"no context has a token to predict behind the first {spec.skip}: give longer text.")
    _check_fits(lm, contexts, shards)
    return _Language(
        lm,
        spec.skip,
        list(_groups(contexts, max(1, _LOGITS // lm.vocabulary))),
        {
            "model": {
                "name": spec.model,
                "revision": lm.revision,
                "layer": spec.layer,
                "module": spec.module,
            },
            "text": to_json(spec.text),
            "contexts": len(contexts),
            "tokens": sum(len(ids) - 1 - spec.skip for ids in contexts),
            "skip": spec.skip,
        },
    )


def _spec(shards: Shards, model: str) -> Harvest:
    """What the shards were harvested with, the model exchanged for the one asked for."""
    if "harvest" not in shards.manifest:
        raise ValueError(
            f"{shards.path} does not say which model its activations are from: give shards of `osae harvest`."
        )
    spec = from_json(shards.manifest["harvest"])
    if not isinstance(spec, Harvest):
        raise ValueError(f"{shards.path}: 'harvest' in the manifest is no harvest: make the shards again.")
    if model != "auto":
        return replace(spec, model=model, revision=None)
    known = shards.manifest.get("model")
    exact = known.get("revision") if isinstance(known, Mapping) else None
    return replace(spec, revision=exact or spec.revision)


def _stored(path: Path, skip: int, tokens: int) -> list[Int[np.ndarray, "t"]]:
    """The first contexts of the shards, with so many tokens to predict; they are shuffled already."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: copy it too, or give text files.")
    try:
        with safe_open(path, "np") as file:
            starts = _starts(file.get_tensor("starts"), skip, tokens)
            return _split(file.get_slice("ids")[: int(starts[-1])], starts, skip)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): copy it again, or give text files.") from error


def _starts(starts: Int[np.ndarray, "n+1"], skip: int, tokens: int) -> Int[np.ndarray, "m+1"]:
    """Where the first contexts begin, as many as have `tokens` tokens to predict."""
    predicted = np.maximum(np.diff(starts) - 1 - skip, 0).cumsum()
    return starts[: np.searchsorted(predicted, tokens) + 2]


def _split(ids: Int[np.ndarray, "T"], starts: Int[np.ndarray, "n+1"], skip: int) -> list[np.ndarray]:
    """The contexts that have a token to predict behind a position that is not skipped."""
    pieces = [ids[start:stop] for start, stop in pairwise(starts)]
    return [piece for piece in pieces if len(piece) > skip + 1]


def _check_fits(lm: LanguageModel, contexts: Sequence[np.ndarray], shards: Shards) -> None:
    highest = max(int(ids.max()) for ids in contexts)
    if highest >= lm.vocabulary:
        raise ValueError(
            f"{lm.name} knows {lm.vocabulary} tokens, and the contexts hold token {highest}: give the model "
            "that the activations are from, or text files."
        )
    width = lm.activations(torch.from_numpy(contexts[0][None]).long()).shape[-1]
    if width != shards.width:
        raise ValueError(
            f"{lm.name} has width {width} there, and {shards.path} has {shards.width}: give the model that "
            "the activations are from."
        )


def _groups(contexts: Sequence[np.ndarray], most: int) -> Iterator[list[np.ndarray]]:
    """Contexts of like length together, at most so many tokens, filled up; one context in any case."""
    group: list[np.ndarray] = []
    for ids in sorted(contexts, key=len):
        if group and len(ids) * (len(group) + 1) > most:
            yield group
            group = []
        group.append(ids)
    yield group


class _Losses(NamedTuple):
    """Mean cross-entropies: of the model as it is, with zeros put in, and with each SAE put in."""

    clean: float
    zero: float
    spliced: list[float]

    def bounds(self) -> dict[str, float | None]:
        return {"clean": _number(self.clean), "zero": _number(self.zero)}

    def of(self, place: int) -> dict[str, float | None]:
        spliced, lost = self.spliced[place], self.zero - self.clean
        recovered = (self.zero - spliced) / lost if lost != 0 else float("nan")
        return {"spliced": _number(spliced), "recovered": _number(recovered)}


def _cross_entropy(language: _Language, saes: Sequence[SAE], tell: Callable[[str], None]) -> _Losses:
    """The losses of all tokens that are predicted at positions where something is put in."""
    splices: list[Splice | None] = [None, torch.zeros_like, *map(_splice, saes)]
    totals, tokens = [0.0] * len(splices), 0
    for group in language.groups:
        ids = torch.zeros(len(group), len(group[-1]), dtype=torch.int64)
        counted = torch.zeros(len(group), len(group[-1]) - 1, dtype=torch.bool)
        for row, words in enumerate(group):
            ids[row, : len(words)] = torch.from_numpy(words)
            counted[row, language.skip : len(words) - 1] = True
        tokens += int(counted.sum())
        for place, splice in enumerate(splices):
            losses = language.lm.losses(ids, splice, skip=language.skip)
            totals[place] += float(losses[counted].double().sum())
            tell("cross-entropy")
    clean, zero, *spliced = (total / tokens for total in totals)
    return _Losses(clean, zero, spliced)


def _splice(sae: SAE) -> Splice:
    """What the SAE makes of activations, a batch at a time."""

    def rebuilt(hidden: Float[Tensor, "n t d"]) -> Float[Tensor, "n t d"]:
        parts = [sae(rows).reconstruction for rows in hidden.flatten(0, 1).split(BATCH)]
        return torch.cat(parts).view_as(hidden)

    return rebuilt


# --- what to know besides ---------------------------------------------------------------------------


def _remarks(
    loaded: Sequence[Loaded], found: Sequence[Mapping[str, Any]], losses: _Losses | None, digest: str
) -> list[str]:
    said = []
    for one, sae in zip(loaded, found, strict=True):
        if _trained_on(one) == digest:
            said.append(f"{one.path} was trained on these very activations: they are not held out.")
        if (sae["explained_variance"] or 0) < 0:
            said.append(f"{one.path} explains less than the mean does: these are hardly its activations.")
    if losses is not None and not losses.zero > losses.clean:
        said.append("The model loses nothing when zeros are put in: the share recovered says nothing here.")
    return said


def _trained_on(one: Loaded) -> str | None:
    """The digest of the activations that the SAE says it was trained on."""
    provenance = one.metadata.get("provenance")
    source = provenance.get("source") if isinstance(provenance, Mapping) else None
    return source.get("sha256") if isinstance(source, Mapping) else None


def _number(value: float) -> float | None:
    return value if isfinite(value) else None
