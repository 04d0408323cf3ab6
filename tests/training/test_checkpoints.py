"""Checkpoints exist completely or not at all; damage at any byte is detected, and the one before is used."""

import errno
import hashlib
import json
import os
import random
import shutil

import pytest
import torch

from regard_workbench.training import Config, load_run, train
from regard_workbench.training.run_folder import checkpoints, durable
from regard_workbench.training.run_folder.checkpoints import Checkpoint, Damaged
from regard_workbench.training.state import RandomState
from tests.training.toy import assert_same


def checkpoint(step, value=1.0, **progress):
    tensors = {"a": torch.full((3, 5), value), "b": torch.arange(7)}
    state = {"progress": {"step": step, **progress}}
    return Checkpoint(checkpoints.name_of(step), tensors, tensors, {"r": torch.arange(3)}, state)


def best(folder, tell=print):
    return checkpoints.load_best(folder, checkpoints.load_newest(folder, tell)[0], tell)


def test_a_checkpoint_is_read_back_unchanged(tmp_path):
    path = checkpoints.save(tmp_path, checkpoint(7))
    found = checkpoints.load(path)
    assert (found.step, found.name) == (7, "step-00000007")
    assert torch.equal(found.weights["a"], torch.ones(3, 5)) and torch.equal(found.weights["b"], torch.arange(7))
    manifest = json.loads((path / "manifest.json").read_text())["files"]
    for name in ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"):
        assert manifest[name]["sha256"] == hashlib.sha256((path / name).read_bytes()).hexdigest()


def test_a_checkpoint_of_format_1_is_read_with_current_names(tmp_path):
    """Runs made before streams and heads called these modules entrance and exit."""
    old = ["entrance.rows.weight", "target_entrance.rows.weight", "exit.logits.bias", "stack.exit.weight"]
    tensors = {name: torch.full((2,), float(number)) for number, name in enumerate(old)}
    memory = {f"{name}:exp_avg": tensor for name, tensor in tensors.items()}
    given = checkpoint(3)
    path = checkpoints.save(tmp_path, Checkpoint(given.name, tensors, memory, given.random, given.state))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 1}))
    found = checkpoints.load(path)
    new = ["embedding.rows.weight", "target_embedding.rows.weight", "head.logits.bias", "stack.exit.weight"]
    assert {name: float(found.weights[name][0]) for name in new} == dict(zip(new, range(4), strict=True))
    assert set(found.optimizer) == {f"{name}:exp_avg" for name in new}
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(Damaged, match="of another version of regard"):
        checkpoints.load(path)


def test_no_file_is_a_pickle(tmp_path):
    for path in checkpoints.save(tmp_path, checkpoint(7)).iterdir():
        assert path.suffix in (".safetensors", ".json")


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_or_a_truncated_file_is_detected(tmp_path, seed):
    own = random.Random(seed)
    path = checkpoints.save(tmp_path, checkpoint(7))
    victim = own.choice(sorted(path.iterdir()))
    data = bytearray(victim.read_bytes())
    at = own.randrange(len(data))
    if own.random() < 0.5:
        data[at] ^= 1 << own.randrange(8)
    else:
        data = data[:at]
    victim.write_bytes(data)
    try:
        found = checkpoints.load(path)
    except Damaged:
        return
    # Only whitespace or an unused field of the manifest may change undetected: the contents are those saved.
    assert victim.name == "manifest.json"
    assert torch.equal(found.weights["a"], torch.ones(3, 5)) and found.state == {"progress": {"step": 7}}


