"""Saving in the Hub's form: own models, several files with an index, the card, the upload."""

import json

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file

from regard.errors import BadType, BadValue
from regard_workbench import models
from regard_workbench.models import from_pretrained, push_to_hub, save_pretrained
from regard_workbench.tasks.answers import EachOf, NextToken, OneOf, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches, Tokens, Vectors
from tests.interop.pretrained.checkpoints import SIZES, inputs, ours, random_model, theirs, write

OWN = {
    "an encoder with local attention": (
        "encoder(dim=24, layers=2, num_heads=3, attention=local(window=5), positions=learned)",
        Problem.of(Tokens(97, length=41), OneOf(5)),
    ),
    "a decoder with one mechanism for each layer": (
        "decoder(dim=24, layers=2, attention='causal(window=3), causal(positions=rotary(base=500.0))', num_heads=2)",
        Problem.of(Tokens(97, length=41), NextToken(97, 2)),
    ),
    "an encoder of vectors": ("encoder(dim=12, layers=1)", Problem.of(Vectors(7), EachOf(3))),
    "a transformer": (
        "transformer(preset=vaswani, dim=16, layers=1, num_heads=2, hidden=23, tied_source=true)",
        Problem.of(Tokens(97, length=41), Writes(97, 19, 1, 2)),
    ),
    "a picture in patches": (
        "encoder(dim=12, layers=1)",
        Problem.of(Patches.of(1, 8, 8, 4, mean=(0.5,), spread=(0.25,)), OneOf(3)),
    ),
}


def example(model):
    torch.manual_seed(1)
    stream = model.problem.inputs
    numbers = isinstance(stream, Vectors)
    data = torch.randn(3, 4, stream.width) if numbers else torch.randint(3, 97, (3, 11))
    writes = isinstance(model.problem.answer, Writes)
    return Batch.of(data, None, torch.randint(3, 97, (3, 5)) if writes else None)


