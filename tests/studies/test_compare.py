"""Comparisons against the metrics they are made of."""

import json
import re
import threading
from dataclasses import asdict
from itertools import combinations

import numpy as np
import pytest
import torch

import osae
from osae import metrics, report, results
from osae.data.shards import Shards
from osae.interop import load
from osae.measures import ABOVE, AGREEMENT, Measure, added, markdown_table
from osae.report.about import _prefix_curves
from osae.results.describe import field_tables
from osae.sparsify import JumpReLU
from osae.studies import compare as module
from osae.studies.compare import compare
from osae.studies.pairs import PAIR_MEASURES, PREFIX_MEASURES, pair_measure, prefix_measure
from tests.studies.checks import RELEASED, check, walk_missing
from tests.studies.saes import WORLD, make_sae, noise, save_sae


def test_permuted_copies_have_stability_one_and_give_the_permutation_back(tmp_path):
    atoms, order = WORLD.dictionary(), torch.randperm(20, generator=torch.Generator().manual_seed(1))
    a, b = save_sae(tmp_path / "a", atoms), save_sae(tmp_path / "b", atoms[order])
    result = check(compare([a, b]))
    (pair,) = result.pairs
    assert pair.stability == pytest.approx(1.0)
    assert [(i, j) for i, j, _ in pair.matching.pairs] == [(i, int(j)) for i, j in enumerate(order.argsort())]
    assert pair.orderedness == pytest.approx(metrics.rank_correlation(torch.arange(20), order.argsort()))
    assert pair.matching.optimal
    assert [pair.measures[f"above_{level}"] for level in ABOVE] == [1.0, 1.0, 1.0]
    assert pair.measures["stream_stability"] is None
    assert result.means.measures["stability"] == results.Interval(pair.stability)
    assert result.saes[1].path == str(b)
    assert result.saes[1].sha256 == load(b).sha256
    assert result.saes[1].recipe is None


@pytest.mark.parametrize("absolute", [False, True])
def test_numbers_are_those_of_the_metrics(tmp_path, absolute):
    atoms = [noise(40, 12, seed) for seed in range(3)] + [noise(25, 12, 9)]
    paths = [tmp_path / f"{place}.npy" for place in range(4)]
    for path, matrix in zip(paths, atoms, strict=True):
        np.save(path, matrix.numpy())
    seen = []
    result = check(compare(paths, absolute=absolute, progress=lambda *words: seen.append(words)))
    assert [(pair.a, pair.b) for pair in result.pairs] == list(combinations(range(4), 2))
    like = metrics.fit_atoms(*atoms)
    for pair in result.pairs:
        a, b = atoms[pair.a], atoms[pair.b]
        whole = metrics.consistency(a, b, absolute=absolute)
        assert (pair.stability, pair.orderedness) == (whole.stability, whole.orderedness)
        share = float((whole.matching.similarity > 0.5).double().mean())
        assert pair.measures["above_0.5"] == pytest.approx(share)
        level = metrics.chance_level(*sorted((len(a), len(b))), 12, like=like, absolute=absolute)
        assert pair.chance.stability == level.stability
        isotropic = metrics.chance_level(*sorted((len(a), len(b))), 12, absolute=absolute)
        assert pair.chance.isotropic == isotropic.stability
        expected = metrics.prefix_consistency(a, b, absolute=absolute)
        assert [prefix.length for prefix in pair.prefixes] == [prefix.length for prefix in expected]
        for ours, theirs in zip(pair.prefixes, expected, strict=True):
            assert all(value == getattr(theirs, key) for key, value in ours.measures.items())
            if ours.length < 25:
                level = metrics.chance_level(ours.length, ours.length, 12, like=like, absolute=absolute)
                assert ours.chance.stability == level.stability
    values = {(pair.a, pair.b): pair.stability for pair in result.pairs}
    expected = metrics.pair_interval(values)
    found = result.means.measures["stability"]
    assert (found.mean, found.low, found.high) == (expected.mean, expected.low, expected.high)
    assert result.means.pairs == 6
    assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1]


