"""Plans for trials on activations; each asks one question."""

from collections.abc import Callable, Iterator
from typing import Any

from osae.recipes import FromModes, FromNoise
from osae.schedule import Resort

Planned = dict[str, Any]

ORDERED = "osae-from-noise"
NOISE = {"start": FromNoise()}
MODES = {"start": FromModes(), "k_warmup": None}
FEW_SORTS = {"resort": Resort(8, samples=8000)}  # thirty sorts would take most of the time of a short run


def plan(
    method: str,
    tokens: int,
    batch: int,
    changes: dict[str, Any],
    *,
    text: str = "wikipedia",
    units: int = 512,
) -> Planned:
    """Return a trial; the default sizes are those of the search, 512 units and k = 24."""
    sizes = {"units": units, "k": 24 if units == 512 else 32, "tokens": tokens, "batch": batch}
    return {"text": text, "method": method, "changes": changes, **sizes}


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


def large() -> Iterator[Planned]:
    """Yield the recipe and TopK at 2,048 units and k = 32."""
    yield plan("osae-from-modes", 8_000_000, 256, {}, units=2048)
    yield plan("topk", 8_000_000, 256, NOISE, units=2048)


PLANS: dict[str, Callable[[], Iterator[Planned]]] = {
    "batches": batches,
    "starts": starts,
    "budgets": budgets,
    "long": long,
    "small-batches": small_batches,
    "rates": rates,
    "other-text": other_text,
    "large": large,
}
