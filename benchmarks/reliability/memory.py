"""Compare forecasts of memory and time with measurements of each command: print a table; --out writes it.

    python -m benchmarks.reliability.memory [--quick] [--only NAME ...] [--data ACTS] [--out FOLDER]

Each command runs in a process forked from one that has imported and compiled everything; its peak is measured
from there, and from when a language model has been opened without the memory that it takes. Code of
libraries, which a forked process maps again page by page, is not counted. Its time is measured from the last
forecast on, in seconds of CPU time, as is the speed that its forecast is based on: in a single thread, on an
idle machine, that is how long it takes. If the forecast is more than 1.3 times the peak, the command runs
again, up to three times, and the largest peak counts: which threads overlap is a matter of timing. Commands
that need a language model or its text are measured on the harvest given by `--data`, whose model must be
available locally. Linux 5.14 or later only.
"""

import argparse
import ctypes
import io
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.reliability.commands import (
    make_rows,
    make_sae,
    prepare,
    read_rows,
    run_apart,
    warm,
    write_rows,
)
from benchmarks.speed.comparing import SAES, make_inputs
from osae import speed
from osae.cli import forecasting
from osae.cli import main as osae
from osae.data.lm import LanguageModel
from osae.data.shards import Shards
from osae.forecast import Forecast

MOST, TRIES = 1.3, 3  # the goal: times the peak, or a peak that is so many times the forecast
FEW = 3  # steps of training: enough for the peak, but not to compare times
MIX_ROWS = 65_536  # rows of a block of a harvest by default
HARVESTS = [  # tokens, context, tokens at once, rows of a block
    (20_000, 128, 4096, MIX_ROWS),
    (12_000, 256, 1024, MIX_ROWS),
    (8000, 512, 8192, MIX_ROWS),
    (5000, 128, 4096, MIX_ROWS),
    (5000, 512, 512, MIX_ROWS),
    (1000, 128, 4096, MIX_ROWS),
    (20_000, 128, 4096, 8192),
]
POPULATE_READ = 22  # MADV_POPULATE_READ of Linux


class Case(NamedTuple):
    """A command, and its name in the table."""

    name: str
    words: Sequence[object]
    timed: bool = True  # whether the table shows its time, unless there are several threads
    threads: int = 1
    works_apart: bool = False  # whether it starts workers, whose memory counts as well


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


def measure_peak(case: Case) -> Outcome:
    """Return the outcome with the largest peak of up to three tries, until it is near the forecast.

    Which threads overlap, or whether a checkpoint is being written when the rest is at its peak, is a matter
    of timing.
    """
    tries: list[Outcome] = []
    while len(tries) < TRIES and not any(one.ratio <= MOST for one in tries):
        _clear(case)
        tries.append(measure(case))
    return max(tries, key=lambda one: one.measured)


def _clear(case: Case) -> None:
    """Empty the folders that the command writes, which `tempfile` made."""
    for place in map(Path, map(str, case.words)):
        if place.name.startswith(tempfile.gettempprefix()) and place.is_dir():
            shutil.rmtree(place)
            place.mkdir()


def measure(case: Case) -> Outcome:
    """Return what the command forecasts, its peak and its time."""
    used = [0]  # by the command and its workers at the same time

    def look(process: int) -> None:
        if case.works_apart:
            used.append(_sum_workers(process) + _read_bytes(Path(f"/proc/{process}/status"), "VmRSS"))

    text = run_apart(lambda: _run(case), look)
    numbers, _, messages = text.partition("\n")
    found = re.findall(r"needs about (\d+) bytes, ([\d.e+-]+) s", messages)
    if not numbers.startswith("0 ") or not found:
        raise RuntimeError(f"{case.name} ended with {text[-600:]!r}")
    _, peak, before, seconds = map(float, numbers.split())
    forecast, expected = max(float(memory) for memory, _ in found), float(found[-1][1])
    timed = case.timed and case.threads == 1
    return Outcome(case.name, forecast, max(peak, max(used) - before), expected, seconds, timed)


def _sum_workers(process: int) -> int:
    """Return the bytes that the children of a process use, without code of libraries.

    That code is the same memory in all processes, including their parent.
    """
    total, own = 0, Path(f"/proc/{process}/cmdline").read_bytes()
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        for child in tasks.read_text().split():
            with suppress(OSError):  # it has ended
                # until it runs a program of its own, a child uses the memory of its parent
                if Path(f"/proc/{child}/cmdline").read_bytes() != own:
                    total += _read_bytes(Path(f"/proc/{child}/status"), "RssAnon")
    return total


