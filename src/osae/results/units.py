"""Results by unit: whether each unit is found again in the other SAEs, and what it does."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from osae.defaults import FOUND
from osae.measures import fixed, keys_of, measures_of
from osae.results.base import Record, Row, Table, Tabulated, known_columns
from osae.results.codec import doc, flat, optional

Numbers = tuple[float | None, ...]

FOUND_IN = "found_in"
_LISTED = 10  # most and least reproducible units to show
_RANKED = 3  # SAEs whose units to show


@dataclass(frozen=True)
class Partners:
    """The matches of one SAE's units in another SAE: one entry per unit in each list."""

    sae: int = doc("index of the other SAE in `saes`")
    matched: tuple[int | None, ...] = doc("match in the best one-to-one matching; null for unmatched units")
    matched_cosine: Numbers = doc("cosine with that unit")
    nearest: tuple[int, ...] = doc("the nearest unit, which may be the same for several units")
    nearest_cosine: tuple[float, ...] = doc("cosine with the nearest unit")
    mutual: tuple[bool, ...] = doc("whether the two units are each other's nearest unit")
    level: tuple[float, ...] = doc(
        "the cosine above which the unit counts as found again: options.same, or, if larger, the level that "
        "95 % of different units of the same frequency stay below"
    )
    found: tuple[bool, ...] = doc("whether the unit is found again")
    encoder_cosine: Numbers | None = optional(
        "cosine of the two units' encoder rows; absent without encoders"
    )
    correlation: Numbers | None = optional(
        "correlation of the unit's activations with those of the nearest unit; absent without activations"
    )
    stream_matched: tuple[int | None, ...] | None = optional(
        "match in the best one-to-one matching by activations, null for unmatched units; absent without "
        "activations"
    )
    stream_correlation: Numbers | None = optional("correlation of the unit's activations with those of it")


@dataclass(frozen=True)
class SAEUnits:
    """The units of one SAE: one entry per unit in each list."""

    sae: int = doc("index of the SAE in `saes`")
    name: str = doc("short name of the SAE")
    unit: tuple[int, ...] = doc("numbers of the units compared")
    counted: tuple[int, ...] = doc(
        "indices of the SAEs that count for reproducibility: those of the same recipe, or all others if "
        "there are none"
    )
    partners: tuple[Partners, ...] = doc("one entry per other SAE")
    measures: Mapping[str, Numbers] = flat("numbers by measure, in the order of `unit`", of="unit_score")

    def counted_names(self, table: "UnitTable") -> tuple[str, ...]:
        """Return the names of this SAE and of those that count for it; the same for all SAEs of a recipe."""
        return tuple(sorted(table.saes[place].name for place in {self.sae, *self.counted}))

    def found_in(self, index: int) -> list[int]:
        """Return the indices of the SAEs in which a unit is found again."""
        return [each.sae for each in self.partners if each.found[index]]


@dataclass(frozen=True)
class Split:
    """A unit of one SAE that is split into several units of another."""

    sae: int = doc("index in `saes` of the SAE that has one unit")
    unit: int = doc("its unit")
    other: int = doc("index of the SAE that has several units")
    units: tuple[int, ...] = doc("its units, the nearest first")
    cosines: tuple[float, ...] = doc("cosine of each with the single unit")
    explained: float = doc("share of the single atom's squared length that they explain together")


@dataclass(frozen=True)
class UnitScore:
    """One unit: its numbers, its matches, and the splits that it is part of."""

    name: str
    sae: int
    unit: int
    measures: Mapping[str, float | None]
    partners: tuple["Partner", ...]
    splits: tuple[Split, ...]  # the unit is one here and several there
    merges: tuple[Split, ...]  # the unit is one of several here that are one there


@dataclass(frozen=True)
class Partner:
    """The match of a unit in another SAE."""

    name: str
    sae: int
    unit: int
    cosine: float
    mutual: bool
    found: bool
    correlation: float | None


