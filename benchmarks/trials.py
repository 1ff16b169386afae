"""Run the trials of a plan and append one line each to a file; trials already in the file are skipped."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from osae.config import to_json

Record = dict[str, Any]


def read_trials(file: Path) -> list[Record]:
    """Return the trials in a file; none if there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def identify(record: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the values that identify a trial, as text; a key that it lacks counts as null."""
    return json.dumps([record.get(key) for key in keys], sort_keys=True)


def run_missing(
    file: Path,
    planned: Iterable[Mapping[str, Any]],
    run: Callable[[Mapping[str, Any]], Record],
    keys: Sequence[str],
) -> None:
    """Run the planned trials that are not in the file, and append each to the file when it ends.

    `keys` identify a trial, and are also keys of its record. `run` receives plain data.
    """
    done = {identify(record, keys) for record in read_trials(file)}
    for trial in (json.loads(json.dumps(to_json(dict(each)))) for each in planned):
        if identify(trial, keys) in done:
            continue
        record = run(trial)
        done.add(identify(record, keys))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps(record) + "\n")
        print(*(record.get(key) for key in keys), record["measures"], record["cpu_seconds"], flush=True)


def round_measures(found: Mapping[str, float]) -> dict[str, float]:
    """Return the measures rounded to the digits that are stored."""
    return {key: round(value, 5) for key, value in found.items()}


def format_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def make_parser(description: str | None, plans: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of a command that runs a plan; from here on, use a single thread."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("plan", choices=sorted(plans))
    parser.add_argument("file", type=Path)
    return parser
