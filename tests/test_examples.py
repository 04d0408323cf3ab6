"""The files in `examples` do what docs/adding.md says of them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard_workbench import models, tasks
from tests.registries import unchanged_registries

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "examples" / "own.py"


def regard_with_own_file(*words, cwd):
    """What a command prints with `--use examples/own.py`, in a process of its own as users run it."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "regard", "--use", str(OWN), *words]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def own():
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("own_example", OWN)
    module = importlib.util.module_from_spec(spec)
    with unchanged_registries():
        spec.loader.exec_module(module)
        yield module


@pytest.mark.slow
def test_a_mechanism_from_a_file_is_listed_and_explained(tmp_path):
    page = json.loads(regard_with_own_file("show", "cosine", "--json", cwd=tmp_path))
    assert page["summary"].startswith("Multi-head attention that compares directions only")
    assert "cos(q_i, k_j)" in page["formula"]
    assert "num_heads" in [option["name"] for option in page["options"]]


@pytest.mark.slow
def test_a_task_a_model_and_a_mechanism_from_a_file_train_and_predict(tmp_path):
    said = regard_with_own_file(
        "train",
        "brackets",
        "--model",
        "conv-attention(dim=8)",
        "--attention",
        "cosine(num_heads=2)",
        "--steps",
        "2",
        "--eval-limit",
        "7",
        "--out",
        "run",
        "--device",
        "cpu",
        "--json",
        cwd=tmp_path,
    )
    result = json.loads(said)
    assert result["steps"] == 2 and 0 <= result["metrics"]["f1"] <= 1
    answer = regard_with_own_file("predict", "run", "--text", "([)]", "--device", "cpu", cwd=tmp_path)
    first, _, rest = answer.partition("→")
    assert first.strip() == "([)]" and len(rest.split()) >= 4 and set(rest.split()[:4]) <= {"ok", "lonely"}


def test_the_example_mechanism_weighs_by_direction_alone(own):
    torch.manual_seed(3)
    layer = own.Cosine(14, 2).double()
    x = torch.randn(3, 5, 14, dtype=torch.float64)
    query = layer.query_map(x).unflatten(-1, (2, 7)).transpose(1, 2)
    key = layer.key_map(x).unflatten(-1, (2, 7)).transpose(1, 2)
    cosines = torch.nn.functional.cosine_similarity(query[:, :, :, None], key[:, :, None], dim=-1)
    torch.testing.assert_close(layer.weights(x), torch.softmax(10 * cosines, -1))
    layer(x).sum().backward()
    assert layer.log_strength.grad is not None and layer.log_strength.grad.abs().sum() > 0


def lonely_by_deleting(text):
    """Delete neighbouring pairs; where none is left, the first closing bracket has no partner: delete it and go on."""
    left, found = list(enumerate(text)), []
    while left:
        pairs = (here for here in range(len(left) - 1) if left[here][1] + left[here + 1][1] in ("()", "[]", "{}"))
        closing = (here for here, (_, symbol) in enumerate(left) if symbol in ")]}")
        if (pair := next(pairs, None)) is not None:
            del left[pair : pair + 2]
        else:
            found.append(left.pop(next(closing, 0))[0])
    return [int(place in found) for place in range(len(text))]


def test_the_example_task_finds_lonely_brackets(own):
    assert own.lonely("([)]") == [1, 0, 1, 0]
    examples = own.BracketsTask().examples("validation")[:100]
    assert any(sum(example.lonely) for example in examples)
    for example in examples:
        assert example.lonely == lonely_by_deleting(example.text)


def test_the_example_model_reads_a_padded_batch_as_its_texts_alone(own):
    torch.manual_seed(5)
    task = tasks.build("brackets(pairs=7)")
    model = models.build("conv-attention(dim=12)", task.problem).double().eval()
    texts = [own.Brackets(text, own.lonely(text)) for text in ("([{}])", "()", "[}]()")]
    generator = torch.Generator()
    together = model(task.collate(texts, generator))
    for row, text in enumerate(texts):
        alone = model(task.collate([text], generator))[0]
        torch.testing.assert_close(together[row, : len(text.text)], alone)


def test_the_f1_of_the_example_task_is_made_from_all_batches(own):
    metric = own.BracketsTask.metric
    batches = [{"hits": 3, "said": 4, "right": 5}, {"hits": 0, "said": 2, "right": 1}]
    assert metric.value(metric.merge(batches)) == pytest.approx(2 * 3 / (6 + 6))
