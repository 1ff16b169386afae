"""The loop: it reads as the algorithm, and knows no data set, file or screen by name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from osae.data.source import Source
from osae.objective import Terms
from osae.training.member import Member

SMALL_STEP = 100_000_000  # multiplications of the encoder in a step; below, one thread does it in about 1 ms
Action = Callable[[int, list[Terms]], None]


def train(members: Sequence[Member], source: Source, *, done: int = 0, after: Sequence[Action] = ()) -> None:
    """Every member trained on one stream, from `done` finished steps on.

    Each action in `after` is called after every step with the number of finished steps and the members'
    terms; it decides for itself when it has something to do.
    """
    batch, steps = members[0].recipe.batch, members[0].recipe.steps
    if any((m.recipe.batch, m.recipe.steps) != (batch, steps) for m in members):
        raise ValueError(
            "SAEs on one stream share batch and samples: train recipes that differ in them apart."
        )
    if source.rows < batch:
        raise ValueError(f"batch={batch} exceeds the {source.rows} rows of a block: ask for a smaller batch.")
    turns = source.rows // batch
    with _threads_that_pay(members):
        for step in range(done, steps):
            index, turn = divmod(step, turns)
            block = source.block(index)
            terms = []
            for member in members:
                terms.append(member.advance(member.batch(block, index, turn), step))
                member.tend(block, step + 1)
            for action in after:
                action(step + 1, terms)


@contextmanager
def _threads_that_pay(members: Sequence[Member]) -> Iterator[None]:
    """One thread for small steps: there, waiting for the others takes longer than the work they do."""
    work = max(m.recipe.batch * m.recipe.sae.units * m.recipe.sae.width for m in members)
    threads = torch.get_num_threads()
    if work < SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
