"""The two controllers of a machine, which compute the hidden vector that controls the heads from input and reads.

Both add a projection of the input, computed for all steps at once, to a projection of the fed-back vector of each step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.registry import Registry

CONTROLLERS: Registry[type[Controller]] = Registry("controller")


class Controller(nn.Module):
    """hidden_t = f(input · x_t + recurrent · fed-back vector); subclasses differ in f."""

    lstm = False
    gates = 1
    recurrent: Tensor

    def __init__(self, inputs: int, fed_back: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, self.gates * hidden)
        self.recurrent = trained_unless_empty(torch.empty(self.gates * hidden, fed_back))
        reach = 1 / math.sqrt(hidden)
        for weight in (self.input.weight, self.input.bias, self.recurrent):
            nn.init.uniform_(weight, -reach, reach)

    def forward(self, x: Tensor) -> Tensor:
        """Project inputs (b,t,·) for all steps, (t,b,·). Non-finite inputs give NaN, because the gates would map
        infinities to finite numbers."""
        nonfinite = ~x.detach().isfinite().all(-1, keepdim=True)
        drive: Tensor = self.input(x.masked_fill(nonfinite, 0).transpose(0, 1))
        return drive.masked_fill(nonfinite.transpose(0, 1), torch.nan)


def trained_unless_empty(tensor: Tensor) -> Tensor:
    """Return a parameter, or a buffer if it is empty, which optimisers and checkpoints need not handle."""
    return nn.Parameter(tensor) if tensor.numel() else nn.Buffer(tensor, persistent=False)


class FeedForwardController(Controller):
    """hidden = tanh(…) of the input and the reads; it has no state besides the memory."""


class LSTMController(Controller):
    """A long short-term memory. Its four gates, in the order of the rows: output, input, forget, candidate.

    The forget gate starts open (bias 1), as in Gers et al. 2000.
    """

    lstm = True
    gates = 4

    def __init__(self, inputs: int, fed_back: int, hidden: int) -> None:
        super().__init__(inputs, fed_back, hidden)
        with torch.no_grad():
            self.input.bias[2 * hidden : 3 * hidden] = 1.0


CONTROLLERS.add("feed-forward", FeedForwardController)
CONTROLLERS.add("lstm", LSTMController)
