"""The vocabulary of a folder: `tokenizer.json`, or BERT's `vocab.txt`, as the state of a task's vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.files import read_bytes, shown
from regard_workbench.models.pretrained.files import read_object
from regard_workbench.tasks.text.vocabulary import PRETRAINED, tokenizers_library

WHOLE = "tokenizer.json"
WORDS = "vocab.txt"
SETTINGS = "tokenizer_config.json"
MOST = 64 * 2**20  # bytes
FILES = (WHOLE, WORDS, SETTINGS, "special_tokens_map.json", "vocab.json", "merges.txt", "spiece.model")


def vocabulary_state(folder: Path, size: int) -> dict[str, Any]:
    """The vocabulary of a checkpoint whose embedding has `size` rows, as `regard_workbench.tasks.text` restores it."""
    if (folder / WHOLE).is_file():
        tokenizer = read_object(folder / WHOLE, MOST)
    elif (folder / WORDS).is_file():
        tokenizer = _of_words(folder)
    else:
        raise BadValue(
            f"init_from: {shown(folder)} holds no {WHOLE} and no {WORDS}, so no text can be read as in training. "
            "Copy the file from the source of the model, or write it: tokenizer.save_pretrained(folder)."
        )
    return {"level": PRETRAINED, "size": size, "tokenizer": tokenizer}


def _of_words(folder: Path) -> dict[str, Any]:
    """BERT's tokenizer from its list of pieces."""
    try:
        pieces = read_bytes(folder / WORDS, "init_from", MOST).decode().splitlines()
    except UnicodeDecodeError:
        raise BadValue(f"init_from: {shown(folder / WORDS)} is not UTF-8.") from None
    ids = {piece: number for number, piece in enumerate(pieces)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in ids]
    if missing:
        raise BadValue(f"init_from: {shown(folder / WORDS)} has no {missing[0]}; expected BERT's list of pieces.")
    settings = read_object(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    lower = settings.get("do_lower_case", True) is not False
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    tokenizer.add_special_tokens([token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in ids])
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    )
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    return description
