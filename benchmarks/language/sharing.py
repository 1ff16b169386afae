"""Measure how far two consensuses agree if their short runs share the documents, and how far if they do not:

    python -m benchmarks.language.sharing evidence/language --data acts

Consensuses of N short runs on the same half of the documents differ by chance alone; those on different
halves differ by their documents as well. What is left as N grows is therefore due to the documents. A line
for each N is appended to sharing.jsonl; the short runs are those of `Consensus` trials, and are kept.

`curve` says how many units are reproducible: of the first n units of a consensus by score, the mean score,
which its own short runs give, and the share that the other consensus has as well.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.language.plans import FIRST_ROWS, from_wider
from benchmarks.language.trials import RUNS, make_recipe, split
from benchmarks.language.ways import Consensus, Trainer, train_short
from benchmarks.trials import Record, round_measures, run_missing
from osae import metrics
from osae.config import from_json
from osae.model import SAE
from osae.training.consensus import find_consensus
from osae.training.start import Consensus as Found

FILE = "sharing.jsonl"
KEYS = ("text", "documents", "units", "short_tokens", "short_rate", "wider", "runs", "seed")
SHARED, OTHER = "shared", "other"
MOST = {"wikipedia": 16, FIRST_ROWS: 16}  # short runs on each half of the documents, by text
SAME = 0.8  # cosine with its nearest unit from which a unit is one that the other consensus has
CURVE = (32, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768)


def plan() -> Iterator[dict[str, Any]]:
    """Yield what to measure: every number of runs up to what there is, by doubling."""
    for text, most in MOST.items():
        trial = from_wider(most, text=text)
        way = trial["way"]
        short = {"short_tokens": way.tokens, "short_rate": way.short_rate, "wider": way.wider}
        for documents, limit in ((SHARED, most // 2), (OTHER, most)):
            for exponent in range(limit.bit_length()):
                yield trial | short | {"documents": documents, "runs": 2**exponent, "seed": 0}


def measure(trial: Mapping[str, Any], data: Path) -> Record:
    """Return the agreement of two consensuses, averaged over both halves if they share the documents."""
    halves, way, trainer = split(data / trial["text"]), from_json(trial["way"]), Trainer(data / "saes")
    made, count = make_recipe(trial, halves[0].width), trial["runs"]
    needed = replace(way, runs=2 * count if trial["documents"] == SHARED else count)
    saes = [
        train_short(needed, trainer, made, rows, trial["seed"] + run)
        for run, rows in zip(RUNS, halves, strict=True)
    ]
    pairs = [(each[:count], each[count:]) for each in saes] if trial["documents"] == SHARED else [tuple(saes)]
    found = [_compare(pair, way, trial["units"]) for pair in pairs]
    measures = {key: sum(each[key] for each, _ in found) / len(found) for key in found[0][0]}
    curves = torch.tensor([curve for _, curve in found], dtype=torch.float64).mean(0)
    return {key: trial[key] for key in KEYS} | {
        "rows": halves[0].rows,
        "cpu_seconds": round(trainer.seconds / len(RUNS), 2),
        "measures": round_measures(measures),
        "curve": [
            [n, *(round(value, 4) for value in row)] for n, row in zip(CURVE, curves.tolist(), strict=True)
        ],
    }


def _compare(
    pair: Sequence[Sequence[SAE]], way: Consensus, units: int
) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Return the agreement of the consensuses of both, and the curve, averaged over both directions."""
    a, b = (find_consensus(saes, way.same, units) for saes in pair)
    both = [(a.scores >= 0.5).double().mean(), (b.scores >= 0.5).double().mean()]
    measures = {
        "stability": metrics.stability(a.sae, b.sae),
        "found_by_half": float(sum(both)) / 2,
        "stability_of_these": _agreement_of_found(a, b),
    }
    wide = [find_consensus(saes, way.same, max(CURVE)) for saes in pair]
    curves = [_draw(one, other) for one, other in (wide, wide[::-1])]
    return measures, [((s + t) / 2, (p + q) / 2) for (s, p), (t, q) in zip(*curves, strict=True)]


def _agreement_of_found(a: Found, b: Found) -> float:
    """Return the mean cosine, in the matching of all units, of those with a score of at least one half."""
    matching = metrics.consistency(a.sae, b.sae).matching
    sides = ((a.scores, matching.left), (b.scores, matching.right))
    means = [matching.similarity[(scores >= 0.5)[units]].mean() for scores, units in sides]
    return float(sum(means)) / 2


def _draw(one: Found, other: Found) -> list[tuple[float, float]]:
    """Return the mean score of the first units by score, and the share that the other one has as well."""
    order = one.scores.argsort(descending=True, stable=True)
    nearest = (one.sae.decoder @ other.sae.decoder.T).amax(1)[order]
    found, scores = (nearest >= SAME).double(), one.scores[order].double()
    return [(float(scores[:n].mean()), float(found[:n].mean())) for n in CURVE]


def main() -> None:
    """Measure what is not yet in the file."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evidence", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    asked = parser.parse_args()
    run_missing(asked.evidence / FILE, plan(), lambda trial: measure(trial, asked.data), KEYS)


if __name__ == "__main__":
    main()
