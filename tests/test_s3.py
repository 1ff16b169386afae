"""Activations, SAEs and runs on a real S3 server: the same bits as here, also after a process is killed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
import torch

from osae.data.harvest import Harvest, harvest
from osae.data.shards import Shards, write_shards
from osae.data.text import TextFiles
from osae.model import SAE
from osae.stores import Store
from tests.data.tiny import documents, saved_model, saved_text
from tests.stored import files_at, stored_files

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
BUCKET = "s3://activations"
TRAIN = ["train", "osae,topk", "--units", "16", "--k", "3", "--batch", "50", "--device", "cpu"]
TRAIN += ["--epochs", "20", "--checkpoint-seconds", "0.2"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of moto's server, with credentials for it in the environment."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    given = {
        "AWS_ENDPOINT_URL_S3": address,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield address
    server.stop()


@pytest.fixture(autouse=True)
def bucket(server, tmp_path, monkeypatch):
    """A new bucket, and a machine that has seen nothing yet."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST"))
    monkeypatch.setenv("OSAE_CACHE", str(tmp_path / "cache"))
    system = s3fs.S3FileSystem()
    system.mkdir("activations")
    return system


@pytest.fixture
def acts():
    rows = torch.randn(2000, 12, generator=torch.Generator().manual_seed(0))
    return write_shards(f"{BUCKET}/acts", [rows], rows_per_shard=500)


def osae(*words: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the command in a process of its own."""
    line = [sys.executable, "-m", "osae", *words]
    there = {name: value for name, value in (os.environ | environment).items() if value}
    return subprocess.run(line, capture_output=True, text=True, env=there, timeout=200)


def test_a_run_that_is_killed_is_resumed_elsewhere_with_the_same_bits(acts, tmp_path):
    write_shards(tmp_path / "acts", acts.batches(500), rows_per_shard=500)
    words = [*TRAIN, "--data", str(tmp_path / "acts"), "--out", str(tmp_path / "run")]
    assert osae(*words).returncode == 0
    out = f"{BUCKET}/runs/one"
    line = [sys.executable, "-m", "osae", *TRAIN, "--data", f"{BUCKET}/acts", "--out", out]
    store, deadline = Store(out), time.monotonic() + 100
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as training:
        while "checkpoint-before.safetensors" not in store.list():
            assert training.poll() is None, training.stderr and training.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        training.send_signal(signal.SIGKILL)
    assert "osae-seed0/sae.json" not in store.list()
    done = osae("resume", out, OSAE_CACHE=str(tmp_path / "another machine"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{out}/osae-seed0", f"{out}/topk-seed0"]
    found, expected = stored_files(out), files_at(tmp_path / "run")
    for name in ("osae-seed0", "topk-seed0"):
        assert found[f"{name}/sae.safetensors"] == expected[f"{name}/sae.safetensors"]
    assert found["log.jsonl"] == expected["log.jsonl"]
    assert torch.equal(SAE.load(f"{out}/topk-seed0").decoder, SAE.load(tmp_path / "run/topk-seed0").decoder)
    compared = osae("compare", out, "--json", str(tmp_path / "compared.json"))
    assert compared.returncode == 0, compared.stderr
    subjects = json.loads((tmp_path / "compared.json").read_text())
    assert f"{out}/topk-seed0" in json.dumps(subjects)


def test_a_damaged_checkpoint_on_the_store_is_passed_over(acts, bucket, tmp_path):
    out = f"{BUCKET}/run"
    first = osae(*TRAIN, "--data", f"{BUCKET}/acts", "--out", out)
    assert first.returncode == 0, first.stderr
    whole = stored_files(out)
    for name in ("osae-seed0", "topk-seed0"):
        bucket.rm(f"activations/run/{name}", recursive=True)
    data = bytearray(whole["checkpoint.safetensors"])
    data[-1] ^= 1
    bucket.pipe_file("activations/run/checkpoint.safetensors", bytes(data))
    done = osae("resume", out)
    assert done.returncode == 0, done.stderr
    assert f"{out}/checkpoint.safetensors" in done.stderr
    assert "resumed from the previous checkpoint" in done.stderr
    assert stored_files(out)["osae-seed0/sae.safetensors"] == whole["osae-seed0/sae.safetensors"]


def test_a_damaged_shard_is_named_by_its_url(acts, bucket):
    data = bytearray(bucket.cat_file("activations/acts/00002.safetensors"))
    data[-1] ^= 1
    bucket.pipe_file("activations/acts/00002.safetensors", bytes(data))
    done = osae(*TRAIN, "--data", f"{BUCKET}/acts", "--out", f"{BUCKET}/run")
    assert done.returncode == 2
    assert f"{BUCKET}/acts/00002.safetensors is not the file that" in done.stderr
    assert Store(f"{BUCKET}/run").list() == {}


def test_no_bucket_and_no_credentials_are_one_line_each(acts):
    cases = {
        "s3://no-such-bucket/run: ": osae(
            *TRAIN, "--data", f"{BUCKET}/acts", "--out", "s3://no-such-bucket/run"
        ),
        "s3://no-such-bucket/acts: ": osae("inspect", "s3://no-such-bucket/acts"),
        f"{BUCKET}/acts: Unable to locate credentials: set AWS_ACCESS_KEY_ID": osae(
            "inspect", f"{BUCKET}/acts", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""
        ),
    }
    for words, done in cases.items():
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1
        assert words in done.stderr


def test_rows_are_read_in_place_if_there_is_no_room_for_copies(acts, monkeypatch, tmp_path):
    monkeypatch.setenv("OSAE_CACHE_GB", "0")
    shards = Shards(f"{BUCKET}/acts")
    ranges = [(start, start + 7) for start in range(0, 1990, 30)]
    expected = [acts.read(*each) for each in ranges]
    assert all(map(torch.equal, shards.read_ranges(ranges), expected))


def test_a_harvest_that_is_killed_is_resumed_elsewhere_with_the_same_bits(tmp_path, monkeypatch, bucket):
    model = saved_model(tmp_path / "model")
    text = TextFiles((str(saved_text(tmp_path / "text.jsonl", documents(40))),))
    spec = Harvest(str(model), text, 10_000, layer=1, context=8, block=80, max_norm=0)
    harvest(spec, tmp_path / "acts", device="cpu")
    for number in ("00001", "00003"):  # as if it had been killed before these, and the manifest
        harvest(spec, f"{BUCKET}/acts", device="cpu")
        bucket.rm_file(f"activations/acts/{number}.safetensors")
        bucket.rm_file("activations/acts/manifest.json")
        monkeypatch.setenv("OSAE_CACHE", str(tmp_path / f"machine {number}"))
    shards, share = harvest(spec, f"{BUCKET}/acts", device="cpu")
    assert share is not None
    assert stored_files(f"{BUCKET}/acts") == files_at(tmp_path / "acts")
    assert torch.equal(shards.read(0, shards.rows), Shards(tmp_path / "acts").read(0, shards.rows))
    assert harvest(spec, f"{BUCKET}/acts", device="nowhere: nothing is opened")[1] is None
