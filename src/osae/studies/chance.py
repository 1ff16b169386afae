"""Chance levels of a comparison, computed by separate threads while the SAEs are matched.

Shapes: K units, d width.
"""

import queue
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from math import isfinite

from jaxtyping import Float
from torch import Tensor

from osae import metrics
from osae.defaults import Chance
from osae.metrics.assignment import needs_loops
from osae.results.comparison import ChanceLevel

_UNITS = 1024  # total units drawn for a level by default, in 1 to 8 draws
_WORKERS = 2

Shape = tuple[int, int]
Task = tuple[Chance, Shape]

ISOTROPIC: Chance = "isotropic"


def _turn(shape: Shape) -> tuple[bool, int, int]:
    """Return the sort key for the order in which the levels of shapes are computed."""
    return needs_loops(*shape), -shape[0], -shape[1]


class ChanceLevels:
    """Chance levels by numbers of units, each computed once; None if no draws are requested.

    Within a `with` block, the levels of the given shapes are computed in other threads: first those that need
    no compiled loops, which may still be loading, then the slowest.
    """

    def __init__(
        self,
        dictionaries: Sequence[Float[Tensor, "K d"]],
        shapes: Collection[Shape],
        *,
        kind: Chance,
        draws: int | None,
        absolute: bool,
    ) -> None:
        self.width, self.draws, self.absolute = dictionaries[0].shape[1], draws, absolute
        self.kind: Chance = kind
        self._dictionaries = [atoms[(atoms != 0).any(1)] for atoms in dictionaries]
        kinds: tuple[Chance, ...] = ("fitted", "isotropic") if kind == "fitted" else (ISOTROPIC,)
        ordered = {(min(shape), max(shape)) for shape in shapes} if draws != 0 else set()
        tasks: list[Task] = [(one, shape) for shape in sorted(ordered, key=_turn) for one in kinds]
        self._fitting = threading.Lock()
        self._coming: dict[Task, Future[metrics.ChanceLevel]] = {task: Future() for task in tasks}
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()

    def __enter__(self) -> "ChanceLevels":
        for task in self._coming:
            self._tasks.put(task)
        for _ in range(_WORKERS if self._coming else 0):  # daemons: an interrupted command ends at once
            threading.Thread(target=self._work, name="osae-chance", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        while not self._tasks.empty():
            try:
                self._tasks.get_nowait()
            except queue.Empty:
                return

    def __call__(self, units_a: int, units_b: int) -> ChanceLevel | None:
        """Return the level of dictionaries of these sizes, waiting for it if necessary."""
        if self.draws == 0:
            return None
        shape = min(units_a, units_b), max(units_a, units_b)
        level, isotropic = self._coming[self.kind, shape].result(), self._coming[ISOTROPIC, shape].result()
        return ChanceLevel(
            stability=level.stability,
            stability_std=level.stability_std if isfinite(level.stability_std) else None,
            orderedness=level.orderedness,
            orderedness_std=level.orderedness_std,
            draws=level.draws,
            isotropic=isotropic.stability,
        )

    def _work(self) -> None:
        while True:
            try:
                kind, shape = self._tasks.get_nowait()
            except queue.Empty:
                return
            try:
                self._coming[kind, shape].set_result(self._draw(kind, *shape))
            except Exception as error:
                self._coming[kind, shape].set_exception(error)

    def _draw(self, kind: Chance, small: int, large: int) -> metrics.ChanceLevel:
        # at width 512 the standard error is then below 0.001 from 64 units on: more units have less spread
        draws = min(8, max(1, _UNITS // large)) if self.draws is None else self.draws
        like = self._fit() if kind == "fitted" else None
        return metrics.chance_level(small, large, self.width, like=like, draws=draws, absolute=self.absolute)

    def _fit(self) -> metrics.AtomDistribution | None:
        """Return the distribution of all atoms, computed by the thread that needs it first."""
        with self._fitting:
            if self._dictionaries:
                known = [atoms for atoms in self._dictionaries if len(atoms)]
                self._like = metrics.fit_atoms(*known) if known else None
                self._dictionaries = []
            return self._like
