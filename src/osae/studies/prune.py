"""Prune an SAE to the units that other training runs also find, in canonical order."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from osae import passes
from osae.defaults import FOUND, PREDICTIONS, Keep
from osae.interop import Loaded, SAELike
from osae.model import SAE
from osae.progress import Progress, Steps
from osae.results import read
from osae.results.comparison import Comparison
from osae.results.evaluation import EvaluatedSAE
from osae.results.pruning import Pruning, Remaining
from osae.results.subject import SourceInfo
from osae.results.units import SAEUnits
from osae.sparsify import BatchTopK, TopK
from osae.studies.compare import compare
from osae.studies.evaluate import evaluate
from osae.studies.splice import Announce
from osae.studies.subjects import (
    BATCH,
    Data,
    DataLike,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    open_rows,
    open_subject,
    open_subjects,
    own_provenance,
    subject_fields,
)

_PRUNED = "the pruned SAE"  # remarks on its evaluation have a single cause: units are missing


def prune(
    subject: SAELike,
    data: DataLike,
    *,
    others: Sequence[SAELike] = (),
    scores: Path | str | Comparison | None = None,
    keep: Keep = "reproducible",
    least: float = FOUND,
    model: str = "auto",
    tokens: int = PREDICTIONS,
    device: str = "auto",
    progress: Progress | None = None,
    announce: Announce = lambda language: None,
) -> Pruning:
    """Return a result whose `sae` has only the units that are found again, in canonical order.

    A unit is kept if it is found again in more than the share `least` of the other SAEs.

    Args:
        subject: the SAE, as a path, an `SAE` or a loaded file.
        data: activations for ordering the units and measuring the loss, as a path, `Shards` or a matrix.
        others: SAEs in which to look for the units. Without `others` and `scores`, an SAE of a run is
            compared with the other SAEs of its recipe in the same run.
        scores: a comparison that includes the SAE (from `osae compare` or `osae trust`), or its JSON file.
        keep, least: keep units that are found again in more than this share of the other SAEs.
        model, tokens, device, announce: for the cross-entropy, as in `evaluate`.
        progress: called with (done, total, text) after each step.
    """
    if keep != "reproducible":
        raise ValueError(f"keep={keep!r}: give 'reproducible'.")
    if not 0 <= least < 1:
        raise ValueError(f"least={least}: give a share from 0 to below 1.")
    source, rows = open_subject(subject), open_rows(data)
    sae = check_runnable(source, rows)
    found = _find_scores(source, rows, others, scores, progress)
    kept = _choose(found, least)
    order, pruned = _order(_select(sae, kept), rows, progress)
    after = replace(open_subject(pruned), path=_PRUNED)
    lost = evaluate(
        [source, after], rows, model=model, tokens=tokens, device=device, progress=progress, announce=announce
    )
    return Pruning(
        provenance=describe_run(),
        activations=describe_rows(rows),
        source=SourceInfo(**subject_fields(source), provenance=own_provenance(source) or None),
        keep=keep,
        least=least,
        others=len(found.counted),
        kept=tuple(kept[order].tolist()),
        before=_remaining(lost.saes[0]),
        after=_remaining(lost.saes[1]),
        notes=_notes(sae, pruned) + tuple(note for note in lost.notes if not note.startswith(_PRUNED)),
        sae=pruned,
    )


def _find_scores(
    source: Loaded,
    rows: Data,
    others: Sequence[SAELike],
    scores: Path | str | Comparison | None,
    progress: Progress | None,
) -> SAEUnits:
    """Return the scores of the SAE's units, from the given comparison or a new one."""
    if scores is not None:
        if others:
            raise ValueError("scores and others are mutually exclusive: give only one of them.")
        return _look_up(source, scores)
    chosen = open_subjects(others) if others else find_siblings(source)
    result = compare([source, *chosen], data=rows, prefixes=[], chance_draws=0, progress=progress)
    assert result.units is not None
    return result.units.saes[0]


def find_siblings(source: Loaded) -> list[Loaded]:
    """Return the other SAEs of the same recipe in the same run."""
    folder = Path(source.path)
    recipe = own_provenance(source).get("recipe")
    if recipe is None or not (folder.parent / "run.json").is_file():
        raise ValueError(
            f"{source.path} is not part of a run, so there are no SAEs to compare it with: give other SAEs, "
            "or the scores of a comparison."
        )
    found = [one for one in open_subjects(folder.parent) if one.sha256 != source.sha256]
    same = [one for one in found if own_provenance(one).get("recipe") == recipe]
    if not same:
        raise ValueError(
            f"{folder.parent} contains no other SAE with the recipe of {folder.name}: give other SAEs."
        )
    return same


def _look_up(source: Loaded, scores: Path | str | Comparison) -> SAEUnits:
    """Return the scores of the SAE's units in a comparison that includes it."""
    result = scores if isinstance(scores, Comparison) else read(scores)
    where = "the comparison" if isinstance(scores, Comparison) else str(scores)
    if not isinstance(result, Comparison) or result.units is None:
        raise ValueError(
            f"{where} contains no scores of units: create it with `osae compare` or `osae trust`."
        )
    for place, sae in enumerate(result.saes):
        if sae.sha256 == source.sha256:
            return result.units.saes[place]
    raise ValueError(
        f"{where} does not include {source.path}: none of its SAEs has the same digest. Compare this SAE "
        "first."
    )


def _choose(found: SAEUnits, least: float) -> Int[Tensor, "n"]:
    """Return the units that are found again often enough."""
    shares = found.measures["reproducibility"]
    kept = [unit for unit, share in zip(found.unit, shares, strict=True) if (share or 0.0) > least]
    if not kept:
        raise ValueError(
            f"no unit of {found.name} is found again in more than {least:g} of {len(found.counted)} SAEs: "
            "nothing would be left."
        )
    return torch.tensor(kept)


def _select(sae: SAE, kept: Int[Tensor, "n"]) -> SAE:
    """Return the SAE with these units only; k is at most their number."""
    sparsifier = sae.config.sparsifier
    if isinstance(sparsifier, TopK | BatchTopK) and sparsifier.k > len(kept):
        sparsifier = replace(sparsifier, k=len(kept))
    config = replace(sae.config, units=len(kept), sparsifier=sparsifier)
    tensors: dict[str, Any] = dict(sae.state_dict())
    bias = tensors.pop("decoder_bias")  # all others have one row per unit
    return SAE.from_tensors(
        config, {"decoder_bias": bias} | {name: rows[kept] for name, rows in tensors.items()}
    )


def _order(sae: SAE, rows: Data, progress: Progress | None) -> tuple[Int[Tensor, "n"], SAE]:
    """Return the canonical order of the units, and the SAE in that order."""
    steps = Steps(progress, count_batches(rows))
    order = passes.order_units(sae, steps.each(rows.batches(BATCH), "order"))
    return order, sae.reorder(order)


def _remaining(found: EvaluatedSAE) -> Remaining:
    spliced = found.cross_entropy.values() if found.cross_entropy else {}
    return Remaining(units=found.units, measures=found.measures, **spliced)


def _notes(before: SAE, after: SAE) -> tuple[str, ...]:
    was, now = before.config.sparsifier, after.config.sparsifier
    return (
        ()
        if was == now
        else (f"Fewer units are left than used to fire per sample: now {now}, before {was}.",)
    )
