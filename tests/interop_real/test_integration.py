"""Ordered training inside of the real SAELens, and its SAEs in plain SAELens: `make test-interop`."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("sae_lens")
from datasets import Dataset
from sae_lens import SAE, LanguageModelSAERunnerConfig, LanguageModelSAETrainingRunner, LoggingConfig
from transformer_lens import HookedTransformer, HookedTransformerConfig

import osae.integrations.saelens as ordered
from osae.interop import load
from osae.prefix import Full, Uniform, all_prefix_loss_reference, prefix_weights

WIDTH, UNITS, K, CONTEXT, WORDS = 16, 48, 4, 16, 50
HOOK = "blocks.0.hook_resid_post"

PLAIN = """
import sys, torch
from sae_lens import SAE
sae = SAE.load_from_disk(sys.argv[1])
assert "osae" not in sys.modules
with torch.no_grad():
    torch.save((type(sae).__name__, sae.cfg.architecture(), sae(torch.load(sys.argv[2]))), sys.argv[3])
"""


def tiny_model():
    torch.manual_seed(0)
    config = HookedTransformerConfig(
        n_layers=1, d_model=WIDTH, n_ctx=CONTEXT, d_head=8, n_heads=2, d_vocab=WORDS, act_fn="gelu", seed=0
    )
    return HookedTransformer(config)


def tokens(contexts, seed):
    return torch.randint(0, WORDS, (contexts, CONTEXT), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def activations(model, seed):
    _, cache = model.run_with_cache(tokens(128, seed))
    return cache[HOOK].flatten(0, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the model, the runner's SAE, its losses on other text before and after, and its folder."""
    folder = tmp_path_factory.mktemp("saelens")
    model, steps, batch = tiny_model(), 300, 256
    config = LanguageModelSAERunnerConfig(
        sae=ordered.OrderedSAEConfig(
            d_in=WIDTH,
            d_sae=UNITS,
            k=K,
            k_warmup_steps=steps // 3,
            normalize_activations="expected_average_only_in",
        ),
        model_name="tiny",
        hook_name=HOOK,
        dataset_path="none",
        is_dataset_tokenized=True,
        streaming=False,
        context_size=CONTEXT,
        prepend_bos=False,
        training_tokens=steps * batch,
        train_batch_size_tokens=batch,
        n_batches_in_buffer=128,
        store_batch_size_prompts=64,
        n_batches_for_norm_estimate=10,
        lr=3e-3,
        device="cpu",
        n_checkpoints=0,
        checkpoint_path=None,
        output_path=str(folder / "out"),
        logger=LoggingConfig(log_to_wandb=False),
    )
    data = Dataset.from_dict({"tokens": tokens(2000, 1).tolist()})
    runner = LanguageModelSAETrainingRunner(config, override_dataset=data, override_model=model)
    x = activations(model, 2)
    before = ordered_loss(runner.sae, x)
    sae = runner.run()
    return model, sae, (before, ordered_loss(sae, x)), folder / "out"


@torch.no_grad()
def ordered_loss(sae, x):
    return float(sae.ordered_loss(x, sae.encode(x)).mean())


def test_the_real_runner_trains_it(trained):
    _, sae, (before, after), _ = trained
    assert isinstance(sae, ordered.OrderedSAE)
    assert after < 0.5 * before


def test_it_is_saved_as_a_plain_topk_sae_that_saelens_loads_without_osae(trained, tmp_path):
    model, sae, _, folder = trained
    x = activations(model, 3)
    torch.save(x, tmp_path / "x.pt")
    command = [sys.executable, "-W", "ignore", "-c", PLAIN, str(folder), str(tmp_path / "x.pt")]
    subprocess.run([*command, str(tmp_path / "found.pt")], env={"PATH": ""}, check=True)
    kind, architecture, outputs = torch.load(tmp_path / "found.pt")
    assert (kind, architecture) == ("TopKSAE", "topk")
    with torch.no_grad():
        torch.testing.assert_close(outputs, sae(x), atol=1e-4, rtol=1e-4)
    about = json.loads((folder / "cfg.json").read_text())["metadata"]
    assert about["training_architecture"] == "osae"
    assert about["training_architecture_details"]["prefix"]["kind"] == "Mixed"


def test_sorting_by_gain_moves_units_and_nothing_else(trained, tmp_path):
    model, _, _, folder = trained
    x, copy = activations(model, 4), tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    order = ordered.sort_by_gain(copy, x)
    before, after = load(folder), load(copy)
    assert sorted(order.tolist()) == list(range(UNITS))
    torch.testing.assert_close(after.decoder, before.decoder[order])
    torch.testing.assert_close(after(x), before(x), atol=1e-5, rtol=1e-5)
    assert ordered.sort_by_gain(copy, x).tolist() == list(range(UNITS))
    from safetensors.torch import load_file

    was, now = (load_file(each / "sparsity.safetensors")["sparsity"] for each in (folder, copy))
    torch.testing.assert_close(now, was[order])


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("prefix", [None, Uniform(), Full()], ids=repr)
def test_the_loss_is_that_of_the_definition(prefix, rescale):
    torch.manual_seed(0)
    config = ordered.OrderedSAEConfig(
        d_in=WIDTH, d_sae=UNITS, k=K, prefix=prefix, rescale_acts_by_decoder_norm=rescale
    )
    sae = ordered.OrderedSAE(config)
    with torch.no_grad():
        sae.W_dec.mul_(1 + torch.rand(UNITS, 1))
        sae.b_dec.normal_()
    x = torch.randn(32, WIDTH)
    acts = sae.encode(x)
    values, units = acts.topk(UNITS)
    atoms = torch.nn.functional.normalize(sae.W_dec, dim=1) if rescale else sae.W_dec
    from osae.config import from_json

    weights = prefix_weights(from_json(config.prefix), UNITS)
    expected = all_prefix_loss_reference(x - sae.b_dec, values, units, atoms, weights)
    found = sae.ordered_loss(x, acts)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    if prefix == Full():  # the plain objective
        torch.testing.assert_close(found, (x - sae(x)).square().sum(-1), atol=1e-4, rtol=1e-4)
    found.mean().backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in sae.parameters()
    )


def test_k_falls_to_its_target():
    sae = ordered.OrderedSAE(ordered.OrderedSAEConfig(d_in=8, d_sae=40, k=4, k_warmup_steps=10))
    assert [sae.k_at(step) for step in (0, 5, 10, 99)] == [20, 12, 4, 4]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"normalize_activations": "layer_norm"}, "scales each input separately"),
        ({"use_sparse_activations": True}, "remove it"),
        ({"prefix": 3}, "give a distribution from osae.prefix"),
    ],
    ids=str,
)
def test_what_it_cannot_train_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        ordered.OrderedSAEConfig(d_in=8, d_sae=16, k=2, **fields)


def test_saelens_makes_it_by_name():
    config = ordered.OrderedSAEConfig(d_in=8, d_sae=16, k=2).to_dict()
    from sae_lens.saes.sae import TrainingSAE

    assert isinstance(TrainingSAE.from_dict(json.loads(json.dumps(config))), ordered.OrderedSAE)
    with pytest.raises(KeyError):
        SAE.get_sae_class_for_architecture("osae")  # there is none for inference, and none is needed
