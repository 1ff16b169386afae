"""Files that look alike: each is read as what its configuration says, or named and not run."""

import json
import types

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from osae.interop import convert, load
from osae.model import SAE, SAEConfig
from osae.sparsify import JumpReLU, TopK

WIDTH, UNITS = 8, 32
HOOKS = {"hook_point_in": "blocks.8.hook_resid_post", "hook_point_out": "blocks.8.hook_resid_post"}
LLAMA_SCOPE = HOOKS | {
    "d_model": WIDTH,
    "d_sae": UNITS,
    "act_fn": "jumprelu",
    "jump_relu_threshold": 0.9,
    "norm_activation": "dataset-wise",
    "dataset_average_activation_norm": {"in": 5.0, "out": 5.0},
    "sparsity_include_decoder_norm": True,
    "apply_decoder_bias_to_pre_encoder": False,
    "top_k": 4,
}


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    decoder = normalize(rand(UNITS, WIDTH), dim=1) * (0.5 + torch.rand(UNITS, 1, generator=generator))
    return types.SimpleNamespace(
        encoder=0.5 * rand(UNITS, WIDTH),
        decoder=decoder,
        c=0.3 * rand(UNITS),
        b=rand(WIDTH),
        x=2 * rand(64, WIDTH),
    )


def linear(p):
    state = {"encoder.weight": p.encoder, "encoder.bias": p.c, "decoder.bias": p.b}
    return state | {"decoder.weight": p.decoder.T.contiguous()}


def save_llama_scope(folder, state, **changes):
    (folder / "checkpoints").mkdir(exist_ok=True)
    save_file(state, folder / "checkpoints/final.safetensors")
    (folder / "hyperparams.json").write_text(json.dumps(LLAMA_SCOPE | changes))
    return load(folder)


def run_llama_scope(p, x, about, levels=None):
    """The steps of its own code: fold the scale of the inputs, fold the norms of the atoms, then select."""
    scale = 1.0
    if about["norm_activation"] == "dataset-wise":
        scale = WIDTH**0.5 / about["dataset_average_activation_norm"]["in"]
    norms = p.decoder.norm(dim=1)
    bias = p.b / scale
    encoder, c, decoder = p.encoder * norms[:, None], p.c / scale * norms, p.decoder / norms[:, None]
    centred = x - bias if about["apply_decoder_bias_to_pre_encoder"] else x
    pre = centred @ encoder.T + c
    level = about["jump_relu_threshold"] if levels is None else levels / scale
    acts = pre.where(pre > level, torch.tensor(0.0))
    return acts, acts @ decoder + bias


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"act_fn": "topk"},  # its own code turns top-k with a threshold into JumpReLU
        {"norm_activation": "inference"},
        {"apply_decoder_bias_to_pre_encoder": True},
        {"dataset_average_activation_norm": {"in": 0.7, "out": 0.7}},
    ],
    ids=str,
)
def test_llama_scope_runs_with_its_threshold_and_its_norm(parts, tmp_path, changes):
    loaded = save_llama_scope(tmp_path, linear(parts), **changes)
    acts, recon = run_llama_scope(parts, parts.x, LLAMA_SCOPE | changes)
    assert (loaded.format, loaded.sae.config.sparsifier) == ("llama_scope", JumpReLU())  # pyright: ignore
    torch.testing.assert_close(loaded.encode(parts.x).dense(UNITS), acts, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded(parts.x), recon, atol=1e-5, rtol=1e-5)
    assert 0 < float((acts != 0).float().mean()) < 1


def test_llama_scope_with_learned_thresholds(parts, tmp_path):
    levels = torch.linspace(0.2, 1.5, UNITS)
    state = linear(parts) | {"log_jumprelu_threshold": levels.log()}
    loaded = save_llama_scope(tmp_path, state, jump_relu_threshold=0.0)
    acts, recon = run_llama_scope(parts, parts.x, LLAMA_SCOPE, levels)
    torch.testing.assert_close(loaded.encode(parts.x).dense(UNITS), acts, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded(parts.x), recon, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hook_point_out": "blocks.8.hook_mlp_out"}, "it is a transcoder.*writes blocks.8.hook_mlp_out"),
        ({"use_glu_encoder": True}, "GLU"),
        ({"act_fn": "batchtopk"}, "batchtopk"),
        ({"dataset_average_activation_norm": None}, "average norm of its inputs is not stored"),
    ],
    ids=str,
)
def test_other_kinds_of_llama_scope_are_named_and_not_run(parts, tmp_path, changes, words):
    loaded = save_llama_scope(tmp_path, linear(parts), **changes)
    assert loaded.sae is None
    with pytest.raises(ValueError, match=words):
        loaded.encode(parts.x)
    torch.testing.assert_close(loaded.decoder, parts.decoder)


