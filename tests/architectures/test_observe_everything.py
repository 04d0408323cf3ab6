"""The sweep over other libraries' architectures: a few of them, and its machinery."""

import json
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.architectures import huggingface, inputs, observation, observe_everything, pool, shrinking, table
from tests.architectures.building import NotBuilt
from tests.architectures.repairs import mended
from tests.architectures.worker import examine
from tests.observation import peers  # noqa: F401  keeps Hugging Face offline

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about their own configurations


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("bert", 2), ("t5", 6), ("clip", 4)])
def test_known_architectures_are_built_small_and_fully_seen(name, calls):
    record = examine(huggingface, name, None, seconds=100)
    assert (record["status"], record["oracle"], record["seen"]) == ("full", calls, calls), record
    assert record["same_bits"] and record["parameters"] < 2_000_000
    assert record["compared"] == calls and record["largest_difference"] < 1e-5


def test_attention_that_is_written_out_is_counted():
    record = examine(huggingface, "bloom", None, seconds=100)
    assert record["oracle"] == 2
    first = record["oracle_calls"][0]
    assert (first["module"], first["op"], first["scored_by"], first["mixed_by"]) == (
        "BloomAttention",
        "_softmax",
        "baddbmm",
        "bmm",
    )
    assert "modeling_bloom.py:" in first["where"]


def test_what_cannot_be_built_says_why():
    def build(name, attend, check, reasons):
        reasons += ["small configuration 0: no", "forward(input_ids): too wide", "forward(input_ids): too wide"]
        raise NotBuilt(reasons)

    record = examine(SimpleNamespace(build=build), "some", None, seconds=100)
    assert (record["status"], record["reason"]) == ("could not be built", "forward(input_ids): too wide")
    assert len(record["reasons"]) == 2


def test_a_configuration_without_a_model_is_no_failure():
    assert examine(huggingface, "sam_mask_decoder", None, seconds=100)["status"] == "no model of its own"


def test_every_architecture_of_the_registry_is_walked():
    from transformers import CONFIG_MAPPING

    assert set(huggingface.names()) == set(CONFIG_MAPPING.keys())


def test_a_small_configuration_keeps_heads_and_one_layer_of_each_kind():
    from transformers import Gemma3TextConfig

    full = Gemma3TextConfig()
    small = shrinking.small(full, shrinking.Rules())
    assert small.num_attention_heads == full.num_attention_heads
    assert small.head_dim == full.head_dim // 8 and small.hidden_size == full.hidden_size // 8
    assert sorted(set(small.layer_types)) == sorted(set(full.layer_types))
    assert len(small.layer_types) == small.num_hidden_layers <= 4


def test_inputs_that_an_error_names_are_added():
    class Model(nn.Module):
        main_input_name = "input_ids"
        config = type("Config", (), {"vocab_size": 31, "is_encoder_decoder": False})()

        def forward(self, input_ids, pixel_values=None):
            if pixel_values is None:
                raise ValueError("You have to specify pixel_values")
            return input_ids

    model, reasons = Model(), []
    given = next(huggingface._working(model, reasons))
    assert set(given) == {"input_ids", "pixel_values"} and given["input_ids"].max() < 31
    more = mended("pixel_values?", model, {"input_ids": given["input_ids"]}, inputs.Maker(model.config))
    assert set(more) == {"input_ids", "pixel_values"}


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (34x5 and 11x7)", (2, 3, 11)),
        ("The size of tensor a (3) must match the size of tensor b (13) at non-singleton dimension 1", (2, 13, 5)),
        ("expected input[2, 3, 5] to have 17 channels, but got 3 channels instead", (2, 17, 5)),
        ("`features` length 5 is not a multiple of 7. Pad it.", (2, 3, 14)),
    ],
)
def test_sizes_that_an_error_names_are_mended(message, shape):
    config = SimpleNamespace()
    model = SimpleNamespace(forward=lambda features: None, modules=list, config=config)
    more = mended(message, model, {"features": torch.randn(2, 3, 5)}, inputs.Maker(config))
    assert more["features"].shape == shape


def test_a_text_gets_as_many_placeholders_as_a_picture_has_features():
    config = SimpleNamespace(image_token_id=29, vocab_size=31)
    given = {"input_ids": torch.zeros(2, 17).long(), "attention_mask": torch.ones(2, 17).long()}
    message = "Image features and image tokens do not match, tokens: 0, features: 10"
    more = mended(message, None, given, inputs.Maker(config))
    assert (more["input_ids"] == 29).sum() == 10 and more["attention_mask"].shape == more["input_ids"].shape