def _run(case: Case) -> str:
    """Run the command here; return its exit code, peak, bytes before it and seconds, then its messages."""
    torch.set_num_threads(case.threads)
    _map_libraries()
    before, started, peaks = [_reset_peak()], [time.process_time()], [0]
    open_model = LanguageModel.__init__

    def say(text: str) -> None:
        print(text, file=sys.stderr)
        if "needs about" in text:
            started.append(time.process_time())

    def measure_model(self: LanguageModel, *args: Any, **options: Any) -> None:
        peaks.append(_peak() - before[-1])  # without the model, which is not open yet
        closed = _reset_peak()
        open_model(self, *args, **options)
        _map_libraries()  # of those that were imported for it
        before.append(before[-1] + _reset_peak() - closed)

    LanguageModel.__init__, speed.CLOCK = measure_model, time.process_time
    speed.time_product.cache_clear()  # measured by another clock before
    forecasting.say, forecasting.NOTICED = say, 0
    Forecast.__str__ = lambda self: f"needs about {self.memory} bytes, {self.seconds or 0:.4g} s"
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as messages:
        code = osae([str(word) for word in case.words])
    seconds = time.process_time() - started[-1]
    peaks.append(_peak() - before[-1])
    return f"{code} {max(peaks)} {before[0]} {seconds}\n{messages.getvalue()}"


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
    return _read_bytes(Path("/proc/self/status"), "VmHWM")


def _read_bytes(file: Path, name: str) -> int:
    """Return an amount in a file of the system about a process; 0 if the process has just ended."""
    lines = (line.split() for line in file.read_text().splitlines())
    return next((1024 * int(words[1]) for words in lines if words and words[0] == f"{name}:"), 0)


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


def prepare_cases(folder: Path, *, quick: bool) -> list[Case]:
    """Return the commands after everything is compiled, and written by a process of its own.

    Here, the arrays of these files would change what the allocator of the forked processes keeps.
    """
    warm(folder)
    run_apart(lambda: str(list(list_cases(folder, quick=quick))))
    return list(list_cases(folder, quick=quick))


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
    yield _sweep(folder, units=8192, width=512, rows=20_000, jobs=1)
    yield _sweep(folder, units=8192, width=512, rows=20_000, jobs=2)
    words = ["reproduce", "toy", "--quick", "--methods", "topk,osae", "--seeds", 2, "--jobs", 2, "--out"]
    name = "reproduce toy --quick, two methods, two seeds, 2 jobs"
    yield Case(name, [*words, tempfile.mkdtemp(dir=folder)], timed=False, works_apart=True)
    yield from _list_writing_cases(folder)


def _list_writing_cases(folder: Path) -> Iterator[Case]:
    """Yield commands that read and write files."""
    sae = make_sae(folder, 16_384, 1024, 32)
    for to in ("saelens", "dictionary_learning"):
        words = ["convert", sae, tempfile.mkdtemp(dir=folder), "--to", to]
        yield Case(f"convert --to {to}, 16,384 units of width 1024", words)
    words = ["push", sae, "hf:user/repo", "--dry-run", tempfile.mkdtemp(dir=folder)]
    yield Case("push, 16,384 units of width 1024", words)
    for units in (4096, 12_000):
        saes = [make_sae(folder, units, 64, 16, seed) for seed in (0, 1)]
        result, page = folder / f"compare{units}.json", folder / f"page{units}.html"
        prepare(["compare", *saes, "--chance-draws", 0, "--json", result])
        yield Case(f"report, a comparison of 2 x {units:,} units", ["report", result, "--out", page])


