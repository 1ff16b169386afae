"""Measure how well SAEs reconstruct held-out activations, and what that costs a language model.

Shapes: K units, d width.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import torch

from osae import metrics, passes
from osae.defaults import PREDICTIONS
from osae.devices import choose_device, single_thread
from osae.interop import Loaded, SAELike
from osae.metrics.consistency import check_lengths
from osae.model import SAE
from osae.progress import Progress, Steps
from osae.results.base import labels
from osae.results.evaluation import (
    EvaluatedSAE,
    Evaluation,
    EvaluationOptions,
    FrequencyHistogram,
    PrefixReconstruction,
    SplicedCrossEntropy,
)
from osae.results.subject import explain_misfit
from osae.studies.splice import Announce, SplicedLosses, open_language, splice_losses
from osae.studies.subjects import (
    BATCH,
    Data,
    DataLike,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    open_rows,
    open_subjects,
    own_provenance,
    subject_fields,
)


def evaluate(
    subjects: SAELike | Sequence[SAELike],
    data: DataLike,
    *,
    prefixes: Sequence[int] = (),
    model: str = "auto",
    text: Sequence[str] = (),
    tokens: int = PREDICTIONS,
    device: str = "auto",
    progress: Progress | None = None,
    announce: Announce = lambda language: None,
) -> Evaluation:
    """Return how well each SAE reconstructs all rows of the data.

    Args:
        subjects: SAEs as paths, `SAE`s or loaded files; a run folder means all of its finished SAEs.
        data: held-out activations, as a path, `Shards` or a matrix (rows, width).
        prefixes: prefix lengths in addition to 1, 2, 4, ..., K.
        model: the language model that the SAEs are spliced into for the cross-entropy. "auto" means the
            model that the data come from, if it can be opened; "none" omits the cross-entropy.
        text: files for the cross-entropy, instead of the contexts that the data come from.
        tokens: number of predictions for the cross-entropy.
        device: where to run the language model.
        progress: called with (done, total, text) after each step.
        announce: called with the bytes that the passes of the language model need, before they begin.
    """
    _check_options(model, text, tokens)
    choose_device(device)
    loaded, rows = open_subjects(subjects), open_rows(data)
    if not loaded:
        raise ValueError("no SAE was given: give at least one to evaluate.")
    saes = [check_runnable(one, rows) for one in loaded]
    lengths = [_choose_lengths(prefixes, loaded, one) for one in loaded]
    language, notes = open_language(rows, model, text, tokens, device, announce)

    steps = Steps(progress, count_batches(rows))
    if language is not None:
        steps.total += len(language.batches) * (2 + len(saes))
    activations = describe_rows(rows)
    sums = _reconstruct(saes, rows, steps)
    losses = None if language is None else splice_losses(language, saes, steps)
    found = tuple(
        _describe(one, each, chosen, None if losses is None else losses.describe_splice(place))
        for place, (one, each, chosen) in enumerate(zip(loaded, sums, lengths, strict=True))
    )
    return Evaluation(
        options=EvaluationOptions(tuple(prefixes), model, tuple(text), tokens),
        provenance=describe_run(),
        activations=activations,
        cross_entropy=None if language is None or losses is None else language.describe(losses),
        saes=found,
        notes=(*notes, *_remarks(loaded, found, losses, activations.sha256)),
    )


def _check_options(model: str, text: Sequence[str], tokens: int) -> None:
    """Raise `ValueError` if an option is invalid, before anything is read."""
    if tokens < 1:
        raise ValueError(f"tokens={tokens}: give at least 1, or model='none' for no cross-entropy.")
    if text and model == "none":
        raise ValueError(
            "text applies to the cross-entropy, which model='none' skips: remove one of the two."
        )


def _choose_lengths(prefixes: Sequence[int], loaded: Sequence[Loaded], one: Loaded) -> list[int]:
    """Return the powers of two, K, and the requested lengths that do not exceed K."""
    check_lengths(prefixes, max(each.units for each in loaded))
    powers = {2**power for power in range(one.units.bit_length())}
    return sorted(powers | {one.units} | {length for length in prefixes if length <= one.units})


class _Sums(NamedTuple):
    """The sums over batches for one SAE."""

    whole: metrics.Reconstruction
    curve: metrics.PrefixCurve
    firing: metrics.FiringCounts


@single_thread()  # sums over batches; large products use all threads
@torch.no_grad()
def _reconstruct(saes: Sequence[SAE], rows: Data, steps: Steps) -> list[_Sums]:
    """Return the sums of each SAE over one pass over the rows."""
    sums = [
        _Sums(
            metrics.Reconstruction(sae.config.units),
            metrics.PrefixCurve(sae.decoder),
            metrics.FiringCounts(sae.config.units),
        )
        for sae in saes
    ]
    numbered = dict(enumerate(saes))
    for x, codes in passes.encode_batches(numbered, steps.each(rows.batches(BATCH), "activations")):
        for place, (whole, curve, firing) in enumerate(sums):
            code = codes[place]
            scaled, offset = saes[place].unscale(code, x)
            whole.update(x, passes.decode(saes[place], code, x), *code)
            curve.update(*scaled, x - offset)
            firing.update(*code)
    return sums


def _describe(
    one: Loaded, sums: _Sums, lengths: Sequence[int], spliced: SplicedCrossEntropy | None
) -> EvaluatedSAE:
    whole, histogram = sums.whole.result(), sums.firing.histogram()
    errors, explained = sums.curve.mse().tolist(), sums.curve.explained_variance().tolist()
    return EvaluatedSAE(
        **subject_fields(one),
        frequencies=FrequencyHistogram(tuple(histogram.edges), tuple(histogram.units), histogram.never),
        prefixes=tuple(
            PrefixReconstruction(length, _measures(errors[length - 1], explained[length - 1]))
            for length in lengths
        ),
        cross_entropy=spliced,
        measures=whole.measures(),
    )


def _measures(mse: float, explained_variance: float) -> dict[str, float | None]:
    return {"mse": mse, "explained_variance": explained_variance if isfinite(explained_variance) else None}


def _remarks(
    loaded: Sequence[Loaded], found: Sequence[EvaluatedSAE], losses: SplicedLosses | None, digest: str
) -> list[str]:
    said = _seen_lines([_trained_on(one) == digest for one in loaded], labels([one.path for one in loaded]))
    for one, sae in zip(loaded, found, strict=True):
        if (sae.measures["explained_variance"] or 0) < 0:
            said.append(explain_misfit(one.path, one.notes))
    if losses is not None and not losses.zero > losses.clean:
        said.append("Zeros do not raise the model's cross-entropy: the share recovered is not meaningful.")
    return said


def _seen_lines(seen: Sequence[bool], names: Sequence[str]) -> list[str]:
    """Return a warning if SAEs were trained on the activations on which they are evaluated."""
    if not any(seen):
        return []
    listed = ", ".join(name for name, was in zip(names, seen, strict=True) if was)
    which = (
        "All SAEs were" if all(seen) and len(seen) > 1 else f"{listed} {'was' if sum(seen) == 1 else 'were'}"
    )
    return [f"{which} trained on these activations: they are not held out."]


def _trained_on(one: Loaded) -> str | None:
    """Return the digest of the activations on which the SAE was trained, according to its file."""
    source = own_provenance(one).get("source")
    return source.get("sha256") if isinstance(source, dict) else None
