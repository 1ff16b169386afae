"""Names of the methods that experiments and claims refer to. Nothing here needs torch."""

VANILLA = "vanilla"
TOPK = "topk"
BATCHTOPK = "batchtopk"
MATRYOSHKA_FIXED = "matryoshka-fixed"
MATRYOSHKA_RANDOM = "matryoshka-random"
MATRYOSHKA_PIECEWISE = "matryoshka-piecewise"
NESTED_DROPOUT = "nested-dropout"
OSAE_PAPER = "osae-paper"
OSAE_GEOMETRIC = "osae-geometric"
OSAE_SWEPT = "osae-swept"
OSAE_SWEPT_RESTARTING = "osae-swept-restarting"
OSAE = "osae"
OSAE_FROM_NOISE = "osae-from-noise"
OSAE_ALIGNED = "osae-aligned"
OSAE_FROM_MODES = "osae-from-modes"
MATRYOSHKA = (MATRYOSHKA_FIXED, MATRYOSHKA_RANDOM)

# the recipes of `osae.recipes`, which needs torch; a test compares the two
_COMMON = (
    VANILLA,
    TOPK,
    BATCHTOPK,
    MATRYOSHKA_FIXED,
    MATRYOSHKA_RANDOM,
    MATRYOSHKA_PIECEWISE,
    NESTED_DROPOUT,
    OSAE_PAPER,
)
WORLD_METHODS = (*_COMMON, OSAE_GEOMETRIC, OSAE_SWEPT, OSAE_SWEPT_RESTARTING, OSAE)
OTHER_ROADS = (
    "topk-resorted",
    "topk-archetypal",
    "topk-aligned",
    "topk-kmeans",
    "topk-penalised",
    "topk-separated",
)
ACTIVATION_METHODS = (*_COMMON, OSAE, OSAE_FROM_NOISE, OSAE_ALIGNED, OSAE_FROM_MODES, *OTHER_ROADS)
TABLE_METHODS = (VANILLA, TOPK, BATCHTOPK, *MATRYOSHKA, NESTED_DROPOUT, OSAE_PAPER, OSAE)  # in table 1
LM_METHODS = (TOPK, BATCHTOPK, *MATRYOSHKA, OSAE_PAPER, OSAE)  # compared on language models
HARD_METHODS = (TOPK, BATCHTOPK, *MATRYOSHKA, OSAE_PAPER, OSAE_FROM_NOISE, OSAE_ALIGNED)  # on hard worlds

# how SAEs start: from the data's principal directions, from random atoms, from clusters or modes of the data,
# or from what short runs have in common
DATA, NOISE, KMEANS, MODES, CONSENSUS = "data", "noise", "kmeans", "modes", "consensus"
STARTS = (DATA, NOISE, KMEANS, MODES, CONSENSUS)

# rows of tables that are not recipes
UNTRAINED = "untrained"
TOPK_OUR_SETTINGS = "topk-our-settings"  # TopK in the Zipfian world, trained like our recipe
TOPK_SORTED = "topk-sorted"  # on worlds by energy, on language models by gain
TOPK_SORTED_BY_GAIN = "topk-sorted-by-gain"

# on worlds: methods whose units are also sorted after training, by energy and by gain
SORTED_BY_ENERGY = {TOPK: TOPK_SORTED, TOPK_OUR_SETTINGS: "topk-our-settings-sorted"}
SORTED_BY_GAIN = {
    TOPK: TOPK_SORTED_BY_GAIN,
    TOPK_OUR_SETTINGS: "topk-our-settings-sorted-by-gain",
    BATCHTOPK: "batchtopk-sorted-by-gain",
}
SORTED_AFTERWARDS = frozenset((*SORTED_BY_ENERGY.values(), *SORTED_BY_GAIN.values()))

# variants with their own names
NO_SWEEPING, NO_WARMUP = "no unit sweeping", "no warm-up of k"  # of the paper's recipe
SWEPT_NO_SWEEPING = "osae-swept, no unit sweeping"
SOON_SPARSE = {  # whose k reaches its target within the burn-in of unit sweeping
    name: f"{name}, k within the burn-in" for name in (OSAE_SWEPT, OSAE_SWEPT_RESTARTING, SWEPT_NO_SWEEPING)
}
WITH_SPLITTING = {
    name: f"{name} + splitting" for name in (TOPK, *MATRYOSHKA, OSAE_PAPER, OSAE)
}  # in `budgets`
MATRYOSHKA_EQUAL = "matryoshka-fixed, equal groups"  # in the Zipfian world
ORDERED, PLAIN = "ordered", "plain"  # linear autoencoders with the nested loss and without it
