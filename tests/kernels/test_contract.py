"""One suite for every backend: values and gradients against the definition, in double precision."""

import importlib
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from osae import kernels
from osae.kernels import cpu, loops, registers
from osae.sparsify import pad_code

# The triton interpreter takes a millisecond for an operation: fewer and smaller examples.
EXAMPLES = {"reference": 25, "cpu": 60, "dense": 40, "gpu": 6}
LARGEST = {"reference": 40, "cpu": 40, "dense": 150, "gpu": 7}
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def loss_by_definition(x, values, units, decoder, weights):
    """Return sum_l p(l) |x - sum_{j<l} z_j d_j|^2, prefix by prefix."""
    code = values.new_zeros(len(values), len(decoder)).scatter_add(-1, units, values)
    total = x.new_zeros(len(x))
    for length in range(1, len(decoder) + 1):
        total = total + weights[length - 1] * (x - code[:, :length] @ decoder[:length]).square().sum(-1)
    return total


def top_by_definition(x, encoder, bias, k):
    pre = x @ encoder.T if bias is None else x @ encoder.T + bias
    return pre.relu().sort(-1, descending=True).values[:, :k]


def same(found, expected, dtype=torch.float64):
    """Assert equality up to rounding, relative to the largest entry."""
    found, expected = found.detach(), expected.detach().to(found.dtype)
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(
        found, expected, rtol=0, atol=TOLERANCE[dtype] * max(scale, 1e-3), equal_nan=True
    )


def gradients(loss, inputs, upstream):
    return torch.autograd.grad(loss, inputs, upstream)


