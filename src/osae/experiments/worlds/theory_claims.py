"""Test claims about minimisers, those of the paper's lemma and theorem and ours, against the results.

These results do not come from noisy training runs: losses are exact, so a claim is judged by whether each
world satisfies it, up to rounding. Intervals are over random worlds of a kind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from osae.experiments.claims import FAILS, HOLDS, PARTLY, UNTESTED
from osae.results.experiment import Claim, ExperimentResult, MethodRow

LEMMA = "Lemma: both losses at the truth and at minimisers of the nested loss (14 atoms)"
THEOREM = "Theorem: the best of 120 orders of five atoms, each with its best codes"
FIXED_CODES = "Theorem: the best of 120 orders of five atoms, with the true codes"
IDENTIFIABILITY = "Atoms of the worlds, next to what unique codes require"

EXACT = 1e-9  # as a share of the data's energy


class Kind(StrEnum):
    """The kinds of worlds that the lemma is tried on."""

    GAUSSIAN = "Gaussian"
    ORTHONORMAL = "orthonormal"
    ONE_AT_A_TIME = "orthonormal, one at a time"
    SIGNED = "orthonormal, uncorrelated"


class TriedWeights(StrEnum):
    """The prefix weights that the lemma is tried with."""

    UNIFORM = "uniform p"
    GEOMETRIC = "geometric p"


class Atoms(StrEnum):
    """The atoms of the tiny worlds that the theorem is tried on."""

    ORTHONORMAL = "orthonormal"
    NEARLY_ORTHOGONAL = "Gaussian, d = 80"
    COHERENT = "Gaussian, d = 4"


class Strengths(StrEnum):
    """How strong the atoms of a tiny world are."""

    EQUALLY_STRONG = "equally strong"
    RARER_STRONGER = "the rarer the stronger"
    EQUAL_ENERGIES = "equal energies"


@dataclass(frozen=True)
class Case:
    """A row of a table: a kind of world, and how it is varied."""

    kind: Kind | Atoms
    variant: TriedWeights | Strengths

    def __str__(self) -> str:
        return f"{self.kind}, {self.variant}"


def judge_theory(result: ExperimentResult) -> tuple[Claim, ...]:
    """Return every claim about minimisers, with the findings and the verdict."""
    rows = {section.title: section.rows for section in result.sections}
    lemma, theorem = rows[LEMMA], rows[THEOREM]
    return (
        judge_lemma(lemma),
        judge_lemma_with_known_atoms(lemma),
        judge_uncorrelated(lemma),
        judge_frequency(theorem),
        judge_energy(theorem),
        judge_gain(theorem),
    )


def judge_lemma(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on the lemma, on worlds with two active atoms that satisfy its assumptions."""
    asked = _of_kinds(rows, Kind.GAUSSIAN, Kind.ORTHONORMAL)
    return Claim(
        "Any minimiser of the nested loss also minimises the full loss (the paper's lemma).",
        _verdict([row.mean("leaves_truth") == 0 for row in asked]),
        "from the truth to a minimiser with everything free: "
        + _list(_quote_losses(row, "free") for row in asked),
    )


