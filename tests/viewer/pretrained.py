"""Small random Hugging Face models with a tokenizer of a few words, saved as folders."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<s>", "</s>", "<unk>"]
WORDS += ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "dog", ".", "it", "was"]
SIZES = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def save_tokenizer(folder):
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def save(kind, folder):
    """A model of a kind, in a folder as `save_pretrained` writes it."""
    torch.manual_seed(3)
    folder = Path(folder)
    made = MAKERS[kind]()
    made.save_pretrained(folder)
    if kind != "vit":
        save_tokenizer(folder)
    return folder


def bert_config(layers=2, heads=4, **more):
    return transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=32,
        max_position_embeddings=32,
        **SIZES,
        **more,
    )


def bert():
    return transformers.BertModel(bert_config())


def classifier():
    """Another depth, other heads and other module paths than `bert`; a label that is markup."""
    config = bert_config(3, 2, id2label={0: "bad", 1: "<b>good</b>", 2: "so-so"}, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def labeller():
    config = bert_config(num_labels=5, problem_type="multi_label_classification")
    return transformers.BertForSequenceClassification(config)


def scorer():
    return transformers.BertForSequenceClassification(bert_config(num_labels=1))


def tagger():
    config = bert_config(id2label={0: "O", 1: "B-ANIMAL", 2: "B-THING"}, num_labels=3)
    return transformers.BertForTokenClassification(config)


def gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **SIZES)
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=4, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=4, decoder_start_token_id=0, **SIZES
    )
    return transformers.T5ForConditionalGeneration(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=20, patch_size=5
    )
    return transformers.ViTForImageClassification(config)


MAKERS = {
    "bert": bert,
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
    "classifier": classifier,
    "labeller": labeller,
    "scorer": scorer,
    "tagger": tagger,
}
