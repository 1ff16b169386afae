"""F1 of units as detectors, against precision and recall counted one unit at a time."""

import pytest
import torch

from osae import metrics


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    source = torch.Generator().manual_seed(0)
    decoder, atoms = torch.randn(7, 5, generator=source), torch.randn(6, 5, generator=source)
    fires = torch.rand(200, 7, generator=source) < 0.3
    present = torch.rand(200, 6, generator=source) < 0.3
    scores = []
    for unit in range(7):
        nearest = max(range(6), key=lambda a: abs(float(metrics.cosine(decoder, atoms)[unit, a])))
        hits = sum(bool(fires[n, unit] and present[n, nearest]) for n in range(200))
        precision, recall = hits / int(fires[:, unit].sum()), hits / int(present[:, nearest].sum())
        scores.append(2 * precision * recall / (precision + recall))
    found = metrics.detection_f1(decoder, fires, atoms, present)
    assert found == pytest.approx(sum(scores) / 7)


def test_a_unit_that_never_fires_scores_zero_and_a_perfect_one_scores_one():
    atoms = torch.eye(3)
    present = torch.rand(50, 3) < 0.5
    fires = present.clone()
    fires[:, 2] = False
    present[:, 2] = False
    assert metrics.detection_f1(-atoms, fires, atoms, present) == pytest.approx(2 / 3)
