"""Modules that write their attention out themselves: those of timm without fused attention, x-transformers' `Attend`.

Both also know a fused way of computing the same. When somebody asks, a twin of the module is run that way on the inputs
that were kept, and what it hands to the fused function is read. Options that have no fused way are run as they are.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.capture.interception import Adapter, Function, Scene
from regard.observation.capture.keeping import Keeper, given_again
from regard.observation.capture.marks import check_marks, marks_of
from regard.observation.capture.reading import Later, Pairs, Reading, Whole
from regard.observation.capture.torch_calls import ScaledDotProduct, silenced


class _Caught(Exception):
    """The fused call has come: the rest of the module need not run."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self.pairs = pairs


def fused_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pairs:
    """What a module that computes by a fused function hands to it."""
    adapter, original = ScaledDotProduct(), torch.nn.functional.scaled_dot_product_attention

    def catch(*given: Any, **named: Any) -> Tensor:
        found = adapter.reading(Scene(original, module, given, named, None, Keeper(), False))
        assert isinstance(found, Pairs)
        raise _Caught(found)

    torch.nn.functional.scaled_dot_product_attention = catch
    try:
        with torch.no_grad():
            _forward(module)(module, *args, **kwargs)
    except _Caught as caught:
        return caught.pairs
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    raise RuntimeError(f"{type(module).__name__} made no fused call when it was asked to compute fused.")


def _forward(module: nn.Module) -> Function:
    """The forward of a class: one that an instance holds (hooks of accelerate) is bound to the module, not its twin."""
    return type(module).forward


class Replayed(Adapter):
    """A module with an attribute that switches fused attention on, while it is off."""

    kind = "written out"

    def __init__(self, switch: str) -> None:
        self.switch = switch

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not getattr(args[0], self.switch)

    def reading(self, scene: Scene) -> Reading:
        """The inputs are kept; the fused twin of the module runs on them when weights are asked for."""
        module, *given = scene.args
        kept_args = [scene.keep.argument(part) for part in given]
        kept_named = {name: scene.keep.argument(part) for name, part in scene.kwargs.items()}
        parameters = list(module.parameters())
        marks, switch = marks_of(parameters), self.switch

        def again(fused: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            check_marks(parameters, marks, f"a parameter of {type(module).__name__}")
            twin = copy.copy(module)  # the same weights, another switch
            setattr(twin, switch, fused)
            twin.training = False  # not eval(): its parts are the module's own
            self.prepare(twin)
            named = {name: given_again(part) for name, part in kept_named.items()}
            return twin, tuple(given_again(part) for part in kept_args), named

        sizes = self.sizes(module, given, scene.result)
        if self.has_twin(module, scene.kwargs):
            return Later(lambda: fused_call(*again(True)), sizes)
        return Whole(lambda: self.whole(*again(False)), sizes)

    def prepare(self, twin: nn.Module) -> None:
        """Give a twin what a module only has if it was built with the switch on."""

    def has_twin(self, module: nn.Module, kwargs: dict[str, Any]) -> bool:
        """Whether the fused way has the same weights."""
        return True

    def whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The module's own weights, where the fused way has others."""
        raise NotImplementedError

    def sizes(self, module: nn.Module, args: Sequence[Any], result: Any) -> tuple[int, int, int, int]:
        """b, h, q, k of a call."""
        rows = args[0]
        heads: int = module.num_heads  # type: ignore[assignment]
        length = rows.shape[1] if rows.dim() == 3 else rows.shape[1:-1].numel()
        return rows.shape[0], heads, length, length


class Attend(Replayed):
    """x-transformers' `Attend`, which is handed queries, keys and values."""

    def __init__(self) -> None:
        super().__init__("flash")

    def prepare(self, twin: nn.Module) -> None:
        if not hasattr(twin, "sdp_context_manager"):
            vars(twin)["sdp_context_manager"] = contextlib.nullcontext

    def has_twin(self, module: nn.Module, kwargs: dict[str, Any]) -> bool:
        """Not with options that only the written-out way knows."""
        flags = ("softclamp_logits", "cog_signed", "inverted_attention", "selective", "head_learned_sink")
        parts = (
            "pre_softmax_talking_heads",
            "post_softmax_talking_heads",
            "pre_scale_post_talking_heads",
            "cope",
        )
        normaliser: Any = module.attn_fn
        while isinstance(normaliser, functools.partial):
            normaliser = normaliser.func
        return (
            getattr(normaliser, "__name__", "") == "softmax"
            and not any(getattr(module, name, False) for name in flags)
            and all(getattr(module, name, None) is None for name in parts)
            and kwargs.get("prev_attn") is None
            and kwargs.get("attn_delta") is None
        )

    def whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        _, rest = _forward(module)(module, *args, **kwargs)
        weights: Tensor = rest.post_softmax_attn
        return weights[..., 1:] if getattr(module, "head_learned_sink", False) else weights

    def sizes(self, module: nn.Module, args: Sequence[Any], result: Any) -> tuple[int, int, int, int]:
        query, key = args[0], args[1]
        return *query.shape[:3], key.shape[-2] + bool(getattr(module, "add_zero_kv", False))

    def silent(
        self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]
    ) -> Any:
        output, rest = original(*args, **kwargs)
        return silenced(output, heads, 1), rest
