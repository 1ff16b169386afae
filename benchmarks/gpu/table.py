"""The predictions as tables for docs/gpu.md."""

from benchmarks.gpu.roofline import BENCHMARK, DEVICES, LARGE, count_memory, count_step, predict_step
from osae.defaults import PRECISIONS


def tabulate_kernels() -> str:
    """Return the traffic, arithmetic and predicted time of every kernel of a step with 65,536 units."""
    head = ["kernel", "GB", "GFLOP", *(f"{d.name}, ms" for d in DEVICES), *(f"{d.name} by" for d in DEVICES)]
    lines = [_line(head), f"| :-- |{' --: |' * 4} :-- | :-- |"]
    for cost in count_step(LARGE[0], "bf16"):
        sizes = [f"{(cost.moved + cost.shared) / 1e9:.2f}", f"{cost.operations / 1e9:.0f}"]
        times = [f"{1e3 * cost.seconds(device):.2f}" for device in DEVICES]
        lines.append(_line([cost.name, *sizes, *times, *(cost.bound(device) for device in DEVICES)]))
    return "\n".join(lines)


def tabulate_steps() -> str:
    """Return the predicted milliseconds of a step of every shape, on every device and in every precision."""
    columns = [(device, precision) for device in DEVICES for precision in PRECISIONS]
    head = ["B, d, K, k", "GB of memory", *(f"{device.name}, {precision}" for device, precision in columns)]
    lines = [_line(head), f"| :-- |{' --: |' * (len(head) - 1)}"]
    for shape in (*BENCHMARK, *LARGE):
        times = [1e3 * predict_step(shape, device, precision) for device, precision in columns]
        cells = [", ".join(map(str, shape)), f"{count_memory(shape) / 1e9:.1f}"]
        lines.append(_line([*cells, *(f"{ms:.2f}" if ms < 10 else f"{ms:.0f}" for ms in times)]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
