"""Calls of `tiled` that repeat, on a CPU: straight from the arguments to the strips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.formula.call import Repeated
from regard.formula.dropout import draw_seed
from regard.formula.request import Request
from regard.implementations.tiled import banded, passes, recorded
from regard.implementations.tiled.form import FormKey, kept_form, key_of
from regard.masks.from_tensors import dense_mask
from regard.masks.positional import CausalMask
from regard.values.grid import Sizes


@dataclass(slots=True)
class _Repeating:
    """How calls with the signature of an earlier one run."""

    pattern: Request  # without queries, keys and values, and without a mask that holds tensors: a call brings them
    sizes: Sizes
    mask_varies: bool
    by_length: bool  # torch's kernels may take the mask for another number of keys
    trains: bool
    form: FormKey | None  # where strips compute without being recorded

    def run(self, query: Tensor, key: Tensor, value: Tensor, given: Mapping[str, Any]) -> Any:
        mask, sizes, pattern = self.pattern.mask, self.sizes, self.pattern
        if self.mask_varies:
            mask = given["mask"]
            mask = dense_mask(mask) if isinstance(mask, Tensor) else mask
            for tensor in mask.tensors:
                if type(tensor) is not Tensor:
                    return None
            mask.check_contents(sizes)
        same_length = key.shape[2] == sizes[3]
        if not same_length and mask is not None:  # one query, whose signature holds no number of keys
            if self.by_length:
                return None
            sizes = (*sizes[:3], key.shape[2])
            mask.check(sizes)
            mask.check_contents(sizes)
        request = replace(pattern, query=query, key=key, value=value, mask=mask)
        seed = draw_seed(query.device) if pattern.dropout > 0 else None
        if self.trains:
            output, logsumexp = recorded.attend(request, seed)
        elif self.form is not None and same_length:
            output, logsumexp = passes.by_strips(request, seed, kept_form(self.form))
        else:
            output, logsumexp = passes.forward(request, seed)
        return (output, logsumexp) if pattern.want_logsumexp else output


def bind(request: Request) -> Repeated | None:
    """How to run calls with the signature of this request again; None where they need one."""
    if not request.query.is_cpu or request.score.transforms:
        return None
    mask, nothing = request.mask, torch.empty(0)
    varies = mask is not None and bool(mask.tensors)
    score = request.score.reduce(request.query, request.key, guarded=mask is not None)[0]
    pattern = replace(request, query=nothing, key=nothing, value=nothing, score=score, mask=None if varies else mask)
    by_length = mask is not None and (mask.by_key or isinstance(mask, CausalMask))
    by_bands = banded.bands_of(request) is not None
    form = None if by_bands else key_of(request, request.dropout > 0)
    return _Repeating(pattern, request.sizes, varies, by_length, request.needs_grad, form).run
