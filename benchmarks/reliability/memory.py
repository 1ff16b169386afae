"""Compare forecasts of memory and time with measurements of each command: print a table; --out writes it.

    python -m benchmarks.reliability.memory [--quick] [--only NAME] [--peaks] [--data ACTS] [--out FOLDER]

Each command runs in a process forked from one that has imported and compiled everything; its peak is measured
from there, without the memory that an open language model takes. Code of libraries, which a forked process
maps again page by page, is not counted. Its time is measured from the last forecast on. Commands that need a
language model or its text are measured on the harvest given by `--data`, whose model must be available
locally. Linux 5.14 or later only.
"""

import argparse
import ctypes
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.speed.comparing import SAES, make_inputs
from osae.cli import forecasting
from osae.cli import main as osae
from osae.data.lm import LanguageModel
from osae.data.shards import Shards
from osae.forecast import Forecast
from osae.model import SAE, SAEConfig
from osae.sparsify import ReLU, TopK

TABLE = "table.md"
FEW = 3  # steps of training: enough for the peak, but not to compare times
HARVESTS = [  # tokens, context, tokens at once
    (20_000, 128, 4096),
    (12_000, 256, 1024),
    (8000, 512, 8192),
    (5000, 128, 4096),
    (5000, 512, 512),
    (1000, 128, 4096),
]
POPULATE_READ = 22  # MADV_POPULATE_READ of Linux


class Case(NamedTuple):
    """A command, and its name in the table."""

    name: str
    words: Sequence[object]
    timed: bool = True  # whether the table shows its time
    threads: int = 1


class Outcome(NamedTuple):
    """The forecast and the measured peak of a case, in bytes, and both of its seconds."""

    name: str
    forecast: float
    measured: float
    expected_seconds: float
    seconds: float
    timed: bool = True

    @property
    def ratio(self) -> float:
        """The forecast as a multiple of the peak."""
        return self.forecast / self.measured

    @property
    def time_ratio(self) -> float:
        """The forecast of the time as a multiple of the time."""
        return self.expected_seconds / self.seconds


