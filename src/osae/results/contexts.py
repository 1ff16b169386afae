"""Where the units of an SAE fire: what a folder of contexts says about itself; the arrays are beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from osae.measures import fixed, measures_of
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, labels
from osae.results.codec import doc, flat, optional
from osae.results.subject import SubjectInfo, note_lines


@dataclass(frozen=True)
class ContextOptions:
    """What is kept of each unit."""

    top: int = doc("contexts with the strongest activations", default=12)
    bins: int = doc("bins of the activation range with a context each, half an octave wide", default=8)
    random: int = doc("contexts drawn at random", default=4)
    before: int = doc("tokens before the one that the unit fires on", default=16)
    after: int = doc("tokens after it", default=8)


@dataclass(frozen=True)
class LensInfo:
    """The model whose unembedding the units were read with."""

    model: str = doc("name or folder of the model")
    revision: str = doc("its revision, empty if it has none")


@dataclass(frozen=True, repr=False)
class Contexts(Result):
    """Where the units of an SAE fire; `arrays` names the file with the contexts and counts of every unit."""

    KIND: ClassVar[str] = "contexts"

    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the activations that were used")
    sae: SubjectInfo = doc("the SAE")
    options: ContextOptions = doc("what was kept of each unit")
    arrays: str = doc("safetensors file beside this one: see the guide for what is in it")
    sha256: str = doc("digest of that file")
    fired: int = doc("number of units that fire at least once")
    median_frequency: float = doc("median, over the units that fire, of the share of tokens they fire on")
    tokens: Mapping[str, str] = doc(
        "text of every token that occurs in the arrays, by id", default_factory=dict
    )
    lens: LensInfo | None = optional("the model behind the logit lens; absent if there was none")
    notes: tuple[str, ...] = doc("what to know besides", default=())
    measures: Mapping[str, float | None] = flat("numbers by measure", of="contexts")

    @property
    def name(self) -> str:
        """The short name of the SAE."""
        return labels([self.sae.path])[0]

    def tables(self) -> list[Table]:
        columns = tuple(entry.key for entry in measures_of("contexts"))
        return [Table("", "SAE", columns, (Row(self.name, dict(self.measures)),))]

    def summary(self) -> list[str]:
        return [
            f"{self.name}: {self.fired:,} of {self.sae.units:,} units fire on {self.activations.rows:,} "
            f"tokens; half of them on more than {fixed(100 * self.median_frequency, 2)} % of the tokens."
        ]

    def remarks(self) -> list[str]:
        return [*note_lines([self.name], (self.sae,)), *self.notes]

    def records(self) -> list[Record]:
        return [{"sae": self.sae.path, "units": self.sae.units, "fired": self.fired, **self.measures}]
