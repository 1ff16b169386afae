"""Public measures give the same numbers for numpy arrays as for torch tensors."""

import dataclasses

import numpy as np
import pytest
import torch

from osae import metrics

GENERATOR = torch.Generator().manual_seed(0)
A, B = torch.randn(9, 4, generator=GENERATOR), torch.randn(12, 4, generator=GENERATOR)
X, Y = torch.randn(30, 4, generator=GENERATOR), torch.randn(30, 4, generator=GENERATOR)
VALUES = torch.rand(30, 3, generator=GENERATOR)
UNITS = torch.rand(30, 9, generator=GENERATOR).argsort(1)[:, :3]
DENSE = torch.zeros(30, 9).scatter(1, UNITS, VALUES)
OTHER = torch.rand(30, 12, generator=GENERATOR) * (torch.rand(30, 12, generator=GENERATOR) < 0.3)


def update(sums, *batch):
    sums.update(*batch)
    return sums


CALLS = {
    "stability": (metrics.stability, A, B),
    "orderedness": (metrics.orderedness, A, B),
    "consistency": (metrics.consistency, A, B),
    "prefix_consistency": (lambda a, b: metrics.prefix_consistency(a, b, [2, 5]), A, B),
    "match_atoms": (metrics.match_atoms, A, B),
    "match_atoms, sparse": (lambda a, b: metrics.match_atoms(a, b, method="sparse"), A, B),
    "match": (metrics.match, A @ B.T),
    "cosine": (metrics.cosine, A, B),
    "rank_correlation": (metrics.rank_correlation, torch.tensor([3, 1, 2]), torch.tensor([2, 1, 3])),
    "activation_similarity": (metrics.activation_similarity, DENSE, OTHER),
    "stream_stability": (metrics.stream_stability, DENSE, OTHER),
    "stream_orderedness": (metrics.stream_orderedness, DENSE, OTHER),
    "fifr, dense": (metrics.fifr, A, DENSE, B, OTHER),
    "fifr, sparse": (lambda a, v, u, b, z: metrics.fifr(a, (v, u), b, z), A, VALUES, UNITS, B, OTHER),
    "explained_variance": (metrics.explained_variance, X, Y),
    "mse": (metrics.mse, X, Y),
    "l0": (metrics.l0, VALUES),
    "dead_share": (lambda v, u: metrics.dead_share(v, u, 9), VALUES, UNITS),
    "frequency": (lambda v, u: metrics.frequency(v, u, 9), VALUES, UNITS),
    "explained_energy": (metrics.explained_energy, VALUES, UNITS, A, X),
    "greedy_order": (metrics.greedy_order, VALUES, UNITS, A, X),
    "stitching": (metrics.stitching, VALUES, UNITS, A, X),
    "coherence": (metrics.coherence, A),
    "unique_sparsity": (metrics.unique_sparsity, A),
    "spark_bound": (metrics.spark_bound, A),
    "restricted_isometry": (lambda a: metrics.restricted_isometry(a, 3, samples=9), A),
    "mean_interval": (metrics.mean_interval, X[:, 0]),
    "pair_interval": (metrics.pair_interval, X[:4]),
    "cross_interval": (metrics.cross_interval, X),
    "Reconstruction": (
        lambda *batch: update(metrics.Reconstruction(9), *batch).result(), X, Y, VALUES, UNITS,
    ),
    "FiringCounts": (lambda *batch: update(metrics.FiringCounts(9), *batch).histogram(), VALUES, UNITS),
    "PrefixCurve": (lambda a, *batch: update(metrics.PrefixCurve(a), *batch).mse(), A, VALUES, UNITS, X),
    "Stream": (
        lambda *batch: metrics.correlate(
            update(metrics.StreamRecorder(9), *batch[:2]).stream(),
            update(metrics.StreamRecorder(9), *batch[2:]).stream(),
        ),
        VALUES, UNITS, VALUES.flip(0), UNITS.flip(0),
    ),
}  # fmt: skip


def plain(result):
    """The numbers of any result, in one list."""
    if dataclasses.is_dataclass(result):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    if isinstance(result, tuple | list):
        return [number for one in result for number in plain(one)]
    if isinstance(result, torch.Tensor):
        return result.flatten().tolist()
    return [] if result is None else [result]


@pytest.mark.parametrize("name", CALLS)
def test_numpy_arrays_give_the_same_numbers(name):
    measure, *given = CALLS[name]
    expected = plain(measure(*given))
    assert plain(measure(*(one.numpy() for one in given))) == expected
    by_columns = plain(measure(*(np.asfortranarray(one.numpy()) for one in given)))
    assert by_columns == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_read_only_arrays_and_lists_are_taken_too():
    fixed = A.numpy().copy()
    fixed.flags.writeable = False
    assert metrics.stability(fixed, B.tolist()) == pytest.approx(metrics.stability(A, B), abs=1e-12)


def test_what_is_no_array_is_named():
    with pytest.raises(ValueError, match="b is of type Linear"):
        metrics.stability(A, torch.nn.Linear(2, 2))  # pyright: ignore
    with pytest.raises(ValueError, match=r"\(30, 4\) and its reconstruction \(9, 4\)"):
        metrics.explained_variance(X, A)