def measure(case: Case) -> Outcome:
    """Return what the command forecasts, its peak and its time."""
    said, written = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(written, _run(case).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(written)
    with open(said, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    numbers, _, messages = text.partition("\n")
    found = re.findall(r"needs about (\d+) bytes, ([\d.e+-]+) s", messages)
    if not numbers.startswith("0 ") or not found:
        raise RuntimeError(f"{case.name} ended with {text[-600:]!r}")
    _, peak, seconds = map(float, numbers.split())
    forecast, expected = max(float(memory) for memory, _ in found), float(found[-1][1])
    return Outcome(case.name, forecast, peak, expected, seconds, case.timed)


def _run(case: Case) -> str:
    """Run the command in this process; return its exit code, peak and seconds, then its messages."""
    torch.set_num_threads(case.threads)
    _map_libraries()
    before, started = [_reset_peak()], [time.perf_counter()]
    open_model = LanguageModel.__init__

    def say(text: str) -> None:
        print(text, file=sys.stderr)
        if "needs about" in text:
            started.append(time.perf_counter())

    def measure_model(self: LanguageModel, *args: Any, **options: Any) -> None:
        closed = _reset_peak()
        open_model(self, *args, **options)
        _map_libraries()  # of those that were imported for it
        before.append(before[-1] + _reset_peak() - closed)

    LanguageModel.__init__ = measure_model
    forecasting.say, forecasting.NOTICED = say, 0
    Forecast.__str__ = lambda self: f"needs about {self.memory} bytes, {self.seconds or 0:.4g} s"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as messages:
        code = osae([str(word) for word in case.words])
    seconds = time.perf_counter() - started[-1]
    return f"{code} {_peak() - before[-1]} {seconds}\n{messages.getvalue()}"


def _map_libraries() -> None:
    """Map every page of libraries here: in a forked process, each would count when it is first used."""
    libc = ctypes.CDLL("libc.so.6", use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_, name = line.split(maxsplit=5)
        if name.startswith("/") and permissions[0] == "r":
            start, stop = (int(address, 16) for address in span.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), POPULATE_READ)


def _reset_peak() -> int:
    """Reset the peak, and return the bytes in use, without those that were freed but kept for later."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not report the peak memory of a process")


def warm(folder: Path) -> None:
    """Import and compile everything in this process, so that it is not counted for any command."""
    torch.set_num_threads(1)
    saes = [str(_write_sae(folder, 1100, 8, 4, seed)) for seed in (0, 1)]  # too many for dense matching
    data = str(_write_rows(folder, 300, 8))
    run = ["--units", "16", "--k", "4", "--batch", "50", "--device", "cpu", "--out"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert osae(["train", "osae", "--data", data, *run, str(folder / "warm")]) == 0
        assert osae(["compare", *saes, "--data", data]) == 0
        assert osae(["evaluate", saes[0], "--data", data]) == 0
        assert osae(["order", saes[0], "--data", data, "--out", str(folder / "ordered")]) == 0
        assert osae(["stitch", *saes, "--data", data]) == 0
        assert osae(["prune", saes[0], "--others", saes[1], "--data", data, "--out", str(folder / "p")]) == 0


def list_cases(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Yield the commands; the quick ones take a few seconds each."""
    yield _train(folder, "topk", rows=65_536, width=512, units=1024, k=16, batch=256)
    yield _train(folder, "topk", rows=4096, width=512, units=8192, k=16, batch=256, seeds="0,1")
    yield _study(folder, "evaluate", units=32_768, width=512, rows=1024)
    yield _study(folder, "stitch", units=32_768, width=512, rows=1024)
    yield _compare(folder, units=4096, width=512)
    if quick:
        return
    yield _train(folder, "vanilla", rows=8192, width=128, units=16_384, k=16, batch=2048)
    yield _train(folder, "batchtopk", rows=8192, width=256, units=16_384, k=32, batch=2048)
    yield _train(folder, "osae", rows=65_536, width=256, units=8192, k=32, batch=2048)
    yield _train(folder, "osae-paper", rows=8192, width=256, units=16_384, k=64, batch=4096)
    yield _train_world(folder, "osae-paper")
    yield _train_world(folder, "osae")
    yield _study(folder, "order", units=32_768, width=512, rows=1024)
    yield _study(folder, "order", units=8192, width=512, rows=16_384, k=64)
    yield _compare(folder, units=2048, width=2048)
    yield _compare(folder, units=4096, width=512, rows=16_384, k=64)
    yield _study(folder, "evaluate", units=16_384, width=256, rows=2048, k=0)
    yield from _list_further_cases(folder)


def _list_further_cases(folder: Path) -> Iterator[Case]:
    """Yield commands of sizes that were not used to choose the constants of the forecasts."""
    yield _train(folder, "topk", rows=20_000, width=768, units=6000, k=50, batch=1000)
    yield _train(
        folder, "matryoshka-random", rows=30_000, width=384, units=5000, k=40, batch=700, seeds="0,1"
    )
    yield _train(folder, "osae-from-modes", rows=40_000, width=320, units=2000, k=20, batch=512)
    yield _study(folder, "evaluate", units=20_000, width=1024, rows=3000, k=100)
    yield _study(folder, "evaluate", units=10_000, width=640, rows=3000, k=0)
    yield _study(folder, "order", units=12_000, width=768, rows=8000, k=40)
    yield _study(folder, "stitch", units=24_000, width=384, rows=2000, k=30)
    yield _compare(folder, units=3000, width=1024)
    yield _compare(folder, units=6000, width=768, rows=10_000, k=32)
    for threads in (1, 2):
        yield _compare_several(folder, units=16_384, width=512, rows=20_000, k=64, threads=threads)
    yield _prune(folder, units=12_000, width=768, rows=6000, k=32)
    yield _trust(folder, units=3000, width=384, rows=40_000, k=32)
    yield _train(folder, "topk", rows=65_536, width=512, units=4096, k=32, batch=512, steps=400)
    yield _train(folder, "osae", rows=65_536, width=256, units=4096, k=32, batch=512, steps=800)
    yield _train(folder, "vanilla", rows=8192, width=256, units=2048, k=16, batch=512, steps=240)
    yield from _list_writing_cases(folder)


def _list_writing_cases(folder: Path) -> Iterator[Case]:
    """Yield commands that read and write files."""
    sae = _write_sae(folder, 16_384, 1024, 32)
    for to in ("saelens", "dictionary_learning"):
        words = ["convert", sae, tempfile.mkdtemp(dir=folder), "--to", to]
        yield Case(f"convert --to {to}, 16,384 units of width 1024", words)
    words = ["push", sae, "hf:user/repo", "--dry-run", tempfile.mkdtemp(dir=folder)]
    yield Case("push, 16,384 units of width 1024", words)
    for units in (4096, 12_000):
        saes = [_write_sae(folder, units, 64, 16, seed) for seed in (0, 1)]
        result, page = folder / f"compare{units}.json", folder / f"page{units}.html"
        _prepare(["compare", *map(str, saes), "--chance-draws", "0", "--json", str(result)])
        yield Case(f"report, a comparison of 2 x {units:,} units", ["report", result, "--out", page])


def _prepare(words: Sequence[str]) -> None:
    """Run a command in a process of its own."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        _in_child(lambda: osae(words) and sys.exit("the command failed"))


def _in_child(action: Callable[[], object]) -> None:
    """Do something in a process of its own.

    Large arrays here would change what the allocator of this process, and of those forked from it, keeps.
    """
    if (child := os.fork()) == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


def list_language_cases(folder: Path, data: Path) -> Iterator[Case]:
    """Yield commands that need the language model or the text of a harvest."""
    rows, spec = Shards(data), Shards(data).manifest["harvest"]
    for tokens, context, at_once in HARVESTS:
        words = ["harvest", "--model", spec["model"], "--layer", spec["layer"], "--text"]
        words += [",".join(spec["text"]["files"])]
        words += ["--context", context, "--batch-tokens", at_once, "--tokens", tokens, "--device", "cpu"]
        name = f"harvest, {tokens:,} tokens of width {rows.width}, contexts of {context}, {at_once:,} at once"
        for threads in (1, 2) if tokens == 20_000 else (1,):
            more = f", {threads} threads" if threads > 1 else ""
            out = ["--out", tempfile.mkdtemp(dir=folder)]
            yield Case(name + more, [*words, *out], threads=threads)
    yield from _list_splicing_cases(folder, data, rows.width)
    for units, k in ((16_384, 32), (6000, 64)):
        words = [
            "contexts",
            _write_sae(folder, units, rows.width, k),
            "--data",
            data,
            "--model",
            "none",
            "--out",
        ]
        name = f"contexts, {units:,} units of width {rows.width}, k {k}, {rows.rows:,} rows"
        yield Case(name, [*words, tempfile.mkdtemp(dir=folder)])


def _list_splicing_cases(folder: Path, data: Path, width: int) -> Iterator[Case]:
    """Yield commands that run the language model besides SAEs; the table leaves out their times."""
    saes = [_write_sae(folder, 8192, width, 32, seed) for seed in (0, 1)]
    words = ["--data", data, "--tokens", 4000, "--device", "cpu"]
    for threads in (1, 2):
        name = f"evaluate with a language model, 2 x 8,192 units of width {width}"
        name += f", {threads} threads" if threads > 1 else ""
        yield Case(name, ["evaluate", *saes, *words], timed=False, threads=threads)
    out = tempfile.mkdtemp(dir=folder)
    name = f"prune with a language model, 8,192 units of width {width}"
    yield Case(name, ["prune", saes[0], "--others", saes[1], *words, "--out", out], timed=False)
    out = tempfile.mkdtemp(dir=folder)
    words = ["contexts", saes[0], "--data", data, "--device", "cpu", "--out", out]
    yield Case(f"contexts with a language model, 8,192 units of width {width}, k 32", words, timed=False)


def _train(
    folder: Path,
    recipe: str,
    *,
    rows: int,
    width: int,
    units: int,
    k: int,
    batch: int,
    seeds: str = "0",
    steps: int = FEW,
) -> Case:
    data, out = _write_rows(folder, rows, width), tempfile.mkdtemp(dir=folder)
    words = ["train", recipe, "--data", data, "--units", units, "--k", k, "--batch", batch, "--seeds", seeds]
    name = f"train {recipe}, {units:,} units of width {width}, k {k}, batch {batch:,}, {rows:,} rows"
    words += ["--tokens", steps * batch, "--device", "cpu", "--out", out]
    return Case(f"{name}, seeds {seeds}, {steps} steps", words, timed=steps > FEW)


def _train_world(folder: Path, recipe: str) -> Case:
    sizes = {"width": 128, "units": 512, "active": 8, "samples": 100_000}
    world = [word for name, size in sizes.items() for word in (f"--world-{name}", size)]
    words = ["train", recipe, *world, "--batch", 2000, "--epochs", 0.4, "--device", "cpu", "--out"]
    name = f"train {recipe} on a world, {sizes}, batch 2,000"
    return Case(name, [*words, tempfile.mkdtemp(dir=folder)], timed=False)


def _study(folder: Path, command: str, *, units: int, width: int, rows: int, k: int = 16) -> Case:
    sae, data = _write_sae(folder, units, width, k), _write_rows(folder, rows, width)
    words = [command, sae, "--data", data]
    if command == "order":
        words += ["--out", tempfile.mkdtemp(dir=folder)]
    if command == "stitch":
        words.insert(1, _write_sae(folder, units // 4, width, k))
    active = f"k {k}" if k else "ReLU"
    return Case(f"{command}, {units:,} units of width {width}, {active}, {rows:,} rows", words)


def _compare(folder: Path, *, units: int, width: int, rows: int = 0, k: int = 16) -> Case:
    saes = [_write_sae(folder, units, width, k, seed) for seed in (0, 1)]
    more = ["--data", _write_rows(folder, rows, width)] if rows else []
    name = f"compare, 2 x {units:,} units of width {width}" + (f", k {k}, {rows:,} rows" if rows else "")
    return Case(name, ["compare", *saes, "--prefixes", 64, *more])


def _compare_several(folder: Path, *, units: int, width: int, rows: int, k: int, threads: int) -> Case:
    """Return the comparison of `benchmarks.speed.comparing`."""
    inputs = folder / "several"
    if not inputs.exists():
        inputs.mkdir()
        make_inputs(inputs, units, width, k, rows)
    words = ["compare", *sorted(inputs.glob("sae*")), "--data", inputs / "rows.npy"]
    name = f"compare, {SAES} x {units:,} units of width {width}, k {k}, {rows:,} rows"
    name += f", {threads} threads" if threads > 1 else ""
    return Case(name, [*words, "--json", inputs / "c.json"], threads=threads)


def _prune(folder: Path, *, units: int, width: int, rows: int, k: int) -> Case:
    sae, other = (_write_sae(folder, units, width, k, seed) for seed in (0, 1))
    words = ["prune", sae, "--others", other, "--data", _write_rows(folder, rows, width), "--out"]
    name = f"prune, {units:,} units of width {width}, k {k}, {rows:,} rows"
    return Case(name, [*words, tempfile.mkdtemp(dir=folder)])


def _trust(folder: Path, *, units: int, width: int, rows: int, k: int) -> Case:
    sae, data = _write_sae(folder, units, width, k), _write_rows(folder, rows, width)
    words = ["trust", sae, "--data", data, "--runs", 2, "--tokens", 5000, "--device", "cpu", "--out"]
    name = f"trust, {units:,} units of width {width}, k {k}, {rows:,} rows, 2 runs"
    return Case(name, [*words, tempfile.mkdtemp(dir=folder)])


def _write_rows(folder: Path, rows: int, width: int) -> Path:
    path = folder / f"{rows}x{width}.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32))
    return path


def _write_sae(folder: Path, units: int, width: int, k: int, seed: int = 0) -> Path:
    """Write an SAE whose atoms resemble those of other seeds; with k 0, a ReLU SAE."""
    path = folder / f"{units}x{width}k{k}s{seed}"
    if not path.exists():
        shared, own = (
            torch.randn(units, width, generator=torch.Generator().manual_seed(s)) for s in (9, seed)
        )
        atoms = torch.nn.functional.normalize(shared + 0.3 * own, dim=-1)
        SAE(SAEConfig(width, units, TopK(k) if k else ReLU(0.1)), atoms=atoms).save(path)
    return path


HEAD = "| command | memory: forecast | measured | ratio | time: forecast | measured | ratio |"


def format_row(one: Outcome, before: str = "") -> str:
    """Return an outcome as a row of the table; with the row `before`, its times are kept."""
    memory = f"{one.forecast / 1e6:,.0f} MB | {one.measured / 1e6:,.0f} MB | {one.ratio:.2f}"
    times = (
        f"{one.expected_seconds:.1f} s | {one.seconds:.1f} s | {one.time_ratio:.2f}" if one.timed else "| |"
    )
    if before:
        times = before.removesuffix(" |").removeprefix("| ").split(" | ", 4)[4]
    return f"| {one.name} | {memory} | {times} |"


def read_rows(out: Path) -> dict[str, str]:
    """Return the rows of the table in a folder, by command."""
    lines = (out / TABLE).read_text().splitlines()[4:] if (out / TABLE).exists() else []
    return {line.removeprefix("| ").split(" | ")[0]: line for line in lines}


def write_rows(out: Path, rows: Mapping[str, str]) -> None:
    """Write the table."""
    out.mkdir(parents=True, exist_ok=True)
    lines = ["# Forecasts of memory and time", "", HEAD, f"| :-- |{' --: |' * 6}", *rows.values()]
    (out / TABLE).write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that take a few seconds")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument(
        "--peaks", action="store_true", help="keep the times in the table: the machine is busy"
    )
    parser.add_argument("--data", type=Path, help="a harvest, for the commands that need a language model")
    parser.add_argument("--out", type=Path, help="write the rows of these cases to the table in this folder")
    asked = parser.parse_args()
    rows = read_rows(asked.out) if asked.out else {}
    with tempfile.TemporaryDirectory() as scratch:
        warm(Path(scratch))
        _in_child(lambda: list(list_cases(Path(scratch), quick=asked.quick)))  # writes all files
        cases = list(list_cases(Path(scratch), quick=asked.quick))
        cases += list_language_cases(Path(scratch), asked.data) if asked.data else []
        for case in cases:
            if asked.only in case.name:
                rows[case.name] = format_row(measure(case), rows.get(case.name, "") if asked.peaks else "")
                print(rows[case.name], flush=True)
                if asked.out:
                    write_rows(asked.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
