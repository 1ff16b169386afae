"""Units of a larger SAE added to a smaller one, with known answers."""

import json
import math

import pytest
import torch

from osae import metrics
from osae.sparsify import JumpReLU
from osae.studies.stitch import stitch
from tests.studies.checks import RELEASED, check, walk_missing
from tests.studies.saes import make_sae


def test_the_unit_that_is_missing_in_the_small_sae_is_the_novel_one():
    # orthonormal atoms and exact codes, so that every other unit repeats what is there
    atoms, missing = torch.eye(24), 5
    x = torch.rand(500, 24, generator=torch.Generator().manual_seed(0)) + 0.1
    large = make_sae(atoms, JumpReLU(threshold=0.01))
    small = make_sae(torch.cat([atoms[:missing], atoms[missing + 1 :]]), JumpReLU(threshold=0.01))
    result = check(stitch(small, large, x))
    (unit,) = result.most_novel
    assert unit.unit == missing
    assert unit.share_of_error == pytest.approx(1.0)
    assert unit.cosine == pytest.approx(0.0, abs=1e-6)
    assert (result.novel, result.reconstruction, result.unchanged) == pytest.approx((1 / 24, 23 / 24, 0))
    assert result.error == pytest.approx(float(x[:, missing].square().mean()), rel=1e-5)
    assert result.change[missing] == pytest.approx(-result.error)
    residual = x - small(x).reconstruction.detach()
    expected = metrics.stitching(*large.encode(x), large.decoder, residual)
    assert result.change == pytest.approx((expected.change / 500).tolist())
    assert all(math.isfinite(value) for value in result.frequency)
    shares, units = result.tables()
    assert shares.rows[0].values["novel"] == result.novel
    assert [row.label for row in units.rows] == ["5"]
    assert result.records()[missing]["nearest"] == unit.nearest
    assert "4.2 % lower the error" in repr(result)


def test_a_stitching_has_every_key_of_release_0_1_0_and_its_numbers(monkeypatch):
    old = json.loads((RELEASED / "stitch.json").read_text())
    monkeypatch.chdir(RELEASED)
    result = check(stitch(old["small"]["path"], old["large"]["path"], "shards"))
    del old["provenance"]["command"], old["provenance"]["date"]  # of the command line only
    assert list(walk_missing(old, json.loads(json.dumps(result.to_json())))) == []
    assert len(result.tables()) == 1  # no unit is novel


def test_an_sae_that_cannot_be_run_is_refused():
    x = torch.rand(10, 4)
    with pytest.raises(ValueError, match="only its matrices could be read: it has a decoder only"):
        stitch(torch.eye(4), make_sae(torch.eye(4)), x)
    with pytest.raises(ValueError, match="has width 5, but in memory has width 4"):
        stitch(make_sae(torch.eye(4)), make_sae(torch.eye(5)), x)
