"""The figures of the language-model part, each with its numbers as CSV beside it."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osae.experiments.lm_claims import SHARES
from osae.files import atomic_write

BOTH = ("stability", "orderedness")


def draw(results: Mapping[str, Any], out: Path) -> list[dict[str, str]]:
    """The files and captions of all figures."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    return [
        *_same(results, out),
        *_crossed(results, out),
        *_over_time(results, out),
        *_own_start(results, out),
        *_stitching(results["stitching"], out),
    ]


def _same(results: Mapping[str, Any], out: Path) -> Iterator[dict[str, str]]:
    for place, by_method in results["curves"].items():
        caption = f"Two seeds on the same text ({place}): mean over pairs and 95 % interval over seeds."
        yield _by_prefix(by_method, f"prefix-{place}", caption, results["chance"], out)


def _crossed(results: Mapping[str, Any], out: Path) -> Iterator[dict[str, str]]:
    kinds = {"other_seed": "another text and another seed", "same_seed": "another text, the same seed"}
    for start in dict.fromkeys(entry["start"] for entry in results["crossed"].values()):
        for kind, words in kinds.items():
            mine = [entry for entry in results["crossed"].values() if entry["start"] == start]
            curves = {entry["method"]: entry[kind] for entry in mine}
            caption = f"{words.capitalize()}, start from {start}: mean and 95 % interval."
            yield _by_prefix(
                curves, f"crossed-{kind.replace('_', '-')}-{start}", caption, results["chance"], out
            )


def _own_start(results: Mapping[str, Any], out: Path) -> Iterator[dict[str, str]]:
    for place, curves in _by_place(results["own_start"]).items():
        caption = f"Each SAE against its own start ({place}): mean over seeds and 95 % interval."
        yield _by_prefix(curves, f"own-start-{place}", caption, results["chance"], out)


def _over_time(results: Mapping[str, Any], out: Path) -> Iterator[dict[str, str]]:
    from osae.report import figures

    for place, mine in _by_place(results["over_time"]).items():
        lines = []
        for method, moments in mine.items():
            for moment in moments:
                for i, length in enumerate(moment["lengths"]):
                    lines.append(
                        {"method": method, "tokens": moment["tokens"], "prefix": length}
                        | {measure: moment[measure][i] for measure in BOTH}
                    )
        for measure in BOTH:
            name = _file(f"tokens-{measure}-{place}")
            curves = {
                method: ([m["tokens"] for m in moments], [m[measure][-1] for m in moments])
                for method, moments in mine.items()
            }
            figures.curve(
                curves,
                out / "figures" / f"{name}.png",
                title=f"{place}: whole dictionary, seeds 0 and 1",
                x_label="tokens seen",
                y_label=measure,
            )
            _write_csv(lines, out / "figures" / f"{name}.csv")
            caption = f"{measure.capitalize()} of the first two seeds against tokens seen ({place})."
            yield {"file": f"figures/{name}.png", "caption": caption}


def _stitching(rows: list[dict[str, Any]], out: Path) -> Iterator[dict[str, str]]:
    from osae.report import figures

    if rows:
        caption = (
            "Units of a larger SAE, one at a time in the smaller one (one seed): what they do to its error."
        )
        figures.bars_with_intervals(rows, SHARES, out / "figures" / "stitching.png", title="Stitching")
        lines = [{"method": row["method"]} | {key: row[key] for key in SHARES} for row in rows]
        _write_csv(lines, out / "figures" / "stitching.csv")
        yield {"file": "figures/stitching.png", "caption": caption}


def _by_place(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What stands under "method, text, start", by "text, start" and then by method."""
    places: dict[str, dict[str, Any]] = {}
    for key, value in found.items():
        method, place = key.split(", ", 1)
        places.setdefault(place, {})[method] = value
    return places


def _by_prefix(
    by_method: Mapping[str, Any], name: str, caption: str, chance: Mapping[str, Any], out: Path
) -> dict[str, str]:
    """One figure of both measures against prefix length, with its CSV."""
    from osae.report import figures

    name = _file(name)
    curves = {measure: {method: found[measure] for method, found in by_method.items()} for measure in BOTH}
    figures.lines_by_prefix(
        curves, out / "figures" / f"{name}.png", title=caption.split(":")[0], chance=chance
    )
    lines = [
        {"method": method, "measure": measure, "prefix": int(curve["prefix"][i])}
        | {end: curve[end][i] for end in ("mean", "low", "high")}
        for method, found in by_method.items()
        for measure, curve in found.items()
        for i in range(len(curve["prefix"]))
    ]
    _write_csv(lines, out / "figures" / f"{name}.csv")
    return {"file": f"figures/{name}.png", "caption": caption}


def _file(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def _write_csv(lines: list[dict[str, Any]], path: Path) -> None:
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(lines[0]) if lines else [])
        table.writeheader()
        table.writerows(lines)
