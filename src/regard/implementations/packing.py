"""A request as the arguments of an operator, which takes strings and tensors but no objects.

Values travel as a spec (a string) and a flat list of tensors. When a backward pass is itself being recorded, for second
derivatives, an operator differentiates the reference instead.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from torch import Tensor

from regard.biases import Bias
from regard.core.differentiate import apart, gradients
from regard.core.request import Request
from regard.core.value import rebuild
from regard.implementations import reference
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.scores import Score


def pack(request: Request) -> tuple[list[Tensor], str]:
    """The values of a request as the operator takes them."""
    values = (request.score, request.mask, request.bias, request.normalizer)
    tensors = [tensor for value in values if value is not None for tensor in value.tensors]
    return tensors, "[" + ",".join([value.spec if value is not None else "null" for value in values]) + "]"


@lru_cache(maxsize=1024)
def _specs(spec: str) -> tuple[str | None, ...]:
    return tuple(None if part is None else json.dumps(part) for part in json.loads(spec))


def unpack(spec: str, tensors: list[Tensor]) -> tuple[Score, Mask | None, Bias | None, Normalizer]:
    """The values that `pack` took apart."""
    remaining = iter(tensors)
    values: Any = [None if part is None else rebuild(part, remaining) for part in _specs(spec)]
    return tuple(values)


def recorded(
    inputs: list[Any], seed: Tensor | None, spec: str, scale: float, dropout: float, grad: Tensor,
    grad_logsumexp: Tensor | None,
) -> list[Tensor | None]:  # fmt: skip
    """The same gradient with a graph of its own, through the reference."""
    views: list[Any] = apart(inputs)
    query, key, value, sink, *tensors = views
    score, mask, bias, normalizer = unpack(spec, tensors)
    wanted = grad_logsumexp is not None
    request = Request(query, key, value, score, mask, bias, normalizer, scale, dropout, sink, wanted)
    output, logsumexp = reference.compute(request, seed)
    pairs = [(output, grad)] if logsumexp is None else [(output, grad), (logsumexp, grad_logsumexp)]
    return gradients(pairs, views, again=True)
