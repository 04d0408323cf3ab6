"""Which of several candidates tells the number that was told? Streams of different kinds that must be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.arguments import whole_number
from regard.errors import BadValue, unknown_name
from regard.tasks import digits
from regard.tasks.answers import Answer, Head
from regard.tasks.batch import Batch, Stream
from regard.tasks.formats.reading import Data
from regard.tasks.formats.splits import checked_split
from regard.tasks.generated.draws import Draws, Generated
from regard.tasks.measures.metrics import LOSS, SHARE, Answered, Mean, Metric
from regard.tasks.shown import Shown
from regard.tasks.sound.log_mel import HOP, STACK, LogMel
from regard.tasks.sound.recordings import DIGITS, SoundRecording, load
from regard.tasks.sound.utterances import Utterance, padded_frames, spectrogram
from regard.tasks.streams import Frames, StreamSpec, Tokens, Vectors
from regard.tasks.task import Recipe, Task, task

KINDS = ("sound", "image", "text")
POSITIONS = {"sound": "frames", "image": "pictures", "text": "words"}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIZES = {"train": 20_000, "validation": 400, "test": 1000}
INK, SPREAD = 0.305, 0.376  # mean and standard deviation of the pixels
GAP = 0.08  # seconds of silence after each spoken digit
LONGEST = 2.5  # seconds of one spoken digit


class MatchExample(NamedTuple):
    """The digits of each stream, the one that is asked for first, and the place where all others tell it, too."""

    split: str
    number: int  # of the example in its split
    digits: tuple[tuple[int, ...], ...]
    place: int


class Found(NamedTuple):
    """The logits of both questions."""

    place: Tensor  # (b,candidates)
    digit: Tensor  # (b,10)


@dataclass(frozen=True)
class Place(Answer):
    """Where the candidate stands that fits, and which digit was asked for."""

    candidates: int
    needs: ClassVar[str] = "pooled"
    words: ClassVar[str] = "the place of the candidate that fits, and the digit that was told"

    @property
    def outputs(self) -> int:
        """One logit for each place and each digit."""
        return self.candidates + len(DIGITS)

    def head(self, dim: int | None = None, tied: nn.Embedding | None = None) -> PlaceHead:
        """One linear map for both."""
        return PlaceHead(self.candidates, dim)


class PlaceHead(Head):
    """Both questions are trained together: streams are hard to compare before any of them can be read."""

    def __init__(self, candidates: int, dim: int | None) -> None:
        super().__init__(candidates + len(DIGITS), dim)
        self.candidates = candidates

    def forward(self, rows: Tensor, batch: Batch) -> Found:
        """The logits, apart."""
        found = self.logits(rows)
        return Found(found[:, : self.candidates], found[:, self.candidates :])

    def loss(self, outputs: Found, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The sum of both cross-entropies, and the number of examples."""
        total = torch.zeros((), device=batch.device)
        for logits, target in zip(outputs, batch.answers.values(), strict=True):
            total = total + F.cross_entropy(
                logits.float(), target.data, reduction="sum", label_smoothing=smoothing
            )
        return total, torch.tensor(float(batch.size), device=batch.device)

    def predict(self, outputs: Found, batch: Batch) -> list[Any]:
        """The likeliest place."""
        found: list[Any] = outputs.place.argmax(-1).tolist()
        return found


def _first(answered: Answered) -> tuple[float, float]:
    """How often the right candidate has the highest score."""
    rank = answered.once(_ranks)
    return float((rank == 1).sum()), float(len(rank))


def _reciprocal(answered: Answered) -> tuple[float, float]:
    rank = answered.once(_ranks)
    return float((1 / rank).sum()), float(len(rank))


def _ranks(answered: Answered) -> Tensor:
    """The rank of the right candidate, from 1."""
    scores, places = answered.outputs.place, answered.batch.targets
    assert places is not None
    found: Tensor = (scores > scores.gather(1, places[:, None])).sum(1) + 1
    return found


def _heard(answered: Answered) -> tuple[float, float]:
    right = answered.outputs.digit.argmax(-1) == answered.batch.answers["digit"].data
    return float(right.sum()), float(len(right))


