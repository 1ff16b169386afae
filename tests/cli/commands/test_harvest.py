"""`osae harvest` as a user meets it: what it says, and that a wrong request ends with one line and code 2."""

import json
import subprocess
import sys

import pytest

from osae.cli import main
from osae.data.shards import Shards
from osae.files import CHECKSUM
from tests.data.tiny import documents, saved_model, saved_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("harvesting")
    saved_model(made / "model")
    saved_model(made / "nan", scale=float("nan"))
    saved_model(made / "large", scale=1e7)
    saved_text(made / "text.jsonl", documents(60))
    (made / "bad.jsonl").write_text('{"text": "w1 w2"}\nnothing\n')
    (made / "cut.jsonl.xz").write_bytes(b"\xfd7zXZ\x00")
    (made / "text.pdf").write_text("w1")
    return made


@pytest.fixture
def words(folder, monkeypatch):
    monkeypatch.chdir(folder)
    given = ["harvest", "--model", "model", "--layer", "1", "--text", "text.jsonl", "--tokens", "5e2"]
    return [*given, "--context", "8", "--mix-rows", "200", "--device", "cpu", "--out"]


def test_a_harvest_says_what_it_made_and_can_be_inspected(words, tmp_path, capsys):
    out = tmp_path / "acts"
    assert main([*words, str(out)]) == 0
    said = capsys.readouterr().out
    contexts = Shards(out).manifest["text"]["contexts"]  # of each the first position goes
    left_out = f"0 outliers left out, {contexts} first positions skipped; "
    assert f"500 rows of width 16 in 3 shards; {left_out}" in said
    assert "of the time was spent in the model" in said
    assert said.strip().endswith(str(out))
    assert main(["inspect", str(out), "--verify"]) == 0
    assert "500" in capsys.readouterr().out
    assert main([*words, str(out)]) == 0  # again: all is there
    again = capsys.readouterr().out
    assert "500 rows" in again
    assert "of the time" not in again
    told = json.loads((out / "harvest.json").read_text())
    assert (told["dtype"], told["harvest"]["layer"], told["harvest"]["tokens"]) == ("float16", 1, 500)


