"""Bad numbers in activations of every type: refused or used, as the table in docs/reliability.md says."""

import json
import math
import random
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from osae.data.shards import MANIFEST
from osae.files import CHECKSUM, file_sha256
from osae.training.simple import fit
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally
from tests.faults.requests import ask

ROOT = Path(__file__).parents[2]
WIDTH, ROWS = 16, 240
REFUSED, USED = "refused", "used"


def _at(value: float) -> Callable[[Tensor], Tensor]:
    def put(rows: Tensor) -> Tensor:
        rows[7, 3] = value
        return rows

    return put


def _scale(factor: float, *places: int) -> Callable[[Tensor], Tensor]:
    def put(rows: Tensor) -> Tensor:
        chosen = list(places) or slice(None)
        rows[chosen] = rows[chosen] / rows[chosen].norm(dim=1, keepdim=True) * factor
        return rows

    return put


KINDS: Mapping[str, Callable[[Tensor], Tensor]] = {  # as in the table of the documentation
    "NaN": _at(math.nan),
    "infinity": _at(math.inf),
    "beyond the type or single precision": _at(1e300),
    "a row of norm 1e30": _scale(1e30, 7),
    "all rows of norm 1e30": _scale(1e30),
    "denormals": _scale(1e-40),
    "constant rows": lambda rows: rows[:, :1].expand_as(rows).clone(),
    "duplicate rows": lambda rows: rows[: len(rows) // 4].repeat(5, 1)[: len(rows)],
    "one row repeated": lambda rows: rows[:1].repeat(len(rows), 1),
    "zeros": torch.zeros_like,
    "whole numbers": lambda rows: (10 * rows).round(),
}
TYPES = ("float32", "float64", "float16", "bfloat16")
HARVESTED = ("float32", "float16", "bfloat16")  # types that `osae harvest` writes
COMMANDS = ("train", "fit", "evaluate", "compare", "order", "stitch", "contexts")


def make_rows(kind: str, dtype: str) -> Tensor:
    """Rows of this type with these numbers, as far as it can hold them."""
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return KINDS[kind](rows).to(getattr(torch, dtype))


def write_rows(folder: Path, rows: Tensor) -> Path:
    """The rows as a file that users would have."""
    if rows.dtype == torch.bfloat16:
        save_file({"activations": rows}, folder / "x.safetensors")
        return folder / "x.safetensors"
    np.save(folder / "x.npy", rows.numpy())
    return folder / "x.npy"


def read_promises() -> dict[tuple[str, str, str], str]:
    """What the documentation says about numbers, types and commands."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    table = text.partition("| numbers |")[2].partition("\n\n")[0].splitlines()
    commands = [cell.strip(" `") for cell in table[0].split("|") if cell.strip()]
    found = {}
    for line in table[2:]:
        kind, types, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for dtype in TYPES if types == "all" else re.findall(r"\w+", types):
            for command, cell in zip(commands[1:], cells, strict=True):
                if command != "contexts" or dtype in HARVESTED:
                    found[kind, dtype, command] = cell
    return found


class Bench:
    """SAEs and a harvest to try numbers with."""

    def __init__(self, folder: Path):
        from tests.faults.kills import prepare_harvest
        from tests.studies.saes import noise, save_sae

        self.folder = folder
        self.saes = [str(save_sae(folder / f"sae{n}", noise(8 * (1 + n), WIDTH, n))) for n in range(2)]
        code, _, error = ask([str(w) for w in prepare_harvest(folder / "text", tokens=300)(folder / "acts")])
        assert code == 0, error

    def try_numbers(self, kind: str, dtype: str, command: str) -> str:
        """How it ends: refused, used, or what is wrong; a warning counts as wrong."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        (self.folder / "out").mkdir()
        rows = make_rows(kind, dtype)
        if command == "fit":
            return self._fit(rows)
        data = self._plant(rows) if command == "contexts" else write_rows(self.folder, rows)
        result = self.folder / "out" / "result.json"
        code, _, error = ask(self._words(command, str(data), str(result)))
        lines = [line for line in error.splitlines() if line.startswith("osae: ")]
        if code == 2 and len(lines) == 1 and str(data) in lines[0]:
            return REFUSED
        if code != 0 or "Traceback" in error or "warning" in error.lower():
            return f"exit code {code}: {error[-400:]}"
        wrong = sorted(name for name, number in self._written() if not math.isfinite(number))
        return f"not finite: {wrong[:3]}" if wrong else USED

    def _fit(self, rows: Tensor) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                sae = fit("osae", rows, units=12, k=2, samples=600, batch=30, progress=False)
        except ValueError as error:
            return REFUSED if "row" in str(error) or "step" in str(error) else str(error)
        finite = all(bool(tensor.isfinite().all()) for tensor in sae.state_dict().values())
        return USED if finite else "weights that are not finite"

    def _words(self, command: str, data: str, result: str) -> list[str]:
        out = str(self.folder / "out" / "made")
        small, large = self.saes
        train = ["--units", "12", "--k", "2", "--batch", "30", "--epochs", "3", "--device", "cpu"]
        return {
            "train": ["train", "osae", "--data", data, *train, "--out", out],
            "evaluate": ["evaluate", large, "--data", data, "--json", result],
            "compare": ["compare", small, large, "--data", data, "--chance", "isotropic", "--json", result],
            "order": ["order", large, "--data", data, "--out", out],
            "stitch": ["stitch", small, large, "--data", data, "--json", result],
            "contexts": ["contexts", large, "--data", data, "--model", "none", "--out", out],
        }[command]

    def _plant(self, rows: Tensor) -> Path:
        """A harvest with these rows in place of its own."""
        target = self.folder / "planted"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder / "acts", target)
        about = json.loads((target / MANIFEST).read_text())
        about.pop(CHECKSUM)
        start = 0
        for entry in about["shards"]:
            held = load_file(target / entry["file"])
            count = len(held["activations"])
            held["activations"] = rows[torch.arange(start, start + count) % len(rows)].contiguous()
            start += count
            save_file(held, target / entry["file"])
            entry["sha256"] = file_sha256(target / entry["file"])
        about["dtype"] = str(rows.dtype).removeprefix("torch.")
        (target / MANIFEST).write_text(json.dumps(about))
        return target

    def _written(self) -> Iterator[tuple[str, float]]:
        """Every number in the files that the command wrote, with the name of its file."""
        for path in (self.folder / "out").rglob("*"):
            if path.suffix in (".json", ".jsonl"):
                for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                    for number in _numbers_in(json.loads(line)):
                        yield path.name, number
            if path.suffix == ".safetensors":
                for tensor in load_file(path).values():
                    yield path.name, 0.0 if bool(tensor.double().isfinite().all()) else math.nan


def _numbers_in(held: Any) -> Iterator[float]:
    if isinstance(held, dict | list):
        for inside in held.values() if isinstance(held, dict) else held:
            yield from _numbers_in(inside)
    elif isinstance(held, float):
        yield held


def feed_numbers(count: int, folder: Path, seed: int = 0) -> Tally:
    """Each of the numbers in each type through each command: as promised, without NaN in any result."""
    tally, promises = Tally("bad numbers in every type and command"), read_promises()
    folder.mkdir(parents=True)
    bench = Bench(folder)
    for kind, dtype, command in random.Random(seed).sample(sorted(promises), min(count, len(promises))):
        end = bench.try_numbers(kind, dtype, command)
        ends = {REFUSED: DETECTED, USED: SURVIVED}
        fine = end == promises[kind, dtype, command]
        tally.add(ends[end] if fine else LOST, f"{kind}, {dtype}, {command}: {end}")
    return tally