def test_sizes_may_differ_and_prefixes_may_be_chosen(tmp_path):
    atoms = noise(30, 12, 0)
    a, b = save_sae(tmp_path / "a", atoms), save_sae(tmp_path / "b", atoms[10:22])
    result = check(compare([a, b], prefixes=[20, 4, 4], chance_draws=0))
    (pair,) = result.pairs
    assert [(i, j) for i, j, _ in pair.matching.pairs] == [(i + 10, i) for i in range(12)]
    assert (pair.stability, pair.orderedness) == pytest.approx((1.0, 1.0))
    assert [prefix.length for prefix in pair.prefixes] == [4, 20]
    first, second = pair.prefixes
    assert first.measures["stability_of_full"] == pytest.approx(1.0)  # those of the smaller one have partners
    assert second.measures["stability_of_full"] == pytest.approx(1.0)
    assert pair.chance is None
    assert "stability_chance" not in result.tables()[1].columns
    assert result.options.prefixes == (20, 4, 4)


def test_every_prefix_is_shown_with_the_spread_of_unrelated_orders_of_its_length():
    result = compare([noise(20, 12, seed) for seed in range(3)], prefixes=[4, 10, 20], chance_draws=1)
    (table,) = [table for table in result.tables() if table.title.startswith("Prefixes")]
    shown = [row.values["orderedness_chance"].std for row in table.rows]
    assert shown == pytest.approx([3**-0.5, 9**-0.5, 19**-0.5])
    assert "orderedness_chance" in table.columns


def test_zero_rows_count_with_cosine_zero_or_are_left_out():
    atoms = noise(12, 30, 0)
    atoms[3] = atoms[7] = 0
    other = noise(12, 30, 0)
    other[5] = 0
    kept = check(compare([atoms, other], prefixes=[4, 12]))
    assert [sae.zero_units for sae in kept.saes] == [(3, 7), (5,)]
    cosine = torch.nn.functional.normalize(atoms.double()) @ torch.nn.functional.normalize(other.double()).T
    assert kept.pairs[0].stability == pytest.approx(float(metrics.match(cosine).similarity.mean()))
    assert len(kept.pairs[0].matching.pairs) == 12
    assert "0: in memory: 2 of 12 units have no direction; they count with cosine 0." in kept.remarks()
    dropped = check(compare([atoms, other], dead="drop", prefixes=[4, 10]))
    (pair,) = dropped.pairs
    assert [sae.compared for sae in dropped.saes] == [10, 11]
    matched = {i: j for i, j, _ in pair.matching.pairs}
    assert set(matched) == set(range(12)) - {3, 7}
    assert all(matched[i] == i for i in set(matched) - {5})
    expected = metrics.stability(atoms[[0, 1, 2, 4]], other[:4])
    assert pair.prefixes[0].measures["stability"] == pytest.approx(expected)


def test_activations_add_streams_reconstruction_and_dead_units(tmp_path, shards):
    atoms = WORLD.dictionary()
    dead = torch.cat([atoms, noise(2, 24, 3)])
    a = save_sae(tmp_path / "a", atoms)
    loaded = load(save_sae(tmp_path / "b", dead, JumpReLU(threshold=0.4)))
    with torch.no_grad():
        loaded.sae.threshold[20:] = 1e6
    result = check(compare([a, loaded, a], data=shards, on="encoder"))
    assert result.saes[0].dead_units == ()
    assert result.saes[1].dead_units == (20, 21)
    assert result.activations.rows == 600
    x = WORLD.draw("test").x
    codes = [sae.encode(x).dense(len(sae.decoder)).detach() for sae in (load(a).sae, loaded.sae)]
    measures = result.pairs[0].measures
    assert measures["stream_stability"] == pytest.approx(metrics.stream_stability(*codes))
    assert measures["stream_orderedness"] == pytest.approx(metrics.stream_orderedness(*codes))
    assert result.pairs[1].measures["stream_stability"] == pytest.approx(1.0)
    explained = metrics.explained_variance(x, load(a).sae(x).reconstruction.detach())
    found = result.saes[0].reconstruction.measures
    assert found["explained_variance"] == pytest.approx(explained, rel=1e-5)
    dropped = check(compare([a, loaded], data=shards.path, dead="drop"))
    assert dropped.saes[1].compared == 20
    assert dropped.pairs[0].stability == pytest.approx(1.0)


