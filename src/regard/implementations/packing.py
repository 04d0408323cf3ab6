"""A request as the arguments of a torch operator, which takes tensors, numbers and strings but no objects.

Scores, masks, biases and normalisers travel as a spec (a string) and a flat list of tensors. When a backward pass is
itself being recorded, for second derivatives, an operator differentiates the reference instead.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from torch import Tensor

from regard.biases import Bias
from regard.formula.request import Request
from regard.implementations import reference
from regard.masks import Mask
from regard.normalizers import Normalizer
from regard.scores import Score
from regard.support.differentiate import fresh_views, gradients
from regard.values.value import Value, rebuild

Values = tuple[Score, Mask | None, Bias | None, Normalizer]
Outline = tuple[Value | str | None, ...]

# The arguments of an operator that computes attention, as torch.library declares them.
SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor? sink, Tensor? seed, Tensor[] tensors, str spec, float scale, "
    "float dropout"
)


def pack(request: Request) -> tuple[list[Tensor], str]:
    """The `tensors` and the `spec` of a request."""
    spec = spec_of(request.score, request.mask, request.bias, request.normalizer)
    return request.value_tensors(), spec


def spec_of(*values: Value | str | None) -> str:
    """The score, the mask, the bias and the normaliser of a request, or their specs, as one text without tensors."""
    specs = [value if isinstance(value, str) else "null" if value is None else value.spec for value in values]
    return "[" + ",".join(specs) + "]"


@lru_cache(maxsize=1024)
def _specs(spec: str) -> tuple[str | None, ...]:
    return tuple(None if spec_of_value is None else json.dumps(spec_of_value) for spec_of_value in json.loads(spec))


def unpack_values(spec: str, tensors: list[Tensor]) -> Values:
    """The values that `pack` turned into `spec` and `tensors`."""
    return filled(_specs(spec), tensors)


def outline(request: Request) -> Outline:
    """The values of a request without their tensors: a spec in place of a value that holds some."""
    values = (request.score, request.mask, request.bias, request.normalizer)
    return tuple([value.spec if value is not None and value.tensors else value for value in values])


def filled(outline: Outline, tensors: list[Tensor]) -> Values:
    """The values of an outline with these tensors."""
    remaining = iter(tensors)
    values: Any = [rebuild(template, remaining) if isinstance(template, str) else template for template in outline]
    return tuple(values)


def unpack(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sink: Tensor | None,
    tensors: list[Tensor],
    spec: str,
    scale: float,
    dropout: float = 0.0,
    want_logsumexp: bool = False,
) -> Request:
    """The request whose parts an operator was given."""
    score, mask, bias, normalizer = unpack_values(spec, tensors)
    return Request(query, key, value, score, mask, bias, normalizer, scale, dropout, sink, want_logsumexp)


def recorded_backward(
    inputs: list[Any],
    seed: Tensor | None,
    spec: str,
    scale: float,
    dropout: float,
    grad: Tensor,
    grad_logsumexp: Tensor | None,
) -> list[Tensor | None]:
    """The gradient of each input (query, key, value, sink, tensors) with a graph of its own, through the reference."""
    views: list[Any] = fresh_views(inputs)
    query, key, value, sink, *tensors = views
    request = unpack(query, key, value, sink, tensors, spec, scale, dropout, grad_logsumexp is not None)
    output, logsumexp = reference.compute(request, seed)
    pairs = [(output, grad)] if logsumexp is None else [(output, grad), (logsumexp, grad_logsumexp)]
    return gradients(pairs, views, again=True)
