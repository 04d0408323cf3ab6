"""From text to ids and back: by character, by word, or by byte pairs. Five ids come first and mean the same everywhere.

The special ids have no written form, so no text, however hostile, can produce one: "<pad>" in a file is five
characters or a word like any other. The one exception is "<unk>" among words, which data sets such as WikiText use for
what it is.

    >>> from regard_workbench.tasks.text.vocabulary import build
    >>> letters = build("character", ["abba"])
    >>> letters.encode("bad"), letters.decode([6, 5, 3])
    ([6, 5, 1], 'ba')
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from regard.errors import BadValue, unknown_name
from regard.support.arguments import whole_number
from regard_workbench.tasks.text.characters import whole_characters
from regard_workbench.tasks.text.split_words import split_words

PADDING, UNKNOWN, START, END, BLANK = range(5)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")  # how they are drawn, never how they are read
LEVELS = ("character", "word", "bpe")
PRETRAINED = "pretrained"  # the vocabulary of a checkpoint, which no text makes
BYTES = 256  # byte pairs begin with every byte, so that nothing is unknown to them


class Vocabulary(ABC):
    """Pieces of text by number."""

    level: ClassVar[str]
    padding: int = PADDING  # the id of no piece
    unknown: int = UNKNOWN  # the id of pieces that have none

    @abstractmethod
    def __len__(self) -> int:
        """How many ids there are, the special ones included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the end token where there is one."""

    @abstractmethod
    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for, one by one, for drawings."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything, as JSON data."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts."""
        return [self.encode(text) for text in texts]

    def cut(self, ids: list[int], most: int) -> list[int]:
        """The first `most` ids of a text."""
        return ids[:most]


class _Listed(Vocabulary):
    """Pieces that stand in a list."""

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = list(entries)
        self._ids = {entry: number for number, entry in enumerate(self.entries, len(SPECIAL))}

    def __len__(self) -> int:
        return len(SPECIAL) + len(self.entries)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        names = (*SPECIAL, *self.entries)
        return [names[number] for number in ids]

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "entries": self.entries}

    def _written(self, ids: Iterable[int], unknown: str) -> list[str]:
        words = []
        for number in ids:
            if number == END:
                break
            if number == UNKNOWN:
                words.append(unknown)
            elif number >= len(SPECIAL):
                words.append(self.entries[number - len(SPECIAL)])
        return words


class Characters(_Listed):
    """Every character (Unicode code point) is a piece."""

    level = "character"

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(char, UNKNOWN) for char in whole_characters(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._written(ids, "\N{REPLACEMENT CHARACTER}"))


class Words(_Listed):
    """A piece is what stands between spaces or tabs, which are not kept; the end of a line is one more."""

    level = "word"

    def __init__(self, entries: Sequence[str]) -> None:
        super().__init__(entries)
        self._ids.setdefault(SPECIAL[UNKNOWN], UNKNOWN)

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, UNKNOWN) for word in words_of(text)]

    def decode(self, ids: Iterable[int]) -> str:
        lines = " ".join(self._written(ids, SPECIAL[UNKNOWN])).split("\n")
        return "\n".join(line.strip(" ") for line in lines)


class BytePairs(Vocabulary):
    """Byte-level byte-pair encoding (Sennrich et al. 2016), by the library `tokenizers`: nothing is unknown to it."""

    level = "bpe"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(SPECIAL) + int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch([whole_characters(text) for text in texts])
        return [[number + len(SPECIAL) for number in encoding.ids] for encoding in encodings]

    def words(self, text: str) -> list[str]:
        """The words of a text, within which bytes are merged; a character stands for each byte."""
        return [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(whole_characters(text))]

    def decode(self, ids: Iterable[int]) -> str:
        piece_ids = []
        for number in ids:
            if number == END:
                break
            if number >= len(SPECIAL):
                piece_ids.append(number - len(SPECIAL))
        return str(self._tokenizer.decode(piece_ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [SPECIAL[number] if number < len(SPECIAL) else self.decode([number]) for number in ids]

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "tokenizer": json.loads(self._tokenizer.to_str())}


def words_of(text: str) -> list[str]:
    """The words of a text, with "\\n" between those of one line and those of the next."""
    words: list[str] = []
    for number, line in enumerate(whole_characters(text).split("\n")):
        if number:
            words.append("\n")
        words += split_words(line)
    return words


def checked_level(level: str) -> str:
    """A level that exists."""
    if level not in LEVELS:
        raise unknown_name("level", level, LEVELS)
    return level


def build(level: str, texts: Iterable[str], size: int | None = None, min_count: int = 1) -> Vocabulary:
    """The vocabulary of some texts: everything in them, or the `size` most frequent pieces (special ids included).

    Pieces seen fewer than `min_count` times are left out. Byte pairs: `size` is 4096 unless given.
    """
    if checked_level(level) == "bpe":
        return _byte_pairs(texts, whole_number("vocabulary_size", 4096 if size is None else size), min_count)
    split = words_of if level == "word" else whole_characters
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split(text))
    if level == "word":
        counts.pop(SPECIAL[UNKNOWN], None)
    chosen = sorted(counts, key=lambda piece: (-counts[piece], piece))
    if size is not None:
        chosen = chosen[: max(0, whole_number("vocabulary_size", size, len(SPECIAL) + 1) - len(SPECIAL))]
    chosen = [piece for piece in chosen if counts[piece] >= min_count]
    return Words(chosen) if level == "word" else Characters(sorted(chosen))


def _byte_pairs(texts: Iterable[str], size: int, min_count: int) -> BytePairs:
    least = len(SPECIAL) + BYTES
    if size < least:
        raise BadValue(
            f"vocabulary_size: expected at least {least} for byte pairs, got {size}. "
            f"They begin with all {BYTES} bytes and {len(SPECIAL)} special ids."
        )
    library = tokenizers_library()
    level = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = level(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL),
        initial_alphabet=sorted(level.alphabet()),
        min_frequency=max(2, min_count),
        show_progress=False,
    )
    tokenizer.train_from_iterator((whole_characters(text) for text in texts), trainer)
    return BytePairs(tokenizer)


def restored(state: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that `state` describes; `BadValue` if it describes none."""
    level = state.get("level") if isinstance(state, Mapping) else None
    if not isinstance(level, str):
        raise BadValue("vocabulary: expected an object with a level, as `state` makes it.")
    if level == PRETRAINED:
        from regard_workbench.tasks.text.pretrained_pieces import PretrainedPieces

        return PretrainedPieces.restored(state)
    if checked_level(level) == "bpe":
        try:
            return BytePairs(tokenizers_library().Tokenizer.from_str(json.dumps(state.get("tokenizer"))))
        except Exception as trouble:  # the library raises nothing more specific
            raise BadValue(f"vocabulary: its tokenizer cannot be read: {str(trouble)[:100]}.") from None
    entries = state.get("entries")
    entries = entries if isinstance(entries, list) else [None]
    if not all(isinstance(word, str) for word in entries) or len(set(entries)) != len(entries):
        raise BadValue("vocabulary: expected a list of different pieces of text.")
    return (Words if level == "word" else Characters)(entries)


def tokenizers_library() -> Any:
    """The library `tokenizers`."""
    # Said aloud, the library keeps quiet when a worker process is forked later. Loaded late: it is not light.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import tokenizers

    return tokenizers
