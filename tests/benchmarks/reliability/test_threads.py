"""The bits of a training run do not depend on the number of threads, however large its steps are."""

import pytest

from benchmarks.reliability.threads import SIZES, compare_threads
from osae.recipes import RECIPES

SHOWN = ("osae", "batchtopk", "vanilla")  # every kind of encoder and of loss
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in RECIPES if name not in SHOWN]


@pytest.mark.parametrize("name", [*SHOWN, *OTHERS])
def test_threads_change_no_bit(name):
    assert compare_threads(name, (1, 2, 3)) == 0


@pytest.mark.parametrize("name", ["osae", "vanilla"])
def test_threads_change_no_bit_at_odd_sizes(name):
    """Products with dense codes would differ."""
    assert compare_threads(name, (1, 4), SIZES[1]) == 0
