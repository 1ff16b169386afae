"""Results of an evaluation: how well SAEs reconstruct activations, and what that costs the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from osae.measures import MEASURES, keys_of
from osae.results.base import Activations, Provenance, Record, Result, Row, Table, known_columns, labels
from osae.results.codec import doc, flat
from osae.results.subject import SubjectInfo, format_names, note_lines

Measures = Mapping[str, float | None]

LENGTHS = 8  # prefix lengths shown in a table; all are in the figure, the CSV and the JSON

_SHOWN = "explained_variance"  # of the prefixes, in a table
_SUMMARISED = ("explained_variance", "l0", "dead")
_SENTENCES = 3  # SAEs with a sentence each in the summary; for more SAEs, it gives ranges


@dataclass(frozen=True)
class FrequencyHistogram:
    """Units by the log10 of the share of rows in which they fire."""

    edges: tuple[float, ...] = doc(
        "edges of the bins, four per power of ten; the last is 0, which means every row"
    )
    units: tuple[int, ...] = doc(
        "number of units in each bin, including its lower edge; the last bin also includes its upper edge"
    )
    never: int = doc("number of units that never fire")


@dataclass(frozen=True)
class PrefixReconstruction:
    """What the first units of an SAE reconstruct, with the values of all others set to zero."""

    length: int = doc("number of units")
    measures: Measures = flat("numbers by measure", of="curve")


@dataclass(frozen=True)
class SplicedCrossEntropy:
    """The language model with the SAE's reconstruction in place of the activations."""

    spliced: float | None = doc("mean cross-entropy of the next token, in nats")
    recovered: float | None = doc(
        "share of the cross-entropy recovered: 1 is as good as the model itself, 0 as bad as zeros; null if "
        "zeros cost nothing"
    )

    def values(self) -> dict[str, float | None]:
        """Return the numbers by measure."""
        return {key: getattr(self, key) for key in keys_of("cross_entropy")}


@dataclass(frozen=True)
class EvaluatedSAE(SubjectInfo):
    """An SAE on held-out activations."""

    frequencies: FrequencyHistogram = doc("units by how often they fire")
    prefixes: tuple[PrefixReconstruction, ...] = doc(
        "one entry per length: 1, 2, 4, ..., K and the requested ones"
    )
    cross_entropy: SplicedCrossEntropy | None = doc(
        "cross-entropy of the language model; null if no model was used"
    )
    measures: Measures = flat("numbers by measure", of="reconstruction")


@dataclass(frozen=True)
class ModelInfo:
    """A language model and the layer or module from which activations are taken."""

    name: str = doc("name or folder")
    revision: str = doc("revision on the hub; empty for a folder")
    layer: int | None = doc("number of the layer; null if a module is given")
    module: str | None = doc("name of the module; null if a layer is given")


