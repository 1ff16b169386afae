"""Measures are called, written and judged in one way wherever they stand."""

from osae.report.columns import column


def test_a_measure_at_a_prefix_is_judged_like_the_measure_itself():
    for name, title in (("stability", "Stab"), ("orderedness", "Ord")):
        at = column(f"{name}_64")
        assert (at.title, at.words) == (f"{title} 64", f"{name} at 64 units")
        assert (at.better, at.format, at.digits) == (column(name).better, "fixed", 3)


def test_a_measure_that_is_new_here_is_called_by_its_key():
    assert column("some_new-measure").words == "some new measure"