def test_activations_have_a_chance_level_from_shifting_one_side(tmp_path, shards):
    paths = [save_sae(tmp_path / str(seed), noise(20, 24, seed)) for seed in range(2)]
    (pair,) = compare(paths, data=shards).pairs
    x = WORLD.draw("test").x
    a, b = (load(path).sae.encode(x).dense(20).detach() for path in paths)
    level = metrics.stream_stability(a, b.roll(-300, 0))
    assert pair.chance.stream_stability == pytest.approx(level, abs=1e-5)
    assert level < pair.measures["stream_stability"]
    (column,) = [one for one in compare(paths, data=shards).tables()[1].columns if "stream_stability_" in one]
    assert column == "stream_stability_chance"


def test_codes_beyond_the_memory_that_they_may_take_are_not_kept(tmp_path, shards, monkeypatch):
    paths = [save_sae(tmp_path / str(seed), noise(20, 24, seed)) for seed in range(2)]
    monkeypatch.setattr(module, "_STREAM_ENTRIES", 1)
    monkeypatch.setattr(module, "BATCH", 200)
    (pair,) = compare(paths, data=shards, chance_draws=0).pairs
    x = WORLD.draw("test").x[:200]
    codes = [load(path).sae.encode(x).dense(20).detach() for path in paths]
    assert pair.measures["stream_stability"] == pytest.approx(metrics.stream_stability(*codes), abs=1e-5)


def test_what_cannot_be_compared_is_refused(tmp_path, shards):
    a, wide = save_sae(tmp_path / "a", noise(20, 24, 0)), save_sae(tmp_path / "b", noise(20, 25, 0))
    np.save(tmp_path / "bare.npy", noise(30, 24, 0).numpy())
    zero = tmp_path / "zero.npy"
    np.save(zero, np.zeros((30, 24), dtype=np.float32))
    for saes, options, message in (
        ([a], {}, "a is the only SAE given: give at least two"),
        (str(a), {}, "at least two"),
        ([], {}, "no SAE was given"),
        ([a, a], {"on": "both"}, "on='both'"),
        ([a, a], {"dead": "hide"}, "dead='hide'"),
        ([a, a], {"chance_draws": -1}, "chance_draws=-1"),
        ([a, wide], {}, "b has width 25 and .*a has 24"),
        ([a, tmp_path / "bare.npy"], {"on": "encoder"}, "has no encoder"),
        ([a, tmp_path / "bare.npy"], {"data": shards}, "only its matrices could be read"),
        ([wide, wide], {"data": shards}, "has width 25, but .* has width 24"),
        ([a, zero], {"dead": "drop"}, "all 30 units of an SAE are dead"),
        ([a, a], {"prefixes": [21]}, "prefix length 21: give 1 to 20"),
        ([a, a], {"prefixes": [0]}, "prefix length 0: give 1 to 20"),
    ):
        with pytest.raises(ValueError, match=message):
            compare(saes, **options)


def test_options_are_checked_before_any_pass_over_activations(tmp_path, shards, monkeypatch):
    a = save_sae(tmp_path / "a", noise(20, 24, 0))

    def refuse(self, size=0):
        raise AssertionError("activations were read")

    monkeypatch.setattr(Shards, "batches", refuse)
    for options in ({"prefixes": [99]}, {"on": "both"}, {"dead": "hide"}, {"chance_draws": -1}):
        with pytest.raises(ValueError, match="give"):
            compare([a, a], data=shards, **options)
    with pytest.raises(AssertionError, match="activations were read"):
        compare([a, a], data=shards)


