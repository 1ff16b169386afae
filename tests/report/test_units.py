"""The list of units that a page shows."""

import numpy as np

from benchmarks.speed.pages import make_comparison, make_contexts
from osae.report.units import make_browser


def test_saes_of_which_contexts_alone_are_known_follow_those_that_were_compared():
    generator = np.random.default_rng(0)
    contexts = [make_contexts(place, 40, generator) for place in (2, 1)]
    browser = make_browser(make_comparison(40, generator), contexts)
    assert browser is not None
    compared, both, alone = browser.index["saes"]
    assert [sae["name"] for sae in (compared, both, alone)] == ["seed0", "seed1", "seed2"]
    assert [sae["contexts"] for sae in (compared, both, alone)] == [False, True, True]
    assert len(both["partners"]) == 1
    assert alone["partners"] == []
    assert [column["key"] for column in alone["columns"]] == ["frequency", "mean_activation", "largest"]
    assert [name for name, _ in browser.pieces] == ["units-1-0", "units-2-0"]
