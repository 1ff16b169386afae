"""Layers are checked against what a model says about itself, in no time and before its weights are read."""

import json
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from osae.data.places import check_place, split_gguf
from tests.data.tiny import BLOCKS, KINDS


def refuses(name, layer) -> bool:
    try:
        check_place(str(name), layer=layer)
    except ValueError as error:
        assert f"layer={layer}: the model has" in str(error)  # noqa: PT017
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_the_config_of_a_model_tells_which_layers_there_are(kind, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **KINDS[kind]).save_pretrained(tmp_path)
    assert [layer for layer in range(-2, 9) if not refuses(tmp_path, layer)] == list(range(BLOCKS + 1))


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "n_layers", "num_layers"])
def test_the_language_part_of_a_model_counts(key, tmp_path):
    config = {"text_config": {key: 5}, "vision_config": {key: 50}, "num_hidden_layers": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refuses(tmp_path, 6)
    assert not refuses(tmp_path, 5)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", '{"num_hidden_layers": "many"}', '{"num_hidden_layers": true}']
)
def test_a_config_that_tells_nothing_refuses_nothing(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    for name in (tmp_path, "no-such/model-here"):
        assert not refuses(name, 10**6)


def write_gguf(path, blocks=7, tokens=10):
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("a model")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_block_count(blocks)
    writer.add_token_list([f"w{number}" for number in range(tokens)])
    writer.add_tensor("weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_header_of_a_gguf_file_tells_which_layers_there_are(tmp_path):
    write_gguf(tmp_path / "model.gguf")
    for name in (f"{tmp_path}:model.gguf", tmp_path / "model.gguf"):
        assert refuses(name, 8)
        assert refuses(name, -1)
        assert not refuses(name, 7)


def test_a_gguf_file_that_is_damaged_refuses_nothing(tmp_path):
    data = write_gguf(tmp_path / "model.gguf").read_bytes()
    huge = data[:24] + struct.pack("<Q", 2**63) + data[32:]
    for damaged in (
        b"",
        b"nothing of the kind",
        data[:30],
        data[:60],
        huge,
        data.replace(b"block_count", b"block_names"),
    ):
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        assert not refuses(tmp_path / "damaged.gguf", 99)


@pytest.fixture
def hub(monkeypatch):
    """Return the paths that are asked of a hub of our own, which has one model."""
    from huggingface_hub import constants

    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            there = self.path == "/somebody/something/resolve/abc/config.json"
            self.send_response(200 if there else 503)
            self.end_headers()
            self.wfile.write(b'{"n_layer": 4}')

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            f"{address}/{template.split('/', 3)[3]}" if "://" in template else template,
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def test_a_model_on_the_hub_is_judged_by_its_config(hub):
    with pytest.raises(ValueError, match="choose a layer from 0 to 4"):
        check_place("somebody/something", layer=5, revision="abc")
    assert hub == ["/somebody/something/resolve/abc/config.json"]
    check_place("somebody/something:model.gguf", layer=99)  # large files are not fetched for this
    check_place("somebody/something", module="anything")
    assert len(hub) == 1


def test_a_hub_that_does_not_answer_is_asked_once_and_quietly(hub, capfd):
    start = time.monotonic()
    check_place("somebody/else", layer=5)
    assert len(hub) == 1
    assert time.monotonic() - start < 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("place", [{}, {"layer": 1, "module": "lm_head"}], ids=str)
def test_a_place_is_a_layer_or_a_module(place):
    with pytest.raises(ValueError, match="give one of the two"):
        check_place("gpt2", **place)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("gpt2", ("gpt2", "")),
        ("user/repo:model.gguf", ("user/repo", "model.gguf")),
        ("folder/model.gguf", ("folder", "model.gguf")),
        ("C:/folder:model.gguf", ("C:/folder", "model.gguf")),
    ],
)
def test_a_gguf_file_is_named_beside_its_folder_or_by_its_path(name, parts):
    assert split_gguf(name) == parts


def test_checking_loads_neither_torch_nor_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    script = (
        "import sys\nfrom osae.data.places import check_place\n"
        "try:\n check_place(sys.argv[1], layer=99)\nexcept ValueError as error:\n print(error)\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "layer=99: the model has 4 blocks; choose a layer from 0 to 4.\n"


@pytest.mark.parametrize("form", ["{}/none", "./none", "~/none", "a/b/none", "{}/none:model.gguf"])
def test_a_folder_that_does_not_exist_is_not_looked_for_on_the_hub(form, tmp_path):
    with pytest.raises(ValueError, match="none: there is no such folder"):
        check_place(form.format(tmp_path), module="anything")
