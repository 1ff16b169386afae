"""The language-model part of the paper: how consistent SAEs are across seeds and across texts.

Every method is trained on two texts, with several seeds, from each kind of start. Whatever lies in the folder
already is not trained again.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib
import torch

from osae import metrics, passes
from osae.config import alter
from osae.data.shards import Shards
from osae.data.source import OnDisk, open_source
from osae.experiments import lm_claims, lm_figures
from osae.experiments.claims import ENOUGH_SEEDS
from osae.experiments.measure import interval
from osae.experiments.published import STITCHING
from osae.experiments.toy import Progress
from osae.experiments.trained import Job, train_all
from osae.model import SAE
from osae.recipes import STARTS, Recipe, Task, recipe

METHODS = ("topk", "batchtopk", "matryoshka-fixed", "matryoshka-random", "osae-paper", "osae")
STITCHED = ("batchtopk", "matryoshka-random", "osae-paper", "osae")
FROM_NOISE = {"osae": "osae-from-noise"}  # methods with a point of their own there
SORTED, UNTRAINED = "topk-sorted", "untrained"
TEST_ROWS = 60_000
TUNING_SEED = 1000  # no table uses it
MOMENTS = (0.0, 1 / 16, 1 / 4, 1 / 2, 1.0)  # shares of training at which SAEs are kept
MEASURES = ("stability", "orderedness", "stability_of_full", "orderedness_of_full")

Group = Mapping[int, SAE]  # by seed
Curve = dict[str, list[float]]  # prefix, mean, low, high


@dataclass(frozen=True)
class Text:
    """One text's activations: to train on, and held out."""

    train: Path
    held_out: Path


