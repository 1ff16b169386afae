"""An optimizer step of unit atoms in one pass over memory, on a GPU that has triton.

Projection, Adam and normalisation one after the other read and write a matrix 19 times; together, 7 times.
"""

import importlib.util

import torch
from torch import Tensor, nn

from osae.dictionary import UnitAtoms
from osae.recipes import Recipe


def applies(recipe: Recipe, device: torch.device) -> bool:
    """Return whether atoms can be updated in one pass.

    Clipping, for example, needs projected gradients first.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None or recipe.adam.clip is not None:
        return False
    from osae.kernels import gpu

    return isinstance(recipe.dictionary, UnitAtoms) and recipe.sae.width <= gpu.WIDEST


@torch.no_grad()
def step(optimizer: torch.optim.Adam, atoms: nn.Parameter, spoiled: Tensor) -> None:
    """Take the optimizer step, with atoms on the sphere; do nothing if `spoiled` is not 0.

    The optimizer also holds the state of the atoms, so checkpoints are the same either way.
    """
    from osae.kernels import gpu

    grads, atoms.grad = atoms.grad, None
    optimizer.step()
    atoms.grad = grads
    if grads is None:
        return
    state, group = optimizer.state[atoms], optimizer.param_groups[0]
    if not state:
        state["step"] = torch.zeros((), device=atoms.device)
        state |= {name: torch.zeros_like(atoms) for name in ("exp_avg", "exp_avg_sq")}
    state["step"] += 1 - spoiled
    beta1, beta2 = group["betas"]
    adam = gpu.AdamStep(group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    gpu.step_atoms(atoms, grads.contiguous(), mean, square, state["step"], spoiled, adam)
