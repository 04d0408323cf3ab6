"""The vocabulary of a checkpoint: its `tokenizer.json`, with ids and special tokens of its own.

A special token in a text ("[SEP]") is read as the characters that it is made of, so no text can produce its id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regard.core.arguments import whole_number
from regard.errors import BadValue
from regard.tasks.text.vocabulary import PRETRAINED, Vocabulary, tokenizers_library, whole_characters

_PADDING = ("[PAD]", "<pad>", "<|endoftext|>")
_UNKNOWN = ("[UNK]", "<unk>", "<|endoftext|>")


class PretrainedPieces(Vocabulary):
    """Pieces of text by the ids of a checkpoint; texts get the special tokens that it was trained with.

    `size`: how many rows the checkpoint's embedding has, which may be more than there are pieces.
    """

    level = PRETRAINED

    def __init__(self, tokenizer: Any, size: int) -> None:
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.size = whole_number("size", size, 1)
        if largest >= self.size:
            raise BadValue(f"vocabulary: expected ids below {self.size:,}, got the id {largest:,}.")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.padding = self._first(_PADDING)
        self.unknown = self._first(_UNKNOWN)
        marks = tokenizer.encode("a").special_tokens_mask
        self._last = len(marks) - len("".join(map(str, marks)).rstrip("1"))  # special tokens behind a text

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> PretrainedPieces:
        """The vocabulary that `state` describes; `BadValue` if it describes none."""
        try:
            tokenizer = tokenizers_library().Tokenizer.from_str(json.dumps(state.get("tokenizer")))
        except Exception as trouble:  # the library raises nothing more specific
            raise BadValue(f"vocabulary: its tokenizer cannot be read: {str(trouble)[:100]}.") from None
        size = state.get("size")
        if type(size) is not int:
            raise BadValue(f"vocabulary: expected its size as a whole number, got {str(size)[:50]!r}.")
        return cls(tokenizer, size)

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch([whole_characters(text) for text in texts])
        return [list(one.ids) for one in found]

    def cut(self, ids: list[int], most: int) -> list[int]:
        """The first ids, and the special tokens behind a text."""
        if len(ids) <= most:
            return ids
        last = min(self._last, most)
        return [*ids[: most - last], *ids[len(ids) - last :]]

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._tokenizer.id_to_token(number) or f"<{number}>" for number in ids]

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "size": self.size, "tokenizer": json.loads(self._tokenizer.to_str())}

    def _first(self, names: Sequence[str]) -> int:
        """The id of the first of these tokens that there is, else 0."""
        found = (self._tokenizer.token_to_id(name) for name in names)
        return next((number for number in found if number is not None), 0)
