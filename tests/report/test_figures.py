"""Figures of any measures, drawn from results whatever text they hold."""

from dataclasses import replace

import numpy as np
import pytest

from osae.experiments.methods import MATRYOSHKA
from osae.measures import Measure, added
from osae.report import figures, plots
from osae.results import Interval
from osae.results.experiment import MethodRow, PublishedRow, Section

SIX = ("stability_truth", "orderedness_truth", "mse", "stability_pairs", "orderedness_pairs", "fifr")
AWKWARD = ("$\\frac$", "a$b$c", "_hidden", "\x1b[2J", "漢字", "x" * 5000)


def pixels(path):
    """The image as height x width x channels, checked to be a PNG of sane size that shows something."""
    from matplotlib.image import imread

    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    image = imread(path)[..., :3]
    assert 300 < image.shape[0] < 3000
    assert 300 < image.shape[1] < 3000
    assert image.std() > 0.02
    assert not list(path.parent.glob(".*.part"))
    return image


def colours(image):
    return len(np.unique((image * 255).astype(np.int32) @ [1, 256, 65536]))


def matching(seed, units=30):
    rng = np.random.default_rng(seed)
    return {
        "title": f"method {seed}",
        "left": np.arange(units),
        "right": rng.permutation(units),
        "similarity": rng.uniform(-0.1, 1, units),
        "units": units,
        "stability": 0.9,
        "orderedness": 0.5,
    }


def test_matching_scatter_of_more_methods_than_fit_in_a_row(tmp_path):
    figures.matching_scatter([matching(seed) for seed in range(5)], tmp_path / "matching.png")
    assert colours(pixels(tmp_path / "matching.png")) > 100


def test_seed_pair_panel_of_signed_codes_and_of_more_units_than_atoms(tmp_path):
    rng = np.random.default_rng(0)
    codes = [rng.standard_normal((20, 50)) * (rng.random((20, 50)) < 0.2) for _ in range(3)]
    data = {
        "title": "osae",
        "rasters": codes,
        "pearson": [rng.uniform(-1, 1, (20, 20)) for _ in range(3)],
        "cosine": [rng.uniform(-1, 1, (20, 24)) for _ in range(3)],
    }
    figures.seed_pair_panel(data, tmp_path / "panel.png")
    assert colours(pixels(tmp_path / "panel.png")) > 100


def test_seed_pair_panel_of_dead_units(tmp_path):
    nothing = [np.zeros((4, 50))] * 3
    same = [np.eye(4)] * 3
    data = {"title": "dead", "rasters": nothing, "pearson": same, "cosine": same}
    figures.seed_pair_panel(data, tmp_path / "panel.png")
    pixels(tmp_path / "panel.png")


def without(section, place, key):
    """The section with a number missing."""
    row = section.rows[place]
    measures = {name: value for name, value in row.measures.items() if name != key}
    rows = [replace(row, measures=measures) if each is row else each for each in section.rows]
    return replace(section, rows=tuple(rows))


def test_sweep_draws_every_measure_even_where_some_are_missing(sections, tmp_path):
    sections = (sections[0], without(sections[1], 0, "mse"), without(sections[2], 1, "fifr"))
    figures.sweep(sections, SIX, tmp_path / "sweep.png")
    figures.sweep(sections, ("mse",), tmp_path / "one.png", title="One measure", x_label="units")
    assert pixels(tmp_path / "sweep.png").shape[1] > pixels(tmp_path / "one.png").shape[1]


def test_lines_by_prefix_with_and_without_bands_and_chance(tmp_path):
    prefix = [16, 32, 64, 100]
    mean = [0.1, 0.4, 0.5, 0.6]
    banded = {
        "prefix": prefix,
        "mean": mean,
        "low": [m - 0.05 for m in mean],
        "high": [m + 0.05 for m in mean],
    }
    curves = {
        "stability": {"osae": banded, "my own": {"prefix": prefix, "mean": mean}},
        "orderedness": {"osae": banded},
    }
    chance = {"stability": {"prefix": prefix, "mean": [0.2] * 4}, "orderedness": 0.0}
    figures.lines_by_prefix(curves, tmp_path / "with.png", chance=chance)
    figures.lines_by_prefix(curves, tmp_path / "without.png")
    assert pixels(tmp_path / "with.png").shape == pixels(tmp_path / "without.png").shape


