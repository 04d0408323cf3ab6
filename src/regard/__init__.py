"""regard: any attention in one call, exact on every path, linear in memory.

>>> import torch, regard
>>> from regard import masks
>>> q, k, v = torch.randn(3, 2, 8, 100, 64).unbind(0)
>>> regard.attend(q, k, v, mask=masks.causal() & masks.window(15, 0)).shape
torch.Size([2, 8, 100, 64])
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard import biases, decoding, errors, masks, models, nn, normalizers, observation, scores, tasks, training
    from regard.dispatch.attention import attend, explain, summarize, weights
    from regard.dispatch.plan import Plan
    from regard.dispatch.summary import Summary
    from regard.errors import BadType, BadValue, Frozen, RegardError, Unsupported
    from regard.observation.observe import observe
    from regard_workbench.verbs import attack, compare, evaluate, export, train, view

__version__ = "0.1.0"

__all__ = [
    "BadType",
    "BadValue",
    "Frozen",
    "Plan",
    "RegardError",
    "Summary",
    "Unsupported",
    "attack",
    "attend",
    "biases",
    "compare",
    "decoding",
    "errors",
    "evaluate",
    "explain",
    "export",
    "masks",
    "models",
    "nn",
    "normalizers",
    "observation",
    "observe",
    "scores",
    "summarize",
    "tasks",
    "train",
    "training",
    "view",
    "weights",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())

# Exported programs call our operators, so `import regard` registers them. The command line, which imports its own
# package first, answers `--help` without them and without torch.
if "regard_workbench" not in sys.modules:
    import_module("regard.operators")
