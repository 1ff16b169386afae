"""Result of a sweep: its runs, finished, failed or waiting, and how well their SAEs reconstruct."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from osae.results.base import Provenance, Record, Result, Row, Table, count, known_columns
from osae.results.codec import doc, flat, optional

COLUMNS = ("explained_variance", "l0")


@dataclass(frozen=True)
class SweptSAE:
    """An SAE of a run, according to its last log entry."""

    path: str = doc("its folder")
    samples: int = doc("number of samples it was trained on")
    measures: Mapping[str, float | None] = flat("numbers by measure, for the last batch", of="reconstruction")


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep: its settings and its outcome."""

    name: str = doc("name of the run, and of its folder")
    settings: Mapping[str, str] = doc("the options that vary in the sweep, as text")
    state: Literal["finished", "failed", "waiting"] = doc("state of the run")
    attempts: int = doc("how often it failed")
    saes: tuple[SweptSAE, ...] = doc("its finished SAEs", default=())
    error: str | None = optional("the last error; absent if it did not fail")


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """The runs of a sweep."""

    KIND: ClassVar[str] = "sweep"

    provenance: Provenance = doc("where the numbers come from")
    runs: tuple[SweptRun, ...] = doc("the runs, in the order of the file")

    def find(self, state: str) -> list[SweptRun]:
        """Return the runs in a state."""
        return [run for run in self.runs if run.state == state]

    def tables(self) -> list[Table]:
        rows = tuple(
            Row(sae.path.removeprefix("runs/"), sae.measures) for run in self.runs for sae in run.saes
        )
        note = (
            "Explained variance and active units are those of the last training batch, not of held-out data."
        )
        return [Table("Sweep", "SAE", known_columns(COLUMNS, rows), rows, note=note)]

    def summary(self) -> list[str]:
        counts = {state: len(self.find(state)) for state in ("finished", "failed", "waiting")}
        said = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        return [f"{count(len(self.runs), 'run')}: {said}."]

    def remarks(self) -> list[str]:
        return [f"{run.name} failed ({run.attempts} times): {run.error}" for run in self.find("failed")]

    def records(self) -> list[Record]:
        return [
            {"run": run.name, **run.settings, "state": run.state, "attempts": run.attempts}
            | {"error": run.error or ""}
            | ({"sae": sae.path, "samples": sae.samples, **sae.measures} if sae else {})
            for run in self.runs
            for sae in run.saes or (None,)
        ]
