"""Figures become small copies."""

from PIL import Image

from benchmarks.documentation.images import COLOURS, WIDTH, main


def test_a_large_figure_becomes_small(tmp_path):
    source = tmp_path / "figure.png"
    Image.linear_gradient("L").resize((2 * WIDTH, 400)).convert("RGB").save(source)
    (tmp_path / "out").mkdir()
    assert main([str(source), str(tmp_path / "out")]) == 0
    with Image.open(tmp_path / "out" / "figure.png") as small:
        assert small.size == (WIDTH, 200)
        assert len(small.getcolors()) <= COLOURS
