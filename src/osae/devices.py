"""Where tensors are kept and computations run."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import torch

from osae.messages import shorten

# multiplications: below this, the last bits of a product may depend on the number of threads, and one thread
# takes about 1 ms
SMALL_WORK = 100_000_000
ALIGNED = 8  # the last bits of products with dense codes depend on threads if a size is no multiple of this
_outside: list[int] = []  # the number of threads outside of each block with a single one

Item = TypeVar("Item")
Found = TypeVar("Found")


def choose_device(device: str) -> str:
    """Return the requested device; for "auto", a GPU if there is one.

    Raise `ValueError` if it cannot be used on this machine.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} cannot be used on this machine; give 'cpu' or 'auto' instead: "
            f"{shorten(error)}"
        ) from error
    return device


def choose_devices(devices: str) -> str:
    """Return the requested devices, one or several separated by commas, each as in `choose_device`."""
    return ",".join(map(choose_device, split_devices(devices)))


def split_devices(devices: str) -> list[str]:
    """Return each of the devices, which are separated by commas."""
    return devices.split(",")


def spread_over(devices: str, count: int) -> list[str]:
    """Return the device of each of `count` SAEs, which take turns among the devices."""
    listed = split_devices(devices)
    return [listed[i % len(listed)] for i in range(count)]


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch in a single thread: the last bits of sums and of small products depend on their number.

    On small tensors, this also takes less time. Inside the block, `threads_for` allows large products to use
    all threads.
    """
    _outside.append(torch.get_num_threads())
    try:
        with _threads(1):
            yield
    finally:
        _outside.pop()


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Use all threads for a product of that many multiplications, or one if its bits may depend on them."""
    with _threads(1 if work < SMALL_WORK else count_threads()):
        yield


def count_threads() -> int:
    """Return the number of threads that torch uses, outside of any block with a single one."""
    return _outside[0] if _outside else torch.get_num_threads()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(function: Callable[[Item], Found], items: Iterable[Item], threads: int) -> list[Found]:
    """Return the function's results for all items, computed on that many threads, including this one.

    Use it for work that mostly runs outside of Python. If calls raise exceptions, the exception of the first
    such item is raised. After an interruption, no more calls are started. The other threads are daemons, so
    that an interrupted command ends at once.
    """
    tasks: list[tuple[Item, Future[Found]]] = [(item, Future()) for item in items]
    left, caller = deque(tasks), threading.current_thread()

    def work() -> None:
        while True:
            try:
                item, future = left.popleft()
            except IndexError:
                return
            try:
                future.set_result(function(item))
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:
                left.clear()
                future.set_exception(error)
                if threading.current_thread() is caller:
                    raise

    for _ in range(min(threads, len(tasks)) - 1):
        threading.Thread(target=work, name="osae-work", daemon=True).start()
    work()
    return [future.result() for _, future in tasks]
