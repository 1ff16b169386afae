"""Dictionaries: one suite over those that ship, and over one that is defined here in a single class."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from scipy.optimize import nnls
from torch.nn.functional import normalize

from osae import dictionary
from osae.config import alter, from_json, to_json, variant
from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.dictionary import Aligned, Archetypal, Dictionary, FreeAtoms, Matrices, Separated, Tied
from osae.interop import convert, load
from osae.model import SAE
from osae.recipes import FromData, Task, world_recipe
from osae.revival import AuxK, Resample, Split
from osae.schedule import Resort, Sweep
from osae.training import run
from osae.training.loop import Batches, train
from osae.training.member import Member
from osae.training.revive import revive


@variant
@dataclass(frozen=True)
class Turned(Dictionary):
    """Rows of any norm, scaled to norm one and turned by a rotation that all units share; e_i = gain d_i."""

    gain: float = 0.8
    atom_parameters: ClassVar[tuple[str, ...]] = ("rows",)

    def build(self, tensors):
        atoms = normalize(tensors["rows"], dim=-1) @ tensors["rotation"]
        return Matrices(atoms, self.gain * atoms)

    def invert(self, wanted, constants):
        return {"rows": wanted.decoder @ constants["rotation"].T}

    def draw_constants(self, rows, generator):
        return {"rotation": torch.linalg.qr(torch.randn(rows.shape[1], rows.shape[1], generator=generator)).Q}


WORLD = SparseWorld(width=12, units=16, active=2, samples=2000)
TASK = Task(width=12, units=16, k=2, samples=8000, batch=100)
ALL = [FreeAtoms(), Separated(), Tied(), Aligned(), Archetypal(points=200, relaxation=0.2), Turned()]
BOUND = (Tied, Turned)  # the encoder follows from the atom


@pytest.fixture(scope="module")
def rows():
    return WORLD.draw().x


def each(test):
    return pytest.mark.parametrize("dictionary", ALL, ids=lambda one: type(one).__name__)(test)


def trained(dictionary, rows, steps, **changes) -> Member:
    member = Member(alter(world_recipe("osae", TASK), {"dictionary": dictionary, **changes}), 0, rows)
    for step in range(steps):
        member.advance(Batches(MemoryRows(rows), member.seed, member.recipe.batch).at(step % 20), step)
        member.revive_if_due(rows, step + 1)
        member.resort_if_due(rows, step + 1)
    return member


@torch.no_grad()
def error(sae, rows) -> float:
    return float((rows - sae(rows).reconstruction).square().mean())


def copies(member) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in member.state().items()}


# --- one suite over all of them ---------------------------------------------------------------------


@each
def test_it_survives_json_as_part_of_a_recipe(dictionary):
    made = replace(world_recipe("osae", TASK), dictionary=dictionary)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


@each
@pytest.mark.parametrize("start", [{}, {"start": FromData(500)}], ids=["noise", "data"])
def test_it_trains_and_keeps_unit_atoms(dictionary, start, rows):
    before = trained(dictionary, rows, 0, **start).finish()
    member = trained(dictionary, rows, 80, **start)
    after = member.finish()
    assert error(after, rows) < 0.6 * error(before, rows)
    torch.testing.assert_close(after.decoder.norm(dim=1), torch.ones(16), rtol=0, atol=1e-5)


@each
@pytest.mark.parametrize("revival", [AuxK(4, 0.5, 200), Resample(8, 0.0, 0.9, 0), Split(8, 0.0, 0.9, 5.0)])
def test_the_matrices_always_are_those_of_the_parameters(dictionary, revival, rows):
    member = trained(dictionary, rows, 40, revival=revival, sweep=Sweep(0.0, 1.0), resort=Resort(8))
    built = dictionary.build({**member.weights.parameters, **member.weights.constants})
    assert torch.equal(member.sae.decoder, built.decoder)
    assert torch.equal(member.sae.encoder, built.encoder)


@each
def test_a_unit_follows_from_its_own_rows_alone(dictionary, rows):
    weights = trained(dictionary, rows, 10).weights
    before = Matrices(weights.sae.decoder.detach().clone(), weights.sae.encoder.detach().clone())
    with torch.no_grad():
        for parameter in weights.parameters.values():
            parameter[3] += torch.rand(parameter.shape[1], generator=torch.Generator().manual_seed(0))
    weights.refresh()
    others = torch.arange(16) != 3
    assert torch.equal(weights.sae.decoder[others], before.decoder[others])
    assert torch.equal(weights.sae.encoder[others], before.encoder[others])
    assert not torch.equal(weights.sae.decoder[3], before.decoder[3])


@each
def test_parameters_get_the_gradient_of_the_loss(dictionary, rows):
    """Compared with autograd through `build`, with what the dictionary adds, less what it projects away."""
    weights = trained(dictionary, rows, 10).weights
    source = torch.Generator().manual_seed(0)
    on_decoder, on_encoder = (torch.randn(16, 12, generator=source) for _ in range(2))
    free = {name: p.detach().clone().requires_grad_() for name, p in weights.parameters.items()}
    built = dictionary.build({**free, **weights.constants})
    ((on_decoder * built.decoder).sum() + (on_encoder * built.encoder).sum()).backward()
    with torch.no_grad():
        dictionary.add_gradients_(free)
        dictionary.project_gradients_(free)
    weights.zero_grad()
    ((on_decoder * weights.sae.decoder).sum() + (on_encoder * weights.sae.encoder).sum()).backward()
    weights.pull_back()
    for name, parameter in weights.parameters.items():
        torch.testing.assert_close(parameter.grad, free[name].grad)


@each
def test_sorting_permutes_everything_and_changes_no_output(dictionary, rows):
    member = trained(dictionary, rows, 30, resort=None)
    before, atoms, was = copies(member), member.sae.decoder.detach().clone(), error(member.sae, rows)
    member.resort(rows, 30)
    assert error(member.sae, rows) == pytest.approx(was, rel=1e-4)
    order = torch.cdist(member.sae.decoder.detach(), atoms).argmin(1)
    assert sorted(order.tolist()) == list(range(16))
    assert order.tolist() != list(range(16))
    for name, value in member.state().items():
        per_unit = name.split("/")[-1] not in member.weights.constants and value.ndim and len(value) == 16
        assert torch.equal(value, before[name][order] if per_unit else before[name]), name


@each
@pytest.mark.parametrize("revival", [None, Split(10, 0.0, 1.0, 5.0), Resample(10, 0.0, 1.0, 0)], ids=str)
def test_frozen_units_do_not_move_and_neither_do_their_moments(dictionary, revival, rows):
    changes = {"sweep": Sweep(0.0, 1.0), "revival": revival, "resort": Resort(10)}  # every 8 steps
    member = trained(dictionary, rows, 39, **changes)
    before = [tensor.detach().clone() for tensor in member.unit_tensors()[:-1]]
    matrices = [member.sae.decoder.detach().clone(), member.sae.encoder.detach().clone()]
    member.advance(Batches(MemoryRows(rows), member.seed, member.recipe.batch).at(20), 39)
    member.revive_if_due(rows, 40)
    member.resort_if_due(rows, 40)
    assert member.frozen_at(39) == 7
    now = [*member.unit_tensors()[:-1], member.sae.decoder, member.sae.encoder]
    for new, old in zip(now, [*before, *matrices], strict=True):
        assert torch.equal(new[:7], old[:7])
    assert not torch.equal(member.sae.decoder[7:], matrices[0][7:])


@each
def test_frozen_atoms_leave_their_encoders_free_where_these_are_not_bound(dictionary, rows):
    sweep = Sweep(0.0, 0.0, part=0.25, atoms_only=True)
    start = trained(dictionary, rows, 0, sweep=sweep, resort=None, revival=None).sae
    after = trained(dictionary, rows, 20, sweep=sweep, resort=None, revival=None).sae
    assert torch.equal(after.decoder[:4], start.decoder[:4])
    assert not torch.equal(after.decoder[4:], start.decoder[4:])
    assert torch.equal(after.encoder[:4], start.encoder[:4]) == isinstance(dictionary, BOUND)


@each
def test_replaced_units_are_what_was_asked_for_or_near_it(dictionary, rows):
    """Rows of the data are directions that every dictionary here can reach."""
    member = trained(dictionary, rows, 10)
    before, units = member.sae.decoder.detach().clone(), torch.tensor([2, 9])
    wanted = normalize(rows[:2], dim=-1)
    member.weights.replace(units, wanted, wanted)
    assert bool(((member.sae.decoder[units] * wanted).sum(-1) > 0.97).all())
    others = torch.ones(16, dtype=torch.bool)
    others[units] = False
    assert torch.equal(member.sae.decoder[others], before[others])


@each
def test_splitting_separates_the_two_features_of_one_unit(dictionary):
    world = SparseWorld(width=12, units=4, active=1, zipf=0.0, samples=4000)
    atoms, rows = world.dictionary(), world.draw().x
    made = alter(
        world_recipe("topk", Task(12, 4, 1, samples=100, batch=100)),
        {"k_warmup": None, "dictionary": dictionary},
    )
    member = Member(made, 0, rows)
    mixed = normalize(atoms[2] + atoms[3], dim=0)
    idle = normalize(atoms[0] + atoms[1], dim=0)
    wanted = torch.stack([atoms[0], atoms[1], mixed, idle])
    member.weights.replace(torch.arange(4), wanted, wanted)
    with torch.no_grad():
        member.sae.encoder_bias[3] = -100.0
    before = error(member.sae, rows)
    revive(member, rows, 1)
    assert error(member.sae, rows) < 0.6 * before
    assert bool(((member.sae.decoder.detach() @ atoms.T).max(0).values > 0.95).all())


class Stopped(Exception):
    pass


def stop_at(step: int):
    def stop(done, steps, terms):
        if done == step:
            raise Stopped

    return stop


def folder_of(path: Path, dictionary) -> Path:
    """Return a new run that sorts, freezes and splits, and has a checkpoint after every step."""
    changes = {"sweep": Sweep(0.2, 0.7, 0.5, release=0.8), "revival": Split(9, 0.0, 1.0, 2.0)}
    made = alter(world_recipe("osae", replace(TASK, samples=4000)), {"dictionary": dictionary, **changes})
    run.create(path, run.RunConfig((made,), (3,), WORLD, checkpoint_seconds=0.0))
    return path


@each
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(dictionary, tmp_path):
    whole, stopped = (folder_of(tmp_path / name, dictionary) for name in ("whole", "stopped"))
    run.go(whole)
    for step in (7, 31):
        with pytest.raises(Stopped):
            run.go(stopped, progress=stop_at(step))
    run.go(stopped)
    for file in ("osae-seed3/sae.safetensors", "checkpoint.safetensors", "log.jsonl"):
        assert (whole / file).read_bytes() == (stopped / file).read_bytes()


@each
def test_a_finished_sae_is_plain_and_can_be_saved_loaded_and_exported(dictionary, rows, tmp_path):
    sae = trained(dictionary, rows, 20, rescale=True).finish()
    assert sae.encoder is not sae.decoder
    sae.save(tmp_path / "own")
    convert(sae, tmp_path / "saelens", to="saelens")
    exported = load(tmp_path / "saelens").sae
    assert exported is not None
    for other in (SAE.load(tmp_path / "own"), exported):
        torch.testing.assert_close(other.decoder, sae.decoder)
        torch.testing.assert_close(other(rows).reconstruction, sae(rows).reconstruction)


# --- the definition of each -------------------------------------------------------------------------


def test_free_atoms_are_parameters_themselves(rows):
    """Nothing is copied, and checkpoints have the names that release 0.1.0 gave them."""
    member = trained(FreeAtoms(), rows, 1)
    assert member.sae.decoder is member.weights.parameters["decoder"]
    assert member.sae.encoder is member.weights.parameters["encoder"]
    names = {"decoder", "encoder", "encoder_bias", "decoder_bias", "threshold"}
    assert {name for name in member.state() if name.startswith("sae/")} == {f"sae/{name}" for name in names}


def test_tied_encoders_are_the_decoder(rows):
    sae = trained(Tied(), rows, 60).finish()
    assert torch.equal(sae.encoder, sae.decoder)


def test_aligned_encoders_read_their_own_atom_with_gain_one(rows):
    sae = trained(Aligned(), rows, 80).finish()
    inner = [float(sum(e * d for e, d in zip(*pair, strict=True))) for pair in matrices_as_lists(sae)]
    assert inner == pytest.approx([1.0] * 16, abs=1e-5)
    cosine = torch.nn.functional.cosine_similarity(sae.encoder, sae.decoder).detach()
    assert float(cosine.min()) < 0.99  # they are aligned, not tied


def matrices_as_lists(sae):
    return zip(sae.encoder.detach().double().tolist(), sae.decoder.detach().double().tolist(), strict=True)


def distance_to_hull(points, target) -> float:
    """Return how far the target is from the convex hull of the points: nonnegative least squares."""
    heavy = 1e4  # holds the sum of the weights at one
    matrix = torch.cat([points.T.double(), heavy * torch.ones(1, len(points), dtype=torch.float64)])
    weights, _ = nnls(
        matrix.numpy(), torch.cat([target.double(), torch.tensor([heavy])]).numpy(), maxiter=10**5
    )
    return float((points.T.double() @ torch.from_numpy(weights) - target.double()).norm())


@pytest.mark.parametrize("relaxation", [0.0, 0.05, 0.5])
def test_archetypal_atoms_are_in_the_hull_of_the_points_up_to_the_relaxation(relaxation, rows):
    dictionary = Archetypal(points=30, relaxation=relaxation)
    member = trained(dictionary, rows, 80)
    parameters, points = member.weights.parameters, member.weights.constants["points"]
    inside = parameters["logits"].detach().softmax(-1) @ points
    unscaled = inside + parameters["offset"].detach()
    torch.testing.assert_close(normalize(unscaled, dim=-1), member.finish().decoder.detach())
    distances = [distance_to_hull(points, atom) for atom in unscaled]
    assert max(distances) <= relaxation + 1e-5
    away = [distance_to_hull(points, 10 * points[0]), distance_to_hull(points, points[3])]
    assert away[0] > 0.5  # the oracle can tell
    assert away[1] < 1e-5


def test_archetypal_atoms_without_relaxation_span_no_more_than_the_points(rows):
    decoder = trained(Archetypal(points=5, relaxation=0.0), rows, 80).finish().decoder
    assert int(torch.linalg.matrix_rank(decoder, rtol=1e-4)) <= 5
    assert int(torch.linalg.matrix_rank(trained(FreeAtoms(), rows, 80).finish().decoder, rtol=1e-4)) == 12


def test_points_are_rows_of_the_data_and_differ_between_seeds(rows):
    made = alter(world_recipe("osae", TASK), {"dictionary": Archetypal(20), "sae.decoder_bias": True})
    first, again, second = (Member(made, seed, rows).weights.constants["points"] for seed in (0, 0, 1))
    cosines = normalize(first, dim=-1) @ normalize(rows - rows.mean(0), dim=-1).T
    assert bool((cosines.max(1).values > 1 - 1e-5).all())
    assert float(first.square().sum(1).mean()) == pytest.approx(1.0, rel=1e-5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_no_more_than_half_of_the_rows_become_points(rows):
    made = alter(world_recipe("osae", TASK), {"dictionary": Archetypal(5000)})
    assert len(Member(made, 0, rows).weights.constants["points"]) == 1000


def test_archetypal_training_does_not_depend_on_the_scale_of_the_data(rows):
    made = alter(world_recipe("topk", TASK), {"dictionary": Archetypal(50), "rescale": True, "revival": None})
    found = []
    for factor in (1.0, 1024.0):
        member = Member(made, 0, rows * factor)
        train([member], MemoryRows(rows * factor))
        found.append(member.finish().decoder)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"points": 0}, "points=0"),
        ({"relaxation": -1.0}, "relaxation=-1"),
        ({"relaxation": float("nan")}, "nan"),
    ],
)
def test_impossible_archetypal_dictionaries_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Archetypal(**fields)


def test_only_a_cpu_goes_through_a_matrix_in_blocks_that_fit_its_cache():
    """On a GPU each block would be several launches: thousands of them for 65k units."""
    large = [torch.empty(65_536, 2304, device=device) for device in ("cpu", "meta")]
    on_cpu, on_gpu = (dictionary._blocks(matrix) for matrix in large)
    assert len(on_cpu) > 500
    assert len(on_gpu) <= 3
    assert sum(map(len, on_cpu)) == sum(map(len, on_gpu)) == 65_536


@pytest.mark.parametrize("compared", [100, 8])
def test_separated_atoms_add_the_gradient_of_the_penalty(compared, monkeypatch):
    monkeypatch.setattr(dictionary, "COMPARED", compared)
    blocks = -(-16 // compared)
    atoms = normalize(torch.randn(16, 5, dtype=torch.float64), dim=-1).requires_grad_()
    blind = torch.ones(16, 16, dtype=torch.bool).fill_diagonal_(False)
    blind &= (torch.arange(16)[:, None] - torch.arange(16)) % blocks == 0
    penalty = 0.3 * 5 * (atoms @ atoms.T).masked_fill(~blind, -2).amax(1).square().mean()
    (expected,) = torch.autograd.grad(penalty, atoms)
    atoms.grad = torch.ones_like(atoms)
    with torch.no_grad():
        Separated(0.3).add_gradients_({"decoder": atoms})
    torch.testing.assert_close(atoms.grad, 1 + expected)


def test_separated_atoms_are_less_similar(rows):
    found = {
        weight: trained(Separated(weight), rows, steps=40, resort=None).sae.decoder.detach()
        for weight in (0.0, 2.0)
    }
    nearest = {w: (d @ d.T).fill_diagonal_(-2).amax(1).square().mean() for w, d in found.items()}
    assert nearest[2.0] < 0.8 * nearest[0.0]


def test_separated_refuses_an_impossible_weight():
    with pytest.raises(ValueError, match="weight=-1"):
        Separated(-1.0)
