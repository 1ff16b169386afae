"""Every architecture that the real libraries offer: read with the same outputs or refused, and converted.

What is read is converted to every library that can express it; there it computes the same again.
"""

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

from osae.interop import convert, load
from tests.interop_real.test_real import RUN, TIGHT, UNITS, WIDTH

pytest.importorskip("sae_lens")
_spec = importlib.util.spec_from_file_location(
    "make_golden", Path(__file__).parents[1] / "interop" / "make_golden.py"
)
assert _spec is not None
assert _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

K = golden.K
NORMALISATIONS = ("none", "layer_norm", "constant_norm_rescale")
PLAIN = {"standard": {}, "topk": {}, "jumprelu": {}, "gated": {}}
CASES = {}
for (name, fields), normalisation, pre_bias in itertools.product(
    PLAIN.items(), NORMALISATIONS, (True, False)
):
    about = {"normalize_activations": normalisation, "apply_b_dec_to_input": pre_bias} | fields
    CASES[f"saelens {name} {normalisation} {'b_dec' if pre_bias else 'no b_dec'}"] = golden.saelens(
        name, fields=about
    )
TRAINING = {
    "standard": {},
    "gated": {},
    "jumprelu": {},
    "topk": {"k": K},
    "batchtopk": {"k": K},
    "matryoshka_batchtopk": {"k": K, "matryoshka_widths": [8]},
}
for name, fields in TRAINING.items():
    CASES[f"saelens checkpoint {name}"] = golden.saelens_training(name, fields)
    CASES[f"saelens checkpoint {name} whitened"] = golden.saelens_whitened(name, fields)
for name in ("AutoEncoder", "AutoEncoderNew", "AutoEncoderTopK", "GatedAutoEncoder", "JumpReluAutoEncoder"):
    CASES[f"dictionary_learning {name}"] = golden.dictionary(
        name, norms=name not in ("AutoEncoderTopK", "AutoEncoderNew")
    )
for name in ("BatchTopKSAE", "MatryoshkaBatchTopKSAE"):
    CASES[f"dictionary_learning {name}"] = golden.dictionary(name, threshold=0.8)
CASES["sparsify topk"] = golden.sparsify()
CASES["sparsify norms"] = golden.sparsify(norms=True, normalize_decoder=False)
for name, encoder in itertools.product(
    ("SAE", "TopKSAE", "BatchTopKSAE", "JumpSAE", "RATopKSAE", "RAJumpSAE"),
    (None, "mlp_bn_1", "tied", "untied"),
):
    CASES[f"overcomplete {name} {encoder}"] = golden.overcomplete(name, encoder=encoder)
CASES["overcomplete SAE linear"] = golden.overcomplete("SAE", encoder="linear")
for normalization in ("max_l2", "l1", "max_l1", "identity"):
    CASES[f"overcomplete JumpSAE {normalization}"] = golden.overcomplete(
        "JumpSAE", normalization=normalization
    )
CASES["overcomplete RAJumpSAE state"] = golden.overcomplete("RAJumpSAE", whole=False)


def overcomplete_with(encoder, shape):
    """An SAE of overcomplete whose encoder does not read rows of activations, as it is built."""

    def make(folder, x):
        sae = golden.import_overcomplete().TopKSAE(shape, UNITS, top_k=K, encoder_module=encoder)
        torch.save(sae.eval(), folder / "sae.pt")
        return x, x

    return make


REFUSED = {
    "saelens abstopk": (golden.saelens_saved("abstopk", k=K), "abstopk selects"),
    "saelens matching_pursuit": (golden.saelens_saved("matching_pursuit"), "matching pursuit"),
    "saelens temporal": (golden.saelens_saved("temporal", n_heads=2, bottleneck_factor=2), "temporal"),
    "sparsify groupmax": (golden.sparsify(activation="groupmax"), "groupmax"),
    "sparsify skip": (golden.sparsify(skip_connection=True), "skip connection"),
    "sparsify transcode": (golden.sparsify(transcode=True), "it is a transcoder"),
    "overcomplete TopKSAE state": (golden.overcomplete("TopKSAE", whole=False), "may be an SAE, a TopKSAE"),
    "overcomplete QSAE": (golden.overcomplete("QSAE"), "quantized"),
    "overcomplete MpSAE": (golden.overcomplete("MpSAE"), "matching pursuit"),
    "overcomplete OMPSAE": (golden.overcomplete("OMPSAE"), "matching pursuit"),
    "overcomplete hidden": (golden.overcomplete("TopKSAE", encoder="mlp_bn_3"), "hidden layers"),
    "overcomplete layer norm": (golden.overcomplete("TopKSAE", encoder="mlp_ln_1"), "layer norm"),
}
REFUSED["overcomplete identity"] = (overcomplete_with("identity", WIDTH), "encoder is the identity")
REFUSED["overcomplete mlp_ln_3"] = (overcomplete_with("mlp_ln_3", WIDTH), "hidden layers")
for blocks in (1, 3):
    for name, shape in ((f"resnet_{blocks}b", (WIDTH, 4, 4)), (f"attention_{blocks}b", (5, WIDTH))):
        REFUSED[f"overcomplete {name}"] = (overcomplete_with(name, shape), "hidden layers")
