"""The slow definitions that the fast code is held to, written as the formulas are."""

import itertools

import torch
from torch import Tensor

# --- metrics --------------------------------------------------------------------------------------


def best_total_by_every_matching(similarity: Tensor) -> float:
    """The greatest total over all one-to-one matchings of the smaller side, by trying every one."""
    if similarity.shape[0] > similarity.shape[1]:
        similarity = similarity.T
    rows = range(similarity.shape[0])
    return max(
        sum(float(similarity[i, j]) for i, j in zip(rows, columns, strict=True))
        for columns in itertools.permutations(range(similarity.shape[1]), len(rows))
    )


def fifr_by_its_formula(true_decoder: Tensor, true_code: Tensor, decoder: Tensor, code: Tensor) -> float:
    """The FIFR error of dense codes with as many units as features, component by component."""
    units = true_decoder / true_decoder.norm(dim=1, keepdim=True)
    learned = decoder / decoder.norm(dim=1, keepdim=True)
    similarity = (units @ learned.T).abs()
    features = range(len(true_decoder))
    partner = max(
        itertools.permutations(features), key=lambda p: sum(float(similarity[j, p[j]]) for j in features)
    )
    ratios = []
    for j in features:
        active = true_code[:, j] != 0
        if not bool(active.any()):
            continue
        truth = true_code[active, j, None] * true_decoder[j]
        guess = code[active, partner[j], None] * decoder[partner[j]]
        error = (truth - guess).square().sum(1).mean()
        ratios.append(error / (truth.square().sum(1).mean() + 1e-12))
    return float(torch.stack(ratios).mean())


def energy_by_its_formula(code: Tensor, decoder: Tensor, x: Tensor) -> Tensor:
    """How much each unit alone lowers the mean squared error of x, from a dense code."""
    alone = [(x - code[:, j, None] * decoder[j]).square().sum(1).mean() for j in range(len(decoder))]
    return x.square().sum(1).mean() - torch.stack(alone)


def greedy_order_by_trying_every_unit(code: Tensor, decoder: Tensor, x: Tensor) -> list[int]:
    """The greedy order of units, computing the error of every possible next prefix."""
    residual, left, order = x.clone(), list(range(len(decoder))), []
    while left:
        losses = [float((residual - code[:, j, None] * decoder[j]).square().sum()) for j in left]
        order.append(left.pop(losses.index(min(losses))))
        residual = residual - code[:, order[-1], None] * decoder[order[-1]]
    return order
