"""The recorded history of an SAE: the files from which it was derived."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from osae.interop import own
from osae.interop.formats import FORMATS, get_reader
from osae.interop.found import inside
from osae.interop.place import Place

Config = dict[str, Any]


def own_words(form: str, config: Config) -> Config:
    """Return the provenance recorded in the file of a format."""
    return inside(config, "provenance") if form == own.NAME else config


def ancestors(form: str, config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the format and the JSON of the file itself, of the file it was derived from, and so on."""
    while config:
        yield form, config
        about = (
            inside(config, "provenance")
            or inside(inside(config, "metadata"), "osae")
            or inside(config, "osae")
        )
        source = inside(about, "source")
        form, words = str(source.get("format")), inside(source, "provenance")
        config = {"provenance": words} if form == own.NAME and words else words


def find_place(form: str, config: Config) -> Place:
    """Return where the activations come from, according to the first file that says so."""
    found = Place()
    for name, about in ancestors(form, config):
        said = _place(name, about)
        found = Place(found.model or said.model, found.hook or said.hook, found.context or said.context)
    return found


def _place(form: str, config: Config) -> Place:
    if form == own.NAME:
        return own.place(config)
    reader = get_reader(form) if form in FORMATS else None
    place = getattr(reader, "place", None)  # some libraries do not record it
    return place(config) if place else Place()


class TrainedAs(NamedTuple):
    """The recipe recorded for an SAE, as JSON, its seed, and what was done to its units afterwards."""

    recipe: Config
    seed: Any
    changes: tuple[str, ...]


_CHANGES = {"order": "reordered", "prune": "pruned"}  # by the key of the provenance that records it


def find_recipe(form: str, config: Config) -> TrainedAs:
    """Return how the SAE was trained, according to its file or to one that it was derived from."""
    changes: list[str] = []
    for name, about in ancestors(form, config):
        words = own_words(name, about) if name == own.NAME else {}
        if recipe := inside(words, "recipe"):
            return TrainedAs(recipe, words.get("seed"), tuple(changes))
        changes += [change for key, change in _CHANGES.items() if key in words]
    return TrainedAs({}, None, ())


def find_config(form: str, config: Config, wanted: str) -> Config:
    """Return the JSON of the first file in the wanted format; empty if there is none."""
    return next((about for name, about in ancestors(form, config) if name == wanted), {})