class _Twice(nn.Module):
    """Attends twice: once where it can be seen, once by hand."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], x[None])[0]


def test_a_record_compares_weights_with_the_oracle_and_bits_with_a_plain_run():
    record = observation.look(_Twice().eval(), {"*": (torch.randn(2, 5, 12),)})
    assert (record["oracle"], record["seen"], record["status"]) == (1, 1, "full")
    assert record["same_bits"] and record["largest_difference"] < 1e-6


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "full"),
        ({"seen": 1, "missed": {"a": 1}}, "partial"),
        ({"seen": 0, "missed": {"a": 2}}, "nothing"),
        ({"oracle": 0, "seen": 0}, "no attention"),
        ({"same_bits": False}, "differs"),
        ({"largest_difference": 0.1}, "wrong weights"),
        ({"unreadable": ["why"]}, "partial"),
    ],
)
def test_each_status_has_its_own_facts(changes, status):
    facts = {"oracle": 2, "seen": 2, "missed": {}, "same_bits": True, "largest_difference": 0.0, "unreadable": []}
    assert observation.status(facts | changes) == status


def test_a_worker_that_dies_is_started_again(monkeypatch, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        textwrap.dedent("""
            import json, os, sys
            print(json.dumps({"ready": True}), flush=True)
            for line in sys.stdin:
                if line.strip() == "bad":
                    os._exit(3)
                print(json.dumps({"name": line.strip(), "attend": "default", "status": "full"}), flush=True)
        """)
    )
    monkeypatch.setattr(pool, "command", lambda *given: [sys.executable, str(script)])
    told = []
    records = pool.examine_all("some", ["one", "bad", "two"], "default", 1, 60.0, 1.0, told.append)
    assert [one["status"] for one in records] == ["full", "could not be built", "full"]
    assert "died" in records[1]["reason"] and len(told) == 3


def test_one_that_hangs_is_killed_and_the_walk_ends_in_time(monkeypatch, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, sys, time
            print(json.dumps({"ready": True}), flush=True)
            for line in sys.stdin:
                time.sleep({"hangs": 600, "slow": 600}.get(line.strip(), 0))
                print(json.dumps({"name": line.strip(), "attend": "default", "status": "full"}), flush=True)
            """
        )
    )
    monkeypatch.setattr(pool, "command", lambda *given: [sys.executable, str(script)])
    names = ["one", "hangs", "two"]
    records = pool.examine_all("torch", names, "default", 1, 0.6, 1.0, lambda record: None)
    assert [one["status"] for one in records] == ["full", "could not be built", "full"]
    assert "took too long" in records[1]["reason"] and records[0]["with"].startswith("torch 2.")
    begun = time.monotonic()
    records = pool.examine_all("torch", ["one", "slow", "two"], "default", 1, 60.0, 1.0, lambda record: None, total=5.0)
    assert [one["name"] for one in records] == ["one"]  # the others are left for the next walk
    assert 4.9 < time.monotonic() - begun < 30.0


def test_a_worker_that_does_not_start_says_how_to_see_why(monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "command", lambda *given: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="did not start"):
        pool.examine_all("torch", ["one", "two"], "default", 2, 60.0, 1.0, lambda record: None)


def _record(name, status, **more):
    call = {
        "path": "a",
        "module": "Attend",
        "where": "file.py:3",
        "op": "_softmax",
        "scored_by": "bmm",
        "mixed_by": "bmm",
        "shape": [2, 3, 5, 5],
        "dim": -1,
    }
    facts = {
        "library": "some",
        "name": name,
        "attend": "default",
        "status": status,
        "oracle": 1,
        "seen": 0,
        "class": "Net",
    }
    return facts | {"missed": {"a": 1}, "oracle_calls": [call], "unreadable": []} | more


def test_the_table_is_rewritten_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nbefore\n")
    records = [_record("net", "nothing"), _record("mlp", "no attention", oracle=0), _record("bert", "full", seen=1)]
    table.rewrite(page, records)
    first = page.read_text()
    assert "1 | 1 | 0 | 1 |" not in first and "| net | 0 | 1 | nothing | `Attend` |" in first
    page.write_text(first + "\nafter\n")
    table.rewrite(page, records[2:])
    text = page.read_text()
    assert text.startswith("# Title\n\nbefore\n") and text.rstrip().endswith("after")
    assert text.count(table.BEGIN) == text.count(table.END) == 1 and "| net |" not in text
    assert "1 of 2 architectures with softmax attention" in table.headline(records)
    assert "Attend at file.py:3: _softmax of (2, 3, 5, 5) along -1; scores by bmm" in table.missing(records)


def test_the_command_line_writes_all_details(monkeypatch, tmp_path):
    monkeypatch.setattr(
        observe_everything, "library", lambda name: type("Some", (), {"names": staticmethod(lambda: ["a", "b"])})
    )
    monkeypatch.setattr(
        observe_everything, "examine_all", lambda library, names, *rest: [_record(name, "full") for name in names]
    )
    out = tmp_path / "all.json"
    assert observe_everything.main(["--library", "some", "--only", "b", "--out", str(out)]) == 0
    assert observe_everything.main(["--library", "some", "--left", "--merge", "--out", str(out)]) == 0
    assert [one["name"] for one in json.loads(out.read_text())] == ["a", "b"]
