"""Run in its own process: extra peak memory of training mechanisms at growing lengths, printed as JSON.

python -m tests.nn.contracts.memory_probe NAME,NAME… LENGTH…
"""

import json
import sys
import traceback

import torch

from tests.contracts.memory_probe import peak
from tests.nn.contracts.layers import Case

CONTROL = "control"  # plain attention, which stores its weights for the backward pass


def training(name):
    """A training step of a mechanism on one sequence; of the (query, key, value) of `peak` it uses the query."""
    if name == CONTROL:

        def quadratic(query, _key, _value):
            rows = query[0].requires_grad_()
            ((rows @ rows.mT).softmax(-1) @ rows).sum().backward()

        return quadratic
    case = Case(name, {"dim": 4, "num_heads": 1})
    layer = case.build(dtype=torch.float32).train()

    def call(query, _key, _value):
        out = layer(query[0].requires_grad_())
        out.backward(torch.ones_like(out))

    return call


def measured(name, lengths):
    """Bytes by length, or the error message."""
    try:
        call = training(name)
        peak(call, 257, dim=4)  # warm up
        return {n: peak(call, n, dim=4) for n in lengths}
    except Exception:
        return traceback.format_exc(limit=-2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: measured(name, [int(n) for n in sys.argv[2:]]) for name in sys.argv[1].split(",")}))
