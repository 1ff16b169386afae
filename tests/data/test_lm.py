"""Language models: what passes a place is what transformers says passes there."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from osae.data.lm import LanguageModel
from tests.data.tiny import BLOCKS, KINDS, save_tokenizer, saved_model

IDS = torch.randint(2, 62, (4, 12), generator=torch.Generator().manual_seed(0))
LENGTHS = (12, 3, 7, 1)
MODULES = {
    "llama": ("model.layers.1.mlp", "model.layers.2.self_attn", "model.layers.0", "lm_head"),
    "gpt_neox": ("gpt_neox.layers.1.mlp", "gpt_neox.layers.2.attention", "gpt_neox.layers.0"),
    "gpt2": ("transformer.h.1.mlp", "transformer.h.2.attn", "transformer.h.0"),
    "gemma2": ("model.layers.1.mlp", "model.layers.2.self_attn", "model.layers.0"),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(kind: str):
        if kind not in made:
            made[kind] = saved_model(tmp_path_factory.mktemp(kind), kind)
        return str(made[kind])

    return folder


@contextmanager
def outputs_of(model, name: str):
    seen = []
    hook = dict(model.named_modules())[name].register_forward_hook(lambda module, args, out: seen.append(out))
    yield seen
    hook.remove()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_layer_is_that_of_hidden_states_also_for_contexts_filled_up_on_the_right(kind, folder_of):
    whole = AutoModelForCausalLM.from_pretrained(folder_of(kind), attn_implementation="eager").eval()
    alone = [
        whole(ids[None, :length], output_hidden_states=True).hidden_states
        for ids, length in zip(IDS, LENGTHS, strict=True)
    ]
    filled = IDS.clone()
    for row, length in enumerate(LENGTHS):
        filled[row, length:] = 0
    for layer in range(BLOCKS + 1):
        given = LanguageModel(folder_of(kind), layer=layer, device="cpu").activations(filled)
        assert given.dtype == torch.float32
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(given[row, :length], alone[row][layer][0], rtol=1e-4, atol=1e-5)
    stages = [hidden[0] for hidden in alone[0]]
    assert all(not torch.allclose(a, b, atol=0.01) for a, b in pairwise(stages))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in MODULES.items() for name in names]
)
@torch.no_grad()
def test_a_module_by_name_gives_what_it_puts_out(kind, name, folder_of):
    whole = AutoModelForCausalLM.from_pretrained(folder_of(kind)).eval()
    with outputs_of(whole, name) as seen:
        whole(IDS)
    expected = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    given = LanguageModel(folder_of(kind), module=name, device="cpu").activations(IDS)
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6)


def test_gemmas_first_block_sees_four_tokens_and_its_second_all(folder_of):
    other = IDS.clone()
    other[:, 0] = (other[:, 0] + 1) % 60 + 2
    for layer, seen in ((1, 4), (2, 12)):
        lm = LanguageModel(folder_of("gemma2"), layer=layer, device="cpu")
        changed = (lm.activations(IDS) - lm.activations(other)).abs().amax(dim=(0, 2)) > 1e-5
        assert changed.tolist() == [True] * seen + [False] * (12 - seen)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_the_model_and_the_identity_leaves_them(kind, folder_of):
    whole = AutoModelForCausalLM.from_pretrained(folder_of(kind)).eval()
    with torch.no_grad():
        logits = whole(IDS).logits[:, :-1].log_softmax(-1)
    expected = -logits.gather(2, IDS[:, 1:, None])[..., 0]
    for layer in range(BLOCKS + 1):
        lm = LanguageModel(folder_of(kind), layer=layer, device="cpu")
        plain = lm.losses(IDS)
        torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(lm.losses(IDS, lambda hidden: hidden), plain)
        assert torch.equal(lm.losses(IDS, lambda hidden: hidden.clone(), skip=3), plain)
        assert not torch.allclose(lm.losses(IDS, torch.zeros_like), plain, atol=0.01)


@pytest.mark.parametrize(
    "place", [{"layer": 1}, {"layer": BLOCKS}, {"module": "model.layers.1.mlp"}], ids=str
)
def test_skipped_positions_pass_unchanged(place, folder_of):
    lm = LanguageModel(folder_of("llama"), **place, device="cpu")
    plain, seen = lm.losses(IDS), []

    def nothing(hidden):
        seen.append(hidden)
        return torch.zeros_like(hidden)

    changed = lm.losses(IDS, nothing, skip=5)
    assert torch.equal(seen[0], lm.activations(IDS)[:, 5:])
    assert torch.equal(changed[:, :5], plain[:, :5])
    assert not torch.allclose(changed[:, 5:], plain[:, 5:], atol=0.01)
    assert torch.equal(lm.losses(IDS, nothing, skip=12), plain)


def test_activations_can_be_trained_on(folder_of):
    rows = LanguageModel(folder_of("llama"), layer=1, device="cpu").activations(IDS)
    weight = torch.ones(16, requires_grad=True)
    (rows * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"layer": 4}, "choose a layer from 0 to 3"),
        ({"layer": -1}, "choose a layer from 0 to 3"),
        ({"module": "model.layers.7.mlp"}, "no module"),
        ({"layer": 1, "module": "lm_head"}, "give one of the two"),
        ({}, "give one of the two"),
        ({"layer": 1, "device": "toaster"}, "cannot be used"),
        ({"layer": 1, "device": "cuda:77"}, "cannot be used"),
    ],
    ids=str,
)
def test_a_place_that_is_not_there_is_refused(place, words, folder_of):
    with pytest.raises(ValueError, match=words):
        LanguageModel(folder_of("llama"), **{"device": "cpu", **place})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.rotary_emb", "one row per token"),
        ("model.layers", "never runs"),
        ("", "one row per token"),
    ],
)
def test_a_module_that_gives_no_rows_is_refused(name, words, folder_of):
    with pytest.raises(ValueError, match=words):
        LanguageModel(folder_of("llama"), module=name, device="cpu").activations(IDS)


def test_a_model_that_cannot_be_opened_is_refused_in_one_line(tmp_path, folder_of):
    (tmp_path / "config.json").write_text('{"model_type": "llama"')
    words = r"cannot be opened|no such folder|contains no model\.gguf"
    for name in (str(tmp_path), str(tmp_path / "nowhere"), f"{tmp_path}:model.gguf"):
        with pytest.raises(ValueError, match=words) as refused:
            LanguageModel(name, layer=1)
        assert "\n" not in str(refused.value)
    (tmp_path / "model.gguf").write_bytes(b"nothing of the kind")
    for name in (f"{tmp_path}:model.gguf", str(tmp_path / "model.gguf")):
        with pytest.raises(ValueError, match="cannot be opened"):
            LanguageModel(name, layer=1)


def test_bars_are_as_they_were_after_opening_a_model(folder_of, tmp_path):
    from transformers import modeling_gguf_pytorch_utils as gguf

    shown, bar = logging.is_progress_bar_enabled(), gguf.tqdm
    LanguageModel(folder_of("llama"), layer=1, device="cpu")
    with pytest.raises(ValueError, match="cannot be opened"):
        LanguageModel(str(tmp_path), layer=1, device="cpu")
    assert (logging.is_progress_bar_enabled(), gguf.tqdm) == (shown, bar)


def test_bos_is_the_models_habit_unless_said_otherwise(tmp_path):
    silent = LanguageModel(str(saved_model(tmp_path / "a")), layer=1, device="cpu")
    assert [silent.bos(wanted) for wanted in ("auto", "yes", "no")] == [None, 1, None]
    begins = LanguageModel(str(saved_model(tmp_path / "b", begins=True)), layer=1, device="cpu")
    assert [begins.bos(wanted) for wanted in ("auto", "yes", "no")] == [1, 1, None]
    save_tokenizer(tmp_path / "a", bos=False)
    without = LanguageModel(str(tmp_path / "a"), layer=1, device="cpu")
    assert [without.bos(wanted) for wanted in ("auto", "no")] == [None, None]
    with pytest.raises(ValueError, match="no BOS token"):
        without.bos("yes")


def test_a_model_without_attention_has_a_forecast(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    model = LanguageModel(str(tmp_path), layer=1, device="cpu")
    assert model.forecast_bytes(128, 8) > 0
