"""Modules that write their attention out although they can compute it fused: timm's, and x-transformers' `Attend`.

When weights are asked for, a shallow copy of the module (its twin) runs fused on the stored inputs, and the arguments
of the fused function are captured. With options that the fused path does not support, the twin runs as written out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from regard.observation.capture.edits import Edit, edit_mixed, edit_rows, edited_fused_calls, fused_function
from regard.observation.capture.fingerprints import check_fingerprints, fingerprints_of
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import CLOSE, COARSE, proof_of
from regard.observation.capture.reading import DeferredPairs, Pairs, Reading, WholeMap
from regard.observation.capture.storage import Storage, restored
from regard.observation.capture.torch_calls import ScaledDotProduct

Again = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


class _Caught(Exception):
    """Raised at the fused call: the rest of the module need not run."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self.pairs = pairs


def fused_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pairs:
    """The arguments with which a module calls the fused function."""
    adapter, original = ScaledDotProduct(), torch.nn.functional.scaled_dot_product_attention

    def catch(*given: Any, **named: Any) -> Tensor:
        reading = adapter.reading(CallEvent(original, module, given, named, None, Storage(), False))
        assert isinstance(reading, Pairs)
        raise _Caught(reading)

    try:
        with torch.no_grad(), fused_function(catch):
            _forward(module)(module, *args, **kwargs)
    except _Caught as caught:
        return caught.pairs
    raise RuntimeError(f"{type(module).__name__} made no fused call when it was asked to compute fused.")


def _forward(module: nn.Module) -> Function:
    """The forward of the class: one on the instance (accelerate's hooks) is bound to the module, not to its twin."""
    return type(module).forward


def _name(function: Any) -> str:
    """The name of a function inside partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "")


def _is_random(module: nn.Module) -> bool:
    """Whether a module applies dropout when it is called."""
    return any(
        submodule.training and isinstance(submodule, _DropoutNd) and submodule.p > 0 for submodule in module.modules()
    )


def _last_row(result: Tensor) -> Tensor:
    """The last row of the first example of (b,…,c)."""
    return result.detach()[0].flatten(0, -2)[-1]


@contextlib.contextmanager
def _numbers_of_our_own(device: torch.device, begin: Tensor | None = None) -> Iterator[None]:
    """Draw random numbers from the state `begin`, and restore the program's generators afterwards."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        if begin is not None:
            torch.cuda.set_rng_state(begin, device) if cuda else torch.set_rng_state(begin)
        yield


class FusedTwin(Adapter):
    """A module whose attribute `switch` turns fused attention on, while it is off."""

    kind = "written out"

    def __init__(self, switch: str) -> None:
        self.switch = switch

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not getattr(args[0], self.switch)

    def reading(self, event: CallEvent) -> Reading:
        """Store the inputs; the twin runs on them when weights are asked for."""
        module, *inputs = event.args
        kept_args = [event.keep.argument(argument) for argument in inputs]
        kept_named = {name: event.keep.argument(argument) for name, argument in event.kwargs.items()}
        parameters = list(module.parameters())
        fingerprints, switch = fingerprints_of(parameters), self.switch

        def again(fused: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            check_fingerprints(parameters, fingerprints, f"a parameter of {type(module).__name__}")
            twin = copy.copy(module)  # shares its parameters and submodules
            setattr(twin, switch, fused)
            twin.training = False  # not eval(): its submodules are shared with the module
            self.prepare(twin)
            named = {name: restored(argument) for name, argument in kept_named.items()}
            return twin, tuple(restored(argument) for argument in kept_args), named

        sizes = self.sizes(module, inputs, event.result)
        check = self.check(event, lambda: again(True))
        if self.has_twin(module, event.kwargs):
            return DeferredPairs(lambda: fused_call(*again(True)), sizes, check=check)
        return WholeMap(lambda: self.whole(*again(False), event.before), sizes, check=check)

    def check(self, event: CallEvent, again: Again) -> Callable[[Reading], bool]:
        """For a module that returns more than mixed values: its twin must return the same last row."""
        module, result = event.args[0], event.result
        if not isinstance(result, Tensor) or not result.numel() or _is_random(module):
            return lambda reading: False
        expected = _last_row(result).clone()

        @torch.no_grad()
        def same(reading: Reading) -> bool:
            twin, args, kwargs = again()
            with _numbers_of_our_own(expected.device):
                last_row = _last_row(_forward(twin)(twin, *args, **kwargs))
            bound = CLOSE.get(expected.dtype, COARSE) * expected.abs().amax()
            return bool((last_row - expected).abs().amax() <= bound)

        return same

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        """The twin's fused call is edited: a module that writes attention out returns projected values."""
        module, *inputs = args
        if not self.has_twin(module, kwargs):
            return super().edited(original, args, kwargs, edit)
        twin = copy.copy(module)
        setattr(twin, self.switch, True)
        self.prepare(twin)
        with edited_fused_calls(edit):
            return _forward(twin)(twin, *inputs, **kwargs)

    def prepare(self, twin: nn.Module) -> None:
        """Give a twin the attributes that a module has only if it was built with the switch on."""

    def has_twin(self, module: nn.Module, kwargs: dict[str, Any]) -> bool:
        """Whether the fused path computes the same weights."""
        return True

    def whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any) -> Tensor:
        """The weights of the written-out path, where the fused path differs."""
        raise NotImplementedError

    def sizes(self, module: nn.Module, args: Sequence[Any], result: Any) -> tuple[int, int, int, int]:
        """b, h, q, k of a call."""
        rows = args[0]
        heads: int = module.num_heads  # type: ignore[assignment]
        length = rows.shape[1] if rows.dim() == 3 else rows.shape[1:-1].numel()
        return rows.shape[0], heads, length, length


