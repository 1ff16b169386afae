"""Where an SAE's activations come from: read from every library's file, and kept by conversion."""

import json

import pytest
import torch
from safetensors.torch import save_file

import osae
from osae.data.shards import write_shards
from osae.data.source import OnDisk
from osae.interop import convert, load
from osae.interop.place import Place, read_place
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK
from osae.training import run

WIDTH, UNITS = 4, 9
METADATA = {
    "sae_lens_version": "6.54.12",
    "sae_lens_training_version": "6.54.12",
    "model_name": "gpt2-small",
    "hook_name": "blocks.8.hook_resid_pre",
    "model_class_name": "HookedTransformer",
    "hook_head_index": None,
    "dataset_path": "Skylion007/openwebtext",
    "context_size": 128,
    "prepend_bos": True,
    "neuronpedia_id": "gpt2-small/8-res-jb",
    "something_new": [1, 2],
}


@pytest.fixture
def saelens(tmp_path):
    """A folder as SAELens saves it, with all that it records about the model."""
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(2))), tmp_path / "saelens", to="saelens")
    change(tmp_path / "saelens", metadata=METADATA)
    return tmp_path / "saelens"


def change(folder, **fields):
    about = json.loads((folder / "cfg.json").read_text())
    (folder / "cfg.json").write_text(json.dumps(about | fields))


def config(folder, name="cfg.json"):
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize(
    ("hook", "spot", "layer", "name"),
    [
        ("blocks.7.hook_resid_post", "the residual stream before block 8", 7, "blocks.7.hook_resid_post"),
        ("blocks.8.hook_resid_pre", "the residual stream before block 8", 7, "blocks.8.hook_resid_pre"),
        ("resid_post_layer_7", "the residual stream before block 8", 7, "blocks.7.hook_resid_post"),
        ("model.layers.7.output", "the residual stream before block 8", 7, "blocks.7.hook_resid_post"),
        ("transformer.h.7", "the residual stream before block 8", 7, "blocks.7.hook_resid_post"),
        ("blocks.0.hook_resid_pre", "the residual stream before block 0", None, "blocks.0.hook_resid_pre"),
        ("layers.3.mlp", "block 3, mlp", 3, None),
        ("blocks.3.hook_mlp_out", "block 3, mlp", 3, "blocks.3.hook_mlp_out"),
        ("somewhere", "somewhere", None, None),
        (None, None, None, None),
    ],
)
def test_the_same_place_has_the_same_words_whatever_a_library_calls_it(hook, spot, layer, name):
    place = read_place("m", hook)
    assert (place.spot, place.layer, place.transformer_lens) == (spot, layer, name)


@pytest.mark.parametrize("odd", [3, "", " ", [], {}, "x" * 1000, True])
def test_what_is_no_name_counts_as_unknown(odd):
    assert read_place(odd, odd, [odd]) == Place()


def test_every_field_that_saelens_knows_comes_back(saelens, tmp_path):
    convert(saelens, tmp_path / "again", to="saelens")
    kept = config(tmp_path / "again")["metadata"]
    assert {name: kept[name] for name in METADATA} == METADATA
    assert config(tmp_path / "again")["reshape_activations"] == "none"


@pytest.mark.parametrize("through", ["osae", "dictionary_learning", "sparsify"])
def test_and_also_by_way_of_another_library(saelens, tmp_path, through):
    convert(saelens, tmp_path / through, to=through)
    convert(tmp_path / through, tmp_path / "again", to="saelens")
    kept = config(tmp_path / "again")["metadata"]
    assert {name: kept[name] for name in METADATA} == METADATA


def test_how_inputs_are_prepared_is_kept(saelens, tmp_path):
    change(saelens, reshape_activations="hook_z", normalize_activations="expected_average_only_in")
    convert(saelens, tmp_path / "again", to="saelens")
    assert config(tmp_path / "again")["reshape_activations"] == "hook_z"
    assert config(tmp_path / "again")["normalize_activations"] == "expected_average_only_in"
    (saelens / "activation_scaler.json").write_text('{"scaling_factor": 0.5}')  # then it is folded
    convert(saelens, tmp_path / "folded", to="saelens")
    assert config(tmp_path / "folded")["normalize_activations"] == "none"


def test_flat_fields_from_before_version_6_are_kept(saelens, tmp_path):
    about = config(saelens)
    del about["metadata"]
    old = {
        "model_name": "gpt2",
        "hook_point": "blocks.3.hook_mlp_out",
        "prepend_bos": False,
        "l1_coefficient": 5,
    }
    (saelens / "cfg.json").write_text(json.dumps(about | old))
    convert(saelens, tmp_path / "again", to="saelens")
    kept = config(tmp_path / "again")["metadata"]
    assert (kept["model_name"], kept["hook_name"], kept["prepend_bos"]) == (
        "gpt2",
        "blocks.3.hook_mlp_out",
        False,
    )


