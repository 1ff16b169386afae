"""overcomplete's files: state_dicts here, whole modules in tests/golden and with the real library."""

import io
import json
import pickle
import zipfile

import pytest
import torch
from torch.nn.functional import normalize, relu

from osae.interop import load
from osae.interop.modules import Inert, flatten
from osae.sparsify import BatchTopK, JumpReLU, ReLU, TopK
from tests.interop.fuzz import GOLDEN, Call

WIDTH, UNITS, K = 8, 32, 4


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = 2 * noise(64, WIDTH, seed=9)


def state(**more):
    """A state_dict of the default encoder and a dictionary of radius exp(0.3)."""
    return {
        "encoder.final_block.0.weight": 0.5 * noise(UNITS, WIDTH, seed=1),
        "encoder.final_block.0.bias": 0.3 * noise(UNITS, seed=2),
        "dictionary._weights": normalize(noise(UNITS, WIDTH, seed=3), dim=1),
        "dictionary.multiplier": torch.tensor(0.3),
    } | more


def save(folder, held, config=None):
    torch.save(held, folder / "sae.pt")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return load(folder)


def pre(held, x=X):
    return x @ held["encoder.final_block.0.weight"].T + held["encoder.final_block.0.bias"]


def atoms(held):
    return held["dictionary._weights"] * held["dictionary.multiplier"].exp()


def test_a_jump_sae_is_told_by_its_thresholds(tmp_path):
    held = state(thresholds=torch.linspace(-2, 0.5, UNITS))
    loaded = save(tmp_path, held)
    acts = pre(held) * (pre(held) > held["thresholds"].exp())
    assert (loaded.format, loaded.sae.config.sparsifier) == ("overcomplete", JumpReLU())  # pyright: ignore
    torch.testing.assert_close(loaded(X), acts @ atoms(held), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "sparsifier"),
    [
        ({"class": "SAE"}, ReLU()),
        ({"class": "TopKSAE", "top_k": K}, TopK(K)),
        ({"class": "BatchTopKSAE", "top_k": 200, "running_threshold": 0.7}, BatchTopK(UNITS)),
    ],
    ids=str,
)
def test_a_config_beside_names_the_class(tmp_path, config, sparsifier):
    held = state()
    loaded = save(tmp_path, held, config)
    acts = relu(pre(held))
    if isinstance(sparsifier, TopK):
        values, units = acts.topk(K)
        acts = torch.zeros_like(acts).scatter(-1, units, values)
    if isinstance(sparsifier, BatchTopK):
        acts = acts * (acts > 0.7)
    assert loaded.require_sae().config.sparsifier == sparsifier
    torch.testing.assert_close(loaded(X), acts @ atoms(held), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "may be an SAE, a TopKSAE or a BatchTopKSAE"),
        ({"Q": torch.zeros(4)}, "QSAE"),
        (
            {"thresholds": torch.zeros(UNITS), "encoder.mlp_blocks.0.0.weight": torch.zeros(4, 4)},
            "hidden layers",
        ),
        (
            {"thresholds": torch.zeros(UNITS), "encoder.final_block.1.weight": torch.zeros(UNITS)},
            "layer norm",
        ),
        (
            {"thresholds": torch.zeros(UNITS), "dictionary._weights": noise(UNITS, WIDTH, seed=4)},
            "not normalized",
        ),
    ],
    ids=str,
)
def test_what_the_file_does_not_tell_is_not_guessed(tmp_path, changes, words):
    loaded = save(tmp_path, state(**changes))
    assert (loaded.format, loaded.units, loaded.width) == ("overcomplete", UNITS, WIDTH)
    with pytest.raises(ValueError, match=words):
        loaded.encode(X)


def test_without_an_encoder_it_is_matching_pursuit(tmp_path):
    held = {name: tensor for name, tensor in state().items() if name.startswith("dictionary")}
    with pytest.raises(ValueError, match="matching pursuit"):
        save(tmp_path, held).encode(X)
    (tmp_path / "config.json").write_text('{"class": "TopKSAE", "top_k": 4}')
    with pytest.raises(ValueError, match="its encoder is the identity"):
        save(tmp_path, held).encode(X)


