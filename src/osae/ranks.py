"""Communication between processes that train together.

Shapes: B samples, K units, n rows or columns of one rank.

Ranks form a mesh. Those along `rows` hold the same units and see different rows of every batch; those along
`units` see the same rows and hold contiguous blocks of the dictionary. On a mesh of one process, every
function here returns its input.
"""

import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from osae.files import is_alive
from osae.launching import agent_port, count_restarts, is_launched, local_rank

PATIENCE = 3.0  # seconds to wait for a process to end after its connections are closed


@dataclass(frozen=True)
class Ranks:
    """A group of processes and the position of this one in it; by default, this process alone."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def cut(self, count: int) -> slice:
        """Return the contiguous share of `count` items that belongs to this rank."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add the tensors of all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average the tensors of all ranks, in place."""
        return self.sum_(tensor).div_(self.size) if self.size > 1 else tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Take the elementwise maximum over all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def min_(self, tensor: Tensor) -> Tensor:
        """Take the elementwise minimum over all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MIN)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which must have the same shape, in rank order."""
        if self.size == 1:
            return [tensor]
        tensor = tensor.contiguous()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self.group)
        return found

    def gather_objects(self, one: Any) -> list[Any]:
        """Return the objects of all ranks, of any type, in rank order."""
        found = [one] * self.size
        if self.size > 1:
            dist.all_gather_object(found, one, group=self.group)
        return found

    def join(self, tensor: Tensor) -> Tensor:
        """Return the rows of all ranks in one tensor; ranks may have different numbers of rows."""
        if self.size == 1:
            return tensor
        count = torch.tensor([len(tensor)], device=tensor.device)
        counts = [int(each) for each in self.gather(count)]
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        return torch.cat([rows[:n] for rows, n in zip(self.gather(padded), counts, strict=True)])

    def spread_(self, tensor: Tensor) -> Tensor:
        """Replace the tensors of all ranks with those of the first, in place."""
        if self.size > 1:
            dist.broadcast(tensor, dist.get_global_rank(self.group, 0) if self.group else 0, group=self.group)
        return tensor

    def apart(self) -> "Ranks":
        """Return the same ranks in a separate group, whose messages do not mix with those of other groups."""
        return Ranks(self.rank, self.size, dist.new_group(backend="gloo") if self.size > 1 else None)

    def wait(self) -> None:
        """Wait until all ranks have reached this point."""
        self.sum_(torch.zeros(1))

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if self.size > 1:
            dist.all_reduce(tensor, operation, group=self.group)
        return tensor


@dataclass(frozen=True)
class Mesh:
    """Ranks in two directions, and all of them together."""

    rows: Ranks = Ranks()
    units: Ranks = Ranks()
    everyone: Ranks = Ranks()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes files and prints messages."""
        return self.everyone.rank == 0


ALONE = Mesh()
NO_OTHERS = Ranks()


def open_mesh(dictionary_ranks: int = 1) -> Mesh:
    """Return the mesh of all processes launched together, `dictionary_ranks` of which lie along units."""
    if not dist.is_initialized():
        if dictionary_ranks > 1:
            raise ValueError(
                f"--dictionary-ranks {dictionary_ranks} needs at least as many processes: torchrun "
                f"--nproc-per-node {dictionary_ranks} -m osae train ..."
            )
        return ALONE
    size = dist.get_world_size()
    if size % dictionary_ranks:
        raise ValueError(
            f"--dictionary-ranks {dictionary_ranks} does not divide the {size} processes: give a divisor."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(
        device, (size // dictionary_ranks, dictionary_ranks), mesh_dim_names=("rows", "units")
    )
    rows, units = (
        Ranks(mesh.get_local_rank(name), mesh[name].size(), mesh.get_group(name))
        for name in ("rows", "units")
    )
    return Mesh(rows, units, Ranks(dist.get_rank(), size, None))


@contextmanager
def joined(patience: timedelta | None = None) -> Iterator[None]:
    """Join the processes launched with this one, if any, and leave the group at the end.

    `patience` is how long a process waits for one that is still working; by default, torch's own timeout.
    """
    if not is_launched() or dist.is_initialized():
        yield
        return
    _join(patience)
    try:
        with _naming_the_lost(_gather_processes()):
            yield
    finally:
        dist.destroy_process_group()


def _join(patience: timedelta | None) -> None:
    """Wait for the processes that were launched with this one."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if (port := agent_port()) is None:
        dist.init_process_group(backend, timeout=patience)
    else:
        # torch itself would read what processes of an earlier attempt left in the agent's store
        agent = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            os.environ["MASTER_ADDR"], port, is_master=False
        )
        mark = f"osae/{count_restarts()}"
        store = dist.PrefixStore(mark, agent)  # pyright: ignore[reportPrivateImportUsage]
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)


