"""A shared sequence on a GPU: over NCCL with one process, and over gloo with two that share the GPU.

NCCL refuses two ranks on one GPU, so that here it connects, gathers and exchanges heads with itself; gloo sends CUDA
tensors through the host. Both run the kernels of a GPU on the blocks of a ring.
"""

import pytest
import torch

from regard.parallel import exchange
from tests.parallel.ranks import Ranks
from tests.parallel.test_ring import EXCHANGES, NAMES, by_formula, joined, shared

MASKS = ("none", "causal", "causal-window", "causal-documents", "padding")
on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def assert_equals_one_process(answers, count, case, tolerance=2e-5):
    for name, found, wanted in zip(NAMES, joined(answers, "zigzag", case, count), by_formula(case), strict=True):
        torch.testing.assert_close(
            found.double(), wanted, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def round_trip():
    """In a rank: what a message to itself holds when it arrives, and the whole of a sharded sequence."""
    import torch.distributed as dist

    from regard.parallel import ShardedSequence

    sent = torch.arange(5.0, device="cuda")
    received = torch.zeros_like(sent)
    exchange.Transfer(dist.group.WORLD, "talking to itself", [(0, sent)], [(0, received)], 0).wait()
    sequence = ShardedSequence(5)
    part = sequence.shard(sent, 0).requires_grad_()
    whole = sequence.unshard(part, 0)
    (whole * 2).sum().backward()
    return [one.detach().cpu().numpy() for one in (received, whole, part.grad)]


@pytest.fixture(scope="module", params=[(1, "nccl"), (2, "gloo")], ids=["nccl-1", "gloo-2"])
def ranks_on_a_gpu(request, tmp_path_factory):
    count, backend = request.param
    found = Ranks(count, tmp_path_factory.mktemp("ranks"), backend)
    yield found
    found.close()


class TestOnAGPU:
    pytestmark = on_a_gpu

    @pytest.mark.parametrize("case", MASKS)
    @pytest.mark.parametrize("exchange", EXCHANGES)
    def test_numbers_and_gradients_are_those_of_one_process(self, ranks_on_a_gpu, case, exchange):
        answers = ranks_on_a_gpu.run(shared, "zigzag", exchange, case, {}, torch.float32, "cuda")
        assert_equals_one_process(answers, ranks_on_a_gpu.count, case)

    def test_nccl_carries_messages_and_gathers(self, tmp_path):
        ranks = Ranks(1, tmp_path, "nccl")
        try:
            ((received, whole, grad),) = ranks.run(round_trip)
        finally:
            ranks.close()
        assert received.tolist() == whole.tolist() == [0, 1, 2, 3, 4]
        assert grad.tolist() == [2] * 5


def shared_through_host(*arguments):
    """In a rank: as `shared`, with messages that are copied as those of a GPU are under gloo."""
    from regard.parallel import heads

    before = exchange.through_host
    exchange.through_host = heads.through_host = lambda tensor, group: True
    try:
        return shared(*arguments)
    finally:
        exchange.through_host = heads.through_host = before


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("case", ("causal", "window"))
def test_messages_that_are_copied_to_the_host_arrive(two, case, exchange):
    answers = two.run(shared_through_host, "zigzag", exchange, case, {})
    assert_equals_one_process(answers, 2, case, 1e-9)