class XTransformersAttend(FusedTwin):
    """x-transformers' `Attend`, which is called with queries, keys and values."""

    def __init__(self) -> None:
        super().__init__("flash")

    def prepare(self, twin: nn.Module) -> None:
        if not hasattr(twin, "sdp_context_manager"):
            vars(twin)["sdp_context_manager"] = contextlib.nullcontext

    def has_twin(self, module: nn.Module, kwargs: dict[str, Any]) -> bool:
        """Not with options that only the written-out path supports."""
        flags = ("softclamp_logits", "cog_signed", "inverted_attention", "selective", "head_learned_sink")
        modules = ("pre_softmax_talking_heads", "post_softmax_talking_heads", "pre_scale_post_talking_heads", "cope")
        return (
            _name(module.attn_fn) == "softmax"
            and not any(getattr(module, name, False) for name in flags)
            and all(getattr(module, name, None) is None for name in modules)
            and kwargs.get("prev_attn") is None
            and kwargs.get("attn_delta") is None
        )

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The generator state before a normaliser that draws random numbers (Gumbel), or an unknown one."""
        if _name(args[0].attn_fn) in ("softmax", "sigmoid", "one_hot_straight_through", "sparse_topk_attn"):
            return None
        query: Tensor = args[1]
        return torch.cuda.get_rng_state(query.device) if query.is_cuda else torch.get_rng_state()

    def whole(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any) -> Tensor:
        """The weights that values are mixed with: heads may be mixed and scaled after the softmax."""
        with _numbers_of_our_own(args[0].device, before):
            _, intermediates = _forward(module)(module, *args, **kwargs)
        weights: Tensor = intermediates.post_softmax_attn
        if getattr(module, "head_learned_sink", False):
            weights = weights[..., 1:]
        if getattr(module, "post_softmax_talking_heads", None) is not None:
            weights = module.post_softmax_talking_heads(weights)
        if getattr(module, "pre_scale_post_talking_heads", None) is not None:
            weights = weights * module.pre_scale_post_talking_heads(intermediates.qk_similarities)
        mask = args[3] if len(args) > 3 else kwargs.get("mask")
        if mask is None or getattr(module, "add_zero_kv", False):
            return weights
        mask = mask[:, None, None] if mask.dim() == 2 else mask
        return weights.masked_fill(~mask.any(-1, keepdim=True), 0)  # rows that see nothing are zeros

    def check(self, event: CallEvent, again: Again) -> Callable[[Reading], bool]:
        """Here the mixed values are returned; under dropout, check against the weights before dropout."""
        module, query, _, value = event.args[:4]
        output, intermediates = event.result
        if module.training and module.dropout > 0:
            mixers = ("post_softmax_talking_heads", "pre_scale_post_talking_heads", "head_learned_sink")
            row = intermediates.post_softmax_attn
            if row is None or any(getattr(module, name, None) for name in mixers):
                return lambda reading: False
            evidence = row.detach()[:, :, -1].clone()
            bound = CLOSE.get(evidence.dtype, COARSE)
            return lambda reading: (
                (reading.weights(rows=[-1])[:, :, 0] - evidence).abs().amax() <= bound * evidence.abs().amax()
            )
        heads = query.shape[1]
        if 1 < value.shape[1] < heads:  # heads of a group are interleaved here
            value = value.repeat(1, heads // value.shape[1], 1, 1)
        if getattr(module, "add_zero_kv", False):
            value = nn.functional.pad(value, (0, 0, 1, 0))
        proof = proof_of(event.keep, value, output, columns=8)
        if proof is None:
            return lambda reading: False
        return lambda reading: proof.holds(reading.weights(rows=[-1])[0, :, 0])

    def sizes(self, module: nn.Module, args: Sequence[Any], result: Any) -> tuple[int, int, int, int]:
        query, key = args[0], args[1]
        return *query.shape[:3], key.shape[-2] + bool(getattr(module, "add_zero_kv", False))

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        args, kwargs = edit_rows(edit, args, kwargs, first=1)
        output, intermediates = original(*args, **kwargs)
        return edit_mixed(edit, output, 1), intermediates
