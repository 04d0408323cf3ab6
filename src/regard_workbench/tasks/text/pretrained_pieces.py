"""The vocabulary of a checkpoint: its `tokenizer.json`, with ids and special tokens of its own.

A special token in a text ("[SEP]") is read as the characters that it is made of, so no text can produce its id.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.text.characters import whole_characters
from regard_workbench.tasks.text.vocabulary import PRETRAINED, Vocabulary, tokenizers_library

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
        encodings = self._tokenizer.encode_batch([whole_characters(text) for text in texts])
        return [list(encoding.ids) for encoding in encodings]

    def encode_words(self, words: Sequence[str], most: int | None = None) -> tuple[list[int], list[int]]:
        """The ids of a sentence, at most `most`, and where the first piece of each word stands, of those that fit.

        The words are read as one text with spaces between them, as the checkpoint read its texts. A word of which its
        tokenizer leaves nothing (a lone accent) is unknown.
        """
        words = [whole_characters(word) for word in words]
        begins = list(accumulate((len(word) + 1 for word in words), initial=0))[:-1]
        read = self._tokenizer.encode(" ".join(words))
        around: tuple[list[int], list[int]] = [], []  # special tokens before and behind the text
        word_ids: list[list[int]] = [[] for _ in words]
        for number, (begin, end), special in zip(read.ids, read.offsets, read.special_tokens_mask, strict=True):
            if special:
                around[any(word_ids)].append(number)
            else:  # by its last character: some pieces begin with the space before them
                word_ids[bisect_right(begins, max(begin, end - 1)) - 1].append(number)
        pieces = [some or [self.unknown] for some in word_ids]
        room = sum(map(len, pieces)) if most is None else max(0, most - sum(map(len, around)))
        places = accumulate(map(len, pieces), initial=len(around[0]))
        firsts = [place for place, _ in zip(places, pieces, strict=False) if place < len(around[0]) + room]
        return [*around[0], *[piece for some in pieces for piece in some][:room], *around[1]], firsts

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
        ids = (self._tokenizer.token_to_id(name) for name in names)
        return next((number for number in ids if number is not None), 0)