def test_without_any_configuration_both_readings_are_named_and_neither_is_run(parts, tmp_path):
    save_file(linear(parts), tmp_path / "final.safetensors")
    loaded = load(tmp_path)
    assert loaded.sae is None
    assert "AutoEncoderNew" in loaded.notes[0]
    assert "Llama Scope" in loaded.notes[0]
    with pytest.raises(ValueError, match="AutoEncoderNew"):
        convert(loaded, tmp_path / "out", to="saelens")


# --- Gemma Scope ------------------------------------------------------------------------------------

GEMMA = {"type": "sae", "architecture": "jump_relu", "affine_connection": False, "width": UNITS}
GEMMA |= {"hf_hook_point_in": "model.layers.5.output", "hf_hook_point_out": "model.layers.5.output"}


def save_gemma(folder, p, about, **tensors):
    folder.mkdir(parents=True, exist_ok=True)
    state = {"w_enc": p.encoder.T.contiguous(), "w_dec": p.decoder, "b_enc": p.c, "b_dec": p.b}
    save_file(state | {"threshold": torch.full((UNITS,), 0.4)} | tensors, folder / "params.safetensors")
    if about is not None:
        (folder / "config.json").write_text(json.dumps(about))
    return load(folder)


def test_gemma_scope_2_sae_runs_without_a_note(parts, tmp_path):
    loaded = save_gemma(tmp_path, parts, GEMMA)
    assert loaded.sae is not None
    assert [note for note in loaded.notes if "assumed" in note] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "transcoder"}, "it is a transcoder"),
        ({"type": "crosscoder"}, "it is a crosscoder"),
        ({"hf_hook_point_out": "model.layers.5.mlp.output"}, "it is a transcoder.*writes model.layers.5.mlp"),
        ({"affine_connection": True}, "it is a transcoder.*skip"),
        ({"architecture": "topk"}, "architecture topk"),
    ],
    ids=str,
)
def test_other_kinds_of_gemma_scope_are_named_and_not_run(parts, tmp_path, changes, words):
    loaded = save_gemma(tmp_path, parts, GEMMA | changes)
    with pytest.raises(ValueError, match=words):
        loaded.encode(parts.x)


def test_gemma_scope_without_configuration_is_told_by_its_folder_or_said_to_be_assumed(parts, tmp_path):
    named = save_gemma(tmp_path / "gemma-scope-2b-pt-transcoders/layer_5/width_16k/average_l0_5", parts, None)
    assert named.sae is None
    assert "it is a transcoder" in named.notes[0]
    other = save_gemma(tmp_path / "gemma-scope-2b-pt-res/layer_5", parts, None)
    assert other.sae is not None
    assert "assumed to be an SAE" in other.notes[0]


# --- sizes, crosscoders, the hub --------------------------------------------------------------------

FIELDS = {
    "saelens": ("cfg.json", "d_in", "d_sae"),
    "sparsify": ("cfg.json", "d_in", "num_latents"),
    "dictionary_learning": ("config.json", "activation_dim", "dict_size"),
}


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("to", FIELDS)
def test_a_size_that_contradicts_the_weights_is_refused(to, place, tmp_path):
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(4))), tmp_path, to=to)
    file, *names = FIELDS[to]
    about = json.loads((tmp_path / file).read_text())
    part = about["trainer"] if to == "dictionary_learning" else about
    part[names[place]] += 1
    (tmp_path / file).write_text(json.dumps(about))
    with pytest.raises(ValueError, match=f"says {names[place]}=.*one of them is wrong"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["decoder.weight", "W_dec", "W_dec_3", "W_D", "w_dec"])
def test_a_crosscoder_is_named(name, tmp_path):
    save_file({name: torch.zeros(3, UNITS, WIDTH), "b": torch.zeros(2)}, tmp_path / "a.safetensors")
    with pytest.raises(
        ValueError, match=r"shape \(3, 32, 8\): it is a crosscoder or a cross-layer transcoder"
    ):
        load(tmp_path)


def test_multi_topk_of_sparsify_is_noted_and_kept(tmp_path):
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(4))), tmp_path / "a", to="sparsify")
    about = json.loads((tmp_path / "a/cfg.json").read_text())
    (tmp_path / "a/cfg.json").write_text(json.dumps(about | {"multi_topk": True}))
    loaded = load(tmp_path / "a")
    assert loaded.require_sae().config.sparsifier == TopK(4)
    assert "forward uses 16 units, while its encode and osae use 4" in loaded.notes[0]
    convert(loaded, tmp_path / "b", to="sparsify")
    assert json.loads((tmp_path / "b/cfg.json").read_text())["multi_topk"] is True