def test_pairs_of_different_recipes_are_not_averaged():
    result = check(compare(RELEASED / "run", chance_draws=0))
    assert [sae.recipe for sae in result.saes] == ["osae-paper"] * 2 + ["osae"] * 2 + ["topk"] * 2
    assert [(means.recipe, means.pairs) for means in result.groups] == [
        ("osae-paper", 1),
        ("osae", 1),
        ("topk", 1),
    ]
    assert not any(row.summary for row in result.tables()[1].rows)  # one pair each: nothing to average
    said = " ".join(result.summary())
    assert "mean" not in said
    assert "Across recipes (12 pairs): stability 0.5" in said
    pair = next(pair for pair in result.pairs if (pair.a, pair.b) == (2, 3))
    assert f"osae: stability {pair.stability:.3f}, orderedness {pair.orderedness:.3f}." in said
    assert len(result.pairs) == 15
    assert result.means.pairs == 0  # no headline over all of them, in the JSON neither
    assert {value for key, value in result.to_json()["summary"].items() if key in AGREEMENT} == {None}


@pytest.mark.parametrize("library", ["saelens", "sparsify", "dictionary_learning", "osae"])
def test_a_converted_sae_keeps_its_recipe_and_a_reordered_one_has_its_own_group(library, tmp_path):
    first, second = (RELEASED / "run" / f"topk-seed{seed}" for seed in (0, 1))
    osae.convert(first, tmp_path / library, to=library)
    x = noise(50, load(first).width, 0)
    osae.order(second, x).save(tmp_path / "ordered")
    osae.convert(tmp_path / "ordered", tmp_path / "both", to=library)
    saes = [first, tmp_path / library, second, tmp_path / "ordered", tmp_path / "both"]
    result = compare(saes, chance_draws=0)
    assert [sae.recipe for sae in result.saes] == ["topk"] * 3 + ["topk, reordered"] * 2
    assert [(means.recipe, means.pairs) for means in result.groups] == [("topk", 3), ("topk, reordered", 1)]


def test_saes_of_unknown_recipes_are_not_taken_to_share_one():
    known = RELEASED / "run" / "osae-seed0"
    width = load(known).decoder.shape[1]
    result = check(compare([known, *(noise(20, width, seed) for seed in range(4))], chance_draws=0))
    assert [sae.recipe for sae in result.saes] == ["osae", None, None, None, None]
    said = result.summary()
    assert said[0].startswith("Pairs of different or unknown recipes (10 pairs): stability 0.")
    assert said[-1] == "The table by number of SAEs also covers the other SAE."
    tables = {table.title: table for table in result.tables()}
    assert not any(row.summary for row in tables["Pairs"].rows)
    assert not any("mean" in table.note.lower() for table in tables.values())
    assert result.units is not None
    assert [len(sae.counted) for sae in result.units.saes] == [4] * 5
    lines = _prefix_curves(result, ["stability"])["stability"]
    assert len(lines) == 10  # one per pair, no mean over all of them


def test_several_pairs_of_one_recipe_are_averaged_with_an_interval():
    result = compare([noise(20, 8, seed) for seed in range(3)], chance_draws=0)
    pairs, *prefixes = result.tables()[1:]
    assert pairs.rows[-1].summary
    assert pairs.rows[-1].label == "mean of 3 pairs"
    assert pairs.rows[-1].values["stability"].low <= pairs.rows[-1].values["stability"].mean
    assert prefixes[0].note.startswith("Means over 3 pairs")
    assert "mean of 3 pairs" in result.summary()[0]


