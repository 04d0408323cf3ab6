"""The tokenizer of a Hugging Face folder. Without its files the library builds one that knows no word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.viewer.opening.library_errors import in_words

WHOLE = "tokenizer.json"  # a fast tokenizer of any kind, in one file
# Vocabulary files of the usual kinds, for a folder whose kind of tokenizer is unknown.
USUAL = (WHOLE, "vocab.txt", "vocab.json and merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
RARE = ("*.spm", "*.tiktoken", "tekken.json", "vocab*", "*.bpe*")  # files of other kinds


def load_tokenizer(transformers: Any, folder: str, where: str, options: dict[str, Any]) -> Any:
    """The tokenizer of a folder; raises an error that names the missing files."""
    try:
        tokenizer = in_words(
            lambda: transformers.AutoTokenizer.from_pretrained(folder, **options),
            f"the tokenizer in {where!r} cannot be read",
        )
    except BadValue:
        if not _holds_any(folder, [filename for name in USUAL for filename in name.split(" and ")]):
            raise _missing(where, USUAL) from None
        raise
    needed = dict(getattr(tokenizer, "vocab_files_names", None) or {})  # empty for tokenizers of bytes or code points
    if needed and not _holds_any(folder, [WHOLE, *needed.values()]):
        vocabulary = [name for name in needed.values() if name != WHOLE]
        raise _missing(where, [WHOLE, *([" and ".join(vocabulary)] if vocabulary else [])])
    return tokenizer


def _holds_any(folder: str, names: list[str]) -> bool:
    return any(path.is_file() for name in (*names, *RARE) for path in Path(folder).glob(name))


def _missing(where: str, names: Any) -> BadValue:
    return BadValue(
        f"RUN: the folder {where!r} holds no tokenizer files, so no text can be read. Expected {', or '.join(names)}. "
        f"Copy them from the source of the model, or write them: tokenizer.save_pretrained({where!r})."
    )
