"""One SAE in training: unit atoms, frozen units, sorting, revival, and independence of other members."""

from dataclasses import replace

import pytest
import torch

from osae.config import alter
from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.prefix import prefix_weights
from osae.recipes import WORLD_RECIPES, FromData, Task, recipe, world_recipe
from osae.revival import AuxK, Resample, Split
from osae.schedule import Resort, Sweep
from osae.seeds import generator
from osae.sparsify import BatchTopK, JumpReLU, ReLU
from osae.training.loop import Batches, train
from osae.training.member import Member
from osae.training.revive import revive, two_directions
from osae.training.simple import fit
from osae.training.start import signed_principal_directions

WORLD = SparseWorld(width=12, units=16, active=2, samples=2000)
TASK = Task(width=12, units=16, k=2, samples=8000, batch=100)


@pytest.fixture(scope="module")
def rows():
    return WORLD.draw().x


@torch.no_grad()
def error(sae, rows) -> float:
    return float((rows - sae(rows).reconstruction).square().mean())


def advanced(made, rows, steps, seed=0):
    member = Member(made, seed, rows)
    for step in range(steps):
        member.advance(Batches(MemoryRows(rows), member.seed, member.recipe.batch).at(step % 20), step)
        member.revive_if_due(rows, step + 1)
        member.resort_if_due(rows, step + 1)
    return member


@pytest.mark.parametrize("name", WORLD_RECIPES)
def test_every_recipe_learns_and_keeps_unit_atoms(name, rows):
    made = world_recipe(name, TASK)
    before = Member(made, 0, rows).finish()
    after = fit(made, rows)
    assert error(after, rows) < 0.6 * error(before, rows)
    torch.testing.assert_close(after.decoder.norm(dim=1), torch.ones(16), rtol=0, atol=1e-5)


@pytest.mark.parametrize("revival", [None, Split(80, 0.0, 1.0, 5.0), Resample(80, 0.0, 1.0, 0)], ids=str)
def test_frozen_units_do_not_move_and_neither_do_their_moments(revival, rows):
    changes = {"sweep": Sweep(0.0, 1.0), "revival": revival, "resort": Resort(80)}
    made = alter(world_recipe("osae-paper", TASK), changes)
    member = advanced(made, rows, 40)
    frozen = member.frozen_at(40)
    assert frozen == 8
    before, decoder = [tensor.clone() for tensor in member.unit_tensors()], member.sae.decoder.clone()
    member.advance(Batches(MemoryRows(rows), member.seed, member.recipe.batch).at(20), 40)
    member.revive_if_due(rows, 41)
    member.resort_if_due(rows, 41)
    *after, fired = member.unit_tensors()
    for now, then in zip(after, before[:-1], strict=True):
        assert torch.equal(now[:frozen], then[:frozen])
    assert not torch.equal(member.sae.decoder[frozen:], decoder[frozen:])
    assert fired is member.last_fired  # the counter alone keeps counting: frozen units still fire


def test_frozen_atoms_leave_their_encoders_free(rows):
    sweep = Sweep(0.0, 0.0, part=0.25, atoms_only=True)
    untrained = Member(alter(world_recipe("topk", TASK), {"sweep": sweep}), 0, rows)
    start = {name: tensor.clone() for name, tensor in untrained.sae.state_dict().items()}
    member = advanced(untrained.recipe, rows, 20)
    assert torch.equal(member.sae.decoder[:4], start["decoder"][:4])
    assert not torch.equal(member.sae.decoder[4:], start["decoder"][4:])
    assert not torch.equal(member.sae.encoder[:4], start["encoder"][:4])