# --- files of release 0.1.0 -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compare-two", "compare-three"])
def test_a_comparison_has_every_key_of_release_0_1_0_and_its_numbers(name, monkeypatch):
    old = json.loads((RELEASED / f"{name}.json").read_text())
    monkeypatch.chdir(RELEASED)
    paths = [sae["path"] for sae in old["saes"]]
    prefixes = old["options"]["prefixes"]
    new = compare(
        paths,
        data=old["activations"] and old["activations"]["path"],
        prefixes=None if prefixes == "auto" else prefixes,
    ).to_json()
    del old["provenance"]["command"], old["provenance"]["date"]  # of the command line only
    if name == "compare-three":  # of three recipes, which are no longer averaged
        assert old.pop("summary").keys() <= new["summary"].keys()
    changed = [line for line in walk_missing(old, json.loads(json.dumps(new))) if not CHANGED.search(line)]
    assert changed == []


# since 0.1.0 chance levels are drawn like the atoms, intervals cover, and full matchings count both sides
CHANGED = re.compile(r"chance\.(stability|draws)|\.(low|high)\b|\.std:|_of_full")


def test_a_missing_key_or_number_would_be_seen():
    old = {"a": [{"b": 1.0}], "c": {"d": None}}
    assert list(walk_missing(old, old)) == []
    assert list(walk_missing(old, {"a": [{"b": 2.0}], "c": {}})) == [".a[0].b: 2.0 instead of 1.0", ".c.d"]


# --- a new measure ----------------------------------------------------------------------------------


@pytest.fixture
def new_measure():
    """A measure of pairs and of prefixes: one entry in the table, one function each."""
    entry = Measure(
        "worst",
        "Worst",
        "least cosine of a pair",
        "Cosine of the matched pair that agrees least.",
        better="high",
        of=("pair", "prefix"),
    )
    with added(entry):
        pair_measure("worst")(lambda pair: float(pair.matching.similarity.min()))
        prefix_measure("worst")(lambda prefix: float(prefix.matching.similarity.min()))
        yield entry
        del PAIR_MEASURES["worst"], PREFIX_MEASURES["worst"]


def test_a_measure_is_one_function_and_one_table_entry(new_measure, capsys):
    atoms = [noise(20, 8, seed) for seed in range(3)]
    result = check(compare(atoms, chance_draws=0))
    expected = float(metrics.match_atoms(atoms[0], atoms[1]).similarity.min())
    tables = {table.title: table for table in result.tables()}
    pairs, prefixes = tables["Pairs"], tables["Prefixes"]
    assert pairs.rows[0].values["worst"] == pytest.approx(expected)
    assert "Worst" in [measure.title for measure in pairs.measures()]
    assert "worst" in prefixes.columns
    assert pairs.rows[-1].values["worst"].mean == pytest.approx(result.means.measures["worst"].mean)
    assert result.to_csv().splitlines()[0].endswith("optimal,gap,worst")
    assert result.records()[0]["worst"] == pytest.approx(expected)
    data = result.to_json()
    assert data["pairs"][0]["worst"] == pytest.approx(expected)
    assert set(data["summary"]["worst"]) == {"mean", "std", "low", "high"}
    assert "worst" in results.schema("comparison")["$defs"]["PairResult"]["properties"]
    assert new_measure.meaning in markdown_table()
    assert new_measure.meaning in field_tables(results.Comparison)
    report.show(result)
    assert "Worst" in capsys.readouterr().out
    assert "Worst" in report.markdown_table(pairs)
    html = report.render_page(result)
    assert ">Worst" in html
    assert f"{expected:.3f}" in html


def test_every_measure_of_a_pair_is_computed_and_every_computed_one_is_in_the_table():
    from osae.measures import measures_of

    assert {entry.key for entry in measures_of("pair")} == set(PAIR_MEASURES)
    assert {entry.key for entry in measures_of("prefix")} == set(PREFIX_MEASURES)


# --- the result as an object ------------------------------------------------------------------------


def test_csv_has_the_columns_of_release_0_1_0_first():
    result = compare([noise(20, 8, seed) for seed in range(2)], prefixes=[4, 20])
    head, *lines = result.to_csv().splitlines()
    assert head == (
        "a,b,length,stability,chance,orderedness,stability_of_full,orderedness_of_full,above_0.5,above_0.7,"
        "above_0.9,stream_stability,stream_orderedness,optimal,gap,"
        "chance_isotropic,chance_orderedness_std,chance_stream_stability"
    )
    assert [line.split(",")[2] for line in lines] == ["", "4", "20"]


