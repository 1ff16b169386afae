"""Ordered training as a SAELens architecture: importing this module registers "osae" with SAELens.

    import osae.integrations.saelens as ordered
    cfg = LanguageModelSAERunnerConfig(sae=ordered.OrderedSAEConfig(d_in=768, d_sae=4096, k=32), ...)
    LanguageModelSAETrainingRunner(cfg).run()
    ordered.sort_by_gain(cfg.output_path, "acts")

The SAE saved for inference is a plain TopK SAE, which SAELens and its tools load without osae.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor

from osae import kernels, passes
from osae.config import from_json, to_json
from osae.files import atomic_write
from osae.interop import load
from osae.prefix import PrefixWeights, prefix_weights
from osae.recipes import Task, recipe
from osae.schedule import KWarmup, active_units
from osae.seeds import generator
from osae.studies.subjects import BATCH, DataLike, check_runnable, open_rows
from osae.tensor_files import read_tensors

try:
    from sae_lens import registry  # pyright: ignore[reportMissingImports]
    from sae_lens.saes.sae import SAEConfig, TrainStepInput, TrainStepOutput  # pyright: ignore[reportMissingImports]
    from sae_lens.saes.topk_sae import (  # pyright: ignore[reportMissingImports]
        TopK,
        TopKSAEConfig,
        TopKTrainingSAE,
        TopKTrainingSAEConfig,
    )
except ImportError as error:
    raise ImportError("osae.integrations.saelens needs SAELens: pip install sae-lens.") from error

ARCHITECTURE = "osae"
RECIPE = "osae-from-noise"  # SAELens also starts from noise
WEIGHTS, SPARSITY = "sae_weights.safetensors", "sparsity.safetensors"
SCALED = ("layer_norm", "constant_norm_rescale")


@dataclass
class OrderedSAEConfig(TopKTrainingSAEConfig):
    """SAELens' options for a TopK SAE, plus those of ordered training.

    Args:
        prefix: prefix weights, as in a recipe: a distribution from `osae.prefix`, or its JSON. By default,
            those of the recipe `osae-from-noise`.
        k_warmup_steps: steps over which k falls from `k_start` to k; 0 for none. A third of training works
            well.
        k_start: initial k; 5 k by default.
    """

    prefix: Any = None
    k_warmup_steps: int = 0
    k_start: int | None = None
    use_sparse_activations: bool = field(default=False)

    def __post_init__(self) -> None:
        if self.use_sparse_activations:
            raise ValueError("use_sparse_activations=True applies to SAELens' own loss only: remove it.")
        if self.normalize_activations in SCALED:
            raise ValueError(
                f"normalize_activations={self.normalize_activations!r} scales each input separately: use "
                "'expected_average_only_in'."
            )
        self.prefix = _describe_prefix(self.prefix, self.d_sae, self.k)
        self.k_start = self.k_start or min(self.d_sae, 5 * self.k)
        super().__post_init__()

    @classmethod
    def architecture(cls) -> str:
        """Return the name of the architecture in SAELens."""
        return ARCHITECTURE

    def get_inference_config_class(self) -> type[SAEConfig]:
        """Return the configuration to save: that of a TopK SAE."""
        return TopKSAEConfig


def _describe_prefix(given: Any, units: int, k: int) -> dict[str, Any]:
    """Return prefix weights as JSON, after checking them."""
    if given is None:
        given = recipe(RECIPE, Task(1, units, k, samples=1, batch=1)).prefix
    spec = from_json(given) if isinstance(given, dict) else given
    if not isinstance(spec, PrefixWeights):
        raise ValueError(f"prefix={given!r}: give a distribution from osae.prefix, such as Uniform().")
    prefix_weights(spec, units, generator(0, "prefix"))  # raises if they are invalid
    return to_json(spec)


class OrderedSAE(TopKTrainingSAE):
    """A TopK SAE in training, with the exact loss over all prefixes of its dictionary."""

    cfg: OrderedSAEConfig

    @cached_property
    def k_at(self) -> Callable[[int], int]:
        """Return the function step -> number of units that may be active."""
        cfg, steps = self.cfg, self.cfg.k_warmup_steps
        warmup = KWarmup(1.0, cfg.k_start) if steps else None
        return active_units(warmup, cfg.k, cfg.d_sae, steps)

    def training_forward_pass(self, step_input: TrainStepInput) -> TrainStepOutput:
        """Return the loss of a batch, and the numbers that SAELens logs."""
        step, x = step_input.n_training_steps, step_input.sae_in
        self.activation_fn = TopK(self.k_at(step))
        acts, pre = self.encode_with_hidden_pre(x)
        out = self.decode(acts)
        ordered = self.ordered_loss(x, acts, step=step).mean()
        losses = {"ordered_loss": ordered} | self.calculate_aux_loss(
            step_input=step_input, feature_acts=acts, hidden_pre=pre, sae_out=out
        )
        return TrainStepOutput(
            sae_in=x,
            sae_out=out,
            feature_acts=acts,
            hidden_pre=pre,
            loss=torch.stack([*losses.values()]).sum(),
            losses=losses,
        )

    def ordered_loss(
        self, x: Float[Tensor, "B d"], acts: Float[Tensor, "B K"], *, step: int = 0
    ) -> Float[Tensor, "B"]:
        """Return the weighted error over all prefixes for each row; `acts` is its dense code."""
        decoder = self.W_dec
        if self.cfg.rescale_acts_by_decoder_norm:
            decoder = decoder / decoder.norm(dim=-1, keepdim=True)
        most = max(1, int((acts > 0).sum(-1).max()))
        values, units = acts.topk(most, dim=-1)
        return kernels.all_prefix_loss(x - self.b_dec, values, units, decoder, self._prefix_weights(step))

    def _prefix_weights(self, step: int) -> Float[Tensor, "K"]:
        spec = from_json(self.cfg.prefix)
        return prefix_weights(spec, self.cfg.d_sae, generator(0, "prefix", step)).to(self.W_dec.device)


if ARCHITECTURE not in registry.SAE_TRAINING_CLASS_REGISTRY:
    registry.register_sae_training_class(ARCHITECTURE, OrderedSAE, OrderedSAEConfig)


def sort_by_gain(folder: Path | str, data: DataLike) -> Int[Tensor, "K"]:
    """Sort the units of an SAE saved by SAELens, and return the order: unit order[i] is now at position i.

    Each unit is followed by the one that then lowers the error most on the activations, given as a path,
    `Shards` or a matrix. The function computed by the SAE does not change.
    """
    folder, rows = Path(folder), open_rows(data)
    order = passes.order_units(check_runnable(load(folder), rows), rows.batches(BATCH))
    for name in (SPARSITY, WEIGHTS):
        if (folder / name).is_file():
            tensors = read_tensors(folder / name)
            with atomic_write(folder / name) as path:
                save_file({key: _permute(key, tensor, order) for key, tensor in tensors.items()}, path)
    return order


def _permute(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    match name:
        case "W_enc":  # d x K
            return tensor[:, order].contiguous()
        case "b_dec":
            return tensor
        case _:
            return tensor[order]
