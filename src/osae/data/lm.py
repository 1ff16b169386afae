"""A language model, observed at one layer or module: its activations, and its losses when they are replaced.

Shapes: n contexts, t tokens in each, d width of the activations.

A place is a layer number N, whose activations are `hidden_states[N]` of the model (0: the embeddings; N: the
residual stream after N blocks; the last one: also after the final norm), or the output of a module by name.
If only activations are needed, the forward pass stops there.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from osae.data.places import check_layer, check_place, split_gguf
from osae.devices import choose_device, count_threads, map_in_threads, single_thread
from osae.forecast import SINGLE
from osae.messages import shorten

__all__ = ["LanguageModel", "Splice", "check_place"]

PASS_TOKENS = 512  # in a pass on the CPU, unless a context is longer: one thread is as fast with few
LOSS_COPIES = 3  # of the logits, while their cross-entropy is computed
CHANGING = ("dynamic", "longrope")  # types of position embeddings that a pass adapts to its contexts

Item = TypeVar("Item")
Found = TypeVar("Found")
Splice = Callable[[Float[Tensor, "n t d"]], Float[Tensor, "n t d"]]


class _Stop(Exception):
    """Raised when the place is reached, because nothing after it is needed."""


class LanguageModel:
    """A causal language model from the transformers library, observed at one place.

    `name` is a name on the hub, a local folder, or either with a GGUF file: `FOLDER:FILE.gguf`. On a GPU, the
    weights keep their dtype on disk; elsewhere, they are in single precision.
    """

    def __init__(
        self,
        name: str,
        *,
        layer: int | None = None,
        module: str | None = None,
        revision: str | None = None,
        device: str = "auto",
    ):
        self.name, self.layer, self.module = name, layer, module
        self.device = torch.device(choose_device(device))
        check_place(name, layer=layer, module=module, revision=revision)
        self.tokenizer, self.model, self.revision = _load(name, revision, self.device)
        self._current = _Current()
        _hook(*_find_place(self.model, layer, module), self._current)

    @property
    def vocabulary(self) -> int:
        """Return the number of ids that the model has an embedding for."""
        return self.model.get_input_embeddings().num_embeddings

    def bos(self, wanted: str = "auto") -> int | None:
        """Return the id that every context starts with, by default as in the tokenizer; None for none."""
        own = self.tokenizer.bos_token_id
        if wanted == "yes" and own is None:
            raise ValueError(f"{self.name} has no BOS token: remove --bos yes.")
        if wanted == "auto":
            habit = self.tokenizer("a").input_ids[:1]
            return own if own is not None and habit == [own] else None
        return own if wanted == "yes" else None

    @property
    def longest(self) -> int | None:
        """Return the number of tokens in the longest context that the model supports; None if not stated."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def forecast_bytes(self, tokens: int, context: int, *, losses: bool = False) -> int:
        """Return an estimate of the memory that a pass over so many tokens takes on this machine.

        On the CPU, several passes over contexts of this length take place at once. With `losses`, each
        computes logits and their normalised copies.
        """
        if self.device.type != "cpu":
            return 0
        config = self.model.config.get_text_config()
        width = config.hidden_size
        # of the residual stream and attention, kept by the allocator, and of an MLP
        numbers = 16 * width + 4 * (getattr(config, "intermediate_size", None) or 4 * width)
        if getattr(config, "_attn_implementation", None) == "eager":  # scores, before and after their softmax
            heads = getattr(config, "num_attention_heads", None) or 0  # some models have no attention
            numbers += 4 * heads * min(context, tokens)
        numbers += LOSS_COPIES * self.vocabulary if losses else 0
        together = self.count_passes() * max(self.limit_tokens(tokens), min(context, tokens))
        return together * SINGLE * numbers

    def limit_tokens(self, tokens: int) -> int:
        """Return how many of so many tokens to put in a batch, whatever the number of threads."""
        return min(tokens, PASS_TOKENS) if self.device.type == "cpu" else tokens

    def count_passes(self) -> int:
        """Return how many batches `map_batches` computes at once."""
        kinds = [str(getattr(module, "rope_type", "")) for module in self.model.modules()]
        changes = any(name in kind for kind in kinds for name in CHANGING)
        return 1 if self.device.type != "cpu" or changes else count_threads()

    def map_batches(self, function: Callable[[Item], Found], batches: Iterable[Item]) -> list[Found]:
        """Return the function's results for all batches; it calls this model.

        On the CPU, the last bits of a pass depend on its number of threads, so each has a single one, and
        different batches run in different threads.
        """
        if self.device.type != "cpu":
            return list(map(function, batches))
        passes = self.count_passes()
        with single_thread():
            return map_in_threads(function, batches, passes)

    @torch.no_grad()
    def activations(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        """Return the activations at the place, on the CPU in single precision.

        Shorter contexts are padded on the right, since no token attends to later ones.
        """
        seen: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            seen.append(hidden)
            raise _Stop

        with self._observe(ids.shape, keep), suppress(_Stop):
            self._run(ids)
        if not seen:
            raise ValueError(f"{self._where}: the model never runs this module: give a different one.")
        return seen[0].float().cpu()

    @torch.no_grad()
    def losses(
        self, ids: Int[Tensor, "n t"], splice: Splice | None = None, *, skip: int = 0
    ) -> Float[Tensor, "n t-1"]:
        """Return the cross-entropy of each next token, with the activations passed through `splice`.

        The first `skip` positions are left unchanged.
        """

        def replace(hidden: Tensor) -> Tensor:
            if splice is None:
                return hidden
            changed = splice(hidden[:, skip:].float().cpu()).to(hidden)
            return torch.cat([hidden[:, :skip], changed], dim=1)

        with self._observe(ids.shape, replace):
            logits = self._run(ids).logits[:, :-1].float()
        targets = ids[:, 1:].to(logits.device)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").cpu()

    @torch.no_grad()
    def logit_directions(self, rows: Float[Tensor, "K d"]) -> Float[Tensor, "K vocabulary"]:
        """Return what each direction alone adds to the logits, through the final norm; on the CPU.

        Raise `ValueError` if the place is not in the residual stream, where this is meaningful.
        """
        unembedding = self.model.get_output_embeddings()
        width = self.model.get_input_embeddings().weight.shape[1]
        if unembedding is None or rows.shape[1] != width:
            raise ValueError(f"{self._where} has width {rows.shape[1]}, the residual stream {width}.")
        weight = unembedding.weight
        directions = rows.to(weight)
        blocks = _blocks(self.model)
        norm = None if self.layer == len(blocks) else _final_norm(self.model, blocks)
        if norm is not None:  # without its offset: only the direction's contribution
            directions = norm(directions) - norm(torch.zeros_like(directions))
        return (directions.to(weight) @ weight.T).float().cpu()

    @property
    def _where(self) -> str:
        return f"layer {self.layer}" if self.module is None else self.module

    def _run(self, ids: Tensor) -> Any:
        return self.model(input_ids=ids.to(self.device), use_cache=False)

    @contextmanager
    def _observe(self, shape: torch.Size, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Pass the activations at the place, one row per id, through `change` in this thread's block."""

        def apply(hidden: Any) -> Tensor:
            if not isinstance(hidden, Tensor) or hidden.shape[:-1] != shape:
                found = tuple(hidden.shape) if isinstance(hidden, Tensor) else f"a {type(hidden).__name__}"
                raise ValueError(
                    f"{self._where} returns {found} for {tuple(shape)} tokens: "
                    "give a module that outputs one row per token."
                )
            return change(hidden)

        self._current.apply = apply
        try:
            yield
        finally:
            self._current.apply = None


class _Current(threading.local):
    """What the pass in this thread does to the activations at the place: nothing by default."""

    apply: Callable[[Any], Tensor] | None = None


def _hook(site: nn.Module, at_input: bool, current: _Current) -> None:
    """Pass the input of a module, or else its output, through the current function of each thread.

    The module is hooked once, because hooks cannot be added or removed while other threads run the model.
    """

    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if (apply := current.apply) is None:
            return None
        if args:
            return (apply(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": apply(kwargs.get("hidden_states"))}

    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        if (apply := current.apply) is None:
            return None
        match output:
            case (first, *others):
                return (apply(first), *others)
            case {"last_hidden_state": last}:
                output["last_hidden_state"] = apply(last)
                return output
            case _:
                return apply(output)

    if at_input:
        site.register_forward_pre_hook(before, with_kwargs=True)
    else:
        site.register_forward_hook(after)


def _load(name: str, revision: str | None, device: torch.device) -> tuple[Any, Any, str]:
    """Return tokenizer, model and revision; no code from the model's repository is run."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError("language models need transformers: pip install 'osae[lm]'.") from error
    where, file = split_gguf(name)
    if file and Path(where).is_dir() and not Path(where, file).is_file():
        raise ValueError(f"{where} contains no {file}: give the name of a file in it.")
    options: dict[str, Any] = {"trust_remote_code": False}
    options |= {"gguf_file": file} if file else {}
    options |= {"revision": revision} if revision else {}
    dtype: Any = torch.float32 if file or device.type == "cpu" else "auto"
    try:
        with _hide_bars():
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **options)
            model.to(device)
    except Exception as error:  # of every kind: files, formats, versions, the network, memory
        raise ValueError(f"{name} cannot be opened as a language model: {shorten(error)}") from error
    found = getattr(model.config, "_commit_hash", None) or revision or ""
    return tokenizer, model.eval().requires_grad_(False), found


@contextmanager
def _hide_bars() -> Iterator[None]:
    """Hide the progress bars of transformers within the block; the bar for GGUF files ignores the setting."""
    from transformers.utils import logging

    gguf: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    shown, bar = logging.is_progress_bar_enabled(), gguf.tqdm
    logging.disable_progress_bar()
    gguf.tqdm = lambda items, **about: items
    try:
        yield
    finally:
        gguf.tqdm = bar
        if shown:
            logging.enable_progress_bar()


def _find_place(model: Any, layer: int | None, module: str | None) -> tuple[nn.Module, bool]:
    """Return the module to hook, and whether to observe its input rather than its output."""
    modules = dict(model.named_modules())
    match layer, module:
        case None, str():
            if module not in modules:
                near = [name for name in modules if name.endswith(module.rsplit(".", 1)[-1])][:4]
                there = ", ".join(near or list(modules)[1:5])
                raise ValueError(f"no module {module!r}: the model has {there}, ...")
            return modules[module], False
        case int(), None:
            blocks = _blocks(model)
            check_layer(layer, len(blocks))
            if layer < len(blocks):
                return blocks[layer], True
            # transformers includes the final norm in the last of its hidden states
            return model.get_decoder(), False
        case _:
            raise ValueError(f"layer={layer}, module={module}: give one of the two.")


def _blocks(model: Any) -> nn.ModuleList:
    """Return the blocks of the residual stream: the list with as many modules as the config has layers."""
    count = model.config.get_text_config().num_hidden_layers
    for part in model.get_decoder().modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise ValueError(f"no list of {count} blocks in {type(model).__name__}: give a module by its name.")


def _final_norm(model: Any, blocks: nn.ModuleList) -> nn.Module | None:
    """Return the norm after the last block: the last module of the decoder outside the blocks."""
    inside = {id(part) for part in blocks.modules()}
    children = [part for part in model.get_decoder().modules() if id(part) not in inside]
    norms = [part for part in children if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else None


def open_tokenizer(name: str, revision: str | None = None) -> Any:
    """Return the tokenizer of a language model, without its weights."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError("tokenizers need transformers: pip install 'osae[lm]'.") from error
    where, file = split_gguf(name)
    options: dict[str, Any] = {"trust_remote_code": False}
    options |= {"gguf_file": file} if file else {}
    options |= {"revision": revision} if revision else {}
    try:
        with _hide_bars():
            return AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:  # of every kind: files, formats, versions, the network
        raise ValueError(f"the tokenizer of {name} cannot be opened: {shorten(error)}") from error


def token_texts(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """Return the text of each single token, including any leading space."""
    texts = {}
    for number in ids:
        text, piece = tokenizer.decode([number]), tokenizer.convert_ids_to_tokens(number)
        begins = isinstance(piece, str) and piece.startswith("\u2581") and not text.startswith(" ")
        texts[number] = f" {text}" if begins else text
    return texts