@dataclass(frozen=True)
class UnitTable(Tabulated):
    """All units of the SAEs compared, and which of them are split in another SAE."""

    saes: tuple[SAEUnits, ...] = doc("one entry per SAE, in the order of `saes`")
    splits: tuple[Split, ...] = doc("units that correspond to several units in another SAE")

    def __len__(self) -> int:
        return sum(len(sae.unit) for sae in self.saes)

    def __iter__(self) -> Iterator[UnitScore]:
        for sae in self.saes:
            yield from (self._score(sae, index) for index in range(len(sae.unit)))

    def of(self, sae: int, unit: int) -> UnitScore:
        """Return one unit, given the index of its SAE and its number."""
        chosen = self.saes[sae]
        if unit not in chosen.unit:
            raise ValueError(f"unit {unit} of {chosen.name} is not among the units that were compared.")
        return self._score(chosen, chosen.unit.index(unit))

    def _score(self, sae: SAEUnits, index: int) -> UnitScore:
        unit = sae.unit[index]
        return UnitScore(
            name=sae.name,
            sae=sae.sae,
            unit=unit,
            measures={key: values[index] for key, values in sae.measures.items()},
            partners=tuple(self._partner(each, index) for each in sae.partners),
            splits=tuple(self._splits_at.get((sae.sae, unit), ())),
            merges=tuple(self._merges_at.get((sae.sae, unit), ())),
        )

    def _partner(self, partners: Partners, index: int) -> Partner:
        return Partner(
            name=self.saes[partners.sae].name,
            sae=partners.sae,
            unit=partners.nearest[index],
            cosine=partners.nearest_cosine[index],
            mutual=partners.mutual[index],
            found=partners.found[index],
            correlation=None if partners.correlation is None else partners.correlation[index],
        )

    @cached_property
    def _splits_at(self) -> dict[tuple[int, int], list[Split]]:
        return _group((split.sae, split.unit, split) for split in self.splits)

    @cached_property
    def _merges_at(self) -> dict[tuple[int, int], list[Split]]:
        return _group((split.other, unit, split) for split in self.splits for unit in split.units)

    def tables(self) -> list[Table]:
        """Return how often units are found, and the most important units of the first SAEs."""
        shown = list({sae.counted_names(self): sae for sae in reversed(self.saes)}.values())[::-1]
        ranked = [self._ranking(sae, most=most) for sae in shown[:_RANKED] for most in (True, False)]
        return [self._histogram(), *(table for table in ranked if table.rows)]

    def _histogram(self) -> Table:
        rows = []
        for sae in self.saes:
            runs, total = len(sae.counted), max(1, len(sae.unit))
            times = Counter(
                round(share * runs) for share in sae.measures["reproducibility"] if share is not None
            )
            rows.append(
                Row(sae.name, {f"{FOUND_IN}_{count}": times[count] / total for count in range(runs + 1)})
            )
        most = max((len(sae.counted) for sae in self.saes), default=-1)
        columns = tuple(f"{FOUND_IN}_{count}" for count in range(most + 1))
        return Table("Share of units by the number of SAEs they are found in", "SAE", columns, tuple(rows))

    def _ranking(self, sae: SAEUnits, *, most: bool) -> Table:
        """Return the units that are found most or least often; ties are broken by importance.

        Importance is energy or, without activations, the nearest cosine.
        """
        found = sae.measures["reproducibility"]
        weight = sae.measures.get("energy") or tuple(
            (value or 0.0) * (1 if most else -1) for value in sae.measures["nearest_cosine"]
        )
        sign = -1 if most else 1
        order = sorted(
            range(len(sae.unit)), key=lambda index: (sign * (found[index] or 0.0), -(weight[index] or 0.0))
        )
        chosen = [index for index in order if ((found[index] or 0.0) > FOUND) == most][:_LISTED]
        columns = tuple(entry.key for entry in measures_of("unit_score") if entry.listing == "main")
        rows = tuple(
            Row(
                str(sae.unit[index]),
                {key: sae.measures[key][index] for key in columns if key in sae.measures},
            )
            for index in chosen
        )
        which = "Most" if most else "Least"
        by = ", by energy" if "energy" in sae.measures else ""
        return Table(
            f"{which} reproducible units of {sae.name}{by}", "Unit", known_columns(columns, rows), rows
        )

    def summary(self) -> list[str]:
        """Return a sentence about each SAE: how many of its units are found again in most other SAEs."""
        return [sentence for sae in self.saes for sentence in self._sentences(sae)]

    def _sentences(self, sae: SAEUnits) -> list[str]:
        shares = [share or 0.0 for share in sae.measures["reproducibility"]]
        if not shares:
            return []
        often = [share > FOUND for share in shares]
        verb = "is" if sum(often) == 1 else "are"
        text = f"{sae.name}: {sum(often)} of {len(often)} units {verb} found again in "
        text += _most(len(sae.counted))
        if energy := sae.measures.get("energy"):
            known = [max(value or 0.0, 0.0) for value in energy]
            kept = sum(value for value, again in zip(known, often, strict=True) if again)
            text += f", with {fixed(100 * kept / max(sum(known), 1e-300), 0)} % of the energy"
        never = sum(not sae.found_in(index) for index in range(len(shares)))
        return [f"{text}; {never} {'is' if never == 1 else 'are'} found in no other SAE."]

    def chance_sentence(self) -> list[str]:
        """Return how often a unit would be found again by chance, on average, if known."""
        levels = [level for sae in self.saes for level in sae.measures.get("reproducibility_chance", ())]
        if not levels:
            return []
        share = sum(level or 0.0 for level in levels) / len(levels)
        text = "less than 0.1 %" if share < 0.001 else f"{fixed(100 * share, 1)} %"
        return [f"By chance, a unit would be found again in {text} of the other SAEs."]

    def without(self, key: str) -> "UnitTable":
        """Return the table without a measure."""
        return replace(
            self,
            saes=tuple(
                replace(sae, measures={name: column for name, column in sae.measures.items() if name != key})
                for sae in self.saes
            ),
        )

    def irreproducible(self) -> list[tuple[int, int]]:
        """Return the units found in no other SAE, as (index of the SAE, unit)."""
        return [
            (sae.sae, unit)
            for sae in self.saes
            for index, unit in enumerate(sae.unit)
            if not sae.found_in(index)
        ]

    def records(self) -> list[Record]:
        """Return one record per unit."""
        return [self._record(score) for score in self]

    def _record(self, score: UnitScore) -> Record:
        """Return the record of a unit; matches and parts are text, such as "topk-seed1:17 0.981"."""
        partners = "; ".join(f"{each.name}:{each.unit} {each.cosine:.3f}" for each in score.partners)
        return (
            {"sae": score.name, "unit": score.unit}
            | {key: score.measures[key] for key in keys_of("unit_score") if key in score.measures}
            | {
                "found_in": "; ".join(each.name for each in score.partners if each.found),
                "nearest_units": partners,
                "splits_into": "; ".join(map(self._parts, score.splits)),
                "merges_into": "; ".join(self._whole(score.unit, each) for each in score.merges),
            }
        )

    def _parts(self, split: Split) -> str:
        units = " + ".join(map(str, split.units))
        return f"{self.saes[split.other].name}:{units} {split.explained:.3f}"

    def _whole(self, unit: int, split: Split) -> str:
        cosine = split.cosines[split.units.index(unit)]
        return f"{self.saes[split.sae].name}:{split.unit} {cosine:.3f}"


def _most(runs: int) -> str:
    """Return "more than half of the SAEs" in words."""
    return "the other SAE" if runs == 1 else f"more than half of {runs} SAEs"


def _group(entries: Iterable[tuple[int, int, Split]]) -> dict[tuple[int, int], list[Split]]:
    found: dict[tuple[int, int], list[Split]] = {}
    for sae, unit, split in entries:
        found.setdefault((sae, unit), []).append(split)
    return found
