"""What `regard.nn.fast_path` asks: which modules and models are taken over, by name, so that none of them is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from regard.implementations import HAS_TRITON
from regard.nn.fast_path import Loss, NarrowCopy
from regard.support.tracing import constant_when_traced
from regard_fast import fused_rows

Taker = Callable[..., Any]

# By the `forward` that a class has or inherits: the function of this package that knows what it computes. That of a
# module returns the same; that of a model what is needed for its loss (`takers.losses`).
TAKERS = {
    "regard_workbench.models.parts.stack.Stack.forward": "takers.stacks.run",
    "regard_workbench.models.parts.embedding.StreamEmbedding.forward": "takers.embeddings.run",
    "torch.nn.modules.rnn.LSTM.forward": "fused_rows.lstm.taken",
    "regard_workbench.models.decoder.Decoder.forward": "takers.losses.reader",
    "regard_workbench.models.dynamic_transformer.DynamicTransformer.forward": "takers.losses.dynamic_transformer",
    "regard_workbench.models.encoder.Encoder.forward": "takers.losses.encoder",
    "regard_workbench.models.transformer.Transformer.forward": "takers.losses.transformer",
}


class SmallModels:
    """`FastPath` for models of few, narrow layers on a GPU."""

    def run(self, module: nn.Module, *arguments: Any, **options: Any) -> Any | None:
        """What a stack, a stream's embedding or an LSTM returns; None where the kernels do not know all of it."""
        if not _may_run(arguments[0]):
            return None
        taker = taker_of(type(module))
        return None if taker is None else taker(module, *arguments, **options)

    def loss(self, model: nn.Module, batch: Any, smoothing: float, seed: Tensor | None) -> Loss | None:
        """The loss of a model whose logits serve nothing else; None where they are needed."""
        if not _may_run(batch.inputs):
            return None
        taker = taker_of(type(model))
        if taker is None:
            return None
        from regard_fast.takers import losses

        return losses.run(taker, model, batch, smoothing, seed)  # type: ignore[arg-type]

    def copies(self, parameters: Sequence[nn.Parameter]) -> list[NarrowCopy | None]:
        """A copy of each matrix in bfloat16, which the kernels read until other code changes the weight."""
        from regard_fast.fused_rows.weight_copies import keep_copy

        return [keep_copy(parameter) if parameter.dim() == 2 else None for parameter in parameters]


def _may_run(tensor: Tensor) -> bool:
    """Whether there may be kernels where this tensor is. Elsewhere nothing more of this package is loaded."""
    return HAS_TRITON and (tensor.is_cuda or fused_rows.on_cpu)


def taker_of(kind: type[nn.Module]) -> Taker | None:
    """The function for a class; None if it is not known."""
    _look_up(kind)
    return _KNOWN[kind]


_KNOWN: dict[type[nn.Module], Taker | None] = {}


@constant_when_traced  # the compiler calls it, imports included, and reads what it has left in `_KNOWN`
def _look_up(kind: type[nn.Module]) -> None:
    if kind in _KNOWN:
        return
    # The compiler reads `_KNOWN` once in a trace, in which other classes may be asked for after this one.
    loaded = [(module, name) for module, _, name in (key.rpartition(".")[0].rpartition(".") for key in TAKERS)]
    for module_type in [
        kind,
        *(getattr(sys.modules[module], name) for module, name in loaded if module in sys.modules),
    ]:
        forward: object = getattr(module_type, "forward", None)
        path = TAKERS.get(f"{getattr(forward, '__module__', '')}.{getattr(forward, '__qualname__', '')}")
        module, _, function = f"regard_fast.{path}".rpartition(".")
        _KNOWN[module_type] = None if path is None else getattr(import_module(module), function)


GUEST = SmallModels()
