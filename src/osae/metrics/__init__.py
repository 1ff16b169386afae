"""Measures: pure functions of tensors or numpy arrays. They do not depend on models, trainers or files."""

from osae.metrics.assignment import match_atoms
from osae.metrics.chance import ChanceLevel, chance_level
from osae.metrics.consistency import (
    Consistency,
    PrefixConsistency,
    consistency,
    consistency_from,
    default_prefixes,
    orderedness,
    prefix_consistency,
    rank_correlation,
    stability,
)
from osae.metrics.energy import Coactivity, UnitActivity, explained_energy, frequency, greedy_order
from osae.metrics.fifr import fifr
from osae.metrics.firing import FiringCounts, FrequencyHistogram
from osae.metrics.identifiability import coherence, restricted_isometry, spark_bound, unique_sparsity
from osae.metrics.intervals import Interval, cross_interval, mean_interval, pair_interval
from osae.metrics.matching import Matching, cosine, match
from osae.metrics.prefix_curve import PrefixCurve
from osae.metrics.reconstruction import (
    Reconstruction,
    ReconstructionResult,
    dead_share,
    explained_variance,
    l0,
    mse,
)
from osae.metrics.stitching import Stitching, StitchingResult, stitching
from osae.metrics.streams import (
    StreamCorrelation,
    activation_similarity,
    stream_orderedness,
    stream_stability,
)

__all__ = [
    "ChanceLevel",
    "Coactivity",
    "Consistency",
    "FiringCounts",
    "FrequencyHistogram",
    "Interval",
    "Matching",
    "PrefixConsistency",
    "PrefixCurve",
    "Reconstruction",
    "ReconstructionResult",
    "Stitching",
    "StitchingResult",
    "StreamCorrelation",
    "UnitActivity",
    "activation_similarity",
    "chance_level",
    "coherence",
    "consistency",
    "consistency_from",
    "cosine",
    "cross_interval",
    "dead_share",
    "default_prefixes",
    "explained_energy",
    "explained_variance",
    "fifr",
    "frequency",
    "greedy_order",
    "l0",
    "match",
    "match_atoms",
    "mean_interval",
    "mse",
    "orderedness",
    "pair_interval",
    "prefix_consistency",
    "rank_correlation",
    "restricted_isometry",
    "spark_bound",
    "stability",
    "stitching",
    "stream_orderedness",
    "stream_stability",
    "unique_sparsity",
]
