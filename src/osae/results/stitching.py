"""Result of stitching: what the units of a larger SAE add to a smaller one."""

from dataclasses import dataclass
from typing import ClassVar

from osae.measures import fixed, keys_of
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, labels
from osae.results.codec import doc
from osae.results.subject import SubjectInfo, difference_lines, note_lines

SHARES = keys_of("stitching")  # shares of the larger SAE's units, by their effect
SHARES_OF_FIRING = keys_of("stitching_firing")  # among the units that fire


@dataclass(frozen=True)
class StitchedUnit:
    """A unit of the larger SAE that lowers the smaller one's error."""

    unit: int = doc("number of the unit in the larger SAE")
    change: float = doc("mean change of the smaller SAE's squared error over all samples")
    share_of_error: float = doc("share of the smaller SAE's squared error that the unit removes")
    frequency: float = doc("share of the samples in which the unit fires")
    nearest: int = doc("unit of the smaller SAE with the nearest atom")
    cosine: float = doc("cosine with that atom")


@dataclass(frozen=True, repr=False)
class Stitching(Result):
    """The effect of each unit of the larger SAE on the smaller one's error."""

    KIND: ClassVar[str] = "stitching"

    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the activations that were used")
    small: SubjectInfo = doc("the smaller SAE")
    large: SubjectInfo = doc("the larger SAE, whose units are added one at a time")
    error: float = doc("mean squared norm of the smaller SAE's error")
    novel: float = doc("share of the larger SAE's units that lower the error")
    reconstruction: float = doc("share of units that raise the error: the smaller SAE already covers them")
    unchanged: float = doc("share of units that never fire")
    most_novel: tuple[StitchedUnit, ...] = doc("the units that lower the error most")
    change: tuple[float, ...] = doc("mean change of the squared error, for each unit of the larger SAE")
    frequency: tuple[float, ...] = doc("share of the samples in which each unit fires")

    def tables(self) -> list[Table]:
        shares = Row(f"{self.large.units} units", {key: getattr(self, key) for key in SHARES})
        small, large = self._names()
        tables = [Table(f"Units of {large} added to {small}", "Larger SAE", SHARES, (shares,))]
        if self.most_novel:
            columns = keys_of("unit")
            rows = tuple(
                Row(str(unit.unit), {key: getattr(unit, key) for key in columns}) for unit in self.most_novel
            )
            tables.append(Table("Most novel units", "Unit", columns, rows))
        return tables

    def _names(self) -> list[str]:
        return labels([self.small.path, self.large.path])

    def summary(self) -> list[str]:
        small, large = self._names()
        novel, covered, never = (fixed(100 * getattr(self, key), 1) for key in SHARES)
        return [
            f"Of the {self.large.units} units of {large}, {novel} % lower the error of {small}, "
            f"{covered} % raise it and {never} % never fire."
        ]

    def remarks(self) -> list[str]:
        names, saes = self._names(), (self.small, self.large)
        return difference_lines(names, saes) + note_lines(names, saes)

    def records(self) -> list[Record]:
        known = {unit.unit: unit for unit in self.most_novel}
        found = []
        for unit, (change, frequency) in enumerate(zip(self.change, self.frequency, strict=True)):
            share = -change / self.error if self.error else None
            record = {"unit": unit, "change": change, "share_of_error": share, "frequency": frequency}
            near = known.get(unit)
            found.append(record | {"nearest": near and near.nearest, "cosine": near and near.cosine})
        return found
