"""Efficiency is what several processes gain over one, divided by their number."""

from benchmarks.speed.ranks import HEAD, WAYS, Cost, format_row


def test_twice_the_speed_of_one_on_two_processes_is_an_efficiency_of_one():
    costs = (Cost(0.5, 0.4), Cost(0.25, 0.5), Cost(0.5, 0.8))  # seconds of a step
    least = dict(zip(WAYS, costs, strict=True))
    row = format_row(4096, 2048, least, 2)
    assert row == "| 4,096 | 2,048 | 2 | 4 | 2 | 1.00 | 0.50 | 0.80 | 0.50 |\n"
    assert HEAD.splitlines()[0].count("|") == row.count("|")