@pytest.mark.parametrize(("text", "problem"), OWN.values(), ids=OWN)
def test_a_model_of_regard_comes_back_with_the_same_outputs(text, problem, tmp_path):
    torch.manual_seed(2)
    model = models.build(text, problem).eval()
    save_pretrained(model, tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    assert again.problem == model.problem and type(again) is type(model) and not again.training
    assert torch.equal(again(example(model)), model(example(model)))
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "regard"
    assert len({path.stat().st_mode for path in (tmp_path / "saved").iterdir()}) == 1  # all may be read by the same


def test_what_cannot_be_built_again_is_not_saved(tmp_path):
    problem = Problem.of(Tokens(97, length=41), OneOf(5))
    unnamed = models.MODELS["encoder"](problem, dim=12, layers=1)
    with pytest.raises(BadValue, match=r"regard\.models\.build"):
        save_pretrained(unnamed, tmp_path / "a")
    with pytest.raises(BadValue, match=r"expected a model of regard\.models, got Linear"):
        save_pretrained(torch.nn.Linear(2, 3), tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_a_large_model_is_written_as_several_files_that_both_libraries_read(tmp_path):
    model = random_model(transformers.BertModel, transformers.BertConfig(**SIZES))
    loaded = from_pretrained(write(model, tmp_path / "one"))
    save_pretrained(loaded, tmp_path / "several")
    save_pretrained(loaded, tmp_path / "several", largest_file=20_000)
    names = sorted(path.name for path in (tmp_path / "several").glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    ids, keep = inputs("right")
    wanted = theirs(model, ids, keep)
    again = transformers.BertModel.from_pretrained(tmp_path / "several").eval()
    assert torch.equal(theirs(again, ids, keep), wanted)
    torch.testing.assert_close(ours(from_pretrained(tmp_path / "several"), ids, keep), wanted, rtol=0, atol=1e-5)
    save_pretrained(loaded, tmp_path / "several")
    torch.testing.assert_close(ours(from_pretrained(tmp_path / "several"), ids, keep), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("files", [1, 2, 3])
def test_weights_in_so_many_files_are_read_by_both_libraries(files, tmp_path):
    model = random_model(transformers.BertModel, transformers.BertConfig(**SIZES))
    loaded = from_pretrained(write(model, tmp_path / "theirs"))
    sizes = [4 * one.numel() for one in model.parameters()]
    save_pretrained(loaded, tmp_path, largest_file=sum(sizes) // files + (max(sizes) if files > 1 else 0))
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(names) == files
    assert (tmp_path / "model.safetensors.index.json").exists() == (files > 1)
    ids, keep = inputs("right")
    wanted = theirs(model, ids, keep)
    assert torch.equal(theirs(transformers.BertModel.from_pretrained(tmp_path).eval(), ids, keep), wanted)
    torch.testing.assert_close(ours(from_pretrained(tmp_path), ids, keep), wanted, rtol=0, atol=1e-5)


def test_tensors_without_a_place_here_are_written_back_as_they_were(tmp_path):
    model = random_model(transformers.BertForPreTraining, transformers.BertConfig(**SIZES))
    save_pretrained(from_pretrained(write(model, tmp_path / "theirs")), tmp_path / "ours")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert set(after) >= {"bert.pooler.dense.weight", "cls.seq_relationship.weight"}
    again, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert sum(map(torch.Tensor.numel, before.values())) == sum(map(torch.Tensor.numel, after.values()))


def test_half_precision_is_kept(tmp_path):
    model = random_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2))
    write(model.to(torch.bfloat16), tmp_path / "theirs")
    assert from_pretrained(tmp_path / "theirs").head.logits.weight.dtype == torch.float32
    loaded = from_pretrained(tmp_path / "theirs", dtype=torch.bfloat16)
    save_pretrained(loaded, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in again.state_dict().items())


def small():
    torch.manual_seed(2)
    return models.build("encoder(dim=12, layers=1)", Problem.of(Tokens(97, length=41), OneOf(5)))


def test_the_card_holds_results_and_signature_and_no_text_in_it_ends_its_place(tmp_path):
    results = {"accuracy": 0.875, 'a | b\n---\nlicense: "x"': 2.0}
    save_pretrained(small(), tmp_path, results=results, signature="task:classify|seed:0\n# not a heading")
    card = (tmp_path / "README.md").read_text()
    _, head, body = card.split("---\n", 2)
    told = yaml.safe_load(head)
    assert told["library_name"] == "regard" and "license" not in told
    metrics = told["model-index"][0]["results"][0]["metrics"]
    assert {one["type"]: one["value"] for one in metrics} == results
    assert "| accuracy | 0.875 |" in body and "    task:classify|seed:0 # not a heading" in body
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        "# encoder: the class of an example",
        "## Results",
        "## Signature",
        "## Model",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.9", True, None])
def test_results_are_finite_numbers(value, tmp_path):
    with pytest.raises((BadValue, BadType), match="results: expected a finite number for 'accuracy'"):
        save_pretrained(small(), tmp_path / "a", results={"accuracy": value})
    assert not (tmp_path / "a").exists()


def test_the_card_is_one_that_the_hub_s_library_reads(tmp_path):
    from huggingface_hub import ModelCard

    save_pretrained(small(), tmp_path, results={"accuracy": 0.875})
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.eval_results[0].metric_value == 0.875 and card.data.library_name == "regard"


def test_push_to_hub_creates_the_repository_and_uploads_what_save_pretrained_writes(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    class Api:
        def __init__(self, token=None):
            calls.append(("token", token))

        def create_repo(self, name, private, exist_ok):
            calls.append(("create", name, private, exist_ok))
            return huggingface_hub.RepoUrl(f"https://huggingface.co/someone/{name}")

        def upload_folder(self, repo_id, folder_path, commit_message):
            for path in __import__("pathlib").Path(folder_path).iterdir():
                (tmp_path / path.name).write_bytes(path.read_bytes())
            calls.append(("upload", repo_id, commit_message))
            return f"https://huggingface.co/{repo_id}/commit/1"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    model = small().eval()
    found = push_to_hub(model, "classifier", private=True, token="secret", results={"accuracy": 0.5}, message="first")
    assert found == "https://huggingface.co/someone/classifier/commit/1"
    assert calls == [
        ("token", "secret"),
        ("create", "classifier", True, True),
        ("upload", "someone/classifier", "first"),
    ]
    assert torch.equal(from_pretrained(tmp_path)(example(model)), model(example(model)))
    assert "| accuracy | 0.5 |" in (tmp_path / "README.md").read_text()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
