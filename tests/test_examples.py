"""The files in `examples` do what docs/adding.md says of them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.registries import unchanged_registries

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "examples" / "own.py"


def regard_with_own_file(*words, cwd):
    """Run a command with `--use examples/own.py` in a process of its own, so that nothing stays registered here."""
    done = subprocess.run(
        [sys.executable, "-m", "regard", "--use", str(OWN), *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mechanism_from_a_file_is_listed_and_explained(tmp_path):
    page = json.loads(regard_with_own_file("show", "cosine", "--json", cwd=tmp_path))
    assert page["summary"].startswith("Multi-head attention that compares directions only")
    assert "cos(q_i, k_j)" in page["formula"]
    assert "num_heads" in [option["name"] for option in page["options"]]


@pytest.fixture
def cosine():
    """The class of the example."""
    spec = importlib.util.spec_from_file_location("own_example", OWN)
    module = importlib.util.module_from_spec(spec)
    with unchanged_registries():
        spec.loader.exec_module(module)
        yield module.Cosine


def test_the_example_mechanism_weighs_by_direction_alone(cosine):
    torch.manual_seed(3)
    layer = cosine(14, 2).double()
    x = torch.randn(3, 5, 14, dtype=torch.float64)
    query = layer.query_map(x).unflatten(-1, (2, 7)).transpose(1, 2)
    key = layer.key_map(x).unflatten(-1, (2, 7)).transpose(1, 2)
    cosines = torch.nn.functional.cosine_similarity(query[:, :, :, None], key[:, :, None], dim=-1)
    expected = torch.softmax(10 * cosines, -1)
    torch.testing.assert_close(layer.weights(x), expected)
    layer(x).sum().backward()
    assert layer.log_strength.grad is not None and layer.log_strength.grad.abs().sum() > 0
