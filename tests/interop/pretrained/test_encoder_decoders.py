"""T5 and Marian checkpoints as regard's `transformer`, compared with transformers on random weights."""

import pytest
import torch
import transformers

from regard_workbench.models import from_pretrained
from regard_workbench.tasks.parts.batch import Batch
from tests.interop.pretrained.checkpoints import (
    LENGTH,
    VOCABULARY,
    check_same,
    inputs,
    ours,
    random_model,
    theirs,
    write,
)

T5_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 7,
    "d_ff": 37,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
T5 = {
    "plain": {},
    "few buckets, other depth of the decoder": {
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
        "num_decoder_layers": 2,
    },
    "version 1.1: gated, logits not scaled": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated with SiLU": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3, "decoder_start_token_id": 5},
}
MARIAN_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "decoder_start_token_id": 96,
    "pad_token_id": 96,
}
MARIAN = {
    "plain": {},
    "as translation models are": {"scale_embedding": True, "activation_function": "swish"},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("options", T5.values(), ids=T5)
def test_t5_gives_the_same_logits_and_is_saved_as_t5(options, tmp_path):
    config = transformers.T5Config(**{**T5_SIZES, **options})
    check_same(random_model(transformers.T5ForConditionalGeneration, config), tmp_path)


def test_the_encoder_of_t5_alone_gives_the_same_rows(tmp_path):
    model = random_model(transformers.T5EncoderModel, transformers.T5Config(**T5_SIZES))
    check_same(model, tmp_path, padding=0)


def test_a_head_of_its_own_in_the_file_counts_as_transformers_counts_it(tmp_path):
    from safetensors.torch import load_file, save_file

    config = transformers.T5Config(**{**T5_SIZES, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False})
    write(random_model(transformers.T5ForConditionalGeneration, config), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(VOCABULARY, 24, generator=torch.Generator().manual_seed(3))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    loaded = from_pretrained(tmp_path)
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])
    ids, keep = inputs("right")
    torch.testing.assert_close(ours(loaded, ids, keep), theirs(model, ids, keep), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("options", MARIAN.values(), ids=MARIAN)
def test_marian_gives_the_same_logits_and_is_saved_as_marian(options, tmp_path):
    config = transformers.MarianConfig(**{**MARIAN_SIZES, **options})
    model = random_model(transformers.MarianMTModel, config)
    with torch.no_grad():
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(2))
    check_same(model, tmp_path, padding=96)


@pytest.mark.parametrize("kind", ["T5", "Marian"])
def test_texts_are_written_token_by_token_as_transformers_writes_them(kind, tmp_path):
    if kind == "T5":
        model = random_model(transformers.T5ForConditionalGeneration, transformers.T5Config(**T5_SIZES))
    else:
        model = random_model(transformers.MarianMTModel, transformers.MarianConfig(**MARIAN_SIZES))
        model.generation_config.bad_words_ids = model.generation_config.forced_eos_token_id = None
    loaded = from_pretrained(write(model, tmp_path))
    ids, keep = inputs("right", model.config.pad_token_id)
    wanted = model.generate(ids, attention_mask=keep.long(), max_new_tokens=9, do_sample=False, num_beams=1)[:, 1:]
    found = loaded.generate(Batch.of(ids, keep), max_length=9)
    for row, (best,) in zip(wanted.tolist(), found, strict=True):
        assert best.tokens[: len(row)] == row[: len(best.tokens)] and best.tokens
