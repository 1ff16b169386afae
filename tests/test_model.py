"""The SAE: what its parts do, what is saved, and what folding and reordering keep."""

import json
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.files import read_json
from osae.interop import convert, load
from osae.model import SAE, SAEConfig, read_saved
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK, active, jump

WIDTH, UNITS = 6, 10
SPARSIFIERS = [ReLU(0.1), TopK(3), BatchTopK(3), JumpReLU(0.1, 0.1, 0.3), Linear()]


def random_sae(sparsifier, *, seed=0) -> SAE:
    """Return an SAE with every parameter away from its start."""
    source = torch.Generator().manual_seed(seed)
    sae = SAE(SAEConfig(WIDTH, UNITS, sparsifier), generator=source)
    with torch.no_grad():
        sae.encoder += 0.3 * torch.randn(UNITS, WIDTH, generator=source)
        sae.encoder_bias += 0.2 * torch.randn(UNITS, generator=source)
        sae.decoder_bias += 0.5 * torch.randn(WIDTH, generator=source)
        sae.threshold += 0.1 * torch.rand(UNITS, generator=source)
    return sae


def slow_values(sae: SAE, x):
    """Return the dense code by definition, one sample at a time, as at inference."""
    rows = []
    for sample in x:
        pre = sae.encoder @ (sample - sae.decoder_bias) + sae.encoder_bias
        match sae.config.sparsifier:
            case ReLU():
                rows.append(pre.relu())
            case TopK(k):
                kept = torch.zeros_like(pre)
                best = pre.topk(k).indices
                kept[best] = pre[best].relu()
                rows.append(kept)
            case BatchTopK() | JumpReLU():
                rows.append(torch.where(pre > sae.threshold.clamp(min=0), pre, torch.zeros_like(pre)))
            case Linear():
                rows.append(pre)
    return torch.stack(rows)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda s: type(s).__name__)
def test_code_and_reconstruction_equal_their_definition(sparsifier):
    sae, x = random_sae(sparsifier), torch.randn(20, WIDTH)
    dense = slow_values(sae, x)
    output = sae(x)
    torch.testing.assert_close(output.code.dense(UNITS), dense)
    torch.testing.assert_close(sae.encode_dense(x), dense)
    torch.testing.assert_close(output.reconstruction, dense @ sae.decoder + sae.decoder_bias)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda s: type(s).__name__)
def test_any_leading_shape_is_welcome(sparsifier):
    sae, x = random_sae(sparsifier), torch.randn(2, 5, WIDTH)
    flat = sae(x.reshape(10, WIDTH)).reconstruction
    torch.testing.assert_close(sae(x).reconstruction, flat.reshape(2, 5, WIDTH))
    torch.testing.assert_close(sae(x[0, 0]).reconstruction, flat[0])


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda s: type(s).__name__)
@given(scale=st.floats(0.01, 100))
@settings(deadline=None, max_examples=15)
def test_folding_a_scale_gives_the_same_on_raw_inputs(sparsifier, scale):
    sae, x = random_sae(sparsifier), torch.randn(12, WIDTH)
    folded = sae.fold_scale(scale)
    torch.testing.assert_close(
        folded(x / scale).reconstruction * scale, sae(x).reconstruction, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(folded.decoder, sae.decoder)


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda s: type(s).__name__)
def test_reordering_permutes_the_code_and_nothing_else(sparsifier):
    sae, x = random_sae(sparsifier), torch.randn(12, WIDTH)
    order = torch.randperm(UNITS)
    other = sae.reorder(order)
    torch.testing.assert_close(other(x).reconstruction, sae(x).reconstruction)
    torch.testing.assert_close(other.encode(x).dense(UNITS), sae.encode(x).dense(UNITS)[:, order])


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=lambda s: type(s).__name__)
def test_saved_and_loaded_is_the_same(sparsifier, tmp_path):
    sae, x = random_sae(sparsifier), torch.randn(5, WIDTH)
    sae.save(tmp_path / "sae", provenance={"why": "test"})
    loaded = SAE.load(tmp_path / "sae")
    assert loaded.config == sae.config
    assert torch.equal(loaded(x).reconstruction, sae(x).reconstruction)
    trained = {name for name, p in sae.named_parameters() if p.requires_grad}
    assert {name for name, p in loaded.named_parameters() if p.requires_grad} == trained


