"""The training loop, which reads as the algorithm. It does not depend on datasets, files or screens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.source import Source
from osae.devices import single_thread
from osae.objective import Terms
from osae.seeds import generator
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
    for member in members:
        member.may_skip = on_nan == "skip"
    streams = {member.seed: Batches(source, member.seed, batch, on_nan) for member in members}
    try:
        with single_thread() if _is_small(members) else nullcontext():
            for step in range(done, steps):
                batches = {seed: stream.at(step) for seed, stream in streams.items()}
                terms = []
                for member in members:
                    stream = streams[member.seed]
                    with _say_where(member, step, source):
                        terms.append(_advance(member, batches[member.seed], step))
                        member.revive_if_due(stream.measured, step + 1)
                        member.resort_if_due(stream.measured, step + 1)
                for action in after:
                    action(step + 1, terms)
    finally:
        source.forget()


class Batches:
    """The batches of a source in the order of one seed.

    `measured` are the finite rows of the block that the last batch ended in, and `index` is its number.
    """

    def __init__(self, source: Source, seed: int, size: int, on_nan: OnNan = "stop"):
        self.source, self.seed, self.size = source, seed, size
        self.on_nan: OnNan = on_nan
        self.index, self.measured = -1, Tensor()
        self._block, self._order = Tensor(), Tensor()

    def at(self, step: int) -> Float[Tensor, "B d"]:
        """Return batch number `step` (from 0)."""
        pieces = []
        for index, start, stop in self.source.parts(step, self.size):
            self._open(index, step)
            pieces.append(self._block.index_select(0, self._order[start:stop]))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _open(self, index: int, step: int) -> None:
        if index == self.index:
            return
        self._block = self.measured = Tensor()  # freed before another one is read
        self._block = self.source.block(index, self.seed)
        self._order = torch.randperm(len(self._block), generator=generator(self.seed, "order", index))
        self.measured = finite_rows(self._block, f"step {step + 1}, block {index}", self.on_nan)
        self.index = index


def _advance(member: Member, x: Tensor, step: int) -> Terms:
    """Take one step of a member, or leave the batch out if it is not finite and may be skipped."""
    try:
        return member.advance(x, step)
    except NotFinite as error:
        if not member.may_skip or error.terms is None:
            raise
        member.skipped += 1
        return error.terms


@contextmanager
def _say_where(member: Member, step: int, source: Source) -> Iterator[None]:
    """Add to `NotFinite` which block the batch came from, and what to do."""
    try:
        yield
    except NotFinite as error:
        at = step if error.step is None else error.step
        block = source.parts(at, member.recipe.batch)[-1].block
        raise NotFinite(
            f"{error}, in block {block}; no weights were changed. Train with a lower rate than "
            f"lr.peak={member.recipe.lr.peak:g}, or give --on-nan skip to leave such batches out."
        ) from error


def _check_stream(members: Sequence[Member], source: Source) -> tuple[int, int]:
    """Return the batch and the number of steps; raise `ValueError` if the members cannot share a stream."""
    batch, steps = members[0].recipe.batch, members[0].recipe.steps
    if any((m.recipe.batch, m.recipe.steps) != (batch, steps) for m in members):
        raise ValueError(
            "SAEs on one stream share batch and samples: train recipes that differ in them separately."
        )
    if source.rows < batch:
        raise ValueError(
            f"batch={batch} exceeds the {source.rows} rows that there are: ask for a smaller batch."
        )
    return batch, steps


def _is_small(members: Sequence[Member]) -> bool:
    work = max(m.recipe.batch * m.recipe.sae.units * m.recipe.sae.width for m in members)
    return work < SMALL_STEP
