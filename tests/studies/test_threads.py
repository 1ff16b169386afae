"""The results of studies have the same bits on any number of threads, whatever their sizes."""

import json

import pytest
import torch

from osae import compare, evaluate, order, prune, stitch
from osae.model import SAE, SAEConfig
from osae.sparsify import ReLU, TopK

SIZES = [
    (37, 35, 1888, 4),
    (70, 338, 1195, 7),
    (313, 33, 910, 3),
    (300, 2100, 1500, 20),
]  # some products differ


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def make_sae(width, units, seed, sparsifier):
    return SAE(SAEConfig(width, units, sparsifier), generator=torch.Generator().manual_seed(seed))


STUDIES = {
    "evaluate": lambda a, b, dense, x: evaluate([a, dense], data=x),
    "compare": lambda a, b, dense, x: compare([a, b], data=x, chance_draws=1),
    "order": lambda a, b, dense, x: order(a, data=x),
    "stitch": lambda a, b, dense, x: stitch(a, b, data=x),
    "prune": lambda a, b, dense, x: prune(a, data=x, others=[a], model="none"),
}


@pytest.mark.parametrize("study", STUDIES)
def test_threads_change_no_bit_of_a_result(study, set_threads):
    for width, units, rows, k in SIZES:
        a, b = (make_sae(width, units, seed, TopK(k)) for seed in (0, 1))
        dense = make_sae(width, units, 2, ReLU(0.1))
        x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
        found = []
        for threads in (1, 2, 3):
            set_threads(threads)
            result = STUDIES[study](a, b, dense, x).to_json()
            result.pop("provenance")
            found.append(json.dumps(result))
        assert found[0] == found[1] == found[2], (width, units, rows)
