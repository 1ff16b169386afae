"""Golden files: SAEs saved by the real libraries, with what those libraries compute for a few inputs.

Run in the environment of `make test-interop`, where the libraries are installed:

    .venv-interop/bin/python tests/interop/make_golden.py

Each folder of tests/golden holds one SAE as its library saves it, and `expected.npz`: inputs `x`, the dense
code `acts` in units of unit atoms (the library's values times its decoder norms), and the reconstruction
`recon`. Width 8, 32 units.
"""

import importlib.util
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import torch

WIDTH, UNITS, K = 8, 32, 4
GOLDEN = Path(__file__).parents[1] / "golden"

# dictionary_learning imports nnsight for its buffer alone, and pins a release that cannot be installed here
sys.modules.setdefault("nnsight", types.SimpleNamespace(LanguageModel=object))  # pyright: ignore


def main():
    torch.manual_seed(0)
    for name, make in MAKERS.items():
        folder = GOLDEN / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with torch.no_grad():
            x = 2 * torch.randn(16, WIDTH) + 0.5
            acts, recon = make(folder, x)
        arrays = {"x": x, "acts": acts, "recon": recon}
        np.savez(folder / "expected.npz", **{key: value.numpy() for key, value in arrays.items()})
        print(name)
    print(f"{sum(file.stat().st_size for file in GOLDEN.rglob('*') if file.is_file())} bytes")


def filled(module, *, norms=True):
    """The module with random weights of sensible size; decoder norms between 0.5 and 2 if `norms`."""
    for name, value in module.named_parameters():
        value.copy_(torch.randn_like(value) * (0.3 if value.ndim == 1 else 0.6))
        if "threshold" in name:
            value.abs_()
    for name, axis in (("W_dec", 1), ("W_D", 1), ("decoder.weight", 0)):
        value = dict(module.named_parameters()).get(name)
        if value is not None:
            length = torch.rand(UNITS) * 1.5 + 0.5 if norms else torch.ones(UNITS)
            value.mul_((length / value.norm(dim=axis)).unsqueeze(axis))
    return module


# --- SAELens --------------------------------------------------------------------------------------


def saelens(architecture, *, norms=True, fields=None):
    def make(folder, x):
        from sae_lens.registry import get_sae_class

        cls, config_cls = get_sae_class(architecture)
        extra = {"k": K} if architecture in ("topk", "abstopk") else {}
        sae = filled(cls(config_cls(d_in=WIDTH, d_sae=UNITS, **extra, **(fields or {}))), norms=norms)
        sae.save_model(folder)
        return saelens_output(folder, x)

    return make


def saelens_output(folder, x):
    from sae_lens import SAE

    sae = SAE.load_from_disk(folder)
    rescaled = getattr(sae.cfg, "rescale_acts_by_decoder_norm", False)  # then values have the norms already
    return sae.encode(x) * (1 if rescaled else sae.W_dec.norm(dim=-1)), sae(x)


def saelens_training(architecture, fields):
    """A checkpoint in the middle of a training, and what its inference version computes."""

    def make(folder, x):
        from sae_lens.registry import get_sae_training_class

        cls, config_cls = get_sae_training_class(architecture)
        sae = filled(cls(config_cls(d_in=WIDTH, d_sae=UNITS, **fields)))
        if hasattr(sae, "topk_threshold"):
            sae.topk_threshold.fill_(0.8)
        sae.save_model(folder)
        sae.save_inference_model(folder / "inference")
        output = saelens_output(folder / "inference", x)
        shutil.rmtree(folder / "inference")
        return output

    return make


def saelens_scaled(folder, x):
    """A checkpoint that was trained on scaled inputs, with the scale beside it."""
    from sae_lens.registry import get_sae_training_class

    cls, config_cls = get_sae_training_class("topk")
    fields = {"k": K, "normalize_activations": "expected_average_only_in"}
    sae = filled(cls(config_cls(d_in=WIDTH, d_sae=UNITS, **fields)))
    sae.save_model(folder)
    (folder / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 0.3}))
    sae.fold_activation_norm_scaling_factor(0.3)
    sae.save_inference_model(folder / "inference")
    output = saelens_output(folder / "inference", x)
    shutil.rmtree(folder / "inference")
    return output


