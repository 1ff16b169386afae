"""`osae harvest`: from text through a language model to activations on disk."""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from osae.cli.command import Command
from osae.cli.forecasting import say_needs
from osae.cli.language import LanguageOptions, build_harvest
from osae.cli.outputs import check_folder
from osae.cli.shared_options import model_option, tokens_option
from osae.cli.terminal import Progress
from osae.defaults import DType
from osae.launching import is_first
from osae.options import device_option, option
from osae.stores import Place

if TYPE_CHECKING:
    from osae.data.harvest import Harvest
    from osae.data.shards import Shards


PATIENCE = timedelta(days=7)  # others wait while the first process reads the text


@dataclass(frozen=True, kw_only=True)
class HarvestOptions(LanguageOptions):
    """Which activations to take, and where to write them."""

    model: str = model_option()
    tokens: int = tokens_option()
    out: Place = option("folder for the activations", metavar="DATA")
    dtype: DType = option("type on disk", default="float16")
    device: str = device_option("run the model")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is None and self.module is None:
            raise ValueError("--layer or --module is required: it selects where activations are taken.")
        if not self.text and self.dataset is None:
            raise ValueError("--text or --dataset is required: it selects the text to run.")


def run(options: HarvestOptions, line: str) -> int:
    """Harvest the activations and print a summary; of several processes, only the first prints."""
    if is_first():
        check_folder(options.out)
    spec = build_harvest(options.model, options.tokens, options)
    from osae.data.harvest import BATCH_TOKENS, harvest
    from osae.ranks import choose_local_device, joined, open_mesh
    from osae.report.text import visible

    with joined(PATIENCE), Progress("osae harvest") if is_first() else nullcontext() as progress:
        shards, share = harvest(
            spec,
            options.out,
            dtype=options.dtype,
            device=choose_local_device(options.device),
            batch_tokens=options.batch_tokens or BATCH_TOKENS,
            progress=progress,
            ranks=open_mesh().everyone,
            announce=lambda needs: say_needs("harvest", needs),
        )
    if not is_first():
        return 0
    for sentence in _describe(spec, shards, share):
        print(visible(sentence))
    print(options.out)
    return 0


def _describe(spec: "Harvest", shards: "Shards", share: float | None) -> list[str]:
    """Return sentences about what was written and what was left out."""
    from osae.data.harvest import MAX_NORM
    from osae.results.base import count

    about, sentences = shards.manifest, []
    if (rows := shards.rows + about["outliers"]) < spec.tokens:
        sentences.append(f"the text yields only {rows} of the {spec.tokens} rows asked for")
    if skipped := about["text"].get("passed"):
        sentences.append(f"documents without text, skipped: {skipped}")
    left_out = f"{count(about['outliers'], 'outlier')} left out"
    if "skipped" in about:  # missing in manifests of earlier releases
        left_out += f", {count(about['skipped'], 'first position')} skipped"
    if about.get("large"):
        left_out += f"; {count(about['large'], 'row')} kept whose norm exceeds {MAX_NORM:g} x the median"
    time = "" if share is None else f"; {share:.0%} of the time was spent in the model"
    made = f"{count(shards.rows, 'row')} of width {shards.width} in {count(len(shards.shards), 'shard')}"
    return [*sentences, f"{made}; {left_out}{time}"]


COMMAND = Command(
    "harvest",
    "Run text through a language model and store the activations of one layer.",
    HarvestOptions,
    run,
    examples=(
        "osae harvest --model EleutherAI/pythia-70m --layer 3 --dataset monology/pile-uncopyrighted \\\n"
        "    --tokens 5e7 --out acts",
        "torchrun --nproc-per-node 8 -m osae harvest --model google/gemma-2-2b --layer 12 --dataset ... \\\n"
        "    --tokens 1e9 --out acts",
        "osae harvest --model FOLDER:model.gguf --layer 10 --text 'texts/*.jsonl.xz' --tokens 1e6 --out acts",
    ),
    notes="Layer N is `hidden_states[N]` of the model: the residual stream after N blocks.\n"
    "After an interruption, run the same command again to resume; the shards are identical.",
    resumable=True,
)
