"""Plans for trials on activations; each asks one question."""

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.language.ways import KEPT, Average, Consensus, Fork, Shared, Way
from osae.dictionary import Aligned, FreeAtoms
from osae.recipes import FromModes, FromNoise
from osae.results.ordering import By
from osae.schedule import Resort, Sweep

Planned = dict[str, Any]

ORDERED = "osae-from-noise"
NOISE = {"start": FromNoise()}
MODES = {"start": FromModes(), "k_warmup": None}
ACTIVE = {128: 6, 512: 24, 2048: 32}  # k by number of units
FIRST_ROWS = "wikipedia, first 196,732 rows"
FEW_SORTS = {"resort": Resort(8, samples=8000)}  # thirty sorts would take most of the time of a short run


def plan(
    method: str,
    tokens: int,
    batch: int,
    changes: dict[str, Any],
    *,
    text: str = "wikipedia",
    units: int = 512,
    way: Way = None,
    seed: int = 0,
) -> Planned:
    """Return a trial; the default sizes are those of the search, 512 units and k = 24."""
    others = {"way": way, "seed": seed}
    sizes = {"units": units, "k": ACTIVE[units], "tokens": tokens, "batch": batch}
    return {
        "text": text,
        "method": method,
        "changes": changes,
        **sizes,
        **{k: v for k, v in others.items() if v},
    }


def batches() -> Iterator[Planned]:
    """Yield a large and a small batch from noise, for the same number of tokens."""
    for method in (ORDERED, "topk"):
        for batch, rate in ((2048, 4e-3), (256, 2e-3)):
            yield plan(method, 750_000, batch, {"lr.peak": rate, "start": FromNoise()})


def starts() -> Iterator[Planned]:
    """Yield the starts from noise and from modes, for TopK and for the ordered loss, at several rates."""
    for rate in (1e-3, 2e-3, 4e-3, 8e-3):
        for changes in (MODES, NOISE):
            yield plan("topk", 250_000, 256, {"lr.peak": rate} | changes)
            yield plan(ORDERED, 250_000, 256, {"lr.peak": rate} | FEW_SORTS | changes)


def budgets() -> Iterator[Planned]:
    """Yield both starts in increasingly long runs: where does agreement level off?"""
    for tokens in (750_000, 1_500_000, 6_000_000, 24_000_000):
        for changes in (MODES, NOISE):
            yield plan("topk", tokens, 256, {"lr.peak": 4e-3} | changes)
            yield plan(ORDERED, tokens, 256, {"lr.peak": 4e-3} | FEW_SORTS | changes)


def long() -> Iterator[Planned]:
    """Yield runs of four million tokens: both losses and starts, less mass on prefixes, and a lower rate."""
    for rate in (4e-3, 2e-3):
        for changes in (MODES, NOISE):
            yield plan("topk", 4_000_000, 256, {"lr.peak": rate} | changes)
            yield plan(ORDERED, 4_000_000, 256, {"lr.peak": rate} | FEW_SORTS | changes)
        less = {"lr.peak": rate, "prefix.full": 0.95}
        yield plan(ORDERED, 4_000_000, 256, less | FEW_SORTS | MODES)


def small_batches() -> Iterator[Planned]:
    """Yield smaller batches from noise: more steps for the same tokens, at rates that keep units alive."""
    for tokens in (750_000, 4_000_000):
        for batch in (128, 64):
            yield plan("topk", tokens, batch, {"lr.peak": 4e-3} | NOISE)
            for full in (0.7, 0.85):
                changes = {"lr.peak": 4e-3, "prefix.full": full} | FEW_SORTS | NOISE
                yield plan(ORDERED, tokens, batch, changes)


def rates() -> Iterator[Planned]:
    """Yield a higher rate from noise."""
    yield plan("topk", 1_500_000, 256, {"lr.peak": 8e-3} | NOISE)


def other_text() -> Iterator[Planned]:
    """Yield the recipe and TopK on a text that was not used in the search."""
    yield plan("osae-from-modes", 1_500_000, 256, {}, text="linux")
    yield plan("topk", 1_500_000, 256, NOISE, text="linux")


def probe(changes: dict[str, Any], tokens: int = 750_000, **others: Any) -> Planned:
    """Return a small trial of TopK from noise on the first rows of a text, to compare ways to train."""
    changes = {"lr.peak": 4e-3} | NOISE | changes
    return plan("topk", tokens, 256, changes, text=FIRST_ROWS, units=128, **others)


