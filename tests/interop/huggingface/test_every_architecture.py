"""The walk over every architecture of the installed transformers (`tests/architectures/huggingface_everything.py`)."""

import json

import pytest

pytest.importorskip("transformers")

from regard.interop.huggingface import attention
from tests.architectures import changed_attention, huggingface_everything, on_regard
from tests.architectures.records import recorded, save
from tests.architectures.worker import examine, library
from tests.observation import peers  # noqa: F401  keeps transformers offline


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_architecture_is_built_and_compared():
    record = examine(library("transformers"), "gpt2", "regard", seconds=120.0)
    assert record["status"] == "equal", record
    assert record["difference"] <= 1e-5 < 0.1 < record["without_attention"]
    assert record["wrong_scale"] > 1e-3 and "without_choice" not in record
    assert record["right_padded"] <= 1e-5
    assert record["left_padded"] <= 1e-5
    assert record["generation"] == {"greedy": "equal", "beams": "equal", "static": "equal"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_scale_that_is_wrong_by_a_tenth_is_seen(name):
    with changed_attention.wrong_scale():
        record = examine(library("transformers"), name, "regard", seconds=120.0)
    assert record["status"] == "differs" and "difference" in record["reason"], record
    assert record["difference"] > 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["deepseek_v32", "minimax_m3_vl_text"])
def test_a_choice_of_keys_that_is_overlooked_is_seen(name, monkeypatch):
    source = library("transformers")
    if name not in source.names():
        pytest.skip(f"this transformers has no {name}")
    record = examine(source, name, "regard", seconds=120.0)
    assert record["status"] == "equal" and record["without_choice"] > 1e-2 and record["wrong_scale"] > 1e-3, record
    monkeypatch.setattr(attention, "chosen_keys", lambda *given: None)
    record = examine(source, name, "regard", seconds=120.0)
    assert record["status"] == "differs" and record["difference"] > 1e-2, record


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_comparison_in_which_a_mistake_does_not_show_is_not_counted_as_equal(monkeypatch):
    """A fresh BERT: its weights are so small that all scores are about zero."""
    monkeypatch.setattr(on_regard, "_sharpen", lambda *given: None)
    record = examine(library("transformers"), "bert", "regard", seconds=120.0)
    assert record["status"] == "blunt" and "a scale times 1.1" in record["reason"], record
    assert "0 of 0 architectures" in huggingface_everything.headline([record])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rows_of_padding_that_an_output_reads_are_told_apart_from_wrong_numbers(monkeypatch):
    """VideoPrism's texts have a class token behind the padding, so that all rows of the output are compared."""
    name, source = "videoprism_text_model", library("transformers")
    if name not in source.names():
        pytest.skip("this transformers has no VideoPrism")
    record = examine(source, name, "regard", seconds=120.0)
    assert record["status"] == "equal", record
    assert record["left_padded"].endswith("empty rows") and record["right_padded"] <= 1e-5
    monkeypatch.setattr(changed_attention, "uniform_where_nothing_is_seen", lambda output, *rest: output * 1.01)
    record = examine(source, name, "regard", seconds=120.0)
    assert record["status"] == "differs" and "left_padded" in record["reason"]


@pytest.mark.nightly
def test_every_architecture_equals_its_eager_attention(tmp_path):
    out = tmp_path / "records.json"
    assert huggingface_everything.main(["--out", str(out), "--jobs", "2"]) == 0
    records = json.loads(out.read_text())
    assert sum(one["status"] == "equal" for one in records) >= 150
    assert not [one["name"] for one in records if one["status"] in ("differs", "error", "failed")]


def test_the_page_names_what_was_not_compared():
    equal = {
        "library": "transformers",
        "name": "a",
        "status": "equal",
        "class": "A",
        "calls": 2,
        "difference": 1e-7,
        "right_padded": 2e-7,
        "left_padded": "no text",
        "without_attention": 0.5,
        "wrong_scale": 0.25,
        "generation": {"greedy": "equal"},
    }
    lost = {"library": "transformers", "name": "b", "status": "could not be built", "reason": "no <b|c>"}
    page = huggingface_everything.page([equal, lost])
    assert "1 of 1 architectures" in page
    assert "| a | A | 2 | 1.0e-07 | 2.0e-07 | – | 5.0e-01 | 2.5e-01 | – | equal |" in page
    assert "- b: no ‹b/c›" in page


def test_a_walk_takes_what_is_left_and_is_taken_into_the_record(monkeypatch, tmp_path):
    def one(name, status, **more):
        return {"library": "transformers", "name": name, "attend": "regard", "status": status, **more}

    walked = []

    def examine_all(library, names, attend, jobs, seconds, gigabytes, told, total):
        walked.append(list(names))
        for name in names[:2]:  # the time was over before the third
            told(one(name, "failed", reason="a\n b", trace="long", **{"with": "torch 2.11.0"}))

    known, out = tmp_path / "record.json", tmp_path / "walk.json"
    monkeypatch.setattr(huggingface_everything, "RECORD", known)
    monkeypatch.setattr(huggingface_everything, "PAGE", tmp_path / "record.md")
    monkeypatch.setattr(huggingface_everything, "examine_all", examine_all)
    save(known, [one("bert", "equal"), one("gpt2", "failed", reason="old", **{"with": "torch 2.13.0"})])
    common = ["--only", "bert,gpt2,t5,llama,opt,no-such-name", "--out", str(out)]
    assert huggingface_everything.main([*common, "--left", "--total", "7"]) == 0
    assert huggingface_everything.main([*common, "--left"]) == 0
    assert huggingface_everything.main([*common, "--again", "failed"]) == 0
    assert walked == [["t5", "llama", "opt"], ["opt"], ["gpt2", "t5", "llama", "opt"]]
    assert huggingface_everything.main(["--record", str(out)]) == 0
    records = {one["name"]: one for one in json.loads(known.read_text())}
    assert sorted(records) == ["bert", "gpt2", "llama", "opt", "t5"]
    assert records["gpt2"]["reason"] == "a b" and "trace" not in records["gpt2"]  # the newer walk
    page = (tmp_path / "record.md").read_text()
    assert "torch 2.11.0 (4 names)" in page and "- t5: a b" in page and "## Not walked yet (" in page
    assert huggingface_everything.main(["--record", str(tmp_path / "missing.json")]) == 2


def test_the_page_is_that_of_the_record():
    records = recorded(huggingface_everything.RECORD)
    page = huggingface_everything.PAGE.read_text()
    left = page.split("## Not walked yet")[1].splitlines()[-1].split(", ") if "## Not walked yet" in page else []
    assert page == huggingface_everything.page(records, left)
