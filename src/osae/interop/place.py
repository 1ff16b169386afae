"""Where the activations of an SAE come from: model, hook and context, as far as its file says."""

import re
from dataclasses import dataclass
from typing import Any

_LONGEST = 200  # maximum length of a name
_BLOCK = re.compile(r"(?:^|\.)(?:blocks|layers|h)\.(\d{1,6})(?:\.(.+))?$")
_NAMED = re.compile(r"^resid_(pre|post)_layer_(\d{1,6})$")  # in dictionary_learning
_AFTER = (None, "output", "hook_resid_post")
_BEFORE = ("input", "hook_resid_pre")
_PARTS = {"hook_mlp_out": "mlp", "mlp.output": "mlp", "hook_attn_out": "attn", "self_attn": "attn"}


@dataclass(frozen=True)
class Place:
    """A location in a language model: `hook` is its name in the library that wrote the file."""

    model: str | None = None
    hook: str | None = None
    context: int | None = None  # tokens

    @property
    def residual(self) -> int | None:
        """Return the number of the block that reads the residual stream here; None if this is not the stream.

        The output of a block is the input of the next one, so that both have the same number.
        """
        if named := _NAMED.match(self.hook or ""):
            return int(named[2]) + (named[1] == "post")
        found = _BLOCK.search(self.hook or "")
        if not found or found[2] not in (*_AFTER, *_BEFORE):
            return None
        return int(found[1]) + (found[2] in _AFTER)

    @property
    def spot(self) -> str | None:
        """Return a description that does not depend on the library's names; None if unknown."""
        if self.residual is not None:
            return f"the residual stream before block {self.residual}"
        found = _BLOCK.search(self.hook or "")
        return f"block {found[1]}, {_PARTS.get(found[2], found[2])}" if found else self.hook

    @property
    def layer(self) -> int | None:
        """Return the number of the block that writes here; None if unknown."""
        if self.residual is not None:
            return self.residual - 1 if self.residual else None
        found = _BLOCK.search(self.hook or "")
        return int(found[1]) if found else None

    @property
    def transformer_lens(self) -> str | None:
        """Return the name of the hook in TransformerLens; None if unknown."""
        if self.hook is None or self.hook.startswith("blocks."):
            return self.hook
        if self.residual is None:
            return None
        return f"blocks.{self.residual - 1}.hook_resid_post" if self.residual else "blocks.0.hook_resid_pre"


def read_place(model: Any, hook: Any, context: Any = None) -> Place:
    """Return the place recorded in a file; invalid names and numbers count as unknown."""
    tokens = context if isinstance(context, int) and not isinstance(context, bool) else None
    return Place(_name(model), _name(hook), tokens)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() and len(value) <= _LONGEST else None