def baseline() -> Iterator[Planned]:
    """Yield the runs that others are compared with."""
    yield probe({})


def averages() -> Iterator[Planned]:
    """Yield averaged weights at a constant rate, instead of a falling one, and both."""
    yield probe({"lr.decay": 0.0}, way=Average(0.25))


def averages_large() -> Iterator[Planned]:
    """Yield averaged weights at a constant rate with 512 units."""
    for way in KEPT:
        yield plan("topk", 1_500_000, 256, {"lr.peak": 4e-3, "lr.decay": 0.0} | NOISE, way=way)


HELD = {"lr.peak": 4e-3, "lr.decay": 0.2, "k_warmup.share": 0.1} | NOISE  # most steps at the peak rate


def held() -> Iterator[Planned]:
    """Yield runs that stay at the peak rate and at the final k for most of training."""
    for tokens in (1_500_000, 4_000_000):
        for way in (None, Average(0.1)):
            yield plan("topk", tokens, 256, HELD, way=way)


def explore() -> Iterator[Planned]:
    """Yield a higher rate, no warm-up of k, and aligned atoms, with most steps at the peak rate."""
    for method, changes in (
        ("topk", {"lr.peak": 8e-3}),
        ("topk", {"k_warmup.share": 0.0}),
        ("topk-aligned", {}),
    ):
        for way in (None, Average(0.1), Average(0.25)):
            yield plan(method, 1_500_000, 256, HELD | changes, way=way)


AT_ONCE = {"lr.peak": 4e-3, "lr.decay": 0.2, "k_warmup.share": 0.0} | NOISE  # the final k from the first step


def combine() -> Iterator[Planned]:
    """Yield the final k from the first step, with aligned atoms, a higher rate and the ordered loss."""
    for method, changes in (
        ("topk-aligned", {}),
        (ORDERED, {"dictionary": Aligned()} | FEW_SORTS),
        ("topk-aligned", {"lr.peak": 6e-3}),
        (ORDERED, {"dictionary": Aligned(), "prefix.full": 0.9} | FEW_SORTS),
    ):
        for way in (None, Average(0.25)):
            yield plan(method, 1_500_000, 256, AT_ONCE | changes, way=way)


ORDERED_AT_ONCE = AT_ONCE | {"dictionary": Aligned(), "prefix.full": 0.8} | FEW_SORTS


def repeats() -> Iterator[Planned]:
    """Yield the usual schedule, the final k from the first step, and the latter with the ordered loss."""
    yield plan(ORDERED, 1_500_000, 256, AT_ONCE | {"prefix.full": 0.8} | FEW_SORTS)
    for seed in (0, 2, 4):
        yield plan(ORDERED, 1_500_000, 256, ORDERED_AT_ONCE, seed=seed)
        yield plan("topk", 1_500_000, 256, AT_ONCE, seed=seed)
        yield plan("topk", 1_500_000, 256, {"lr.peak": 4e-3} | NOISE, seed=seed)


def at_once_long() -> Iterator[Planned]:
    """Yield the final k from the first step in long runs, with both losses."""
    yield plan(ORDERED, 5_000_000, 256, ORDERED_AT_ONCE)
    yield plan("topk", 5_000_000, 256, AT_ONCE)


def linux() -> Iterator[Planned]:
    """Yield the same methods on the text that took no part in the search."""
    for seed in (0, 2, 4):
        yield plan(ORDERED, 1_500_000, 256, ORDERED_AT_ONCE, text="linux", seed=seed)
        yield plan("topk", 1_500_000, 256, AT_ONCE, text="linux", seed=seed)
        yield plan("topk", 1_500_000, 256, {"lr.peak": 4e-3} | NOISE, text="linux", seed=seed)


def agreed(tokens: int, way: Consensus, **others: Any) -> Planned:
    """Return a trial of the ordered loss that starts from the consensus of short runs."""
    return plan(ORDERED, tokens, 256, ORDERED_AT_ONCE, way=way, **others)


def consensus() -> Iterator[Planned]:
    """Yield ordered runs from the consensus of eight and of sixteen short runs, at two rates."""
    for runs, rate in ((8, 4e-3), (16, 4e-3), (16, 1e-3), (8, 1e-3)):
        yield agreed(750_000, Consensus(runs, 375_000, rate, 8e-3))


