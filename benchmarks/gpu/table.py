"""The predictions as tables for docs/gpu.md."""

from benchmarks.gpu.roofline import BENCHMARK, DEVICES, LARGE, Shape, count_memory, count_step, predict_step
from osae.defaults import PRECISIONS


def tabulate_kernels(*shapes: Shape) -> str:
    """Return the traffic, arithmetic and predicted time of every kernel of a step in bf16, shape by shape."""
    head = ["kernel", "GB", "GFLOP", *(f"{d.name}, ms" for d in DEVICES), *(f"{d.name} by" for d in DEVICES)]
    lines = [_line(["B, d, K, k", *head]), f"| :-- | :-- |{' --: |' * 4} :-- | :-- |"]
    for shape in shapes:
        of_shape = ", ".join(map(str, shape))
        for cost in count_step(shape, "bf16"):
            sizes = (cost.moved + cost.shared) / 1e9, cost.operations / 1e9
            times = [1e3 * cost.seconds(device) for device in DEVICES]
            numbers = [f"{n:.0f}" if n >= 100 else f"{n:.2g}" for n in (*sizes, *times)]
            bounds = [cost.bound(device) for device in DEVICES]
            lines.append(_line([of_shape, cost.name, *numbers, *bounds]))
            of_shape = ""
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
