import pytest

from osae.results import ExperimentResult, Interval
from osae.results.experiment import Claim, MethodRow, PublishedRow, Section

METHODS = ("topk", "topk-sorted", "matryoshka-fixed", "osae")


def interval(mean, std=0.01):
    return Interval(mean, std, mean - std / 2, mean + std / 2)


def method_row(method, quality, paper=None):
    measures = {
        "stability_pairs": interval(quality),
        "stability_truth": interval(quality - 0.003, 0.0002),
        "orderedness_pairs": interval(2 * quality - 1),
        "orderedness_truth": interval(2 * quality - 1.01),
        "mse": interval(2.53e-4 / quality, 1.2e-5),
        "explained_variance": interval(quality),
        "dead": interval(0.0, 0.0),
        "fifr": interval(0.3 * (1 - quality), 0.001),
        "seconds": 41.2,
    }
    return MethodRow(method, paper, measures=measures)


@pytest.fixture
def experiment():
    """What an experiment hands to the report, with awkward text in it."""
    numbers = {"stability_pairs": Interval(0.538, 0.0114), "mse": Interval(0.0339, 0.00635)}
    papers = {"matryoshka-fixed": PublishedRow("Fixed MSAE <1>", numbers)}
    return ExperimentResult(
        experiment="toy",
        title="Table 1 & <the Gaussian world>",
        world={"kind": "SparseWorld", "width": 80, "units": 100, "zipf": 1.2, "samples": 100_000},
        seeds=(0, 1, 2),
        chance={"stability": 0.3124, "orderedness": 0.0},
        rows=tuple(method_row(name, 0.7 + 0.09 * i, papers.get(name)) for i, name in enumerate(METHODS)),
        claims=(Claim("`osae` <b>is</b> | ahead.", "holds in part", "0.97 & 0.70"),),
        notes=("osae is ahead.", "<script>alert('a | b')</script> and `code`"),
        command='osae reproduce toy --out "a b"',
        versions={"osae": "0.1.0"},
    )


@pytest.fixture
def sections():
    """Three worlds with one table each, as the sweeps give them."""
    return tuple(
        Section(
            title=f"alpha {x}",
            rows=tuple(method_row(name, 0.7 + 0.09 * i - 0.1 * x) for i, name in enumerate(METHODS)),
            world={"kind": "SparseWorld", "zipf": x},
            x=x,
        )
        for x in (0.0, 0.5, 1.0)
    )
