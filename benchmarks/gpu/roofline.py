"""Predict the cost of a training step on a GPU: bytes and operations of every kernel, counted from the code.

Shapes: B samples, d width, K units, k active units. Numbers take 4 bytes, or 2 in bf16; indices take 8.

A kernel takes as long as its memory traffic or its arithmetic, whichever is longer, and every launch takes a
few microseconds. Rows of a table that many samples share (atoms) come from the level-2 cache if the whole
table fits there, and from memory otherwise. The traffic of torch's own kernels follows from their algorithms:
`topk` and `sort` are radix methods with one pass per 8 bits. A test runs our kernels in triton's interpreter
and compares the bytes that they load and store with the functions here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from osae.kernels import gpu

SINGLE, PLACE = 4, 8  # bytes
LAUNCH = 4e-6  # seconds between two kernels that the host has queued
RADIX_PASSES = 4  # over 32 bits, to select; sorting indices takes twice as many, each reading and writing
COUNTED = 40  # passes over a code to sort it and find its weights: small compared with the rest


@dataclass(frozen=True)
class Device:
    """A device according to its data sheet: bytes and dense operations per second."""

    name: str
    memory: float
    cache: float
    cache_bytes: int
    arithmetic: dict[str, float]


# NVIDIA's data sheets (SXM, 80 GB) and the whitepaper of the A100 for its cache: 5120 bytes per clock. No
# number is published for the H100, whose cache is assumed to move as much per clock.
A100 = Device("A100", 2.039e12, 7.2e12, 40 * 2**20, {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12})
H100 = Device("H100", 3.35e12, 9.0e12, 50 * 2**20, {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12})
DEVICES = (A100, H100)


class Shape(NamedTuple):
    """The sizes of a step."""

    batch: int
    width: int
    units: int
    k: int


BENCHMARK = (
    Shape(2048, 512, 4096, 80),
    Shape(2048, 576, 4096, 64),
    Shape(2048, 512, 16384, 64),
    Shape(1024, 2304, 16384, 80),
)
LARGE = (Shape(8192, 2304, 65_536, 80), Shape(8192, 2304, 1_048_576, 80))


@dataclass(frozen=True)
class Cost:
    """The memory traffic and arithmetic of one kernel, or of a few of the same kind.

    `shared` is read from a table of `table` bytes that several samples share.
    """

    name: str
    moved: float
    operations: float = 0.0
    shared: float = 0.0
    table: float = 0.0
    launches: int = 1
    precision: str = "fp32"

    def seconds(self, device: Device) -> float:
        """Return the least time that the kernel can take."""
        return max(self.of_memory(device), self.operations / device.arithmetic[self.precision]) + (
            LAUNCH * self.launches
        )

    def of_memory(self, device: Device) -> float:
        """Return the time taken by memory traffic; a table that fits into the cache is read once."""
        if self.table <= device.cache_bytes:
            return (self.moved + self.table) / device.memory + self.shared / device.cache
        return (self.moved + self.shared) / device.memory

    def bound(self, device: Device) -> str:
        """Return what limits the kernel."""
        limits = {"arithmetic": self.operations / device.arithmetic[self.precision]}
        limits |= {"memory": self.of_memory(device), "launches": LAUNCH * self.launches}
        return max(limits, key=lambda name: limits[name])


def product(shape: Shape, precision: str) -> Cost:
    """Return the cost of x E^T: the encoder is read once for every block of rows."""
    b, d, units, _ = shape
    low = 2 if precision == "bf16" else SINGLE
    blocks = -(-b // gpu.rows_at_once(units))
    rounding = (SINGLE + low) * (b * d + units * d) if precision == "bf16" else 0
    moved = low * (b * d + blocks * units * d) + SINGLE * b * units + rounding
    # the bias is added within the product, unless sums and operands have different types
    moved += 2 * SINGLE * b * units if precision == "bf16" else 0
    return Cost("encoder product", moved, 2.0 * b * d * units, launches=2 * blocks, precision=precision)


def select(shape: Shape) -> Cost:
    """Return the cost of `torch.topk`: a pass per 8 bits, one to collect, and the code itself."""
    b, _, units, k = shape
    blocks = -(-b // gpu.rows_at_once(units))
    moved = (RADIX_PASSES + 1) * SINGLE * b * units + (SINGLE + PLACE) * b * k
    return Cost("top k", moved, launches=3 * blocks)


def sort_code(shape: Shape) -> Cost:
    """Return the cost of sorting every code by unit and finding the weights of its residuals."""
    return Cost("code by unit, weights", COUNTED * SINGLE * shape.batch * shape.k, launches=12)


def walk_forward(shape: Shape) -> Cost:
    """Return the cost of the ordered loss: 2 operations to update the residual, 3 to weight it."""
    b, d, units, k = shape
    blocks = _blocks(d)
    moved = SINGLE * (2 * b * d + blocks * b) + blocks * b * (PLACE + SINGLE)
    moved += blocks * b * k * (SINGLE + PLACE + SINGLE)
    return Cost("ordered loss", moved, 5.0 * b * k * d, SINGLE * b * k * d, SINGLE * units * d)


def walk_back(shape: Shape) -> Cost:
    """Return the cost of the loss's gradients: every entry reads an atom and adds to its gradient."""
    b, d, units, k = shape
    blocks = _blocks(d)
    moved = SINGLE * 2 * b * d + blocks * b * (PLACE + 2 * SINGLE)
    moved += blocks * b * (k * (SINGLE + PLACE + SINGLE + SINGLE) + SINGLE + PLACE)  # one entry prefetched
    read, added = SINGLE * b * (k + 1) * d, 2 * SINGLE * b * k * d  # an addition reads and writes
    moved += SINGLE * units * d  # the gradient is set to zero first
    table = 2 * SINGLE * units * d  # atoms and their gradients
    return Cost("its gradients", moved, 9.0 * b * k * d, read + added, table, launches=3)