def test_copies_share_no_memory_with_the_original():
    sae = random_sae(TopK(2))
    before = {name: value.clone() for name, value in sae.state_dict().items()}
    for other in (sae.fold_scale(2.0), sae.reorder(torch.arange(UNITS))):
        with torch.no_grad():
            for parameter in other.parameters():
                parameter += 1
    assert all(torch.equal(value, before[name]) for name, value in sae.state_dict().items())


def test_loading_what_this_library_did_not_save_names_the_function_that_reads_it(tmp_path):
    convert(random_sae(TopK(2)), tmp_path / "foreign", to="saelens")
    with pytest.raises(ValueError, match=r"no sae.json.*`osae.load\(.*foreign'\)` reads"):
        SAE.load(tmp_path / "foreign")
    with pytest.raises(ValueError, match=r"no sae\.json"):
        SAE.load(tmp_path / "nowhere")


def _change_config(about, **changes):
    return about | {"config": about["config"] | changes}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda about: [], "schema None"),
        (lambda about: about | {"sha256": "0"}, "not the file that sae.json was written for"),
        (lambda about: about | {"config": {"kind": "TopK", "k": 2}}, "an SAEConfig is required"),
        (lambda about: about | {"config": {"kind": ["SAEConfig"]}}, "unknown kind"),
        (lambda about: _change_config(about, width=WIDTH + 1), "sae.json requires"),
        (lambda about: _change_config(about, width=True), "SAEConfig.width=True"),
        (lambda about: _change_config(about, sparsifier={"kind": "TopK", "k": 2.0}), "TopK.k=2.0"),
        (lambda about: _change_config(about, encoder_bias=1), "SAEConfig.encoder_bias=1"),
    ],
)
def test_both_readers_refuse_a_damaged_folder_in_the_same_words(damage, words, tmp_path):
    random_sae(TopK(2)).save(tmp_path)
    about = read_json(tmp_path / "sae.json")
    (tmp_path / "sae.json").write_text(json.dumps(damage(about)))
    for read in (SAE.load, load):
        if read is load and not isinstance(damage(about), dict):
            continue  # it looks at the JSON before it knows whose file this is
        with pytest.raises(ValueError, match=words) as refused:
            read(tmp_path)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("encoder", None, "no floating-point tensor 'encoder'"),
        ("threshold", torch.zeros(UNITS, dtype=torch.int64), "no floating-point tensor 'threshold'"),
        ("decoder_bias", torch.zeros(WIDTH + 1), "decoder_bias has shape"),
        ("decoder", torch.full((UNITS, WIDTH), torch.inf), "NaN or infinit"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, tensor, words, tmp_path):
    sae = random_sae(TopK(2))
    sae.save(tmp_path)
    about, tensors = json.loads((tmp_path / "sae.json").read_text()), dict(sae.state_dict())
    with pytest.raises(ValueError, match=words):
        read_saved(about, tensors | {name: tensor}, about["sha256"])


def test_a_weight_file_cut_short_is_refused(tmp_path):
    random_sae(TopK(2)).save(tmp_path)
    file = tmp_path / "sae.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=str(tmp_path)):
        SAE.load(tmp_path)


def test_a_changed_choice_is_noticed(tmp_path):
    random_sae(TopK(2)).save(tmp_path)
    text = (tmp_path / "sae.json").read_text()
    (tmp_path / "sae.json").write_text(text.replace('"k": 2', '"k": 3'))
    for read in (SAE.load, load):
        with pytest.raises(ValueError, match=r"sae\.json cannot be read: its content does not match"):
            read(tmp_path)


