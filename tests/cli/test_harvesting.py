"""`osae harvest` as a user meets it: what it says, and that a wrong request ends with one line and code 2."""

import json

import pytest

from osae.cli import main
from osae.data.shards import Shards
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
    assert "500 rows of width 16 in 3 shards; 0 outliers left out" in said
    assert said.strip().endswith(str(out))
    assert main(["inspect", str(out), "--verify"]) == 0
    assert "500" in capsys.readouterr().out
    assert main([*words, str(out)]) == 0  # again: all is there
    assert "500 rows" in capsys.readouterr().out
    told = json.loads((out / "harvest.json").read_text())
    assert (told["dtype"], told["harvest"]["layer"], told["harvest"]["tokens"]) == ("float16", 1, 500)


def test_too_little_text_is_said(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts"), "--tokens", "1e6"]) == 0
    assert "of the 1000000 rows asked for" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--text", "bad.jsonl"], "bad.jsonl, line 2 is not JSON"),
        (["--text", "cut.jsonl.xz"], "cannot be read to its end"),
        (["--text", "text.pdf"], "not .pdf"),
        (["--text", "nothing*.txt"], "no file nothing*.txt"),
        (["--text-field", "body"], "no text under 'body'; there is text"),
        (["--layer", "4"], "give 0 to 3"),
        (["--model", "nan"], "NaN or infinity"),
        (["--model", "large", "--layer", "0"], "--dtype bfloat16 or float32"),
        (["--model", "./nowhere"], "cannot be opened as a language model"),
        (["--model", "model:weights.gguf"], "holds no weights.gguf"),
        (["--skip-positions", "8"], "leave at least one"),
        (["--max-norm", "0.1"], "at least 1, or 0"),
        (["--device", "toaster"], "'toaster' cannot be used here"),
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
    last = error[error.index("osae: ") :].strip()
    assert len(last.splitlines()) == 1


def test_an_unknown_module_is_refused(words, tmp_path, capsys):
    place = words.index("--layer")
    changed = [*words[:place], "--module", "model.layers.9.mlp", *words[place + 2 :]]
    assert main([*changed, str(tmp_path / "acts")]) == 2
    assert "no module 'model.layers.9.mlp': there are model.layers.0.mlp" in capsys.readouterr().err


def test_another_harvest_in_the_folder_is_refused(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / "acts")]) == 0
    assert main([*words, str(tmp_path / "acts"), "--layer", "2"]) == 2
    assert "holds another harvest" in capsys.readouterr().err


def test_a_wrong_request_can_be_mended_in_the_same_folder(words, tmp_path):
    assert main([*words, str(tmp_path / "acts"), "--layer", "9"]) == 2
    assert main([*words, str(tmp_path / "acts")]) == 0
