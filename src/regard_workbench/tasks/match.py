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
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.answers.place import METRICS, Place
from regard_workbench.tasks.formats.bad_files import BAD_FILES, BadFiles
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.presenter import Presenter
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

    def words(self, number: int, kind: str) -> tuple[str, ...]:
        """What a stream holds: digits in words, or the names of files."""
        return self.files[kind].names if kind in self.files else tuple(WORDS[digit] for digit in self.digits[number])


class FromFiles(NamedTuple):
    """A stream from files: their names, and a sound or the pixels (count,64) of pictures."""

    names: tuple[str, ...]
    content: Utterance | Tensor


class MatchPresenter(Presenter["MatchTask"]):
    """Reads digits from words and files, and answers by a place and what stands there."""

    takes = KINDS
    together = True

    def parse(self, task: MatchTask, given: Mapping[str, Any]) -> Any:
        """Digits for each stream, "seven | two seven nine one four", drawn from the test data; or files.

        Given are sounds and pictures by files, and in the text the digits of the other streams, in their order.
        """
        kinds = task.stream_kinds
        if any(kind not in (*kinds, "text") for kind in given):
            return super().parse(task, given)  # which raises
        files = {kind: self._from_files(task, kind, given[kind]) for kind in given if kind != "text"}
        text_kinds = [kind for kind in kinds if kind not in files]
        text = given.get("text", ())
        texts = [text] if isinstance(text, str) else text
        digit_words = [stream_text.split() for line in texts for stream_text in line.split("|")]
        if len(digit_words) != len(text_kinds):
            raise BadValue(
                f'--text: expected the digits of {" and of ".join(text_kinds) or "nothing"}, separated by "|", got '
                f'{len(digit_words)} parts. For instance --text "seven | two seven nine one four", or with files '
                '--sound seven.wav --text "two seven nine one four".'
            )
        words = dict(zip(text_kinds, digit_words, strict=True))
        for kind in kinds:
            self._check_count(task, kind, len(files[kind].names if kind in files else words[kind]))
        digits = tuple(tuple(map(_digit, words.get(kind, ()))) for kind in kinds)
        return MatchExample("test", 0, digits, UNKNOWN, files)

    def _from_files(self, task: MatchTask, kind: str, given: str | list[str]) -> FromFiles:
        paths = [given] if isinstance(given, str) else given
        names = tuple(Path(path).name for path in paths)
        if kind == "sound":
            return FromFiles(names, task.utterance(tuple(typed(path, task.mel.rate, LONGEST) for path in paths)))
        return FromFiles(names, torch.stack([written_digits.typed(path).flatten() for path in paths]))

    def _check_count(self, task: MatchTask, kind: str, count: int) -> None:
        expected = 1 if kind == task.stream_kinds[0] else task.candidates
        if count != expected:
            raise BadValue(
                f"--{kind}, --text: expected {expected} for the stream {kind}, got {count}. The first stream of this "
                f"run tells one digit, each other shows {task.candidates}."
            )

    def show(self, task: MatchTask, example: MatchExample, batch: Batch) -> Shown:
        """The first stream as a picture, and the names of the positions of all of them."""
        kinds = task.stream_kinds
        words = {kind: example.words(number, kind) for number, kind in enumerate(kinds)}
        names = {kind: self._names(kind, words[kind], batch.streams[kind].data.shape[1]) for kind in kinds}
        first, *further = kinds
        picture = None
        if first == "sound":
            picture = spectrogram(batch.inputs[0], task.mel.bands)
        elif first == "image":
            picture = (batch.inputs[0].cpu() * SPREAD + INK).reshape(written_digits.SIDE, written_digits.SIDE).numpy()
        return Shown(
            ", ".join(f"{kind} {' '.join(words[kind])}" for kind in kinds),
            names[first],
            POSITIONS[first],
            picture=picture,
            grid=None if picture is None else (1, batch.inputs.shape[1]),
            streams={POSITIONS[kind]: names[kind] for kind in further},
        )

    def _names(self, kind: str, words: Sequence[str], count: int) -> list[str]:
        if kind == "sound":
            return [f"{number * STACK * HOP:.2f} s" for number in range(count)]
        return [f"{number}: {word}" for number, word in enumerate(words, 1)]

    def answer_text(self, task: MatchTask, predicted: int, example: MatchExample) -> str:
        """The place, and what stands there."""
        candidates = example.words(1, task.stream_kinds[1])
        return f"{task.decode([predicted])}: {candidates[predicted]}"

    def decode(self, task: MatchTask, tokens: Sequence[int]) -> str:
        """The place, counted from 1."""
        return f"place {tokens[0] + 1}"


