"""Ordered sparse autoencoders: train them exactly, and measure how consistent any SAEs are.

    import osae
    osae.stability(a, b)               # two decoders (K, d): mean cosine under the best matching
    osae.orderedness(a, b)             # Spearman correlation of the matched positions
    osae.compare(["a", "b"])           # the same and more for every pair of SAEs, on disk or in memory
    osae.evaluate("a", "activations")  # any SAEs on held-out activations: error, prefix curve, cross-entropy
    osae.order("a", "activations")     # a canonical order for the units of any SAE
    osae.load("a")                     # an SAE of any known library

Names are imported when first used, so that `import osae` and `osae --help` need no torch.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from osae.compiling import choose_cache

__version__ = "0.1.0"

choose_cache()

_HOMES = {
    "osae.data.harvest": ("harvest",),
    "osae.data.worlds": ("ForestWorld", "PCAWorld", "SparseWorld"),
    "osae.interop": ("load",),
    "osae.kernels": ("all_prefix_loss",),
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
    "osae.model": ("SAE", "SAEConfig"),
    "osae.prefix": ("prefix_weights",),
    "osae.recipes": ("Recipe", "Task", "recipe", "world_recipe"),
    "osae.sparsify": ("Code",),
    "osae.studies.compare": ("compare",),
    "osae.studies.contexts": ("contexts",),
    "osae.studies.convert": ("convert",),
    "osae.studies.evaluate": ("evaluate",),
    "osae.studies.order": ("order",),
    "osae.studies.prune": ("prune",),
    "osae.studies.push": ("push",),
    "osae.studies.stitch": ("stitch",),
    "osae.studies.trust": ("trust",),
    "osae.training.simple": ("fit",),
}
_RENAMED = {"read_results": ("osae.results", "read")}
_HOME_OF = {name: (home, name) for home, names in _HOMES.items() for name in names} | _RENAMED

if TYPE_CHECKING:
    from osae.data.harvest import harvest
    from osae.data.worlds import ForestWorld, PCAWorld, SparseWorld
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
    from osae.results import read as read_results
    from osae.sparsify import Code
    from osae.studies.compare import compare
    from osae.studies.contexts import contexts
    from osae.studies.convert import convert
    from osae.studies.evaluate import evaluate
    from osae.studies.order import order
    from osae.studies.prune import prune
    from osae.studies.push import push
    from osae.studies.stitch import stitch
    from osae.studies.trust import trust
    from osae.training.simple import fit

__all__ = [*sorted(_HOME_OF), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'osae' has no attribute {name!r}")
    home, original = _HOME_OF[name]
    with _paused_collection():
        module = import_module(home)
    return getattr(module, original)


@contextmanager
def _paused_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes 0.25 s of the 2 s of `import torch` and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