def judge_lemma_with_known_atoms(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on the lemma where only the codes are free."""
    asked = _of_kinds(rows, Kind.GAUSSIAN, Kind.ORTHONORMAL)
    return Claim(
        "With the true atoms and supports given, the best codes are the true ones.",
        _verdict([row.mean("full_loss_codes") < EXACT for row in asked]),
        "from the truth to the best codes: " + _list(_quote_losses(row, "codes") for row in asked),
    )


def judge_uncorrelated(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on our own version of the lemma."""
    asked = _of_kinds(rows, Kind.ONE_AT_A_TIME, Kind.SIGNED)
    return Claim(
        "If atoms are orthonormal and codes uncorrelated, the truth minimises both losses (ours, proven).",
        _verdict([row.mean("leaves_truth") == 0 and row.mean("full_loss_free") < EXACT for row in asked]),
        "from the truth to a minimiser with everything free: "
        + _list(_quote_losses(row, "free") for row in asked),
    )


def judge_frequency(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on the theorem: true codes, in the order of frequency."""
    return Claim(
        "Given the true atoms, a minimiser has the true codes, in order of frequency (the paper's theorem).",
        _verdict([_has_true_codes(row) and _is_best(row, "frequency") for row in rows]),
        "share of worlds in which the order by frequency is best, and the full loss of the best order: "
        + _list(
            f"{row.method}: {row.mean('best_order_frequency'):.0%}{_say_ties(row)}, "
            f"{_quote_loss(row, 'full_loss_codes')}"
            for row in rows
        ),
    )


def judge_energy(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on the order by energy of orthonormal atoms."""
    # with equal energies there is no order by energy
    strengths = (Strengths.EQUALLY_STRONG, Strengths.RARER_STRONGER)
    asked = _select(rows, (Case(Atoms.ORTHONORMAL, strength) for strength in strengths))
    return Claim(
        "If atoms are orthonormal and known up to their order, the best order is by energy, whatever their "
        "frequencies (ours, proven).",
        _verdict([_has_true_codes(row) and _is_best(row, "energy") for row in asked]),
        "share of worlds in which the order by energy is best: "
        + _list(f"{row.method}: {row.mean('best_order_energy'):.0%}" for row in asked),
    )


def judge_gain(rows: Sequence[MethodRow]) -> Claim:
    """Return the verdict on the order by gain of any atoms."""
    return Claim(
        "In a minimiser, each unit gains at least what the next one would gain in its place (ours, proven).",
        _verdict([row.mean("swaps") == 0 for row in rows]),
        f"swaps of neighbours that lower the loss of a minimiser, over {len(rows)} kinds of worlds: "
        f"{max((row.mean('swaps') for row in rows), default=0):.0f}.",
    )


def _of_kinds(rows: Sequence[MethodRow], *kinds: Kind) -> list[MethodRow]:
    """Return the rows of these kinds of worlds, for every p."""
    return _select(rows, (Case(kind, weights) for kind, weights in product(kinds, TriedWeights)))


def _select(rows: Sequence[MethodRow], cases: Iterable[Case]) -> list[MethodRow]:
    """Return the rows of these cases, in the order of the table."""
    asked = set(map(str, cases))
    return [row for row in rows if row.method in asked]


def _has_true_codes(row: MethodRow) -> bool:
    return row.mean("full_loss_codes") < EXACT


def _is_best(row: MethodRow, order: str) -> bool:
    """Return whether this order, and no other, is best in every world."""
    return row.mean(f"best_order_{order}") == 1 and row.mean("tied_orders") == 1


def _say_ties(row: MethodRow) -> str:
    return "" if row.mean("tied_orders") == 1 else f" (as are {row.mean('tied_orders') - 1:.0f} others)"


def _list(said: Iterable[str]) -> str:
    return f"{'; '.join(said)}."


def _quote_losses(row: MethodRow, where: str) -> str:
    truth, found, full = (
        _quote_loss(row, key) for key in ("nested_loss_truth", f"nested_loss_{where}", f"full_loss_{where}")
    )
    return f"{row.method}: nested {truth} to {found}, full 0 to {full}"


def _quote_loss(row: MethodRow, key: str) -> str:
    """Return a loss with its interval over worlds."""
    found = row.interval(key)
    if found.mean <= EXACT:
        return "0"
    known = found.low is not None and found.high is not None
    return f"{found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]" if known else f"{found.mean:.4f}"


def _verdict(outcomes: Sequence[bool]) -> str:
    """Return the verdict on a claim, given its outcome in each kind of world."""
    if not outcomes:
        return UNTESTED
    return HOLDS if all(outcomes) else PARTLY if any(outcomes) else FAILS
