"""Result of pruning: the units that other training runs also find, and what is lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from osae.defaults import FOUND, Keep
from osae.measures import keys_of, measure
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, known_columns, labels
from osae.results.codec import aside, doc, flat, optional, to_json
from osae.results.subject import SourceInfo, note_lines

_LOST = ("explained_variance", "recovered")


@dataclass(frozen=True)
class Remaining:
    """The reconstruction by an SAE before or after pruning."""

    units: int = doc("number of units")
    spliced: float | None = optional("cross-entropy with the SAE spliced in; absent without a model")
    recovered: float | None = optional("share of the cross-entropy recovered; absent without a model")
    measures: Mapping[str, float | None] = flat("numbers by measure", of="reconstruction")

    def values(self) -> dict[str, float | None]:
        """Return all numbers by measure."""
        spliced = {key: getattr(self, key) for key in keys_of("cross_entropy")}
        return {"units": self.units, **self.measures, **spliced}


@dataclass(frozen=True, repr=False)
class Pruning(Result):
    """An SAE reduced to the units that are found again."""

    KIND: ClassVar[str] = "pruning"

    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the activations that were used")
    source: SourceInfo = doc("the original SAE")
    keep: Keep = doc("what was kept")
    least: float = doc("units are kept if found again in more than this share of the other SAEs")
    others: int = doc("number of other SAEs")
    kept: tuple[int, ...] = doc("the unit of the original SAE at each position")
    before: Remaining = doc("reconstruction with all units")
    after: Remaining = doc("reconstruction with the units that were kept")
    notes: tuple[str, ...] = doc("additional notes", default=())
    sae: Any = aside("the pruned SAE; None if the result was read from a file")

    def save(self, folder: Path | str) -> None:
        """Save the pruned SAE, with its provenance."""
        if self.sae is None:
            raise ValueError("this result was read from a file, without its SAE: prune the SAE again.")
        chosen = {"keep": self.keep, "least": self.least, "others": self.others, "units": self.kept}
        about = {"source": self.source, "prune": chosen | {"activations": self.activations}}
        self.sae.save(folder, provenance=to_json(self.provenance) | to_json(about))

    def tables(self) -> list[Table]:
        rows = (Row("all units", self.before.values()), Row("units found again", self.after.values()))
        columns = known_columns(("units", *keys_of("reconstruction"), *keys_of("cross_entropy")), rows)
        (name,) = labels([self.source.path])
        return [Table(f"{name}, reduced to the units that are found again", "SAE", columns, rows)]

    def summary(self) -> list[str]:
        before, after = self.before.values(), self.after.values()
        lost = [
            f"{measure(key).phrase} {measure(key).text(before[key])} → {measure(key).text(after[key])}"
            for key in _LOST
            if before.get(key) is not None and after.get(key) is not None
        ]
        verb = "is" if len(self.kept) == 1 else "are"
        kept = f"{len(self.kept)} of {self.before.units} units {verb} found again in {self._where()}"
        return [f"{kept}: {', '.join(lost)}."]

    def _where(self) -> str:
        if self.others == 1:
            return "the other SAE"
        share = "half" if self.least == FOUND else f"{100 * self.least:g} %"
        return f"more than {share} of {self.others} other SAEs"

    def remarks(self) -> list[str]:
        return [*self.notes, *note_lines(labels([self.source.path]), (self.source,))]

    def records(self) -> list[Record]:
        return [{"place": place, "unit": unit} for place, unit in enumerate(self.kept)]
