"""GPT-2, Llama, Mistral and Qwen checkpoints as regard's `decoder`, compared with transformers on random weights."""

import json

import pytest
import torch
import transformers

from regard_workbench.models import from_pretrained
from regard_workbench.tasks.parts.batch import Batch
from tests.interop.pretrained.checkpoints import GPT2_SIZES, SIZES, check_same, inputs, random_model, write

GPT2 = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "narrow blocks with ReLU": {"n_inner": 31, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
}
ROPE = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "rope_theta": 500.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 23,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 41 / 16,
        "rope_theta": 500.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
    },
    "yarn with its own gain": {
        "rope_type": "yarn",
        "factor": 41 / 16,
        "rope_theta": 700.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
        "truncate": False,
    },
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
LLAMA = {
    "plain": ("Llama", SIZES),
    "grouped heads, tied": ("Llama", {**GROUPED, "tie_word_embeddings": True}),
    "biases and wide heads": ("Llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    **{f"rope {name}": ("Llama", {**GROUPED, "rope_parameters": rope}) for name, rope in ROPE.items()},
    "Mistral with a window": ("Mistral", {**GROUPED, "sliding_window": 4, "rms_norm_eps": 1e-3}),
    "Mistral without a window": ("Mistral", {**GROUPED, "sliding_window": None}),
    "Qwen 2": ("Qwen2", GROUPED),
    "Qwen 2 with a window in its last layers": (
        "Qwen2",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "Qwen 3": ("Qwen3", {**GROUPED, "head_dim": 14, "tie_word_embeddings": True}),
    "Qwen 3 with biases": ("Qwen3", {**SIZES, "num_key_value_heads": 1, "head_dim": 6, "attention_bias": True}),
}


@pytest.mark.parametrize("options", GPT2.values(), ids=GPT2)
@pytest.mark.parametrize("head", ["LMHeadModel", "Model"])
def test_gpt2_gives_the_same_outputs_and_is_saved_as_gpt2(head, options, tmp_path):
    config = transformers.GPT2Config(**{**GPT2_SIZES, **options})
    check_same(random_model(getattr(transformers, f"GPT2{head}"), config), tmp_path)


@pytest.mark.parametrize(("name", "options"), LLAMA.values(), ids=LLAMA)
def test_what_is_built_like_llama_gives_the_same_logits_and_is_saved_as_it_was(name, options, tmp_path):
    config = getattr(transformers, f"{name}Config")(**options)
    check_same(random_model(getattr(transformers, f"{name}ForCausalLM"), config), tmp_path)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_the_hidden_states_of_a_base_model_are_the_rows(name, tmp_path):
    config = getattr(transformers, f"{name}Config")(**GROUPED)
    check_same(random_model(getattr(transformers, f"{name}Model"), config), tmp_path, ("right",))


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_texts_are_continued_token_by_token_as_transformers_does_with_padding_on_the_left(name, tmp_path):
    if name == "gpt2":
        model = random_model(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2_SIZES))
    elif name == "llama":
        model = random_model(transformers.LlamaForCausalLM, transformers.LlamaConfig(**GROUPED))
    else:
        config = transformers.MistralConfig(**GROUPED, sliding_window=4)
        model = random_model(transformers.MistralForCausalLM, config)
    loaded = from_pretrained(write(model, tmp_path))
    ids, keep = inputs("left")
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2}
    wanted = model.generate(ids, attention_mask=keep.long(), **options)[:, ids.shape[1] :]
    found = loaded.generate(Batch.of(ids, keep), max_length=9)
    for row, (best,) in zip(wanted.tolist(), found, strict=True):
        assert best.tokens[: len(row)] == row[: len(best.tokens)] and len(best.tokens) > 3


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (transformers.Qwen2Config(**GROUPED), "Qwen2ForCausalLM"),
        (transformers.GPT2Config(**GPT2_SIZES), "GPT2LMHeadModel"),
    ],
    ids=["qwen2", "gpt2"],
)
def test_a_configuration_that_names_no_class_is_that_of_a_language_model(config, architecture, tmp_path):
    model = random_model(getattr(transformers, architecture), config)
    write(model, tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    assert told.pop("architectures") == [architecture]
    (tmp_path / "config.json").write_text(json.dumps(told))
    loaded = from_pretrained(tmp_path)
    assert loaded.pretrained.architecture == architecture
    ids, _ = inputs("none")
    with torch.no_grad():
        torch.testing.assert_close(loaded(Batch.of(ids)), model(ids).logits, rtol=0, atol=1e-5)


def test_the_older_way_to_write_rotary_positions_is_read(tmp_path):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}
    config = transformers.LlamaConfig(**{**GROUPED, "rope_parameters": rope})
    model = random_model(transformers.LlamaForCausalLM, config)
    write(model, tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    del told["rope_parameters"]
    told |= {"rope_theta": 1000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(told))
    ids, _ = inputs("none")
    with torch.no_grad():
        found = from_pretrained(tmp_path)(Batch.of(ids))
        torch.testing.assert_close(found, model(ids).logits, rtol=0, atol=1e-5)
