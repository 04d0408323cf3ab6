"""The two controllers of a machine: what turns an input and what was read into the hidden vector that steers the heads.

Both are one projection of the input, computed for all steps at once, plus one of what is fed back, added step by step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.registry import Registry

CONTROLLERS: Registry[type[Controller]] = Registry("controller")


class Controller(nn.Module):
    """hidden_t = f(input · x_t + recurrent · fed back); a kind of controller is an f."""

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
        """What drives the steps, (t,b,·), from inputs (b,t,·). An input that is not finite gives NaN: the gates of a
        controller would otherwise make ordinary numbers of an infinite one."""
        spoilt = ~x.detach().isfinite().all(-1, keepdim=True)
        drive: Tensor = self.input(x.masked_fill(spoilt, 0).transpose(0, 1))
        return drive.masked_fill(spoilt.transpose(0, 1), torch.nan)


def trained_unless_empty(tensor: Tensor) -> Tensor:
    """A parameter; but one without entries would only be in the way of optimisers and checkpoints."""
    return nn.Parameter(tensor) if tensor.numel() else nn.Buffer(tensor, persistent=False)


class FeedForwardController(Controller):
    """hidden = tanh(…) of the input and of what was read; it remembers nothing but through the memory."""


class LSTMController(Controller):
    """A long short-term memory of its own. Its four gates, in the order of the rows: output, input, forget, candidate.

    The forget gate starts open (bias 1), as is usual since Gers et al. 2000.
    """

    lstm = True
    gates = 4

    def __init__(self, inputs: int, fed_back: int, hidden: int) -> None:
        super().__init__(inputs, fed_back, hidden)
        with torch.no_grad():
            self.input.bias[2 * hidden : 3 * hidden] = 1.0


CONTROLLERS.add("feed-forward", FeedForwardController)
CONTROLLERS.add("lstm", LSTMController)
