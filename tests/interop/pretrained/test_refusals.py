"""What is refused when a checkpoint is loaded: settings without a counterpart, by key; hostile and damaged files."""

import json
import os
import pickle
import struct

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from regard.errors import BadValue
from regard_workbench.models import from_pretrained
from tests.interop.pretrained.checkpoints import GPT2_SIZES, SIZES, random_model, write

LLAMA = {**SIZES, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("checkpoints")
    made = {
        "bert": random_model(transformers.BertModel, transformers.BertConfig(**SIZES)),
        "gpt2": random_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2_SIZES)),
        "llama": random_model(transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA)),
        "t5": random_model(
            transformers.T5ForConditionalGeneration,
            transformers.T5Config(vocab_size=97, d_model=24, d_kv=7, d_ff=37, num_layers=1, num_heads=4),
        ),
    }
    return {name: write(model, home / name) for name, model in made.items()}


def changed(folder, target, **settings):
    """A copy of a folder with other settings; None removes one."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config |= settings
    (target / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one is not None}))
    return target


CANNOT = [
    ("bert", "position_embedding_type", "relative_key"),
    ("bert", "is_decoder", True),
    ("bert", "hidden_act", "quick_gelu"),
    ("bert", "hidden_size", 25),
    ("bert", "hidden_size", -24),
    ("bert", "hidden_size", 24.0),
    ("bert", "hidden_size", "24"),
    ("bert", "hidden_size", 10**12),
    ("bert", "num_hidden_layers", 10**9),
    ("bert", "num_hidden_layers", True),
    ("bert", "num_attention_heads", 5),
    ("bert", "layer_norm_eps", 0),
    ("bert", "layer_norm_eps", "nan"),
    ("bert", "hidden_dropout_prob", 2),
    ("bert", "architectures", ["BertForQuestionAnswering"]),
    ("bert", "architectures", [["BertModel"]]),
    ("bert", "model_type", "albert"),
    ("bert", "model_type", 7),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "add_cross_attention", True),
    ("gpt2", "activation_function", {"relu": 1}),
    ("gpt2", "tie_word_embeddings", "yes"),
    ("llama", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    ("llama", "rope_parameters", {"rope_type": "linear", "factor": 0, "rope_theta": 10000.0}),
    ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("llama", "rope_parameters", [1]),
    ("llama", "num_key_value_heads", 3),
    ("llama", "head_dim", 7),
    ("llama", "pretraining_tp", 2),
    ("t5", "feed_forward_proj", "gated-tanhshrink"),
    ("t5", "relative_attention_num_buckets", 3),
]


@pytest.mark.parametrize(
    ("kind", "key", "value"), CANNOT, ids=[f"{k}-{key}-{n}" for n, (k, key, _) in enumerate(CANNOT)]
)
def test_a_setting_that_cannot_be_represented_is_refused_by_its_key(folders, tmp_path, kind, key, value):
    folder = changed(folders[kind], tmp_path / "changed", **{key: value})
    words = {"hidden_size": "num_heads|hidden_size|asks for", "num_attention_heads": "num_heads"}
    words |= {"num_key_value_heads": "kv_heads", "relative_attention_num_buckets": key, "factor": "factor"}
    found = words.get(key, f"{key}|factor|partial_rotary_factor")
    with pytest.raises(BadValue, match=found) as caught:
        from_pretrained(folder)
    assert len(str(caught.value)) < 600


def test_weights_of_another_size_are_refused_before_memory_is_taken(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "a", vocab_size=2**25)
    with pytest.raises(
        BadValue, match=r"word_embeddings\.weight is \(97, 24\), but config\.json asks for \(33554432, 24\)"
    ):
        from_pretrained(folder)


def test_missing_and_surplus_tensors_are_named(folders, tmp_path):
    folder = changed(folders["llama"], tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up_proj" not in name}
    save_file(left, folder / "model.safetensors")
    with pytest.raises(BadValue, match=r"1 tensors are missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        from_pretrained(folder)
    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": torch.zeros(24)}, folder / "model.safetensors")
    with pytest.raises(BadValue, match=r"1 tensors have no place .*q_proj\.bias"):
        from_pretrained(folder)


def test_pickles_are_never_read(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "a")
    (folder / "model.safetensors").unlink()

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadValue, match=r"pytorch_model\.bin, a pickle"):
        from_pretrained(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("place", ["../a.safetensors", "/etc/passwd", "x/y.safetensors", "a.bin", "a\0.safetensors", 7])
def test_an_index_names_files_of_its_folder_only(folders, tmp_path, place):
    folder = changed(folders["bert"], tmp_path / "a")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": place}}))
    with pytest.raises(BadValue, match="index"):
        from_pretrained(folder)


def test_an_index_that_names_a_tensor_where_it_is_not_is_refused(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "a")
    index = {"weight_map": {"embeddings.word_embeddings.weigh": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadValue, match="where it is not"):
        from_pretrained(folder)


HEADERS = [
    b"",
    b"\0" * 7,
    struct.pack("<Q", 2**60) + b"{}",
    struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 4) + b"nope",
    struct.pack("<Q", 30) + b'{"a": {"dtype": "F32", "shap":' + b" ",
    struct.pack("<Q", 9) + b'{"a": [] }'[:9],
    struct.pack("<Q", 40) + b'{"a": {"dtype":"F32","shape":[-1,true]}}',
]


@pytest.mark.parametrize("number", range(len(HEADERS)))
def test_damaged_safetensors_are_refused(folders, tmp_path, number):
    folder = changed(folders["bert"], tmp_path / "a")
    (folder / "model.safetensors").write_bytes(HEADERS[number])
    with pytest.raises(BadValue):
        from_pretrained(folder)


def test_a_file_that_was_cut_is_refused(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "a")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(BadValue, match="damaged"):
        from_pretrained(folder)


def test_quantised_weights_are_refused(folders, tmp_path):
    folder = changed(folders["bert"], tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(97, 24, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BadValue, match="holds I8"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "[" * 100_000, '{"model_type": "regard"}', '{"model_type":"bert"}']
)
def test_odd_configurations_are_refused(folders, tmp_path, text):
    folder = changed(folders["gpt2"], tmp_path / "a")
    (folder / "config.json").write_text(text)
    with pytest.raises(BadValue):
        from_pretrained(folder)


OWN = {"model_type": "regard", "model": "encoder(dim=12, layers=1)", "answer": {"kind": "OneOf", "classes": 5}}
TOKENS = {"inputs": {"kind": "Tokens", "count": 97}}


@pytest.mark.parametrize(
    "config",
    [
        {**OWN, "streams": {"inputs": {"kind": "Protocol"}}},
        {**OWN, "streams": {"inputs": {"kind": "annotations"}}},
        {**OWN, "streams": {"inputs": {"kind": "Tokens", "count": {"a": 1}}}},
        {**OWN, "streams": {"inputs": {"kind": "Tokens"}}},
        {**OWN, "streams": {"inputs": {"kind": "Tokens", "count": 97, "words": "x"}}},
        {**OWN, "streams": TOKENS, "model": "encoder(dim=12"},
        {**OWN, "streams": TOKENS, "model": "os.system(x=1)"},
        {**OWN, "streams": TOKENS, "model": "encoder(layers=1000000000)"},
        {**OWN, "streams": TOKENS, "answer": {"kind": "shifted"}},
        {**OWN, "streams": TOKENS, "answer": None},
        {**OWN, "streams": []},
    ],
    ids=range(11),
)
def test_odd_configurations_of_regard_s_own_form_are_refused(folders, tmp_path, config):
    folder = changed(folders["gpt2"], tmp_path / "a")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadValue):
        from_pretrained(folder)


@pytest.mark.parametrize("name", ["no/such/folder/at/all", "a b", "../up", "x\0y", "", "hf:", "hf:../up", "hf:a/b/c"])
def test_what_is_neither_a_folder_nor_a_name_is_refused(name):
    with pytest.raises(BadValue, match="name"):
        from_pretrained(name)


def test_a_name_is_taken_from_the_hub_s_cache_and_nothing_is_fetched(folders, tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    changed(folders["bert"], tmp_path / "x")
    kept = tmp_path / "models--someone--bert" / "snapshots"
    kept.mkdir(parents=True)
    (tmp_path / "x").rename(kept / "1a2b")

    def refuse(*arguments, **options):
        raise ConnectionError(f"asked for {arguments}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    for name in ("someone/bert", "hf:someone/bert"):
        assert from_pretrained(name).pretrained.folder == kept / "1a2b"
    with pytest.raises(BadValue, match=r"neither a folder nor in the Hub's cache.*asked for \('someone/gpt2',\)"):
        from_pretrained("someone/gpt2")
