"""A packed batch: one block of memory holds all tensors, and the next batch of that shape replaces them."""

import torch

from regard_workbench.tasks import Batch
from regard_workbench.training import optim
from regard_workbench.training.engines.cuda_graph import packed_batch
from regard_workbench.training.engines.cuda_graph.packed_batch import PackedBatch


def batch(seed):
    random = torch.Generator().manual_seed(seed)
    return Batch.of(
        torch.randn(3, 5, 7, generator=random),
        torch.rand(3, 5, generator=random) < 0.5,
        torch.randint(9, (3, 11), generator=random),
        torch.rand(3, 11, generator=random) < 0.5,
    )


def test_one_copy_moves_all_tensors_of_a_batch_unchanged():
    packed = PackedBatch(batch(0), 2)
    memory = packed.memory
    for number in range(5):
        given = batch(number)
        packed.put(given, number)
        for name, tensor in given.tensors().items():
            assert torch.equal(packed.parts[name], tensor) and packed.parts[name].dtype == tensor.dtype
            assert packed.parts[name].untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert packed.parts[name].data_ptr() % 4 == memory.data_ptr() % 4
    assert len(packed.host) == 2 and memory.numel() >= sum(
        t.numel() * t.element_size() for t in given.tensors().values()
    )


def test_tensors_do_not_overlap():
    packed = PackedBatch(batch(0), 1)
    for part in packed.parts.values():
        part.zero_()
    packed.parts["targets"].fill_(7)
    assert all(not part.any() for name, part in packed.parts.items() if name != "targets")


def test_large_batches_get_one_host_buffer(monkeypatch):
    monkeypatch.setattr(packed_batch, "MAX_PINNED", 1000)
    assert len(PackedBatch(batch(0), 16).host) == 1


def test_a_learning_rate_tensor_that_groups_share_is_filled_once():
    class Counted(torch.Tensor):
        fills = 0

        def fill_(self, value):
            Counted.fills += 1
            return super().fill_(value)

    rate = torch.tensor(0.5).as_subclass(Counted)
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [w]} for w in weights], lr=0.5)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optim.set_rate(optimizer, 0.25)
    assert Counted.fills == 1 and all(float(group["lr"]) == 0.25 for group in optimizer.param_groups)
