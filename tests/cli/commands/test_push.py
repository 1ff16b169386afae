"""`osae push` as a user meets it, with a hub on loopback."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

import osae
from osae.cli import main
from tests.interop.fake_hub import TOKEN, environment, running_hub

# the hub's library uploads files in a way that its HTTP library wants to change
pytestmark = pytest.mark.filterwarnings("ignore:.*content.*:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path_factory):
    """Return a hub that the hub's library uses in this process, as with HF_ENDPOINT from its start."""
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    with running_hub() as server:
        cache = tmp_path_factory.mktemp("hub")
        for name, value in environment(server, cache).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(hf_api.api, "endpoint", server.url)
        disable_progress_bars()
        yield server
        enable_progress_bars()


@pytest.fixture
def compared(here):
    """Return the folder, with a comparison of its SAEs in compare.json."""
    assert main(["compare", "a", "b", "c", "--data", "x", "--json", "compare.json"]) == 0
    return here


def test_what_is_pushed_can_be_loaded_and_computes_the_same(here, hub, capsys):
    assert main(["push", "a", "hf:me/mine", "--model", "gpt2", "--layer", "3", "--private"]) == 0
    assert capsys.readouterr().out.startswith(f"{hub.url}/me/mine/commit/")
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(0))
    for address in ("hf:me/mine", "hf:me/mine/blocks.3.hook_resid_post"):
        loaded = osae.load(address)
        torch.testing.assert_close(loaded(x), osae.load("a")(x), atol=1e-5, rtol=1e-5)
        assert (loaded.place.model, loaded.place.layer) == ("gpt2", 3)
    assert hub.repositories["me/mine"].private
    assert len(hub.repositories["me/mine"].commits) == 2  # that of a new repository, and one more


def test_sparsify_files_of_a_repository_can_be_named(here, hub):
    assert main(["push", "a", "hf:me/mine"]) == 0
    loaded = osae.load("hf:me/mine/a/sae.safetensors")
    assert loaded.format == "sparsify"
    torch.testing.assert_close(loaded.decoder, osae.load("a").decoder)


def test_a_dry_run_writes_the_folder_and_asks_nobody(compared, hub, capsys):
    words = ["push", "b", "hf:me/mine", "--results", "compare.json", "--license", "mit", "--dry-run", "out"]
    assert main(words) == 0
    assert hub.asked == []
    out = compared / "out"
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert files == ["README.md", "b/cfg.json", "b/sae.safetensors", "b/sae_weights.safetensors"]


def test_metadata_has_the_scores_of_every_unit(compared, capsys):
    main(["push", "b", "hf:me/mine", "--results", "compare.json", "--dry-run", "out"])
    about = json.loads((compared / "out/b/cfg.json").read_text())["metadata"]["osae"]["scores"]
    result = osae.read_results("compare.json")
    assert about["explained_variance"] == result.saes[1].reconstruction.measures["explained_variance"]
    expected = dict(zip(result.units.saes[1].unit, result.units.saes[1].measures["expected"], strict=True))
    assert about["compared_with"] == 2
    assert about["reproducibility"] == list(result.units.saes[1].measures["reproducibility"])
    assert about["expected"] == pytest.approx([expected[unit] for unit in range(20)], abs=1e-4)


def test_a_repository_with_files_is_replaced_only_on_request(here, hub, capsys):
    assert main(["push", "a", "hf:me/mine"]) == 0
    before = dict(hub.repositories["me/mine"].files)
    assert main(["push", "b", "hf:me/mine"]) == 2
    assert "already has 4 files: add --replace to replace them." in capsys.readouterr().err
    assert hub.repositories["me/mine"].files == before
    assert main(["push", "b", "hf:me/mine", "--replace"]) == 0
    folders = {name.partition("/")[0] for name in hub.repositories["me/mine"].files}
    assert folders == {".gitattributes", "README.md", "b"}


def test_a_public_repository_is_not_taken_for_a_private_one(here, hub, capsys):
    assert main(["push", "a", "hf:me/mine"]) == 0
    assert main(["push", "a", "hf:me/mine", "--private", "--replace"]) == 2
    assert "me/mine is public" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["validate-yaml", "preupload", "objects/batch", "/blobs/", "/commit/"])
def test_a_push_that_fails_leaves_no_files_and_names_no_token(here, hub, where, capsys):
    hub.refuse[where] = f"the token {TOKEN} may not do this"
    assert main(["push", "a", "hf:me/mine"]) == 2
    shown = "".join(capsys.readouterr())
    assert len(shown.splitlines()) == 1
    assert TOKEN not in shown
    assert set(hub.repositories["me/mine"].files) == {".gitattributes"}
    hub.refuse.clear()
    assert main(["push", "a", "hf:me/mine"]) == 0


@pytest.mark.slow
def test_a_push_that_is_killed_leaves_no_files(here, hub, tmp_path):
    hub.hold.clear()
    command = [sys.executable, "-m", "osae", "push", "a", "hf:me/mine"]
    process = subprocess.Popen(command, env=os.environ | environment(hub, tmp_path / "home"))
    try:
        assert hub.held.wait(120)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    hub.hold.set()
    assert set(hub.repositories["me/mine"].files) == {".gitattributes"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "me/mine"], "me/mine: give an address such as hf:user/repo"),
        (["a", "hf:me/mine/folder"], "give an address such as hf:user/repo"),
        (["nothing", "hf:me/mine"], "nothing: there is no such file or folder."),
        (["a", "hf:me/mine", "--dry-run", "b"], "b already contains files"),
        (["a", "hf:me/mine", "--dry-run", "out", "--private"], "--private has no effect with --dry-run"),
        (["a", "hf:me/mine", "--dry-run", "out", "--results", "other.json"], "their digests differ"),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(here, words, message, capsys):
    from osae.results import write_json

    write_json(osae.evaluate(["b"], "x", model="none"), "other.json")
    capsys.readouterr()
    assert main(["push", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
