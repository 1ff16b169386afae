"""`osae harvest`: text through a language model to activations on disk."""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from osae.cli.terminal import Progress, count, counting, positive

if TYPE_CHECKING:
    from osae.data.harvest import Harvest

EPILOG = """examples:
  osae harvest --model EleutherAI/pythia-70m --layer 3 --dataset monology/pile-uncopyrighted \\
    --tokens 5e7 --out acts
  osae harvest --model FOLDER:model.gguf --layer 10 --text 'texts/*.jsonl.xz' --tokens 1e6 --out acts

Layer N is `hidden_states[N]` of the model: the residual stream after N blocks.
Run the same command again to go on after a stop: the shards come out the same."""


def configure(sub: argparse.ArgumentParser) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = EPILOG
    add_harvest(sub, required=True)
    sub.add_argument("--out", type=Path, required=True, metavar="SHARDS", help="folder for the activations")
    sub.add_argument(
        "--dtype", choices=("float16", "bfloat16", "float32"), default="float16", help="on disk (float16)"
    )


def add_harvest(sub: argparse.ArgumentParser, *, required: bool) -> None:
    """The options that say what activations to take."""
    group = sub.add_argument_group("activations of a language model")
    group.add_argument(
        "--model", required=required, metavar="ID_OR_FOLDER[:FILE.gguf]", help="a causal language model"
    )
    group.add_argument("--revision", help="of the model on the hub")
    place = group.add_mutually_exclusive_group(required=required)
    place.add_argument("--layer", type=counting, metavar="N", help="take hidden_states[N]")
    place.add_argument("--module", metavar="NAME", help="take the output of this module")
    text = group.add_mutually_exclusive_group(required=required)
    text.add_argument("--dataset", metavar="HF_ID[:CONFIG]", help="data set on the hub, streamed")
    text.add_argument(
        "--text",
        nargs="+",
        metavar="FILE",
        help="files or patterns: .txt, .md, .rst, .jsonl (.xz, .gz, .zst), .parquet",
    )
    group.add_argument("--text-field", metavar="NAME", help="field of a document (text)")
    group.add_argument(
        "--part",
        choices=("all", "train", "held-out"),
        help="which documents: one in twenty is held out from the others (all; in a --setting train)",
    )
    group.add_argument("--tokens", type=count, required=required, metavar="N", help="rows to take, e.g. 2e6")
    group.add_argument("--context", type=positive, metavar="N", help="tokens of a context (128)")
    group.add_argument(
        "--skip-positions",
        type=counting,
        metavar="N",
        help="first positions of each context to leave out (1)",
    )
    group.add_argument(
        "--bos",
        choices=("auto", "yes", "no"),
        help="begin contexts with the BOS token (auto: as the model's tokenizer does)",
    )
    group.add_argument(
        "--max-norm",
        type=float,
        metavar="TIMES",
        help="leave out rows whose norm exceeds so many times the median; 0 keeps all (10)",
    )
    group.add_argument("--mix-rows", type=count, metavar="N", help="rows of a shard, at most (65536)")
    group.add_argument("--text-seed", type=int, metavar="N", help="of the shuffling (0)")
    group.add_argument("--device", default="auto", help="cpu, cuda, mps (auto)")
    group.add_argument(
        "--batch-tokens", type=positive, metavar="N", help="run through the model at once (4096)"
    )


# the options beside --model, --tokens and --device; those of the text and those with a default of `Harvest`
PLACE = ("revision", "layer", "module")
TEXT = {"text_field": "field", "part": "part"}
HOW = {
    "context": "context",
    "skip_positions": "skip",
    "bos": "bos",
    "max_norm": "max_norm",
    "mix_rows": "block",
    "text_seed": "seed",
}
HARVEST = ("model", *PLACE, "dataset", "text", *TEXT, *HOW, "batch_tokens")


def given(asked: argparse.Namespace, options: Iterable[str]) -> list[str]:
    """Those of the options that were given."""
    return [name for name in options if getattr(asked, name) is not None]


def option(name: str) -> str:
    """An option as it is written."""
    return f"--{name.replace('_', '-')}"


def chosen(asked: argparse.Namespace, base: "Harvest") -> "Harvest":
    """The harvest with what the options say of the text's part and field, and of how it is cut and kept."""
    text = replace(base.text, **{TEXT[name]: getattr(asked, name) for name in given(asked, TEXT)})
    return replace(base, text=text, **{HOW[name]: getattr(asked, name) for name in given(asked, HOW)})


def harvest_spec(asked: argparse.Namespace) -> "Harvest":
    """The harvest that the options ask for."""
    from osae.data.harvest import Harvest
    from osae.data.text import HubText, TextFiles

    text = HubText(asked.dataset) if asked.dataset else TextFiles(tuple(asked.text))
    place = {name: getattr(asked, name) for name in PLACE}
    return chosen(asked, Harvest(asked.model, text, asked.tokens, **place))


def run(asked: argparse.Namespace) -> int:
    from osae.data.harvest import BATCH_TOKENS, MAX_NORM, harvest

    spec = harvest_spec(asked)
    with Progress("osae harvest") as progress:
        shards, share = harvest(
            spec,
            asked.out,
            dtype=asked.dtype,
            device=asked.device,
            batch_tokens=asked.batch_tokens or BATCH_TOKENS,
            progress=progress,
        )
    told = shards.manifest
    if (rows := shards.rows + told["outliers"]) < spec.tokens:
        print(f"the text gave {rows} of the {spec.tokens} rows asked for")
    if passed := told["text"].get("passed"):
        print(f"documents without a text, passed over: {passed}")
    left_out = f"{told['outliers']} outliers left out"
    if "skipped" in told:  # not where an earlier release wrote the manifest
        left_out += f", {told['skipped']} first positions skipped"
    if told.get("large"):
        left_out += f"; {told['large']} rows kept whose norm exceeds {MAX_NORM:g} times the median"
    time = "" if share is None else f"; {share:.0%} of the time was the model's"
    print(f"{shards.rows} rows of width {shards.width} in {len(shards.shards)} shards; {left_out}{time}")
    print(asked.out)
    return 0