def _digit(word: str) -> int:
    """A digit as a word or a figure."""
    digit_names = [*WORDS, *DIGITS]
    if word.lower() not in digit_names:
        raise unknown_name("--text: digit", word.lower(), digit_names)
    return digit_names.index(word.lower()) % len(DIGITS)


def _checked_kinds(name: str, kinds: str) -> str:
    chosen = kinds.split("-")
    for kind in chosen:
        if kind not in KINDS:
            raise unknown_name(name, kind, KINDS)
    if len(set(chosen)) != len(chosen) or len(chosen) < 2:
        raise BadValue(f"{name}: expected two or three of {'-'.join(KINDS)}, each once, got {kinds!r}.")
    return kinds


@task("match")
class MatchTask(Task):
    """Finds, among pictures of digits side by side, the one that was spoken; streams of any two or three kinds.

    The first stream tells one digit, the second shows candidates; the answer is the place of the one that fits. With a
    third stream both show candidates, and at the right place both must fit. Without files, spoken digits are tunes of
    tones, and pictures are scikit-learn's digits; pictures of files are reduced to as many pixels, 8 × 8. A text is
    English words. accuracy and recall_at_1 are one number:
    how often the right candidate scores highest. digit_accuracy: how often the digit is known that the first one tells.
    """

    judge = Judge.by(*METRICS)
    presenter = MatchPresenter()
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

    data: Data | None = option("a folder or zip of <digit>_<speaker>_<n>.wav, as for the task speech", default=None)
    pictures: Data | None = option(
        "pictures of digits: files of the task images, with a folder for each digit or as IDX files", default=None
    )
    kinds: str = option(
        "what is asked and what is shown: two or three of sound, image and text, joined by -",
        _checked_kinds,
        default="sound-image",
    )
    candidates: int = option("how many digits each stream but the first shows", at_least(2), default=5)
    augment: bool = option(
        "change speed, add noise and mask parts of the training sounds, anew each time", default=True
    )
    rate: int = option("samples per second that all sounds are brought to", default=8000)
    bands: int = option("mel bands of the spectrogram", default=40)
    bad_files: str = option(
        "at a picture that cannot be read: stop, or skip it and say so", one_of(BAD_FILES), default="stop"
    )
    seed: int = option("which examples are drawn", whole_number, default=0)

    def check_options(self) -> None:
        if self.candidates > len(DIGITS):
            raise BadValue(f"candidates: expected at most {len(DIGITS)} different digits, got {self.candidates}.")
        self.mel = LogMel(self.rate, self.bands)  # refuses rates and bands

    @property
    def stream_kinds(self) -> tuple[str, ...]:
        """The kinds of the streams: what is asked first, then what is shown."""
        return tuple(self.kinds.split("-"))

    def streams(self) -> dict[str, StreamSpec]:
        """Frames of a spectrogram, pictures of 64 numbers, words."""
        streams: dict[str, StreamSpec] = {}
        for kind in self.stream_kinds:
            count = self.candidates if streams else 1
            longest = count * self.mel.positions(round((LONGEST + GAP) * self.mel.rate))
            specs: dict[str, StreamSpec] = {
                "sound": Frames(STACK * self.mel.bands, longest, self.mel.bands),
                "image": Vectors(written_digits.SIDE**2, count),
                "text": Tokens(len(WORDS), length=count),
            }
            streams[kind] = specs[kind]
        return streams

    def answers(self) -> list[Place]:
        """The place of the candidate that fits, and the digit that was told."""
        return [Place(self.candidates, len(DIGITS))]

    @cached_property
    def recordings(self) -> dict[str, dict[int, list[SoundRecording]]]:
        """The recordings of each digit in each split."""
        by_split: dict[str, dict[int, list[SoundRecording]]] = {}
        for split, recordings in load(self.data, self.mel.rate).items():
            by_digit: dict[int, list[SoundRecording]] = {digit: [] for digit in range(len(DIGITS))}
            for sound in recordings:
                if sound.transcript not in DIGITS:
                    raise BadValue(f"data: expected spoken digits, {sound.name} says {sound.transcript[:40]!r}.")
                by_digit[int(sound.transcript)].append(sound)
            missing = [digit for digit, spoken in by_digit.items() if not spoken]
            if missing:
                raise BadValue(
                    f"data: {self.data} has no recording of the digit {missing[0]} for {split}. Expected some of each "
                    "in every split: takes 0 to 4 are for the test, about a tenth of the others for validation."
                )
            by_split[split] = by_digit
        return by_split

    @cached_property
    def drawings(self) -> Drawings:
        """The pictures of each digit in each split."""
        if self.pictures is not None:
            return digit_pictures(self.pictures, written_digits.SIDE, BadFiles(self.bad_files), self.seed)
        drawings: Drawings = {}
        for row, digit, split in zip(*written_digits.images(), written_digits.split_of(), strict=True):
            drawings.setdefault(split, {}).setdefault(digit, []).append(row)
        return drawings

    def examples(self, split: str) -> Sequence[MatchExample]:
        """Digits, drawn by seed and index."""
        # Files are read here and not with the first batch, so that what is wrong with them is said before a run begins.
        if "sound" in self.stream_kinds and self.data is not None:
            _ = self.recordings
        if "image" in self.stream_kinds and self.pictures is not None:
            _ = self.drawings
        return Generated(SIZES[checked_split(split)], partial(self._example, split))

    def _example(self, split: str, index: int) -> MatchExample:
        draws = Draws("match", self.seed, split, index)
        query_digit, place = draws.below(len(DIGITS)), draws.below(self.candidates)
        free = [number for number in range(self.candidates) if number != place]
        digits: list[tuple[int, ...]] = [(query_digit,)]
        for _ in self.stream_kinds[1:]:
            wrong_digits = [digit for digit in range(len(DIGITS)) if digit != query_digit]
            shown = [wrong_digits.pop(draws.below(len(wrong_digits))) for _ in range(self.candidates - 1)]
            shown.insert(place, query_digit)
            if len(self.stream_kinds) > 2 and free:  # one stream alone must not tell the place
                shown[free.pop(draws.below(len(free)))] = query_digit
            digits.append(tuple(shown))
        return MatchExample(split, index, tuple(digits), place)

    def length(self, example: MatchExample) -> int:
        """The same for all, but for the lengths of sounds, which hardly differ."""
        return self.candidates

    def collate(self, examples: Sequence[MatchExample], generator: torch.Generator) -> Batch:
        """One stream for each kind, each padded by itself."""
        streams = {
            kind: self._stream(kind, number, examples, generator) for number, kind in enumerate(self.stream_kinds)
        }
        if any(example.place == UNKNOWN for example in examples):
            return Batch(streams)
        places = torch.tensor([example.place for example in examples], dtype=torch.long)
        digits = torch.tensor([example.digits[0][0] for example in examples], dtype=torch.long)
        return Batch(streams, {"place": Stream(places), "digit": Stream(digits)})

    def _stream(self, kind: str, number: int, examples: Sequence[MatchExample], generator: torch.Generator) -> Stream:
        """The digits or files of the stream `number` as a stream of a kind."""
        if kind == "text":
            return Stream(torch.tensor([example.digits[number] for example in examples]))
        contents = [
            example.files[kind].content if kind in example.files else self._drawn(kind, example, example.digits[number])
            for example in examples
        ]
        if kind == "sound":
            frames = [content.frames(self.mel, generator) for content in contents if isinstance(content, Utterance)]
            return Stream(*padded_frames(frames, STACK * self.mel.bands))
        pixels = torch.stack([content for content in contents if isinstance(content, Tensor)])
        return Stream((pixels - INK) / SPREAD)  # with mean 0 and variance 1 over all pictures

    def _drawn(self, kind: str, example: MatchExample, digits: tuple[int, ...]) -> Utterance | Tensor:
        """A sound, or the pixels (count,64) of pictures, drawn from those of the example's split."""
        draws = Draws(kind, self.seed, example.split, example.number)
        if kind == "sound":
            recordings = tuple(draws.among(self.recordings[example.split][digit]) for digit in digits)
            return self.utterance(recordings, self.augment and example.split == "train")
        return torch.from_numpy(np.stack([draws.among(self.drawings[example.split][digit]) for digit in digits]))

    def utterance(self, recordings: tuple[SoundRecording, ...], training: bool = False) -> Utterance:
        """Spoken digits one after the other, with silence after each."""
        return Utterance(recordings, (round(GAP * self.mel.rate),) * len(recordings), training)