def saelens_whitened(architecture, fields):
    """A checkpoint in the middle of a training on whitened inputs, with the whitening beside it."""

    def make(folder, x):
        from sae_lens import SAE
        from sae_lens.registry import get_sae_training_class
        from sae_lens.training.activation_scaler import ActivationScaler, ActivationWhitening

        cls, config_cls = get_sae_training_class(architecture)
        chosen = {"normalize_activations": "covariance_whitening"} | fields
        sae = filled(cls(config_cls(d_in=WIDTH, d_sae=UNITS, **chosen)))
        if hasattr(sae, "topk_threshold"):
            sae.topk_threshold.fill_(0.8)
        sae.save_model(folder)
        matrix = torch.eye(WIDTH) + 0.2 * torch.randn(WIDTH, WIDTH)
        scaler = ActivationScaler(whitening=ActivationWhitening(torch.randn(WIDTH), matrix, matrix.inverse()))
        scaler.save(str(folder / "activation_scaler.json"))
        sae.save_inference_model(folder / "inference")
        run = SAE.load_from_disk(folder / "inference")
        shutil.rmtree(folder / "inference")
        z = scaler.scale(x)
        lengths = (run.W_dec @ matrix.inverse()).norm(dim=-1)
        return run.encode(z) * lengths, scaler.unscale(run(z))

    return make


def saelens_saved(architecture, **fields):
    """An SAE that is only saved: ours does not run it."""

    def make(folder, x):
        from sae_lens.registry import get_sae_class

        cls, config_cls = get_sae_class(architecture)
        filled(cls(config_cls(d_in=WIDTH, d_sae=UNITS, **fields))).save_model(folder)
        return torch.zeros(len(x), UNITS), torch.zeros_like(x)

    return make


def saelens_old(fields):
    """The flat cfg.json of the releases before 6, read by the real library's path for old files."""

    def make(folder, x):
        saelens("standard")(folder, x)
        about = {
            "d_in": WIDTH,
            "d_sae": UNITS,
            "dtype": "torch.float32",
            "hook_point": "blocks.0.hook_resid_pre",
        }
        (folder / "cfg.json").write_text(json.dumps(about | {"prepend_bos": True} | fields))
        return saelens_output(folder, x)

    return make


# --- dictionary_learning --------------------------------------------------------------------------


def dictionary(name, *, norms=False, threshold=None, backup=None):
    def make(folder, x):
        import dictionary_learning.dictionary as plain
        from dictionary_learning.trainers.batch_top_k import BatchTopKSAE
        from dictionary_learning.trainers.matryoshka_batch_top_k import MatryoshkaBatchTopKSAE
        from dictionary_learning.trainers.top_k import AutoEncoderTopK
        from dictionary_learning.utils import load_dictionary

        made = {
            "AutoEncoderTopK": lambda: AutoEncoderTopK(WIDTH, UNITS, K),
            "BatchTopKSAE": lambda: BatchTopKSAE(WIDTH, UNITS, K),
            "MatryoshkaBatchTopKSAE": lambda: MatryoshkaBatchTopKSAE(WIDTH, UNITS, K, [4, 12, 16]),
        }.get(name, lambda: getattr(plain, name)(WIDTH, UNITS))
        ae = filled(made(), norms=norms)
        if threshold is not None:
            ae.threshold.fill_(threshold)
        trainer = {
            "dict_class": name,
            "activation_dim": WIDTH,
            "dict_size": UNITS,
            "lm_name": "m",
            "layer": 0,
        }
        trainer |= {"k": K} if hasattr(ae, "k") else {}
        (folder / "config.json").write_text(json.dumps({"trainer": trainer, "buffer": {"ctx_len": 128}}))
        torch.save(ae.state_dict(), folder / "ae.pt")
        ae, _ = load_dictionary(str(folder), "cpu")
        if backup is not None:  # as training.py leaves it when it is interrupted
            optimizer = torch.optim.Adam(ae.parameters())
            held = {"step": 7, "ae": ae.state_dict(), "optimizer": optimizer.state_dict(), "config": trainer}
            torch.save(held | {"norm_factor": backup}, folder / "ae.pt")
            ae.scale_biases(backup)
        recon, acts = ae(x, output_features=True)
        lengths = ae.W_dec.norm(dim=1) if hasattr(ae, "W_dec") else ae.decoder.weight.norm(dim=0)
        return acts * lengths, recon

    return make


