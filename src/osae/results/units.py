"""The units of SAEs that were compared: how each is found again in the others, and what it does."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from osae.measures import fixed, measures_of
from osae.results.base import Record, Row, Table, Tabulated, known_columns
from osae.results.codec import doc, flat, optional

Numbers = tuple[float | None, ...]

FOUND_IN = "found_in"
_LISTED = 10  # most and least reproducible units that are shown
_RANKED = 3  # SAEs whose units are shown
_COLUMNS = (
    *("energy", "reproducibility", "reproducibility_chance", "expected", "nearest_cosine", "matched_cosine"),
    *("correlation", "encoder_cosine", "frequency", "gain", "place"),
)


@dataclass(frozen=True)
class Partners:
    """The partners that the units of one SAE have in another: one entry per unit in each list."""

    sae: int = doc("place of the other SAE in `saes`")
    matched: tuple[int | None, ...] = doc("unit of the best one-to-one matching; null for units without one")
    matched_cosine: Numbers = doc("cosine with that unit")
    nearest: tuple[int, ...] = doc("the nearest unit, which several units may share")
    nearest_cosine: tuple[float, ...] = doc("cosine with the nearest unit")
    mutual: tuple[bool, ...] = doc("whether the two are the nearest of each other")
    level: tuple[float, ...] = doc(
        "the cosine above which it counts as found again: options.same, or what 95 % of the different units "
        "as frequent as this one stay below if that is more"
    )
    found: tuple[bool, ...] = doc("whether the unit is found again")
    encoder_cosine: Numbers | None = optional(
        "cosine of the two units' encoder rows; absent without encoders"
    )
    correlation: Numbers | None = optional(
        "correlation of the two units' activations; absent without activations"
    )


@dataclass(frozen=True)
class SAEUnits:
    """The units of one SAE: one entry per unit in each list."""

    sae: int = doc("place of the SAE in `saes`")
    name: str = doc("short name of the SAE")
    unit: tuple[int, ...] = doc("numbers of the units that took part")
    counted: tuple[int, ...] = doc(
        "places of the SAEs that reproducibility is over: those of the same recipe, or all others if there "
        "are none"
    )
    partners: tuple[Partners, ...] = doc("one entry per other SAE")
    measures: Mapping[str, Numbers] = flat("numbers by measure, in the order of `unit`", of="unit_score")

    def counted_names(self, table: "UnitTable") -> tuple[str, ...]:
        """Return the names of this SAE and of those it is counted with: the same for all of a recipe."""
        return tuple(sorted(table.saes[place].name for place in {self.sae, *self.counted}))

    def found_in(self, index: int) -> list[int]:
        """Return the places of the SAEs in which a unit is found again."""
        return [each.sae for each in self.partners if each.found[index]]


@dataclass(frozen=True)
class Split:
    """A unit of one SAE that another SAE has in several parts; seen from the other side, they are merged."""

    sae: int = doc("place in `saes` of the SAE that has one unit")
    unit: int = doc("its unit")
    other: int = doc("place of the SAE that has several")
    units: tuple[int, ...] = doc("its units, the nearest first")
    cosines: tuple[float, ...] = doc("cosine of each with the one unit")
    explained: float = doc("share of the one atom's squared length that all of them explain together")


@dataclass(frozen=True)
class UnitScore:
    """One unit: its numbers, its partners, and the splits that it is part of."""

    name: str
    sae: int
    unit: int
    measures: Mapping[str, float | None]
    partners: tuple["Partner", ...]
    splits: tuple[Split, ...]  # the unit is one here and several there
    merges: tuple[Split, ...]  # the unit is one of several here that are one there


@dataclass(frozen=True)
class Partner:
    """The partner of a unit in another SAE."""

    name: str
    sae: int
    unit: int
    cosine: float
    mutual: bool
    found: bool
    correlation: float | None


@dataclass(frozen=True)
class UnitTable(Tabulated):
    """Every unit of every SAE that was compared, and which of them are split in another SAE."""

    saes: tuple[SAEUnits, ...] = doc("one entry per SAE, in the order of `saes`")
    splits: tuple[Split, ...] = doc("units that are one in an SAE and several in another")

    def __len__(self) -> int:
        return sum(len(sae.unit) for sae in self.saes)

    def __iter__(self) -> Iterator[UnitScore]:
        for sae in self.saes:
            yield from (self._score(sae, index) for index in range(len(sae.unit)))

    def of(self, sae: int, unit: int) -> UnitScore:
        """Return one unit, by the place of its SAE and its number there."""
        chosen = self.saes[sae]
        if unit not in chosen.unit:
            raise ValueError(f"unit {unit} of {chosen.name} took no part in the comparison.")
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
        """Return how many units are found how often, and the units of the first SAEs that matter most."""
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
        columns = dict.fromkeys(key for row in rows for key in row.values)
        ordered = sorted(columns, key=lambda key: int(key.rpartition("_")[2]))
        return Table(
            "Share of units by the number of SAEs they are found in", "SAE", tuple(ordered), tuple(rows)
        )

    def _ranking(self, sae: SAEUnits, *, most: bool) -> Table:
        """Return the units that are found most or least often; among equals, those that matter most.

        What matters is energy. Without activations, the nearest cosine decides.
        """
        found = sae.measures["reproducibility"]
        weight = sae.measures.get("energy") or tuple(
            (value or 0.0) * (1 if most else -1) for value in sae.measures["nearest_cosine"]
        )
        sign = -1 if most else 1
        order = sorted(
            range(len(sae.unit)), key=lambda index: (sign * (found[index] or 0.0), -(weight[index] or 0.0))
        )
        chosen = [index for index in order if ((found[index] or 0.0) > 0.5) == most][:_LISTED]
        rows = tuple(
            Row(
                str(sae.unit[index]),
                {key: sae.measures[key][index] for key in _COLUMNS if key in sae.measures},
            )
            for index in chosen
        )
        which = "Most" if most else "Least"
        by = ", by energy" if "energy" in sae.measures else ""
        return Table(
            f"{which} reproducible units of {sae.name}{by}", "Unit", known_columns(_COLUMNS, rows), rows
        )

    def summary(self) -> list[str]:
        """Return a sentence about each SAE: how many of its units are found again in most other SAEs."""
        return [sentence for sae in self.saes for sentence in self._sentences(sae)]

    def _sentences(self, sae: SAEUnits) -> list[str]:
        shares = [share or 0.0 for share in sae.measures["reproducibility"]]
        if not shares:
            return []
        often = [share > 0.5 for share in shares]
        text = f"{sae.name}: {sum(often)} of {len(often)} units are found again in {_most(len(sae.counted))}"
        if energy := sae.measures.get("energy"):
            known = [max(value or 0.0, 0.0) for value in energy]
            kept = sum(value for value, again in zip(known, often, strict=True) if again)
            text += f", with {fixed(100 * kept / max(sum(known), 1e-300), 0)} % of the energy"
        never = sum(not sae.found_in(index) for index in range(len(shares)))
        said = [f"{text}; {never} are in no other SAE."]
        if chance := sae.measures.get("reproducibility_chance"):
            level = fixed(sum(value or 0.0 for value in chance) / len(chance), 3)
            said.append(f"By chance, {level} of the other SAEs would have such a unit.")
        return [" ".join(said)]

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
        """Return the units that no other SAE has, as (place of the SAE, unit)."""
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
        """Return the record of a unit; partners and parts are text, such as "topk-seed1:17 0.981"."""
        keys = [entry.key for entry in measures_of("unit_score")]
        partners = "; ".join(f"{each.name}:{each.unit} {each.cosine:.3f}" for each in score.partners)
        return (
            {"sae": score.name, "unit": score.unit}
            | {key: score.measures[key] for key in keys if key in score.measures}
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
    """Return more than half of so many SAEs in words."""
    return "the other SAE" if runs == 1 else f"more than half of {runs} SAEs"


def _group(entries: Iterable[tuple[int, int, Split]]) -> dict[tuple[int, int], list[Split]]:
    found: dict[tuple[int, int], list[Split]] = {}
    for sae, unit, split in entries:
        found.setdefault((sae, unit), []).append(split)
    return found