def consensus_small() -> Iterator[Planned]:
    """Yield the same with 128 units, from sixteen short runs, and a single run of as many tokens in all."""
    sizes = {"text": FIRST_ROWS, "units": 128}
    yield agreed(500_000, Consensus(16, 125_000, 4e-3, 4e-3), **sizes)
    yield plan(ORDERED, 2_500_000, 256, ORDERED_AT_ONCE, **sizes)


def consensus_repeats() -> Iterator[Planned]:
    """Yield the consensus of eight short runs again, with other seeds and on the other text."""
    way = Consensus(8, 375_000, 1e-3, 8e-3)
    for text, seed in (("wikipedia", 2), ("wikipedia", 4), ("linux", 0)):
        yield agreed(750_000, way, text=text, seed=seed)


def from_wider(
    runs: int,
    *,
    short: int = 190_000,
    method: str = ORDERED,
    text: str = "wikipedia",
    seed: int = 0,
    rate: float = 1e-3,
    tokens: int = 750_000,
    units: int = 512,
    scored: By | None = None,
    changes: dict[str, Any] | None = None,
) -> Planned:
    """Return a trial that starts from the consensus of runs with half as many units again, and free atoms."""
    base = ORDERED_AT_ONCE if method == ORDERED else AT_ONCE
    way = Consensus(runs, short, rate, 8e-3, wider=1.5, free=True, scored=scored)
    return plan(method, tokens, 256, base | (changes or {}), text=text, units=units, way=way, seed=seed)


def wider() -> Iterator[Planned]:
    """Yield both losses from sixteen wider short runs, and the ordered one from fewer and from more."""
    yield from_wider(16)
    yield from_wider(16, method="topk")
    yield from_wider(8, short=95_000)
    yield from_wider(32)


def wider_repeats() -> Iterator[Planned]:
    """Yield sixteen wider short runs again, with other seeds, and single runs of as many tokens."""
    for seed in (2, 4):
        yield from_wider(16, seed=seed)
    for seed in (2, 4):
        yield plan(ORDERED, 5_000_000, 256, ORDERED_AT_ONCE, seed=seed)
        yield plan("topk", 5_000_000, 256, AT_ONCE, seed=seed)


def wider_linux() -> Iterator[Planned]:
    """Yield the same on the text that took no part in the search."""
    for seed in (0, 2, 4):
        yield from_wider(16, text="linux", seed=seed)


HELD_ATOMS = {"sweep": Sweep(burn_in=0.0, until=0.0, atoms_only=True), "resort": None}  # encoders learn
RELEASED = {"sweep": Sweep(burn_in=0.0, until=0.0, atoms_only=True, release=0.5), "resort": None}


def scored() -> Iterator[Planned]:
    """Yield the start sorted by energy times score: sorted again, in its places, or with its atoms held."""
    yield from_wider(16, scored="energy")
    yield from_wider(16, scored="energy", changes=HELD_ATOMS)
    yield from_wider(16, scored="energy", changes=RELEASED)
    yield from_wider(16, scored="energy", changes={"resort": None})


def chosen(runs: int = 24, changes: dict[str, Any] | None = None, **others: Any) -> Planned:
    """Return the trial that was chosen from those on Wikipedia."""
    return from_wider(runs, scored="gain", changes={"prefix.full": 0.9} | (changes or {}), **others)


def scored_fewer() -> Iterator[Planned]:
    """Yield the chosen one with sixteen short runs, at lower cost."""
    yield chosen(16)
    yield chosen(16, text="linux")


def scored_more() -> Iterator[Planned]:
    """Yield as many short runs as the cost of six million tokens allows, with less weight on prefixes."""
    yield chosen()
    yield from_wider(24, scored="energy", changes={"prefix.full": 0.9})
    yield from_wider(24, scored="energy")


def scored_linux() -> Iterator[Planned]:
    """Yield the chosen one on the text that took no part in the search, and TopK at about the same cost."""
    yield chosen(text="linux")
    yield plan("topk", 5_000_000, 256, AT_ONCE, text="linux")


def scored_repeats() -> Iterator[Planned]:
    """Yield the chosen one again, with other seeds, and TopK at about the same cost."""
    for seed in (2, 4):
        yield chosen(seed=seed)
        yield plan("topk", 5_000_000, 256, AT_ONCE, seed=seed)


