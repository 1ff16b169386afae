"""Do two runs of an experiment say the same? For tables made with different kernels:

    OSAE_KERNEL=reference osae reproduce toy --seeds 5 --methods topk,osae --out runs/by-reference
    OSAE_KERNEL=cpu osae reproduce toy --seeds 5 --methods topk,osae --out runs/by-cpu
    python -m benchmarks.same_results runs/by-reference/results.json runs/by-cpu/results.json

Two means are the same when their 95 % intervals over seeds meet. Ends with 1 if any two are not.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Compared(NamedTuple):
    method: str
    measure: str
    a: Mapping[str, float]
    b: Mapping[str, float]

    @property
    def same(self) -> bool:
        return self.a["low"] <= self.b["high"] and self.b["low"] <= self.a["high"]


def compared(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Compared]:
    """Every measure of every method that stands in both results."""
    rows = {row["method"]: row for row in b["rows"]}
    for row in a["rows"]:
        other = rows.get(row["method"], {})
        for measure, numbers in row.items():
            if isinstance(numbers, dict) and "low" in numbers and measure in other:
                yield Compared(row["method"], measure, numbers, other[measure])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_results")
    parser.add_argument("results", type=Path, nargs=2, metavar="results.json")
    first, second = (json.loads(path.read_text()) for path in parser.parse_args(arguments).results)
    found = list(compared(first, second))
    for method, measure, a, b in found:
        print(f"{method:24s} {measure:26s} {a['mean']:9.5f} [{a['low']:9.5f}, {a['high']:9.5f}]   ", end="")
        print(f"{b['mean']:9.5f} [{b['low']:9.5f}, {b['high']:9.5f}]")
    apart = [one for one in found if not one.same]
    print(f"{len(found) - len(apart)} of {len(found)} measures agree within their intervals.")
    return 1 if apart or not found else 0


if __name__ == "__main__":
    sys.exit(main())
