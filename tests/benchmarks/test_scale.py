"""What large runs need: numbers that can be checked by hand."""

import pytest

from benchmarks.scale import DEVICES, Plan, forecast, main, tabulate_gemma

PLAN = Plan(width=1000, units=10_000, k=100, tokens=1e6, batch=1000, device=DEVICES["a100"], devices=1)


def test_flop_are_those_of_the_product_and_of_the_active_entries():
    assert forecast(PLAN).flop == 1e6 * (2 * 10_000 * 1000 + 2 * 5 * 100 * 1000)


def test_sharing_units_shares_weights_and_sharing_rows_does_not():
    weights = 4 * 2 * 10_000 * 1000 * 4  # itself, gradient and moments of encoder and decoder, in float32
    alone, rows, units = (
        forecast(Plan(1000, 10_000, 100, 1e6, 1000, DEVICES["a100"], devices, ranks))
        for devices, ranks in ((1, 1), (8, 1), (8, 8))
    )
    assert weights < rows.memory < alone.memory < 1.2 * weights
    assert weights / 8 < units.memory < weights / 4
    assert alone.hours["link"] == 0
    assert rows.hours["products"] == units.hours["products"] == pytest.approx(alone.hours["products"] / 8)
    assert rows.hours["link"] * 3600 / 1000 == pytest.approx(4 * (4 * 10_000 * 1000 + 4 * 10_000) / 600e9)


def test_what_saturates_first_is_what_takes_longest():
    slow = Plan(1000, 10_000, 100, 1e6, 1000, DEVICES["a100"], 1, disk=1e3)
    assert forecast(slow).bottleneck == "disk"
    assert forecast(slow).longest == pytest.approx(1e6 * 1000 * 2 / 1e3 / 3600)
    assert forecast(PLAN).bottleneck == "memory"


def test_the_command_prints_a_table_and_the_page_has_both_sizes(capsys):
    assert main(["--units", "65536", "--tokens", "1e10", "--device", "a100"]) == 0
    assert "| 65,536 | 1 A100 80 GB | 1 x 1 |" in capsys.readouterr().out
    assert "| 1,048,576 | 64 H100 SXM | 8 x 8 |" in tabulate_gemma()
    with pytest.raises(SystemExit):
        main(["--units", "10", "--tokens", "1", "--devices", "3", "--dictionary-ranks", "2"])