def sort_slots(shape: Shape) -> Cost:
    """Return the cost of sorting all entries by unit: keys and places, read and written in every pass."""
    entries = shape.batch * shape.k
    return Cost("entries by unit", 2 * RADIX_PASSES * 2 * 2 * PLACE * entries, launches=12)


def scatter(shape: Shape, precision: str) -> Cost:
    """Return the cost of the encoder's gradient: a row of x for every entry, and each atom's sum once."""
    b, d, units, k = shape
    low = 2 if precision == "bf16" else SINGLE
    blocks = _blocks(d)
    per_unit = 2 * PLACE * (2 if b * k >= gpu.PIECE else 1)  # the range of its entries, and its later pieces
    moved = 3 * SINGLE * units * d + blocks * (units * per_unit + b * k * (PLACE + SINGLE))
    return Cost("encoder gradient", moved, 2.0 * b * k * d, low * b * k * d, low * b * d, launches=3)


def check_finite(shape: Shape) -> Cost:
    """Return the cost of checking the gradients for NaN and infinity."""
    return Cost("check of gradients", 2 * SINGLE * shape.units * shape.width, launches=6)


def step_encoder(shape: Shape) -> Cost:
    """Return the cost of torch's fused Adam: four tensors are read and three written."""
    numbers = shape.units * shape.width
    return Cost("Adam, encoder", 7 * SINGLE * numbers, 12.0 * numbers, launches=4)


def step_atoms(shape: Shape) -> Cost:
    """Return the cost of projection, Adam and normalisation of the atoms in one pass."""
    numbers = shape.units * shape.width
    moved = 7 * SINGLE * numbers + shape.units * 3 * SINGLE
    return Cost("Adam on the sphere, decoder", moved, 20.0 * numbers, launches=8)


def count_step(shape: Shape, precision: str = "fp32") -> Iterator[Cost]:
    """Yield the costs of a step of TopK with the exact ordered loss, in order of execution."""
    yield from (product(shape, precision), select(shape), sort_code(shape), walk_forward(shape))
    yield from (walk_back(shape), sort_slots(shape), scatter(shape, precision), check_finite(shape))
    yield from (step_encoder(shape), step_atoms(shape))


def predict_step(shape: Shape, device: Device, precision: str = "fp32") -> float:
    """Return the seconds of a step."""
    return sum(cost.seconds(device) for cost in count_step(shape, precision))


def count_memory(shape: Shape) -> int:
    """Return the bytes on the device: weights, gradients, two moments, pre-activations, codes and rows."""
    b, d, units, k = shape
    state = 8 * SINGLE * units * d
    return state + SINGLE * min(b, gpu.rows_at_once(units)) * units + b * k * 60 + 6 * SINGLE * b * d


def _blocks(d: int) -> int:
    return -(-d // gpu.BLOCK)
