"""The training loop: it reads as the algorithm, and knows no data set, file or screen by name."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from torch import Tensor

from osae.data.source import Source
from osae.devices import single_thread
from osae.objective import Terms
from osae.training.finite import NotFinite, OnNan, finite_rows
from osae.training.member import Member

SMALL_STEP = 100_000_000  # multiplications in the encoder per step; below, one thread takes about 1 ms
Action = Callable[[int, list[Terms]], None]


def train(
    members: Sequence[Member],
    source: Source,
    *,
    done: int = 0,
    after: Sequence[Action] = (),
    on_nan: OnNan = "stop",
) -> None:
    """Train every member on one stream, from `done` finished steps on.

    Each action in `after` is called after every step with the number of finished steps and the members'
    terms; it decides for itself when it has something to do.

    NaN or infinity in the data, the loss or a gradient raises `NotFinite` before it reaches any weights; with
    `on_nan` "skip" the member leaves that batch out and counts it.
    """
    batch, steps = _check_stream(members, source)
    turns = source.rows // batch
    with single_thread() if _is_small(members) else nullcontext():
        block, measured = Tensor(), Tensor()
        for step in range(done, steps):
            index, turn = divmod(step, turns)
            if (new := source.block(index)) is not block:
                block, measured = new, finite_rows(new, f"step {step + 1}, block {index}", on_nan)
            terms = []
            for member in members:
                x = member.batch(block, index, turn)
                terms.append(_advance(member, x, step, where=f"block {index}", on_nan=on_nan))
                member.revive_if_due(measured, step + 1)
                member.resort_if_due(measured, step + 1)
            for action in after:
                action(step + 1, terms)


def _advance(member: Member, x: Tensor, step: int, *, where: str, on_nan: OnNan) -> Terms:
    """Take one step of a member, or leave the batch out if it is not finite and may be skipped."""
    try:
        return member.advance(x, step)
    except NotFinite as error:
        if on_nan == "stop" or error.terms is None:
            raise NotFinite(
                f"{error}, in {where}; no weights were changed. Train with a lower rate than "
                f"lr.peak={member.recipe.lr.peak:g}, or give --on-nan skip to leave such batches out."
            ) from error
        member.skipped += 1
        return error.terms


def _check_stream(members: Sequence[Member], source: Source) -> tuple[int, int]:
    """Return the batch and the number of steps; raise `ValueError` if the members cannot share a stream."""
    batch, steps = members[0].recipe.batch, members[0].recipe.steps
    if any((m.recipe.batch, m.recipe.steps) != (batch, steps) for m in members):
        raise ValueError(
            "SAEs on one stream share batch and samples: train recipes that differ in them separately."
        )
    if source.rows < batch:
        raise ValueError(f"batch={batch} exceeds the {source.rows} rows of a block: ask for a smaller batch.")
    return batch, steps


def _is_small(members: Sequence[Member]) -> bool:
    work = max(m.recipe.batch * m.recipe.sae.units * m.recipe.sae.width for m in members)
    return work < SMALL_STEP
