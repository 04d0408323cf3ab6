"""Speech to text: spoken digits, one or many in a row, or any recordings with their transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard.support.declared import at_least, option
from regard_workbench import files
from regard_workbench.tasks.answers import Answer, OneOf, Writes
from regard_workbench.tasks.formats.reading import Data, checked_encoding
from regard_workbench.tasks.formats.splits import of_split
from regard_workbench.tasks.measures.metrics import LOSS, PERPLEXITY, SHARE, Answered, Counts, Mean, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import Presenter
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Frames
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.sound.errors import distance
from regard_workbench.tasks.sound.log_mel import HOP, STACK, LogMel
from regard_workbench.tasks.sound.recordings import DIGITS, Splits, load, typed
from regard_workbench.tasks.sound.utterances import Utterance, joined, padded_frames, spectrogram
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import END, PADDING, SPECIAL, START, Vocabulary

STRINGS = {"train": 20_000, "validation": 200, "test": 500}  # how many, where recordings are joined


def _rate(counts: Mapping[str, float]) -> float:
    return counts["wrong"] / max(1.0, counts["words"])


def _written_loss(answered: Answered) -> tuple[float, float]:
    """The cross-entropy of the tokens that a decoder writes, without that of other outputs (CTC)."""
    model: Any = answered.model
    total, count = model.head.loss(getattr(answered.outputs, "written", answered.outputs), answered.batch)
    return float(total), float(count)


def word_error_rate(name: str = "wer", look: Any = lambda _: None) -> Counts:
    """Wrong words, as a share of those that were said."""
    return Counts(name, False, SHARE, "words", look=look, made=_rate, total="words")


@dataclass(frozen=True)
class Transcripts(Fitted):
    """The vocabulary of transcripts, the length of the longest, its end included, and whether each is one word."""

    vocabulary: Vocabulary
    max_target: int
    alone: bool


class SoundPresenter(Presenter["Speech"]):
    """Reads sounds, and shows their spectrograms."""

    takes = ("sound",)

    def parse(self, task: Speech, given: Mapping[str, str]) -> Any:
        """A sound file."""
        if set(given) != {"sound"}:
            return super().parse(task, given)
        return Utterance((typed(given["sound"], task.mel.rate, task.strings * task.max_seconds),))

    def show(self, task: Speech, example: Utterance, batch: Batch) -> Shown:
        """The spectrogram, low bands at the bottom, with the time of each position."""
        positions = batch.inputs.shape[1]
        picture = spectrogram(batch.inputs[0], task.mel.bands)
        pieces = [f"{number * STACK * HOP:.2f} s" for number in range(positions)]
        name = f"“{example.transcript}”" if example.transcript else example.parts[0].name
        words = f"{len(example) / task.mel.rate:.2f} seconds of sound: {name}"
        target: list[str] = []
        if batch.targets is not None and batch.targets.dim() == 2:
            target = task.output_pieces(batch.targets[0].tolist())
        return Shown(words, pieces, "frames", target=target, picture=picture, grid=(1, positions))

    def decode(self, task: Speech, tokens: Sequence[int]) -> str:
        """The transcript, or the word of a class."""
        ids = [tokens[0] + len(SPECIAL)] if isinstance(task.problem.answer, OneOf) else tokens
        return task.fitted.vocabulary.decode(ids)

    def output_pieces(self, task: Speech, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""
        return task.fitted.vocabulary.pieces(tokens)


@task("speech")
class Speech(Task):
    """Writes what is said in a sound; without files, ten digits as tunes of tones in four voices.

    A folder or zip of <digit>_<speaker>_<n>.wav: n from 0 to 4 is for the test, a tenth of the others, by a hash of
    their names, for validation. A list has lines of path TAB transcript. Wav files may have any rate, width and number
    of channels.
    """

    metric = word_error_rate()
    presenter = SoundPresenter()
    fitted = Kept(Transcripts)
    tried = ("--example", "7")
    recipe = Recipe(
        model="recognizer",
        steps=500,
        batch_size=32,
        lr=2e-3,
        warmup=100,
        models={
            "recognizer": "recognizer(dim=64, layers=2)",
            "transformer": "transformer(dim=64, layers=2, decoder_layers=1)",
            "encoder": "encoder(dim=64)",
            "seq2seq": "seq2seq(dim=64)",
        },
        compared=("recognizer", "transformer"),
        reaches={"wer": 0.03, "accuracy": 0.97},
    )

    data: Data | None = option(
        "a folder or zip of named recordings, a list of transcripts, or a folder with lists train, dev and test",
        default=None,
    )
    strings: int = option(
        "join up to so many recordings of one speaker to a long sound; 1: recordings as they are",
        at_least(1),
        default=1,
    )
    unseen: str = option(
        "a speaker none of whose recordings is trained on; wer_unseen and wer_seen are then measured apart", default=""
    )
    augment: bool = option(
        "change speed, add noise and mask parts of the training sounds, anew each time", default=True
    )
    level: str = option(
        "what the transcripts of a list are made of: word or character",
        lambda name, level: vocabulary.checked_level(level),
        default="word",
    )
    rate: int = option("samples per second that all sounds are brought to", default=8000)
    bands: int = option("mel bands of the spectrogram", default=40)
    max_seconds: float = option(
        "longest recording; a longer one is refused",
        lambda name, seconds: finite_number(name, seconds, above=0.0),
        default=60.0,
    )
    encoding: str = option("how lists are encoded", lambda name, encoding: checked_encoding(encoding), default="utf-8")
    seed: int = option("which recordings are for validation, and how strings are joined", whole_number, default=0)
    whole: bool = option(
        "measure on all recordings, keep none for training; for a model trained on other data", default=False
    )

    def check_options(self) -> None:
        self.mel = LogMel(self.rate, self.bands)

    @cached_property
    def recordings(self) -> Splits:
        """The recordings of each split."""
        splits = load(self.data, self.mel.rate, unseen=self.unseen, seed=self.seed, encoding=self.encoding)
        every = [recording for recordings in splits.values() for recording in recordings]
        for recording in every:
            if len(recording.samples) > self.max_seconds * self.mel.rate:
                raise BadValue(
                    f"data: {files.shown(recording.name)} takes {len(recording.samples) / self.mel.rate:.1f} seconds, "
                    f"expected at most max_seconds={self.max_seconds:g}. Cut it, or raise max_seconds."
                )
        return {"validation": every, "test": every} if self.whole else splits

    def fit(self) -> Transcripts:
        training = self.recordings.get("train") or next(iter(self.recordings.values()))
        texts = [recording.transcript for recording in training]
        words = vocabulary.Words(DIGITS) if set(texts) <= set(DIGITS) else vocabulary.build(self.level, texts)
        longest = max(
            len(words.encode(sound.transcript)) for recordings in self.recordings.values() for sound in recordings
        )
        between = 1 if words.level == "character" else 0  # the space between recordings
        alone = self.strings == 1 and longest == 1
        return Transcripts(words, self.strings * (longest + between) + 1, alone)

    def streams(self) -> dict[str, Frames]:
        """Frames of the spectrogram, four to a position."""
        between = 0.25 if self.strings > 1 else 0.0  # seconds of silence after each recording, at most
        longest = self.strings * self.mel.positions(round((self.max_seconds + between) * self.mel.rate))
        return {INPUTS: Frames(STACK * self.mel.bands, longest, self.mel.bands)}

    @property
    def target_vocabulary(self) -> Vocabulary:
        """How a target that somebody types is read."""
        return self.fitted.vocabulary

    def answers(self) -> list[Answer]:
        """A transcript; where each is one word, also the class of that word."""
        count = len(self.fitted.vocabulary)
        written: Answer = Writes(count, self.fitted.max_target, START, END)
        return [written, OneOf(count - len(SPECIAL))] if self.fitted.alone else [written]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, sounds transcribed without an error, perplexity where tokens are written, and the word error rate."""
        metrics: list[Metric] = [
            LOSS,
            Mean("accuracy", unit=SHARE, over="sounds", look=self._exact),
            word_error_rate(look=lambda answered: self._errors(answered, None)),
        ]
        if isinstance(self.problem.answer, Writes):
            metrics.insert(2, replace(PERPLEXITY, look=_written_loss))
        if self.unseen:
            metrics += [
                word_error_rate("wer_seen", lambda answered: self._errors(answered, False)),
                word_error_rate("wer_unseen", lambda answered: self._errors(answered, True)),
            ]
        return tuple(metrics)

    def heard(self, answered: Answered) -> list[tuple[list[str], list[str], str]]:
        """For each sound the words that the model writes, those that are said, and the speaker."""
        batch = answered.batch
        if isinstance(self.problem.answer, OneOf):
            texts = [self.decode([number]) for number in answered.predicted]
        else:
            texts = [self.decode(best[0].tokens) if best else "" for best in answered.model.generate(batch)]
        sounds = zip(texts, batch.notes["transcripts"], batch.notes["speakers"], strict=True)
        return [(split_words(text), split_words(transcript), speaker) for text, transcript, speaker in sounds]

    def _exact(self, answered: Answered) -> tuple[float, float]:
        sounds = answered.once(self.heard)
        return float(sum(heard == reference for heard, reference, _ in sounds)), float(len(sounds))

    def _errors(self, answered: Answered, unseen: bool | None) -> dict[str, float] | None:
        """Wrong words and words, of all speakers, the unseen one or the others; None where none of these speaks."""
        pairs = [
            (heard, reference)
            for heard, reference, speaker in answered.once(self.heard)
            if unseen is None or unseen == (speaker == self.unseen)
        ]
        if not pairs:
            return None
        return {
            "wrong": sum(distance(heard, reference) for heard, reference in pairs),
            "words": sum(len(reference) for _, reference in pairs),
        }

    def examples(self, split: str) -> Sequence[Utterance]:
        """Recordings, or strings of them, the same in every process."""
        recordings, training = of_split(self.recordings, split, self.data), self.augment and split == "train"
        if self.strings == 1:
            return [Utterance((recording,), training=training) for recording in recordings]
        return joined(recordings, STRINGS[split], self.strings, self.mel.rate, training, self.seed, split)

    def length(self, example: Utterance) -> int:
        """Positions of the spectrogram."""
        return self.mel.positions(len(example))

    def collate(self, examples: Sequence[Utterance], generator: torch.Generator) -> Batch:
        """Spectrograms padded with zeros at their ends, and their transcripts where they are known."""
        frames = [example.frames(self.mel, generator) for example in examples]
        inputs, keep = padded_frames(frames, STACK * self.mel.bands)
        batch = Batch.of(
            inputs,
            keep,
            transcripts=tuple(example.transcript for example in examples),
            speakers=tuple(example.speaker for example in examples),
        )
        encode = self.fitted.vocabulary.encode
        tokens = [encode(example.transcript) for example in examples]
        if not all(tokens):
            return batch
        if isinstance(self.problem.answer, OneOf):
            return batch.answered(torch.tensor([ids[0] - len(SPECIAL) for ids in tokens]))
        return batch.answered(*padded([[*ids, END] for ids in tokens], PADDING))
