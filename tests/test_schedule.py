import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.schedule import (
    KWarmup,
    LearningRate,
    Sweep,
    active_units,
    frozen_units,
    learning_rate,
    placed_units,
    space_evenly,
)

shares = st.floats(0, 1)


def test_a_decay_with_a_power_falls_faster_at_first_and_is_linear_by_default():
    linear, square = (learning_rate(LearningRate(0.1, decay=1.0, power=p), 100) for p in (1.0, 2.0))
    assert linear(50) == learning_rate(LearningRate(0.1, decay=1.0), 100)(50) == pytest.approx(0.05)
    assert square(50) == pytest.approx(0.025)
    assert square(0) == linear(0) == 0.1
    with pytest.raises(ValueError, match="power=0"):
        LearningRate(0.1, power=0.0)


@given(warmup=st.floats(0, 0.5), decay=st.floats(0, 0.5), steps=st.integers(1, 500))
@settings(deadline=None)
def test_learning_rate_stays_within_its_peak_and_never_stops_early(warmup, decay, steps):
    at = learning_rate(LearningRate(0.1, warmup, decay), steps)
    assert all(0 < at(step) <= 0.1 for step in range(steps))
    assert max(at(step) for step in range(steps)) == pytest.approx(0.1, rel=2.1 / max(1, steps / 2))


@given(share=shares, k=st.integers(1, 20), more=st.integers(0, 50), steps=st.integers(1, 300))
@settings(deadline=None)
def test_k_falls_from_its_start_to_its_target_and_stays(share, k, more, steps):
    at = active_units(KWarmup(share, k + more), k, k + more, steps)
    ks = [at(step) for step in range(steps)]
    assert ks == sorted(ks, reverse=True)
    assert all(k <= value <= k + more for value in ks)
    assert at(steps) == k


def test_k_warmup_below_its_target_is_refused():
    with pytest.raises(ValueError, match="starts at 3, below its target 5"):
        active_units(KWarmup(0.5, 3), 5, 10, 100)


@given(burn_in=st.floats(0, 0.9), units=st.integers(1, 60), steps=st.integers(10, 400))
@settings(deadline=None)
def test_units_freeze_one_after_the_other_after_the_burn_in(burn_in, units, steps):
    at = frozen_units(Sweep(burn_in, 1.0), units, steps)
    counts = [at(step) for step in range(steps + 1)]
    assert counts == sorted(counts)
    assert all(at(step) == 0 for step in range(round(burn_in * steps)))
    assert at(steps) == units


@given(part=st.floats(0, 1), until=st.floats(0, 1), units=st.integers(1, 60), steps=st.integers(10, 400))
@settings(deadline=None)
def test_only_a_part_of_the_units_freezes(part, until, units, steps):
    """If the sweep ends where it starts, all of them are frozen from the first step on."""
    at = frozen_units(Sweep(0.0, until, part), units, steps)
    counts = [at(step) for step in range(steps + 1)]
    assert counts == sorted(counts)
    assert at(round(until * steps)) == at(steps) == round(part * units)


@given(release=st.floats(0, 0.99), units=st.integers(1, 60), steps=st.integers(10, 400))
@settings(deadline=None)
def test_released_units_learn_again_and_keep_their_places(release, units, steps):
    sweep = Sweep(0.0, 0.5, release=release)
    never = round(release * steps) == 0
    frozen, placed = frozen_units(sweep, units, steps), placed_units(sweep, units, steps)
    before = range(round(release * steps))
    assert [frozen(step) for step in before] == [placed(step) for step in before]
    assert all(frozen(step) == 0 for step in range(round(release * steps), steps + 1))
    assert placed(steps) == (0 if never else placed(round(release * steps) - 1))
    if round(release * steps) > round(0.5 * steps):
        assert placed(steps) == units


@given(times=st.integers(1, 50), until=st.floats(0.1, 1), steps=st.integers(1, 500))
@settings(deadline=None)
def test_evenly_ends_where_it_should(times, until, steps):
    moments = space_evenly(times, until, steps)
    assert len(moments) <= times
    assert moments[-1] == max(1, round(steps * until))
