"""The ordered loss equals its definition, and every objective of the paper is a case of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import osae
from osae.prefix import (
    Boundaries,
    Explicit,
    Full,
    Geometric,
    Mixed,
    Piecewise,
    RandomBoundaries,
    Sampled,
    Uniform,
    Zipf,
    all_prefix_loss_reference,
    prefix_weights,
    residual_weights,
)
from osae.seeds import generator


def every_prefix(x, values, units, decoder, weights):
    """Return the loss by definition: one reconstruction for each prefix length."""
    dense = torch.zeros(len(x), len(decoder), dtype=x.dtype).scatter_add(1, units, values)
    terms = [
        weights[length - 1] * (x - dense[:, :length] @ decoder[:length]).square().sum(1)
        for length in range(1, len(decoder) + 1)
    ]
    return torch.stack(terms).sum(0)


@st.composite
def problems(draw):
    """Draw a batch, a code with distinct units and some padding, a decoder and weights."""
    units_total = draw(st.integers(1, 12))
    k = draw(st.integers(1, units_total))
    batch, width = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(batch, width, generator=source, dtype=torch.float64)
    decoder = torch.randn(units_total, width, generator=source, dtype=torch.float64)
    values = torch.randn(batch, k, generator=source, dtype=torch.float64)
    units = torch.stack([torch.randperm(units_total, generator=source)[:k] for _ in range(batch)])
    weights = torch.rand(units_total, generator=source, dtype=torch.float64)
    return x, values, units, decoder, weights


@pytest.mark.parametrize("loss", [all_prefix_loss_reference, osae.all_prefix_loss])
@given(problem=problems())
@settings(deadline=None, max_examples=150)
def test_all_prefix_loss_equals_the_sum_over_every_prefix(loss, problem):
    torch.testing.assert_close(loss(*problem), every_prefix(*problem), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [all_prefix_loss_reference, osae.all_prefix_loss])
@given(problem=problems())
@settings(deadline=None, max_examples=30)
def test_gradients_are_those_of_the_definition(loss, problem):
    x, values, units, decoder, weights = problem
    inputs = [t.clone().requires_grad_() for t in (x, values, decoder)]
    assert torch.autograd.gradcheck(lambda a, b, c: loss(a, b, units, c, weights), inputs)


@given(problem=problems(), extra=st.integers(1, 4))
@settings(deadline=None)
def test_padding_and_the_order_of_entries_change_nothing(problem, extra):
    x, values, units, decoder, weights = problem
    padding = torch.randint(len(decoder), (len(x), extra))
    wider = torch.cat([values, torch.zeros(len(x), extra, dtype=x.dtype)], 1)
    shuffle = torch.randperm(wider.shape[1])
    padded = (x, wider[:, shuffle], torch.cat([units, padding], 1)[:, shuffle], decoder, weights)
    torch.testing.assert_close(osae.all_prefix_loss(*padded), osae.all_prefix_loss(*problem))


@given(problem=problems())
@settings(deadline=None)
def test_gram_form_agrees(problem):
    """L = S(0)|x|^2 - 2 sum_j S(j) z_j d_j.x + sum_ij S(max(i,j)) z_i z_j d_i.d_j, an independent form."""
    x, values, units, decoder, weights = problem
    z = torch.zeros(len(x), len(decoder), dtype=x.dtype).scatter_add(1, units, values)
    mass = torch.stack([weights[j:].sum() for j in range(len(decoder))])
    index = torch.arange(len(decoder))
    both = mass[torch.maximum(index[:, None], index)] * (decoder @ decoder.T)
    expected = mass[0] * x.square().sum(1) - 2 * (z * mass * (x @ decoder.T)).sum(1) + ((z @ both) * z).sum(1)
    torch.testing.assert_close(osae.all_prefix_loss(*problem), expected, rtol=1e-9, atol=1e-9)


@given(problem=problems())
@settings(deadline=None)
def test_plain_objective_is_the_case_of_full_weights(problem):
    x, values, units, decoder, _ = problem
    z = torch.zeros(len(x), len(decoder), dtype=x.dtype).scatter_add(1, units, values)
    loss = osae.all_prefix_loss(x, values, units, decoder, prefix_weights(Full(), len(decoder)))
    torch.testing.assert_close(loss, (x - z @ decoder).square().sum(1))


@given(problem=problems(), data=st.data())
@settings(deadline=None)
def test_matryoshka_is_the_case_of_boundaries(problem, data):
    x, values, units, decoder, _ = problem
    total = len(decoder)
    inner = data.draw(st.sets(st.integers(1, total - 1), max_size=4)) if total > 1 else set()
    ends = (*sorted(inner), total)
    z = torch.zeros(len(x), total, dtype=x.dtype).scatter_add(1, units, values)
    mean = torch.stack([(x - z[:, :e] @ decoder[:e]).square().sum(1) for e in ends]).mean(0)
    loss = osae.all_prefix_loss(x, values, units, decoder, prefix_weights(Boundaries(ends), total))
    torch.testing.assert_close(loss, mean)


def test_nested_dropout_has_the_ordered_loss_as_its_mean():
    problem = (torch.randn(4, 3), torch.rand(4, 2), torch.tensor([[0, 3], [1, 2], [4, 0], [2, 3]]))
    decoder, base = torch.randn(5, 3), Zipf(0.7)
    ordered = osae.all_prefix_loss(*problem, decoder, prefix_weights(base, 5))
    drawn = torch.stack([prefix_weights(Sampled(base), 5, generator(0, "draw", i)) for i in range(4000)])
    assert bool(((drawn == 1).sum(1) == 1).all())
    mean = osae.all_prefix_loss(*problem, decoder, drawn.mean(0))
    torch.testing.assert_close(mean, ordered, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Full(), [0, 0, 0, 1]),
        (Uniform(), [0.25, 0.25, 0.25, 0.25]),
        (Geometric(0.5), [8 / 15, 4 / 15, 2 / 15, 1 / 15]),
        (Zipf(1.0), [12 / 25, 6 / 25, 4 / 25, 3 / 25]),
        (Piecewise((1, 4)), [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        (Piecewise((1, 4), (1.0, 3.0)), [0.25, 0.25, 0.25, 0.25]),
        (Boundaries((2, 4)), [0, 0.5, 0, 0.5]),
        (Explicit((1.0, 1.0, 0.0, 2.0)), [0.25, 0.25, 0, 0.5]),
        (Mixed(Uniform(), 0.6), [0.1, 0.1, 0.1, 0.7]),
    ],
)
def test_weights_by_hand(spec, expected):
    torch.testing.assert_close(prefix_weights(spec, 4), torch.tensor(expected, dtype=torch.float64))


@given(units=st.integers(1, 40), count=st.integers(1, 8), seed=st.integers(0, 1000))
@settings(deadline=None)
def test_random_boundaries_always_include_the_whole_dictionary(units, count, seed):
    count = min(count, units)
    weights = prefix_weights(RandomBoundaries(Uniform(), count), units, generator(seed, "prefix"))
    assert weights[-1] == pytest.approx(1 / count)
    assert int((weights > 0).sum()) == count


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Geometric(0.0), "positive"),
        (Boundaries((2, 3)), "the last of them 4"),
        (Boundaries((3, 2, 4)), "increasing"),
        (Boundaries((-5, 4)), "positive"),
        (Piecewise((2, 4), (1.0,)), "one per group"),
        (Explicit((1.0,)), "1 weights for 4 units"),
        (Explicit((1.0, -1.0, 0.0, 1.0)), "nonnegative"),
        (Mixed(Uniform(), 1.5), "between 0 and 1"),
        (RandomBoundaries(Uniform(), 5), "1 to 4"),
    ],
)
def test_wrong_weights_are_refused_with_a_remedy(spec, words):
    with pytest.raises(ValueError, match=words):
        prefix_weights(spec, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_weights_of_residuals_keep_their_digits_in_any_type(dtype):
    """Most of the mass lies on the whole dictionary: the others are small differences of large masses."""
    weights = prefix_weights(Mixed(Uniform(), full=0.95), 65_536)
    units = torch.randint(65_536, (50, 80), generator=generator(0, "units")).sort(-1).values
    ends = torch.nn.functional.pad(torch.nn.functional.pad(units, (1, 0)), (0, 1), value=65_536)
    exact = torch.nn.functional.pad(weights.cumsum(0), (1, 0))[ends].diff()
    found = residual_weights(weights, units, dtype)
    assert found.dtype == dtype
    digits = {torch.bfloat16: 2**-8, torch.float16: 2**-9, torch.float32: 1e-6, torch.float64: 1e-8}[dtype]
    least = 2**-24 if dtype == torch.float16 else 1e-15  # smaller numbers do not exist in that type
    torch.testing.assert_close(found.double(), exact, rtol=digits, atol=least)
