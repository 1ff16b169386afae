"""A canonical order for the units of any SAE, from what they do on activations."""

import torch

from osae import metrics, passes
from osae.interop import SAELike
from osae.passes import ORDERS, By
from osae.progress import Progress, Steps
from osae.results.ordering import Ordering
from osae.results.subject import SourceInfo
from osae.studies.subjects import (
    BATCH,
    DataLike,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    open_rows,
    open_subject,
    own_provenance,
    subject_fields,
)


def order(subject: SAELike, data: DataLike, *, by: By = "gain", progress: Progress | None = None) -> Ordering:
    """Return the SAE with its units in the order that its activations give, in the result's `sae`.

    "gain": next comes the unit that lowers the error most after those before it; "energy": what each unit
    explains on its own; "frequency": how often it fires. Ties keep the order they have. The SAE computes what
    it did before; save it with the result's `save`.
    """
    if by not in ORDERS:
        raise ValueError(f"by={by!r}: give one of {', '.join(ORDERS)}.")
    source, rows = open_subject(subject), open_rows(data)
    sae = check_runnable(source, rows)
    steps = Steps(progress, count_batches(rows))
    units = passes.order_units(sae, steps.each(rows.batches(BATCH), "activations"), by=by)
    before = torch.arange(len(units))
    return Ordering(
        provenance=describe_run(),
        activations=describe_rows(rows),
        source=SourceInfo(**subject_fields(source), provenance=own_provenance(source) or None),
        by=by,
        order=tuple(units.tolist()),
        moved=int((units != before).sum()),
        rank_correlation=metrics.rank_correlation(before, units),
        sae=sae.reorder(units),
    )