ACCURACY = Mean("accuracy", unit=SHARE, over="examples", look=_first)
RECALL = Mean("recall_at_1", unit=SHARE, over="queries", look=_first)
MRR = Mean("mrr", over="queries", look=_reciprocal)
DIGIT = Mean("digit_accuracy", unit=SHARE, over="examples", look=_heard)


@task("match")
class MatchTask(Task):
    """Finds, among pictures of digits side by side, the one that was spoken; streams of any two or three kinds.

    The first stream tells one digit, the second shows candidates; the answer is the place of the one that fits. With a
    third stream both show candidates, and at the right place both must fit. Without files, spoken digits are tunes of
    tones. Pictures are scikit-learn's 8 × 8 digits, a text is English words. accuracy and recall_at_1 are one number:
    how often the right candidate scores highest. digit_accuracy: how often the digit is known that the first one tells.

    Args:
        data: a folder or zip of <digit>_<speaker>_<n>.wav, as for the task speech
        kinds: what is asked and what is shown: two or three of sound, image and text, joined by -
        candidates: how many digits each stream but the first shows
        augment: change speed, add noise and mask parts of the training sounds, anew each time
        rate: samples per second that all sounds are brought to
        bands: mel bands of the spectrogram
        seed: which examples are drawn
    """

    metric = ACCURACY
    recipe = Recipe(
        model="co-attention", steps=800, batch_size=64, lr=2e-3, warmup=100,
        compared=("co-attention", "co-attention(interaction=false)"),
    )  # fmt: skip

    def __init__(
        self,
        data: Data | None = None,
        kinds: str = "sound-image",
        candidates: int = 5,
        augment: bool = True,
        rate: int = 8000,
        bands: int = 40,
        seed: int = 0,
    ) -> None:
        self.data, self.augment = data, augment
        self.kinds = tuple(kinds.split("-"))
        for kind in self.kinds:
            if kind not in KINDS:
                raise unknown_name("kinds", kind, KINDS)
        if len(set(self.kinds)) != len(self.kinds) or len(self.kinds) < 2:
            raise BadValue(f"kinds: expected two or three of {'-'.join(KINDS)}, each once, got {kinds!r}.")
        self.candidates = whole_number("candidates", candidates, 2)
        if self.candidates > len(DIGITS):
            raise BadValue(f"candidates: expected at most {len(DIGITS)} different digits, got {candidates}.")
        self.mel = LogMel(rate, bands)
        self.seed = whole_number("seed", seed)

    def streams(self) -> dict[str, StreamSpec]:
        """Frames of a spectrogram, pictures of 64 numbers, words."""
        found: dict[str, StreamSpec] = {}
        for kind in self.kinds:
            count = self.candidates if found else 1
            longest = count * self.mel.positions(round((LONGEST + GAP) * self.mel.rate))
            every: dict[str, StreamSpec] = {
                "sound": Frames(STACK * self.mel.bands, longest, self.mel.bands),
                "image": Vectors(digits.SIDE**2, count),
                "text": Tokens(len(WORDS), length=count),
            }
            found[kind] = every[kind]
        return found

    def answers(self) -> list[Place]:
        """The place of the candidate that fits, and the digit that was told."""
        return [Place(self.candidates)]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss; how often the place is right, as accuracy and as retrieval; how often the digit is."""
        return (LOSS, ACCURACY, RECALL, MRR, DIGIT)

    @cached_property
    def recordings(self) -> dict[str, dict[int, list[SoundRecording]]]:
        """The recordings of each digit in each split."""
        found: dict[str, dict[int, list[SoundRecording]]] = {}
        for split, part in load(self.data, self.mel.rate).items():
            found[split] = {digit: [] for digit in range(len(DIGITS))}
            for one in part:
                if one.transcript not in DIGITS:
                    raise BadValue(f"data: expected spoken digits, {one.name} says {one.transcript[:40]!r}.")
                found[split][int(one.transcript)].append(one)
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

    def examples(self, split: str) -> Sequence[MatchExample]:
        """Digits, drawn by seed and index."""
        return Generated(SIZES[checked_split(split)], partial(self._example, split))

    def _example(self, split: str, index: int) -> MatchExample:
        draws = Draws("match", self.seed, split, index)
        asked, place = draws.below(len(DIGITS)), draws.below(self.candidates)
        free = [number for number in range(self.candidates) if number != place]
        told: list[tuple[int, ...]] = [(asked,)]
        for _ in self.kinds[1:]:
            rest = [digit for digit in range(len(DIGITS)) if digit != asked]
            shown = [rest.pop(draws.below(len(rest))) for _ in range(self.candidates - 1)]
            shown.insert(place, asked)
            if len(self.kinds) > 2 and free:  # one stream alone must not tell the place
                shown[free.pop(draws.below(len(free)))] = asked
            told.append(tuple(shown))
        return MatchExample(split, index, tuple(told), place)

    def length(self, example: MatchExample) -> int:
        """The same for all, but for the lengths of sounds, which hardly differ."""
        return self.candidates

    def collate(self, examples: Sequence[MatchExample], generator: torch.Generator) -> Batch:
        """One stream for each kind, each padded by itself."""
        streams = {
            kind: self._stream(kind, [(one, one.digits[number]) for one in examples], generator)
            for number, kind in enumerate(self.kinds)
        }
        places = torch.tensor([one.place for one in examples], dtype=torch.long)
        asked = torch.tensor([one.digits[0][0] for one in examples], dtype=torch.long)
        return Batch(streams, {"place": Stream(places), "digit": Stream(asked)})

    def _stream(
        self, kind: str, told: Sequence[tuple[MatchExample, tuple[int, ...]]], generator: torch.Generator
    ) -> Stream:
        """Digits as a stream of a kind."""
        if kind == "text":
            return Stream(torch.tensor([said for _, said in told]))
        made = [(Draws(kind, self.seed, one.split, one.number), one.split, said) for one, said in told]
        if kind == "sound":
            frames = [self._spoken(*one).frames(self.mel, generator) for one in made]
            return Stream(*padded_frames(frames, STACK * self.mel.bands))
        return Stream(torch.stack([self._pictured(*one) for one in made]))

    def _spoken(self, draws: Draws, split: str, said: tuple[int, ...]) -> Utterance:
        parts = tuple(draws.among(self.recordings[split][digit]) for digit in said)
        return Utterance(parts, (round(GAP * self.mel.rate),) * len(parts), self.augment and split == "train")

    def _pictured(self, draws: Draws, split: str, said: tuple[int, ...]) -> Tensor:
        """The pixels (count, 64) of pictures, with mean 0 and variance 1 over all of them."""
        pixels, _ = digits.images()
        chosen = pixels[[draws.among(self.pictures[split][digit]) for digit in said]]
        return (torch.from_numpy(chosen) - INK) / SPREAD

    def show(self, example: MatchExample, batch: Batch) -> Shown:
        """The first stream as a picture, and the names of the positions of all of them."""
        names = {
            kind: self._names(kind, told, batch.streams[kind].data.shape[1])
            for kind, told in zip(self.kinds, example.digits, strict=True)
        }
        first, *further = self.kinds
        picture = None
        if first == "sound":
            picture = spectrogram(batch.inputs[0], self.mel.bands)
        elif first == "image":
            picture = (batch.inputs[0].cpu() * SPREAD + INK).reshape(digits.SIDE, digits.SIDE).numpy()
        said = ", ".join(
            f"{kind} {text(told)}" for kind, told in zip(self.kinds, example.digits, strict=True)
        )
        return Shown(
            said, names[first], POSITIONS[first], picture=picture,
            grid=None if picture is None else (1, batch.inputs.shape[1]),
            streams={POSITIONS[kind]: names[kind] for kind in further},
        )  # fmt: skip

    def _names(self, kind: str, told: tuple[int, ...], count: int) -> list[str]:
        if kind == "sound":
            return [f"{number * STACK * HOP:.2f} s" for number in range(count)]
        return [f"{number + 1}: {WORDS[digit]}" for number, digit in enumerate(told)]

    def decode(self, tokens: Sequence[int]) -> str:
        """The place, counted from 1."""
        return f"place {tokens[0] + 1}"


def text(said: Sequence[int]) -> str:
    """Digits as English words."""
    return " ".join(WORDS[digit] for digit in said)
