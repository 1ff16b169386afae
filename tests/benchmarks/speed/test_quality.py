"""Time to quality: curves of trainers on the same activations."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks.speed import quality, quality_ours
from benchmarks.speed.curves import POINTS, Curve, draw_batches, load_rows
from benchmarks.speed.pipe import Shape
from osae.prefix import Mixed
from osae.recipes import FromNoise


def test_our_entries_learn_and_their_curves_say_so():
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randn(12, 8, generator=generator)
    code = torch.rand(600, 12, generator=generator) * (torch.rand(600, 12, generator=generator) < 0.2)
    rows, held = (code @ atoms).split([500, 100])
    for name in quality.OURS:
        points = quality_ours.follow(name, Shape(50, 8, 16, 4), rows, held, 120).points
        assert len(points) == POINTS - 2  # the first few fall on the same steps
        assert points[-1].samples == 120 * 50
        assert [p.seconds for p in points] == sorted(p.seconds for p in points)
        assert points[-1].explained_variance > 0.5


def test_a_curve_measures_explained_variance_and_not_its_own_time():
    held = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    curve = Curve(held, lambda x: x.mean(0).expand_as(x), Shape(10, 4, 8, 2), steps=24)
    for step in range(1, 25):
        curve.after(step)
    assert [point.samples for point in curve.points] == [10, 20, 30, 40, 60, 80, 120, 170, 240]
    assert curve.points[0].explained_variance == pytest.approx(0, abs=1e-5)
    assert len(curve.products) == len(curve.points)


def test_every_row_is_seen_once_in_an_epoch():
    batches = draw_batches(torch.zeros(10, 1), batch=5, steps=4)
    assert [sorted(torch.cat(batches[i : i + 2]).tolist()) for i in (0, 2)] == [list(range(10))] * 2


def test_the_time_to_a_level_lies_between_the_points_around_it():
    points = [(1.0, 10, 0.2), (3.0, 20, 0.6)]
    assert quality.find_time(points, 0.4) == pytest.approx(2.0)
    assert quality.find_time(points, 0.1) == 1.0  # before the first point, nothing is known
    assert quality.find_time(points, 0.7) is None


def test_the_table_compares_with_the_best_of_each_curve():
    ours = {"factor": 3.0, "product_ms": 1.0, "points": [(1.0, 10, 0.2), (3.0, 20, 0.6)]}
    peer = {"factor": 3.0, "product_ms": 2.0, "points": [(8.0, 20, 0.4), (9.0, 30, 0.3)]}
    result = {"entries": {"osae-exact": ours, "osae-topk": ours, "peer": peer}}
    assert "| `peer` | 3 x | 0.4000 | 8.0 | 2.0 | 2.0 | 2.0 |" in quality.format_markdown(result)


def test_settings_for_constant_k_are_those_of_the_documentation():
    plain, constant = (
        quality_ours.make_member(f"osae-topk{kind}", Shape(50, 8, 16, 4), torch.randn(100, 8), 10, 1.0).recipe
        for kind in ("", "-constant-k")
    )
    assert plain.k_warmup is not None
    rate = replace(plain.lr, decay=0.2)
    assert constant == replace(plain, start=FromNoise(), k_warmup=None, lr=rate)


def test_settings_with_more_weight_on_the_whole_dictionary_differ_in_nothing_else():
    plain, more = (
        quality_ours.make_member(name, Shape(50, 8, 16, 4), torch.randn(100, 8), 10, 1.0).recipe
        for name in ("osae-aligned", "osae-aligned-95")
    )
    assert isinstance(plain.prefix, Mixed)
    assert more == replace(plain, prefix=replace(plain.prefix, full=0.95)) != plain


def test_trials_see_the_first_rows_only(tmp_path):
    rows = torch.arange(12.0).view(6, 2)
    torch.save({"rows": rows, "held": rows[:2]}, tmp_path / "rows.pt")
    found, held = load_rows(str(tmp_path / "rows.pt"), 4)
    assert torch.equal(found, rows[:4])
    assert torch.equal(held, rows[:2])


def test_entries_of_an_earlier_run_of_the_same_size_are_kept(tmp_path):
    path, size = tmp_path / "quality.json", {"shape": {"B": 5}, "steps": 9}
    assert quality._keep(path, size) == {}
    path.write_text(json.dumps({**size, "entries": {"peer": 1}}))
    assert quality._keep(path, size) == {"peer": 1}
    assert quality._keep(path, {**size, "steps": 10}) == {}