def test_prefixes_that_restart_are_those_of_the_units_that_still_learn(rows):
    made = world_recipe("osae-swept-restarting", TASK)
    member = Member(made, 0, rows)
    for step in (0, made.steps // 2, made.steps - 1):
        frozen = min(member.frozen_at(step), 15)
        weights = member._draw_prefix_weights(step)
        assert weights[:frozen].sum() == 0
        assert torch.equal(weights[frozen:], prefix_weights(made.prefix, 16 - frozen))
    assert frozen > 8
    usual = Member(world_recipe("osae-swept", TASK), 0, rows)
    x = rows[:100]
    assert torch.equal(usual.terms(x, 0).total, member.terms(x, 0).total)  # nothing is frozen yet
    assert not torch.equal(usual.terms(x, made.steps - 1).total, member.terms(x, made.steps - 1).total)


def test_released_atoms_learn_and_keep_their_places(rows):
    sweep = Sweep(0.0, 0.0, part=0.25, atoms_only=True, release=0.5)
    made = alter(world_recipe("topk", TASK), {"sweep": sweep})
    untrained = Member(made, 0, rows)
    start = untrained.sae.decoder.detach()[:4].clone()
    assert torch.equal(advanced(made, rows, made.steps // 2).sae.decoder[:4], start)
    member = advanced(made, rows, made.steps)
    assert not torch.equal(member.sae.decoder[:4], start)
    before = member.sae.decoder.detach().clone()
    member.resort(rows, made.steps)
    assert torch.equal(member.sae.decoder[:4], before[:4])
    assert not torch.equal(member.sae.decoder[4:], before[4:])


def test_sorting_permutes_everything_and_changes_no_output(rows):
    member = advanced(world_recipe("topk", TASK), rows, 30)
    before = {name: value.clone() for name, value in member.state().items()}
    before_error = error(member.sae, rows)
    member.resort(rows, 30)
    assert error(member.sae, rows) == pytest.approx(before_error, rel=1e-5)
    after = member.state()
    order = torch.cdist(after["sae/decoder"], before["sae/decoder"]).argmin(1)
    assert sorted(order.tolist()) == list(range(16))
    assert order.tolist() != list(range(16))
    for name, value in after.items():
        expected = before[name][order] if value.ndim and len(value) == 16 else before[name]
        assert torch.equal(value, expected), name


def test_sorting_is_greedy_by_gain(rows):
    """At each place is the unit that lowers the error most after those before it."""
    member = advanced(world_recipe("topk", TASK), rows, 60)
    member.resort(rows, 60)
    code, atoms = member.sae.encode(rows, k=member.k_at(59)).dense(16).detach(), member.sae.decoder.detach()
    residual = rows.double()
    for place in range(16):
        left = [
            float((residual - code[:, u : u + 1].double() * atoms[u].double()).square().sum())
            for u in range(place, 16)
        ]
        assert left[0] == pytest.approx(min(left), rel=1e-6)
        residual = residual - code[:, place : place + 1].double() * atoms[place].double()


def test_sorting_leaves_frozen_units_in_place(rows):
    made = alter(world_recipe("osae", TASK), {"sweep": Sweep(0.0, 1.0), "resort": Resort(4)})
    member = advanced(made, rows, 40)
    frozen = member.frozen_at(39)
    held = member.sae.decoder[:frozen].clone()
    member.resort(rows, 40)
    assert torch.equal(member.sae.decoder[:frozen], held)


@pytest.mark.parametrize(
    "revival",
    [AuxK(4, 0.5, 200), Resample(10, 0.0, 0.9, 200), Split(10, 0.0, 0.9)],
    ids=lambda r: type(r).__name__,
)
def test_revival_brings_dead_units_back(revival, rows):
    """Units pushed below all others stay dead without revival, and come back with it."""
    shares = []
    for spec in (None, revival):
        made = alter(world_recipe("topk", TASK), {"revival": spec, "k_warmup": None})
        member = Member(made, 0, rows)
        with torch.no_grad():
            member.sae.encoder[:8] *= 0.05
        train([member], MemoryRows(rows))
        code = member.sae.encode(rows)
        shares.append(len(code.units[code.values > 0].unique()) / 16)
    assert shares[0] <= 0.75
    assert shares[1] > shares[0]


def test_members_train_the_same_together_as_alone(rows):
    recipes = [world_recipe(name, TASK) for name in ("osae", "matryoshka-random", "batchtopk")]
    together = [Member(made, seed, rows) for made in recipes for seed in (0, 1)]
    train(together, MemoryRows(rows))
    for member in together:
        alone = fit(member.recipe, rows, seed=member.seed)
        assert torch.equal(alone.decoder, member.finish().decoder)


def test_seeds_differ_and_repeat(rows):
    made = world_recipe("topk", TASK)
    assert torch.equal(fit(made, rows, seed=3).decoder, fit(made, rows, seed=3).decoder)
    assert not torch.equal(fit(made, rows, seed=3).decoder, fit(made, rows, seed=4).decoder)


def test_input_scale_is_folded_into_the_finished_sae(rows):
    made = alter(world_recipe("topk", TASK), {"rescale": True})
    small, large = fit(made, rows), fit(made, 1024.0 * rows)
    torch.testing.assert_close(small.decoder, large.decoder)
    torch.testing.assert_close(
        small(rows).reconstruction * 1024, large(rows * 1024).reconstruction, rtol=1e-4, atol=1e-2
    )


def test_rows_whose_squares_exceed_single_precision_are_scaled_too(rows):
    made = alter(world_recipe("topk", TASK), {"rescale": True})
    small, large = fit(made, rows), fit(made, 2.0**90 * rows)
    torch.testing.assert_close(small.decoder, large.decoder)
    assert all(bool(tensor.isfinite().all()) for tensor in large.state_dict().values())


def test_start_from_data_is_the_signed_principal_directions(rows):
    made = alter(world_recipe("topk", TASK), {"start": FromData(2000)})
    sae = Member(made, 0, rows).sae
    shuffled = torch.randperm(len(rows), generator=generator(0, "start", "rows"))
    sample = rows[shuffled[: min(2000, len(rows) // 2)]]
    centred = (sample - sample.mean(0)).double()
    directions = torch.linalg.svd(centred, full_matrices=False).Vh
    for i in range(8):
        plus, minus = sae.decoder[2 * i].detach().double(), sae.decoder[2 * i + 1].detach().double()
        assert abs(float(plus @ directions[i])) > 0.999
        torch.testing.assert_close(plus, -minus)
        assert float((centred @ plus).pow(3).sum()) >= 0
    assert torch.equal(sae.encoder, sae.decoder)


def test_two_seeds_never_start_from_the_very_same_rows(rows):
    made = alter(world_recipe("topk", TASK), {"start": FromData(10 * len(rows))})
    first, again, second = (Member(made, seed, rows).sae.decoder.detach() for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first[:24], second[:24], atol=1e-5)


def test_principal_directions_stop_at_the_width(rows):
    assert signed_principal_directions(rows, 100).shape == (24, 12)


def test_two_directions_are_found_in_a_mixture():
    source = torch.Generator().manual_seed(0)
    atoms = torch.nn.functional.normalize(torch.randn(2, 12, generator=source), dim=-1)
    which = torch.randint(2, (300,), generator=source)
    rows = torch.rand(300, 1, generator=source) * atoms[which] + 0.01 * torch.randn(300, 12, generator=source)
    cosines = two_directions(rows) @ atoms.T
    assert bool((cosines.max(1).values > 0.99).all())
    assert sorted(cosines.argmax(1).tolist()) == [0, 1]


def test_splitting_separates_the_two_features_of_one_unit():
    """One unit for two features and an idle unit: gradients alone do not separate them."""
    world = SparseWorld(width=12, units=4, active=1, zipf=0.0, samples=4000)
    atoms, rows = world.dictionary(), world.draw().x
    made = alter(world_recipe("topk", Task(12, 4, 1, samples=100, batch=100)), {"k_warmup": None})
    member = Member(made, 0, rows)
    mixed = torch.nn.functional.normalize(atoms[2] + atoms[3], dim=0)
    with torch.no_grad():
        member.sae.decoder.copy_(torch.stack([atoms[0], atoms[1], mixed, -mixed]))
        member.sae.encoder.copy_(member.sae.decoder)
    before = error(member.sae, rows)
    revive(member, rows, 1)
    assert error(member.sae, rows) < 0.1 * before
    assert bool(((member.sae.decoder.detach() @ atoms.T).max(0).values > 0.98).all())


def test_revival_leaves_the_threshold_of_the_batch_alone(rows):
    made = alter(world_recipe("batchtopk", TASK), {"revival": Split(8, 0.0, 1.0, 5.0)})
    member = advanced(made, rows, 60)
    assert float(member.sae.threshold.min()) == float(member.sae.threshold.max()) > 0


def test_splitting_works_when_most_units_are_dead(rows):
    made = alter(world_recipe("topk", TASK), {"k_warmup": None})
    member = Member(made, 0, rows)
    with torch.no_grad():
        member.sae.encoder[:12] = 0
    revive(member, rows, 1)
    assert bool((member.sae.encoder[:12].abs().sum(-1) > 0).any())


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_splitting_does_not_depend_on_the_scale_of_the_data(scale, rows):
    made = alter(world_recipe("topk", TASK), {"k_warmup": None})
    atoms = []
    for factor in (1.0, scale):
        member = Member(made, 0, rows * factor)
        with torch.no_grad():
            member.sae.encoder[:4] = 0
        revive(member, rows * factor, 1)
        atoms.append(member.sae.decoder.detach())
    torch.testing.assert_close(*atoms, rtol=1e-3, atol=1e-4)


def test_choices_are_independent(rows):
    """A recipe for TopK takes any other sparsifier: without a k there is nothing to warm up."""
    for sparsifier in (JumpReLU(0.01), ReLU(0.1), BatchTopK(2)):
        fit(
            alter(world_recipe("osae", replace(TASK, samples=500)), {"sae.sparsifier": sparsifier}),
            rows.double(),
        )


def test_the_settings_of_adam_are_those_of_the_recipe(rows):
    made = world_recipe("topk", TASK)
    plain = fit(made, rows)
    assert torch.equal(plain.decoder, fit(alter(made, {"adam.clip": 1e9}), rows).decoder)
    for change in ({"adam.beta1": 0.5}, {"adam.beta2": 0.9}, {"adam.eps": 1e-2}):
        assert not torch.equal(plain.decoder, fit(alter(made, change), rows).decoder)
    for wrong in ({"adam.beta1": 1.0}, {"adam.eps": 0.0}, {"adam.clip": 0.0}):
        with pytest.raises(ValueError, match=r"give"):
            alter(made, wrong)


def test_gradients_are_clipped_together(rows):
    member = Member(alter(world_recipe("topk", TASK), {"adam.clip": 0.01, "k_warmup": None}), 0, rows)
    member.advance(rows[:100], 0)
    grads = [p.grad for p in member.weights.named().values() if p.grad is not None]
    assert float(torch.stack([grad.norm() for grad in grads]).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(("units", "samples"), [(1000, 100_000), (4096, 100_000), (65_536, 24 * 65_536)])
def test_more_units_are_given_more_time_before_they_count_as_dead(units, samples):
    revival = recipe("osae", Task(128, units, 8, samples=1000)).revival
    assert isinstance(revival, AuxK)
    assert revival.dead_after == samples