@dataclass(frozen=True)
class CrossEntropy:
    """The language model without any SAE, and the tokens that it predicts."""

    model: ModelInfo = doc("the model and its layer or module")
    text: Mapping[str, Any] = doc("source of the text: files or dataset, field and part")
    contexts: int = doc("number of contexts")
    tokens: int = doc("number of predictions averaged over")
    skip: int = doc(
        "number of first positions of each context, which are passed through unchanged and not counted"
    )
    clean: float | None = doc("mean cross-entropy of the unmodified model, in nats")
    zero: float | None = doc("mean cross-entropy with zeros in place of the activations")


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of the evaluation."""

    prefixes: tuple[int, ...] = doc("prefix lengths in addition to 1, 2, 4, ... and K")
    model: str = doc('"auto", "none" or the model given')
    text: tuple[str, ...] = doc("text files; empty for the contexts that the activations come from")
    tokens: int = doc("predictions for the cross-entropy")


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """How well SAEs reconstruct activations they were not trained on."""

    KIND: ClassVar[str] = "evaluation"

    options: EvaluationOptions = doc("what was asked for")
    provenance: Provenance = doc("where the numbers come from")
    activations: Activations = doc("the held-out activations")
    cross_entropy: CrossEntropy | None = doc("the model without any SAE; null if no model was used")
    saes: tuple[EvaluatedSAE, ...] = doc("one entry per SAE, in the order given; those of a run by name")
    notes: tuple[str, ...] = doc("additional notes")

    @cached_property
    def names(self) -> list[str]:
        """Return a short name for each SAE."""
        return labels([sae.path for sae in self.saes])

    def tables(self) -> list[Table]:
        names = format_names(self.names, self.saes)
        rows = tuple(Row(name, _values(sae)) for name, sae in zip(names, self.saes, strict=True))
        columns = ("units", *keys_of("reconstruction"), *keys_of("cross_entropy"))
        title = f"Reconstruction of {self.activations.rows:,} rows of {self.activations.path}"
        return [Table(title, "SAE", known_columns(columns, rows), rows), self._prefix_table()]

    def _prefix_table(self) -> Table:
        """Return a row per SAE and a column for each of a few prefix lengths."""
        rows = tuple(
            Row(name, {f"{_SHOWN}_{prefix.length}": prefix.measures.get(_SHOWN) for prefix in sae.prefixes})
            for name, sae in zip(self.names, self.saes, strict=True)
        )
        columns = tuple(f"{_SHOWN}_{length}" for length in self._shown_lengths())
        return Table("Explained variance of the first units", "SAE", known_columns(columns, rows), rows)

    def _shown_lengths(self) -> list[int]:
        """Return the requested lengths, or else a selection from the shortest to the longest."""
        lengths = sorted({prefix.length for sae in self.saes for prefix in sae.prefixes})
        if self.options.prefixes:
            lengths = sorted({*self.options.prefixes, lengths[-1]})
        every = -(-len(lengths) // LENGTHS)
        return lengths[::-1][::every][::-1]

    def summary(self) -> list[str]:
        if len(self.saes) > _SENTENCES:
            spans = [_span(key, [sae.measures.get(key) for sae in self.saes]) for key in _SUMMARISED]
            return [f"{len(self.saes)} SAEs: {', '.join(span for span in spans if span)}."]
        said = []
        for name, sae in zip(self.names, self.saes, strict=True):
            spans = [_span(key, [sae.measures.get(key)]) for key in _SUMMARISED]
            if sae.cross_entropy:
                spans.append(_span("recovered", [sae.cross_entropy.recovered]))
            said.append(f"{name}: {', '.join(span for span in spans if span)}.")
        return said

    def remarks(self) -> list[str]:
        said = []
        if found := self.cross_entropy:
            place = found.model.module or f"layer {found.model.layer}"
            clean, zero = (MEASURES["spliced"].text(loss) for loss in (found.clean, found.zero))
            said.append(
                f"Cross-entropy on {found.tokens:,} tokens: {clean} for {found.model.name} itself, "
                f"{zero} with zeros at {place}."
            )
        return [*said, *self.notes, *note_lines(self.names, self.saes)]

    def records(self) -> list[Record]:
        found = []
        for name, sae in zip(self.names, self.saes, strict=True):
            measured = (*keys_of("reconstruction"), *map(_csv_name, keys_of("cross_entropy")))
            head = dict.fromkeys(("sae", "length", "units", *measured)) | {"sae": name, "units": sae.units}
            losses = sae.cross_entropy.values() if sae.cross_entropy else {}
            spliced = {_csv_name(key): value for key, value in losses.items()}
            found.append(head | spliced | dict(sae.measures))
            found += [head | {"length": prefix.length} | dict(prefix.measures) for prefix in sae.prefixes]
        return found


def _values(sae: EvaluatedSAE) -> dict[str, float | None]:
    return {"units": sae.units, **sae.measures, **(sae.cross_entropy.values() if sae.cross_entropy else {})}


def _csv_name(key: str) -> str:
    """Return the CSV column of a measure of the cross-entropy, as in release 0.1.0."""
    return "cross_entropy" if key == "spliced" else key


def _span(key: str, values: Sequence[float | None]) -> str:
    """Return a measure in words, such as "explained variance 0.612 to 0.689"; empty if it is missing."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = (MEASURES[key].text(end) for end in (min(known), max(known)))
    return f"{MEASURES[key].phrase} {low if low == high else f'{low} to {high}'}"
