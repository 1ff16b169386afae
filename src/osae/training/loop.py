"""The training loop, which reads as the algorithm. It does not depend on datasets, files or screens."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from osae.data.source import Source
from osae.devices import single_thread
from osae.objective import Terms
from osae.training.member import Member

SMALL_STEP = 100_000_000  # multiplications in the encoder per step; below, one thread takes about 1 ms
Action = Callable[[int, list[Terms]], None]


def train(members: Sequence[Member], source: Source, *, done: int = 0, after: Sequence[Action] = ()) -> None:
    """Train every member on one stream, from `done` finished steps on.

    Each action in `after` is called after every step with the number of finished steps and the members'
    terms; it decides for itself when it has something to do.
    """
    batch, steps = _check_stream(members, source)
    turns = source.rows // batch
    with single_thread() if _is_small(members) else nullcontext():
        for step in range(done, steps):
            index, turn = divmod(step, turns)
            block = source.block(index)
            terms = []
            for member in members:
                terms.append(member.advance(member.batch(block, index, turn), step))
                member.revive_if_due(block, step + 1)
                member.resort_if_due(block, step + 1)
            for action in after:
                action(step + 1, terms)


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