def test_too_little_text_is_said(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts"), "--tokens", "1e6"]) == 0
    assert "of the 1000000 rows asked for" in capsys.readouterr().out


def test_outliers_are_not_blamed_on_the_text(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts"), "--max-norm", "1"]) == 0
    said = capsys.readouterr().out
    assert "the text yields only" not in said
    assert Shards(tmp_path / "acts").rows < 500


def test_places_without_a_text_are_counted(words, folder, tmp_path, capsys):
    lines = (folder / "text.jsonl").read_text()
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' + lines)
    assert main([*words, str(tmp_path / "acts"), "--text", str(tmp_path / "nulls.jsonl")]) == 0
    assert "documents without text, skipped: 1" in capsys.readouterr().out
    assert Shards(tmp_path / "acts").manifest["text"]["passed"] == 1
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' * 3)
    assert main([*words, str(tmp_path / "none"), "--text", str(tmp_path / "nulls.jsonl")]) == 2
    assert "contains only whitespace" in capsys.readouterr().err


def test_a_flipped_byte_and_a_missing_shard_are_found(words, tmp_path, capsys):
    out = tmp_path / "acts"
    assert main([*words, str(out)]) == 0
    shard = Shards(out).shards[1].file
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    assert main(["inspect", str(out)]) == 0
    assert main(["inspect", str(out), "--verify"]) == 2
    assert f"{shard} is not the file" in capsys.readouterr().err
    assert main([*words, str(out)]) == 0  # what is damaged is not declared whole by running again
    assert main(["inspect", str(out), "--verify"]) == 2
    shard.unlink()
    assert main(["inspect", str(out), "--verify"]) == 2
    assert "is missing" in capsys.readouterr().err
    assert main([*words, str(out)]) == 0
    assert main(["inspect", str(out), "--verify"]) == 0


def test_a_flipped_byte_in_the_contexts_is_found(words, tmp_path, capsys):
    out = tmp_path / "acts"
    assert main([*words, str(out)]) == 0
    assert main(["inspect", str(out), "--verify"]) == 0
    assert "no checksum" not in capsys.readouterr().out
    contexts, manifest = out / "contexts.safetensors", out / "manifest.json"
    whole, told = contexts.read_bytes(), manifest.read_bytes()
    contexts.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert main(["inspect", str(out), "--verify"]) == 2
    assert f"{contexts} is not the file" in capsys.readouterr().err
    contexts.unlink()
    assert main(["inspect", str(out), "--verify"]) == 2
    assert main([*words, str(out)]) == 0  # makes it again
    assert (contexts.read_bytes(), manifest.read_bytes()) == (whole, told)
    older = {name: value for name, value in json.loads(told).items() if name not in ("files", CHECKSUM)}
    manifest.write_text(json.dumps(older, indent=2) + "\n")
    before = manifest.read_bytes(), Shards(out).provenance()["sha256"]
    assert main(["inspect", str(out), "--verify"]) == 0
    assert "contexts.safetensors has no checksum" in capsys.readouterr().out
    assert main([*words, str(out)]) == 0
    assert (manifest.read_bytes(), Shards(out).provenance()["sha256"]) == before


def test_inspect_shows_a_manifest_in_lines_to_read(words, tmp_path, capsys):
    out = tmp_path / "acts"
    assert main([*words, str(out)]) == 0
    told = Shards(out).manifest
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines)
    assert facts["mean"] == f"16 numbers, norm {sum(m * m for m in told['mean']) ** 0.5:.4g}"
    assert (facts["model.name"], facts["harvest.context"]) == ("model", "8")
    assert facts["text.files.0.sha256"] == told["text"]["files"][0]["sha256"]
    assert facts["norms.0.5"] == f"{told['norms']['0.5']:.6g}"
    assert "{" not in "".join(lines)
    assert max(map(len, lines)) < 110


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--text", "bad.jsonl"], "bad.jsonl, line 2 is not JSON"),
        (["--text", "cut.jsonl.xz"], "cannot be read to its end"),
        (["--text", "text.pdf"], "not .pdf"),
        (["--text", "nothing*.txt"], "no file nothing*.txt"),
        (["--text", "model"], "model is a folder, not a file: give a pattern such as model/*.txt"),
        (["--text-field", "body"], "no text under 'body'; it has text"),
        (["--layer", "4"], "choose a layer from 0 to 3"),
        (["--model", "nan"], "NaN or infinity"),
        (["--model", "large", "--layer", "0"], "--dtype bfloat16 or float32"),
        (["--model", "./nowhere"], "./nowhere: there is no such folder"),
        (["--model", "model:weights.gguf"], "contains no weights.gguf"),
        (["--skip-positions", "8"], "leaves no tokens in a --context of 8: skip at most 7"),
        (["--max-norm", "0.1"], "at least 1, or 0"),
        (["--device", "toaster"], "--device toaster: give auto, cpu, mps, cuda or cuda:N"),
        (["--context", "100"], "at most 64 tokens"),
        (
            ["--part", "held-out", "--text", "text.jsonl", "--context", "50", "--skip-positions", "49"],
            "held-out",
        ),
    ],
    ids=str,
)
def test_a_wrong_request_ends_with_one_line_and_code_2(changes, message, words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts"), *changes]) == 2
    error = capsys.readouterr().err
    assert message in error
    said = [line for line in error.splitlines() if line.startswith(("osae: ", "osae harvest: --"))]
    assert len(said) == 1


def test_an_unknown_module_is_refused(words, tmp_path, capsys):
    place = words.index("--layer")
    changed = [*words[:place], "--module", "model.layers.9.mlp", *words[place + 2 :]]
    assert main([*changed, str(tmp_path / "acts")]) == 2
    assert "no module 'model.layers.9.mlp': the model has model.layers.0.mlp" in capsys.readouterr().err


def test_another_harvest_in_the_folder_is_refused(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts")]) == 0
    assert main([*words, str(tmp_path / "acts"), "--layer", "2"]) == 2
    assert "contains another harvest" in capsys.readouterr().err


def test_a_wrong_request_can_be_corrected_in_the_same_folder(words, tmp_path):
    assert main([*words, str(tmp_path / "acts"), "--layer", "9"]) == 2
    assert main([*words, str(tmp_path / "acts")]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--layer", "99"], "choose a layer from 0 to 3"),
        (["--text", "empty.txt"], "contains only whitespace"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [["harvest"], ["train", "topk", "--live", "--units", "8", "--k", "2"]])
def test_what_can_be_refused_without_torch_is(command, changes, message, words, folder, tmp_path):
    (folder / "empty.txt").write_text(" \n")
    asked = [*command, *words[1:], str(tmp_path / "out"), *changes]
    script = f"import sys; from osae.cli import main; print(main({asked}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "2 False\n"
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