def draw_problem(seed, size, width, count, k, dtype, padding=0.0):
    """Draw x, values, units, decoder, weights, upstream; `padding` is the share of entries set to zero."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, width, generator=g, dtype=dtype)
    values = torch.randn(size, k, generator=g, dtype=dtype)
    units = torch.rand(size, count, generator=g).argsort(-1)[:, :k].contiguous()
    hidden = torch.rand(size, k, generator=g) < padding
    values[hidden] = 0
    units[hidden] = torch.randint(count, (int(hidden.sum()),), generator=g)
    decoder = torch.randn(count, width, generator=g, dtype=dtype) / width**0.5
    weights = torch.rand(count, generator=g, dtype=torch.float64)
    upstream = torch.randn(size, generator=g, dtype=dtype)
    return x, values, units, decoder, weights / weights.sum(), upstream


def check_loss(problem):
    x, values, units, decoder, weights, upstream = problem
    dtype = x.dtype
    inputs = [t.detach().requires_grad_() for t in (x, values, decoder)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    loss = kernels.all_prefix_loss(inputs[0], inputs[1], units, inputs[2], weights)
    expected = loss_by_definition(exact[0], exact[1], units, exact[2], weights)
    assert loss.dtype == dtype
    same(loss, expected, dtype)
    found = gradients(loss, inputs, upstream)
    dx, dvalues, ddecoder = gradients(expected, exact, upstream.double())
    for f, e in zip(found, (dx, dvalues * (values != 0), ddecoder), strict=True):
        same(f, e, dtype)


def check_top(x, encoder, bias, k, upstream):
    dtype = x.dtype
    inputs = [t.detach().requires_grad_() for t in (x, encoder, bias) if t is not None]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    values, units = kernels.topk_encode(*inputs, *[None] * (bias is None), k)
    same(
        values.sort(-1, descending=True).values, top_by_definition(*exact, *[None] * (bias is None), k), dtype
    )
    pre = exact[0] @ exact[1].T if bias is None else exact[0] @ exact[1].T + exact[2]
    picked = pre.gather(-1, units) * (values != 0)
    same(values, picked, dtype)
    for f, e in zip(
        gradients(values, inputs, upstream), gradients(picked, exact, upstream.double()), strict=True
    ):
        same(f, e, dtype)


def check_decode(problem):
    _, values, units, decoder, _, upstream = problem
    inputs = [t.detach().requires_grad_() for t in (values, decoder)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    found = kernels.decode(inputs[0], units, inputs[1])
    code = exact[0].new_zeros(len(values), len(decoder)).scatter_add(-1, units, exact[0])
    expected = code @ exact[1]
    same(found, expected, values.dtype)
    upstream = upstream[:, None] * torch.linspace(-1, 1, decoder.shape[1], dtype=values.dtype)
    dvalues, ddecoder = gradients(expected, exact, upstream.double())
    for f, e in zip(gradients(found, inputs, upstream), (dvalues * (values != 0), ddecoder), strict=True):
        same(f, e, values.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_equal_the_definition(backend, dtype):
    largest = LARGEST[backend]

    @settings(max_examples=EXAMPLES[backend], deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        seed=st.integers(0, 2**31),
        size=st.integers(0, 8),
        width=st.integers(1, 40),
        count=st.integers(1, largest),
        part=st.floats(0, 1),
        padding=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def check(seed, size, width, count, part, padding):
        k = max(1, round(part * count))
        problem = draw_problem(seed, size, width, count, k, dtype, padding)
        x, values, _, decoder, _, _ = problem
        check_loss(problem)
        check_decode(problem)
        check_top(x, decoder, None if seed % 2 else x.new_ones(count) * 0.3, k, values)

    check()


# B, d, K, k: past one block of samples, of columns, of units; k = K; one of everything
SHAPES = [(1, 1, 1, 1), (3, 5, 6, 6), (70, 17, 600, 3), (5, 700, 40, 9), (1100, 3, 5, 2), (2, 1100, 130, 130)]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_beyond_one_block(backend, shape):
    if backend == "gpu":
        shape = (min(shape[0], 3), shape[1], min(shape[2], 20), min(shape[3], 4))
    problem = draw_problem(0, *shape, torch.float32, padding=0.2)
    check_loss(problem)
    check_decode(problem)
    check_top(problem[0], problem[3], problem[3][:, 0], shape[3], problem[1])


def test_input_that_is_not_contiguous(backend):
    x, values, units, decoder, weights, upstream = draw_problem(1, 4, 6, 7, 3, torch.float64)
    turned = [t.T.contiguous().T for t in (x, values, units, decoder)]
    assert not any(t.is_contiguous() for t in turned)
    problem = (*turned, weights.repeat_interleave(2)[::2], upstream.repeat_interleave(2)[::2])
    check_loss(problem)
    check_decode(problem)
    check_top(turned[0], turned[3], decoder[:, 0], 3, turned[1])


def test_order_of_entries_and_repeated_padding_change_nothing(backend):
    x, values, units, decoder, weights, _ = draw_problem(2, 5, 4, 9, 4, torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    padded = torch.cat([values[:, order], torch.zeros(5, 3, dtype=torch.float64)], -1)
    places = torch.cat([units[:, order], torch.tensor([8, 0, 0]).expand(5, 3)], -1)
    expected = kernels.all_prefix_loss(x, values, units, decoder, weights)
    torch.testing.assert_close(kernels.all_prefix_loss(x, padded, places, decoder, weights), expected)
    expected = kernels.decode(values, units, decoder)
    torch.testing.assert_close(kernels.decode(padded, places, decoder), expected)


def test_gradcheck(backend):
    x, values, units, decoder, weights, _ = draw_problem(3, 2, 3, 4, 2, torch.float64)
    x, values, decoder = (t.requires_grad_() for t in (x, values, decoder))
    torch.autograd.gradcheck(
        lambda *a: kernels.all_prefix_loss(a[0], a[1], units, a[2], weights), (x, values, decoder)
    )
    torch.autograd.gradcheck(lambda *a: kernels.decode(a[0], units, a[1]), (values, decoder))
    bias = torch.tensor([0.3, -0.1, 0.2, 0.0], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda *a: kernels.topk_encode(*a, 2)[0], (x, decoder, bias))


def test_backward_twice_gives_the_same(backend):
    x, values, units, decoder, weights, upstream = draw_problem(4, 3, 5, 6, 3, torch.float32)
    decoder.requires_grad_()
    loss = kernels.all_prefix_loss(x, values, units, decoder, weights)
    (first,) = torch.autograd.grad(loss, decoder, upstream, retain_graph=True)
    (second,) = torch.autograd.grad(loss, decoder, upstream)
    assert torch.equal(first, second)


def test_weights_on_one_prefix_give_the_plain_loss(backend):
    x, values, units, decoder, _, _ = draw_problem(5, 6, 5, 8, 3, torch.float64)
    full = torch.zeros(8, dtype=torch.float64)
    full[-1] = 1
    plain = (x - kernels.decode(values, units, decoder)).square().sum(-1)
    torch.testing.assert_close(kernels.all_prefix_loss(x, values, units, decoder, full), plain)


def test_small_losses_keep_their_digits(backend):
    """A near perfect reconstruction: |x|^2 must not cancel against the rest."""
    _, values, units, decoder, _, _ = draw_problem(6, 6, 16, 8, 8, torch.float32)
    full = torch.zeros(8, dtype=torch.float64)
    full[-1] = 1
    code = torch.zeros(6, 8).scatter(-1, units, values)
    x = code @ decoder + 1e-4 * torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    exact = loss_by_definition(x.double(), values.double(), units, decoder.double(), full)
    found = kernels.all_prefix_loss(x, values, units, decoder, full)
    torch.testing.assert_close(found.double(), exact, rtol=1e-2, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, inside the triton interpreter
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["x", "values", "decoder"])
def test_what_is_not_finite_shows_up_in_loss_and_gradients(backend, bad, where):
    problem = dict(
        zip(
            ("x", "values", "units", "decoder", "weights"),
            draw_problem(7, 4, 5, 6, 3, torch.float32)[:5],
            strict=True,
        )
    )
    problem[where][0 if where != "decoder" else problem["units"][0, 1], 1] = bad
    leaves = [problem[name].requires_grad_() for name in ("x", "values", "decoder")]
    loss = kernels.all_prefix_loss(**problem)
    hit = (problem["units"] == problem["units"][0, 1]).any(-1) if where == "decoder" else torch.arange(4) == 0
    if backend == "dense" and where == "decoder":
        hit[:] = True  # 0 * NaN in a product: it shows up in every sample
    assert torch.equal(loss.isfinite(), ~hit)
    dx, dvalues, ddecoder = torch.autograd.grad(loss.sum(), leaves)
    assert torch.equal(dx.isfinite().all(-1), ~hit)
    assert not dvalues[hit].isfinite().all()
    assert not ddecoder.isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
@pytest.mark.parametrize("count", [6, 300])
def test_top_shows_nan_and_infinity(backend, bad, count):
    x, encoder = torch.ones(3, 4), torch.eye(4).repeat(count // 3 + 1, 1)[:count]
    bias = torch.linspace(-1, 1, count)
    bias[count // 2] = bad
    x[1] = -bad
    values, units = kernels.topk_encode(x, encoder, bias, 2)
    for row in (0, 2):
        assert (units[row] == count // 2).any()
        assert not values[row].isfinite().all()
    expected = (x @ encoder.T + bias).relu().topk(2).values
    torch.testing.assert_close(values.sort(-1).values, expected.sort(-1).values, equal_nan=True)


@pytest.mark.parametrize("k", [1, 3, 40, 80])
def test_ties_give_equal_values_and_distinct_units(backend, k):
    g = torch.Generator().manual_seed(k)
    x = torch.eye(5)
    encoder = torch.randint(-1, 3, (80, 5), generator=g).float()
    values, units = kernels.topk_encode(x, encoder, None, k)
    expected = (x @ encoder.T).relu().topk(k).values
    assert torch.equal(values.sort(-1, descending=True).values, expected)
    for row, (v, u) in enumerate(zip(values, units, strict=True)):
        active = u[v > 0]
        assert len(active.unique()) == len(active)
        assert torch.equal(encoder[active, row], v[v > 0])


# --- the largest of a batch -----------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_the_largest_of_a_batch_are_found_however_rows_differ(backend, spread, k, monkeypatch):
    """Rows with norms of any spread, in one block or several, with the gradients of what was selected."""
    monkeypatch.setattr("osae.kernels.cpu.BUFFER", 60)
    monkeypatch.setattr("osae.kernels.cpu.LEAST_ROWS", 3)
    g, size = torch.Generator().manual_seed(k), 4 if backend == "gpu" else 13
    x = torch.randn(size, 5, generator=g, dtype=torch.float64)
    x *= (spread * torch.randn(size, 1, generator=g, dtype=torch.float64)).exp()
    encoder = torch.randn(20, 5, generator=g, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, encoder, encoder.detach()[:, 0].clone())]
    values, units = kernels.batch_topk_encode(*inputs, k)
    pre = (inputs[0] @ inputs[1].T + inputs[2]).relu()
    least = pre.flatten().sort(descending=True).values[size * k - 1]
    kept = (pre >= least) & (pre > 0)
    assert values.shape[1] == kept.sum(-1).max()
    picked = torch.zeros(size, 20, dtype=torch.float64).scatter_add(-1, units, values)
    same(picked, pre * kept)
    upstream = torch.randn(size, 20, generator=g, dtype=torch.float64)
    found = gradients(picked, inputs, upstream)
    for f, e in zip(found, gradients(pre * kept, inputs, upstream), strict=True):
        same(f, e)


def test_the_largest_of_a_batch_show_nan_and_no_sample_needs_any(backend):
    x, encoder = torch.ones(3, 4), torch.eye(4)
    x[1] = float("nan")
    values, units = kernels.batch_topk_encode(x, encoder, None, 1)
    assert values[1].isnan().any()
    assert units.min() >= 0
    values, _ = kernels.batch_topk_encode(-torch.ones(3, 4), encoder, None, 2)
    assert values.shape == (3, 1)
    assert not values.any()
    assert len(kernels.batch_topk_encode(torch.ones(0, 4), encoder, None, 2)[0]) == 0
    with pytest.raises(ValueError, match="k=5 for 4 units"):
        kernels.batch_topk_encode(x, encoder, None, 5)


class Watch(TorchDispatchMode):
    """Notes the operations on tensors and the largest table of integers that one of them made."""

    def __init__(self):
        super().__init__()
        self.names, self.integers = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        if isinstance(found, torch.Tensor) and found.dtype == torch.int64:
            self.integers = max(self.integers, found.numel())
        return found


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_largest_of_a_batch_take_one_product(backend, spread):
    if backend == "gpu":
        pytest.skip("the programs of the interpreter are no operations of torch")
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 8, generator=g) * (spread * torch.randn(50, 1, generator=g)).exp()
    encoder = torch.randn(300, 8, generator=g)
    kernels.topk_encode(x, encoder, None, 4)  # loads what is compiled
    with Watch() as watch, torch.no_grad():
        kernels.batch_topk_encode(x, encoder, None, 4)
    assert sum(name in ("mm", "addmm", "matmul", "_linear_pointwise") for name in watch.names) == 1


def test_codes_are_padded_without_a_table_of_all_places():
    values = torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    values *= values > 1.5
    with Watch() as watch:
        code = pad_code(values)
    assert torch.equal(code.dense(500), values)
    assert watch.integers < values.numel() / 2


def test_units_that_end_no_prefix_cost_a_dense_loss_one_product_each_way():
    x, code, _, decoder, _, upstream = draw_problem(0, 7, 5, 640, 640, torch.float64)
    full = torch.zeros(640, dtype=torch.float64)
    counts = []
    for where in (slice(639, 640), slice(0, 640)):
        weights = full.clone()
        weights[where] = 1
        leaves = [t.detach().clone().requires_grad_() for t in (x, code, decoder)]
        with Watch() as watch:
            loss = kernels.dense_prefix_loss(*leaves, weights)
            found = torch.autograd.grad(loss, leaves, upstream)
        counts.append(sum("mm" in name for name in watch.names))
        units = torch.arange(640).expand(7, 640)
        exact = loss_by_definition(leaves[0], leaves[1], units, leaves[2], weights)
        same(loss, exact)
        for f, e in zip(found, gradients(exact, leaves, upstream), strict=True):
            same(f, e)
    assert counts[0] < 0.5 * counts[1]


def test_nothing_positive_is_all_padding(backend):
    values, units = kernels.topk_encode(-torch.ones(3, 4), torch.ones(50, 4), None, 7)
    assert not values.any()
    assert ((units >= 0) & (units < 50)).all()


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing_but_the_type_of_the_input(backend, low):
    """Inside of autocast, activations come in low precision and weights do not; kernels take both."""
    x, values, units, decoder, weights, upstream = draw_problem(10, 3, 5, 6, 3, torch.float32)
    x = x.to(low).float()
    results = []
    for enabled in (False, True):
        leaves = [t.detach().clone().requires_grad_() for t in (values, decoder)]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            given = x.to(low) if enabled else x
            loss = kernels.all_prefix_loss(given, leaves[0], units, leaves[1], weights=weights)
            row = kernels.decode(leaves[0], units, leaves[1])
            top, _ = kernels.topk_encode(given, leaves[1], None, 2)
            dense = kernels.dense_prefix_loss(given, torch.cat([leaves[0]] * 2, -1), leaves[1], weights)
            grads = torch.autograd.grad(loss @ upstream + row.sum() + top.sum() + dense.sum(), leaves)
        results.append([loss, row, top, dense, *grads])
    for plain, cast in zip(*results, strict=True):
        assert cast.dtype == torch.float32
        torch.testing.assert_close(cast, plain, rtol=2e-2, atol=2e-2)  # products outside are in bfloat16
    for plain, cast in zip(results[0][:4], results[1][:4], strict=True):
        torch.testing.assert_close(cast, plain)


def test_gpu_sums_in_a_fixed_order_when_asked():
    pytest.importorskip("triton")
    torch.use_deterministic_algorithms(True)
    try:
        with kernels.using("gpu"):
            check_loss(draw_problem(8, 5, 6, 7, 3, torch.float64, padding=0.3))
    finally:
        torch.use_deterministic_algorithms(False)


def test_cpu_result_does_not_depend_on_threads():
    x, _, _, decoder, weights, _ = draw_problem(9, 1500, 700, 900, 5, torch.float32)
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        leaves = [t.detach().clone().requires_grad_() for t in (x, decoder, decoder)]
        with kernels.using("cpu"):
            values, units = kernels.topk_encode(leaves[0], leaves[1], None, 5)
            found = kernels.all_prefix_loss(x, values.detach().requires_grad_(), units, leaves[2], weights)
            outs = [values, units, found, *torch.autograd.grad(values.sum(), leaves[:2])]
            results.append(
                [*outs, *torch.autograd.grad(found.sum(), leaves[2:]), kernels.decode(values, units, decoder)]
            )
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


# --- the seam -------------------------------------------------------------------------------------


def test_choice_follows_type_and_sparsity(monkeypatch):
    monkeypatch.delenv("OSAE_KERNEL", raising=False)
    small = torch.zeros(10, 2)
    assert kernels._choose(small, 0.1).__name__.endswith("cpu")
    assert kernels._choose(small, 1.0).__name__.endswith("dense")
    assert kernels._choose(small.bfloat16(), 0.1).__name__.endswith("reference")
    assert kernels._share(torch.tensor([[1.0, 0, 0, 0]]), 4) == 0.25
    monkeypatch.setenv("OSAE_KERNEL", "reference")
    assert kernels._choose(small, 0.1).__name__.endswith("reference")
    with kernels.using("cpu"):
        assert kernels._choose(small, 1.0).__name__.endswith("cpu")
    monkeypatch.setenv("OSAE_KERNEL", "tpu")
    with pytest.raises(ValueError, match=r"'tpu' is unknown: choose one of reference, cpu, dense, gpu"):
        kernels._choose(small, 0.1)


def test_errors_name_value_limit_and_remedy():
    x, values, units, decoder, weights, _ = draw_problem(0, 3, 4, 5, 2, torch.float32)
    with pytest.raises(ValueError, match=r"k=6 for 5 units: ask for 1 to 5"):
        kernels.topk_encode(x, decoder, None, 6)
    with pytest.raises(ValueError, match=r"x is float32 \(3, 3\).*width and dtype of the encoder"):
        kernels.topk_encode(x[:, :3], decoder, None, 2)
    with pytest.raises(ValueError, match=r"bias is float32 \(4,\).*give 5 numbers"):
        kernels.topk_encode(x, decoder, x[0], 2)
    with pytest.raises(ValueError, match=r"x is float64 \(3, 4\).*width and dtype of the decoder"):
        kernels.all_prefix_loss(x.double(), values, units, decoder, weights)
    with pytest.raises(ValueError, match=r"weights are float64 \(4,\).*5 of them"):
        kernels.all_prefix_loss(x, values, units, decoder, weights[:4])
    with pytest.raises(ValueError, match=r"units int32 \(3, 2\).*int64"):
        kernels.decode(values, units.int(), decoder)
    with pytest.raises(ValueError, match=r"give both the same dtype"):
        kernels.decode(values.double(), units, decoder)


@pytest.mark.parametrize("unit", [-1, 5])
def test_a_unit_that_does_not_exist_is_refused(backend, unit):
    if backend == "gpu":
        pytest.skip("a GPU cannot look at the units without waiting for them")
    x, values, units, decoder, weights, _ = draw_problem(0, 3, 4, 5, 2, torch.float32)
    units[1, 1] = unit
    if backend == "reference" and unit < 0:
        return  # torch counts from the end
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        kernels.all_prefix_loss(x, values, units, decoder, weights)


def test_import_loads_neither_numba_nor_triton():
    code = "import sys, osae.kernels; print([m for m in ('numba', 'triton') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "[]"


def count_tasks(samples, width, units):
    """Return the number of tasks of the loss's forward and backward pass, in blocks of 64 columns."""
    from osae.kernels import cpu

    blocks = -(-width // 64)
    return blocks * len(cpu._rows(samples)), blocks * len(cpu._lanes(samples, blocks, units * width))


@pytest.fixture
def threads():
    """Return the function that sets the number of threads, which is restored afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_backward_pass_has_tasks_for_many_cores_whatever_the_width(threads):
    threads(32)
    assert [count_tasks(8192, width, 4096)[1] for width in (64, 512, 768, 2304)] == [16, 32, 36, 36]
    assert count_tasks(16384, 64, 4096)[1] == 32
    assert count_tasks(500, 80, 100)[1] == 2
    assert count_tasks(65536, 64, 2**22)[1] == 1  # more would take another gigabyte each


def test_tasks_of_the_benchmark_on_32_threads(threads):
    from benchmarks.speed.run import SHAPES
    from osae.kernels import cpu

    threads(32)
    found = [count_tasks(shape.B, shape.d, shape.K) for shape in SHAPES]
    assert [backward for _, backward in found] == [32, 36, 32, 36, 36, 36, 36]
    assert all(forward >= 128 for forward, _ in found)
    # selection by rows, the encoder's gradient by units, decoding by rows
    assert {len(cpu._rows(rows)) for shape in SHAPES for rows in (shape.B, shape.K)} == {128}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("active", [3, 40])
def test_tiles_of_units_do_not_change_results(active, shuffled, monkeypatch):
    """One tile of all units, and several, in which some samples have no entries."""
    from osae.kernels import cpu

    x, values, units, decoder, weights, upstream = draw_problem(5, 700, 24, 64, active, torch.float32, 0.1)
    if not shuffled:
        units, order = units.sort(-1)
        values = values.gather(-1, order)
    found = []
    for tile in (64, 32, 5, 1):
        monkeypatch.setattr(cpu, "_tile", lambda *_, tile=tile: tile)
        leaves = [t.clone().requires_grad_() for t in (x, values, decoder)]
        with kernels.using("cpu"):
            loss = kernels.all_prefix_loss(leaves[0], leaves[1], units, leaves[2], weights)
        found.append([loss, *torch.autograd.grad(loss, leaves, upstream)])
    for loss, *grads in found[1:]:
        torch.testing.assert_close(loss, found[0][0])
        assert all(torch.equal(a, b) for a, b in zip(grads, found[0][1:], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "k"), [(32, 3), (100, 40), (700, 9)])  # one line, and several
def test_rows_of_very_different_sizes_may_follow_each_other(count, k, dtype):
    """Every search for the largest starts from the threshold of the row before."""
    g = torch.Generator().manual_seed(count)
    scales = 10.0 ** torch.randint(-30, 30, (60, 1), generator=g)
    pre = torch.randn(60, count, generator=g, dtype=dtype) * scales
    pre[::7] = -1  # nothing positive
    pre[1::7, k // 2 :] = 0  # too few
    pre[2::7] = pre[2::7].sign()  # ties
    values, units = cpu.top(pre.clone(), pre.new_zeros(count), k)
    assert torch.equal(values.sort(-1, descending=True).values, pre.relu().topk(k).values)
    assert torch.equal(pre.gather(-1, units)[values > 0], values[values > 0])
    assert bool((units.diff() > 0)[values[:, 1:] > 0].all())


@pytest.mark.parametrize("width", [24, 64, 200])  # less than a block of columns, one, and several
def test_turns_of_samples_do_not_change_the_sums_of_units(width, monkeypatch):
    """One turn of all samples, and several, in which some units have no entries."""
    from osae.kernels import cpu

    rows, values, units, _, _, _ = draw_problem(7, 700, width, 64, 5, torch.float32, 0.1)
    found = []
    for turn in (1024, 300, 7, 1):
        monkeypatch.setattr(cpu, "TURN", turn)
        monkeypatch.setattr(cpu, "VISIT", 0)
        found.append(cpu._scatter(values, values, units, rows, 64))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    code = torch.zeros(700, 64).scatter_add(-1, units, values)
    torch.testing.assert_close(found[0][0], code.T @ rows)
    torch.testing.assert_close(found[0][1], code.sum(0))


@pytest.mark.parametrize(
    "shape", [(300, 40, 96), (512, 80, 100)]
)  # MKL's bits depend on threads at the second
def test_codes_and_their_gradients_are_the_same_on_more_threads_than_cores(shape, threads):
    x, _, _, decoder, _, _ = draw_problem(6, *shape, 7, torch.float32)
    found = []
    for count in (1, 4 * (os.cpu_count() or 1)):
        threads(count)
        leaves = [t.clone().requires_grad_() for t in (x, decoder)]
        with kernels.using("cpu"):
            values, units = kernels.topk_encode(leaves[0], leaves[1], None, 7)
            rows = kernels.decode(values, units, leaves[1])
        found.append([values, units, rows, *torch.autograd.grad(rows.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_steps_reuse_the_memory_of_earlier_ones():
    """Without it, most steps get thousands of pages from the kernel; 1,152 of them hold one array of rows."""
    if not sys.platform.startswith("linux"):
        return  # a setting of glibc
    code = """if True:
        import resource, torch
        from benchmarks.speed.ours import ENTRIES
        from benchmarks.speed.pipe import Shape
        from benchmarks.speed.worker import Bench
        torch.set_num_threads(1)
        bench = Bench(ENTRIES["osae-exact"], Shape(2048, 576, 512, 24))
        count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            bench.answer("step"), bench.answer("forward_backward")
        before = count()
        for _ in range(4):
            bench.answer("step"), bench.answer("forward_backward")
        print((count() - before) / 8)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout.splitlines()[-1]) < 700


