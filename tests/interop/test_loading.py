"""Formats whose libraries cannot be installed, bare decoders, folders, the hub, and what goes wrong."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize, relu

from osae.interop import convert, load
from osae.model import SAE, SAEConfig
from osae.sparsify import BatchTopK, JumpReLU, Linear, ReLU, TopK

WIDTH, UNITS, K = 8, 32, 4


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    decoder = normalize(rand(UNITS, WIDTH), dim=1) * (1 + rand(UNITS, 1).abs())
    return types.SimpleNamespace(
        encoder=0.5 * rand(UNITS, WIDTH),
        decoder=decoder,
        unit=normalize(decoder, dim=1),
        c=0.3 * rand(UNITS),
        b=rand(WIDTH),
        x=2 * rand(16, WIDTH),
    )


def top(pre, k):
    """The k largest positive values of each row, zero elsewhere."""
    values, units = relu(pre).topk(k)
    return torch.zeros_like(pre).scatter(-1, units, values)


@torch.no_grad()
def assert_computes(loaded, x, acts, decoder, bias):
    assert loaded.sae is not None
    recon, code = loaded.sae(x)
    effective = code.dense(UNITS) * loaded.decoder.norm(dim=1)
    torch.testing.assert_close(effective, acts * decoder.norm(dim=1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(recon, acts @ decoder + bias, atol=1e-5, rtol=1e-5)


# --- openai/sparse_autoencoder ----------------------------------------------------------------------


def openai_state(p, activation, **more):
    state = {"pre_bias": p.b, "latent_bias": p.c, "encoder.weight": p.encoder, "decoder.weight": p.decoder.T}
    state |= {"stats_last_nonzero": torch.zeros(UNITS, dtype=torch.long)}
    return state | {"activation": activation, "activation_state_dict": {}} | more


@pytest.mark.parametrize(("activation", "kind"), [("ReLU", ReLU()), ("Identity", Linear())])
def test_openai_without_normalisation(parts, tmp_path, activation, kind):
    torch.save(openai_state(parts, activation), tmp_path / "1.pt")
    loaded = load(tmp_path / "1.pt")
    pre = (parts.x - parts.b) @ parts.encoder.T + parts.c
    assert (loaded.format, loaded.sae.config.sparsifier) == ("openai", kind)  # pyright: ignore
    assert_computes(loaded, parts.x, relu(pre) if activation == "ReLU" else pre, parts.decoder, parts.b)


def normalized(x):
    """Each row with zero mean and unit deviation, and what undoes that."""
    mean, deviation = x.mean(1, keepdim=True), x.std(1, keepdim=True)
    return (x - mean) / (deviation + 1e-5), lambda y: y * deviation + mean


@torch.no_grad()
def test_openai_topk_scales_each_input(parts, tmp_path):
    held = openai_state(parts, "TopK", activation_state_dict={"k": K, "postact_fn": "ReLU"})
    torch.save(held, tmp_path / "1.pt")
    loaded = load(tmp_path / "1.pt")
    x, undo = normalized(parts.x + 3)
    acts = top((x - parts.b) @ parts.encoder.T + parts.c, K)
    torch.testing.assert_close(loaded.encode(parts.x + 3).dense(UNITS), acts, atol=1e-5, rtol=1e-5)
    recon = undo(acts @ parts.decoder + parts.b)
    torch.testing.assert_close(loaded(parts.x + 3), recon, atol=1e-5, rtol=1e-5)


def test_openai_topk_without_a_relu_gives_its_matrices(parts, tmp_path):
    held = openai_state(parts, "TopK", activation_state_dict={"k": K, "postact_fn": "Identity"})
    torch.save(held, tmp_path / "1.pt")
    loaded = load(tmp_path / "1.pt")
    assert (loaded.format, loaded.sae) == ("openai", None)
    assert "identity instead of ReLU" in loaded.notes[0]


def test_openai_tied_decoder_is_the_encoder(parts, tmp_path):
    state = openai_state(parts, "ReLU")
    del state["decoder.weight"]
    torch.save(state, tmp_path / "1.pt")
    pre = (parts.x - parts.b) @ parts.encoder.T + parts.c
    assert_computes(load(tmp_path / "1.pt"), parts.x, relu(pre), parts.encoder, parts.b)


# --- bartbussmann -----------------------------------------------------------------------------------


def bart(folder, p, kind, *, unit_norm=False, **tensors):
    state = {"W_enc": p.encoder.T, "W_dec": p.decoder, "b_enc": p.c, "b_dec": p.b}
    torch.save(state | tensors, folder / "sae.pt")
    config = {
        "act_size": WIDTH,
        "dict_size": UNITS,
        "sae_type": kind,
        "top_k": K,
        "input_unit_norm": unit_norm,
    }
    (folder / "config.json").write_text(json.dumps(config | {"group_sizes": "[16, 16]"}))
    return load(folder)


def test_bartbussmann_vanilla_uses_the_encoder_bias(parts, tmp_path):
    loaded = bart(tmp_path, parts, "vanilla")
    acts = relu((parts.x - parts.b) @ parts.encoder.T + parts.c)
    assert loaded.format == "bartbussmann"
    assert_computes(loaded, parts.x, acts, parts.decoder, parts.b)


def test_bartbussmann_topk_does_not(parts, tmp_path):
    loaded = bart(tmp_path, parts, "topk")
    acts = top((parts.x - parts.b) @ parts.encoder.T, K)
    assert_computes(loaded, parts.x, acts, parts.decoder, parts.b)


@pytest.mark.parametrize("kind", ["batchtopk", "global-matryoshka-topk"])
def test_bartbussmann_threshold(parts, tmp_path, kind):
    loaded = bart(tmp_path, parts, kind, threshold=torch.tensor(0.7))
    pre = (parts.x - parts.b) @ parts.encoder.T
    assert loaded.sae.config.sparsifier == BatchTopK(K)  # pyright: ignore
    assert_computes(loaded, parts.x, pre * (pre > 0.7), parts.decoder, parts.b)


def test_bartbussmann_jumprelu_subtracts_no_bias(parts, tmp_path):
    loaded = bart(tmp_path, parts, "jumprelu", **{"jumprelu.log_threshold": torch.full((UNITS,), -0.5)})
    pre = parts.x @ parts.encoder.T + parts.c
    acts = pre * (pre > torch.tensor(-0.5).exp())
    assert_computes(loaded, parts.x, acts, parts.decoder, parts.b)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["topk", "vanilla", "jumprelu"])
def test_bartbussmann_scales_each_input(parts, tmp_path, kind):
    levels = torch.full((UNITS,), -0.5)
    loaded = bart(tmp_path, parts, kind, unit_norm=True, **{"jumprelu.log_threshold": levels})
    x, undo = normalized(parts.x + 3)
    pre = (x - parts.b) @ parts.encoder.T
    raw = x @ parts.encoder.T + parts.c
    acts = {"topk": top(pre, K), "vanilla": relu(pre + parts.c), "jumprelu": raw * (raw > levels.exp())}[kind]
    recon = undo(acts @ parts.decoder + parts.b)
    torch.testing.assert_close(loaded(parts.x + 3), recon, atol=1e-5, rtol=1e-5)


# --- others -----------------------------------------------------------------------------------------


def test_gemma_scope_2_is_read_from_safetensors(parts, tmp_path):
    state = {"w_enc": parts.encoder.T, "w_dec": parts.decoder, "b_enc": parts.c, "b_dec": parts.b}
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state | {"threshold": torch.full((UNITS,), 0.4)}, tmp_path / "params.safetensors")
    pre = parts.x @ parts.encoder.T + parts.c
    loaded = load(tmp_path)
    assert (loaded.format, loaded.sae.config.sparsifier) == ("gemma_scope", JumpReLU())  # pyright: ignore
    assert_computes(loaded, parts.x, pre * (pre > 0.4), parts.decoder, parts.b)


def test_finetuned_saelens_scales_its_code(parts, tmp_path):
    factor = torch.linspace(0.5, 2, UNITS)
    state = {"W_enc": parts.encoder.T, "W_dec": parts.decoder, "b_enc": parts.c, "b_dec": parts.b}
    state = {name: tensor.contiguous() for name, tensor in state.items()} | {"scaling_factor": factor}
    save_file(state, tmp_path / "sae_weights.safetensors")
    config = {"d_in": WIDTH, "d_sae": UNITS, "finetuning_scaling_factor": True}
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    acts = relu((parts.x - parts.b) @ parts.encoder.T + parts.c)
    assert_computes(load(tmp_path), parts.x, acts, factor[:, None] * parts.decoder, parts.b)
    (tmp_path / "cfg.json").write_text(json.dumps(config | {"finetuning_scaling_factor": False}))
    with pytest.raises(ValueError, match="one of the two is wrong"):
        load(tmp_path)


def test_dictionary_learning_checkpoint_finds_the_config_above(parts, tmp_path):
    state = {"encoder.weight": parts.encoder, "encoder.bias": parts.c, "decoder.weight": parts.unit.T}
    (tmp_path / "checkpoints").mkdir()
    torch.save(state | {"b_dec": parts.b, "k": torch.tensor(K)}, tmp_path / "checkpoints/ae_100.pt")
    (tmp_path / "config.json").write_text('{"trainer": {"dict_class": "AutoEncoderTopK", "k": 4}}')
    acts = top((parts.x - parts.b) @ parts.encoder.T + parts.c, K)
    loaded = load(tmp_path / "checkpoints/ae_100.pt")
    assert_computes(loaded, parts.x, acts, parts.unit, parts.b)


def test_dictionary_learning_without_config_does_not_guess(parts, tmp_path):
    state = {"encoder.weight": parts.encoder, "encoder.bias": parts.c, "decoder.weight": parts.unit.T}
    torch.save(state | {"b_dec": parts.b, "k": torch.tensor(K)}, tmp_path / "ae.pt")
    loaded = load(tmp_path / "ae.pt")
    assert loaded.sae is None
    assert "config.json" in loaded.notes[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_precision_is_read(parts, tmp_path, dtype):
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(K))), tmp_path, to="sparsify")
    state = {"encoder.weight": parts.encoder, "encoder.bias": parts.c, "W_dec": parts.unit, "b_dec": parts.b}
    save_file({name: tensor.to(dtype) for name, tensor in state.items()}, tmp_path / "sae.safetensors")
    loaded = load(tmp_path)
    assert loaded.sae is not None
    assert loaded.decoder.dtype == torch.float32
    acts = top((parts.x - state["b_dec"].to(dtype).float()) @ loaded.encoder.T + loaded.sae.encoder_bias, K)
    assert_computes(loaded, parts.x, acts.detach(), loaded.decoder, parts.b.to(dtype).float())


# --- bare decoders ----------------------------------------------------------------------------------


def save_bare(path: Path, matrix: torch.Tensor) -> None:
    match path.suffix:
        case ".npy":
            np.save(path, matrix.numpy())
        case ".npz":
            np.savez_compressed(path, matrix.numpy())
        case ".safetensors":
            save_file({"dictionary": matrix.contiguous()}, path)
        case ".pt":
            torch.save(matrix, path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize("columns", [False, True])
def test_bare_decoder_is_turned_by_its_unit_norms(parts, tmp_path, suffix, columns):
    atoms = normalize(parts.decoder[:5], dim=1)  # fewer atoms than dimensions: the longer side would mislead
    save_bare(tmp_path / f"d{suffix}", atoms.T.contiguous() if columns else atoms)
    loaded = load(tmp_path / f"d{suffix}")
    assert (loaded.format, loaded.sae, loaded.encoder) == ("decoder", None, None)
    assert (loaded.units, loaded.width) == (5, WIDTH)
    torch.testing.assert_close(loaded.decoder, atoms)
    assert "unit norm" in loaded.notes[1]


def test_bare_decoder_without_unit_norms_has_more_units_than_width(parts, tmp_path):
    np.save(tmp_path / "d.npy", parts.decoder.T.numpy())
    loaded = load(tmp_path / "d.npy")
    assert (loaded.units, loaded.width) == (UNITS, WIDTH)
    assert "pass --orientation rows if they are rows" in loaded.notes[1]
    assert load(tmp_path / "d.npy", orientation="rows").units == WIDTH
    assert load(tmp_path / "d.npy", orientation="columns").units == UNITS


def test_unknown_orientation_is_refused(tmp_path, unchecked_shapes):
    with pytest.raises(ValueError, match="'rows' or 'columns'"):
        load(tmp_path, orientation="diagonal")  # pyright: ignore


def test_big_endian_and_fortran_arrays_are_read(tmp_path):
    array = np.asfortranarray(np.eye(4, 9, dtype=">f8"))
    np.save(tmp_path / "d.npy", array)
    assert torch.equal(load(tmp_path / "d.npy", orientation="rows").decoder, torch.eye(4, 9))


# --- folders ----------------------------------------------------------------------------------------


def test_own_sae_comes_back_bit_for_bit(tmp_path):
    sae = SAE(SAEConfig(WIDTH, UNITS, TopK(K)))
    sae.save(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.format, loaded.notes) == ("osae", [])
    assert loaded.sae is not None
    assert loaded.sae.config == sae.config
    assert all(torch.equal(a, b) for a, b in zip(loaded.sae.parameters(), sae.parameters(), strict=True))
    assert loaded.sha256 == json.loads((tmp_path / "sae.json").read_text())["sha256"]


def test_loading_draws_no_random_numbers(tmp_path):
    SAE(SAEConfig(WIDTH, UNITS, TopK(K))).save(tmp_path)
    before = torch.get_rng_state()
    load(tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_parameters_learn_as_the_config_says(tmp_path):
    SAE(SAEConfig(WIDTH, UNITS, JumpReLU(), encoder_bias=False)).save(tmp_path)
    sae = load(tmp_path).sae
    assert sae is not None
    assert sae.threshold.requires_grad
    assert not sae.encoder_bias.requires_grad


def test_run_with_one_sae_is_that_sae_and_with_more_lists_them(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="no finished SAE"):
        load(tmp_path)
    SAE(SAEConfig(WIDTH, UNITS, TopK(K))).save(tmp_path / "osae-seed0")
    assert load(tmp_path).units == UNITS
    SAE(SAEConfig(WIDTH, UNITS, TopK(K))).save(tmp_path / "osae-seed1")
    with pytest.raises(ValueError, match="2 SAEs: give one of osae-seed0, osae-seed1"):
        load(tmp_path)


def test_folder_of_folders_lists_them(tmp_path):
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(K))), tmp_path / "run" / "layers.3", to="sparsify")
    with pytest.raises(ValueError, match=r"give one of its folders run/layers\.3"):
        load(tmp_path)


def test_several_files_are_listed(tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.eye(3))
    with pytest.raises(ValueError, match=r"give one of a\.npy, b\.npy"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_nothing_there_is_said(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no such file|no weights"):
        load(tmp_path / name)


# --- the hub ----------------------------------------------------------------------------------------


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    """A hub of one repository that holds a sparsify SAE below layers.3, and nothing at its top."""
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(K))), tmp_path / "layers.3", to="sparsify")
    asked = []

    def download(repo, name, revision):
        asked.append((repo, name, revision))
        return str(tmp_path / name)

    names = ["README.md", "layers.3/cfg.json", "layers.3/sae.safetensors", "layers.3/optimizer_0.bin"]
    hub = types.SimpleNamespace(list_repo_files=lambda repo, revision: names, hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return asked


@pytest.mark.parametrize("inner", ["layers.3", "layers.3/sae.safetensors"])
def test_hub_address_brings_the_weights_and_their_json(fake_hub, inner):
    loaded = load(f"hf:user/repo/{inner}@v2")
    assert (loaded.format, loaded.path) == ("sparsify", f"hf:user/repo/{inner}@v2")
    assert {(repo, revision) for repo, _, revision in fake_hub} == {("user/repo", "v2")}
    assert {name for _, name, _ in fake_hub} == {"layers.3/cfg.json", "layers.3/sae.safetensors"}


def test_hub_address_without_a_folder_means_the_only_sae_there_is(fake_hub):
    assert load("hf:user/repo").format == "sparsify"
    assert {name for _, name, _ in fake_hub} == {"layers.3/cfg.json", "layers.3/sae.safetensors"}


def test_hub_address_without_weights_lists_folders(fake_hub, monkeypatch):
    names = ["layers.3/sae.safetensors", "layers.4/sae.safetensors"]
    monkeypatch.setattr(sys.modules["huggingface_hub"], "list_repo_files", lambda repo, revision: names)
    with pytest.raises(ValueError, match=r"give one of its folders layers\.3, layers\.4"):
        load("hf:user/repo")
    assert fake_hub == []


def test_hub_address_is_checked():
    with pytest.raises(ValueError, match="hf:user/repo"):
        load("hf:repo")


def test_hub_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install \"osae\[hub\]\""):
        load("hf:user/repo")


@pytest.mark.parametrize("inner", ["L8R", "L8R/checkpoints/final.safetensors"])
def test_hub_brings_the_json_above_checkpoints(monkeypatch, inner):
    names = ["L8R/hyperparams.json", "L8R/lm_config.json", "L8R/checkpoints/final.safetensors", "config.json"]
    asked = []

    def download(repo, name, revision):
        asked.append(name)
        return f"/nowhere/{name}"

    hub = types.SimpleNamespace(list_repo_files=lambda repo, revision: names, hf_hub_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ValueError, match="no such file"):
        load(f"hf:user/repo/{inner}")
    assert sorted(asked) == ["L8R/checkpoints/final.safetensors", "L8R/hyperparams.json"]
