"""What the units of a larger SAE add to a smaller one.

Shapes: K units of the larger SAE, Ks of the smaller one, d width.
"""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from osae import passes
from osae.devices import single_thread
from osae.interop import SAELike
from osae.progress import Progress, Steps
from osae.results.stitching import StitchedUnit, Stitching
from osae.studies.subjects import (
    BATCH,
    DataLike,
    check_runnable,
    count_batches,
    describe_rows,
    describe_run,
    describe_subject,
    open_rows,
    open_subject,
)

LISTED = 20  # units listed as the most novel


def stitch(small: SAELike, large: SAELike, data: DataLike, *, progress: Progress | None = None) -> Stitching:
    """Return which units of the large SAE are new to the small one, duplicate it, or never fire.

    Each unit is added to the small SAE separately, and the change of the squared error is averaged over all
    samples.
    """
    inner, outer, rows = open_subject(small), open_subject(large), open_rows(data)
    saes = check_runnable(inner, rows), check_runnable(outer, rows)
    steps = Steps(progress, count_batches(rows))
    found = passes.stitch(*saes, steps.each(rows.batches(BATCH), "activations"))
    change, error = found.change / rows.rows, found.error / rows.rows
    return Stitching(
        provenance=describe_run(),
        activations=describe_rows(rows),
        small=describe_subject(inner),
        large=describe_subject(outer),
        error=error,
        novel=found.novel,
        reconstruction=found.reconstruction,
        unchanged=found.unchanged,
        most_novel=_list_most_novel(change, found.frequency, error, inner.decoder, outer.decoder),
        change=tuple(change.tolist()),
        frequency=tuple(found.frequency.tolist()),
    )


@single_thread()
def _list_most_novel(
    change: Float[Tensor, "K"],
    frequency: Float[Tensor, "K"],
    error: float,
    small: Float[Tensor, "Ks d"],
    large: Float[Tensor, "K d"],
) -> tuple[StitchedUnit, ...]:
    """Return the units that lower the error most, each with the nearest atom of the small SAE."""
    order = change.argsort(stable=True)[:LISTED]
    chosen = order[change[order] < 0]
    # a zero atom has cosine 0 with every other
    cosines = normalize(large[chosen].double()) @ normalize(small.double()).T
    cosine, nearest = cosines.max(1)
    return tuple(
        StitchedUnit(
            unit=unit,
            change=float(change[unit]),
            share_of_error=-float(change[unit]) / error,
            frequency=float(frequency[unit]),
            nearest=int(nearest[place]),
            cosine=float(cosine[place]),
        )
        for place, unit in enumerate(chosen.tolist())
    )