for name in ("transcoder", "skip_transcoder", "jumprelu_transcoder", "jumprelu_skip_transcoder"):
    REFUSED[f"saelens {name}"] = (
        golden.saelens_saved(name, d_out=WIDTH, apply_b_dec_to_input=False),
        "it is a transcoder",
    )


def covered(library):
    """Return the words of all cases of a library."""
    names = [name.split() for name in (*CASES, *REFUSED)]
    return {word for words in names if words[0] == library for word in words}


def test_every_architecture_that_they_offer_is_a_case():
    import dictionary_learning.dictionary as theirs
    import dictionary_learning.trainers  # noqa: F401  defines further classes
    from sae_lens.registry import SAE_CLASS_REGISTRY, SAE_TRAINING_CLASS_REGISTRY

    registered = set(SAE_CLASS_REGISTRY) | set(SAE_TRAINING_CLASS_REGISTRY)
    assert registered - {"osae"} <= covered("saelens")  # which `osae.integrations.saelens` adds
    known = {each.__name__ for each in all_subclasses(theirs.Dictionary)}
    assert known - {"IdentityDict"} <= covered("dictionary_learning")  # which has no weights to save
    classes = golden.import_overcomplete()
    kinds = {each.__name__ for each in all_subclasses(classes.SAE)}
    assert {"SAE", "TopKSAE"} < kinds | {"SAE"} <= covered("overcomplete")
    encoders = set(classes.EncoderFactory.list_modules())
    named = {"mlp_bn_3": "hidden", "mlp_ln_1": "layer"}  # by what is refused about them
    assert {named.get(name, name) for name in encoders} <= covered("overcomplete")


def all_subclasses(kind):
    """Return the classes derived from one, directly or not."""
    direct = set(kind.__subclasses__())
    return direct.union(*(all_subclasses(each) for each in direct))


@torch.no_grad()
def make(maker, folder, seed=0):
    torch.manual_seed(seed)
    x = 2 * torch.randn(48, WIDTH) + 0.5
    folder.mkdir()
    return x, *maker(folder, x)


def agrees(x, acts, recon, found_acts, found_recon):
    """Compare rows away from where a rounding error decides whether a unit fires."""
    same = ((found_acts != 0) == (acts != 0)).all(1)
    assert float(same.float().mean()) > 0.9
    torch.testing.assert_close(found_acts[same], acts[same], **TIGHT)
    torch.testing.assert_close(found_recon[same], recon[same], **TIGHT)
    assert (acts != 0).any()


def converts(loaded, folder, to):
    """Return whether the library can express the SAE; it is then written to the folder."""
    try:
        convert(loaded, folder, to=to)
    except ValueError as error:
        if "would be lost" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_what_they_save_computes_the_same_here_and_converted_for_the_others(name, tmp_path):
    x, acts, recon = make(CASES[name], tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    norms = loaded.decoder.norm(dim=1)
    assert loaded.format == name.split()[0]
    agrees(x, acts, recon, loaded.encode(x).dense(UNITS) * norms, loaded(x))
    written = [to for to in RUN if converts(loaded, tmp_path / to, to)]
    assert "saelens" in written  # which can express all of them
    for to in written:
        found, again = RUN[to](tmp_path / to, x)
        agrees(x, acts, recon, found * norms, again)


@pytest.mark.parametrize("name", REFUSED)
def test_what_ours_cannot_run_is_named(name, tmp_path):
    maker, words = REFUSED[name]
    x, *_ = make(maker, tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    assert loaded.decoder.shape == (UNITS, WIDTH)
    with pytest.raises(ValueError, match=words):
        loaded.encode(x)
