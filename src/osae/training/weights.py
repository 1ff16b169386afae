"""The weights of an SAE in training: the parameters of its dictionary, and the resulting matrices."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from osae.dictionary import Dictionary, Matrices
from osae.model import SAE
from osae.ranks import NO_OTHERS, Ranks

BESIDES = ("encoder_bias", "decoder_bias", "threshold")  # parameters that belong to the SAE itself


class Weights:
    """The trained parameters.

    Nothing else writes to the encoder or the decoder of the SAE. If the dictionary stores a matrix directly,
    the matrix is the parameter itself. Otherwise, it is computed after every change of the parameters, and
    its gradient is passed on to them.
    """

    def __init__(
        self, sae: SAE, dictionary: Dictionary, rows: Float[Tensor, "N d"], generator: torch.Generator
    ):
        """Start from the matrices of `sae`; `rows` are the activations that it starts from."""
        self.sae, self.dictionary = sae, dictionary
        device, centred = sae.decoder.device, rows - sae.decoder_bias.detach().to(rows.device)
        constants = dictionary.draw_constants(centred, generator)
        self.constants = {name: tensor.to(device) for name, tensor in constants.items()}
        with torch.no_grad():
            start = dictionary.invert(Matrices(sae.decoder, sae.encoder), self.constants)
        self.parameters = {name: nn.Parameter(tensor.detach().clone()) for name, tensor in start.items()}
        taken = {*self.parameters, *self.constants} & {*BESIDES}
        assert not taken, f"{dictionary} uses names of the SAE: {taken}"
        stored = {id(parameter) for parameter in self.parameters.values()}
        built = self._build()._asdict()
        self.computed = [name for name, matrix in built.items() if id(matrix) not in stored]
        for name, matrix in built.items():
            if name not in self.computed:
                setattr(sae, name, matrix)
        self.refresh()

    def named(self) -> dict[str, nn.Parameter]:
        """Return every parameter of the SAE by name, with those of the dictionary first."""
        return self.parameters | {name: getattr(self.sae, name) for name in BESIDES}

    def per_unit(self) -> list[Tensor]:
        """Return the parameters that have one row per unit."""
        return [parameter for name, parameter in self.named().items() if name != "decoder_bias"]

    def of_atoms(self) -> list[Tensor]:
        """Return the parameters that the decoder depends on."""
        return [self.parameters[name] for name in self.dictionary.atom_parameters]

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the last backward pass, including those of computed matrices."""
        tensors = (*self.named().values(), *(getattr(self.sae, name) for name in self.computed))
        return [tensor.grad for tensor in tensors if tensor.grad is not None]

    def join(self, name: str, tensor: Tensor, ranks: Ranks) -> Tensor:
        """Return the full tensor of a parameter, moment or constant, given this rank's part of it."""
        return ranks.join(tensor) if self.has_units(name, tensor) else tensor

    def cut(self, name: str, tensor: Tensor, mine: slice) -> Tensor:
        """Return the rows of these units from a tensor that `join` returned."""
        return tensor[mine] if self.has_units(name, tensor) else tensor

    def has_units(self, name: str, tensor: Tensor) -> bool:
        """Return whether the tensor has one row per unit; an optimizer's step count does not."""
        return tensor.ndim > 0 and name != "decoder_bias" and name not in self.constants

    def zero_grad(self) -> None:
        """Drop all gradients, including those of computed matrices."""
        for tensor in (*self.named().values(), self.sae.decoder, self.sae.encoder):
            tensor.grad = None

    def pull_back(self, *, project: bool = True, units: Ranks = NO_OTHERS) -> None:
        """Pass the gradients of computed matrices on to the parameters.

        Those of a penalty on the parameters are added; `units` are the ranks among which units are divided.
        With `project`, also project them; leave this to the step if it does so itself.
        """
        grads = {name: getattr(self.sae, name).grad for name in self.computed}
        grads = {name: grad for name, grad in grads.items() if grad is not None}
        if grads:
            with torch.enable_grad():
                built = self._build()._asdict()
            torch.autograd.backward([built[name] for name in grads], list(grads.values()))
        with torch.no_grad():
            self.dictionary.add_gradients_(self.parameters, units)
            if project:
                self.dictionary.project_gradients_(self.parameters)

    @torch.no_grad()
    def constrain(self, *, dictionary: bool = True) -> None:
        """Project the parameters back onto their constraints, after an optimizer step.

        Those of the `dictionary` are projected only if the step has not done so itself.
        """
        if dictionary:
            self.dictionary.constrain_(self.parameters)
        self.sae.threshold.clamp_(min=0)

    @torch.no_grad()
    def refresh(self) -> None:
        """Recompute the matrices after the parameters have changed."""
        if self.computed:
            built = self._build()._asdict()
            for name in self.computed:
                getattr(self.sae, name).copy_(built[name])

    @torch.no_grad()
    def replace(
        self, units: Int[Tensor, "m"], decoder: Float[Tensor, "m d"], encoder: Float[Tensor, "m d"]
    ) -> None:
        """Give some units these atoms and encoders, or the nearest ones that the dictionary allows."""
        rows = self.dictionary.invert(Matrices(decoder, encoder), self.constants)
        for name, tensor in rows.items():
            self.parameters[name][units] = tensor
        self.refresh()

    def state(self) -> dict[str, Tensor]:
        """Return everything that determines the matrices and biases, by name."""
        return {**self.named(), **self.constants}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the output of `state`.

        Tensors are copied in place, because the last bits of a product depend on how its operands are aligned
        in memory.
        """
        for name, tensor in {**self.named(), **self.constants}.items():
            tensor.copy_(state[name])
        self.refresh()

    def _build(self) -> Matrices:
        return self.dictionary.build({**self.parameters, **self.constants})