def test_a_file_of_another_schema_is_refused(tmp_path):
    random_sae(TopK(2)).save(tmp_path)
    about = read_json(tmp_path / "sae.json") | {"schema": 99}
    (tmp_path / "sae.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="schema 99: this release reads 1"):
        SAE.load(tmp_path)


def test_start_is_a_copy_not_a_view():
    sae = SAE(SAEConfig(WIDTH, UNITS, TopK(2)))
    assert torch.equal(sae.encoder, sae.decoder)
    with torch.no_grad():
        sae.encoder += 1
    torch.testing.assert_close(sae.decoder.norm(dim=1), torch.ones(UNITS))


@pytest.mark.parametrize("sparsifier", [TopK(2), BatchTopK(2), ReLU(), JumpReLU()], ids=str)
def test_a_numpy_array_is_taken_as_the_tensor_it_stands_for(sparsifier):
    sae = SAE(SAEConfig(WIDTH, UNITS, sparsifier), generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 2, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = sae(x)
        for given in (x.numpy(), x.double().numpy(), x.numpy().astype(">f8")):
            found = sae(given)
            assert torch.equal(found.reconstruction, expected.reconstruction)
            assert torch.equal(sae.encode_dense(given), sae.encode_dense(x))
            assert torch.equal(sae.encode(given).values, expected.code.values)


def test_print_shows_the_composition():
    text = str(SAE(SAEConfig(WIDTH, UNITS, TopK(2))))
    for part in ("6 -> 10 units", "TopK(k=2)", "10 atoms"):
        assert part in text


@pytest.mark.parametrize("k", [0, 11])
def test_impossible_k_is_refused(k):
    with pytest.raises(ValueError, match="give 1 to 10"):
        SAEConfig(WIDTH, UNITS, TopK(k))


@given(batch=st.integers(1, 8), k=st.integers(1, UNITS), seed=st.integers(0, 999), alike=st.booleans())
@settings(deadline=None)
def test_batch_topk_keeps_the_largest_of_the_whole_batch(batch, k, seed, alike):
    """Also where one sample takes nearly all of them, because the others hardly fire."""
    source = torch.Generator().manual_seed(seed)
    sae = SAE(SAEConfig(WIDTH, UNITS, BatchTopK(k)), generator=source)
    x = torch.randn(batch, WIDTH, generator=source)
    x[1:] *= 1 if alike else 1e-3
    pre = sae.pre_activations(x)
    found = sae.encode(x, k=k).dense(UNITS)
    expected = pre.flatten().sort(descending=True).values[: batch * k]
    kept = found[found > 0].sort(descending=True).values
    torch.testing.assert_close(kept, expected[expected > 0])
    torch.testing.assert_close(found, torch.where(found > 0, pre, 0))


@pytest.mark.parametrize("sparsifier", [TopK(3), BatchTopK(3)], ids=str)
def test_the_decoder_bias_gets_the_same_gradient_by_either_way(sparsifier):
    """Through the rows where x wants a gradient as well, through the encoder's bias where it does not."""
    source = torch.Generator().manual_seed(0)
    sae = SAE(SAEConfig(WIDTH, UNITS, sparsifier), generator=source).double()
    x = torch.randn(7, WIDTH, generator=source, dtype=torch.float64)
    found = []
    for wanted in (True, False):
        sae.zero_grad()
        code = sae.encode(x.clone().requires_grad_(wanted), k=3)
        (code.values * code.units.sin()).sum().backward()
        found.append({name: p.grad.clone() for name, p in sae.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() == {"encoder", "encoder_bias", "decoder_bias"}
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad)


def test_jump_gradients_are_those_of_the_smoothed_step():
    """Inside its window the threshold's gradient is -threshold/width for `jump`, -1/width for `active`."""
    pre = torch.tensor([[0.30, 0.34, 0.90]], requires_grad=True)
    threshold = torch.full((3,), 0.32, requires_grad=True)
    jump(pre, threshold, 0.1).sum().backward()
    torch.testing.assert_close(threshold.grad, torch.tensor([-3.2, -3.2, 0.0]))
    torch.testing.assert_close(pre.grad, torch.tensor([[0.0, 1.0, 1.0]]))
    threshold.grad = None
    active(pre, threshold, 0.1).sum().backward()
    torch.testing.assert_close(threshold.grad, torch.tensor([-10.0, -10.0, 0.0]))


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_a_save_over_another_one_that_is_interrupted_leaves_the_old_or_the_new_sae(
    stop_at, tmp_path, monkeypatch
):
    """Whichever of its three files is being written when the process ends."""
    config = SAEConfig(6, 9, TopK(2))
    old, new = (SAE(config, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    old.save(tmp_path, provenance={"seed": 0})
    real, calls = os.replace, []

    def stop(*paths):
        calls.append(paths)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        real(*paths)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        new.save(tmp_path, provenance={"seed": 1})
    monkeypatch.undo()
    seed = 0 if stop_at < 3 else 1
    expected = (old, new)[seed].state_dict()
    found = load(tmp_path)
    assert found.metadata["provenance"] == {"seed": seed}
    for sae in (SAE.load(tmp_path), found.require_sae()):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in sae.state_dict().items())
    new.save(tmp_path, provenance={"seed": 1})
    new.save(tmp_path / "fresh", provenance={"seed": 1})
    names = ("sae.json", "sae.safetensors")
    assert all((tmp_path / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes() for name in names)
