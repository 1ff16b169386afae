"""Options for the activations of a language model, and the harvest they describe."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osae.cli.shared_options import LANGUAGE, model_option, tokens_option
from osae.defaults import CONTEXT, SKIP
from osae.options import Options, find_given, option

if TYPE_CHECKING:
    from osae.data.harvest import Harvest
    from osae.data.text import Text

TEXT = {"text_field": "field", "part": "part"}  # option -> field of the text
HOW = {  # option -> field of the harvest
    "context": "context",
    "skip_positions": "skip",
    "bos": "bos",
    "max_norm": "max_norm",
    "mix_rows": "block",
    "text_seed": "seed",
}
PLACE = ("layer", "module", "revision")
NAMES = ("model", *PLACE, "dataset", "text", *TEXT, *HOW, "batch_tokens")


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(Options):
    """Where in the model to take activations, and on which text; None keeps the default."""

    model: str | None = model_option(default=None)
    revision: str | None = option(
        "revision of the model on the hub", default=None, metavar="REVISION", group=LANGUAGE
    )
    layer: int | None = option(
        "take activations from hidden_states[N]", default=None, least=0, group=LANGUAGE
    )
    module: str | None = option(
        "take the output of this module instead of a layer", default=None, metavar="NAME", group=LANGUAGE
    )
    text: tuple[str, ...] = option(
        "text files or patterns: .txt, .md, .rst, .jsonl (.xz, .gz, .zst), .parquet",
        default=(),
        metavar="FILE",
        entries="words",
        group=LANGUAGE,
    )
    dataset: str | None = option(
        "dataset on the hub, streamed, instead of text files",
        default=None,
        metavar="HF_ID[:CONFIG]",
        group=LANGUAGE,
    )
    tokens: int | None = tokens_option(default=None)
    text_field: str | None = option(
        "field of a document that contains its text",
        default=None,
        metavar="NAME",
        shown="text",
        group=LANGUAGE,
    )
    part: str | None = option(
        "which documents to use; one in twenty is held out",
        default=None,
        choices=("all", "train", "held-out"),
        shown="all; train with --setting",
        group=LANGUAGE,
    )
    context: int | None = option(
        "context length in tokens", default=None, shown=f"{CONTEXT}", least=1, group=LANGUAGE
    )
    skip_positions: int | None = option(
        "positions to skip at the start of each context",
        default=None,
        shown=f"{SKIP}",
        least=0,
        group=LANGUAGE,
    )
    bos: str | None = option(
        "whether to start contexts with the BOS token; auto: as the model's tokenizer does",
        default=None,
        choices=("auto", "yes", "no"),
        shown="auto",
        group=LANGUAGE,
    )
    max_norm: float | None = option(
        "drop rows whose norm exceeds TIMES x the median; 0 keeps all rows",
        default=None,
        shown="10",
        metavar="TIMES",
        least=0,
        group=LANGUAGE,
    )
    mix_rows: int | None = option(
        "maximum number of rows in a shard", default=None, shown="65536", least=1, group=LANGUAGE
    )
    text_seed: int | None = option("seed for shuffling", default=None, shown="0", group=LANGUAGE)
    batch_tokens: int | None = option(
        "number of tokens to run through the model at once, on the CPU at most 512 in each thread",
        default=None,
        shown="4096",
        least=1,
        group=LANGUAGE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.module is not None:
            raise ValueError("--layer and --module are mutually exclusive: give only one.")
        if self.text and self.dataset is not None:
            raise ValueError("--text and --dataset are mutually exclusive: give only one.")
        if self.max_norm is not None and 0 < self.max_norm < 1:
            raise ValueError(f"--max-norm {self.max_norm:g}: give at least 1, or 0 to keep all rows.")
        context = CONTEXT if self.context is None else self.context
        skipped = SKIP if self.skip_positions is None else self.skip_positions
        if skipped >= context:
            raise ValueError(
                f"--skip-positions {skipped} leaves no tokens in a --context of {context}: skip at most "
                f"{context - 1}."
            )


def find_text(options: LanguageOptions) -> "Text":
    """Return the text given by --text or --dataset."""
    from osae.data.text import HubText, TextFiles

    text = TextFiles(options.text) if options.dataset is None else HubText(options.dataset)
    return _with_text_options(text, options)


def _with_text_options(text: "Text", options: LanguageOptions) -> "Text":
    return replace(
        text, **{TEXT[each.name]: getattr(options, each.name) for each in find_given(options, TEXT)}
    )


def override(harvest: "Harvest", options: LanguageOptions) -> "Harvest":
    """Return the harvest with the options for the text, and for how it is split and stored, applied."""
    text = _with_text_options(harvest.text, options)
    changes = {HOW[each.name]: getattr(options, each.name) for each in find_given(options, HOW)}
    return replace(harvest, text=text, **changes)


def check_request(model: str, text: "Text", options: LanguageOptions) -> None:
    """Raise `ValueError` if the text cannot be read or the model has no such layer, before it is loaded."""
    from osae.data.places import check_place
    from osae.data.text import check_readable

    check_readable(text)
    check_place(model, layer=options.layer, module=options.module, revision=options.revision)


def build_harvest(model: str, tokens: int, options: LanguageOptions) -> "Harvest":
    """Return the harvest described by the options, after checking that it is possible."""
    text = find_text(options)
    check_request(model, text, options)
    from osae.data.harvest import Harvest

    place = {"layer": options.layer, "module": options.module, "revision": options.revision}
    return override(Harvest(model, text, tokens, **place), options)
