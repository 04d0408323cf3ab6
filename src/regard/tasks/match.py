"""Do a sound, a picture and a text tell the same number? Streams of different kinds that must be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.arguments import whole_number
from regard.errors import BadValue, unknown_name
from regard.tasks import digits
from regard.tasks.answers import OneOf
from regard.tasks.batch import Batch, Stream
from regard.tasks.draws import Draws, Generated
from regard.tasks.metrics import ACCURACY, LOSS, SHARE, Answered, Mean, Metric
from regard.tasks.padding import padded
from regard.tasks.reading import Data
from regard.tasks.shown import Shown
from regard.tasks.sound.log_mel import HOP, STACK, LogMel
from regard.tasks.sound.recordings import DIGITS, Recording, load
from regard.tasks.sound.utterances import Utterance, padded_frames, spectrogram
from regard.tasks.splits import checked_split
from regard.tasks.streams import Frames, StreamSpec, Tokens, Vectors
from regard.tasks.task import Recipe, Task, task

KINDS = ("sound", "image", "text")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = " abcdefghijklmnopqrstuvwxyz"  # a letter's id is its place from 1; 0 is padding
ANSWERS = ("different", "same")
SIZES = {"train": 20_000, "validation": 400, "test": 1000}
CANDIDATES = 10  # among which the right one is to be found
GAP = 0.08  # seconds of silence after each spoken digit
LONGEST = 2.5  # seconds of one spoken digit
RIVALS = "rivals"  # the note of a batch that holds other digits for the last stream


class Numbers(NamedTuple):
    """What each stream tells: digits and where they are drawn from, and whether all tell the same."""

    split: str
    index: int
    told: tuple[tuple[int, ...], ...]  # digits of each stream
    same: bool
    rivals: tuple[tuple[int, ...], ...] = ()  # digits that the last stream could tell instead


@task("match")
class Match(Task):
    """Says whether a sound, a picture and a text tell the same digits; all but one digit of one of them may agree.

    Without files, digits are tunes of tones; pictures are scikit-learn's 8 × 8 digits side by side, text is English.
    recall_at_1: how often the right one of 10 candidates for the last stream, which differ in a digit, scores highest.

    Args:
        data: a folder or zip of <digit>_<speaker>_<n>.wav, as for the task speech
        kinds: which streams there are, two or three of sound, image and text, joined by +
        length: how many digits each stream tells
        augment: change speed, add noise and mask parts of the training sounds, anew each time
        rate: samples per second that all sounds are brought to
        bands: mel bands of the spectrogram
        seed: which examples are drawn
    """

    metric = ACCURACY
    recipe = Recipe(
        model="co-attention", steps=1000, batch_size=64, lr=2e-3, warmup=100,
        compared=("co-attention", "co-attention(interaction=false)"),
    )  # fmt: skip

    def __init__(
        self,
        data: Data | None = None,
        kinds: str = "sound+image",
        length: int = 2,
        augment: bool = True,
        rate: int = 8000,
        bands: int = 40,
        seed: int = 0,
    ) -> None:
        self.data, self.augment = data, augment
        self.kinds = tuple(kinds.split("+"))
        for kind in self.kinds:
            if kind not in KINDS:
                raise unknown_name("kinds", kind, KINDS)
        if len(set(self.kinds)) != len(self.kinds) or len(self.kinds) < 2:
            raise BadValue(f"kinds: expected two or three of {'+'.join(KINDS)}, each once, got {kinds!r}.")
        self.count = whole_number("length", length, 1)
        self.mel = LogMel(rate, bands)
        self.seed = whole_number("seed", seed)

    def streams(self) -> dict[str, StreamSpec]:
        """Frames of the spectrogram, columns of the pictures from left to right, letters."""
        longest = self.mel.positions(round((LONGEST + GAP) * self.mel.rate)) * self.count
        every: dict[str, StreamSpec] = {
            "sound": Frames(STACK * self.mel.bands, longest, self.mel.bands),
            "image": Vectors(digits.SIDE, digits.SIDE * self.count),
            "text": Tokens(len(LETTERS) + 1, length=self.count * 6),
        }
        return {kind: every[kind] for kind in self.kinds}

    def answers(self) -> list[OneOf]:
        """Different or the same."""
        return [OneOf(len(ANSWERS))]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss and accuracy, and how often the right one of several candidates is found."""
        return (LOSS, ACCURACY, Mean("recall_at_1", unit=SHARE, over="queries", look=self._recalled))

    @cached_property
    def recordings(self) -> dict[str, dict[int, list[Recording]]]:
        """The recordings of each digit in each split."""
        found: dict[str, dict[int, list[Recording]]] = {}
        for split, part in load(self.data, self.mel.rate).items():
            found[split] = {digit: [] for digit in range(len(DIGITS))}
            for one in part:
                found[split].setdefault(int(one.transcript), []).append(one)
            missing = [digit for digit, some in found[split].items() if not some]
            if missing:
                raise BadValue(
                    f"data: {split} has no recording of the digit {missing[0]}. Expected some of each."
                )
        return found

    @cached_property
    def pictures(self) -> dict[str, dict[int, list[int]]]:
        """The numbers of the images of each digit in each split."""
        _, shown = digits.images()
        found: dict[str, dict[int, list[int]]] = {}
        for number, (digit, split) in enumerate(zip(shown, digits.split_of(), strict=True)):
            found.setdefault(split, {}).setdefault(digit, []).append(number)
        return found

    def examples(self, split: str) -> Sequence[Numbers]:
        """Numbers, drawn by seed and index."""
        return Generated(SIZES[checked_split(split)], partial(self._example, split))

    def _example(self, split: str, index: int) -> Numbers:
        draws = Draws("match", self.seed, split, index)
        right = tuple(draws.below(len(DIGITS)) for _ in range(self.count))
        told = [right for _ in self.kinds]
        same = draws.happens(50)
        if not same:
            told[draws.below(len(told))] = _changed(right, draws)
        if split == "train":
            return Numbers(split, index, tuple(told), same)
        rivals: list[tuple[int, ...]] = []
        while same and len(rivals) < CANDIDATES - 1:
            rival = _changed(right, draws)
            if rival not in rivals:
                rivals.append(rival)
        return Numbers(split, index, tuple(told), same, tuple(rivals))

    def length(self, example: Numbers) -> int:
        """The same for all, but for the length of sounds, which hardly matters."""
        return self.count

    def collate(self, examples: Sequence[Numbers], generator: torch.Generator) -> Batch:
        """One stream for each kind, each padded by itself."""
        streams = {
            kind: self._stream(kind, examples, [example.told[place] for example in examples], generator)
            for place, kind in enumerate(self.kinds)
        }
        same = torch.tensor([int(example.same) for example in examples])
        return Batch(streams, {"same": Stream(same)}, notes={RIVALS: tuple(examples)})

    def _stream(
        self,
        kind: str,
        examples: Sequence[Numbers],
        told: Sequence[tuple[int, ...]],
        generator: torch.Generator,
    ) -> Stream:
        """What is told, as a stream of a kind."""
        made = []
        for one, said in zip(examples, told, strict=True):
            made.append((Draws(kind, self.seed, one.split, one.index, said), one.split, said))
        if kind == "sound":
            frames = [self._spoken(*one).frames(self.mel, generator) for one in made]
            return Stream(*padded_frames(frames, STACK * self.mel.bands))
        if kind == "image":
            return Stream(torch.stack([self._pictured(*one) for one in made]))
        return Stream(*padded([[LETTERS.index(letter) + 1 for letter in text(said)] for said in told], 0))

    def _spoken(self, draws: Draws, split: str, said: tuple[int, ...]) -> Utterance:
        parts = tuple(draws.among(self.recordings[split][digit]) for digit in said)
        return Utterance(parts, (round(GAP * self.mel.rate),) * len(parts), self.augment and split == "train")

    def _pictured(self, draws: Draws, split: str, said: tuple[int, ...]) -> Tensor:
        """Columns (8 · length, 8) of the pictures, from left to right."""
        pixels, _ = digits.images()
        chosen = [draws.among(self.pictures[split][digit]) for digit in said]
        return torch.cat(
            [torch.from_numpy(pixels[number].reshape(digits.SIDE, digits.SIDE)).T for number in chosen]
        )

    def _recalled(self, answered: Answered) -> tuple[float, float] | None:
        """How many queries score higher with the right candidate than with all others, and how many there are."""
        batch = answered.batch
        queries = [row for row, one in enumerate(batch.notes[RIVALS]) if one.rivals]
        if not queries:
            return None
        asked = batch.rows(queries)
        right = _odds(answered.outputs[queries])
        best = torch.full_like(right, -torch.inf)
        for place in range(CANDIDATES - 1):
            told = [one.rivals[place] for one in asked.notes[RIVALS]]
            rival = self._stream(self.kinds[-1], asked.notes[RIVALS], told, torch.Generator())
            streams = {**asked.streams, self.kinds[-1]: rival.map(lambda tensor: tensor.to(batch.device))}
            best = torch.maximum(best, _odds(answered.model(Batch(streams))))
        return float((right > best).sum()), float(len(queries))

    def show(self, example: Numbers, batch: Batch) -> Shown:
        """The first stream as a picture, and the positions of all of them."""
        names: dict[str, list[str]] = {}
        for kind, told in zip(self.kinds, example.told, strict=True):
            count = batch.streams[kind].data.shape[1]
            if kind == "sound":
                names[kind] = [f"{number * STACK * HOP:.2f} s" for number in range(count)]
            elif kind == "image":
                names[kind] = [f"column {number}" for number in range(count)]
            else:
                names[kind] = list(text(told))
        said = ", ".join(f"{kind} {text(told)}" for kind, told in zip(self.kinds, example.told, strict=True))
        first, *further = self.kinds
        picture = None
        if first == "sound":
            picture = spectrogram(batch.inputs[0], self.mel.bands)
        elif first == "image":
            picture = batch.inputs[0].T.cpu().numpy()
        grid = None if picture is None else (1, batch.inputs.shape[1])
        return Shown(
            said, names[first], {"sound": "frames", "image": "columns", "text": "letters"}[first], picture=picture,
            grid=grid, streams={kind: names[kind] for kind in further},
        )  # fmt: skip

    def decode(self, tokens: Sequence[int]) -> str:
        """The same or different."""
        return ANSWERS[tokens[0]]

    def state(self) -> dict[str, Any]:
        """Nothing is learned from the data."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def text(said: Sequence[int]) -> str:
    """Digits as English words."""
    return " ".join(WORDS[digit] for digit in said)


def _changed(said: tuple[int, ...], draws: Draws) -> tuple[int, ...]:
    """The same digits but for one."""
    place = draws.below(len(said))
    other = (said[place] + 1 + draws.below(len(DIGITS) - 1)) % len(DIGITS)
    return (*said[:place], other, *said[place + 1 :])


def _odds(outputs: Tensor) -> Tensor:
    """How much likelier “same” is than “different”."""
    return outputs[:, 1] - outputs[:, 0]