# --- overcomplete ---------------------------------------------------------------------------------


def import_overcomplete():
    """Import the SAEs alone: the package itself imports vision models that are not needed here."""
    if "overcomplete" not in sys.modules:
        spec = importlib.util.find_spec("overcomplete")
        package = types.ModuleType("overcomplete")
        package.__path__ = list(spec.submodule_search_locations)  # pyright: ignore
        sys.modules["overcomplete"] = package
    return importlib.import_module("overcomplete.sae")


def overcomplete(name, *, encoder=None, whole=True, normalization="l2"):
    """A whole module, or its state_dict, after a few batches in training."""

    def make(folder, x):
        classes = import_overcomplete()
        options = {
            "TopKSAE": {"top_k": K},
            "BatchTopKSAE": {"top_k": 200},
            "QSAE": {"q": 3},
            "MpSAE": {"k": K},
        }
        options |= {"OMPSAE": {"k": K}, "RATopKSAE": {"top_k": K}}
        chosen = dict(options.get(name, {}))
        if name.startswith("RA"):
            chosen |= {"points": torch.randn(20, WIDTH), "delta": 0.3}
        else:
            chosen["dictionary_params"] = {"normalization": normalization, "use_multiplier": True}
        if encoder not in (None, "tied", "untied"):
            chosen["encoder_module"] = encoder
        sae = getattr(classes, name)(WIDTH, UNITS, **chosen)
        if encoder in ("tied", "untied"):
            sae = getattr(sae, encoder)(bias=True)
        for key, value in sae.named_parameters():
            value.add_(torch.full_like(value, 2.0) if key == "thresholds" else 0.3 * torch.randn_like(value))
        for _ in range(3):  # batch norm, thresholds and dictionaries are updated by what they see
            sae(2 * torch.randn(32, WIDTH))
        sae.eval()
        torch.save(sae if whole else sae.state_dict(), folder / "sae.pt")
        _, acts, recon = sae(x)
        return acts * sae.get_dictionary().norm(dim=1), recon

    return make


# --- sparsify -------------------------------------------------------------------------------------


