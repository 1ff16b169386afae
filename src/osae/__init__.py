"""Ordered sparse autoencoders: train them exactly, and measure how consistent any SAEs are.

    import osae
    osae.stability(a, b)          # two decoders (K, d): mean cosine under the best matching
    osae.orderedness(a, b)        # Spearman correlation of the matched places
    osae.compare(["a", "b"])      # any SAEs on disk: all of that, and more, for every pair
    osae.evaluate(["a"], "acts")  # any SAEs on held-out activations: error, prefix curve, cross-entropy
    osae.all_prefix_loss(x, values, units, decoder, weights)

Names are imported when first used, so that `import osae` and `osae --help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "osae.kernels": ("all_prefix_loss",),
    "osae.prefix": ("prefix_weights",),
    "osae.model": ("SAE", "SAEConfig"),
    "osae.sparsify": ("Code",),
    "osae.recipes": ("Recipe", "Task", "recipe", "world_recipe"),
    "osae.data.worlds": ("SparseWorld", "PCAWorld"),
    "osae.training.simple": ("fit",),
    "osae.interop": ("load",),
    "osae.comparison": ("compare",),
    "osae.evaluation": ("evaluate",),
    "osae.metrics": (
        "chance_level",
        "coherence",
        "consistency",
        "explained_variance",
        "fifr",
        "greedy_order",
        "match_atoms",
        "orderedness",
        "prefix_consistency",
        "restricted_isometry",
        "spark_bound",
        "stability",
        "stream_orderedness",
        "stream_stability",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from osae.comparison import compare
    from osae.data.worlds import PCAWorld, SparseWorld
    from osae.evaluation import evaluate
    from osae.interop import load
    from osae.kernels import all_prefix_loss
    from osae.metrics import (
        chance_level,
        coherence,
        consistency,
        explained_variance,
        fifr,
        greedy_order,
        match_atoms,
        orderedness,
        prefix_consistency,
        restricted_isometry,
        spark_bound,
        stability,
        stream_orderedness,
        stream_stability,
    )
    from osae.model import SAE, SAEConfig
    from osae.prefix import prefix_weights
    from osae.recipes import Recipe, Task, recipe, world_recipe
    from osae.sparsify import Code
    from osae.training.simple import fit

__all__ = [*sorted(_HOME_OF), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'osae' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
