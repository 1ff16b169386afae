"""A language model, opened at one place: the activations that pass there, and the model with others put in.

Shapes: n contexts, t tokens in each, d width of the activations.

A place is a layer number N, whose activations are `hidden_states[N]` of the model (0: the embeddings; N: the
residual stream after N blocks; the last: that after the final norm), or the output of a module by its name.
The forward pass stops there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from osae.devices import choose_device

Splice = Callable[[Float[Tensor, "n t d"]], Float[Tensor, "n t d"]]


class _Stop(Exception):
    """The place has been reached: nothing after it is needed."""


class LanguageModel:
    """A causal language model of the transformers library, looked at in one place.

    `name` is a name on the hub, a local folder, or either with a GGUF file: `FOLDER:FILE.gguf`. On a GPU the
    weights keep the type they have on disk, elsewhere they are in single precision.
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
        self.tokenizer, self.model, self.revision = _loaded(name, revision, self.device)
        self._site, self._before = _place(self.model, layer, module)

    @property
    def vocabulary(self) -> int:
        """Ids that the model has an embedding for."""
        return self.model.get_input_embeddings().num_embeddings

    def bos(self, wanted: str = "auto") -> int | None:
        """The id that every context begins with: by default the model's own habit, None for none."""
        own = self.tokenizer.bos_token_id
        if wanted == "yes" and own is None:
            raise ValueError(f"{self.name} has no BOS token: leave out --bos yes.")
        if wanted == "auto":
            habit = self.tokenizer("a").input_ids[:1]
            return own if own is not None and habit == [own] else None
        return own if wanted == "yes" else None

    @property
    def longest(self) -> int | None:
        """Tokens in the longest context that the model is made for, None where it does not say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @torch.no_grad()
    def activations(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        """What passes the place, on the CPU in single precision.

        Contexts that end early are filled up on the right: no token sees one after it.
        """
        seen: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            seen.append(hidden)
            raise _Stop

        with self._watched(ids.shape, keep), suppress(_Stop):
            self._run(ids)
        if not seen:
            raise ValueError(f"{self._where}: the model never runs this module, name another.")
        return seen[0].float().cpu()

    @torch.no_grad()
    def losses(
        self, ids: Int[Tensor, "n t"], splice: Splice | None = None, *, skip: int = 0
    ) -> Float[Tensor, "n t-1"]:
        """The cross-entropy of each next token, with `splice` of what passes the place put in its stead.

        The first `skip` positions pass as they are.
        """

        def put(hidden: Tensor) -> Tensor:
            if splice is None:
                return hidden
            changed = splice(hidden[:, skip:].float().cpu()).to(hidden)
            return torch.cat([hidden[:, :skip], changed], dim=1)

        with self._watched(ids.shape, put):
            logits = self._run(ids).logits[:, :-1].float()
        targets = ids[:, 1:].to(logits.device)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").cpu()

    @property
    def _where(self) -> str:
        return f"layer {self.layer}" if self.module is None else self.module

    def _run(self, ids: Tensor) -> Any:
        return self.model(input_ids=ids.to(self.device), use_cache=False)

    @contextmanager
    def _watched(self, shape: torch.Size, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Within, what passes the place goes through `change`; it has a row for each of the ids."""

        def changed(hidden: Any) -> Tensor:
            if not isinstance(hidden, Tensor) or hidden.shape[:-1] != shape:
                found = tuple(hidden.shape) if isinstance(hidden, Tensor) else f"a {type(hidden).__name__}"
                raise ValueError(
                    f"{self._where} gives {found} for {tuple(shape)} tokens: "
                    "name a module that puts out a row for each."
                )
            return change(hidden)

        def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            if args:
                return (changed(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": changed(kwargs.get("hidden_states"))}

        def after(module: nn.Module, args: tuple, output: Any) -> Any:
            match output:
                case (first, *others):
                    return (changed(first), *others)
                case {"last_hidden_state": last}:
                    output["last_hidden_state"] = changed(last)
                    return output
                case _:
                    return changed(output)

        if self._before:
            hook = self._site.register_forward_pre_hook(before, with_kwargs=True)
        else:
            hook = self._site.register_forward_hook(after)
        try:
            yield
        finally:
            hook.remove()


def _loaded(name: str, revision: str | None, device: torch.device) -> tuple[Any, Any, str]:
    """Tokenizer, model and revision; no code of the model's own is run."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError("language models need transformers: pip install 'osae[lm]'") from error
    where, _, file = name.rpartition(":") if name.endswith(".gguf") else (name, "", "")
    if file and not where:  # the path of the file itself
        where, file = str(Path(file).parent), Path(file).name
    if file and Path(where).is_dir() and not Path(where, file).is_file():
        raise ValueError(f"{where} holds no {file}.")
    options: dict[str, Any] = {"trust_remote_code": False}
    options |= {"gguf_file": file} if file else {}
    options |= {"revision": revision} if revision else {}
    dtype: Any = torch.float32 if file or device.type == "cpu" else "auto"
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **options)
            model.to(device)
    except Exception as error:  # of every kind: files, formats, versions, the network, memory
        raise ValueError(f"{name} cannot be opened as a language model: {_short(error)}") from error
    found = getattr(model.config, "_commit_hash", None) or revision or ""
    return tokenizer, model.eval().requires_grad_(False), found


@contextmanager
def _without_bars() -> Iterator[None]:
    """Within, transformers shows no progress bars; the one for GGUF files does not ask its own switch."""
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


def _place(model: Any, layer: int | None, module: str | None) -> tuple[nn.Module, bool]:
    """The module to watch, and whether what goes into it is meant, or what comes out."""
    modules = dict(model.named_modules())
    match layer, module:
        case None, str():
            if module not in modules:
                near = [name for name in modules if name.endswith(module.rsplit(".", 1)[-1])][:4]
                there = ", ".join(near or list(modules)[1:5])
                raise ValueError(f"no module {module!r}: there are {there}, ...")
            return modules[module], False
        case int(), None:
            blocks = _blocks(model)
            if not 0 <= layer <= len(blocks):
                raise ValueError(
                    f"layer={layer}: the model has {len(blocks)} blocks, give 0 to {len(blocks)}."
                )
            if layer < len(blocks):
                return blocks[layer], True
            # transformers puts the final norm into the last of its hidden states
            return model.get_decoder(), False
        case _:
            raise ValueError(f"layer={layer}, module={module}: give one of the two.")


def _blocks(model: Any) -> nn.ModuleList:
    """The blocks of the residual stream: the list of as many modules as the model says it has layers."""
    count = model.config.get_text_config().num_hidden_layers
    for part in model.get_decoder().modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise ValueError(f"no list of {count} blocks in {type(model).__name__}: give a module by its name.")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
