"""Measures: pure functions of tensors or numpy arrays, independent of models, trainers and files."""

from osae.metrics.assignment import match_atoms
from osae.metrics.chance import AtomDistribution, ChanceLevel, chance_level, fit_atoms
from osae.metrics.consistency import (
    Consistency,
    PrefixConsistency,
    consistency,
    consistency_from,
    default_prefixes,
    measure_within_prefix,
    orderedness,
    prefix_consistency,
    rank_correlation,
    stability,
)
from osae.metrics.contexts import ContextCollector, Entries, Window
from osae.metrics.detection import detection_f1
from osae.metrics.energy import (
    Coactivity,
    UnitActivity,
    explained_energy,
    frequency,
    greedy_order,
    stream_gains,
)
from osae.metrics.fifr import fifr
from osae.metrics.firing import FiringCounts, FrequencyHistogram
from osae.metrics.identifiability import (
    Identifiability,
    coherence,
    identifiability,
    restricted_isometry,
    spark_bound,
    unique_sparsity,
)
from osae.metrics.intervals import Interval, cross_interval, mean_interval, pair_interval
from osae.metrics.matching import Matching, cosine, match
from osae.metrics.neighbours import (
    CosineMap,
    Neighbours,
    find_neighbours,
    nearest_inside,
    pair_cosines,
)
from osae.metrics.prefix_curve import PrefixCurve
from osae.metrics.reconstruction import (
    Reconstruction,
    ReconstructionResult,
    dead_share,
    explained_variance,
    l0,
    measure_reconstruction,
    mse,
)
from osae.metrics.reproducibility import Calibration, calibration, expected_share, ranking_quality
from osae.metrics.stitching import Stitching, StitchingResult, stitching
from osae.metrics.streams import (
    Stream,
    StreamRecorder,
    activation_similarity,
    correlate,
    correlate_pairs,
    match_streams,
    stream_orderedness,
    stream_stability,
)

__all__ = [
    "AtomDistribution",
    "Calibration",
    "ChanceLevel",
    "Coactivity",
    "Consistency",
    "ContextCollector",
    "CosineMap",
    "Entries",
    "FiringCounts",
    "FrequencyHistogram",
    "Identifiability",
    "Interval",
    "Matching",
    "Neighbours",
    "PrefixConsistency",
    "PrefixCurve",
    "Reconstruction",
    "ReconstructionResult",
    "Stitching",
    "StitchingResult",
    "Stream",
    "StreamRecorder",
    "UnitActivity",
    "Window",
    "activation_similarity",
    "calibration",
    "chance_level",
    "coherence",
    "consistency",
    "consistency_from",
    "correlate",
    "correlate_pairs",
    "cosine",
    "cross_interval",
    "dead_share",
    "default_prefixes",
    "detection_f1",
    "expected_share",
    "explained_energy",
    "explained_variance",
    "fifr",
    "find_neighbours",
    "fit_atoms",
    "frequency",
    "greedy_order",
    "identifiability",
    "l0",
    "match",
    "match_atoms",
    "match_streams",
    "mean_interval",
    "measure_reconstruction",
    "measure_within_prefix",
    "mse",
    "nearest_inside",
    "orderedness",
    "pair_cosines",
    "pair_interval",
    "prefix_consistency",
    "rank_correlation",
    "ranking_quality",
    "restricted_isometry",
    "spark_bound",
    "stability",
    "stitching",
    "stream_gains",
    "stream_orderedness",
    "stream_stability",
    "unique_sparsity",
]
