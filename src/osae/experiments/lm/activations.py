"""Activations of the texts: those given, or harvested from a language model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from osae.data.harvest import Harvest, harvest, open_model
from osae.data.packaged import find_packaged_model, write_packaged_texts
from osae.data.places import check_place
from osae.data.shards import Shards, is_shards
from osae.data.text import Text, TextFiles, check_readable
from osae.experiments.lm.options import ActivationOptions, parse_names
from osae.progress import Progress

HELD_OUT_SHARE = 16  # one row is held out per this many training rows
TEST_ROWS = 60_000
QUICK_LAYER = 5  # of the packaged model

Part = Literal["train", "held-out"]
PARTS: tuple[Part, ...] = ("train", "held-out")


@dataclass(frozen=True)
class TextShards:
    """One text's activations, for training and held out; by seed, if each trains on its own documents."""

    train: Path
    held_out: Path
    by_seed: tuple[Path, ...] = ()

    def training_rows(self, seed: int | None = None) -> Path:
        """Return the activations that a seed trains on; without a seed, those shared by all."""
        return self.by_seed[seed % len(self.by_seed)] if self.by_seed and seed is not None else self.train

    def is_there(self) -> bool:
        """Return whether both parts have been harvested."""
        return is_shards(self.train) and is_shards(self.held_out)

    def tuning_rows(self) -> torch.Tensor:
        """Return the first half of the held-out rows, which are used only to choose learning rates."""
        shards = Shards(self.held_out)
        return shards.read(0, min(TEST_ROWS, max(1, shards.rows // 2)))

    def test_rows(self) -> torch.Tensor:
        """Return the second half of the held-out rows."""
        shards = Shards(self.held_out)
        return shards.read(shards.rows // 2, min(shards.rows // 2 + TEST_ROWS, shards.rows))


@dataclass(frozen=True)
class ActivationOrigin:
    """Where activations come from: a model, one of its layers, and texts by name."""

    model: str
    layer: int
    texts: dict[str, Text]


def collect_activations(options: ActivationOptions, rows: int, progress: Progress) -> dict[str, TextShards]:
    """Return the activations of the texts, harvesting those that are missing."""
    if options.data:
        return {
            name: TextShards(path, path.with_name(f"{path.name}-held-out"))
            for name, path in options.shards().items()
        }
    origin = choose_origin(options)
    folder = options.out / "activations"
    folders = {
        name: TextShards(folder / f"{name}-train", folder / f"{name}-held-out") for name in origin.texts
    }
    missing = [name for name, text in folders.items() if not text.is_there()]
    if missing:
        check_place(origin.model, layer=origin.layer)
    for name in missing:  # check all of them before the first takes hours
        _check_text(name, origin.texts[name])
    _harvest_all(origin, folders, rows, options, progress)
    return folders


def choose_origin(options: ActivationOptions) -> ActivationOrigin:
    """Return the model, the layer and the texts that the options name."""
    known = options.known()
    packaged = find_packaged_model() if options.setting is None and options.model is None else None
    layer = options.layer
    if layer is None:
        layer = QUICK_LAYER if options.quick and packaged else known.layer
    texts: dict[str, Text] = {name: TextFiles((files,)) for name, files in parse_names(options.text).items()}
    if not texts and options.quick:
        texts = write_packaged_texts(options.out / "texts")
    elif texts.keys() <= known.texts.keys():  # replace some of the setting's texts
        texts = {**known.texts, **texts}
    return ActivationOrigin(options.model or packaged or known.model, layer, texts)


def _check_text(name: str, text: Text) -> None:
    """Raise a `ValueError` that names the text if it cannot be read."""
    try:
        check_readable(text)
    except ValueError as error:
        raise ValueError(f"{error} (here --text {name}=FILES)") from error


def _harvest_all(
    origin: ActivationOrigin,
    folders: dict[str, TextShards],
    rows: int,
    options: ActivationOptions,
    progress: Progress,
) -> None:
    """Harvest what is missing; the model is loaded once, and only if it is needed."""
    model = None
    for name, text in origin.texts.items():
        for part, folder in zip(PARTS, (folders[name].train, folders[name].held_out), strict=True):
            wanted = rows if part == "train" else max(1, rows // HELD_OUT_SHARE)
            spec = Harvest(
                origin.model,
                replace(text, part=part),
                wanted,
                layer=origin.layer,
                context=options.context or options.known().context,
            )
            if model is None and not is_shards(folder):
                model = open_model(spec, options.device)
            harvest(spec, folder, device=options.device, progress=progress, lm=model)