def list_language_cases(folder: Path, data: Path) -> Iterator[Case]:
    """Yield commands that need the language model or the text of a harvest."""
    rows, spec = Shards(data), Shards(data).manifest["harvest"]
    for tokens, context, at_once, block in HARVESTS:
        words = ["harvest", "--model", spec["model"], "--layer", spec["layer"], "--text"]
        words += [",".join(spec["text"]["files"])]
        words += ["--context", context, "--batch-tokens", at_once, "--tokens", tokens, "--device", "cpu"]
        words += ["--mix-rows", block]
        name = f"harvest, {tokens:,} tokens of width {rows.width}, contexts of {context}, {at_once:,} at once"
        name += f", in blocks of {block:,}" if block < tokens else ""
        for threads in (1, 2) if tokens == 20_000 and block == MIX_ROWS else (1,):
            more = f", {threads} threads" if threads > 1 else ""
            out = ["--out", tempfile.mkdtemp(dir=folder)]
            yield Case(name + more, [*words, *out], threads=threads)
    yield from _list_splicing_cases(folder, data, rows.width)
    for units, k in ((16_384, 32), (6000, 64)):
        words = [
            "contexts",
            make_sae(folder, units, rows.width, k),
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
    saes = [make_sae(folder, 8192, width, 32, seed) for seed in (0, 1)]
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
    data, out = make_rows(folder, rows, width), tempfile.mkdtemp(dir=folder)
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


def _sweep(folder: Path, *, units: int, width: int, rows: int, jobs: int) -> Case:
    file = folder / "sweep.yaml"
    file.write_text(
        f"data: {make_rows(folder, rows, width)}\nunits: {units}\nk: 16\nbatch: 512\n"
        f"tokens: {FEW * 512}\nvary:\n  recipes: [topk]\n  seeds: [0, 1]\n"
    )
    words = ["sweep", file, "--device", "cpu", "--jobs", jobs, "--out", tempfile.mkdtemp(dir=folder)]
    name = f"sweep, two runs, {units:,} units of width {width}, {rows:,} rows, {jobs} at once"
    return Case(name, words, timed=False, works_apart=True)


def _study(folder: Path, command: str, *, units: int, width: int, rows: int, k: int = 16) -> Case:
    sae, data = make_sae(folder, units, width, k), make_rows(folder, rows, width)
    words = [command, sae, "--data", data]
    if command == "order":
        words += ["--out", tempfile.mkdtemp(dir=folder)]
    if command == "stitch":
        words.insert(1, make_sae(folder, units // 4, width, k))
    active = f"k {k}" if k else "ReLU"
    return Case(f"{command}, {units:,} units of width {width}, {active}, {rows:,} rows", words)


def _compare(folder: Path, *, units: int, width: int, rows: int = 0, k: int = 16) -> Case:
    saes = [make_sae(folder, units, width, k, seed) for seed in (0, 1)]
    more = ["--data", make_rows(folder, rows, width)] if rows else []
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
    sae, other = (make_sae(folder, units, width, k, seed) for seed in (0, 1))
    words = ["prune", sae, "--others", other, "--data", make_rows(folder, rows, width), "--out"]
    name = f"prune, {units:,} units of width {width}, k {k}, {rows:,} rows"
    return Case(name, [*words, tempfile.mkdtemp(dir=folder)])


def _trust(folder: Path, *, units: int, width: int, rows: int, k: int) -> Case:
    sae, data = make_sae(folder, units, width, k), make_rows(folder, rows, width)
    words = ["trust", sae, "--data", data, "--runs", 2, "--tokens", 5000, "--device", "cpu", "--out"]
    name = f"trust, {units:,} units of width {width}, k {k}, {rows:,} rows, 2 runs"
    return Case(name, [*words, tempfile.mkdtemp(dir=folder)])


HEAD = "| command | memory: forecast | measured | ratio | time: forecast | measured | ratio |"


def format_row(one: Outcome) -> str:
    """Return an outcome as a row of the table."""
    memory = f"{one.forecast / 1e6:,.0f} MB | {one.measured / 1e6:,.0f} MB | {one.ratio:.2f}"
    times = (
        f"{one.expected_seconds:.1f} s | {one.seconds:.1f} s | {one.time_ratio:.2f}" if one.timed else "| |"
    )
    return f"| {one.name} | {memory} | {times} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that take a few seconds")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="only cases whose name contains one of these"
    )
    parser.add_argument("--data", type=Path, help="a harvest, for the commands that need a language model")
    parser.add_argument("--out", type=Path, help="write the rows of these cases to the table in this folder")
    asked = parser.parse_args()
    rows = read_rows(asked.out) if asked.out else {}
    with tempfile.TemporaryDirectory() as scratch:
        cases = prepare_cases(Path(scratch), quick=asked.quick)
        cases += list_language_cases(Path(scratch), asked.data) if asked.data else []
        for case in cases:
            if any(name in case.name for name in asked.only):
                rows[case.name] = format_row(measure_peak(case))
                print(rows[case.name], flush=True)
                if asked.out:
                    write_rows(asked.out, "Forecasts of memory and time", HEAD, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
