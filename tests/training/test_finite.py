"""NaN and infinity stop a run before they reach its weights, or cost it one batch; neither goes unseen."""

import json
import math
from dataclasses import replace

import pytest
import torch

from osae import SAE
from osae.cli import main
from osae.config import alter
from osae.data.source import MemoryRows
from osae.data.worlds import SparseWorld
from osae.recipes import Task, recipe, world_recipe
from osae.training import checkpoint, run
from osae.training.finite import NotFinite, are_finite, finite_rows
from osae.training.loop import train
from osae.training.member import Member
from osae.training.simple import fit

WORLD = ["--world-width", "12", "--world-units", "16", "--world-active", "2", "--world-samples", "1000"]
TRAIN = ["train", "topk", *WORLD, "--batch", "100", "--epochs", "4", "--device", "cpu"]
TASK = Task(width=12, units=16, k=2, samples=4000, batch=100)


@pytest.fixture(scope="module")
def rows():
    return SparseWorld(width=12, units=16, active=2, samples=1000).draw().x


def spoil(member, at, value):
    """Make the loss of the member's step `at` (counted from 0) not finite."""
    real = member.terms

    def terms(x, step):
        found = real(x, step)
        return found._replace(total=found.total * value) if step == at else found

    member.terms = terms
    return member


def copy_state(member):
    return {name: tensor.detach().clone() for name, tensor in member.state().items()}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("numbers", [1, 1000])
def test_one_bad_number_is_enough(bad, numbers):
    tensor = torch.ones(numbers)
    huge = torch.full((10,), 3e38)
    assert are_finite([tensor, huge, torch.empty(0)])  # whose sum is infinite
    tensor[numbers // 2] = bad
    assert not are_finite([huge, tensor])
    assert are_finite([])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_nothing_and_is_named(bad, rows):
    member = spoil(Member(world_recipe("batchtopk", TASK), 3, rows), 15, bad)
    before = []
    with pytest.raises(
        NotFinite, match=r"batchtopk-seed3: the loss .* step 16, in block 1; .*lr\.peak=0\.01"
    ):
        train([member], MemoryRows(rows), after=[lambda done, _: before.append(copy_state(member))])
    after = member.state()
    assert len(before) == 15
    assert all(torch.equal(tensor, after[name]) for name, tensor in before[-1].items())


def test_a_gradient_that_is_not_finite_counts_even_if_the_loss_is(rows):
    member = Member(world_recipe("topk", TASK), 0, rows)
    member.sae.encoder_bias.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NotFinite, match="a gradient is NaN or infinite at step 1"):
        train([member], MemoryRows(rows))


def test_a_skipped_batch_is_as_if_its_step_were_empty(rows):
    """Another member on the stream takes that step, and the counter comes back after a resume."""
    made = world_recipe("topk", TASK)
    members = [spoil(Member(made, 0, rows), 7, math.nan), Member(made, 1, rows)]
    states = []
    train(members, MemoryRows(rows), on_nan="skip", after=[lambda *_: states.append(copy_state(members[0]))])
    assert [member.skipped for member in members] == [1, 0]
    for name, tensor in states[6].items():
        assert torch.equal(tensor, states[7][name]) == (name != "skipped")
    assert not torch.equal(states[8]["sae/decoder"], states[7]["sae/decoder"])
    again = Member(made, 0, rows)
    again.restore(members[0].state())
    assert again.skipped == 1
    again.restore({name: tensor for name, tensor in members[0].state().items() if name != "skipped"})


@pytest.mark.parametrize("name", ["topk", "osae"])
def test_rows_that_are_not_finite_stop_a_run_or_are_left_out_of_it(name, rows):
    dirty = rows.clone()
    dirty[123, 4] = math.nan
    made = world_recipe(name, TASK)  # it also sorts or splits units, measured on whole blocks
    with pytest.raises(NotFinite, match=r"step 1, block 0: row 123 contains NaN"):
        train([Member(made, 0, rows)], MemoryRows(dirty))
    member = Member(made, 0, finite_rows(dirty, "", "skip"))
    train([member], MemoryRows(dirty), on_nan="skip")
    assert member.skipped == 4  # once in each of four epochs
    assert are_finite(member.finish().state_dict().values())
    with pytest.raises(NotFinite, match="row 0"):
        finite_rows(torch.full((3, 2), math.nan), "here", "skip")


