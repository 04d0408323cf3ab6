"""Where an attack spends its budget: at the positions that are attended to most, at random ones, or by the gradient."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from regard.observation.analysis.sites import blocks
from regard.observation.capture.storage import Storage
from regard.observation.observer import Observer
from regard.observation.seen import Seen, Site
from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Patches, StreamSpec

ATTENTION, RANDOM, GRADIENT = "attention", "random", "gradient"
CHOICES = (ATTENTION, RANDOM, GRADIENT)


@torch.no_grad()
def observed(model: models.Model, batch: Batch) -> Seen:
    """What `observe` sees of one forward pass, without its warning: a report says what is missing."""
    with Observer(model, Storage(), None, False) as observation:
        model(batch)
    return observation


def attended(seen: Seen, batch: Batch, spec: StreamSpec) -> Tensor | None:
    """The share of the weight that each position of the input receives, (b,n): the mean over layers, heads and real
    queries. Attention to another stream (the words of a question) does not count.

    None where no layer attends to the positions of the input, or to a coarser or finer grid over the picture.
    """
    shares = []
    count = batch.inputs.shape[1]
    stream_lengths = {stream.data.shape[1] for stream in list(batch.streams.values())[1:]} - {count}
    for site in seen.sites.values():
        if site.columns not in ("source", "position") or site.shape()[3] in stream_lengths:
            continue
        over = _over_positions(received(site, batch), count, spec)
        if over is not None:
            total = over.sum(1, keepdim=True)  # gates of places do not sum to 1
            shares.append(over / torch.where(total > 0, total, 1))
    return torch.stack(shares).mean(0) if shares else None


def received(site: Site, batch: Batch) -> Tensor:
    """The weight that each key receives, (b,k) in float64: the mean over heads and the queries that are no padding."""
    _, _, queries, keys = site.shape()
    real = real_rows(batch, queries)
    total = torch.zeros(batch.size, keys, dtype=torch.float64)
    for rows, weights in blocks(site, torch.arange(queries), -1, None):
        total += torch.einsum("bhqk,bq->bk", weights.double(), real[:, rows]) / weights.shape[1]
    return total / real.sum(1, keepdim=True).clamp(min=1)


def real_rows(batch: Batch, queries: int) -> Tensor:
    """1 for each query that is no padding, (b,queries) in float64, where the queries are a stream's positions."""
    for stream in batch.streams.values():
        if stream.keep is not None and stream.keep.shape[1] == queries:
            return stream.keep.cpu().double()
    return torch.ones(batch.size, queries, dtype=torch.float64)


def _over_positions(weights: Tensor, count: int, spec: StreamSpec) -> Tensor | None:
    """Weights of keys (b,k) as weights of the input's positions (b,n)."""
    keys = weights.shape[1]
    if keys == count:
        return weights
    if not isinstance(spec, Patches) or spec.frames > 1:
        return None
    if keys == count + 1:  # a class token before the patches
        return weights[:, 1:]
    # A grid of its own over the picture, of the picture's form: features of a convolution.
    high = round((keys * spec.rows / spec.columns) ** 0.5)
    if high < 1 or keys % high or high * spec.columns != keys // high * spec.rows:
        return None
    return adaptive_avg_pool2d(weights.view(-1, 1, high, keys // high), (spec.rows, spec.columns)).flatten(1)


def highest(scores: Tensor, count: Tensor, allowed: Tensor) -> Tensor:
    """Whether a position is one of the `count` (b,) of its example with the highest scores among the allowed ones.

    Ties go to the earlier position; where fewer are allowed, all of them are taken.
    """
    order = scores.double().masked_fill(~allowed, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
    return (rank < count[:, None]) & allowed
