"""Claims about language models as data, and the cases in which each of them is tested."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from osae.experiments.claims import AnyStatement
from osae.measures import AGREEMENT
from osae.recipes import group_ends
from osae.results.lm import Curve, Curves, LMResult, Place


class Starts(Enum):
    """Which starts a claim is judged from."""

    NOISE_FIRST = auto()  # noise if it was tried, otherwise every start
    NOISE_ONLY = auto()
    EVERY = auto()


@dataclass(frozen=True)
class Case:
    """A claim in one case: the start, the statements to test, and the numbers in words."""

    start: str
    statements: tuple[AnyStatement, ...]
    words: str


@dataclass(frozen=True)
class Compared:
    """A claim about a method and its rivals that is judged case by case.

    `find` yields the cases. `thresholds` are limits, one for each measure if there are several. The text may
    mention {first}, the units of the first group; `lead`, which precedes the findings, may mention {tokens}.
    A claim that something happens `somewhere` holds if it does in any case.
    """

    text: str
    find: "Callable[[Compared, LMResult], Iterable[Case]]"
    method: str
    rivals: tuple[str, ...] = ()
    measures: tuple[str, ...] = AGREEMENT
    thresholds: tuple[float, ...] = ()
    starts: Starts = Starts.NOISE_FIRST
    untested: str = "not all of the methods were trained."
    lead: str = ""
    tail: str = ""
    somewhere: bool = False

    @property
    def methods(self) -> set[str]:
        """The method and its rivals."""
        return {self.method, *self.rivals}


@dataclass(frozen=True)
class AlwaysAbove:
    """A claim that a curve lies above its rivals' from a prefix length on (None: that of the first group)."""

    text: str
    method: str
    rivals: tuple[str, ...]
    measure: str
    since: int | None = None
    by_start: bool = False  # judged from noise if that was tried, otherwise from every start


def first_group(result: LMResult) -> int:
    """Return the number of units in Matryoshka's first group."""
    return group_ends(result.world["units"], result.groups)[0]


def places_with(claim: Compared, result: LMResult) -> Iterator[tuple[Place, Mapping[str, Curves]]]:
    """Yield each place where all methods of the claim were trained, with its curves by method."""
    for place in result.places():
        by_method = result.curves_at(place)
        if claim.methods <= set(by_method):
            yield place, by_method


def within_first_group(curve: Curve, result: LMResult) -> list[int]:
    """Return the index of the longest prefix within the first group; none if no prefix is that short.

    With only a few units, chance alone gives large correlations.
    """
    first = first_group(result)
    return [i for i, length in enumerate(curve.prefix) if length <= first][-1:]


def since_first_group(curve: Curve, result: LMResult) -> list[int]:
    """Return the indices of the prefixes from the first group on."""
    return since_group(curve, result, 0)


def since_group(curve: Curve, result: LMResult, group: int) -> list[int]:
    """Return the indices of the prefixes that contain a group of Matryoshka's; groups count from 0."""
    end = group_ends(result.world["units"], result.groups)[group]
    return [i for i, length in enumerate(curve.prefix) if length >= end]
