import numpy as np
import pytest

from osae.report import figures


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


def test_seed_pair_panel_of_silent_units(tmp_path):
    nothing = [np.zeros((4, 50))] * 3
    same = [np.eye(4)] * 3
    data = {"title": "dead", "rasters": nothing, "pearson": same, "cosine": same}
    figures.seed_pair_panel(data, tmp_path / "panel.png")
    pixels(tmp_path / "panel.png")


def test_sweep_draws_every_measure_even_where_some_are_missing(sections, tmp_path):
    del sections[1]["rows"][0]["mse"]
    sections[2]["rows"][1]["fifr"] = None
    figures.sweep(sections, figures.SIX, tmp_path / "sweep.png")
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


def test_bars_with_intervals(results, tmp_path):
    keys = ("stability_truth", "mse")
    figures.bars_with_intervals(results["rows"], keys, tmp_path / "bars.png", chance=results["chance"])
    pixels(tmp_path / "bars.png")


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
