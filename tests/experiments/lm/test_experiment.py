"""The language-model experiment on activations of a small world, end to end."""

import csv
from dataclasses import replace

import pytest
import torch

from osae import SAE, results
from osae.data.shards import Shards, write_shards
from osae.data.worlds import SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments.claims import UNTESTED, judge_result
from osae.experiments.lm import stitching
from osae.experiments.lm.activations import TextShards
from osae.experiments.lm.experiment import run_plan
from osae.experiments.lm.mixing import mix_texts
from osae.experiments.lm.options import LMOptions
from osae.experiments.lm.plan import Plan
from osae.experiments.lm.shelf import Shelf
from osae.experiments.methods import LM_METHODS
from osae.files import read_json
from osae.metrics import chance_level
from osae.recipes import FromData, FromNoise, Task, recipe
from osae.report import write_experiment
from osae.results.lm import Place


def silent(done, total, text):
    """Progress that nobody sees."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two texts whose atoms are the same and come in other proportions."""
    root, found = tmp_path_factory.mktemp("acts"), {}
    for name, zipf in (("one", 1.0), ("other", 0.6)):
        world = SparseWorld(16, 24, 3, zipf=zipf, samples=4000)
        for part, split in (("", "train"), ("-held-out", "test")):
            rows = world.draw(split, 2000 if part else 4000).x
            block = {"activations": rows, "documents": torch.arange(len(rows)) // 10}
            write_shards(root / f"{name}{part}", [block])
        found[name] = TextShards(root / name, root / f"{name}-held-out")
    return found


@pytest.fixture(scope="module")
def done(texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("lm")
    plan = Plan(
        out, texts=texts, units=24, k=3, tokens=6_000, seeds=2, starts=("noise", "data"), batch=100,
        first_text_only=("data",), rates=(1e-2, 3e-3), tuning_tokens=1000, workers=1, stitch_seeds=2,
        stitch_units=12, stitch=4,
    )  # fmt: skip
    return run_plan(plan, silent), plan


def test_every_method_start_and_text_has_a_row_and_a_curve(done):
    result, plan = done
    places = [Place("one", "noise"), Place("other", "noise"), Place("one", "data")]
    assert result.places() == places
    assert [section.title for section in result.sections] == [place.title for place in places]
    for place in places:
        rows = result.section_of(place).by_method()
        assert set(rows) == set(result.curves_at(place)) == {*LM_METHODS, "topk-sorted", "untrained"}
        for name, row in rows.items():
            assert name == "untrained" or 0.3 < row.mean("explained_variance") <= 1
            assert row.reference == (name == "untrained")
            curve = result.curves_at(place)[name]["stability"]
            assert curve.prefix == plan.lengths
            assert row.mean("stability_24") == curve.mean[-1]


def test_sorting_changes_the_order_and_nothing_else(done):
    result, _ = done
    for section in result.sections:
        plain, ordered = (section.by_method()[name] for name in ("topk", "topk-sorted"))
        assert plain.mean("stability_24") == pytest.approx(ordered.mean("stability_24"))
        assert plain.mean("mse") == pytest.approx(ordered.mean("mse"), rel=1e-4)
        assert plain.mean("orderedness_24") != ordered.mean("orderedness_24")


def test_every_length_has_its_own_chance_level(done):
    result, plan = done
    isotropic = tuple(chance_level(length, length, 16).stability for length in plan.lengths)
    assert result.chance_curves["stability_isotropic"].mean == isotropic
    levels = list(result.chance_curves["stability"].mean)
    assert all(level >= other - 0.02 for level, other in zip(levels, isotropic, strict=True))
    assert result.chance_curves["orderedness"].high[0] == (plan.lengths[0] - 1) ** -0.5
    for section in result.sections:
        assert [section.chance[f"stability_{length}"] for length in plan.lengths] == levels
        assert section.chance["stability_isotropic"] == isotropic[-1]


def test_every_method_has_the_same_trials_from_each_start_and_takes_the_best_there(done):
    result, plan = done
    assert list(result.rates) == list(plan.starts)
    for start in plan.starts:
        for name in LM_METHODS:
            mine = [trial for trial in result.trials if (trial.start, trial.method) == (start, name)]
            assert [trial.rate for trial in mine] == sorted(plan.rates)
            best = max(mine, key=lambda trial: trial.explained_variance).rate
            assert result.rates[start][name] == best
    about = result.section_of(Place("one", "noise")).by_method()["topk"].recipe
    assert about["lr"]["peak"] == result.rates["noise"]["topk"]


def test_the_same_seed_from_noise_starts_alike_on_both_texts(done):
    """At the start both have the very same atoms, and the last moment is the final agreement."""
    result, plan = done
    one, other = (
        SAE.load(plan.out / "saes" / "noise" / text / "topk-seed0" / "snapshots" / "0")
        for text in ("one", "other")
    )
    assert one.decoder.equal(other.decoder)
    place = Place("one", "noise")
    (progression,) = [p for p in result.progressions if p.place == place and p.method == "topk"]
    first, *_, last = progression.moments
    assert (first.tokens, last.tokens) == (0, plan.tokens)
    assert last.seeds == result.curves_at(place)["topk"]
    assert first.start["stability"].mean[-1] == pytest.approx(1)
    assert last.explained_variance.mean > progression.moments[1].explained_variance.mean
    crossings = result.crossings_from("noise")
    same, apart = (crossings["topk"].same_seed["stability"], crossings["topk"].other_seed["stability"])
    assert same.mean[-1] >= apart.mean[-1] - 0.1
    assert [moment.tokens for moment in crossings["topk"].moments] == [m.tokens for m in progression.moments]
    assert crossings["topk"].moments[0].same_seed["stability"].mean[-1] == pytest.approx(1)
    assert crossings["untrained"].same_seed["stability"].mean[-1] == pytest.approx(1)
    (own,) = [o for o in result.own_starts if o.place == Place("one", "data") and o.method == "topk"]
    assert 0 < own.curves["stability"].mean[-1] < 1


def test_stitched_shares_sum_to_one(done):
    result, plan = done
    table, rows = result.stitching, result.stitching.rows
    assert (table.small, table.large, table.start) == (12, 48, "noise")
    assert [row.method for row in rows] == ["batchtopk", "matryoshka-random", "osae-paper", "osae"]
    for row in rows:
        assert sum(row.mean(key) for key in ("novel", "reconstruction", "unchanged")) == pytest.approx(1)
        assert row.mean("novel_of_firing") + row.mean("reconstruction_of_firing") == pytest.approx(1)
        assert list(row.interval("novel").values) == ["0", "1"]
        assert row.recipe["sae"]["units"] == 48
    for key, found in rows[0].interval("novel").values.items():  # of those that fire, in the same pair
        fire = 1 - rows[0].interval("unchanged").values[key]
        assert rows[0].interval("novel_of_firing").values[key] == pytest.approx(found / fire)
    assert result.all_sections()[-1].rows == rows
    with open(plan.out / "figures" / "stitching.csv") as file:
        assert [float(line["novel"]) for line in csv.DictReader(file)] == [row.mean("novel") for row in rows]


def test_smaller_saes_of_the_tables_are_stitched_if_they_have_the_size(done):
    _, plan = done
    shelf = Shelf(
        replace(plan, stitch_units=None), dict.fromkeys(plan.starts, dict.fromkeys(LM_METHODS, 0.01))
    )
    pairs = stitching._plan_pairs(shelf, Place("one", "noise"), "osae", plan.units, 2 * plan.units)
    place = Place("one", "noise")
    assert [small.root for small, _ in pairs] == [shelf.root(place)] * 2
    seeds = [kept.job.seed for pair in pairs for kept in pair]
    assert len(set(seeds)) == len(seeds)


def test_every_figure_has_its_numbers_beside_it(done):
    result, plan = done
    # seeds, across texts, own starts, stitching; and against tokens: seeds and starts, then across texts
    assert len(result.figures) == 3 + 2 + 3 + 1 + 3 * 2 * 2 + 2
    for figure in result.figures:
        picture = plan.out / figure.file
        assert picture.stat().st_size > 5000
        with open(picture.with_suffix(".csv")) as file:
            lines = len(list(csv.DictReader(file)))
            assert lines == 4 if picture.stem == "stitching" else lines > 10


def test_results_are_written_and_read_back(done):
    result, plan = done
    page = write_experiment(result, plan.out)
    assert page.stat().st_size > 10_000
    assert results.read(plan.out / "results.json") == result


@pytest.mark.parametrize("name", LM_METHODS)
def test_the_start_changes_the_start_alone(name):
    task = Task(16, 64, 4, 10_000)
    usual, noise = recipe(name, task), recipe(name, task, start="noise")
    assert usual == recipe(name, task, start="data")
    assert (usual.start, noise.start) == (FromData(), FromNoise())
    assert replace(usual, start=FromNoise()) == noise


def test_from_noise_our_method_holds_nothing(done):
    _, plan = done
    made = plan.recipe("osae", "noise", 1e-2, plan.task())
    assert (made.name, made.start, made.sweep) == ("osae", FromNoise(), None)
    assert plan.recipe("osae", "data", 1e-2, plan.task()).sweep is not None


def test_one_text_and_one_method_are_enough(texts, tmp_path):
    plan = Plan(
        tmp_path, texts={"one": texts["one"]}, units=12, k=2, tokens=2000, seeds=2, methods=("batchtopk",),
        batch=500, groups=3, rates=(1e-2,), stitch=0, workers=1,
    )  # fmt: skip
    result = run_plan(plan, silent)
    assert not result.crossings
    assert result.stitching is None
    assert not result.claims
    assert "2 seeds form only one pair" in result.notes[0]
    assert {claim.verdict for claim in judge_result(result)} == {UNTESTED}
    (progression,) = result.progressions
    assert [moment.tokens for moment in progression.moments] == [0, 500, 1000, 1500, 2000]


def test_activations_of_different_widths_are_refused(texts, tmp_path):
    write_shards(tmp_path / "wide", [SparseWorld(20, 24, 3, samples=100).draw().x])
    wide = TextShards(tmp_path / "wide", tmp_path / "wide")
    with pytest.raises(ValueError, match="activations of widths 16, 20: take all from one model"):
        Plan(tmp_path, texts={"one": texts["one"], "wide": wide}, units=12, k=2, tokens=2000)


def test_experiment_resumes_from_what_is_there(texts, tmp_path):
    options = LMOptions(
        out=tmp_path, units=16, k=2, tokens=4096, seeds=2, methods=("topk", "osae"), rates=(1e-2,), stitch=0,
        jobs=1, device="cpu", data=tuple(f"{name}={text.train}" for name, text in texts.items()),
    )  # fmt: skip

    def times():
        return sorted(path.stat().st_mtime_ns for path in (tmp_path / "saes").rglob("sae.json"))

    first = EXPERIMENTS["lm"].run(options, silent)
    trained = times()
    assert EXPERIMENTS["lm"].run(options, silent) == first
    assert times() == trained


@pytest.fixture
def marked(tmp_path):
    """Two texts whose rows say which text and document they are from."""
    found = {}
    for number, name in enumerate(("one", "other")):
        for part, count in (("", 3000), ("-held-out", 400)):
            documents = torch.arange(count) // 7
            rows = torch.stack([torch.full((count,), float(number)), documents.float()], 1)
            write_shards(tmp_path / f"{name}{part}", [{"activations": rows, "documents": documents}])
        found[name] = TextShards(tmp_path / name, tmp_path / f"{name}-held-out")
    return found


def test_two_mixtures_share_no_document_and_have_the_texts_in_their_shares(marked, tmp_path):
    made = mix_texts(marked, 0.7, tmp_path / "mixed", silent)
    assert list(made) == ["one70-other30", "one30-other70"]
    rows = [Shards(text.train).read(0, Shards(text.train).rows) for text in made.values()]
    assert [float(found[:, 0].mean()) for found in rows] == pytest.approx([0.3, 0.7], abs=0.01)
    assert not set(map(tuple, rows[0].tolist())) & set(map(tuple, rows[1].tolist()))
    assert all(2970 <= len(found) <= 3000 for found in rows)  # nearly everything is used
    for text, share in zip(made.values(), (0.3, 0.7), strict=True):  # in both halves
        for half in (text.tuning_rows(), text.test_rows()):
            assert float(half[:, 0].mean()) == pytest.approx(share, abs=0.1)
    assert mix_texts(marked, 0.7, tmp_path / "mixed", silent) == made
    with pytest.raises(ValueError, match="contains activations of other documents"):
        mix_texts({"one": marked["other"], "other": marked["one"]}, 0.7, tmp_path / "mixed", silent)


def test_seeds_can_have_documents_of_their_own(texts, tmp_path):
    options = LMOptions(
        out=tmp_path, units=16, k=2, tokens=4096, seeds=3, methods=("topk",), rates=(1e-2,), stitch=0, jobs=1,
        device="cpu", own_documents=True, data=(f"one={texts['one'].train}",), starts=("noise",), quick=True,
    )  # fmt: skip
    result = EXPERIMENTS["lm"].run(options, silent)
    folders = [tmp_path / "activations" / f"one-seed{seed}" for seed in range(3)]
    rows = [Shards(folder).read(0, Shards(folder).rows) for folder in folders]
    assert sum(map(len, rows)) == 4000
    sets = [set(map(tuple, found.tolist())) for found in rows]
    assert len(set.union(*sets)) == sum(map(len, sets))
    assert result.world["texts"]["one"]["rows_by_seed"] == list(map(len, rows))
    sources = [
        read_json(path)["provenance"]["source"]["path"]
        for path in sorted((tmp_path / "saes").rglob("topk-seed*/sae.json"))
        if "snapshots" not in path.parts
    ]
    assert [source.rsplit("-", 1)[-1] for source in sources] == ["seed0", "seed1", "seed2"]


def test_a_mixture_needs_two_texts(texts, tmp_path):
    options = LMOptions(out=tmp_path, data=(f"one={texts['one'].train}",), mix=0.7, device="cpu")
    with pytest.raises(ValueError, match="--mix needs two texts"):
        EXPERIMENTS["lm"].run(options, silent)
