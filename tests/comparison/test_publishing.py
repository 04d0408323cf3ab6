"""A run in the Hub's form: the same answers, its vocabulary and labels, what it reaches on its card."""

import json

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.comparison.publishing import TASK, load_saved, push_run, save_run
from regard_workbench.training.loading import load
from regard_workbench.training.run import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    settings = {"task": "classify(level=character)", "model": "encoder(dim=12, layers=1)", "steps": 2}
    out = str(tmp_path_factory.mktemp("runs") / "run")
    return train({**settings, "batch_size": 5, "device": "cpu", "out": out}, quiet=True, tell=lambda line: None).folder


def answer(task, model):
    with torch.no_grad():
        return model(task.collate([task.encode("a fine evening")], torch.Generator()))


def test_a_saved_run_gives_the_answers_of_the_run_and_says_what_was_measured(run, tmp_path):
    save_run(run, tmp_path / "saved", device="cpu", limit=7)
    task, model = load_saved(tmp_path / "saved")
    own = load(run, device="cpu")
    assert torch.equal(answer(task, model), answer(own.task, own.model))
    assert task.fitted.labels == own.task.fitted.labels and task.state() == own.task.state()
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "| test accuracy |" in card and "## Signature" in card and own.sha256[:8] in card


@pytest.mark.parametrize(
    "told", [{}, {"task": "classify", "state": []}, {"task": "no-such", "state": {}}, {"task": "classify", "state": {}}]
)
def test_a_damaged_task_is_refused(run, tmp_path, told):
    save_run(run, tmp_path / "saved", device="cpu", limit=3)
    (tmp_path / "saved" / TASK).write_text(json.dumps(told))
    with pytest.raises(BadValue):
        load_saved(tmp_path / "saved")


def test_a_run_is_pushed_with_its_task(run, tmp_path, monkeypatch):
    import huggingface_hub

    sent = []

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, name, private, exist_ok):
            return huggingface_hub.RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, repo_id, folder_path, commit_message):
            from pathlib import Path

            sent.extend(sorted(path.name for path in Path(folder_path).iterdir()))
            return "address"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert push_run(run, "me/opinions", device="cpu", limit=3) == "address"
    assert sent == ["README.md", "config.json", "model.safetensors", TASK]