def test_the_spread_by_chance_is_drawn_as_a_band(tmp_path):
    prefix, zero = (16, 64), (0.0, 0.0)
    spread = {"prefix": prefix, "mean": zero, "low": (-0.26, -0.13), "high": (0.26, 0.13)}
    curves = {"orderedness": {"osae": {"prefix": prefix, "mean": (0.5, 0.6)}}}
    figures.lines_by_prefix(curves, tmp_path / "band.png", chance={"orderedness": spread})
    bare = {"orderedness": {"prefix": prefix, "mean": zero}}
    figures.lines_by_prefix(curves, tmp_path / "line.png", chance=bare)
    band, line = (pixels(tmp_path / f"{name}.png") for name in ("band", "line"))
    assert band.shape == line.shape
    assert (band != line).any(-1).mean() > 0.01
    (panel,) = plots.plot_prefixes(curves, title="", chance={"orderedness": spread}).panels
    assert (panel.lines[-1].low, panel.lines[-1].high) == (spread["low"], spread["high"])


def test_lines_by_prefix_leave_out_what_was_not_measured(tmp_path):
    line = {
        "prefix": [1, 2, 4],
        "mean": [None, 0.4, 0.5],
        "low": [None, 0.3, None],
        "high": [None, 0.5, None],
    }
    bare = {"prefix": (1, 2, 4), "mean": (0.1, 0.2, 0.3), "low": None, "high": None}
    figures.lines_by_prefix({"orderedness": {"a": line, "b": bare}}, tmp_path / "lines.png")
    pixels(tmp_path / "lines.png")


def test_bars_with_intervals(experiment, tmp_path):
    keys = ("stability_truth", "mse")
    figures.bars_with_intervals(experiment.rows, keys, tmp_path / "bars.png", chance=experiment.chance)
    pixels(tmp_path / "bars.png")


def test_figures_draw_any_measure(tmp_path):
    rows = tuple(
        MethodRow(name, measures={"angle": value}) for name, value in (("a", 0.1), ("b", Interval(0.2)))
    )
    with added(Measure("angle", "Angle", "angle of the units", better="low")):
        figures.bars_with_intervals(rows, ("angle",), tmp_path / "bars.png")
        figures.sweep((Section("", rows, x=1.0),), ("angle", "never_heard_of"), tmp_path / "sweep.png")
        line = {"prefix": [1, 2], "mean": [0.1, 0.2]}
        figures.lines_by_prefix({"angle": {"a": line}}, tmp_path / "lines.png")
        figures.matching_scatter([matching(0) | {"angle": 0.25}], tmp_path / "matching.png")
    for name in ("bars", "sweep", "lines", "matching"):
        pixels(tmp_path / f"{name}.png")


@pytest.mark.parametrize("name", AWKWARD)
def test_no_name_is_taken_for_a_formula_or_left_out_of_the_legend(name, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "_legend_below", _spy(figures._legend_below, drawn))
    paper = PublishedRow(name, {"mse": 1.0})
    row = MethodRow(name, paper, measures={"mse": 1.0})
    figures.matching_scatter([matching(0) | {"title": name}], tmp_path / "a.png", title=name, x_label=name)
    figures.bars_with_intervals((row,), ("mse",), tmp_path / "b.png", title=name)
    figures.sweep((Section(name, (row,), x=1.0),), ("mse",), tmp_path / "c.png", title=name, x_label=name)
    lines = {name: ([1, 2], [1, 2]), "other": ([1, 2], [2, 1])}
    figures.curve(lines, tmp_path / "d.png", title=name, x_label=name, y_label=name)
    assert len(drawn[1]) == 1  # the sweep's one method


def _spy(function, drawn):
    def spy(figure, grid):
        function(figure, grid)
        drawn.append([text.get_text() for legend in figure.legends for text in legend.get_texts()])

    return spy


def test_curve_on_log_axes(tmp_path):
    x = np.arange(1, 100)
    lines = {"osae": (x, 1.0 / x), "topk": (x, 2.0 / x)}
    words = {"title": "Loss during training", "x_label": "step", "y_label": "loss"}
    figures.curve(lines, tmp_path / "log.png", **words, log_x=True, log_y=True)
    figures.curve(lines, tmp_path / "linear.png", **words)
    assert (pixels(tmp_path / "log.png") != pixels(tmp_path / "linear.png")).any()


def test_the_same_input_gives_the_same_file(tmp_path):
    for name in ("a.png", "b.png"):
        figures.matching_scatter([matching(0)], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_figure_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "matching.png"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        figures.matching_scatter([{"title": "no numbers", "similarity": [1.0]}], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_method_looks_the_same_in_every_figure():
    assert figures.looks(["osae", "mine"])["osae"] == figures.looks(["topk", "osae"])["osae"]
    many = figures.looks(f"recipe {i}" for i in range(24))
    assert len(set(many.values())) == 24


def test_methods_on_language_models_have_a_colour_each():
    names = ("topk", "topk-sorted", *MATRYOSHKA, "matryoshka-piecewise", "osae-paper", "osae", "untrained")
    assert len({look.color for look in figures.looks(names).values()}) == len(names)
