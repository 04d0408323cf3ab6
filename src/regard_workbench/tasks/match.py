"""Which of several candidates tells the number that was told? Streams of different kinds that must be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.support.arguments import whole_number
from regard_workbench.tasks.answers.place import Place
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.measures.metrics import LOSS, SHARE, Answered, Mean, Metric
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Frames, StreamSpec, Tokens, Vectors
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.digit_pictures import WORDS, Drawings, digit_pictures
from regard_workbench.tasks.sound.log_mel import HOP, STACK, LogMel
from regard_workbench.tasks.sound.recordings import DIGITS, SoundRecording, load, typed
from regard_workbench.tasks.sound.utterances import Utterance, padded_frames, spectrogram

KINDS = ("sound", "image", "text")
POSITIONS = {"sound": "frames", "image": "pictures", "text": "words"}
SIZES = {"train": 20_000, "validation": 400, "test": 1000}
INK, SPREAD = 0.305, 0.376  # mean and standard deviation of the pixels
GAP = 0.08  # seconds of silence after each spoken digit
LONGEST = 2.5  # seconds of one spoken digit
UNKNOWN = -1


class MatchExample(NamedTuple):
    """The digits of each stream, the one that is asked for first, and the place where all others tell it, too."""

    split: str
    number: int  # of the example in its split
    digits: tuple[tuple[int, ...], ...]  # of a stream from files: none
    place: int  # UNKNOWN where a user asks for it
    files: Mapping[str, FromFiles] = MappingProxyType({})  # streams from a user's files, by their kind


class FromFiles(NamedTuple):
    """A stream from files: their names, and a sound or the pixels (count,64) of pictures."""

    names: tuple[str, ...]
    content: Utterance | Tensor


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
    tones, and pictures are scikit-learn's digits; pictures of files are reduced to as many pixels, 8 × 8. A text is
    English words. accuracy and recall_at_1 are one number:
    how often the right candidate scores highest. digit_accuracy: how often the digit is known that the first one tells.

    Args:
        data: a folder or zip of <digit>_<speaker>_<n>.wav, as for the task speech
        pictures: pictures of digits: files of the task images, with a folder for each digit or as IDX files
        kinds: what is asked and what is shown: two or three of sound, image and text, joined by -
        candidates: how many digits each stream but the first shows
        augment: change speed, add noise and mask parts of the training sounds, anew each time
        rate: samples per second that all sounds are brought to
        bands: mel bands of the spectrogram
        bad_files: at a picture that cannot be read: stop, or skip it and say so
        seed: which examples are drawn
    """

    metric = ACCURACY
    takes = KINDS
    together = True
    tried = ("--text", "seven | two seven nine one four")
    recipe = Recipe(
        model="co-attention",
        steps=800,
        batch_size=64,
        lr=2e-3,
        warmup=100,
        compared=("co-attention", "co-attention(interaction=false)"),
        reaches={"accuracy": 0.93},
    )

    def __init__(
        self,
        data: Data | None = None,
        pictures: Data | None = None,
        kinds: str = "sound-image",
        candidates: int = 5,
        augment: bool = True,
        rate: int = 8000,
        bands: int = 40,
        bad_files: str = "stop",
        seed: int = 0,
    ) -> None:
        self.data, self.pictures, self.augment = data, pictures, augment
        self.bad = BadFiles(bad_files)
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
                "image": Vectors(written_digits.SIDE**2, count),
                "text": Tokens(len(WORDS), length=count),
            }
            found[kind] = every[kind]
        return found

    def answers(self) -> list[Place]:
        """The place of the candidate that fits, and the digit that was told."""
        return [Place(self.candidates, len(DIGITS))]

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
                    f"data: {self.data} has no recording of the digit {missing[0]} for {split}. Expected some of each "
                    "in every split: takes 0 to 4 are for the test, about a tenth of the others for validation."
                )
        return found

    @cached_property
    def drawings(self) -> Drawings:
        """The pictures of each digit in each split."""
        if self.pictures is not None:
            return digit_pictures(self.pictures, written_digits.SIDE, self.bad, self.seed)
        found: Drawings = {}
        for row, digit, split in zip(*written_digits.images(), written_digits.split_of(), strict=True):
            found.setdefault(split, {}).setdefault(digit, []).append(row)
        return found

    def examples(self, split: str) -> Sequence[MatchExample]:
        """Digits, drawn by seed and index."""
        # Files are read here and not with the first batch, so that what is wrong with them is said before a run begins.
        if "sound" in self.kinds and self.data is not None:
            _ = self.recordings
        if "image" in self.kinds and self.pictures is not None:
            _ = self.drawings
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
        streams = {kind: self._stream(kind, number, examples, generator) for number, kind in enumerate(self.kinds)}
        if any(one.place == UNKNOWN for one in examples):
            return Batch(streams)
        places = torch.tensor([one.place for one in examples], dtype=torch.long)
        asked = torch.tensor([one.digits[0][0] for one in examples], dtype=torch.long)
        return Batch(streams, {"place": Stream(places), "digit": Stream(asked)})

    def _stream(self, kind: str, number: int, examples: Sequence[MatchExample], generator: torch.Generator) -> Stream:
        """The digits or files of the stream `number` as a stream of a kind."""
        if kind == "text":
            return Stream(torch.tensor([one.digits[number] for one in examples]))
        found = [
            one.files[kind].content if kind in one.files else self._drawn(kind, one, one.digits[number])
            for one in examples
        ]
        if kind == "sound":
            frames = [one.frames(self.mel, generator) for one in found if isinstance(one, Utterance)]
            return Stream(*padded_frames(frames, STACK * self.mel.bands))
        pixels = torch.stack([one for one in found if isinstance(one, Tensor)])
        return Stream((pixels - INK) / SPREAD)  # with mean 0 and variance 1 over all pictures

    def _drawn(self, kind: str, one: MatchExample, said: tuple[int, ...]) -> Utterance | Tensor:
        """A sound, or the pixels (count,64) of pictures, drawn from those of the example's split."""
        draws = Draws(kind, self.seed, one.split, one.number)
        if kind == "sound":
            parts = tuple(draws.among(self.recordings[one.split][digit]) for digit in said)
            return self._joined(parts, self.augment and one.split == "train")
        return torch.from_numpy(np.stack([draws.among(self.drawings[one.split][digit]) for digit in said]))

    def _joined(self, parts: tuple[SoundRecording, ...], training: bool = False) -> Utterance:
        return Utterance(parts, (round(GAP * self.mel.rate),) * len(parts), training)

    def parse(self, given: Mapping[str, Any]) -> MatchExample:
        """Digits for each stream, "seven | two seven nine one four", drawn from the test data; or files.

        Given are sounds and pictures by files, and in the text the digits of the other streams, in their order.
        """
        if any(kind not in (*self.kinds, "text") for kind in given):
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        from_files = {kind: self._from_files(kind, given[kind]) for kind in given if kind != "text"}
        rest = [kind for kind in self.kinds if kind not in from_files]
        text = given.get("text", ())
        several = [text] if isinstance(text, str) else text
        parts = [part.split() for one in several for part in one.split("|")]
        if len(parts) != len(rest):
            raise BadValue(
                f'--text: expected the digits of {" and of ".join(rest) or "nothing"}, separated by "|", got '
                f'{len(parts)} parts. For instance --text "seven | two seven nine one four", or with files --sound '
                'seven.wav --text "two seven nine one four".'
            )
        told = dict(zip(rest, parts, strict=True))
        for kind in self.kinds:
            self._check_count(kind, len(told.get(kind, from_files[kind].names if kind in from_files else ())))
        said = tuple(tuple(map(_digit, told.get(kind, ()))) for kind in self.kinds)
        return MatchExample("test", 0, said, UNKNOWN, from_files)

    def _from_files(self, kind: str, given: str | list[str]) -> FromFiles:
        paths = [given] if isinstance(given, str) else given
        names = tuple(Path(path).name for path in paths)
        if kind == "sound":
            return FromFiles(names, self._joined(tuple(typed(path, self.mel.rate, LONGEST) for path in paths)))
        return FromFiles(names, torch.stack([written_digits.typed(path).flatten() for path in paths]))

    def _check_count(self, kind: str, count: int) -> None:
        expected = 1 if kind == self.kinds[0] else self.candidates
        if count != expected:
            raise BadValue(
                f"--{kind}, --text: expected {expected} for the stream {kind}, got {count}. The first stream of this "
                f"run tells one digit, each other shows {self.candidates}."
            )

    def show(self, example: MatchExample, batch: Batch) -> Shown:
        """The first stream as a picture, and the names of the positions of all of them."""
        told = {
            kind: example.files[kind].names if kind in example.files else tuple(WORDS[digit] for digit in said)
            for kind, said in zip(self.kinds, example.digits, strict=True)
        }
        names = {kind: self._names(kind, told[kind], batch.streams[kind].data.shape[1]) for kind in self.kinds}
        first, *further = self.kinds
        picture = None
        if first == "sound":
            picture = spectrogram(batch.inputs[0], self.mel.bands)
        elif first == "image":
            picture = (batch.inputs[0].cpu() * SPREAD + INK).reshape(written_digits.SIDE, written_digits.SIDE).numpy()
        said = ", ".join(f"{kind} {' '.join(told[kind])}" for kind in self.kinds)
        return Shown(
            said,
            names[first],
            POSITIONS[first],
            picture=picture,
            grid=None if picture is None else (1, batch.inputs.shape[1]),
            streams={POSITIONS[kind]: names[kind] for kind in further},
        )

    def _names(self, kind: str, told: Sequence[str], count: int) -> list[str]:
        if kind == "sound":
            return [f"{number * STACK * HOP:.2f} s" for number in range(count)]
        return [f"{number}: {name}" for number, name in enumerate(told, 1)]

    def answer_text(self, predicted: int, example: MatchExample) -> str:
        """The place, and what stands there."""
        kind = self.kinds[1]
        told = example.files[kind].names if kind in example.files else example.digits[1]
        there = told[predicted]
        return f"{self.decode([predicted])}: {there if isinstance(there, str) else WORDS[there]}"

    def decode(self, tokens: Sequence[int]) -> str:
        """The place, counted from 1."""
        return f"place {tokens[0] + 1}"


def _digit(word: str) -> int:
    """A digit as a word or a figure."""
    known = [*WORDS, *DIGITS]
    if word.lower() not in known:
        raise unknown_name("--text: digit", word.lower(), known)
    return known.index(word.lower()) % len(DIGITS)
