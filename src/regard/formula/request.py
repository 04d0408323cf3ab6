"""A request: the arguments of a call, checked and in one form.

Queries, keys and values have four axes, names are replaced by values, tensors given as masks or biases by dense
values, and under autocast everything is cast as torch's own attention casts it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard import biases, normalizers, scores
from regard.biases import Bias
from regard.errors import BadType, BadValue
from regard.formula.call import Call
from regard.masks import Mask
from regard.masks.from_tensors import dense_mask
from regard.normalizers import Normalizer
from regard.registry import call_meant
from regard.scores import Score
from regard.scores.base import spread_heads
from regard.support.arguments import dense_tensor, described, finite_number, flag, float_tensor
from regard.support.autocast import autocast_dtype, autocasts
from regard.values.grid import Sizes, broadcasts
from regard.values.value import Value

FEW_QUERIES = 16  # that are decoded: as many as one tile of the kernel for it holds


@dataclass(slots=True)
class Request:
    """One attention to compute."""

    query: Tensor  # (b,h,q,d)
    key: Tensor  # (b,g,k,d)
    value: Tensor  # (b,g,k,v)
    score: Score
    mask: Mask | None
    bias: Bias | None
    normalizer: Normalizer
    scale: float  # multiplies the score
    dropout: float
    sink: Tensor | None  # (h,)
    want_logsumexp: bool

    @property
    def sizes(self) -> Sizes:
        """b, h, q, k."""
        return (self.query.shape[0], self.query.shape[1], self.query.shape[2], self.key.shape[2])

    @property
    def needs_grad(self) -> bool:
        """Whether any input requires a gradient."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.inputs())

    @property
    def forward_mode(self) -> bool:
        """Whether forward-mode differentiation (jvp) is active, which only plain torch operations support."""
        return forward_ad._current_level >= 0

    def inputs(self) -> list[Tensor]:
        """Every tensor of the request."""
        tensors = [self.query, self.key, self.value, *self.value_tensors()]
        return tensors if self.sink is None else [*tensors, self.sink]

    def value_tensors(self) -> list[Tensor]:
        """The tensors of score, mask, bias and normaliser, in this order."""
        tensors: list[Tensor] = []
        for value in (self.score, self.mask, self.bias, self.normalizer):
            if value is not None and value.tensors:
                tensors.extend(value.tensors)
        return tensors

    def widened(self) -> Request:
        """The same request in the accumulation dtype, if its score transforms rows: no rounding in between."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        if not self.score.transforms or wide == self.query.dtype:
            return self
        return replace(self, query=self.query.to(wide), key=self.key.to(wide), value=self.value.to(wide))

    @property
    def leaves_range(self) -> bool:
        """Whether transformed rows may overflow their dtype: float16 ends at 65504."""
        return self.query.dtype == torch.float16 and self.score.transforms

    def for_kernels(self) -> Request:
        """`reduced`, for kernels that take rows in their own dtype; in float32 where rows may overflow it."""
        return (self.widened() if self.leaves_range else self).reduced()

    def reduced(self) -> Request:
        """The same request after the row-wise part of its score: what remains is a score of pairs."""
        score, query, key = self.score.reduce(self.query, self.key, guarded=self.mask is not None)
        value = self.value if key.shape[1] == self.value.shape[1] else spread_heads(self.value, key.shape[1])
        return replace(self, query=query, key=key, value=value, score=score)


def build(call: Call, check: bool = True) -> Request:
    """The request that a call makes. `check=False`: a call of the same signature was checked before.

    What is not part of a signature (numbers, contents of tensors) is always checked.
    """
    query, key, value = call.query, call.key, call.value
    mask, bias, dropout = call.mask, call.bias, call.dropout
    if check:
        _check_tensors(query, key, value)
    scale = None if call.scale is None else finite_number("scale", call.scale)
    if check:
        _check_kinds(mask, bias)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)):
        raise BadType(f"dropout: expected a probability from 0 to 1, got {described(dropout)}.")
    if not 0 <= dropout <= 1:
        raise BadValue(f"dropout: expected a probability from 0 to 1, got {dropout}.")
    score, normalizer = scores.named(call.score), normalizers.named(call.normalize)
    single = query.dim() == 3
    if isinstance(mask, Tensor):
        mask = _mask_value(mask, query, key)
    elif isinstance(mask, Mask) and single:
        mask = mask.single_head()
    if isinstance(bias, Tensor):
        bias = biases.dense(bias[:, None] if single and bias.dim() == 3 else bias)
    elif isinstance(bias, Bias) and single:
        bias = bias.single_head()
    if single:
        query, key, value = query[:, None], key[:, None], value[:, None]
    if autocasts(query.device):
        query, key, value = (rows.to(autocast_dtype(rows)) for rows in (query, key, value))
        if isinstance(bias, biases.DenseBias):
            bias = biases.DenseBias(bias.tensor.to(autocast_dtype(bias.tensor)))
    sink = call.sink
    if isinstance(sink, Tensor):
        sink = float_tensor("sink", sink).contiguous()  # kernels read it as one row
    request = Request(
        query,
        key,
        value,
        score,
        mask,
        bias,
        normalizer,
        score.factor(scale, query.shape[3]),
        float(dropout),
        sink,
        flag("return_logsumexp", call.return_logsumexp),
    )
    if check:
        _check_values(request)
    if mask is not None:
        mask.check_contents(request.sizes)
    return request


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        float_tensor(name, tensor)
        if tensor.dim() not in (3, 4):
            raise BadValue(
                f"{name}: expected (b,h,length,dim), or (b,length,dim) for one head, got shape {tuple(tensor.shape)}. "
                f"A single sequence is {name}[None]."
            )
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dim() != query.dim():
            raise BadValue(f"{name}: expected as many axes as the query, got {shapes}.")
        if autocast_dtype(tensor) != autocast_dtype(query):
            has_double = torch.float64 in (tensor.dtype, query.dtype)
            hint = "; torch.autocast leaves float64 as it is" if has_double else ", or run under torch.autocast"
            raise BadType(
                f"{name}: expected the query's dtype {query.dtype}, got {tensor.dtype}. "
                f"Cast one of them with .to(){hint}."
            )
        if tensor.device != query.device:
            raise BadValue(
                f"{name}: expected the query's device {query.device}, got {tensor.device}. Move it with .to()."
            )
        if tensor.shape[0] != query.shape[0]:
            raise BadValue(f"{name}: the batch must equal the query's, got {shapes}. Expand it with .expand() first.")
    if key.shape[-1] != query.shape[-1]:
        raise BadValue(f"key: its last axis must equal the query's, got {shapes}.")
    if query.shape[-1] == 0:
        raise BadValue(f"query: the last axis (d) must not be empty, got {shapes}.")
    if key.shape[-2] != value.shape[-2]:
        raise BadValue(f"value: expected one value for each key, got {shapes}.")
    if query.dim() == 4:
        heads, groups = query.shape[1], key.shape[1]
        if value.shape[1] != groups:
            raise BadValue(f"value: expected as many heads as the key, got {shapes}.")
        if heads != groups and (groups == 0 or heads % groups):
            raise BadValue(
                f"key: the query's {heads} heads must be a multiple of the key's {groups}, got {shapes}. Each key head "
                f"serves heads/groups consecutive query heads."
            )


def _check_kinds(mask: object, bias: object) -> None:
    if not (mask is None or isinstance(mask, (Mask, Tensor))):
        hint = "Numbers to add to the scores go to bias=."
        hint = hint if isinstance(mask, Bias) else call_meant(mask, "regard.masks")
        raise BadType(f"mask: expected a Mask or a bool tensor, got {described(mask)}. {hint}")
    if not (bias is None or isinstance(bias, Bias) or (isinstance(bias, Tensor) and bias.is_floating_point())):
        hint = "What may be attended to goes to mask=."
        hint = hint if isinstance(bias, (Mask, Tensor)) else call_meant(bias, "regard.biases")
        raise BadType(f"bias: expected a Bias or a floating-point tensor, got {described(bias)}. {hint}")


def _mask_value(mask: Tensor, query: Tensor, key: Tensor) -> Mask:
    """A bool tensor as a mask, after checks against accidental broadcasting."""
    if mask.dtype != torch.bool:
        raise BadType(
            f"mask: expected a Mask or a bool tensor (True = may attend), got {described(mask)}. "
            f"Numbers to add to the scores go to bias=; a 0/1 mask becomes bool with mask.bool()."
        )
    dense_tensor("mask", mask)
    shape, target = tuple(mask.shape), (*query.shape[:-1], key.shape[-2])  # (b,q,k) or (b,h,q,k)
    letters = "b,q,k" if query.dim() == 3 else "b,h,q,k"
    if not broadcasts(shape, target):
        hint = ""
        if shape == (query.shape[0], key.shape[-2]):
            hint = " It looks like (b,k), which tells real keys from padding: pass masks.padding(mask) instead."
        raise BadValue(f"mask: a tensor of shape {shape} does not broadcast to ({letters}) = {target}.{hint}")
    if query.dim() == 3 and mask.dim() == 3:
        mask = mask[:, None]
    return dense_mask(mask)


def _check_values(request: Request) -> None:
    sizes, device = request.sizes, request.query.device
    named: dict[str, Value | None] = {"score": request.score, "mask": request.mask, "bias": request.bias}
    for name, value in named.items():
        for tensor in value.tensors if value is not None else ():
            if tensor.device != device:
                raise BadValue(
                    f"{name}: {value!r} holds a tensor on {tensor.device}, but the query is on {device}. "
                    f"Move it with {name}.to({str(device)!r})."
                )
    if isinstance(request.bias, biases.DenseBias) and request.bias.tensor.dtype != request.query.dtype:
        raise BadType(
            f"bias: expected the query's dtype {request.query.dtype}, got {request.bias.tensor.dtype}. "
            f"Cast it with .to()."
        )
    request.score.check(sizes[1], request.query.shape[3])
    if request.mask is not None:
        request.mask.check(sizes)
    if request.bias is not None:
        request.bias.check(sizes)
    if request.sink is not None:
        float_tensor("sink", request.sink)
        if tuple(request.sink.shape) != (sizes[1],):
            raise BadValue(
                f"sink: expected one logit for each query head, ({sizes[1]},), got {tuple(request.sink.shape)}."
            )
        if request.sink.device != device:
            raise BadValue(f"sink: expected the query's device {device}, got {request.sink.device}.")
