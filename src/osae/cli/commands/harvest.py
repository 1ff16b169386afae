"""`osae harvest`: from text through a language model to activations on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from osae.cli.command import Command
from osae.cli.language import LanguageOptions, build_harvest
from osae.cli.outputs import check_folder
from osae.cli.shared_options import model_option, tokens_option
from osae.cli.terminal import Progress
from osae.options import device_option, option

if TYPE_CHECKING:
    from osae.data.harvest import Harvest
    from osae.data.shards import Shards


@dataclass(frozen=True, kw_only=True)
class HarvestOptions(LanguageOptions):
    """What activations to take, and where to write them."""

    model: str = model_option()
    tokens: int = tokens_option()
    out: Path = option("folder for the activations", metavar="DATA")
    dtype: Literal["float16", "bfloat16", "float32"] = option("type on disk", default="float16")
    device: str = device_option("run the model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is None and self.module is None:
            raise ValueError("--layer or --module is required: it selects where activations are taken.")
        if not self.text and self.dataset is None:
            raise ValueError("--text or --dataset is required: it selects the text to run.")


def run(options: HarvestOptions, line: str) -> int:
    """Harvest the activations and print what was made."""
    check_folder(options.out)
    spec = build_harvest(options.model, options.tokens, options)
    from osae.data.harvest import BATCH_TOKENS, harvest
    from osae.report.text import visible

    with Progress("osae harvest") as progress:
        shards, share = harvest(
            spec,
            options.out,
            dtype=options.dtype,
            device=options.device,
            batch_tokens=options.batch_tokens or BATCH_TOKENS,
            progress=progress,
        )
    for sentence in _describe(spec, shards, share):
        print(visible(sentence))
    print(options.out)
    return 0


def _describe(spec: "Harvest", shards: "Shards", share: float | None) -> list[str]:
    """Return what was made, and what was left out, in sentences."""
    from osae.data.harvest import MAX_NORM

    about, sentences = shards.manifest, []
    if (rows := shards.rows + about["outliers"]) < spec.tokens:
        sentences.append(f"the text gave {rows} of the {spec.tokens} rows asked for")
    if skipped := about["text"].get("passed"):
        sentences.append(f"documents without text, skipped: {skipped}")
    left_out = f"{about['outliers']} outliers left out"
    if "skipped" in about:  # not where an earlier release wrote the manifest
        left_out += f", {about['skipped']} first positions skipped"
    if about.get("large"):
        left_out += f"; {about['large']} rows kept whose norm exceeds {MAX_NORM:g} x the median"
    time = "" if share is None else f"; {share:.0%} of the time was spent in the model"
    made = f"{shards.rows} rows of width {shards.width} in {len(shards.shards)} shards"
    return [*sentences, f"{made}; {left_out}{time}"]


COMMAND = Command(
    "harvest",
    "Run text through a language model and keep the activations of one layer.",
    HarvestOptions,
    run,
    examples=(
        "osae harvest --model EleutherAI/pythia-70m --layer 3 --dataset monology/pile-uncopyrighted \\\n"
        "    --tokens 5e7 --out acts",
        "osae harvest --model FOLDER:model.gguf --layer 10 --text 'texts/*.jsonl.xz' --tokens 1e6 --out acts",
    ),
    notes="Layer N is `hidden_states[N]` of the model: the residual stream after N blocks.\n"
    "After an interruption, run the same command again to resume: the shards come out the same.",
    resumable=True,
)
