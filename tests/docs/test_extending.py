"""Each kind of change in CONTRIBUTING.md takes no more places than it says: here is one of each.

A sparsifier and a prefix distribution are cases of a `match`, which a test cannot add; the laws below hold
for every member of the two unions, so a new one is tested as soon as it exists.
"""

import importlib
import json
import typing
from dataclasses import dataclass, replace

import pytest
import torch

import osae
from osae import interop, report
from osae.cli import COMMANDS, main
from osae.cli.command import Command
from osae.cli.commands import train as train_command
from osae.config import from_json, to_json
from osae.data.shards import write_shards
from osae.experiments import EXPERIMENTS, Experiment, methods
from osae.experiments.options import ExperimentOptions
from osae.measures import Measure, added, markdown_table
from osae.model import SAE, SAEConfig
from osae.options import Options, option
from osae.prefix import PrefixWeights, Uniform, prefix_weights
from osae.recipes import RECIPES, Task, activations_base, topk
from osae.results.experiment import ExperimentResult, MethodRow
from osae.sparsify import Sparsifier
from osae.studies.pairs import PAIR_MEASURES, pair_measure


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def new_measure():
    entry = Measure(
        "worst", "Worst", "least cosine", "Cosine of the pair that agrees least.", of=("pair",), chance=True
    )
    with added(entry):
        pair_measure("worst")(lambda pair: float(pair.matching.similarity.min()))
        yield entry
        del PAIR_MEASURES["worst"]


@pytest.mark.usefixtures("new_measure")
def test_a_measure_is_in_every_table_file_and_page(tmp_path, capsys):
    """One entry in the table of measures, and one function."""
    result = osae.compare([noise(20, 8, seed=seed) for seed in range(2)], chance_draws=2)
    number = f"{result.pairs[0].measures['worst']:.3f}"
    report.show(result)
    terminal = capsys.readouterr().out
    report.write_page(result, tmp_path / "page.html")
    assert "Worst" in terminal
    assert number in terminal
    assert "worst" in result.to_csv().splitlines()[0].split(",")
    assert result.to_json()["pairs"][0]["worst"] == result.pairs[0].measures["worst"]
    page = (tmp_path / "page.html").read_text()
    assert "Worst" in page
    assert number in page
    assert "| Worst | `worst` |" in markdown_table()
    assert pair_table(result).columns.count("stability_chance") == 1
    assert "worst_chance" not in pair_table(result).columns  # no level is known, so none is shown


def pair_table(result):
    return next(table for table in result.tables() if table.title == "Pairs")


def test_a_measure_of_methods_is_in_their_table():
    """One entry in the table of measures, and a number in the rows."""
    with added(Measure("spread", "Spread", "spread", "How far atoms are apart.", of=("method",))):
        row = MethodRow(
            "topk", measures={"spread_truth": 0.25, "l0": 3.0, "stability_truth": 0.5, "mse": 1.0}
        )
        result = ExperimentResult("new", "New", {}, (0,), rows=(row,))
        assert result.tables()[0].columns == ("stability_truth", "mse", "spread_truth")
        assert "Spread truth" in report.markdown_table(result.tables()[0])


def make_sparsifier(kind):
    return kind(k=3) if "k" in kind.__dataclass_fields__ else kind()


@pytest.mark.parametrize("kind", typing.get_args(Sparsifier), ids=lambda kind: kind.__name__)
def test_every_sparsifier_encodes_survives_json_and_is_exported_as_itself_or_refused(kind, tmp_path):
    config = SAEConfig(8, 12, make_sparsifier(kind))
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    sae, x = SAE(config, generator=torch.Generator().manual_seed(0)), noise(30, 8)
    with torch.no_grad():
        expected = sae(x).reconstruction
    for target in interop.TARGETS:
        try:
            osae.convert(sae, tmp_path / target, to=target)
        except ValueError:  # the library cannot express it
            assert target != "osae"
            continue
        loaded = osae.load(tmp_path / target).sae
        assert loaded is not None
        with torch.no_grad():
            torch.testing.assert_close(loaded(x).reconstruction, expected, rtol=1e-4, atol=1e-5)