def test_dictionary_learning_gets_the_fields_it_has(saelens, tmp_path):
    convert(saelens, tmp_path / "d", to="dictionary_learning")
    about = config(tmp_path / "d", "config.json")
    trainer = about["trainer"]
    assert (trainer["lm_name"], trainer["layer"]) == ("gpt2-small", 7)  # the output of block 7 enters block 8
    assert trainer["submodule_name"] == "resid_post_layer_7"
    assert about["buffer"]["ctx_len"] == 128


def test_dictionary_learning_keeps_its_own_fields(tmp_path):
    convert(SAE(SAEConfig(WIDTH, UNITS, TopK(2))), tmp_path / "a", to="dictionary_learning")
    about = config(tmp_path / "a", "config.json")
    about["trainer"] |= {"lr": 1e-3, "seed": 7, "wandb_name": "x", "submodule_name": "attn_3", "layer": 3}
    about["buffer"] |= {"ctx_len": 64, "refresh_batch_size": 8}
    (tmp_path / "a/config.json").write_text(json.dumps(about))
    convert(tmp_path / "a", tmp_path / "b", to="dictionary_learning")
    kept = config(tmp_path / "b", "config.json")
    assert {name: kept["trainer"].get(name) for name in about["trainer"]} == about["trainer"]
    assert kept["buffer"] == about["buffer"]
    convert(tmp_path / "a", tmp_path / "c", to="saelens")
    assert config(tmp_path / "c")["metadata"]["hf_hook_name"] == "attn_3"


def test_what_is_given_overrides_what_the_file_says(saelens, tmp_path):
    convert(saelens, tmp_path / "again", to="saelens", model="gpt2-xl", layer=5)
    kept = config(tmp_path / "again")["metadata"]
    assert (kept["model_name"], kept["hook_name"]) == ("gpt2-xl", "blocks.5.hook_resid_post")
    assert kept["dataset_path"] == METADATA["dataset_path"]


def test_an_sae_trained_from_a_model_says_where(tmp_path):
    harvest = {"model": "org/Tiny", "layer": 2, "module": None, "context": 64}
    sae = SAE(SAEConfig(WIDTH, UNITS, TopK(2)))
    sae.save(tmp_path / "mine", provenance={"source": {"kind": "Live", "harvest": harvest}})
    assert load(tmp_path / "mine").place == Place("org/Tiny", "blocks.2.hook_resid_pre", 64)
    convert(tmp_path / "mine", tmp_path / "s", to="saelens")
    metadata = config(tmp_path / "s")["metadata"]
    assert (metadata["model_name"], metadata["hook_name"]) == ("org/Tiny", "blocks.2.hook_resid_pre")


def test_an_sae_trained_on_harvested_activations_says_where(tmp_path):
    paths = []
    for layer in (2, 3):
        model = {"name": "org/Tiny", "revision": "", "layer": layer, "module": None}
        about = {"model": model, "harvest": {"context": 64}}
        write_shards(tmp_path / f"acts{layer}", [torch.randn(200, WIDTH)], about=about)
        task = osae.Task(WIDTH, UNITS, 2, 400, batch=50)
        source = OnDisk(str(tmp_path / f"acts{layer}"))
        run.create(tmp_path / f"run{layer}", run.RunConfig((osae.recipe("topk", task),), (0,), source))
        run.go(tmp_path / f"run{layer}")
        paths.append(tmp_path / f"run{layer}" / "topk-seed0")
    assert load(paths[0]).place == Place("org/Tiny", "blocks.2.hook_resid_pre", 64)
    fitted = osae.fit("topk", tmp_path / "acts2", units=UNITS, k=2, samples=400, progress=False)
    assert load(fitted).place == load(paths[0]).place
    assert any("different hook points" in line for line in osae.compare(paths, chance_draws=0).remarks())
    convert(paths[0], tmp_path / "s", to="saelens")
    metadata = config(tmp_path / "s")["metadata"]
    assert (metadata["model_name"], metadata["hook_name"]) == ("org/Tiny", "blocks.2.hook_resid_pre")
    assert metadata["context_size"] == 64


def test_gemma_scope_2_says_where(tmp_path):
    matrix = torch.nn.functional.normalize(torch.randn(UNITS, WIDTH), dim=1)
    state = {"w_enc": matrix.T.contiguous(), "w_dec": matrix, "b_enc": torch.zeros(UNITS)}
    state |= {"b_dec": torch.zeros(WIDTH), "threshold": torch.ones(UNITS)}
    save_file(state, tmp_path / "params.safetensors")
    about = {
        "model_name": "google/gemma-3-1b-pt",
        "hf_hook_point_in": "model.layers.17.output",
        "type": "sae",
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert load(tmp_path).place.spot == "the residual stream before block 18"