def sparsify(*, norms=False, **fields):
    def make(folder, x):
        from sparsify import SparseCoder, SparseCoderConfig

        config = SparseCoderConfig(expansion_factor=UNITS // WIDTH, k=K, **fields)
        filled(SparseCoder(WIDTH, config), norms=norms).save_to_disk(folder)
        coder = SparseCoder.load_from_disk(folder)
        values, units, _ = coder.encode(x)
        acts = torch.zeros(len(x), UNITS).scatter(-1, units, values)
        return acts * coder.W_dec.norm(dim=1), coder(x).sae_out

    return make


# --- Llamascopium ---------------------------------------------------------------------------------


def llamascopium(act_fn, average=None, fields=None):
    """Folded for inference, or with the average norm of the inputs stored for the user to scale them by."""

    def make(folder, x):
        from llamascopium.models.sae import SAEConfig, SparseAutoEncoder

        about = {
            "d_model": WIDTH,
            "expansion_factor": UNITS / WIDTH,
            "hook_point_in": "h",
            "hook_point_out": "h",
        }
        norm = "dataset-wise" if average else "inference"
        about |= {
            "act_fn": act_fn,
            "top_k": K,
            "norm_activation": norm,
            "device": "cpu",
            "dtype": torch.float32,
        }
        sae = filled(SparseAutoEncoder(SAEConfig(**about, **(fields or {}))))
        if average:
            sae.set_dataset_average_activation_norm({"h": average})
        sae.save_pretrained(folder)
        sae.cfg.save_hyperparameters(folder)
        scale = WIDTH**0.5 / average if average else 1.0
        acts = sae.encode(scale * x)
        return acts * sae.decoder_norm() / scale, sae.decode(acts) / scale

    return make


# --- Gemma Scope ----------------------------------------------------------------------------------


def gemma_scope(folder, x):
    """The published layout, computed by SAELens with the settings of its Gemma Scope loader."""
    acts, recon = saelens("jumprelu", norms=False, fields={"apply_b_dec_to_input": False})(folder, x)
    from safetensors.numpy import load_file

    np.savez(folder / "params.npz", **load_file(folder / "sae_weights.safetensors"))
    (folder / "sae_weights.safetensors").unlink()
    (folder / "cfg.json").unlink()
    return acts, recon


MAKERS = {
    "saelens-standard": saelens("standard"),
    "saelens-topk": saelens("topk", norms=False),
    "saelens-topk-norms": saelens("topk"),
    "saelens-topk-rescaled": saelens("topk", fields={"rescale_acts_by_decoder_norm": True}),
    "saelens-jumprelu": saelens("jumprelu"),
    "saelens-jumprelu-no-pre-bias": saelens("jumprelu", fields={"apply_b_dec_to_input": False}),
    "saelens-gated": saelens("gated"),
    "saelens-layer-norm": saelens("standard", fields={"normalize_activations": "layer_norm"}),
    "saelens-abstopk": saelens("abstopk"),
    "saelens-checkpoint-topk": saelens_training("topk", {"k": K}),
    "saelens-checkpoint-batchtopk": saelens_training("batchtopk", {"k": 3.5}),
    "saelens-checkpoint-matryoshka": saelens_training(
        "matryoshka_batchtopk", {"k": K, "matryoshka_widths": [8]}
    ),
    "saelens-checkpoint-scaled": saelens_scaled,
    "saelens-old": saelens_old({"activation_fn_str": "relu", "normalize_activations": False}),
    "saelens-old-topk": saelens_old({"activation_fn_str": "topk", "activation_fn_kwargs": {"k": K}}),
    "dictionary_learning-AutoEncoder": dictionary("AutoEncoder", norms=True),
    "dictionary_learning-AutoEncoderNew": dictionary("AutoEncoderNew"),
    "dictionary_learning-AutoEncoderTopK": dictionary("AutoEncoderTopK"),
    "dictionary_learning-BatchTopKSAE": dictionary("BatchTopKSAE", threshold=0.8),
    "dictionary_learning-BatchTopKSAE-unset": dictionary("BatchTopKSAE"),
    "dictionary_learning-MatryoshkaBatchTopKSAE": dictionary("MatryoshkaBatchTopKSAE", threshold=0.8),
    "dictionary_learning-JumpReluAutoEncoder": dictionary("JumpReluAutoEncoder"),
    "dictionary_learning-GatedAutoEncoder": dictionary("GatedAutoEncoder", norms=True),
    "dictionary_learning-backup": dictionary("AutoEncoderTopK", backup=2.5),
    "sparsify": sparsify(),
    "sparsify-norms": sparsify(norms=True, num_latents=UNITS),
    "sparsify-groupmax": sparsify(activation="groupmax"),
    "llamascopium-topk": llamascopium("topk", average=3.0),
    "llamascopium-jumprelu": llamascopium("jumprelu"),
    "llamascopium-relu": llamascopium("relu", fields={"sparsity_include_decoder_norm": False}),
    "llamascopium-batchtopk": llamascopium("batchtopk"),
    "gemma_scope": gemma_scope,
    "saelens-constant-norm": saelens("jumprelu", fields={"normalize_activations": "constant_norm_rescale"}),
    "saelens-topk-layer-norm": saelens("topk", fields={"normalize_activations": "layer_norm"}),
    "saelens-matching-pursuit": saelens_saved("matching_pursuit"),
    "saelens-temporal": saelens_saved("temporal", n_heads=2, n_attn_layers=1, bottleneck_factor=2),
    "saelens-transcoder": saelens_saved("jumprelu_transcoder", d_out=WIDTH, apply_b_dec_to_input=False),
    "saelens-checkpoint-whitened": saelens_whitened("standard", {}),
    "overcomplete-SAE": overcomplete("SAE", encoder="mlp_bn_1"),
    "overcomplete-TopKSAE": overcomplete("TopKSAE"),
    "overcomplete-BatchTopKSAE": overcomplete("BatchTopKSAE", normalization="max_l2"),
    "overcomplete-RATopKSAE": overcomplete("RATopKSAE", encoder="untied"),
    "overcomplete-RAJumpSAE-state": overcomplete("RAJumpSAE", whole=False),
    "overcomplete-QSAE": overcomplete("QSAE"),
}

if __name__ == "__main__":
    main()
