"""Folders whose weights or sizes do not match: refused with names, or labelled wherever they are shown."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import BadValue
from regard_workbench.cli.main import main
from regard_workbench.viewer.opening import ViewOptions, open_page

pytest.importorskip("transformers")

from tests.viewer.pretrained import save

TEXT = "the cat sat on a mat"
DROPPED = ["transformer.h.1.attn.c_attn.bias", "transformer.h.1.attn.c_attn.weight"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model-7")


def changed_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def changed_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def without_attention(folder):
    changed_weights(folder, lambda tensors: [tensors.pop(name) for name in DROPPED])


def opened(folder, **options):
    return open_page(ViewOptions(str(folder), text=TEXT, device="cpu", **options))


def test_a_folder_that_lacks_tensors_is_refused_and_they_are_named(folder):
    without_attention(folder)
    with pytest.raises(BadValue, match="--allow-missing") as caught:
        opened(folder)
    assert "2 of" in str(caught.value) and all(name in str(caught.value) for name in DROPPED)


def test_a_folder_with_unexpected_tensors_is_refused_and_they_are_named(folder):
    changed_weights(folder, lambda tensors: tensors.update({"transformer.h.7.oddity": torch.ones(3)}))
    with pytest.raises(BadValue, match=r"1 tensors of the folder unexpected.*transformer\.h\.7\.oddity"):
        opened(folder)


def test_an_unused_pooler_is_no_reason_to_refuse(folder):
    changed_weights(folder, lambda tensors: tensors.update({"transformer.pooler.bias": torch.ones(3)}))
    assert opened(folder).scene()["warning"] == ""


def test_a_tensor_of_another_size_is_refused_and_named(folder):
    changed_weights(folder, lambda tensors: tensors.update({DROPPED[0]: torch.ones(7)}))
    with pytest.raises(BadValue, match=r"another size.*c_attn\.bias \(7,\) instead of \(48,\)"):
        opened(folder)


def test_a_whole_folder_is_opened_without_a_warning(whole):
    scene = opened(whole).scene()
    assert scene["warning"] == "" and "incomplete" not in scene["title"]


def test_allow_missing_labels_the_page_its_title_and_its_variant(folder):
    without_attention(folder)
    said = []
    page_model = open_page(ViewOptions(str(folder), text=TEXT, device="cpu", allow_missing=True), said.append)
    scene = page_model.scene()
    assert "2 of" in scene["warning"] and DROPPED[0] in scene["warning"] and "random" in scene["warning"]
    assert scene["title"] == "model-7 (weights incomplete)" == scene["variants"][0]["name"]
    assert "random" in scene["words"] and any("random" in line for line in said)


def test_allow_missing_says_which_of_two_models_is_incomplete(whole, folder):
    without_attention(folder)
    scene = opened(whole, against=str(folder), allow_missing=True).scene()
    assert [("incomplete" in one["name"]) for one in scene["variants"]] == [False, True]
    assert scene["warning"].startswith(scene["variants"][1]["name"] + ":")


def test_the_command_refuses_or_with_allow_missing_exports_with_a_label(folder, tmp_path, capsys):
    without_attention(folder)
    page = tmp_path / "page.html"
    command = ["view", str(folder), "--text", TEXT, "--device", "cpu", "--export", str(page), "--json"]
    assert main(command) == 2 and not page.exists()
    assert DROPPED[0] in capsys.readouterr().err
    assert main([*command, "--allow-missing"]) == 0
    printed = capsys.readouterr()
    assert DROPPED[0] in json.loads(printed.out)["warning"] and "Warning: 2 of" in printed.err
    text = page.read_text()
    assert "<title>model-7 (weights incomplete)" in text and DROPPED[0] in text.split('id="regard-data">')[1]


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_layer": 10**9},
        {"n_head": 10**9},
        {"num_labels": 10**9},
        {"vocab_size": 10**12},
        {"n_positions": 10**10},
        {"n_embd": 2**25, "n_inner": 2**25},
        {"vocab_size": 10**7, "n_embd": 10**6},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"n_layer": -(10**9)},
        {"n_layer": 10**400},
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(folder, sizes, monkeypatch):
    import transformers

    def never(*args, **kwargs):
        raise AssertionError("the weights were about to be loaded")

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", never)
    changed_config(folder, **sizes)
    with pytest.raises(BadValue, match=r"asks for \w+ = |describes a model of"):
        opened(folder)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
@pytest.mark.parametrize("value", ["flash_attention_2", "eager", "kernels-community/anything", "nothing", {"": "x"}])
def test_the_attention_implementation_of_a_folder_is_ignored(folder, whole, key, value):
    changed_config(folder, **{key: value})
    found, expected = opened(folder), opened(whole)
    model = found.variants[0].seen.model
    assert model.config._attn_implementation == expected.variants[0].seen.model.config._attn_implementation
    torch.testing.assert_close(found.site(0, 1).weights(), expected.site(0, 1).weights())


@pytest.mark.parametrize("content", ["", "[]", "7", "{", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}", "nul", "\0"])
def test_a_configuration_that_is_no_object_is_refused_in_one_line(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(BadValue, match="RUN: ") as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


class PanicException(BaseException):
    """As Rust libraries raise it."""


def test_a_panic_of_a_library_becomes_an_error_and_ctrl_c_passes_through():
    from regard_workbench.viewer.opening.library_errors import in_words

    def fail(trouble):
        raise trouble

    with pytest.raises(BadValue, match=r"^RUN: it failed: PanicException: index out of bounds$"):
        in_words(lambda: fail(PanicException("index out of bounds\nnote: run with")), "it failed")
    for ending in (KeyboardInterrupt(), SystemExit(3), MemoryError()):
        with pytest.raises(type(ending)):
            in_words(lambda one=ending: fail(one), "it failed")