def test_a_comparison_prints_what_it_found():
    result = compare([noise(20, 8, seed) for seed in range(2)])
    assert repr(result).startswith("Comparison:\n  Stability 0.")
    assert "Unrelated dictionaries with the mean and covariance of these atoms have stability" in repr(result)
    isotropic = compare([noise(20, 8, seed) for seed in range(2)], chance="isotropic")
    assert "Unrelated isotropic dictionaries have stability" in repr(isotropic)
    assert isotropic.pairs[0].chance.stability == isotropic.pairs[0].chance.isotropic
    assert "mean of" not in repr(result)  # one pair is no mean


def test_uncertified_matchings_are_remarked():
    from dataclasses import replace

    result = compare([make_sae(noise(20, 8, seed)) for seed in range(2)])
    assert result.remarks() == []
    pair = result.pairs[0]
    unsure = replace(pair, matching=replace(pair.matching, optimal=False, gap=1e-3))
    (said,) = replace(result, pairs=(unsure,)).remarks()
    assert "not certified as optimal: 1." in said
    assert "1.0e-03" in said


def test_asdict_of_a_result_is_plain():
    result = compare([noise(5, 4, seed) for seed in range(2)])
    assert asdict(result.pairs[0])["measures"]["stability"] == osae.stability(noise(5, 4, 0), noise(5, 4, 1))


# --- chance levels in a thread of their own ---------------------------------------------------------


@pytest.mark.parametrize(("units", "draws"), [(16, 8), (128, 8), (256, 4), (1024, 1), (1500, 1)])
def test_larger_dictionaries_get_fewer_draws(units, draws, monkeypatch):
    asked = []

    def level(small, large, width, *, like, draws, absolute):
        asked.append((small, large, draws))
        return metrics.ChanceLevel(0.1, float("nan"), 0.0, 0.1, draws)

    monkeypatch.setattr(module.metrics, "chance_level", level)
    result = compare([noise(units, 2, 0), noise(units + 1, 2, 1)], prefixes=[units])
    assert set(asked) == {(units, units, draws), (units, units + 1, min(draws, max(1, 1024 // (units + 1))))}
    assert result.pairs[0].chance.stability_std is None
    assert compare([noise(20, 2, 0)] * 2, prefixes=[], chance_draws=3).pairs[0].chance.draws == 3


def test_an_error_in_the_second_thread_is_raised_in_the_first(monkeypatch):
    def fail(*shape, **options):
        raise ValueError("no memory for random dictionaries")

    monkeypatch.setattr(module.metrics, "chance_level", fail)
    with pytest.raises(ValueError, match="no memory for random dictionaries"):
        compare([noise(20, 8, seed) for seed in range(2)])


def join_chance_threads():
    for thread in threading.enumerate():
        if thread.name == "osae-chance":
            thread.join(60)


def test_no_levels_are_computed_after_a_comparison_has_failed(monkeypatch):
    join_chance_threads()  # a failed comparison of another test may have left one at its last level
    drawn, resume = [], threading.Event()

    def level(small, large, width, **options):
        resume.wait(60)
        drawn.append(small)
        return metrics.ChanceLevel(0.1, 0.1, 0.0, 0.1, 1)

    def fail(*atoms, **options):
        raise RuntimeError("stopped")

    monkeypatch.setattr(module.metrics, "chance_level", level)
    monkeypatch.setattr(module.metrics, "match_atoms", fail)
    with pytest.raises(RuntimeError, match="stopped"):
        compare([noise(20, 8, seed) for seed in range(2)], prefixes=[2, 4, 8])
    resume.set()
    join_chance_threads()
    assert len(drawn) <= 2  # what each of the two threads was at, if it had started