@pytest.mark.parametrize("samples", [1500, 5000])
def test_sums_in_lanes_are_right_and_the_same_on_any_number_of_threads(samples):
    """More threads than cores, and lanes of several sizes."""
    from osae.kernels import cpu

    assert len(cpu._lanes(samples, 1, 24)) > 1
    x, values, units, decoder, weights, upstream = draw_problem(4, samples, 3, 8, 2, torch.float32)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 3, 32):
            torch.set_num_threads(threads)
            leaves = [t.clone().requires_grad_() for t in (x, values, decoder)]
            with kernels.using("cpu"):
                loss = kernels.all_prefix_loss(leaves[0], leaves[1], units, leaves[2], weights)
            found.append([loss, *torch.autograd.grad(loss, leaves, upstream)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    leaves = [t.double().requires_grad_() for t in (x, values, decoder)]
    with kernels.using("reference"):
        loss = kernels.all_prefix_loss(leaves[0], leaves[1], units, leaves[2], weights.double())
    expected = torch.autograd.grad(loss, leaves, upstream.double())
    for got, right in zip(found[0][1:], expected, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("encode", [cpu.topk_encode, cpu.batch_topk_encode])
def test_a_product_of_the_encoder_is_freed_before_the_next_one_is_computed(encode, monkeypatch):
    made = []

    def multiply(rows, encoder, *options):
        assert [product for product in made if product() is not None] == []
        made.append(weakref.ref(product := rows @ encoder.T))
        return product

    monkeypatch.setattr(cpu, "_find_product", lambda: multiply)
    encode(torch.ones(2000, 4), torch.ones(8192, 4), None, 2)
    assert len(made) > 2


ADDED = """

@compiled()
def read_zeros(x, out):
    store(out, 0, zeros(x))
"""


def test_code_that_was_cached_before_registers_changed_is_compiled_anew(tmp_path, monkeypatch):
    """Numba itself notices changes in the file of a compiled function only."""
    package = tmp_path / "changing"
    package.mkdir()
    for module in (loops, registers):
        text = Path(module.__file__).read_text().replace("osae.kernels", "changing")
        (package / f"{module.__name__.split('.')[-1]}.py").write_text(text)
    (package / "__init__.py").touch()
    with open(package / "loops.py", "a", encoding="utf-8") as file:
        file.write(ADDED)
    monkeypatch.syspath_prepend(tmp_path)

    def run() -> tuple[float, int, int]:
        for name in [name for name in sys.modules if name.split(".")[0] == "changing"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        made, out = importlib.import_module("changing.loops").read_zeros, np.empty(64, np.float32)
        made(np.empty(64, np.float32), out)
        return float(out[0]), sum(made.stats.cache_hits.values()), sum(made.stats.cache_misses.values())

    assert run() == (0.0, 0, 1)
    assert run() == (0.0, 1, 0)
    text = (package / "registers.py").read_text()
    (package / "registers.py").write_text(
        text.replace("[0.0] * _lanes(kind.dtype)", "[3.0] * _lanes(kind.dtype)")
    )
    assert run() == (3.0, 0, 1)