def test_batch_norm_is_folded_as_in_evaluation(tmp_path):
    norm = torch.nn.BatchNorm1d(UNITS).eval()
    with torch.no_grad():
        for place, tensor in enumerate((norm.weight, norm.bias, norm.running_mean)):
            tensor.copy_(noise(UNITS, seed=5 + place))  # pyright: ignore
        norm.running_var.copy_(noise(UNITS, seed=8).exp())  # pyright: ignore
    named = {f"encoder.final_block.1.{name}": tensor for name, tensor in norm.state_dict().items()}
    held = state(**named)
    with torch.no_grad():
        expected = relu(norm(pre(held))) @ atoms(held)
    torch.testing.assert_close(save(tmp_path, held, {"class": "SAE"})(X), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_encoder_is_the_dictionary(tmp_path, tied):
    points, mixing, relax = (
        noise(40, WIDTH, seed=1),
        noise(UNITS, 40, seed=2),
        0.1 * noise(UNITS, WIDTH, seed=3),
    )
    held = {"dictionary.C": points, "dictionary.W": mixing, "dictionary.Relax": relax}
    held |= {"dictionary.multiplier": torch.tensor(-0.2), "encoder.bias": 0.2 * noise(UNITS, seed=4)}
    rows = relu(mixing) / relu(mixing).sum(1, keepdim=True) @ points + relax
    decoder = rows * torch.tensor(-0.2).exp()
    encoder = decoder if tied else noise(UNITS, WIDTH, seed=5)
    if tied:
        held |= {f"encoder.tied_to.{name}": held[f"dictionary.{name}"] for name in ("C", "W", "Relax")}
    else:
        held["encoder.weight"] = encoder
    held["thresholds"] = torch.full((UNITS,), -1.0)
    values = X @ encoder.T + held["encoder.bias"]
    expected = values * (values > torch.tensor(-1.0).exp()) @ decoder
    torch.testing.assert_close(save(tmp_path, held)(X), expected, atol=1e-4, rtol=1e-4)


def test_archetypes_that_do_not_fit_are_refused(tmp_path):
    held = {"dictionary.C": noise(40, WIDTH, seed=1), "dictionary.W": noise(UNITS, 39, seed=2)}
    with pytest.raises(ValueError, match="must fit each other"):
        save(tmp_path, held | {"dictionary.Relax": noise(UNITS, WIDTH, seed=3)})


# --- whole modules ----------------------------------------------------------------------------------


def rewrite(source, target, pickled):
    """Copy a torch archive with another pickle in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, pickled if name.endswith("data.pkl") else old.read(name))


def pickle_of(path):
    with zipfile.ZipFile(path) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def test_reading_a_module_imports_nothing_and_runs_nothing(tmp_path):
    whole = next(GOLDEN.glob("overcomplete-TopKSAE/*.pt"))
    canary = tmp_path / "ran"
    hostile = pickle.dumps(Call(eval, f"open({str(canary)!r}, 'w')"), protocol=2)[2:-1]
    data = pickle_of(whole)
    # after the first name, where the library has been recognised
    end = data.index(b"TopKSAE\n") + len(b"TopKSAE\n")
    rewrite(whole, tmp_path / "sae.pt", data[:end] + hostile + b"0" + data[end:])
    with pytest.raises(ValueError, match=r"builtin.*eval, but code in files is never run"):
        load(tmp_path / "sae.pt")
    assert not canary.exists()


def test_a_module_may_not_set_the_state_of_anything_but_modules(tmp_path):
    whole = next(GOLDEN.glob("overcomplete-TopKSAE/*.pt"))
    data = pickle_of(whole)
    end = data.index(b"TopKSAE\n") + len(b"TopKSAE\n")
    made = b"c__builtin__\nset\n)R}b"  # a set, with a state
    rewrite(whole, tmp_path / "sae.pt", data[:end] + made + data[end:])
    with pytest.raises(ValueError, match="sets the state of a set"):
        load(tmp_path / "sae.pt")


def test_a_module_of_another_library_is_refused(tmp_path):
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(2, 2), buffer)
    (tmp_path / "sae.pt").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="code in files is never run"):
        load(tmp_path / "sae.pt")


def test_modules_nested_in_themselves_come_to_an_end():
    inner = Inert()
    inner["_modules"] = {str(place): inner for place in range(100)}
    with pytest.raises(ValueError, match="more than 1000 modules"):
        flatten(inner)
