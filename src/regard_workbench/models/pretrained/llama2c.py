"""Models in the format of llama2.c: seven numbers, then float32 tensors; and its tokenizer.

    dim, hidden, layers, heads, key/value heads, vocabulary (negative: the head has its own weights), longest text

llama2.c rotates neighbouring columns of queries and keys, regard and transformers columns i and i + d/2; so the rows of
these projections are put into another order, which leaves every score as it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.files import opened, read_bytes, shown
from regard_workbench.tasks.text.pretrained_pieces import PretrainedPieces
from regard_workbench.tasks.text.vocabulary import tokenizers_library

START = 1  # begins a text, and ends the one before it
SPECIAL = ("<unk>", "<s>", "</s>")
SPACE = "▁"  # how a space is written in a vocabulary
EPSILON = 1e-5
LARGEST = 2**26
MOST_BYTES = 64 * 2**20  # of a tokenizer
LONGEST_PIECE = 512  # bytes
_HEADER = 28


def is_llama2c(where: str | Path) -> bool:
    """Whether a path is a file that may be in this format."""
    return str(where).endswith(".bin") and "\0" not in str(where) and Path(where).is_file()


def read_llama2c(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a file, as transformers has them for Llama."""
    try:
        with opened(path) as file:
            header = file.read(_HEADER)
        size = path.stat().st_size
    except OSError as trouble:
        raise BadValue(f"name: cannot read {shown(path)}: {trouble.strerror or trouble}.") from None
    numbers = struct.unpack("<7i", header) if len(header) == _HEADER else (0,) * 7
    dim, hidden, layers, heads, groups, vocabulary, length = numbers
    shared, vocabulary = vocabulary > 0, abs(vocabulary)
    plausible = all(0 < number <= LARGEST for number in (dim, hidden, layers, heads, groups, vocabulary, length))
    if not plausible or dim % heads or heads % groups or (dim // heads) % 2:
        raise BadValue(
            f"name: {shown(path)} is not in the format of llama2.c: its header says {numbers}. Expected dim, hidden, "
            "layers, heads, key/value heads, vocabulary and length. A pickle of torch (.bin) is not read."
        )
    width = dim // heads
    shapes = _shapes(dim, hidden, layers, groups * width, vocabulary, length * width // 2, shared)
    wanted = _HEADER + 4 * sum(int(np.prod(shape, dtype=object)) for shape in shapes.values())
    if size != wanted:
        raise BadValue(f"name: {shown(path)}: expected {wanted:,} bytes for the sizes in its header, got {size:,}.")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "rms_norm_eps": EPSILON,
        "bos_token_id": START,
        "eos_token_id": START,
        "pad_token_id": 0,
        "tie_word_embeddings": shared,
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    return config, dict(_tensors(path, shapes, layers, width))


def _shapes(
    dim: int, hidden: int, layers: int, keys: int, vocabulary: int, angles: int, shared: bool
) -> dict[str, tuple[int, ...]]:
    """The tensors in the order of the file; `angles`: numbers in each of its two tables of rotations."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (vocabulary, dim),
        "input_layernorm": (layers, dim),
        "self_attn.q_proj": (layers, dim, dim),
        "self_attn.k_proj": (layers, keys, dim),
        "self_attn.v_proj": (layers, keys, dim),
        "self_attn.o_proj": (layers, dim, dim),
        "post_attention_layernorm": (layers, dim),
        "mlp.gate_proj": (layers, hidden, dim),
        "mlp.down_proj": (layers, dim, hidden),
        "mlp.up_proj": (layers, hidden, dim),
        "norm": (dim,),
        "cosines": (angles,),
        "sines": (angles,),
    }
    return shapes if shared else {**shapes, "lm_head": (vocabulary, dim)}


def _tensors(path: Path, shapes: dict[str, tuple[int, ...]], layers: int, width: int) -> Iterator[tuple[str, Tensor]]:
    numbers = np.memmap(path, dtype="<f4", mode="r", offset=_HEADER)
    first = 0
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        tensor = torch.from_numpy(np.array(numbers[first : first + count], dtype=np.float32)).view(shape)
        first += count
        if name in ("cosines", "sines"):
            continue
        if name.endswith(("q_proj", "k_proj")):
            tensor = tensor.unflatten(1, (-1, width // 2, 2)).transpose(2, 3).reshape(shape)
        if name in ("embed_tokens", "norm", "lm_head"):
            yield f"{'' if name == 'lm_head' else 'model.'}{name}.weight", tensor
            continue
        for number in range(layers):
            yield f"model.layers.{number}.{name}.weight", tensor[number]


def llama2c_vocabulary(path: str | Path) -> PretrainedPieces:
    """The vocabulary of a model: a file of pieces with scores (`tokenizer.bin`)."""
    tokenizer = read_tokenizer(path)
    return PretrainedPieces(tokenizer, tokenizer.get_vocab_size())


def read_tokenizer(path: str | Path) -> Any:
    """The same as a `tokenizers.Tokenizer`: of two pieces, the one with the better score is merged first."""
    pieces = _pieces(read_bytes(path, "path", MOST_BYTES), shown(path))
    ids = {piece: number for number, (piece, _) in enumerate(pieces[len(SPECIAL) :], start=len(SPECIAL))}
    ids |= {piece: number for number, piece in enumerate(SPECIAL)}
    merges = []
    for piece, score in pieces[len(SPECIAL) :]:
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        merges += [(-score, pair) for pair in halves if pair[0] in ids and pair[1] in ids]
    merges.sort(key=lambda found: found[0])
    library = tokenizers_library()
    tokenizer = library.Tokenizer(
        library.models.BPE(ids, [pair for _, pair in merges], unk_token=SPECIAL[0], fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = library.normalizers.Sequence(
        [library.normalizers.Prepend(SPACE), library.normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = library.decoders.Sequence(
        [
            library.decoders.Replace(SPACE, " "),
            library.decoders.ByteFallback(),
            library.decoders.Fuse(),
            library.decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    start = SPECIAL[START]
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, START)]
    )
    return tokenizer


def _pieces(data: bytes, where: str) -> list[tuple[str, float]]:
    """The pieces of a file with their scores; the first number of the file is the length of the longest piece."""
    pieces: list[tuple[str, float]] = []
    place = 4
    while place < len(data):
        score, length = struct.unpack_from("<fi", data, place) if place + 8 <= len(data) else (0.0, -1)
        piece = data[place + 8 : place + 8 + max(0, length)]
        if not 0 <= length <= LONGEST_PIECE or len(piece) != length or not math.isfinite(score):
            raise BadValue(f"path: {where} is no tokenizer of llama2.c: piece {len(pieces):,} cannot be read.")
        try:
            pieces.append((piece.decode("utf-8").replace(" ", SPACE), score))
        except UnicodeDecodeError:
            raise BadValue(f"path: {where}: piece {len(pieces):,} is not UTF-8.") from None
        place += 8 + length
    if len(pieces) <= len(SPECIAL):
        raise BadValue(f"path: {where} is no tokenizer of llama2.c: it holds {len(pieces)} pieces.")
    return pieces