def test_a_missing_file_and_absurd_json_are_damage(tmp_path):
    path = checkpoints.save(tmp_path, checkpoint(7))
    (path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(Damaged):
        checkpoints.load(path)
    path = checkpoints.save(tmp_path, checkpoint(8))
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(Damaged, match="missing"):
        checkpoints.load(path)


def test_the_checkpoint_before_a_damaged_one_is_used_and_the_user_told(tmp_path):
    told = []
    for step in (3, 20, 100_000_000):
        checkpoints.save(tmp_path, checkpoint(step))
    (tmp_path / checkpoints.name_of(100_000_000) / "model.safetensors").write_bytes(b"")
    found, damaged = checkpoints.load_newest(tmp_path, told.append)
    assert found.step == 20
    assert [path.name for path in damaged] == ["step-100000000"]
    assert "step-100000000 is damaged" in told[0]


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for step in range(1, 8):
        checkpoints.save(tmp_path, checkpoint(step, best_step=min(step, 3)))
        checkpoints.keep(tmp_path, checkpoints.name_of(step), checkpoints.name_of(min(step, 3)))
    assert [path.name for path in checkpoints.paths(tmp_path)] == [checkpoints.name_of(s) for s in (7, 6, 3)]
    assert best(tmp_path).step == 3


def test_the_newest_complete_checkpoint_records_which_is_the_best(tmp_path):
    """An index file beside them could disagree: a kill before its update left the wrong best forever."""
    for step, known in ((1, 1), (2, 1), (3, 3)):
        checkpoints.save(tmp_path, checkpoint(step, best_step=known))
    (tmp_path / "index.json").write_text('{"last": "step-00000002", "best": "step-00000001"}')
    assert best(tmp_path).step == 3
    (tmp_path / checkpoints.name_of(3) / "state.json").write_bytes(b"{}")
    assert best(tmp_path).step == 1
    checkpoints.keep(tmp_path, checkpoints.name_of(3), checkpoints.name_of(3))
    assert not (tmp_path / "index.json").exists()


def test_a_checkpoint_that_was_being_replaced_is_still_read(tmp_path):
    for step in (1, 2):
        checkpoints.save(tmp_path, checkpoint(step))
    os.rename(tmp_path / checkpoints.name_of(2), tmp_path / f".old-{checkpoints.name_of(2)}")
    assert checkpoints.load_newest(tmp_path, print)[0].name == "step-00000002"


def test_a_failed_replacement_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, checkpoint(2, value=1.0))
    real, calls = os.rename, []

    def second_fails(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        with pytest.raises(durable.StorageFailed):
            checkpoints.save(tmp_path, checkpoint(2, value=3.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert checkpoints.load(tmp_path / "step-00000002").weights["a"][0, 0] == 1.0


def test_if_the_best_is_damaged_the_newest_is_used(tmp_path):
    told = []
    for step in (1, 2):
        checkpoints.save(tmp_path, checkpoint(step, best_step=1))
    checkpoints.keep(tmp_path, checkpoints.name_of(2), checkpoints.name_of(1))
    shutil.rmtree(tmp_path / checkpoints.name_of(1))
    assert best(tmp_path, told.append).step == 2
    assert "damaged" in told[0]


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_storage_error_is_raised_and_leaves_no_partial_checkpoint(tmp_path, monkeypatch, call, number):
    checkpoints.save(tmp_path, checkpoint(1))

    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(durable.StorageFailed) as caught:
            checkpoints.save(tmp_path, checkpoint(2))
    words = {errno.ENOSPC: "disk is full", errno.EROFS: "read-only", errno.EIO: "Input/output error"}
    assert words[number] in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert [path.name for path in checkpoints.paths(tmp_path)] == ["step-00000001"]
    if call != "open":  # without open, nothing can be cleaned up
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoints.load(tmp_path / "step-00000001").step == 1


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
    assert checkpoints.load(checkpoints.save(tmp_path, checkpoint(3))).step == 3


def test_a_folder_that_a_killed_process_was_replacing_is_restored(tmp_path):
    checkpoints.save(tmp_path, checkpoint(3))
    os.rename(tmp_path / "step-00000003", tmp_path / ".old-step-00000003")
    (tmp_path / ".part-step-00000003").mkdir()
    durable.restore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_every_random_generator_is_restored():
    import numpy as np

    torch.randn(3), random.gauss(0, 1), np.random.randn(3)
    tensors, plain = RandomState.now().pack()
    draw = lambda: (torch.randn(3).tolist(), random.gauss(0, 1), np.random.randn(3).tolist())  # noqa: E731
    first = draw()
    draw()
    RandomState.unpack(tensors, json.loads(json.dumps(plain))).restore()
    assert draw() == first


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path):
    settings = {"task": "toy", "steps": 9, "save_every": 2, "eval_every": 50, "device": "cpu"}
    train({**settings, "out": str(tmp_path / "whole")})
    run, told = tmp_path / "run", []
    train({**settings, "out": str(run)})
    newest = checkpoints.paths(run / "checkpoints")[0]
    data = (newest / "optimizer.safetensors").read_bytes()
    (newest / "optimizer.safetensors").write_bytes(data[: len(data) // 2])
    result = train({**settings, "out": str(run)}, resume="auto", tell=told.append)
    assert result.steps == 9
    assert any("damaged" in text for text in told)
    assert (run / "checkpoints" / f"set-aside-{newest.name}").is_dir()
    assert_same(run, tmp_path / "whole")


def test_a_run_without_an_undamaged_checkpoint_is_an_error(tmp_path):
    train(Config(task="toy", steps=1, out=str(tmp_path / "run")))
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/state.json"):
        path.write_text("{}")
    with pytest.raises(Damaged, match="no checkpoint can be read"):
        load_run(tmp_path / "run", tell=lambda text: None)