def make_prefix(kind):
    """A distribution of that kind over 12 units, from the names of its fields."""
    values = {"ratio": 0.9, "alpha": 1.0, "ends": (4, 12), "masses": None, "values": (1.0,) * 12}
    values |= {"base": Uniform(), "full": 0.5, "count": 3}
    return kind(**{name: values[name] for name in kind.__dataclass_fields__})


@pytest.mark.parametrize("kind", typing.get_args(PrefixWeights), ids=lambda kind: kind.__name__)
def test_every_prefix_distribution_survives_json_and_sums_to_one(kind):
    spec = make_prefix(kind)
    assert from_json(json.loads(json.dumps(to_json(spec)))) == spec
    weights = prefix_weights(spec, 12, torch.Generator().manual_seed(0))
    assert weights.shape == (12,)
    assert bool((weights >= 0).all())
    assert float(weights.sum()) == pytest.approx(1)


@pytest.fixture
def command_line():
    """Return a function that makes `osae train` read the names of recipes again; undone afterwards."""

    def read():
        COMMANDS["train"] = importlib.reload(train_command).COMMAND

    yield read
    read()


def test_a_recipe_is_a_function_and_an_entry(command_line, monkeypatch, tmp_path, capsys):
    """Then it has a name, trains, and the command line knows it."""

    def all_prefixes(task):
        """TopK; the same weight on every prefix."""
        return replace(topk(task, activations_base), name="all-prefixes", prefix=Uniform())

    monkeypatch.setitem(RECIPES, "all-prefixes", all_prefixes)
    made = osae.recipe("all-prefixes", Task(8, 12, 3, samples=400, batch=100))
    assert made.prefix == Uniform()
    sae = osae.fit(made, noise(200, 8))
    assert sae.decoder.shape == (12, 8)
    write_shards(tmp_path / "acts", [noise(400, 8)])
    words = ["train", "all-prefixes", "--data", str(tmp_path / "acts"), "--units", "12", "--k", "3"]
    with monkeypatch.context() as entry:
        entry.setattr(methods, "ACTIVATION_METHODS", (*methods.ACTIVATION_METHODS, "all-prefixes"))
        command_line()
        assert main([*words, "--batch", "100", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "run" / "all-prefixes-seed0")]
    trained = json.loads((tmp_path / "run" / "all-prefixes-seed0" / "sae.json").read_text())
    assert trained["provenance"]["recipe"]["prefix"] == {"kind": "Uniform"}


@dataclass(frozen=True, kw_only=True)
class GreetOptions(Options):
    """Whom to greet."""

    name: str = option("whom to greet", positional=True)
    times: int = option("how often", default=1, least=1)


def test_a_command_is_a_dataclass_a_function_and_an_entry(monkeypatch, capsys):
    def greet(options, line):
        print("\n".join([f"Hello {options.name}"] * options.times))
        return 0

    monkeypatch.setitem(COMMANDS, "greet", Command("greet", "Greet somebody.", GreetOptions, greet))
    assert main(["greet", "Ada", "--times", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["Hello Ada"] * 2
    assert main(["greet", "Ada", "--times", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "Greet somebody." in capsys.readouterr().out
    assert main(["greet", "Ada", "--print-config"]) == 0
    assert "name: Ada" in capsys.readouterr().out


def test_an_experiment_is_its_options_a_function_and_an_entry(monkeypatch, tmp_path, capsys):
    def run(options, progress):
        row = MethodRow("guess", measures={"mse": 0.25})
        return ExperimentResult(experiment="guess", title="A guess", world={}, seeds=(0,), rows=(row,))

    monkeypatch.setitem(EXPERIMENTS, "guess", Experiment("guess", "a guess", ExperimentOptions, run))
    assert main(["reproduce", "guess", "--out", str(tmp_path)]) == 0
    assert "A guess" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["rows"][0]["mse"] == 0.25
    assert "A guess" in (tmp_path / "report.html").read_text()
