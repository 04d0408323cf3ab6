"""The backward kernels give the share of some keys in the gradients of softmax over more keys, as a ring needs it."""

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.formula import request
from regard.formula.call import Call
from regard.parallel import layout, schedule
from regard.parallel.merging import Merged, Upstream
from regard.parallel.work import RingWork
from tests.triton.conftest import DEVICE

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 1, 2, 1, 29, 16
CASES = {
    "causal": (masks.causal(), {}),
    "window-and-documents": (
        masks.window(11) & masks.documents((torch.arange(LENGTH) // 17)[None]),
        {"score": scores.softcap(2.0)},
    ),
    "alibi": (masks.causal() | masks.global_tokens([3]), {"bias": biases.alibi(HEADS)}),
    "additive": (masks.causal(), {"score": "additive"}),
}


@pytest.mark.parametrize(
    "case",
    ["causal", "alibi", *(pytest.param(one, marks=pytest.mark.slow) for one in ("window-and-documents", "additive"))],
)
def test_the_shares_of_all_blocks_add_up_to_the_gradients_over_all_keys(case):
    """Blocks of a ring of two, computed one after the other by one process."""
    torch.manual_seed(1)
    mask, options = CASES[case]
    shapes = ((HEADS, WIDTH), (GROUPS, WIDTH), (GROUPS, WIDTH))
    rows = [torch.randn(BATCH, count, LENGTH, width, device=DEVICE) for count, width in shapes]
    mask, grad = mask.to(DEVICE), torch.randn(BATCH, HEADS, LENGTH, WIDTH, device=DEVICE)
    if options.get("score") == "additive":
        options = {"score": scores.additive(torch.randn(WIDTH, device=DEVICE))}
    exact = [one.double().requires_grad_() for one in rows]
    double = {**options}
    if case == "additive":
        double["score"] = scores.additive(options["score"].weight.double())
    regard.attend(*exact, mask=mask, impl="reference", **double).backward(grad.double())

    held = layout.build("zigzag", LENGTH, 2)
    sizes = (BATCH, HEADS, LENGTH, LENGTH)
    asked = request.build(Call(*rows, **options)).reduced()
    totals = [torch.zeros_like(one) for one in rows]
    for rank in (0, 1):
        work = RingWork(
            None,
            rank,
            sizes,
            asked.score,
            mask,
            asked.bias,
            asked.normalizer,
            asked.scale,
            0.0,
            "triton",
            schedule.make(mask, sizes, held, held),
        )
        local = [held.take(one, 2, rank) for one in (rows[0], grad)]
        merged = Merged(local[0], WIDTH, torch.float32, True)
        seen = tuple(piece for other in (0, 1) for piece in work.schedule.wanted(rank, other))
        keys = {piece: tuple(one[:, :, piece.span] for one in rows[1:]) for piece in seen}
        for block in work.blocks(seen):
            where, *sides = work.inputs(block, keys)
            found = work.compute(block, where.take(local[0]), *sides, work.tensors)
            for span, *part in zip(where.spans, *(where.split(one) for one in found), strict=True):
                merged.add(span, *part)
        upstream = Upstream(local[1], torch.zeros_like(merged.logsumexp), merged.output, merged.logsumexp)
        positions = held.positions(rank)
        for block in work.blocks(seen):
            where, *sides = work.inputs(block, keys)
            needed = [True] * 3 + [False] * len(work.tensors)
            inputs = [where.take(local[0]), *sides, *work.tensors]
            parts = work.gradients(block, inputs, needed, Upstream(*(where.take(one) for one in upstream)))
            totals[0][:, :, torch.cat([positions[span] for span in where.spans])] += parts[0]
            columns = torch.cat([torch.arange(LENGTH)[piece.span] for piece in block.columns])
            for total, part in zip(totals[1:], parts[1:3], strict=True):
                total[:, :, columns] += part
    for total, right in zip(totals, exact, strict=True):
        torch.testing.assert_close(total.double(), right.grad, rtol=1e-4, atol=1e-4)
