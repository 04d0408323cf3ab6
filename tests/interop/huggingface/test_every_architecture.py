"""The walk over every architecture of the installed transformers (`benchmarks/huggingface_everything.py`)."""

import json

import pytest

pytest.importorskip("transformers")

from benchmarks.observing.worker import examine, library

from benchmarks import huggingface_everything
from tests.observation import peers  # noqa: F401  keeps transformers offline


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_architecture_is_built_and_compared():
    record = examine(library("transformers"), "gpt2", "regard", seconds=120.0)
    assert record["status"] == "equal", record
    assert record["difference"] <= 1e-5 < 0.1 < record["without_attention"]
    assert record["right_padded"] <= 1e-5
    assert record["left_padded"] <= 1e-5
    assert record["generation"] == {"greedy": "equal", "beams": "equal", "static": "equal"}


@pytest.mark.nightly
def test_every_architecture_equals_its_eager_attention(tmp_path):
    out = tmp_path / "records.json"
    assert huggingface_everything.main(["--out", str(out), "--jobs", "2"]) == 0
    records = json.loads(out.read_text())
    assert sum(one["status"] == "equal" for one in records) >= 150
    assert not [one["name"] for one in records if one["status"] in ("differs", "error", "failed")]


def test_the_page_names_what_was_not_compared():
    equal = {
        "library": "transformers", "name": "a", "status": "equal", "class": "A", "calls": 2, "difference": 1e-7,
        "right_padded": 2e-7, "left_padded": "no text", "without_attention": 0.5, "generation": {"greedy": "equal"},
    }  # fmt: skip
    lost = {"library": "transformers", "name": "b", "status": "could not be built", "reason": "no <b|c>"}
    page = huggingface_everything.page([equal, lost])
    assert "1 of 1 architectures" in page
    assert "| a | A | 2 | 1.0e-07 | 2.0e-07 | – | 5.0e-01 | equal |" in page
    assert "- b: no ‹b/c›" in page