def scored_free() -> Iterator[Planned]:
    """Yield the chosen one with free encoders."""
    yield chosen(changes={"dictionary": FreeAtoms()})


def chosen_large(**others: Any) -> Planned:
    """Return the chosen one with 2,048 units, at the cost of eight million tokens.

    Units fire a third as often as 512 units do, so short runs are nearly three times as long.
    """
    return chosen(8, units=2048, short=500_000, tokens=2_000_000, **others)


def large() -> Iterator[Planned]:
    """Yield the chosen one with 2,048 units, and TopK at about the same cost."""
    yield chosen_large()
    yield plan("topk", 8_000_000, 256, AT_ONCE, units=2048)


BASELINES = (  # methods that get the same trials
    "topk",
    "osae-from-noise",
    "matryoshka-random",
    "topk-aligned",
    "batchtopk",
    "osae-paper",
    "topk-separated",
    "topk-kmeans",
    "matryoshka-fixed",
    "topk-penalised",
    "topk-archetypal",
    "topk-resorted",
)
BASELINE_RATES = (4e-3, 8e-3)
BASELINE_TOKENS = 1_500_000


def tuned(method: str, rate: float) -> Planned:
    """Return a trial of a method at this rate, with constant k, as the ordered recipes have."""
    changes = {"lr.peak": rate, "lr.decay": 0.2, "k_warmup.share": 0.0}
    changes |= {} if method == "topk-kmeans" else NOISE
    changes |= {"prefix.full": 0.9} | FEW_SORTS if method == ORDERED else {}
    return plan(method, BASELINE_TOKENS, 256, changes)


def baselines() -> Iterator[Planned]:
    """Yield every method at two rates, with the same schedule."""
    for rate in BASELINE_RATES:
        for method in BASELINES:
            yield tuned(method, rate)


ONE_RECIPE = {"lr.peak": 4e-3, "lr.decay": 0.2, "prefix.full": 0.9} | NOISE | FEW_SORTS


def one_recipe() -> Iterator[Planned]:
    """Yield the schedule that is best on hard worlds: a warm-up of k, and most steps at the peak rate."""
    for share in (0.1, 0.35):
        yield plan(ORDERED, 1_500_000, 256, ONE_RECIPE | {"k_warmup.share": share})


def cooling() -> Iterator[Planned]:
    """Yield rates that fall during the whole of training, faster at first."""
    yield probe({"lr.peak": 8e-3, "lr.decay": 1.0, "lr.power": 2.0})


def phases() -> Iterator[Planned]:
    """Yield a shorter warm-up of k, and a shorter decay of the rate."""
    for warmup, decay in ((0.1, 0.25), (0.1, 0.5), (0.35, 0.25)):
        yield probe({"k_warmup.share": warmup, "lr.decay": decay})


def causes() -> Iterator[Planned]:
    """Yield runs that share documents, a seed, or the SAE that both continue: what makes runs disagree?"""
    yield probe({}, way=Shared(documents=True))
    yield probe({}, way=Shared(seed=True))
    for rate in (4e-3, 1e-3):
        yield probe({}, 250_000, way=Fork(750_000, rate))


PLANS: dict[str, Callable[[], Iterator[Planned]]] = {
    "batches": batches,
    "starts": starts,
    "budgets": budgets,
    "long": long,
    "small-batches": small_batches,
    "rates": rates,
    "other-text": other_text,
    "baseline": baseline,
    "averages": averages,
    "averages-large": averages_large,
    "causes": causes,
    "consensus": consensus,
    "consensus-small": consensus_small,
    "consensus-repeats": consensus_repeats,
    "wider": wider,
    "wider-repeats": wider_repeats,
    "wider-linux": wider_linux,
    "scored": scored,
    "scored-more": scored_more,
    "scored-fewer": scored_fewer,
    "scored-linux": scored_linux,
    "scored-repeats": scored_repeats,
    "scored-free": scored_free,
    "large": large,
    "baselines": baselines,
    "one-recipe": one_recipe,
    "held": held,
    "explore": explore,
    "combine": combine,
    "repeats": repeats,
    "at-once-long": at_once_long,
    "linux": linux,
    "cooling": cooling,
    "phases": phases,
}
