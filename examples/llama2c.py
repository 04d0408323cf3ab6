"""A llama2.c checkpoint as a Hugging Face folder, so that `regard view FOLDER --text "…" --generate 40` can open it.

    python examples/llama2c.py stories260K.bin tok512.bin FOLDER

The checkpoint is seven integers and then float32 tensors in a fixed order. Two things differ from Hugging Face's Llama.
llama2.c turns neighbouring pairs of channels by the rotary angle, Hugging Face pairs channel i with i + d/2: the rows
of the query and key projections change places. And the vocabulary is a list of pieces with scores, from which the order
of merges follows.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>"]


def read_model(path: Path) -> LlamaForCausalLM:
    """The model of a checkpoint."""
    data = path.read_bytes()
    dim, hidden, layers, heads, shared_heads, words, length = struct.unpack("<7i", data[:28])
    numbers = torch.from_numpy(np.frombuffer(data[28:], dtype="<f4").copy())
    at = 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        size = int(np.prod(shape))
        part, at = numbers[at : at + size].reshape(shape), at + size
        return part

    size = dim // heads
    tensors = {"model.embed_tokens.weight": take(abs(words), dim)}
    names = [
        ("input_layernorm", (dim,)),
        ("self_attn.q_proj", (dim, dim)),
        ("self_attn.k_proj", (shared_heads * size, dim)),
        ("self_attn.v_proj", (shared_heads * size, dim)),
        ("self_attn.o_proj", (dim, dim)),
        ("post_attention_layernorm", (dim,)),
        ("mlp.gate_proj", (hidden, dim)),
        ("mlp.down_proj", (dim, hidden)),
        ("mlp.up_proj", (hidden, dim)),
    ]
    for name, shape in names:
        for layer, part in enumerate(take(layers, *shape)):
            turned = _half_split(part, size) if name.endswith(("q_proj", "k_proj")) else part
            tensors[f"model.layers.{layer}.{name}.weight"] = turned
    tensors["model.norm.weight"] = take(dim)
    take(length, size)  # cosines and sines, which anybody can compute
    own_head = words < 0
    tensors["lm_head.weight"] = take(-words, dim) if own_head else tensors["model.embed_tokens.weight"]
    assert at == len(numbers), f"{path}: {len(numbers) - at} numbers are left over"

    config = LlamaConfig(
        vocab_size=abs(words), hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=shared_heads, max_position_embeddings=length,
        rms_norm_eps=1e-5, tie_word_embeddings=not own_head, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(tensors)
    return model.eval()


def _half_split(weight: Tensor, size: int) -> Tensor:
    pairs = weight.reshape(-1, size // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The vocabulary of a checkpoint."""
    data, at = path.read_bytes(), 4  # the first integer is the length of the longest piece
    pieces: list[tuple[str, float]] = []
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        pieces.append((data[at + 8 : at + 8 + size].decode("utf-8").replace(" ", "▁"), score))
        at += 8 + size
    vocabulary = {piece: number for number, (piece, _) in enumerate(pieces[3:], start=3)}
    vocabulary |= {piece: number for number, piece in enumerate(SPECIAL)}

    merges = []
    for piece, score in pieces[3:]:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += [(-score, pair) for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
    merges.sort(key=lambda found: found[0])

    tokenizer = Tokenizer(
        BPE(vocabulary, [pair for _, pair in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def convert(checkpoint: Path, vocabulary: Path, folder: Path) -> Path:
    """Writes the folder and hands it back."""
    read_model(checkpoint).save_pretrained(folder)
    read_tokenizer(vocabulary).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(convert(*map(Path, sys.argv[1:])))
