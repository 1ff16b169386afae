import pytest

METHODS = ("topk", "topk-sorted", "matryoshka-fixed", "osae")


def measure(mean, std=0.01):
    return {"mean": mean, "std": std, "low": mean - std / 2, "high": mean + std / 2}


def row(method, quality, paper=None):
    return {
        "method": method,
        "stability_pairs": measure(quality),
        "stability_truth": measure(quality - 0.003, 0.0002),
        "orderedness_pairs": measure(2 * quality - 1),
        "orderedness_truth": measure(2 * quality - 1.01),
        "mse": measure(2.53e-4 / quality, 1.2e-5),
        "explained_variance": measure(quality),
        "dead": measure(0.0, 0.0),
        "fifr": measure(0.3 * (1 - quality), 0.001),
        "seconds": 41.2,
        "paper": paper,
    }


@pytest.fixture
def results():
    """What `osae reproduce toy` hands to the report, with awkward text in it."""
    published = {
        "label": "Fixed MSAE <1>",
        "stability_pairs": {"mean": 0.538, "std": 0.0114},
        "mse": {"mean": 0.0339, "std": 0.00635},
    }
    papers = {"matryoshka-fixed": published}
    return {
        "schema": 1,
        "experiment": "toy",
        "title": "Table 1 & <the Gaussian world>",
        "world": {"kind": "SparseWorld", "width": 80, "units": 100, "zipf": 1.2, "samples": 100_000},
        "seeds": [0, 1, 2],
        "chance": {"stability": 0.3124, "orderedness": 0.0},
        "rows": [row(name, 0.7 + 0.09 * i, papers.get(name)) for i, name in enumerate(METHODS)],
        "claims": [
            {"claim": "`osae` <b>is</b> | ahead.", "found": "0.97 & 0.70", "verdict": "holds in part"}
        ],
        "notes": ["osae is ahead.", "<script>alert('a | b')</script> and `code`"],
        "figures": [],
        "command": 'osae reproduce toy --out "a b"',
        "versions": {"osae": "0.1.0"},
    }


@pytest.fixture
def sections():
    """Three worlds with one table each, as the sweeps give them."""
    return [
        {
            "title": f"alpha {x}",
            "x": x,
            "world": {"kind": "SparseWorld", "zipf": x},
            "rows": [row(name, 0.7 + 0.09 * i - 0.1 * x) for i, name in enumerate(METHODS)],
        }
        for x in (0.0, 0.5, 1.0)
    ]
