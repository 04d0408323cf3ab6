"""`flex`: torch's FlexAttention, compiled."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import Unsupported
from regard.implementations.flex import kernel
from regard.implementations.flex.lowering import Lowering, knows
from regard.masks import FULL, PARTIAL, Mask
from regard.masks.algebra import cut
from regard.masks.hidden import visible_keys
from regard.masks.positional import Full
from regard.normalizers import Softmax
from regard.request import Request
from regard.scores.dot import Softcap

name = "flex"
def refuse(request):
    if request.query.device.type=="cpu" and request.needs_grad: return "no backward on CPU"
    return None
def run(request):
    with torch.autocast(request.query.device.type, enabled=False):
        request = request.reduced()
        query, key, value = request.query, request.key, request.value
        mask = Full() if request.mask is None else request.mask
        sizes, device, width = request.sizes, query.device, value.shape[3]
        seen = visible_keys(mask, sizes, device)
        if seen is not None:
            if seen.shape[1] > 1:
                seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
            key, value = key.masked_fill(~seen[..., None], 0), value.masked_fill(~seen[..., None], 0)
        query, key, value = _wide(query), _wide(key), _wide(value)
        low = Lowering(sizes, device)
        capped = isinstance(request.score, Softcap)
        low.number(request.scale / request.score.cap if capped else request.scale)
        if capped: low.number(request.score.cap)
        m = low.mask(mask)
        b = None if request.bias is None else low.bias(request.bias)
        grades = mask.grades(cut(sizes, 128, 128, device))
        blocks = [*_ordered(grades == PARTIAL), *_ordered(grades == FULL)]
        strides, numbers = torch.tensor(low.strides, device=device), torch.tensor(low.numbers, device=device)
        if torch.compiler.is_compiling():
            out = kernel.attention(query, key, value, tuple(blocks), tuple(low.tables), strides, numbers, m, b, capped)
            return out[..., :width], None
        q4=[_dyn(x,0,2) for x in (query,key,value)]
        blocks=tuple([_dyn(x,*[a for a in (0,2,3) if a<x.dim()]) for x in blocks])
        tables=tuple([_dyn(x,0) for x in low.tables])
        sig=(m,b,capped,query.dtype,str(device),query.shape[1],key.shape[1],query.shape[3],value.shape[3],tuple(tuple(s==1 for s in x.shape) for x in (*q4,*blocks,*tables)))
        with torch.fx.experimental._config.patch(use_duck_shape=False):
            out = kernel.compiled(sig)(*q4, blocks, tables, strides, numbers, m, b, capped)
        return out[..., :width], None
def _wide(x): return pad(x, (0, -x.shape[3] % 16)).contiguous()
def _dyn(t,*dims):
    t=t.view(t.shape)
    for d in dims:
        if t.shape[d]>1: torch._dynamo.maybe_mark_dynamic(t,d)
    return t
def _ordered(chosen):
    columns = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32).contiguous()
