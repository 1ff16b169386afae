"""The contexts in which the units of an SAE fire: the metadata of a folder, next to its arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from osae.measures import fixed, keys_of
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, labels
from osae.results.codec import doc, flat, optional
from osae.results.subject import SubjectInfo, note_lines


@dataclass(frozen=True)
class ContextOptions:
    """What is stored for each unit."""

    top: int = doc("number of contexts with the strongest activations", default=12)
    bins: int = doc(
        "number of bins of the activation range, each half an octave wide, with one context each", default=8
    )
    random: int = doc("number of contexts drawn at random", default=4)
    before: int = doc("number of tokens before the one on which the unit fires", default=16)
    after: int = doc("number of tokens after it", default=8)


@dataclass(frozen=True)
class LensInfo:
    """The model whose unembedding was used for the logit lens."""

    model: str = doc("name or folder of the model")
    revision: str = doc("its revision, empty if it has none")


@dataclass(frozen=True, repr=False)
class Contexts(Result):
    """Metadata of the contexts in which units fire; `arrays` names the file with contexts and counts."""

    KIND: ClassVar[str] = "contexts"

    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the activations that were used")
    sae: SubjectInfo = doc("the SAE")
    options: ContextOptions = doc("what is stored for each unit")
    arrays: str = doc("safetensors file next to this one; the guide describes its arrays")
    sha256: str = doc("digest of that file")
    fired: int = doc("number of units that fire at least once")
    median_frequency: float = doc("median share of tokens on which a unit fires, over the units that fire")
    tokens: Mapping[str, str] = doc("text of every token in the arrays, by id", default_factory=dict)
    lens: LensInfo | None = optional("the model used for the logit lens; absent if there was none")
    notes: tuple[str, ...] = doc("additional notes", default=())
    measures: Mapping[str, float | None] = flat("numbers by measure", of="contexts")

    @property
    def name(self) -> str:
        """The short name of the SAE."""
        return labels([self.sae.path])[0]

    def tables(self) -> list[Table]:
        columns = keys_of("contexts")
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
