"""Modules that write their attention out themselves: those of timm without fused attention, x-transformers' `Attend`.

Both also know a fused way of computing the same. When somebody asks, a twin of the module is run that way on the inputs
that were kept, and what it hands to the fused function is read. Options that have no fused way are run as they are.
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

from regard.observation.capture.fingerprints import check_fingerprints, fingerprints_of
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import CLOSE, COARSE, proof_of
from regard.observation.capture.reading import DeferredPairs, Pairs, Reading, WholeMap
from regard.observation.capture.storage import Storage, restored
from regard.observation.capture.torch_calls import ScaledDotProduct, silenced

Again = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


class _Caught(Exception):
    """The fused call has come: the rest of the module need not run."""

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self.pairs = pairs


def fused_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pairs:
    """What a module that computes by a fused function hands to it."""
    adapter, original = ScaledDotProduct(), torch.nn.functional.scaled_dot_product_attention

    def catch(*given: Any, **named: Any) -> Tensor:
        found = adapter.reading(CallEvent(original, module, given, named, None, Storage(), False))
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


def _name(function: Any) -> str:
    """The name of a function, out of its partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "")


def _is_random(module: nn.Module) -> bool:
    """Whether a module drops something when it is called."""
    return any(part.training and isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules())


def _last_row(result: Tensor) -> Tensor:
    """The last row of the first example of (b,…,c)."""
    return result.detach()[0].flatten(0, -2)[-1]


@contextlib.contextmanager
def _numbers_of_our_own(device: torch.device, begin: Tensor | None = None) -> Iterator[None]:
    """Draw random numbers from `begin` on, and leave those of the program where they are."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        if begin is not None:
            torch.cuda.set_rng_state(begin, device) if cuda else torch.set_rng_state(begin)
        yield


class FusedTwin(Adapter):
    """A module with an attribute that switches fused attention on, while it is off."""

    kind = "written out"

    def __init__(self, switch: str) -> None:
        self.switch = switch

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not getattr(args[0], self.switch)

    def reading(self, event: CallEvent) -> Reading:
        """The inputs are kept; the fused twin of the module runs on them when weights are asked for."""
        module, *given = event.args
        kept_args = [event.keep.argument(part) for part in given]
        kept_named = {name: event.keep.argument(part) for name, part in event.kwargs.items()}
        parameters = list(module.parameters())
        fingerprints, switch = fingerprints_of(parameters), self.switch

        def again(fused: bool) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            check_fingerprints(parameters, fingerprints, f"a parameter of {type(module).__name__}")
            twin = copy.copy(module)  # the same weights, another switch
            setattr(twin, switch, fused)
            twin.training = False  # not eval(): its parts are the module's own
            self.prepare(twin)
            named = {name: restored(part) for name, part in kept_named.items()}
            return twin, tuple(restored(part) for part in kept_args), named

        sizes = self.sizes(module, given, event.result)
        check = self.check(event, lambda: again(True))
        if self.has_twin(module, event.kwargs):
            return DeferredPairs(lambda: fused_call(*again(True)), sizes, check=check)
        return WholeMap(lambda: self.whole(*again(False), event.before), sizes, check=check)

    def check(self, event: CallEvent, again: Again) -> Callable[[Reading], bool]:
        """Of a module that gives back more than the mixture: its twin has to give back the same, in one row."""
        module, result = event.args[0], event.result
        if not isinstance(result, Tensor) or not result.numel() or _is_random(module):
            return lambda reading: False
        expected = _last_row(result).clone()

        @torch.no_grad()
        def same(reading: Reading) -> bool:
            twin, args, kwargs = again()
            with _numbers_of_our_own(expected.device):
                found = _last_row(_forward(twin)(twin, *args, **kwargs))
            bound = CLOSE.get(expected.dtype, COARSE) * expected.abs().amax()
            return bool((found - expected).abs().amax() <= bound)

        return same

    def prepare(self, twin: nn.Module) -> None:
        """Give a twin what a module only has if it was built with the switch on."""

    def has_twin(self, module: nn.Module, kwargs: dict[str, Any]) -> bool:
        """Whether the fused way has the same weights."""
        return True

    def whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any) -> Tensor:
        """The module's own weights, where the fused way has others."""
        raise NotImplementedError

    def sizes(self, module: nn.Module, args: Sequence[Any], result: Any) -> tuple[int, int, int, int]:
        """b, h, q, k of a call."""
        rows = args[0]
        heads: int = module.num_heads  # type: ignore[assignment]
        length = rows.shape[1] if rows.dim() == 3 else rows.shape[1:-1].numel()
        return rows.shape[0], heads, length, length


class Attend(FusedTwin):
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
        return (
            _name(module.attn_fn) == "softmax"
            and not any(getattr(module, name, False) for name in flags)
            and all(getattr(module, name, None) is None for name in parts)
            and kwargs.get("prev_attn") is None
            and kwargs.get("attn_delta") is None
        )

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Where the random numbers of a normaliser begin that draws some (Gumbel), or of which nothing is known."""
        if _name(args[0].attn_fn) in ("softmax", "sigmoid", "one_hot_straight_through", "sparse_topk_attn"):
            return None
        query: Tensor = args[1]
        return torch.cuda.get_rng_state(query.device) if query.is_cuda else torch.get_rng_state()

    def whole(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any) -> Tensor:
        """The weights the values are mixed with: after the softmax, heads may be mixed and scaled."""
        with _numbers_of_our_own(args[0].device, before):
            _, rest = _forward(module)(module, *args, **kwargs)
        weights: Tensor = rest.post_softmax_attn
        if getattr(module, "head_learned_sink", False):
            weights = weights[..., 1:]
        if getattr(module, "post_softmax_talking_heads", None) is not None:
            weights = module.post_softmax_talking_heads(weights)
        if getattr(module, "pre_scale_post_talking_heads", None) is not None:
            weights = weights * module.pre_scale_post_talking_heads(rest.qk_similarities)
        mask = args[3] if len(args) > 3 else kwargs.get("mask")
        if mask is None or getattr(module, "add_zero_kv", False):
            return weights
        mask = mask[:, None, None] if mask.dim() == 2 else mask
        return weights.masked_fill(~mask.any(-1, keepdim=True), 0)  # rows that see nothing are zeros

    def check(self, event: CallEvent, again: Again) -> Callable[[Reading], bool]:
        """Here the mixture itself comes back; under dropout, the weights before it."""
        module, query, _, value = event.args[:4]
        output, rest = event.result
        if module.training and module.dropout > 0:
            mixers = ("post_softmax_talking_heads", "pre_scale_post_talking_heads", "head_learned_sink")
            row = rest.post_softmax_attn
            if row is None or any(getattr(module, name, None) for name in mixers):
                return lambda reading: False
            evidence = row.detach()[:, :, -1].clone()
            bound = CLOSE.get(evidence.dtype, COARSE)
            return lambda reading: (
                (reading.weights(rows=[-1])[:, :, 0] - evidence).abs().amax() <= bound * evidence.abs().amax()
            )
        heads = query.shape[1]
        if 1 < value.shape[1] < heads:  # here the heads of a group are not neighbours
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

    def silent(
        self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]
    ) -> Any:
        output, rest = original(*args, **kwargs)
        return silenced(output, heads, 1), rest
