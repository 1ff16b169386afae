"""A language model, opened at one place: the activations that pass there, and the model with others put in.

Shapes: n contexts, t tokens in each, d width of the activations.

A place is a layer number N, whose activations are `hidden_states[N]` of the model (0: the embeddings; N: the
residual stream after N blocks), or the output of a module by its name. The forward pass stops there.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

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
        self.device = torch.device(chosen_device(device))
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

    @torch.inference_mode()
    def activations(self, ids: Int[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        """What passes the place, on the CPU in single precision.

        Contexts that end early are filled up on the right: no token sees one after it.
        """
        seen: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            seen.append(hidden)
            raise _Stop

        with self._watched(keep), suppress(_Stop):
            self._run(ids, lm_head=False)
        if not seen:
            raise ValueError(f"{self.module}: the model never runs this module, name another.")
        return seen[0].float().cpu()

    @torch.inference_mode()
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

        with self._watched(put):
            logits = self._run(ids, lm_head=True).logits[:, :-1].float()
        targets = ids[:, 1:].to(logits.device)
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").cpu()

    def _run(self, ids: Tensor, *, lm_head: bool) -> Any:
        run = self.model if lm_head else self.model.base_model
        return run(input_ids=ids.to(self.device), use_cache=False)

    @contextmanager
    def _watched(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Within, what passes the place goes through `change`."""

        def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

        def after(module: nn.Module, args: tuple, output: Any) -> Any:
            if isinstance(output, Tensor):
                return change(output)
            if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
                return (change(output[0]), *output[1:])
            kind = type(output).__name__
            raise ValueError(f"{self.module} puts out a {kind}: name a module that puts out a tensor.")

        if self._before:
            hook = self._site.register_forward_pre_hook(before, with_kwargs=True)
        else:
            hook = self._site.register_forward_hook(after)
        try:
            yield
        finally:
            hook.remove()


def chosen_device(device: str) -> str:
    """The device asked for; for "auto" a GPU if there is one."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _loaded(name: str, revision: str | None, device: torch.device) -> tuple[Any, Any, str]:
    """Tokenizer, model and revision; no code of the model's own is run."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise ValueError("language models need transformers: pip install 'osae[lm]'") from error
    where, _, given = name.rpartition(":") if name.endswith(".gguf") else (name, "", "")
    options: dict[str, Any] = {"gguf_file": given} if given else {}
    if given and not Path(where, given).is_file() and Path(where).is_dir():
        raise ValueError(f"{where} holds no {given}.")
    if revision:
        options["revision"] = revision
    bars, _ = logging.is_progress_bar_enabled(), logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        dtype: Any = torch.float32 if given or device.type == "cpu" else "auto"
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **options)
    except (OSError, ImportError, KeyError) as error:
        raise ValueError(f"{name} cannot be opened as a language model: {_short(error)}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    found = getattr(model.config, "_commit_hash", None) or revision or ""
    return tokenizer, model.to(device).eval().requires_grad_(False), found


def _place(model: Any, layer: int | None, module: str | None) -> tuple[nn.Module, bool]:
    """The module to watch, and whether what goes into it is meant, or what comes out."""
    if (layer is None) == (module is None):
        raise ValueError(f"layer={layer}, module={module}: give one of the two.")
    if module is not None:
        modules = dict(model.named_modules())
        if module not in modules:
            near = [name for name in modules if name.endswith(module.rsplit(".", 1)[-1])][:4]
            raise ValueError(f"no module {module!r}: there are {', '.join(near or list(modules)[1:5])}, ...")
        return modules[module], False
    blocks = _blocks(model)
    if not 0 <= layer <= len(blocks):
        raise ValueError(f"layer={layer}: the model has {len(blocks)} blocks, give 0 to {len(blocks)}.")
    if layer < len(blocks):
        return blocks[layer], True
    # transformers puts the final norm into the last of its hidden states
    norm = [part for part in model.base_model.children() if "norm" in type(part).__name__.lower()]
    if not norm:
        raise ValueError(f"layer={layer}: no final norm found, give a layer below or a module.")
    return norm[-1], False


def _blocks(model: Any) -> nn.ModuleList:
    """The blocks of the residual stream: the list of as many modules as the model says it has layers."""
    count = model.config.get_text_config().num_hidden_layers
    for part in model.base_model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise ValueError(f"no list of {count} blocks in {type(model).__name__}: give a module by its name.")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
