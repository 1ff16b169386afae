"""Result of ordering the units of an SAE by activations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from osae.measures import fixed
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, labels
from osae.results.codec import aside, doc, to_json
from osae.results.subject import SourceInfo, note_lines

By = Literal["gain", "energy", "frequency"]


@dataclass(frozen=True, repr=False)
class Ordering(Result):
    """The units of an SAE, ordered by activations."""

    KIND: ClassVar[str] = "ordering"

    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the activations that were used")
    source: SourceInfo = doc("the original SAE")
    by: By = doc("the criterion that units are ordered by")
    order: tuple[int, ...] = doc("the unit of the original SAE at each position")
    moved: int = doc("number of units whose position changed")
    rank_correlation: float = doc("Spearman correlation of old and new positions")
    sae: Any = aside("the SAE with its units in the new order; None if the result was read from a file")

    def save(self, folder: Path | str) -> None:
        """Save the SAE in its new order, with its provenance."""
        if self.sae is None:
            raise ValueError("this result was read from a file, without its SAE: order the SAE again.")
        about = {
            "source": self.source,
            "order": {"by": self.by, "activations": self.activations},
        }
        self.sae.save(folder, provenance=to_json(self.provenance) | to_json(about))

    def tables(self) -> list[Table]:
        values = {"units": len(self.order), "moved": self.moved, "rank_correlation": self.rank_correlation}
        (name,) = labels([self.source.path])
        return [Table(f"Units ordered by {self.by}", "SAE", tuple(values), (Row(name, values),))]

    def summary(self) -> list[str]:
        return [
            f"{self.moved} of {len(self.order)} units moved; rank correlation of old and new positions "
            f"{fixed(self.rank_correlation, 3)}."
        ]

    def remarks(self) -> list[str]:
        return note_lines(labels([self.source.path]), (self.source,))

    def records(self) -> list[Record]:
        return [{"place": place, "unit": unit} for place, unit in enumerate(self.order)]
