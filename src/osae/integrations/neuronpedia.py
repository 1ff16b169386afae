"""Write dashboards of an SAE's units in Neuronpedia's upload format, as SAEDashboard does.

They contain the contexts from `osae contexts`, the logit lens, and how often each unit fires. SAEDashboard's
histograms over all tokens, and the correlated neurons and features, are left empty.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from osae.context_files import ContextFiles, read_contexts
from osae.files import atomic_write
from osae.interop import SAELike, load
from osae.stores import check_empty, open_place

BATCH = 128  # units in a file
ALIGNED = 3  # coordinates of the residual stream with the largest weight in a unit's atom
DIGITS = 3
TOP = -1.0  # marks the strongest contexts, instead of a share of the activations
NEVER = -10  # log10 of a frequency, as in SAELens for units that never fire


def write_neuronpedia(
    contexts: Path | str,
    out: Path | str,
    *,
    model: str,
    layer: int,
    source_set: str,
    sae: SAELike | None = None,
) -> list[Path]:
    """Write batch-0.json, batch-1.json, ... and skipped_indexes.json to a folder; return the batches.

    Args:
        contexts: a folder written by `osae contexts`.
        out: new or empty folder.
        model: the model's name on Neuronpedia, such as "gpt2-small".
        layer: number of the layer.
        source_set: name of the set of SAEs, such as "res-osae".
        sae: the SAE, to list the coordinates in which its atoms are large; omitted without it.
    """
    found, folder = read_contexts(Path(contexts)), Path(out)
    check_empty(open_place(folder))
    atoms = None if sae is None else _read_atoms(sae, found)
    fires = np.flatnonzero(found.arrays["fired"] > 0)
    head = {"model_id": model, "layer": layer, "sae_set": source_set}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, start in enumerate(range(0, len(fires), BATCH)):
        units = [_describe_unit(found, int(unit), atoms) for unit in fires[start : start + BATCH]]
        paths.append(folder / f"batch-{number}.json")
        _write(paths[-1], head | {"sae_id_suffix": None, "features": units})
    skipped = np.flatnonzero(found.arrays["fired"] == 0).tolist()
    about = head | {"layer": str(layer), "log_sparsity": NEVER, "skipped_indexes": skipped}
    _write(folder / "skipped_indexes.json", about)
    return paths


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as part:
        part.write_text(json.dumps(content), encoding="utf-8")


def _read_atoms(sae: SAELike, found: ContextFiles) -> Float[np.ndarray, "K d"]:
    loaded = load(sae)
    if loaded.sha256 != found.about.sae.sha256:
        raise ValueError(
            f"{loaded.path} is not the SAE of these contexts, since their digests differ: give that SAE."
        )
    return loaded.decoder.numpy()


def _describe_unit(found: ContextFiles, unit: int, atoms: np.ndarray | None) -> dict[str, Any]:
    """Return one dashboard, with SAEDashboard's keys."""
    arrays, about = found.arrays, found.about
    window = arrays["tokens"].shape[-1]  # the shown part of a context is used as the prompt
    return {
        "feature_index": unit,
        **_align(None if atoms is None else atoms[unit]),
        **{key: [] for key in _LEFT_EMPTY},
        **_read_lens(found, unit),
        "frac_nonzero": float(arrays["fired"][unit]) / max(1, about.activations.rows),
        "n_prompts_total": about.activations.rows // window,
        "n_tokens_in_prompt": window,
        "dataset": "",
        "activations": _list_contexts(found, unit),
    }


_LEFT_EMPTY = (
    *("correlated_neurons_indices", "correlated_neurons_l1", "correlated_neurons_pearson"),
    *("correlated_features_indices", "correlated_features_l1", "correlated_features_pearson"),
    *("freq_hist_data_bar_values", "freq_hist_data_bar_heights"),
    *("logits_hist_data_bar_heights", "logits_hist_data_bar_values"),
    *("decoder_weights_dist", "vector"),
)


def _align(atom: Float[np.ndarray, "d"] | None) -> dict[str, list]:
    """Return the coordinates with the largest weights, the weights, and their shares of the L1 norm."""
    if atom is None:
        return {f"neuron_alignment_{key}": [] for key in ("indices", "values", "l1")}
    order = np.argsort(-atom)[:ALIGNED]
    shares = np.abs(atom[order]) / max(float(np.abs(atom).sum()), 1e-12)
    return {
        "neuron_alignment_indices": order.tolist(),
        "neuron_alignment_values": _round(atom[order]),
        "neuron_alignment_l1": _round(shares),
    }


def _read_lens(found: ContextFiles, unit: int) -> dict[str, list]:
    """Return the tokens whose logits the unit raises and lowers most; empty without a logit lens."""
    lens = {}
    for name, key in (("promoted", "pos"), ("suppressed", "neg")):
        there = name in found.arrays
        lens[f"{key}_str"] = _texts(found, found.arrays[name][unit]) if there else []
        lens[f"{key}_values"] = _round(found.arrays[f"{name}_logits"][unit]) if there else []
    return lens


def _list_contexts(found: ContextFiles, unit: int) -> list[dict[str, Any]]:
    """Return the contexts of a unit: first the strongest, then one from each bin of its activation range."""
    arrays, options = found.arrays, found.about.options
    top = float(arrays["largest"][unit])
    listed = []
    for place in range(options.top + options.bins):
        strength = float(arrays["strengths"][unit, place])
        if strength <= 0:
            continue
        low, high, share = (-1.0, top, TOP) if place < options.top else _find_bin(strength, top, options.bins)
        inside = arrays["tokens"][unit, place] >= 0
        listed.append(
            {
                "bin_min": low,
                "bin_max": high,
                "bin_contains": share,
                "tokens": _texts(found, arrays["tokens"][unit, place][inside]),
                "values": _round(arrays["activations"][unit, place][inside]),
                "qualifying_token_index": int(inside[: options.before].sum()),
            }
        )
    return listed


def _find_bin(strength: float, top: float, bins: int) -> tuple[float, float, float]:
    """Return the ends of the bin that contains a strength, and its share of activations.

    Bins are half an octave wide, and the last one contains everything below. The share is unknown, so it is
    0.
    """
    highest, own = (math.floor(2 * math.log2(value)) for value in (top, strength))
    octave = max(own, highest - bins + 1)
    return 0.0 if octave == highest - bins + 1 else 2 ** (octave / 2), 2 ** ((octave + 1) / 2), 0.0


def _texts(found: ContextFiles, ids: np.ndarray) -> list[str]:
    return [found.about.tokens.get(str(token), "") for token in ids.tolist()]


def _round(values: np.ndarray) -> list[float]:
    return [round(float(value), DIGITS) for value in values]
