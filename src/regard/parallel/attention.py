"""`attend` over a sequence that several ranks share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from regard import biases, masks, scores
from regard.errors import BadType, BadValue, Unsupported, unknown_name
from regard.formula import request
from regard.formula.call import OPTIONS, Options, read_call, spell_out
from regard.masks import Mask
from regard.normalizers import Normalizer, Sigmoid, Softmax
from regard.parallel import heads, ring, schedule
from regard.parallel.sequence import ShardedSequence
from regard.parallel.work import RingWork
from regard.scores import Score
from regard.scores.dot import CosineScore
from regard.support.arguments import described
from regard.support.autocast import autocasts, without_autocast

EXCHANGES = ("ring", "heads")


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequence: ShardedSequence,
    *,
    exchange: str = "ring",
    key_sequence: ShardedSequence | None = None,
    return_logsumexp: Literal[True],
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequence: ShardedSequence,
    *,
    exchange: str = "ring",
    key_sequence: ShardedSequence | None = None,
    return_logsumexp: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...
@torch.compiler.disable
@spell_out(OPTIONS)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequence: ShardedSequence,
    *,
    exchange: str = "ring",
    key_sequence: ShardedSequence | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`regard.attend` of this rank's queries over the keys of all ranks; all of them call it with equal options.

    Query (b,h,n,d), key (b,g,n,d) and value (b,g,n,v) hold the positions of this rank. Masks and biases are those of
    the whole sequence, in its own positions; so may be the strength of a cosine for each query. Blocks that a mask
    hides are neither computed nor sent. Keep tensors of a mask on the CPU: on a GPU reading them would wait
    for the device, so they are not read, and what they hide is sent, too.

    Args:
        sequence: which positions this rank holds.
        exchange: ring (keys go around; softmax and sigmoid) or heads (all-to-all; any normaliser, ranks ≤ heads).
        key_sequence: that of the keys and values, where it is another one (cross-attention).
    """
    if exchange not in EXCHANGES:
        raise unknown_name("exchange", exchange, EXCHANGES)
    call = read_call("parallel.attend", OPTIONS, query, key, value, options)
    if not isinstance(sequence, ShardedSequence):
        raise BadType(f"sequence: expected a ShardedSequence, got {described(sequence)}.")
    keys_sequence = sequence if key_sequence is None else key_sequence
    if keys_sequence.group is not sequence.group:
        raise BadValue("key_sequence: expected one over the ranks of `sequence`, got one over another group.")
    mask, bias = _values(call.mask, call.bias)
    single = query.dim() == 3
    if single:
        mask, bias = (None if mask is None else mask.single_head(), None if bias is None else bias.single_head())
    # The mask and the bias are for the whole sequence, so they are checked apart from this rank's rows.
    score = _of_this_rank(scores.named(call.score), sequence)
    call_request = request.build(call._replace(score=score, mask=None, bias=None))
    _check_length("query", call_request.query, sequence)
    _check_length("key", call_request.key, keys_sequence)
    sizes = (*call_request.sizes[:2], sequence.length, keys_sequence.length)
    for value_over_all in (mask, bias):
        if value_over_all is not None:
            value_over_all.check(sizes)
    if mask is not None:
        mask.check_contents(sizes)
    with without_autocast(query.device):
        # Rows are transformed before they are sent, once, in the rank that has them.
        reduced = replace(call_request, mask=mask).for_kernels()
        if isinstance(bias, biases.DenseBias) and autocasts(query.device):
            bias = biases.DenseBias(bias.tensor.to(reduced.query.dtype))
        common: dict[str, Any] = {
            "group": sequence.group,
            "rank": sequence.rank,
            "sizes": sizes,
            "score": reduced.score,
            "mask": mask,
            "bias": bias,
            "normalizer": call_request.normalizer,
            "scale": call_request.scale,
            "dropout": call_request.dropout,
            "impl": call.impl,
        }
        rows = (reduced.query, reduced.key, reduced.value)
        logsumexp: Tensor | None
        if exchange == "heads":
            work = heads.HeadsWork(rows=sequence.layout, columns=keys_sequence.layout, **common)
            output, logsumexp = heads.attend(work, *rows, call_request.sink, call.return_logsumexp)
        else:
            _check_mergeable(call_request.normalizer)
            plan = schedule.make(mask, sizes, sequence.layout, keys_sequence.layout)
            output, logsumexp = ring.attend(RingWork(schedule=plan, **common), *rows)
            if call_request.sink is not None and isinstance(call_request.normalizer, Softmax):
                output = _with_sink(output, logsumexp, call_request.sink)
        output = output.to(call_request.query.dtype)
    if single:
        output, logsumexp = output.squeeze(1), None if logsumexp is None else logsumexp.squeeze(1)
    return (output, logsumexp) if call.return_logsumexp and logsumexp is not None else output


def _values(mask: object, bias: object) -> tuple[Mask | None, biases.Bias | None]:
    """The mask and the bias as values; tensors cover the whole sequence."""
    if isinstance(mask, Tensor):
        mask = masks.dense(mask)
    if isinstance(bias, Tensor):
        bias = biases.dense(bias)
    if not (mask is None or isinstance(mask, Mask)):
        raise BadType(f"mask: expected a Mask or a bool tensor over the whole sequence, got {described(mask)}.")
    if not (bias is None or isinstance(bias, biases.Bias)):
        raise BadType(f"bias: expected a Bias or a float tensor over the whole sequence, got {described(bias)}.")
    return mask, bias


def _of_this_rank(score: Score, sequence: ShardedSequence) -> Score:
    """A score whose strength for each query, if it is that of the whole sequence, is cut to this rank's queries."""
    strength = score.strength if isinstance(score, CosineScore) else None
    if not isinstance(strength, Tensor) or strength.dim() < 2:
        return score
    per_query = strength.shape[-2] == sequence.length != sequence.local_length
    return CosineScore(sequence.shard(strength, -2)) if per_query else score


def _check_length(argument: str, rows: Tensor, sequence: ShardedSequence) -> None:
    if rows.shape[2] != sequence.local_length:
        raise BadValue(
            f"{argument}: expected the {sequence.local_length} positions of rank {sequence.rank} (of "
            f"{sequence.length} in all), got {rows.shape[2]}. Take them with sequence.shard(whole, axis)."
        )


def _check_mergeable(normalizer: Normalizer) -> None:
    if type(normalizer) not in (Softmax, Sigmoid):
        raise Unsupported(
            f"normalize: {normalizer!r} needs all scores of a row at once, which no rank of a ring has. Use "
            f"exchange='heads', where rows are complete, or normalize='softmax' or 'sigmoid'."
        )


def _with_sink(output: Tensor, logsumexp: Tensor, sink: Tensor) -> Tensor:
    """The output when one more logit for each head takes its share of the weight; it is applied once, to all keys."""
    finite = logsumexp.masked_fill(logsumexp == -torch.inf, 0)  # such rows are zero whatever they are multiplied by
    return output * torch.sigmoid(finite - sink.to(finite.dtype).view(-1, 1)).to(output.dtype)[..., None]
