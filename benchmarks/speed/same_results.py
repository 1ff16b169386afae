"""Check whether two runs of an experiment agree, for example with different kernels:

    OSAE_KERNEL=reference osae reproduce toy --seeds 5 --methods topk,osae --out runs/by-reference
    OSAE_KERNEL=cpu osae reproduce toy --seeds 5 --methods topk,osae --out runs/by-cpu
    python -m benchmarks.speed.same_results runs/by-reference/results.json runs/by-cpu/results.json

Two means agree if their 95 % intervals over seeds overlap. The exit code is 1 if any pair does not.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from osae import results
from osae.results import ExperimentResult, Interval


class Comparison(NamedTuple):
    """One measure of one method in both results."""

    method: str
    measure: str
    a: Interval
    b: Interval

    @property
    def same(self) -> bool:
        """Return whether the intervals overlap."""
        (low_a, high_a), (low_b, high_b) = self.a.ends(), self.b.ends()
        return low_a <= high_b and low_b <= high_a


def compare_measures(a: ExperimentResult, b: ExperimentResult) -> Iterator[Comparison]:
    """Yield every measure with an interval that a method has in both results."""
    there = b.by_method()
    for method, row in a.by_method().items():
        others = there[method].measures if method in there else {}
        for key, number in row.measures.items():
            if isinstance(number, Interval) and isinstance(other := others.get(key), Interval):
                yield Comparison(method, key, number, other)


def read_experiment(path: Path) -> ExperimentResult:
    """Return the result in a file; raise `ValueError` if it is not the result of an experiment."""
    found = results.read(path)
    if not isinstance(found, ExperimentResult):
        raise ValueError(
            f"{path} is not the result of an experiment: give a results.json of `osae reproduce`."
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both results side by side; return 1 if they disagree anywhere."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.same_results")
    parser.add_argument("results", type=Path, nargs=2, metavar="results.json")
    first, second = map(read_experiment, parser.parse_args(arguments).results)
    found = list(compare_measures(first, second))
    for method, key, *sides in found:
        texts = [f"{side.mean:9.5f} [{side.ends()[0]:9.5f}, {side.ends()[1]:9.5f}]" for side in sides]
        print(f"{method:24s} {key:26s} {'   '.join(texts)}")
    apart = [one for one in found if not one.same]
    print(f"{len(found) - len(apart)} of {len(found)} measures agree within their intervals.")
    return 1 if apart or not found else 0


if __name__ == "__main__":
    sys.exit(main())
