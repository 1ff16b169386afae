"""Put the units of any SAE in a canonical order, based on activations."""

import torch

from osae import metrics, passes
from osae.interop import SAELike
from osae.progress import Progress, Steps
from osae.results.ordering import By, Ordering
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
    """Return a result whose `sae` has its units in a canonical order, based on activations.

    "gain": the next unit is the one that lowers the error most given those before it; "energy": how much each
    unit explains on its own; "frequency": how often it fires. Ties keep their order. The function computed by
    the SAE does not change; save it with the result's `save`.
    """
    passes.check_order(by)
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
