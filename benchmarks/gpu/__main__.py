"""How long a training step should take on a GPU, and how long it takes on this one:

    python -m benchmarks.gpu [--precision bf16] [--shape 2048,512,4096,80]

Predictions are for an A100 and an H100 (see `roofline.py`). On a machine with a GPU, every kernel is also
timed, and the last column is the time divided by the prediction for the most similar device.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

from benchmarks.gpu.roofline import BENCHMARK, DEVICES, LARGE, Device, Shape, count_memory, count_step
from osae.defaults import PRECISIONS


def describe_shape(
    shape: Shape, precision: str, measured: dict[str, float], device: Device
) -> list[tuple[str, ...]]:
    """Return a row for every kernel and one for the step: predictions, then measurement and ratio."""
    lines, totals = [], [0.0] * len(DEVICES)
    for cost in count_step(shape, precision):
        predicted = [cost.seconds(each) for each in DEVICES]
        totals = [total + more for total, more in zip(totals, predicted, strict=True)]
        compared = _compare(measured.get(cost.name), cost.seconds(device))
        lines.append((cost.name, *map(_ms, predicted), cost.bound(device), *compared))
    at = DEVICES.index(device)
    return [*lines, ("step", *map(_ms, totals), "", *_compare(measured.get("step"), totals[at]))]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _compare(seconds: float | None, predicted: float) -> tuple[str, str]:
    return ("-", "-") if seconds is None else (_ms(seconds), f"{seconds / predicted:.2f}")


def choose_model() -> Device:
    """Return the device whose predictions a measurement is compared with."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return next((device for device in DEVICES if device.name in name), DEVICES[0])


def parse_shape(text: str) -> Shape:
    """Return the sizes written as B,d,K,k."""
    return Shape(*(int(part) for part in text.split(",")))


def main(words: Sequence[str] | None = None) -> int:
    """Print a table for every shape."""
    parser = argparse.ArgumentParser(description="Predicted and measured times of a training step on a GPU.")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--shape", type=parse_shape, action="append", metavar="B,d,K,k", help="repeatable")
    options = parser.parse_args(words)
    there, model = torch.cuda.is_available(), choose_model()
    where = torch.cuda.get_device_name() if there else "no GPU here: predictions only"
    print(f"{where}; products in {options.precision}; milliseconds")
    for shape in options.shape or (*BENCHMARK, *LARGE):
        sizes = " ".join(f"{name}={size}" for name, size in zip("BdKk", shape, strict=True))
        print(f"\n{sizes}, {count_memory(shape) / 1e9:.1f} GB")
        measured = _measure(shape, options.precision) if there else {}
        head = ("kernel", *(device.name for device in DEVICES), "bound by", "measured", f"/ {model.name}")
        for cells in (head, *describe_shape(shape, options.precision, measured, model)):
            print(f"  {cells[0]:<28}" + "".join(f"{cell:>12}" for cell in cells[1:]))
    return 0


def _measure(shape: Shape, precision: str) -> dict[str, float]:
    """Return measured seconds; none if the device has too little memory."""
    from benchmarks.gpu.measuring import measure_step

    try:
        return measure_step(shape, precision)
    except torch.OutOfMemoryError:
        print("  does not fit into the memory of this device")
        return {}


if __name__ == "__main__":
    sys.exit(main())