def test_weights_that_a_step_has_spoiled_are_never_written(rows, tmp_path):
    member = Member(world_recipe("topk", TASK), 0, rows)
    train([member], MemoryRows(rows), done=TASK.samples // TASK.batch - 1)
    checkpoint.save(tmp_path, [member], 1)
    good = (tmp_path / "checkpoint.safetensors").read_bytes()
    next(iter(member.optimizer.state.values()))["exp_avg_sq"][0] = math.inf
    with pytest.raises(NotFinite, match=r"made weights NaN or infinite: .* lr\.peak=0\.01"):
        checkpoint.save(tmp_path, [member], 2)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == good
    with pytest.raises(NotFinite):
        member.finish()


def test_an_absurd_rate_ends_with_one_line_and_no_broken_files(tmp_path, capsys):
    out = tmp_path / "run"
    words = [*TRAIN, "--checkpoint-seconds", "0", "--out", str(out)]
    assert main([*words, "--set", "lr.peak=1e38"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("osae: topk-seed0: ")
    assert "lr.peak=1e+38" in error
    for path in out.glob("**/sae.json"):
        assert are_finite(SAE.load(path.parent).state_dict().values())
    assert main(words) == 0  # nothing is in the way of a better rate


@pytest.mark.filterwarnings("always:.*diverges")  # shown, not raised, as to a user
def test_a_loss_that_explodes_is_reported_once(rows, tmp_path, capsys):
    made = alter(world_recipe("topk", TASK), {"lr.peak": 1e9})
    with pytest.warns(UserWarning, match="topk-seed0 diverges: its loss is .* lower learning rate") as found:
        train([Member(made, 0, rows)], MemoryRows(rows))
    assert len(found) == 1
    assert main([*TRAIN, "--set", "lr.peak=1e9", "--out", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "diverges" in line]
    assert len(lines) == 1
    assert lines[0].startswith("osae: warning: topk-seed0 diverges")


def test_a_loss_that_starts_near_zero_may_rise():
    """While k is large, units reconstruct the first batch exactly: what follows is no divergence."""
    x = torch.randn(600, 6, generator=torch.Generator().manual_seed(0))
    fit("topk", x, units=12, k=2, samples=20_000, batch=100, progress=False)  # a warning would be an error


@pytest.mark.parametrize("recipe", ["osae", "topk", "vanilla"])
@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-20, 3.0, 1e6, 1e8])
def test_rows_that_are_all_the_same_do_not_diverge(recipe, value):
    """Rows without a spread are not scaled until their rounding errors are large."""
    x = torch.full((300, 64), value)
    sae = fit(recipe, x, units=32, k=2, samples=900, batch=30, progress=False)  # a warning would be an error
    error = (sae(x).reconstruction - x).detach().abs().max()
    assert float(error) <= max(0.1 * value, 1e-6)


def test_the_log_is_json_and_counts_skipped_batches(tmp_path, monkeypatch):
    real = Member.terms

    def terms(self, x, step):
        found = real(self, x, step)
        return replace_terms(found) if step in (4, 20) else found

    def replace_terms(found):
        bad = found.total * math.nan
        return found._replace(total=bad, prefix=bad)

    monkeypatch.setattr(Member, "terms", terms)
    out = tmp_path / "run"
    assert main([*TRAIN, "--out", str(out)]) == 2
    assert not (out / "run.json").exists()  # before the first checkpoint there is nothing to resume
    assert main([*TRAIN, "--on-nan", "skip", "--out", str(out)]) == 0
    text = (out / "log.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert len(lines) == 40
    assert [line.get("skipped", 0) for line in lines] == [0] * 4 + [1] * 16 + [2] * 20
    assert [line["step"] for line in lines if line["total"] is None] == [5, 21]


def test_a_run_that_stopped_resumes_without_the_batch(tmp_path, monkeypatch, capsys):
    real, out = Member.terms, tmp_path / "run"

    def terms(self, x, step):
        found = real(self, x, step)
        return found._replace(total=found.total * math.nan) if step == 20 else found

    monkeypatch.setattr(Member, "terms", terms)
    words = [*TRAIN, "--checkpoint-seconds", "0", "--out", str(out)]
    assert main(words) == 2
    kept = (out / "checkpoint.safetensors").read_bytes()
    assert main(["resume", str(out), "--device", "cpu"]) == 2
    assert (out / "checkpoint.safetensors").read_bytes() == kept
    assert "--on-nan skip" in capsys.readouterr().err
    assert main(["resume", str(out), "--device", "cpu", "--on-nan", "skip"]) == 0
    assert main([*words[:-1], str(tmp_path / "other"), "--on-nan", "skip"]) == 0
    first, second = (SAE.load(folder / "topk-seed0").state_dict() for folder in (out, tmp_path / "other"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_what_to_do_about_nan_is_one_of_two_words():
    made = world_recipe("topk", TASK)
    config = run.RunConfig((made,), (0,), SparseWorld(12, 16, 2, samples=1000))
    assert config.on_nan == "stop"
    with pytest.raises(ValueError, match="on_nan='pray': give one of stop, skip"):
        replace(config, on_nan="pray")


@pytest.fixture
def deferred(monkeypatch):
    """The host does not wait for the device, as on a GPU."""
    monkeypatch.setattr("osae.training.member.waits", lambda device: False)


@pytest.mark.parametrize("name", ["topk", "osae", "batchtopk", "vanilla"])
def test_checks_that_nobody_waits_for_change_no_bit(name, rows, deferred, monkeypatch):
    made, found = world_recipe(name, TASK), []
    for patience in (False, True):
        monkeypatch.setattr("osae.training.member.waits", lambda device, patience=patience: patience)
        member = Member(made, 0, rows)
        train([member], MemoryRows(rows))
        found.append(member.finish().state_dict())
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_that_is_found_bad_later_has_moved_nothing_and_is_never_written(
    bad, rows, deferred, tmp_path
):
    made, weights = alter(world_recipe("topk", TASK), {"revival": None}), []
    member = spoil(Member(made, 3, rows), 15, bad)

    def note(done, _):
        weights.append({name: p.detach().clone() for name, p in member.weights.named().items()})
        if done == 18:
            checkpoint.save(tmp_path, [member], done)

    with pytest.raises(NotFinite, match="topk-seed3: the loss is NaN or infinite at step 16"):
        train([member], MemoryRows(rows), after=[note])
    assert len(weights) == 18
    assert not checkpoint.exists(tmp_path)
    for name, tensor in weights[14].items():
        torch.testing.assert_close(weights[17][name], tensor, rtol=1e-6, atol=0)


def test_units_are_not_split_before_all_answers_are_there(rows, deferred):
    member, done = spoil(Member(world_recipe("topk", TASK), 3, rows), 15, math.nan), []
    with pytest.raises(NotFinite, match=r"at step 16, in block 1; .*lr\.peak"):
        train([member], MemoryRows(rows), after=[lambda step, _: done.append(step)])
    assert done[-1] < 20


def test_an_answer_that_arrives_late_names_its_own_step_and_block(rows, deferred, monkeypatch):
    from osae.training import finite

    sent = []

    class Event:
        def __init__(self):
            sent.append(self)

        def query(self):
            return len(sent) - sent.index(self) > 3

        def synchronize(self):
            raise AssertionError("nobody should wait")

    monkeypatch.setattr(finite, "_send", lambda numbers: (numbers, Event()))
    made = alter(world_recipe("topk", TASK), {"revival": None})
    member = spoil(Member(made, 3, rows), 9, math.nan)
    done = []
    with pytest.raises(NotFinite, match=r"step 10, in block 0; .*lr\.peak"):
        train([member], MemoryRows(rows), after=[lambda step, _: done.append(step)])
    assert done[-1] == 12


def test_a_batch_that_may_be_skipped_is_waited_for(rows, deferred):
    member = spoil(Member(world_recipe("topk", TASK), 0, rows), 7, math.nan)
    train([member], MemoryRows(rows), on_nan="skip")
    assert member.skipped == 1


def test_the_device_is_asked_for_dead_units_only_when_there_can_be_some(rows, monkeypatch):
    task = Task(TASK.width, TASK.units, TASK.k, samples=100 * TASK.batch, batch=TASK.batch)
    made = alter(recipe("topk", task), {"revival.dead_after": 10 * TASK.batch})
    member, asked, real = Member(made, 0, rows), [], torch.Tensor.min
    monkeypatch.setattr(torch.Tensor, "min", lambda *args: (asked.append(args[0]), real(*args))[1])
    for step in range(100):
        member.last_fired.fill_(step)
        assert member.dead(step) is None
    member.last_fired[3] = 60
    member._oldest = 60
    assert len(asked) <= 10
    assert member.dead(71).tolist() == [unit == 3 for unit in range(TASK.units)]
