"""The command line as a user meets it."""

import json
import re
import subprocess
import sys
import time

import pytest

from osae.cli import COMMANDS, main
from osae.cli.reproduce import EXPERIMENTS

SMALL = ["--width", "10", "--units", "8", "--active", "2", "--samples", "3000"]


def shell(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "osae.cli", *words], capture_output=True, text=True, timeout=120
    )


def test_help_answers_at_once_and_without_torch():
    times = []
    for _ in range(6):
        start = time.perf_counter()
        assert "reproduce" in shell("--help").stdout
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
    script = (
        "import sys, osae.cli; osae.cli.parser(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert COMMANDS[name].help[:40] in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_the_list_of_experiments_is_the_list_that_runs():
    from osae.experiments import EXPERIMENTS as functions

    assert list(EXPERIMENTS) == [*functions, "lm"]  # which has options of its own


def test_recipes_are_listed_and_printed(capsys):
    assert main(["recipes"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [
        "vanilla",
        "topk",
        "batchtopk",
        "matryoshka-fixed",
        "matryoshka-random",
        "nested-dropout",
        "osae-paper",
        "osae",
        "osae-from-noise",
        "pythia-70m",
        "gemma-2-2b",
        "smollm2-135m",
    ]
    assert main(["recipes", "osae"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "osae"
    assert main(["recipes", "gemma-2-2b"]) == 0
    setting = json.loads(capsys.readouterr().out)
    assert setting["recipe"]["prefix"]["ends"] == [128, 384, 896, 1920, 4096]
    assert setting["recipe"]["start"] == {"kind": "FromNoise"}
    assert (setting["source"]["model"], setting["source"]["layer"]) == ("google/gemma-2-2b", 12)
    assert main(["recipes", "smollm2-135m"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["start"]["kind"] == "FromData"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nonsense", "--out", "x"], "no recipe 'nonsense'"),
        (["train", "topk", "--out", "x", "--set", "lr.speed=3"], "no field 'speed'"),
        (["train", "topk", "--out", "x", "--set", "lr.peak=fast"], "is not JSON"),
        (["train", "topk", "--out", "x", "--active", "200"], "ask for 1 to 100"),
        (["train", "topk", "--out", "x", "--set", 'lr.peak="fast"'], "wrong kind"),
        (["train", "topk,topk", "--out", "x"], "name each once"),
        (["train", "topk", "--out", "x", "--samples", "100"], "batch=500 exceeds the world's 100 samples"),
        (["train", "topk", "--out", "x", "--snapshots", "99999999"], "the training sees"),
        (["reproduce", "pca", "--out", "x", "--zipf", "1"], "you may choose"),
        (["reproduce", "pca", "--out", "x", "--exponents", "1"], "pca has no use for them"),
        (["reproduce", "zipf", "--out", "x", "--exponents", "1,steep"], "give numbers, such as 0.5,1,1.5"),
        (["reproduce", "ablate", "--out", "x", "--methods", "topk"], "leave out --methods"),
        (["resume", "nowhere"], "holds no run"),
        (["reproduce", "toy", "--out", "x", "--methods", "nonsense"], "no recipe 'nonsense'"),
    ],
)
def test_a_wrong_request_ends_with_one_line_and_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_reproduce_writes_results_table_and_page_and_goes_on_from_what_is_there(tmp_path, capsys):
    out = tmp_path / "toy"
    words = [
        "reproduce",
        "toy",
        "--quick",
        "--jobs",
        "1",
        "--methods",
        "topk,osae",
        "--out",
        str(out),
        *SMALL,
    ]
    assert main(words) == 0
    assert "report.html" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == 1
    assert results["experiment"] == "toy"
    assert [row["method"] for row in results["rows"]] == [
        "topk",
        "topk-sorted",
        "topk-sorted-by-gain",
        "osae",
    ]
    for key in ("stability_pairs", "stability_truth", "orderedness_pairs", "orderedness_truth", "mse"):
        assert set(results["rows"][0][key]) == {"mean", "std", "low", "high"}
    assert "<img" in (out / "report.html").read_text()
    assert "osae" in (out / "table.md").read_text()
    trained = out / "saes" / "osae-seed1" / "sae.safetensors"
    before = trained.stat().st_mtime_ns
    start = time.perf_counter()
    assert main(words) == 0
    assert trained.stat().st_mtime_ns == before
    assert json.loads((out / "results.json").read_text())["rows"] == results["rows"]
    assert time.perf_counter() - start < 60


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.fullmatch(r"osae \d+\.\d+\.\d+\n", capsys.readouterr().out)
