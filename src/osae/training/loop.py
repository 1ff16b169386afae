"""The training loop. It does not depend on datasets, files or output."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor

from osae.data.source import Source
from osae.devices import ALIGNED, SMALL_WORK, single_thread
from osae.kernels import DENSE_SHARE
from osae.objective import Terms
from osae.seeds import generator
from osae.training.feeding import Feed, open_helper
from osae.training.finite import NotFinite, OnNan, finite_rows
from osae.training.member import Member

Action = Callable[[int, list[Terms]], None]


def train(
    members: Sequence[Member],
    source: Source,
    *,
    done: int = 0,
    after: Sequence[Action] = (),
    on_nan: OnNan = "stop",
) -> None:
    """Train every member on one stream, starting after `done` finished steps.

    Each action in `after` is called after every step with the number of finished steps and the members'
    terms; it decides for itself when it has something to do.

    NaN or infinity in the data, the loss or a gradient raises `NotFinite` before it reaches any weights; with
    `on_nan` "skip", the member skips that batch and counts it.
    """
    batch, steps = _check_stream(members, source)
    for member in members:
        member.may_skip = on_nan == "skip"
    last = source.parts(max(steps - 1, 0), batch)[-1].block
    devices = list(dict.fromkeys(member.device for member in members))
    calm = single_thread() if any(map(_needs_single_thread, members)) else nullcontext()
    try:
        with open_helper(devices, together=members[0].mesh.everyone.size > 1) as helper, calm:
            streams = {
                (seed, device): Batches(
                    source, seed, batch, on_nan, Feed(source, seed, device, helper=helper, last=last)
                )
                for seed, device in dict.fromkeys((member.seed, member.device) for member in members)
            }
            for step in range(done, steps):
                batches = {place: stream.at(step) for place, stream in streams.items()}
                terms = []
                for member in members:
                    place = member.seed, member.device
                    stream = streams[place]
                    with _say_where(member, step, source):
                        terms.append(_advance(member, batches[place], step))
                        member.revive_if_due(stream.measured, step + 1)
                        member.resort_if_due(stream.measured, step + 1)
                for action in after:
                    action(step + 1, terms)
    finally:
        source.forget()


def stop_early(members: Sequence[Member], source: Source, done: int, *, on_nan: OnNan = "stop") -> None:
    """Sort the units of members whose training ends early, after `done` steps."""
    for member in members:
        stream = Batches(source, member.seed, member.recipe.batch, on_nan)
        stream.at(done - 1)
        member.stop_early(stream.measured, done)
    source.forget()


class Batches:
    """The batches of a source in the order of one seed.

    `measured` are the finite rows of the block that the last batch ended in, and `index` is its number.
    """

    def __init__(
        self, source: Source, seed: int, size: int, on_nan: OnNan = "stop", feed: Feed | None = None
    ):
        self.source, self.seed, self.size = source, seed, size
        self.feed = feed or Feed(source, seed, torch.device("cpu"))
        self.on_nan: OnNan = on_nan
        self.index, self.measured = -1, Tensor()
        self._block, self._order = Tensor(), Tensor()

    def at(self, step: int) -> Float[Tensor, "B d"]:
        """Return batch number `step` (from 0), on the device of the feed."""
        pieces = []
        if self.index >= 0:  # the next block is read only after all seeds have opened this one
            self.feed.begin(self.index + 1)
        for index, start, stop in self.source.parts(step, self.size):
            self._open(index, step)
            pieces.append(self._block.index_select(0, self._order[start:stop]))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _open(self, index: int, step: int) -> None:
        if index == self.index:
            return
        self._block = self.measured = Tensor()  # freed before another one is read
        placed = self.feed.get(index)
        self._block, self.measured = placed.there, placed.rows
        order = torch.randperm(len(self._block), generator=generator(self.seed, "order", index))
        self._order = order.to(self._block.device)
        if not placed.finite:
            self.measured = finite_rows(placed.rows, f"step {step + 1}, block {index}", self.on_nan)
        self.index = index


def _advance(member: Member, x: Tensor, step: int) -> Terms:
    """Take one step of a member, or skip the batch if it is not finite and may be skipped."""
    try:
        return member.advance(x, step)
    except NotFinite as error:
        if not member.may_skip or error.terms is None:
            raise
        member.skipped += 1
        return error.terms


@contextmanager
def _say_where(member: Member, step: int, source: Source) -> Iterator[None]:
    """Add the block of the batch, and what to do, to `NotFinite`."""
    try:
        yield
    except NotFinite as error:
        at = step if error.step is None else error.step
        block = source.parts(at, member.recipe.batch)[-1].block
        raise NotFinite(
            f"{error}, in block {block}; no weights were changed. Use a lower learning rate than "
            f"lr.peak={member.recipe.lr.peak:g}, or give --on-nan skip to skip such batches."
        ) from error


def _check_stream(members: Sequence[Member], source: Source) -> tuple[int, int]:
    """Return the batch and the number of steps; raise `ValueError` if the members cannot share a stream."""
    batch, steps = members[0].recipe.batch, members[0].recipe.steps
    if any((m.recipe.batch, m.recipe.steps) != (batch, steps) for m in members):
        raise ValueError(
            "SAEs on one stream must have the same batch size and number of samples: train these recipes "
            "separately."
        )
    if source.rows < batch:
        raise ValueError(f"batch={batch} exceeds the {source.rows} available rows: give a smaller batch.")
    return batch, steps


def _needs_single_thread(member: Member) -> bool:
    """Return whether the last bits of a step would depend on the number of threads.

    Small steps also take less time in a single thread.
    """
    width, units = member.recipe.sae.width, member.recipe.sae.units
    if member.recipe.batch * units * width < SMALL_WORK:
        return True
    active = member.k_at(0) or units  # the most of all steps
    return active > DENSE_SHARE * units and (width % ALIGNED > 0 or units % ALIGNED > 0)
