"""Contexts of an SAE's units on disk: a folder with contexts.json and contexts.safetensors.

Does not need torch.

Shapes: K units, n contexts of each (strongest, then by bin of the activation range, then random), W tokens in
a window, m tokens in a list.

    tokens, activations          (K, n, W)  ids and the unit's activations in each window; -1 outside
    strengths                    (K, n)     activation of the unit there; 0 where there is no context
    documents, positions         (K, n)     where that token occurs in the text
    fired, mass, largest         (K,)       tokens that the unit fires on, sum and maximum of its activations
    heavy, heavy_counts, heavy_mass  (K, m) the tokens that it fires on, by the sum of its activations there
    heavy_slack                  (K,)       upper bound on what is missing from a sum in that list
    position_counts              (K, 8)     how often it fires in each eighth of a context
    position_totals              (8,)       tokens in each eighth
    token_ids, token_totals      (v,)       how often each of these tokens occurs
    promoted, promoted_logits, suppressed, suppressed_logits  (K, m)  the logit lens, if there is one
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from osae.array_files import read_arrays
from osae.files import atomic_write, file_sha256
from osae.results import read, write_json
from osae.results.contexts import Contexts

ABOUT, ARRAYS = "contexts.json", "contexts.safetensors"
PER_UNIT = ("tokens", "activations", "strengths", "documents", "positions", "fired", "mass", "largest")
PER_UNIT += ("heavy", "heavy_counts", "heavy_mass", "heavy_slack", "position_counts")


@dataclass(frozen=True, eq=False)
class ContextFiles:
    """The contexts of one SAE: the metadata of the folder, and its arrays by name."""

    about: Contexts
    arrays: Mapping[str, np.ndarray]


def write_contexts(folder: Path, about: Contexts, arrays: Mapping[str, np.ndarray]) -> Contexts:
    """Write a folder of contexts, contexts.json last; return its metadata."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / ARRAYS) as path:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    about = replace(about, arrays=ARRAYS, sha256=file_sha256(folder / ARRAYS))
    write_json(about, folder / ABOUT)
    return about


def read_about(folder: Path) -> Contexts:
    """Return the metadata of a folder of contexts."""
    found = read(folder / ABOUT)
    if not isinstance(found, Contexts):
        raise ValueError(f"{folder / ABOUT} is of kind {found.KIND!r}: contexts are needed.")
    return found


def read_contexts(folder: Path) -> ContextFiles:
    """Return the contexts in a folder; raise `ValueError` if its files do not belong together."""
    from safetensors import SafetensorError

    about = read_about(folder)
    path = folder / ARRAYS
    if not path.is_file() or file_sha256(path) != about.sha256:
        raise ValueError(f"{path} is not the file that {ABOUT} was written for: run `osae contexts` again.")
    try:
        arrays = read_arrays(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): run `osae contexts` again.") from error
    if bad := [name for name in PER_UNIT if name not in arrays or len(arrays[name]) != about.sae.units]:
        raise ValueError(f"{path} has no {bad[0]!r} of {about.sae.units} units: run `osae contexts` again.")
    return ContextFiles(about, arrays)


def folder_of(sae: Path) -> Path:
    """Return where the contexts of an SAE are stored: inside its folder, or next to its weight file."""
    return sae / "contexts" if sae.is_dir() else sae.with_name(f"{sae.name}.contexts")
