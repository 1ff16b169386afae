"""What had to be assumed, and what does not belong together, is said where the numbers are."""

import json
from html import unescape

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from osae import interop
from osae.report.page import render_page
from osae.report.terminal import show
from osae.results import read as read_results
from osae.studies.compare import compare
from osae.studies.evaluate import evaluate
from osae.studies.stitch import stitch
from tests.studies.saes import WORLD, make_sae, noise


@pytest.fixture
def everywhere(tmp_path, capsys):
    """Tells whether the terminal, the page and the JSON, written and read again, all contain the words."""

    def tell(result, words):
        show(result)
        (tmp_path / "r.json").write_text(json.dumps(result.to_json()))
        shown = capsys.readouterr().out
        said = " ".join(read_results(tmp_path / "r.json").remarks())
        return all(words in " ".join(text.split()) for text in (shown, unescape(render_page(result)), said))

    return tell


def save_saelens(folder, seed, **about):
    """Save an SAE as SAELens does, with what its metadata says about the model."""
    atoms = torch.nn.functional.normalize(noise(20, 24, seed), dim=1)
    interop.convert(make_sae(atoms), folder, to="saelens")
    config = json.loads((folder / "cfg.json").read_text())
    metadata = config["metadata"] | {name: value for name, value in about.items() if "name" in name}
    fields = {name: value for name, value in about.items() if "name" not in name}
    (folder / "cfg.json").write_text(json.dumps(config | fields | {"metadata": metadata}))
    return folder


def test_a_guessed_orientation_is_said_with_the_numbers(tmp_path, everywhere):
    square = noise(24, 24, 0).numpy()
    np.save(tmp_path / "a.npy", square)
    np.save(tmp_path / "b.npy", square[:, np.random.default_rng(0).permutation(24)])
    result = compare([tmp_path / "a.npy", tmp_path / "b.npy"], chance_draws=0)
    assert everywhere(result, "b.npy: its atoms are assumed to be its rows (24 x 24)")


def test_a_missing_input_scale_is_said_and_not_blamed_on_the_activations(tmp_path, everywhere):
    folder = save_saelens(tmp_path / "a", 0, normalize_activations="expected_average_only_in")
    result = evaluate(folder, WORLD.draw("test").x + 3, model="none")
    assert everywhere(result, "the input scale of the training run is not stored")
    blamed = [note for note in result.notes if "explains less variance" in note]
    assert blamed
    assert all(note.endswith("an assumption about its file is wrong (see its notes).") for note in blamed)


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("model_name", ("gpt2", "EleutherAI/pythia-70m"), "different models"),
        ("hook_name", ("blocks.3.hook_resid_post", "blocks.3.hook_mlp_out"), "different hook points"),
        ("hook_name", ("blocks.3.hook_resid_post", "blocks.4.hook_resid_post"), "different hook points"),
    ],
)
def test_saes_of_different_activations_are_compared_with_a_warning(
    tmp_path, everywhere, field, values, words
):
    paths = [save_saelens(tmp_path / f"sae{i}", i, **{field: value}) for i, value in enumerate(values)]
    result = compare(paths, chance_draws=0)
    assert everywhere(result, words)
    warned = next(line for line in result.remarks() if words in line)
    assert "sae0: " in warned
    assert "sae1: " in warned
    assert any(words in line for line in stitch(*paths, WORLD.draw("test").x).remarks())


def test_a_transcoder_is_compared_with_an_sae_under_a_warning(tmp_path, everywhere):
    paths = []
    for kind, inputs in (
        ("sae", 24),
        ("transcoder", 16),
    ):  # a transcoder may read another width than it writes
        tensors = {"w_enc": noise(inputs, 20, 0), "w_dec": noise(20, 24, 1), "b_dec": noise(1, 24, 2)[0]}
        tensors |= {"b_enc": noise(1, 20, 3)[0], "threshold": noise(1, 20, 4)[0].abs()}
        paths.append(tmp_path / kind)
        paths[-1].mkdir()
        save_file(tensors, paths[-1] / "params.safetensors")
        (paths[-1] / "config.json").write_text(json.dumps({"type": kind, "width": 20}))
    result = compare(paths, chance_draws=0)
    assert everywhere(
        result, "of different kinds, and may disagree for that reason alone: sae: SAE; transcoder"
    )
    assert [sae.what for sae in result.saes] == [None, "transcoder"]
    assert result.units.saes[0].partners[0].encoder_cosine is None  # their encoders read different inputs
    assert not any("kinds" in line for line in compare(paths[1], paths[1], chance_draws=0).remarks())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("model_name", ("openai-community/gpt2", "GPT2")),
        ("hook_name", ("blocks.3.hook_resid_post", "blocks.4.hook_resid_pre")),
        ("hook_name", ("blocks.3.hook_resid_post", None)),
    ],
)
def test_other_names_of_the_same_or_of_unknown_places_give_no_warning(tmp_path, field, values):
    paths = [save_saelens(tmp_path / f"sae{i}", i, **{field: value}) for i, value in enumerate(values)]
    assert [line for line in compare(paths, chance_draws=0).remarks() if "different" in line] == []