def _gather_processes() -> list[tuple[int, bool]]:
    """Return the process id of every rank, and whether it is on this host."""
    here = zlib.crc32(socket.gethostname().encode())
    found = Ranks(dist.get_rank(), dist.get_world_size()).gather(torch.tensor([os.getpid(), here]))
    return [(int(pid), int(host) == here) for pid, host in found]


@contextmanager
def _naming_the_lost(processes: Sequence[tuple[int, bool]]) -> Iterator[None]:
    """Raise a `ConnectionError` that names the ranks that have ended, if the connection to them is lost."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo/" not in str(error):
            raise
        lost = _find_ended(processes)
        named = " and ".join(f"rank {rank} (process {pid})" for rank, pid in lost)
        cause = f"{named} ended" if lost else "the connection to another rank was lost"
        raise ConnectionError(f"{cause}, so rank {dist.get_rank()} has stopped too") from error


def _find_ended(processes: Sequence[tuple[int, bool]]) -> list[tuple[int, int]]:
    """Return the ranks on this host that have ended, with their process ids; wait briefly for the first."""
    deadline = monotonic() + PATIENCE
    while True:
        ended = [(rank, pid) for rank, (pid, here) in enumerate(processes) if here and not is_alive(pid)]
        if ended or monotonic() > deadline or not all(here for _, here in processes):
            return ended
        sleep(0.05)


def choose_local_device(device: str) -> str:
    """Return the requested device; if no particular GPU is requested, each process gets its own."""
    mine = local_rank()
    if mine is None or device not in ("auto", "cuda") or not torch.cuda.is_available():
        return device
    torch.cuda.set_device(mine)
    return f"cuda:{mine}"


# --- sums over ranks with a gradient ----------------------------------------------------------------


class _SumOfEarlier(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, ranks):
        ctx.ranks = ranks
        return torch.stack(ranks.gather(own)[: ranks.rank] or [torch.zeros_like(own)]).sum(0)

    @staticmethod
    def backward(ctx, *upstream):
        later = ctx.ranks.gather(upstream[0])[ctx.ranks.rank + 1 :]
        return torch.stack(later or [torch.zeros_like(upstream[0])]).sum(0), None


class _SumOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, ranks):
        return ranks.sum_(own.clone())

    @staticmethod
    def backward(ctx, *upstream):
        return upstream[0], None


def sum_of_earlier(own: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum over all earlier ranks; `own` receives the gradients of all later ranks."""
    return _SumOfEarlier.apply(own, ranks)  # type: ignore[return-value]


def sum_of_all(own: Tensor, ranks: Ranks) -> Tensor:
    """Return the sum over ranks, from which all ranks compute the same loss.

    Its gradient is passed to `own`.
    """
    return own if ranks.size == 1 else _SumOfAll.apply(own, ranks)  # type: ignore[return-value]


# --- which units fire, if they are distributed over ranks ---------------------------------------------


def keep_top(values: Tensor, k: int, ranks: Ranks) -> Tensor:
    """Return the values (B, n) of this rank that are among the k largest over all ranks, and zeros elsewhere.

    It suffices to exchange the k largest of each rank. Ties go to earlier ranks.
    """
    if ranks.size == 1:
        return values
    own = torch.nn.functional.pad(values.detach(), (0, k - values.shape[1]))
    found = torch.cat(ranks.gather(own), -1)
    least = found.topk(k).values[:, -1:]
    above, equal = found > least, (found == least) & (found > 0)
    spare = k - above.sum(-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(-1) <= spare)) | found.isnan()
    mine = kept[:, ranks.rank * k : ranks.rank * k + values.shape[1]]
    return torch.where(mine, values, 0)


def keep_largest(values: Tensor, count: int, ranks: Ranks) -> Tensor:
    """Return this rank's values (B, n) that are among the `count` largest over all ranks, else zeros."""
    positive = values.detach()[values > 0]
    largest = positive if len(positive) <= count else positive.topk(count, sorted=False).values
    found = ranks.join(largest)
    spare = len(found) - count
    bound = found.sort().values[spare] if spare > 0 else found.new_zeros(())
    return torch.where((values >= bound) | values.isnan(), values, 0)
