"""Speech to text: spoken digits, one or many in a row, or any recordings with their transcripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard_workbench import files
from regard_workbench.tasks.answers import Answer, OneOf, Writes
from regard_workbench.tasks.formats.reading import Data, checked_encoding
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.measures.metrics import LOSS, PERPLEXITY, SHARE, Answered, Counts, Mean, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.padding import padded
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


@task("speech")
class Speech(Task):
    """Writes what is said in a sound; without files, ten digits as tunes of tones in four voices.

    A folder or zip of <digit>_<speaker>_<n>.wav: n from 0 to 4 is for the test, a tenth of the others, by a hash of
    their names, for validation. A list has lines of path TAB transcript. Wav files may have any rate, width and number
    of channels.

    Args:
        data: a folder or zip of named recordings, a list of transcripts, or a folder with lists train, dev and test
        strings: join up to so many recordings of one speaker to a long sound; 1: recordings as they are
        unseen: a speaker none of whose recordings is trained on; wer_unseen and wer_seen are then measured apart
        augment: change speed, add noise and mask parts of the training sounds, anew each time
        level: what the transcripts of a list are made of: word or character
        rate: samples per second that all sounds are brought to
        bands: mel bands of the spectrogram
        max_seconds: longest recording; a longer one is refused
        encoding: how lists are encoded
        seed: which recordings are for validation, and how strings are joined
        whole: measure on all recordings, keep none for training; for a model trained on other data
    """

    takes = ("sound",)
    metric: ClassVar[Metric] = word_error_rate()
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

    def __init__(
        self,
        data: Data | None = None,
        strings: int = 1,
        unseen: str = "",
        augment: bool = True,
        level: str = "word",
        rate: int = 8000,
        bands: int = 40,
        max_seconds: float = 60.0,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.unseen, self.augment = data, unseen, augment
        self.strings = whole_number("strings", strings, 1)
        self.level = vocabulary.checked_level(level)
        self.mel = LogMel(rate, bands)
        self.max_seconds = finite_number("max_seconds", max_seconds, above=0.0)
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.whole = whole
        self.target_vocabulary: Vocabulary | None = None
        self.max_target = 0  # the end included
        self.alone = False  # whether each transcript is a single word

    @cached_property
    def recordings(self) -> Splits:
        """The recordings of each split."""
        found = load(self.data, self.mel.rate, unseen=self.unseen, seed=self.seed, encoding=self.encoding)
        for part in found.values():
            for one in part:
                if len(one.samples) > self.max_seconds * self.mel.rate:
                    raise BadValue(
                        f"data: {files.shown(one.name)} takes {len(one.samples) / self.mel.rate:.1f} seconds, expected "
                        f"at most max_seconds={self.max_seconds:g}. Cut it, or raise max_seconds."
                    )
        if self.whole:
            every = [one for part in found.values() for one in part]
            return {"validation": every, "test": every}
        return found

    def _known(self) -> Vocabulary:
        """The vocabulary of the transcripts; made from the data where no state was restored."""
        if self.target_vocabulary is None:
            first = self.recordings.get("train") or next(iter(self.recordings.values()))
            texts = [one.transcript for one in first]
            if set(texts) <= set(DIGITS):
                self.target_vocabulary = vocabulary.Words(DIGITS)
            else:
                self.target_vocabulary = vocabulary.build(self.level, texts)
            longest = max(
                len(self.target_vocabulary.encode(one.transcript)) for part in self.recordings.values() for one in part
            )
            self.alone = self.strings == 1 and longest == 1
            between = 1 if self.target_vocabulary.level == "character" else 0  # the space between recordings
            self.max_target = self.strings * (longest + between) + 1
        return self.target_vocabulary

    def streams(self) -> dict[str, Frames]:
        """Frames of the spectrogram, four to a position."""
        between = 0.25 if self.strings > 1 else 0.0  # seconds of silence after each recording, at most
        longest = self.strings * self.mel.positions(round((self.max_seconds + between) * self.mel.rate))
        return {INPUTS: Frames(STACK * self.mel.bands, longest, self.mel.bands)}

    def answers(self) -> list[Answer]:
        """A transcript; where each is one word, also the class of that word."""
        count = len(self._known())
        written: Answer = Writes(count, self.max_target, START, END)
        return [written, OneOf(count - len(SPECIAL))] if self.alone else [written]

    def metrics(self) -> tuple[Metric, ...]:
        """Loss, sounds transcribed without an error, perplexity where tokens are written, and the word error rate."""
        found: list[Metric] = [
            LOSS,
            Mean("accuracy", unit=SHARE, over="sounds", look=self._exact),
            word_error_rate(look=lambda answered: self._errors(answered, None)),
        ]
        if isinstance(self.problem.answer, Writes):
            found.insert(2, replace(PERPLEXITY, look=_written_loss))
        if self.unseen:
            found += [
                word_error_rate("wer_seen", lambda answered: self._errors(answered, False)),
                word_error_rate("wer_unseen", lambda answered: self._errors(answered, True)),
            ]
        return tuple(found)

    def heard(self, answered: Answered) -> list[tuple[list[str], list[str], str]]:
        """For each sound the words that the model writes, those that are said, and the speaker."""
        batch = answered.batch
        if isinstance(self.problem.answer, OneOf):
            texts = [self.decode([number]) for number in answered.predicted]
        else:
            texts = [self.decode(best[0].tokens) if best else "" for best in answered.model.generate(batch)]
        said = zip(texts, batch.notes["transcripts"], batch.notes["speakers"], strict=True)
        return [(split_words(text), split_words(right), speaker) for text, right, speaker in said]

    def _exact(self, answered: Answered) -> tuple[float, float]:
        found = answered.once(self.heard)
        return float(sum(heard == said for heard, said, _ in found)), float(len(found))

    def _errors(self, answered: Answered, unseen: bool | None) -> dict[str, float] | None:
        """Wrong words and words, of all speakers, the unseen one or the others; None where none of these speaks."""
        found = [
            (heard, said)
            for heard, said, speaker in answered.once(self.heard)
            if unseen is None or unseen == (speaker == self.unseen)
        ]
        if not found:
            return None
        return {
            "wrong": sum(distance(heard, said) for heard, said in found),
            "words": sum(len(said) for _, said in found),
        }

    def examples(self, split: str) -> Sequence[Utterance]:
        """Recordings, or strings of them, the same in every process."""
        if checked_split(split) not in self.recordings:
            raise BadValue(f"data: {self.data} has nothing for {split}. It has: {', '.join(self.recordings)}.")
        found, training = self.recordings[split], self.augment and split == "train"
        if self.strings == 1:
            return [Utterance((one,), training=training) for one in found]
        key = (self.seed, split)
        return joined(found, STRINGS[split], self.strings, self.mel.rate, training, *key)

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
        encode = self._known().encode
        tokens = [encode(example.transcript) for example in examples]
        if not all(tokens):
            return batch
        if isinstance(self.problem.answer, OneOf):
            return batch.answered(torch.tensor([ids[0] - len(SPECIAL) for ids in tokens]))
        return batch.answered(*padded([[*ids, END] for ids in tokens], PADDING))

    def parse(self, given: Mapping[str, str]) -> Utterance:
        """A sound file."""
        if set(given) != {"sound"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        return Utterance((typed(given["sound"], self.mel.rate, self.strings * self.max_seconds),))

    def show(self, example: Utterance, batch: Batch) -> Shown:
        """The spectrogram, low bands at the bottom, with the time of each position."""
        positions = batch.inputs.shape[1]
        picture = spectrogram(batch.inputs[0], self.mel.bands)
        pieces = [f"{number * STACK * HOP:.2f} s" for number in range(positions)]
        said = f"“{example.transcript}”" if example.transcript else example.parts[0].name
        words = f"{len(example) / self.mel.rate:.2f} seconds of sound: {said}"
        target: list[str] = []
        if batch.targets is not None and batch.targets.dim() == 2:
            target = self.output_pieces(batch.targets[0].tolist())
        return Shown(words, pieces, "frames", target=target, picture=picture, grid=(1, positions))

    def decode(self, tokens: Sequence[int]) -> str:
        """The transcript, or the word of a class."""
        ids = [tokens[0] + len(SPECIAL)] if isinstance(self.problem.answer, OneOf) else tokens
        return self._known().decode(ids)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""
        return self._known().pieces(tokens)

    def state(self) -> dict[str, Any]:
        """The vocabulary, the longest transcript, and whether each is one word."""
        return {"vocabulary": self._known().state(), "max_target": self.max_target, "alone": self.alone}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.target_vocabulary = vocabulary.restored(state["vocabulary"])
        self.level = self.target_vocabulary.level
        self.max_target = whole_number("max_target", state["max_target"], 1)
        self.alone = bool(state["alone"])
