"""Upload SAEs to the hub, as a repository that other libraries can read, with a model card."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osae.files import atomic_write
from osae.interop import Loaded, SAELike, hub
from osae.interop.converting import describe_origin
from osae.interop.place import Place
from osae.interop.repository import write_sae
from osae.results import Comparison, Evaluation, read
from osae.results.base import labels
from osae.studies.card import Published, plain_name, write_card
from osae.studies.subjects import open_subjects

Known = Comparison | Evaluation
UNIT_SCORES = ("reproducibility", "expected")  # scores of every unit in the metadata
DIGITS = 4


def push(
    subject: SAELike | Sequence[SAELike],
    address: str,
    *,
    results: Sequence[Path | str | Known] = (),
    model: str | None = None,
    layer: int | None = None,
    license: str | None = None,
    private: bool = False,
    replace: bool = False,
) -> str:
    """Upload an SAE, or all SAEs of a run, to the hub in one commit; return the commit's address.

    Args:
        subject: one or several SAEs, as paths, `SAE`s or loaded files; a run folder means all of its SAEs.
        address: `hf:user/repo`; the repository is created if it does not exist. Log in with
            `hf auth login`, or set HF_TOKEN.
        results: comparisons and evaluations that include the SAEs, or their JSON files, for the tables in the
            model card and the unit scores in the metadata.
        model, layer: the model, and the block whose output the SAE reads, if the file does not say.
        license: license of the weights, by its identifier on the hub.
        private: create the repository as private.
        replace: replace the current contents of the repository.
    """
    with tempfile.TemporaryDirectory(prefix="osae-push-") as folder:
        write_repository(subject, folder, address, results=results, model=model, layer=layer, license=license)
        return hub.upload(Path(folder), address, private=private, replace=replace)


def write_repository(
    subject: SAELike | Sequence[SAELike],
    folder: Path | str,
    address: str,
    *,
    results: Sequence[Path | str | Known] = (),
    model: str | None = None,
    layer: int | None = None,
    license: str | None = None,
) -> None:
    """Write the files that `push` would upload to a folder."""
    repo, root = hub.check_repository(address), Path(folder)
    found, known = open_subjects(subject), [_read_result(result) for result in results]
    _check_results(found, known)
    places = [describe_origin(source, "saelens", model, layer).place for source in found]
    saes = []
    for name, source, place in zip(_name_folders(found, places), found, places, strict=True):
        scores = {"scores": _collect_scores(source, known)} if known else {}
        libraries = write_sae(source, root / name, model=model, layer=layer, known=scores)
        saes.append(Published(name, source, libraries, place))
    with atomic_write(root / "README.md") as path:
        path.write_text(write_card(repo, saes, known, license), encoding="utf-8")


def _read_result(result: Path | str | Known) -> Known:
    found = result if isinstance(result, Known) else read(result)
    if not isinstance(found, Known):
        raise ValueError(
            f"{result} is not a comparison or evaluation: create one with `osae compare --json`."
        )
    return found


def _check_results(found: Sequence[Loaded], results: Sequence[Known]) -> None:
    """Raise `ValueError` if a result is about other SAEs, since its numbers would be misleading."""
    digests = {source.sha256 for source in found}
    for result in results:
        if not digests & {sae.sha256 for sae in result.saes}:
            raise ValueError(
                f"none of the SAEs in a {result.KIND} is one of those to push, since their digests differ: "
                "create it from these SAEs."
            )


def _name_folders(found: Sequence[Loaded], places: Sequence[Place]) -> list[str]:
    """Return a folder for each SAE: its name or, for a single SAE, its hook in the model if known."""
    if len(found) == 1 and (hook := places[0].transformer_lens or places[0].hook):
        return [plain_name(hook)]
    names = [plain_name(name) for name in labels([source.path for source in found])]
    if len(set(names)) < len(names):
        return [f"{name}-{place}" for place, name in enumerate(names)]
    return names


def _collect_scores(source: Loaded, results: Sequence[Known]) -> dict[str, Any]:
    """Return the scores of an SAE in the results: reconstruction, and reproducibility of each unit."""
    scores: dict[str, Any] = {}
    for result in results:
        for place, sae in enumerate(result.saes):
            if sae.sha256 != source.sha256:
                continue
            if isinstance(result, Evaluation):
                scores |= _known_numbers(result.saes[place].measures)
                continue
            if (measured := result.saes[place].reconstruction) is not None:
                scores |= _known_numbers(measured.measures)
            scores |= _unit_scores(result, place)
    return scores


def _known_numbers(measures: Any) -> dict[str, float]:
    return {key: value for key, value in measures.items() if value is not None}


def _unit_scores(result: Comparison, place: int) -> dict[str, Any]:
    """Return the scores of all units; null for those that were not compared."""
    if result.units is None:
        return {}
    units = result.units.saes[place]
    scores: dict[str, Any] = {"compared_with": len(units.counted)}
    for key in UNIT_SCORES:
        column: list[float | None] = [None] * result.saes[place].units
        for unit, value in zip(units.unit, units.measures.get(key, ()), strict=False):
            column[unit] = None if value is None else round(value, DIGITS)
        scores[key] = column
    return scores
