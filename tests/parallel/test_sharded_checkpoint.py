"""Shards that four ranks wrote are read by two, by one, and joined to safetensors."""

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard

from regard.errors import RegardError
from regard_workbench import models, tasks
from regard_workbench.training.distributed import sharded_checkpoint
from regard_workbench.training.engines.sharding import full_tensor


def built(sharded, seed=1):
    torch.manual_seed(seed)
    task = tasks.build("language(context=7)")
    model = models.build("decoder(dim=12, layers=2, num_heads=2, dropout=0.0)", task.problem)
    if sharded:
        for layer in model.stack.layers:
            fully_shard(layer)
        fully_shard(model)
    examples = task.examples("train")
    batch = task.collate([examples[index] for index in range(5)], torch.Generator())
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), batch


def step(model, optimizer, batch):
    optimizer.zero_grad()
    total, count = model.loss(model(batch), batch)
    (total / count).backward()
    optimizer.step()


def weights_of(model):
    return {name: full_tensor(weight).detach().clone().numpy() for name, weight in model.named_parameters()}


def written(folder):
    """In a rank: two steps, a checkpoint, one more step."""
    model, optimizer, batch = built(True)
    step(model, optimizer, batch)
    step(model, optimizer, batch)
    sharded_checkpoint.save(folder, model, optimizer)
    saved = weights_of(model)
    step(model, optimizer, batch)
    return saved, weights_of(model)


def resumed(folder, sharded):
    """In a rank: another model takes over the checkpoint, and one more step."""
    model, optimizer, batch = built(sharded, seed=5)
    sharded_checkpoint.load(folder, model, optimizer)
    loaded = weights_of(model)
    step(model, optimizer, batch)
    return loaded, weights_of(model)


def assert_close(found, right):
    assert found.keys() == right.keys()
    for name, one in right.items():
        torch.testing.assert_close(torch.from_numpy(found[name]), torch.from_numpy(one), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_is_resumed_by_two_and_consolidated_for_one(four, two, tmp_path):
    saved, later = four.run(written, tmp_path / "shards")[0]
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 4
    for loaded, next_weights in two.run(resumed, tmp_path / "shards", True):
        assert all((loaded[name] == one).all() for name, one in saved.items())
        assert_close(next_weights, later)
    paths = sharded_checkpoint.consolidate(tmp_path / "shards", tmp_path / "whole")
    assert [path.name for path in paths] == ["model.safetensors", "optimizer.safetensors"]
    weights, optimizer = (load_file(path) for path in paths)
    assert all((weights[name].numpy() == one).all() for name, one in saved.items())
    assert optimizer["embedding.rows.weight:exp_avg"].shape == weights["embedding.rows.weight"].shape
    assert optimizer["embedding.rows.weight:step"].tolist() == [2.0]
    loaded, next_weights = resumed(tmp_path / "shards", False)  # one process, without torch.distributed
    assert_close(loaded, saved)
    assert_close(next_weights, later)


def test_a_checkpoint_of_one_process_is_read_and_consolidated(tmp_path):
    model, optimizer, batch = built(False)
    step(model, optimizer, batch)
    sharded_checkpoint.save(tmp_path / "shards", model, optimizer)
    saved = weights_of(model)
    step(model, optimizer, batch)
    loaded, later = resumed(tmp_path / "shards", False)
    assert all((loaded[name] == one).all() for name, one in saved.items())
    assert_close(later, weights_of(model))
    weights = load_file(sharded_checkpoint.consolidate(tmp_path / "shards", tmp_path / "whole")[0])
    assert all((weights[name].numpy() == one).all() for name, one in saved.items())


def test_a_folder_that_is_no_checkpoint_of_this_model_is_refused(tmp_path):
    model, _, _ = built(False)
    with pytest.raises(RegardError, match="holds no safetensors files"):
        sharded_checkpoint.load(tmp_path, model)
    sharded_checkpoint.save(tmp_path / "one", model)
    with pytest.raises(RegardError, match="is not empty"):
        sharded_checkpoint.save(tmp_path / "one", model)
    with pytest.raises(RegardError, match="checkpoint of another model"):
        sharded_checkpoint.load(tmp_path / "one", torch.nn.Linear(2, 3))
    (file,) = (tmp_path / "one").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RegardError, match="cannot be read"):
        sharded_checkpoint.load(tmp_path / "one", model)
