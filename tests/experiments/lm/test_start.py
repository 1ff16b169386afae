"""The study of the start: what it trains, what it measures, and its verdicts either way."""

from dataclasses import replace

import pytest
import torch

from osae import SAE, results
from osae.data.shards import write_shards
from osae.data.worlds import SparseWorld
from osae.experiments import EXPERIMENTS
from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNTESTED, judge_result
from osae.experiments.lm.options import StartOptions
from osae.metrics.statistics import runs_interval
from osae.report import write_experiment
from osae.results.experiment import ExperimentResult, MethodRow, Section


def silent(done, total, text):
    """Progress that nobody sees."""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("start")
    for name, zipf in (("one", 1.0), ("other", 0.6)):
        world = SparseWorld(16, 24, 3, zipf=zipf, samples=2000)
        for part, split in (("", "train"), ("-held-out", "test")):
            write_shards(root / f"{name}{part}", [world.draw(split, 2000).x])
    data = tuple(f"{name}={root / name}" for name in ("one", "other"))
    options = StartOptions(
        out=root / "out", data=data, units=24, k=3, tokens=8192, seeds=2, rates=(1e-5, 0.1), quick=True,
        methods=("osae-paper",), jobs=1, device="cpu",
    )  # fmt: skip
    return EXPERIMENTS["lm-start"].run(options, silent), options


def test_every_rate_has_a_table_with_auxk_and_one_without(done):
    result, _ = done
    assert [section.title for section in result.sections] == [
        "rate 1e-05, with AuxK",
        "rate 1e-05, without AuxK",
        "rate 0.1, with AuxK",
        "rate 0.1, without AuxK",
    ]
    for section in result.sections:
        (row,) = section.rows
        assert (row.recipe["revival"] is None) == section.title.endswith("without AuxK")
        assert row.recipe["lr"]["peak"] == section.x
        assert row.recipe["start"]["kind"] == "FromNoise"


def test_every_table_has_the_chance_level_of_its_atoms(done):
    for section, table in zip(done[0].sections, done[0].tables(), strict=True):
        level = table.chance["chance level"]
        assert level["stability_texts"].mean == section.chance["stability"] > 0
        assert level["orderedness_start"].std == pytest.approx(23**-0.5)  # of 24 matched pairs
        assert table.chance["isotropic"]["stability_start"].mean < 1


def test_saes_that_hardly_move_stay_like_their_start_and_alike(done):
    slow, fast = (done[0].sections[i].rows[0] for i in (0, 2))
    for key in ("orderedness_texts", "stability_texts", "orderedness_start", "stability_start"):
        assert slow.mean(key) > 0.999
    for key in ("stability_texts", "stability_start"):
        assert fast.mean(key) < 0.99
    assert fast.mean("explained_variance") > slow.mean("explained_variance")


def test_unused_units_by_group_are_those_that_never_fire(done):
    result, options = done
    (row,) = result.sections[0].rows
    ends = [int(key.removeprefix("unused_")) for key in row.measures if key.startswith("unused_")]
    assert ends[-1] == 24
    shares = {seed: [] for seed in ("0", "1")}
    for text in ("one", "other"):
        held_out = (
            SparseWorld(16, 24, 3, zipf=1.0 if text == "one" else 0.6, samples=2000).draw("test", 2000).x
        )
        for seed, found in shares.items():
            sae = SAE.load(options.out / "saes" / "1e-05" / text / f"osae-paper-seed{seed}")
            code = sae.encode(held_out[1000:])
            fired = torch.zeros(24, dtype=torch.bool)
            fired[code.units[code.values != 0]] = True
            found.append(float((~fired[ends[-2] :]).double().mean()))
    values = row.interval("unused_24").values
    assert values == {seed: pytest.approx(sum(found) / 2) for seed, found in shares.items()}


def test_results_have_figures_and_are_read_back(done):
    result, options = done
    page = write_experiment(result, options.out)
    assert page.stat().st_size > 10_000
    assert results.read(options.out / "results.json").to_json() == result.to_json()
    assert [figure.file for figure in result.figures] == [
        "figures/start-rates.png",
        "figures/start-unused.png",
    ]
    for figure in result.figures:
        assert (options.out / figure.file).stat().st_size > 5000
    assert not result.claims  # two seeds, and in haste


def interval(mean):
    return runs_interval({seed: mean + 0.002 * (-1) ** seed for seed in range(4)})


def table(title, rate, texts, start, late):
    measures = {"orderedness_texts": texts, "stability_texts": texts - 0.15, "orderedness_start": start}
    measures |= {"stability_start": 0.5, "unused_8": 0.1, "unused_64": late}
    row = MethodRow("osae-paper", measures={key: interval(value) for key, value in measures.items()})
    rival = replace(
        row, method="matryoshka-random", measures=row.measures | {"orderedness_start": interval(0.8)}
    )
    return Section(title, (row, rival), x=rate)


def study(better):
    low, high = ((0.99, 0.985), (0.97, 0.975)) if better else ((0.2, 0.2), (0.5, 0.5))
    start = (0.96, 0.99) if better else (0.6, 0.3)
    late = 0.5 if better else 0.02
    sections = [
        table(f"rate {rate:g}, {words} AuxK", rate, values[i], start[i], late)
        for rate, values in ((1e-3, low), (8e-3, high))
        for i, words in enumerate(("with", "without"))
    ]
    return ExperimentResult(
        experiment="lm-start", title="", world={}, seeds=(0, 1, 2, 3), sections=tuple(sections)
    )


def test_claims_hold_where_units_stay_and_fail_where_it_is_the_reverse():
    assert [claim.verdict for claim in judge_result(study(better=True))] == [HOLDS] * 6
    assert [claim.verdict for claim in judge_result(study(better=False))] == [FAILS] * 6


def test_a_claim_for_all_rates_holds_in_part_if_it_does_at_one_of_them():
    good, bad = study(better=True), study(better=False)
    mixed = replace(good, sections=(*good.sections[:2], *bad.sections[2:]))
    assert judge_result(mixed)[0].verdict == PARTLY


def test_nothing_is_said_of_what_was_not_trained():
    empty = ExperimentResult(experiment="lm-start", title="", world={}, seeds=(0, 1, 2))
    assert {claim.verdict for claim in judge_result(empty)} == {UNTESTED}


def test_it_needs_two_texts(done, tmp_path):
    options = replace(done[1], out=tmp_path, data=done[1].data[:1])
    with pytest.raises(ValueError, match="the study needs two texts"):
        EXPERIMENTS["lm-start"].run(options, silent)
