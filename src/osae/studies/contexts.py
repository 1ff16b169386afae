"""Collect the contexts, tokens and positions in which every unit fires, in one pass over a harvest.

Shapes: E entries, K units, n contexts, W tokens in a window, v tokens of the vocabulary.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.numpy import save_file
from torch import Tensor

from osae import passes
from osae.array_files import read_arrays, read_metadata
from osae.arrays import IN_MEMORY
from osae.context_files import ABOUT, folder_of, read_about, write_contexts
from osae.data.harvest import Harvest, open_model
from osae.data.lm import LanguageModel, open_tokenizer, token_texts
from osae.data.placing import PlacedRows, PlacedText, place_text
from osae.data.shards import Shard, Shards
from osae.files import atomic_write
from osae.interop import Loaded, SAELike
from osae.locks import clear_lock, lock
from osae.metrics import ContextCollector, Entries, Window
from osae.metrics.contexts import BINS, POSITIONS
from osae.progress import Progress, Steps
from osae.results.base import Activations, Provenance, labels
from osae.results.contexts import ContextOptions, Contexts, LensInfo
from osae.studies.splice import harvest_of
from osae.studies.subjects import (
    BATCH,
    DataLike,
    check_runnable,
    describe_rows,
    describe_subject,
    open_rows,
    open_subjects,
)
from osae.versions import versions

HEAVY = 16  # tokens to list per unit
LENS = 10  # tokens promoted and suppressed
STATE = "so-far.safetensors"
COLUMNS = ("tokens", "documents", "positions")
_LENS_ROWS = 256


class ContextFolder(NamedTuple):
    """A folder of contexts, and its metadata."""

    folder: Path
    about: Contexts


def contexts(
    subjects: SAELike | Sequence[SAELike],
    data: DataLike,
    *,
    out: Path | str | None = None,
    top: int = 12,
    random: int = 4,
    before: int = 16,
    after: int = 8,
    model: str = "auto",
    device: str = "auto",
    save_seconds: float = 60.0,
    line: str | None = None,
    progress: Progress | None = None,
) -> list[ContextFolder]:
    """Collect where each unit fires, and return the folder written for each SAE.

    Call it again with the same arguments to continue after an interruption; finished folders are kept.

    Args:
        subjects: SAEs as paths, `SAE`s or loaded files; a run folder means all of its finished SAEs.
        data: activations written by `osae harvest`, with their text.
        out: folder in which to create a subfolder for each SAE; by default, `contexts/` in each SAE's folder.
        top: number of strongest contexts to keep for each unit, in addition to one for each of 8 bins of its
            activation range.
        random: number of randomly drawn contexts to keep for each unit.
        before: number of tokens to keep before the one on which the unit fires.
        after: number of tokens to keep after it.
        model: the language model for the logit lens; "auto" means the one that the data come from, if it
            can be opened, "none" omits the lens.
        device: where to run the language model.
        save_seconds: time between two saves, from which an interrupted call continues.
        line: the command line, for the provenance.
        progress: called with (done, total, text) after each step.
    """
    loaded, rows = _open(subjects, data)
    options = ContextOptions(top, BINS, random, before, after)
    folders = _choose_folders(loaded, out)
    text, activations = place_text(rows), describe_rows(rows)
    pairs = list(zip(loaded, folders, strict=True))
    finished = [_find_finished(folder, one, activations.sha256, options) for one, folder in pairs]
    tasks = [
        _Task(one, folder, options, activations, line)
        for (one, folder), about in zip(pairs, finished, strict=True)
        if about is None
    ]
    made = iter(())
    if tasks:
        spec = harvest_of(rows, "auto" if model == "none" else model)
        language = _Language.open(spec, model, device)
        made = iter(_collect(tasks, rows, text, language, save_seconds, progress))
    return [
        ContextFolder(folder, about or next(made)) for folder, about in zip(folders, finished, strict=True)
    ]


def _open(subjects: SAELike | Sequence[SAELike], data: DataLike) -> tuple[list[Loaded], Shards]:
    """Return the SAEs and the activations; raise `ValueError` if the SAEs cannot be run on them."""
    loaded, rows = open_subjects(subjects), open_rows(data)
    if not isinstance(rows, Shards):
        raise ValueError("activations in memory have no text: give a folder written by `osae harvest`.")
    if not loaded:
        raise ValueError("no SAE was given: give at least one.")
    for one in loaded:
        check_runnable(one, rows)
    return loaded, rows


def _choose_folders(loaded: Sequence[Loaded], out: Path | str | None) -> list[Path]:
    """Return a folder for the contexts of each SAE."""
    if out is not None:
        return [Path(out) / name.replace("/", "-") for name in labels([one.path for one in loaded])]
    for one in loaded:
        if one.path == IN_MEMORY or not Path(one.path).exists():
            raise ValueError(f"{one.path} is not on this disk: give a folder for its contexts (--out).")
    return [folder_of(Path(one.path)) for one in loaded]


def _find_finished(folder: Path, one: Loaded, data: str, options: ContextOptions) -> Contexts | None:
    """Return the metadata of a finished folder; raise `ValueError` if it belongs to something else.

    A lock left by a process that was killed after writing everything is removed.
    """
    if not (folder / ABOUT).is_file():
        return None
    found = read_about(folder)
    if (found.sae.sha256, found.activations.sha256, found.options) != (one.sha256, data, options):
        raise ValueError(
            f"{folder} contains contexts of another SAE, other activations or other options: remove it, or "
            "give another folder (--out)."
        )
    clear_lock(folder)
    return found


# --- one SAE ----------------------------------------------------------------------------------------


class _Task:
    """The contexts of one SAE while they are being collected."""

    def __init__(
        self,
        one: Loaded,
        folder: Path,
        options: ContextOptions,
        activations: Activations,
        line: str | None,
    ):
        self.one, self.folder, self.options, self.activations = one, folder, options, activations
        now = datetime.now(UTC).isoformat("T", "seconds")
        self.provenance = Provenance(versions(), line, now if line else None)
        self.plan = f"{one.sha256} {activations.sha256} {options}"
        window = Window(options.before, options.after)
        self.found = ContextCollector(one.units, top=options.top, drawn=options.random, window=window)
        self.done = 0

    def restore(self) -> None:
        """Continue from the state saved by an interrupted call with the same arguments."""
        path = self.folder / STATE
        if not path.is_file():
            return
        try:
            about = read_metadata(path)
            if about.get("plan") == self.plan:
                self.found.restore(read_arrays(path))
                self.done = int(about["done"])
        except (SafetensorError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}): delete it and start again.") from error

    def save(self) -> None:
        """Save the current state, to continue from."""
        with atomic_write(self.folder / STATE) as path:
            save_file(self.found.state(), path, {"plan": self.plan, "done": str(self.done)})


def _collect(
    tasks: Sequence[_Task],
    rows: Shards,
    text: PlacedText,
    language: "_Language",
    save_seconds: float,
    progress: Progress | None,
) -> list[Contexts]:
    with ExitStack() as locks:
        for task in tasks:
            locks.enter_context(lock(task.folder))
            task.restore()
        _pass_over(tasks, rows, text, save_seconds, progress)
        return [_finish(task, rows, text, language) for task in tasks]


@torch.no_grad()
def _pass_over(
    tasks: Sequence[_Task], rows: Shards, text: PlacedText, save_seconds: float, progress: Progress | None
) -> None:
    """Add every shard to the tasks that have not processed it yet."""
    steps, saved = Steps(progress, len(rows.shards)), time.monotonic()
    first = 0
    for number, shard in enumerate(rows.shards):
        waiting = [task for task in tasks if task.done == number]
        if waiting:
            _add_shard(waiting, rows, shard, first, text)
            for task in waiting:
                task.done = number + 1
            if time.monotonic() - saved > save_seconds and number + 1 < len(rows.shards):
                for task in tasks:
                    task.save()
                saved = time.monotonic()
        first += shard.rows
        steps("shards")


def _add_shard(tasks: Sequence[_Task], rows: Shards, shard: Shard, first: int, text: PlacedText) -> None:
    """Add a shard, which contains complete contexts."""
    tokens, documents, positions = (column.numpy() for column in rows.columns(shard, COLUMNS))
    placed = text.place(documents, positions)
    parts: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in tasks]
    for start in range(0, shard.rows, BATCH):
        stop = min(start + BATCH, shard.rows)
        x = rows.read(first + start, first + stop)
        for task, part in zip(tasks, parts, strict=True):
            values, units = passes.encode(check_runnable(task.one, rows), x)
            row, entry = (values != 0).nonzero(as_tuple=True)
            part.append((row.numpy() + start, units[row, entry].numpy(), values[row, entry].float().numpy()))
    for task, part in zip(tasks, parts, strict=True):
        at, units, values = (np.concatenate(each) for each in zip(*part, strict=True))
        slots, starts, stops = (each[at] for each in placed)
        task.found.update(
            Entries(slots, units, values, tokens[at].astype(np.int64), starts, stops), text.longest
        )


# --- the folder -------------------------------------------------------------------------------------


def _finish(task: _Task, rows: Shards, text: PlacedText, language: "_Language") -> Contexts:
    """Write the folder of one SAE."""
    found, arrays = task.found, _lay_out(task.found, text)
    lens, lens_notes = language.read(task.one.decoder)
    arrays |= lens
    shown = [arrays[name] for name in ("tokens", "heavy", "promoted", "suppressed") if name in arrays]
    ids = np.unique(np.concatenate([each.ravel() for each in shown]))
    ids = ids[ids >= 0]
    counts, positions = _count_rows(rows, text, least=int(ids.max(initial=-1)) + 1)
    arrays |= {"token_ids": ids.astype(np.int32), "token_totals": counts[ids], "position_totals": positions}
    texts, text_notes = language.texts(ids)
    alive = found.fired > 0
    about = Contexts(
        provenance=task.provenance,
        activations=task.activations,
        sae=describe_subject(task.one),
        options=task.options,
        arrays="",
        sha256="",
        fired=int(alive.sum()),
        median_frequency=float(np.median(found.fired[alive]) / rows.rows) if alive.any() else 0.0,
        tokens={str(number): words for number, words in texts.items()},
        lens=language.describe() if lens else None,
        notes=(*lens_notes, *text_notes),
        measures={"l0": float(found.fired.sum() / rows.rows), "dead": float(1 - alive.mean())},
    )
    about = write_contexts(task.folder, about, arrays)
    (task.folder / STATE).unlink(missing_ok=True)
    return about


def _lay_out(found: ContextCollector, text: PlacedText) -> dict[str, np.ndarray]:
    """Return the collected data as the arrays of the folder."""
    shelves = (found.top, found.range, found.drawn)
    slots, values = (np.concatenate([shelf[part] for shelf in shelves], axis=1) for part in (0, 1))
    activations = np.concatenate([shelf.windows for shelf in shelves], axis=1)
    kept = slots >= 0
    tokens = np.full(activations.shape, -1, np.int32)
    tokens[kept] = text.windows(found.window.slots(slots[kept]), slots[kept])
    documents, positions = (np.full(slots.shape, -1, np.int32) for _ in range(2))
    documents[kept], positions[kept] = text.documents(slots[kept])
    heavy = {name: part[:, :HEAVY] for name, part in found.tokens._asdict().items()}
    return {
        "tokens": tokens,
        "activations": activations,
        "strengths": values,
        "documents": documents,
        "positions": positions,
        "fired": found.fired,
        "mass": found.mass,
        "largest": found.largest,
        "heavy": heavy["tokens"].astype(np.int32),
        "heavy_counts": heavy["counts"],
        "heavy_mass": heavy["mass"],
        "heavy_slack": found.slack,
        "position_counts": found.positions,
    }


def _count_rows(
    rows: Shards, text: PlacedText, *, least: int
) -> tuple[Int[np.ndarray, "v"], Int[np.ndarray, "parts"]]:
    """Return how often each token occurs, for at `least` that many tokens, and in each part of a context."""
    highest = max(int(text.contexts.ids.max()) + 1, least)
    counts, positions = np.zeros(highest, np.int64), np.zeros(POSITIONS, np.int64)
    for shard in rows.shards:
        tokens, documents, places = (column.numpy() for column in rows.columns(shard, COLUMNS))
        placed: PlacedRows = text.place(documents, places)
        counts += np.bincount(tokens, minlength=highest)
        part = (placed.slots - placed.starts) * POSITIONS // text.longest
        positions += np.bincount(part, minlength=POSITIONS)
    return counts, positions


# --- the language model -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Language:
    """The tokenizer of the activations' model and, for the logit lens, the model, if they can be opened."""

    spec: Harvest
    lm: LanguageModel | None
    tokenizer: Any
    notes: tuple[str, ...]

    @staticmethod
    def open(spec: Harvest, model: str, device: str) -> "_Language":
        """Open the model or, if it is unavailable or not wanted, only its tokenizer."""
        notes: list[str] = []
        if model != "none":
            try:
                lm = open_model(spec, device)
                return _Language(spec, lm, lm.tokenizer, ())
            except ValueError as error:
                if model != "auto":
                    raise
                notes.append(f"No logit lens: {error}")
        try:
            return _Language(spec, None, open_tokenizer(spec.model, spec.revision), tuple(notes))
        except ValueError as error:
            return _Language(spec, None, None, (*notes, f"Tokens are shown as numbers: {error}"))

    def describe(self) -> LensInfo:
        """Return which model it is."""
        return LensInfo(self.spec.model, "" if self.lm is None else self.lm.revision)

    def texts(self, ids: Int[np.ndarray, "v"]) -> tuple[Mapping[int, str], Sequence[str]]:
        """Return the text of each token, and notes; without a tokenizer, there are no texts."""
        return ({} if self.tokenizer is None else token_texts(self.tokenizer, ids.tolist())), self.notes

    def read(self, decoder: Float[Tensor, "K d"]) -> tuple[dict[str, np.ndarray], Sequence[str]]:
        """Return the tokens that each atom promotes and suppresses, and notes; empty without a model."""
        if self.lm is None:
            return {}, ()
        try:
            parts = list(_read_lens(self.lm, decoder))
        except ValueError as error:
            return {}, (f"No logit lens: {error}",)
        names = ("promoted", "promoted_logits", "suppressed", "suppressed_logits")
        return dict(zip(names, map(np.concatenate, zip(*parts, strict=True)), strict=True)), ()


def _read_lens(lm: LanguageModel, decoder: Float[Tensor, "K d"]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield, for a few atoms at a time, the tokens with the largest and smallest logits, and the logits."""
    for some in decoder.split(_LENS_ROWS):
        logits = lm.logit_directions(some)
        count = min(LENS, logits.shape[1])
        high, low = logits.topk(count), logits.topk(count, largest=False)
        yield high.indices.int().numpy(), high.values.numpy(), low.indices.int().numpy(), low.values.numpy()