@dataclass(frozen=True)
class LMOptions:
    """What the command line asks of the experiment."""

    out: Path
    texts: Mapping[str, Text]
    units: int
    k: int
    tokens: int
    seeds: int = 3
    methods: tuple[str, ...] = METHODS
    starts: tuple[str, ...] = ("data",)
    first_text_only: tuple[str, ...] = ()  # starts that are tried on the first text alone
    batch: int = 2048
    groups: int = 5
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3)
    tuning_tokens: int = 500_000
    stitch: int = 2  # the larger SAE has so many times the units; 0 for no stitching
    jobs: int = 2
    device: str = "cpu"

    def __post_init__(self):
        if self.seeds < 2:
            raise ValueError(f"seeds={self.seeds}: the agreement of seeds needs at least 2.")
        for names in (self.methods, self.starts, self.rates):
            if len(set(names)) < len(names):
                raise ValueError(f"{', '.join(map(str, names))}: name each once.")
        if unknown := [start for start in (*self.starts, *self.first_text_only) if start not in STARTS]:
            raise ValueError(f"no start {unknown[0]!r}: there are {', '.join(STARTS)}.")
        widths = {Shards(path).width for text in self.texts.values() for path in (text.train, text.held_out)}
        if len(widths) > 1:
            raise ValueError(
                f"activations of widths {', '.join(map(str, sorted(widths)))}: take all from one model."
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        return metrics.default_prefixes(self.units)

    def task(self, *, units: int | None = None, tokens: int | None = None) -> Task:
        width = Shards(next(iter(self.texts.values())).train).width
        return Task(
            width,
            units or self.units,
            self.k,
            tokens or self.tokens,
            batch=self.batch,
            groups=self.groups,
        )

    def source(self, text: str) -> OnDisk:
        path = self.texts[text].train
        return OnDisk(str(path), Shards(path).provenance()["sha256"])


def lm(options: LMOptions, progress: Progress) -> dict[str, Any]:
    """Every table and curve of the language-model part, as results."""
    trials, rates = _tuned(options, progress)
    shelf = _trained(options, rates, progress)
    sections, curves = [], {}
    chance = _chance(options)
    for count, (start, text) in enumerate(shelf.places, 1):
        progress(count, len(shelf.places), f"measuring {text}, start from {start}")
        same, rows, x = {}, [], _test_rows(options.texts[text])
        for name in shelf.names:
            group = shelf.group(start, text, name)
            same[name] = _same(group, options)
            rows.append(_row(name, group, same[name], x))
        curves[f"{text}, {start}"] = same
        levels = chance["stability"]["mean"]
        level = {"stability": levels[-1], "orderedness": 0.0}
        level |= {f"stability_{length}": at for length, at in zip(options.lengths, levels, strict=True)}
        sections.append({"title": f"{text}, start from {start}", "rows": rows, "chance": level})
    crossed = dict(_crossed(shelf))
    over_time, own_start = _over_time(shelf)
    stitching = _stitching(shelf, progress)
    if stitching:
        large, small = stitching[0]["large"], options.units
        title = f"Stitching: shares of {large} units by what each does in a SAE of {small}"
        shown = ("method", "paper", *lm_claims.SHARES)
        rows = [{key: row[key] for key in shown} for row in stitching]
        sections.append({"title": title, "columns": list(lm_claims.SHARES), "rows": rows, "chance": None})
    results = {
        "title": "Language model: consistency across seeds and texts",
        "world": _about(options),
        "seeds": list(range(options.seeds)),
        "columns": _columns(options),
        "rows": [],
        "sections": sections,
        "curves": curves,
        "crossed": crossed,
        "over_time": over_time,
        "own_start": own_start,
        "chance": chance,
        "stitching": stitching,
        "trials": trials,
        "rates": rates,
    }
    enough = options.seeds >= ENOUGH_SEEDS
    results["claims"] = lm_claims.claims(results, options.units, options.groups) if enough else []
    results["figures"] = lm_figures.draw(results, options.out)
    few = f"{options.seeds} seeds are one pair, too few for verdicts: ask for {ENOUGH_SEEDS} or more."
    results["notes"] = [] if enough else [few]
    return results


# --- training ---------------------------------------------------------------------------------------


def made(
    name: str,
    options: LMOptions,
    start: str,
    rate: float,
    *,
    units: int | None = None,
    tokens: int | None = None,
) -> Recipe:
    """The named recipe from a kind of start, at a learning rate."""
    task = options.task(units=units, tokens=tokens)
    chosen = FROM_NOISE.get(name, name) if start == "noise" else name
    changed = alter(recipe(chosen, task, start=start), {"lr.peak": rate})
    return replace(changed, name=name if units is None else f"{name}-{units}")


def _tuned(options: LMOptions, progress: Progress) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Every method's trials, one per learning rate, and the rate that explains most of the first text.

    All trials are from the first kind of start.
    """
    text = next(iter(options.texts))
    if len(options.rates) == 1:
        return [], dict.fromkeys(options.methods, options.rates[0])
    jobs, about = [], {}
    for name, rate in itertools.product(options.methods, options.rates):
        tried = made(
            name, options, options.starts[0], rate, tokens=min(options.tuning_tokens, options.tokens)
        )
        tried = replace(tried, name=f"{name}-{rate:g}")
        jobs.append(Job(tried, TUNING_SEED, options.source(text), device=options.device))
        about[tried.name] = (name, rate)
    x, trials = _tuning_rows(options.texts[text]), []
    for count, done in enumerate(train_all(jobs, options.out / "trials", workers=options.jobs), 1):
        name, rate = about[done.job.recipe.name]
        explained = _rebuilt(done.sae, x)["explained_variance"]
        trials.append({"method": name, "rate": rate, "explained_variance": explained})
        progress(count, len(jobs), f"trial of {name} at {rate:g}: explains {explained:.3f}")
    trials.sort(key=lambda trial: (options.methods.index(trial["method"]), trial["rate"]))
    best = {
        name: max((t for t in trials if t["method"] == name), key=lambda t: t["explained_variance"])["rate"]
        for name in options.methods
    }
    return trials, best


def _jobs(options: LMOptions, rates: Mapping[str, float]) -> Iterator[tuple[tuple[str, str], Job]]:
    """Each SAE to train, with the start and the text it belongs to."""
    moments = [int(share * options.tokens) // options.batch * options.batch for share in MOMENTS[:-1]]
    snapshots = tuple(dict.fromkeys(moments))  # a short training has fewer
    for start in options.starts:
        for text in list(options.texts)[: 1 if start in options.first_text_only else None]:
            source = options.source(text)
            for seed, name in itertools.product(range(options.seeds), options.methods):
                chosen = made(name, options, start, rates[name])
                yield (start, text), Job(chosen, seed, source, snapshots, options.device)


class Shelf:
    """The trained SAEs, read when they are asked for: all of them at once may not fit into memory."""

    def __init__(self, options: LMOptions, rates: Mapping[str, float]):
        self.options, self.rates = options, rates
        self._jobs = list(_jobs(options, rates))
        self.places = list(dict.fromkeys(place for place, _ in self._jobs))  # start and text
        self.names = [*options.methods, UNTRAINED, *([SORTED] if "topk" in options.methods else [])]
        self._orders: dict[tuple[str, str], dict[int, torch.Tensor]] = {}

    def jobs(self, start: str, text: str, method: str | None = None) -> list[Job]:
        """The trainings there, of one method or of all."""
        here = [job for place, job in self._jobs if place == (start, text)]
        return [job for job in here if method in (None, job.recipe.name)]

    def root(self, start: str, text: str) -> Path:
        return self.options.out / "saes" / start / text

    def group(self, start: str, text: str, name: str) -> dict[int, SAE]:
        """A method's SAEs by seed: as they are, sorted afterwards, or as they began."""
        root = self.root(start, text)
        if name == UNTRAINED:  # every method begins with the same atoms
            first = self.jobs(start, text, self.options.methods[0])
            return {job.seed: SAE.load(job.snapshot(root, 0)) for job in first}
        mine = self.jobs(start, text, "topk" if name == SORTED else name)
        saes = {job.seed: SAE.load(job.folder(root)) for job in mine}
        return self._sorted(saes, start, text) if name == SORTED else saes

    def _sorted(self, saes: Group, start: str, text: str) -> dict[int, SAE]:
        """Units in order of gain, on as many rows as `osae` is sorted by at its end."""
        orders = self._orders.setdefault((start, text), {})
        if not orders:
            x = open_source(OnDisk(str(self.options.texts[text].train))).block(0)
            orders |= {seed: passes.order_units(sae, x.split(passes.ROWS)) for seed, sae in saes.items()}
        return {seed: sae.reorder(orders[seed]) for seed, sae in saes.items()}


def _trained(options: LMOptions, rates: Mapping[str, float], progress: Progress) -> Shelf:
    """All SAEs, trained where they are not there already."""
    shelf, count = Shelf(options, rates), 0
    total = sum(len(shelf.jobs(*place)) for place in shelf.places)
    for place in shelf.places:
        for done in train_all(shelf.jobs(*place), shelf.root(*place), workers=options.jobs):
            count += 1
            progress(count, total, f"trained {done.job.recipe.name}, seed {done.job.seed}, {place[1]}")
    return shelf


def _tuning_rows(text: Text) -> torch.Tensor:
    """The first half of the held-out rows: rates are chosen by them, and nothing else is measured on them."""
    shards = Shards(text.held_out)
    return shards.read(0, min(TEST_ROWS, max(1, shards.rows // 2)))


def _test_rows(text: Text) -> torch.Tensor:
    """The second half of the held-out rows."""
    shards = Shards(text.held_out)
    return shards.read(shards.rows // 2, min(shards.rows // 2 + TEST_ROWS, shards.rows))


# --- measuring --------------------------------------------------------------------------------------


def _agreements(
    pairs: Mapping[Any, tuple[torch.Tensor, torch.Tensor]], options: LMOptions
) -> dict[Any, list[metrics.PrefixConsistency]]:
    """The consistency of each pair of decoders at every prefix length."""
    work = (joblib.delayed(_agreement)(a, b, options.lengths) for a, b in pairs.values())
    return dict(zip(pairs, joblib.Parallel(n_jobs=options.jobs)(work), strict=True))  # type: ignore[arg-type]


def _agreement(a: torch.Tensor, b: torch.Tensor, lengths: Sequence[int]) -> list[metrics.PrefixConsistency]:
    torch.set_num_threads(1)
    return metrics.prefix_consistency(a, b, lengths)


def _curves(
    found: Mapping[Any, list[metrics.PrefixConsistency]], options: LMOptions, intervals: Any
) -> dict[str, Curve]:
    """For each measure its mean and interval at every length; `intervals` makes one of numbers by pair."""
    curves = {}
    for measure in MEASURES:
        at = [
            intervals({pair: getattr(entries[i], measure) for pair, entries in found.items()})
            for i in range(len(options.lengths))
        ]
        curves[measure] = {"prefix": [float(length) for length in options.lengths]} | {
            name: [getattr(one, name) for one in at] for name in ("mean", "low", "high")
        }
    return curves


def _same(group: Group, options: LMOptions) -> dict[str, Curve]:
    """The agreement of a method's seeds on one text."""
    decoders = {seed: sae.decoder.detach() for seed, sae in group.items()}
    pairs = {(a, b): (decoders[a], decoders[b]) for a, b in itertools.combinations(decoders, 2)}
    return _curves(_agreements(pairs, options), options, metrics.pair_interval)


def _crossed(shelf: Shelf) -> Iterator[tuple[str, dict[str, Any]]]:
    """The agreement across the two texts: of different seeds, and of the same seed."""
    options = shelf.options
    for start in options.starts:
        texts = [text for (kind, text) in shelf.places if kind == start]
        if len(texts) < 2:
            continue
        for name in shelf.names:
            one, other = (shelf.group(start, text, name) for text in texts[:2])
            pairs = {
                (a, b): (one[a].decoder.detach(), other[b].decoder.detach())
                for a, b in itertools.product(one, other)
            }
            found = _agreements(pairs, options)
            apart = {pair: entries for pair, entries in found.items() if pair[0] != pair[1]}
            alike = {pair: entries for pair, entries in found.items() if pair[0] == pair[1]}
            yield (
                f"{name}, {start}",
                {
                    "method": name,
                    "start": start,
                    "other_seed": _curves(apart, options, _crossing),
                    "same_seed": _curves(alike, options, _over_seeds),
                },
            )


def _over_seeds(numbers: Mapping[Any, float]) -> metrics.Interval:
    return metrics.mean_interval(list(numbers.values()))


def _crossing(numbers: Mapping[tuple[int, int], float]) -> metrics.Interval:
    size = 1 + max(max(pair) for pair in numbers)
    matrix = torch.full((size, size), float("nan"), dtype=torch.float64)
    for (a, b), value in numbers.items():
        matrix[a, b] = value
    return metrics.cross_interval(matrix)


def _over_time(
    shelf: Shelf,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Curve]]]:
    """The first two seeds' agreement at each kept moment, and each seed's with its own start."""
    options, over_time, own_start = shelf.options, {}, {}
    for (start, text), name in itertools.product(shelf.places, options.methods):
        mine, root = shelf.jobs(start, text, name), shelf.root(start, text)
        final = {job.seed: SAE.load(job.folder(root)).decoder.detach() for job in mine}
        pairs: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        for samples in mine[0].snapshots:
            one, other = (SAE.load(job.snapshot(root, samples)).decoder.detach() for job in mine[:2])
            pairs[samples] = (one, other)
        pairs[options.tokens] = (final[0], final[1])
        own = {job.seed: (SAE.load(job.snapshot(root, 0)).decoder.detach(), final[job.seed]) for job in mine}
        own_start[f"{name}, {text}, {start}"] = _curves(_agreements(own, options), options, _over_seeds)
        over_time[f"{name}, {text}, {start}"] = [
            {"tokens": samples, "lengths": list(options.lengths)}
            | {measure: [getattr(entry, measure) for entry in entries] for measure in MEASURES[:2]}
            for samples, entries in _agreements(pairs, options).items()
        ]
    return over_time, own_start


def _row(name: str, group: Group, same: Mapping[str, Curve], x: torch.Tensor) -> dict[str, Any]:
    """A method's line of the table: what it rebuilds of held-out text, and its seeds' agreement by prefix."""
    row: dict[str, Any] = {"method": name, "paper": None, "reference": name == UNTRAINED}
    if name != UNTRAINED:  # before training only the atoms mean anything
        single = [_rebuilt(sae, x) for sae in group.values()]
        row |= {key: interval(metrics.mean_interval([one[key] for one in single])) for key in single[0]}
    for measure in ("stability", "orderedness"):
        curve = same[measure]
        for i, length in enumerate(curve["prefix"]):
            row[f"{measure}_{int(length)}"] = {end: curve[end][i] for end in ("mean", "low", "high")}
    return row


def _rebuilt(sae: SAE, x: torch.Tensor) -> dict[str, float]:
    found = passes.reconstruct(sae, x.split(passes.ROWS))
    return {
        "explained_variance": found.explained_variance,
        "mse": found.mse,
        "l0": found.l0,
        "dead": found.dead_share,
    }


def _chance(options: LMOptions) -> dict[str, Any]:
    width = options.task().width
    levels = [metrics.chance_level(length, length, width).stability for length in options.lengths]
    return {"stability": {"prefix": [float(n) for n in options.lengths], "mean": levels}, "orderedness": 0.0}


def _columns(options: LMOptions) -> list[str]:
    shown = [n for n in options.lengths if n in (64, 256, 1024)] + [options.units]
    shown = list(dict.fromkeys(shown))
    return ["explained_variance", "dead", *(f"{m}_{n}" for m in ("stability", "orderedness") for n in shown)]


def _stitching(shelf: Shelf, progress: Progress) -> list[dict[str, Any]]:
    """What a larger SAE of the same method adds to the first seed's, on held-out text."""
    options = shelf.options
    methods = [name for name in STITCHED if name in options.methods]
    if not options.stitch or not methods:
        return []
    start, text = options.starts[0], next(iter(options.texts))
    units, root, source = options.stitch * options.units, options.out / "larger" / start, options.source(text)
    larger = [made(name, options, start, shelf.rates[name], units=units) for name in methods]
    jobs = [Job(one, options.seeds, source, device=options.device) for one in larger]  # a seed of their own
    x, found = _test_rows(options.texts[text]), []
    for count, done in enumerate(train_all(jobs, root, workers=options.jobs), 1):
        name = done.job.recipe.name.removesuffix(f"-{units}")
        progress(count, len(jobs), f"trained {name} with {units} units")
        result = passes.stitch(shelf.group(start, text, name)[0], done.sae, x.split(passes.ROWS))
        shares = {key: getattr(result, key) for key in lm_claims.SHARES}
        about = {"method": name, "paper": STITCHING.get(name), "small": options.units, "large": units}
        found.append(about | shares)
    return sorted(found, key=lambda row: methods.index(row["method"]))


def _about(options: LMOptions) -> dict[str, Any]:
    """The data and sizes in short, without paths."""
    texts = {}
    for name, text in options.texts.items():
        manifest = Shards(text.train).manifest
        model, files = manifest.get("model", {}), manifest.get("text", {}).get("files", [])
        texts[name] = {
            "model": str(model.get("name", "")).rsplit("/", 1)[-1],
            "layer": model.get("layer"),
            "rows": Shards(text.train).rows,
            "held_out_rows": Shards(text.held_out).rows,
            "files": [file["file"] for file in files] or manifest.get("text", {}).get("dataset", ""),
        }
    sizes = {"units": options.units, "k": options.k, "tokens": options.tokens, "batch": options.batch}
    return {"kind": "activations", **sizes, "texts": texts}
