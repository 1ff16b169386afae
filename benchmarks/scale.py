"""Calculate what a training run needs on many devices; nothing here has been measured on a GPU.

    python -m benchmarks.scale --width 2304 --units 65536 --tokens 1e10 --device h100 --devices 8

A step has B rows of width d, K units and k active ones; R ranks share its rows and S its units. The bytes and
FLOP follow from what the kernels read, write and multiply (`osae/kernels/gpu.py`). The times follow from data
sheets, assuming that products reach the share `REACHED_FLOP` of the peak rate, and memory `REACHED_BYTES`.
Parts of a step that use different resources are assumed to overlap perfectly: the slowest resource saturates
first.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from osae.experiments.lm.settings import SETTINGS

SINGLE, HALF = 4, 2  # bytes of a number in float32 and in bfloat16
REACHED_FLOP, REACHED_BYTES = 0.6, 0.8  # assumed shares of the peak rates
COPIES = 4  # of every weight: itself, its gradient and two moments of Adam
SPARSE_PASSES = 5  # over the atoms or inputs of active entries: forward, backward, both gradients, decoding


@dataclass(frozen=True)
class Device:
    """Peak rates of a device: FLOP and bytes per second; memory and link in bytes."""

    name: str
    flop: float  # dense, bfloat16 with float32 sums
    bandwidth: float
    memory: float
    link: float  # to the other devices, both directions together


# NVIDIA A100 data sheet (80 GB SXM), NVIDIA H100 data sheet (SXM); dense rates, without sparsity
DEVICES = {
    "a100": Device("A100 80 GB", 312e12, 2.039e12, 80e9, 600e9),
    "h100": Device("H100 SXM", 989e12, 3.35e12, 80e9, 900e9),
}
DISK = 5e9  # bytes per second read from disk, assuming one fast NVMe drive


@dataclass(frozen=True)
class Plan:
    """A training run of one SAE, and the devices it is distributed over."""

    width: int
    units: int
    k: int
    tokens: float
    batch: int
    device: Device
    devices: int
    unit_ranks: int = 1
    disk: float = DISK

    @property
    def row_ranks(self) -> int:
        """Return the number of ranks that share the rows of a batch."""
        return self.devices // self.unit_ranks


@dataclass(frozen=True)
class Needs:
    """What a run needs: bytes on a device, FLOP, and the hours that each resource would take on its own."""

    memory: float
    flop: float
    hours: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """Return the resource that saturates first."""
        return max(self.hours, key=lambda name: self.hours[name])

    @property
    def longest(self) -> float:
        """Return the hours that the run takes if everything else overlaps."""
        return self.hours[self.bottleneck]


def forecast(plan: Plan) -> Needs:
    """Return what a run needs, in total and on each device."""
    steps = plan.tokens / plan.batch
    rows, units = plan.batch / plan.row_ranks, plan.units / plan.unit_ranks
    k = plan.k / plan.unit_ranks
    product = 2 * rows * units * plan.width
    sparse = 2 * SPARSE_PASSES * rows * k * plan.width
    hours = {
        "products": (product + sparse) / (REACHED_FLOP * plan.device.flop),
        "memory": _count_memory_traffic(plan, rows, units, k) / (REACHED_BYTES * plan.device.bandwidth),
        "link": _count_link_traffic(plan, rows, units) / plan.device.link,
        "disk": plan.batch * plan.width * HALF / plan.disk,
    }
    weights = COPIES * 2 * units * plan.width * SINGLE
    buffers = rows * plan.width * SINGLE * 4 + rows * k * (SINGLE + 8) * 4
    return Needs(
        memory=weights
        + buffers
        + min(rows * units * SINGLE, 2**30),  # pre-activations are computed in blocks
        flop=steps * plan.devices * (product + sparse),
        hours={name: steps * seconds / 3600 for name, seconds in hours.items()},
    )


def _count_memory_traffic(plan: Plan, rows: float, units: float, k: float) -> float:
    """Return the bytes that a device reads and writes in a step."""
    encoder = units * plan.width * HALF
    pre_activations = 2 * rows * units * SINGLE  # written by the product, read by the selection
    sparse = SPARSE_PASSES * rows * k * plan.width * SINGLE
    # gradients are zeroed and read; weights and both moments are read and written
    optimizer = 8 * 2 * units * plan.width * SINGLE
    return encoder + pre_activations + sparse + optimizer


def _count_link_traffic(plan: Plan, rows: float, units: float) -> float:
    """Return the bytes that a device sends and receives in a step, as docs/scale.md counts them."""
    numbers = 0.0
    if plan.row_ranks > 1:
        numbers += 4 * units * plan.width + 4 * units  # last fired: 2 K / S of 8 bytes
    if plan.unit_ranks > 1:
        numbers += plan.unit_ranks * rows * (plan.k + 2 * plan.width)
    return numbers * SINGLE


def tabulate(plans: Sequence[Plan]) -> str:
    """Return a Markdown table with a row for each plan."""
    lines = [
        "| units | devices | rows x units | each has | FLOP | products | memory | link | disk | first |",
        "| --: | :-- | :-- | --: | --: | --: | --: | --: | --: | :-- |",
    ]
    for plan in plans:
        needs = forecast(plan)
        fits = "" if needs.memory <= plan.device.memory else ", **too much**"
        hours = (f"{needs.hours[name]:,.1f} h" for name in ("products", "memory", "link", "disk"))
        lines.append(
            f"| {plan.units:,} | {plan.devices} {plan.device.name} | {plan.row_ranks} x {plan.unit_ranks} "
            f"| {needs.memory / 1e9:.1f} GB{fits} | {needs.flop:.1e} | {' | '.join(hours)} "
            f"| {needs.bottleneck} |"
        )
    return "\n".join(lines)


def tabulate_gemma() -> str:
    """Return the table of docs/scale.md: Gemma-2-2B, 10 billion tokens."""
    shapes = [(65_536, 1, 1), (65_536, 8, 1), (65_536, 8, 8), (2**20, 8, 1), (2**20, 8, 8), (2**20, 64, 8)]
    width, k = SETTINGS["gemma-2-2b"].width, 80
    return tabulate(
        [
            Plan(width, units, k, 1e10, 16_384, device, count, ranks)
            for device in DEVICES.values()
            for units, count, ranks in shapes
        ]
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table for one plan."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--width", type=int, help="width of the activations (default: that of --setting)")
    parser.add_argument("--setting", choices=SETTINGS, default="gemma-2-2b", help="a known model")
    parser.add_argument("--units", type=lambda text: int(float(text)), required=True)
    parser.add_argument("--k", type=int, default=80)
    parser.add_argument("--tokens", type=float, required=True)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--device", choices=DEVICES, default="h100")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--dictionary-ranks", type=int, default=1, help="ranks that share the units")
    parser.add_argument("--disk", type=float, default=DISK, help="bytes per second read from disk")
    asked = parser.parse_args(words)
    if asked.devices % asked.dictionary_ranks:
        parser.error(
            f"--devices {asked.devices} is not a multiple of --dictionary-ranks {asked.dictionary_ranks}."
        )
    width = asked.width or SETTINGS[asked.setting].width
    plan = Plan(
        width,
        asked.units,
        asked.k,
        asked.tokens,
        asked.batch,
        DEVICES[asked.device],
        asked.devices,
        asked.dictionary_ranks,
        asked.disk,
    )
    print(tabulate([plan]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
