"""Table 1 after several lengths of training: methods differ in their objective and in splitting alone."""

from osae.experiments.methods import OSAE_PAPER, TOPK, WITH_SPLITTING
from osae.experiments.worlds.budgets import budget_recipes, run
from osae.experiments.worlds.claims import CLAIMS
from osae.experiments.worlds.options import BudgetOptions
from osae.recipes import Task
from osae.revival import Split


def test_all_methods_have_the_same_rate_and_warm_up_and_each_is_there_with_and_without_splitting():
    recipes = budget_recipes(Task(12, 16, 2, 4000))
    assert len({recipe.lr for recipe in recipes}) == len({recipe.k_warmup for recipe in recipes}) == 1
    for plain, split in zip(recipes[::2], recipes[1::2], strict=True):
        assert split.name == WITH_SPLITTING[plain.name]
        assert (plain.revival, split.revival) == (None, Split(20))
        assert plain.prefix == split.prefix


def test_every_length_has_a_table_and_the_claims_find_their_methods(tmp_path):
    small = {"world_width": 8, "world_units": 10, "world_active": 2, "world_samples": 500}
    result = run(BudgetOptions(out=tmp_path, seeds=2, budgets=(1, 2), jobs=1, **small), lambda *words: None)
    assert [section.x for section in result.sections] == [1.0, 2.0]
    rows = result.sections[0].by_method()
    assert {TOPK, OSAE_PAPER, WITH_SPLITTING[OSAE_PAPER], "topk-sorted-by-gain"} <= set(rows)
    for claim in CLAIMS["budgets"]:
        assert set(claim.methods) <= set(rows)
    assert [(tmp_path / figure.file).stat().st_size > 5000 for figure in result.figures] == [True, True]
    assert rows[TOPK].recipe["revival"] is None
