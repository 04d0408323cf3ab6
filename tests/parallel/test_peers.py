"""torch's experimental context parallelism gives the same numbers where it runs: causal and without a mask.

Its public entry point has rules for CUDA kernels only. The ring inside takes the kernel as an argument, so here it runs
with torch's CPU kernel, forward and backward, over the same processes.
"""

import pytest
import torch

from regard import masks, parallel

experimental = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

LENGTH = 32  # torch's ring needs equal chunks


def both(causal):
    """In a rank: what torch's ring gives, and what ours gives, for this rank's positions."""
    random = torch.Generator().manual_seed(9)
    whole = torch.randn(4, 2, 3, LENGTH, 8, generator=random)
    sequence = parallel.ShardedSequence(LENGTH, layout="zigzag" if causal else "contiguous")
    query, key, value, grad = (sequence.shard(one, 2) for one in whole)
    theirs = _by_torch(sequence.group, query, key, value, grad, causal)
    rows = [one.requires_grad_() for one in (query, key, value)]
    mask = masks.causal() if causal else None
    output, logsumexp = parallel.attend(*rows, sequence, mask=mask, return_logsumexp=True)
    output.backward(grad)
    ours = [output, logsumexp, *(one.grad for one in rows)]
    return [[one.detach().numpy() for one in found] for found in (ours, theirs)]


def _by_torch(group, query, key, value, grad, causal):
    options = experimental._cp_options
    before, options.enable_load_balance = options.enable_load_balance, causal
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    try:
        output, logsumexp = experimental._templated_ring_attention(group, 2, forward, query, key, value, causal)
        gradients = experimental._templated_ring_attention_backward(
            group, 2, backward, grad, "grad_out", query, key, value, output, logsumexp, causal, dropout_p=0.0
        )
    finally:
        options.enable_load_balance = before
    return output, logsumexp, *gradients


@pytest.mark.parametrize("causal", [True, False])
def test_torchs_ring_gives_the_same_output_log_sum_exp_and_gradients(ranks, causal):
    for ours, theirs in ranks.run(both, causal):
        for name, found, right in zip(("output", "lse", "query", "key", "value"), ours, theirs, strict=True):
            assert torch.allclose(torch.from_numpy(found), torch.from_numpy(right), rtol=2e-5, atol=2e-5), name
