"""Recordings with what is said in them: from files named `<digit>_<speaker>_<n>.wav`, from lists, or made of tones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue, unknown_name
from regard_workbench import files
from regard_workbench.tasks.formats import stores
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import complete, files_by_split
from regard_workbench.tasks.sound import tones
from regard_workbench.tasks.sound.wav import MOST_BYTES, Sound, read_sound, resampled
from regard_workbench.tasks.text.split_words import split_words, trimmed

DIGITS = tuple(str(digit) for digit in range(10))
SOUNDS = (".wav", ".flac", ".ogg")
LISTS = (".tsv", ".txt")
TEST_TAKES = 5  # recordings 0 to 4 of each digit and speaker are for the test
MOST_SAMPLES = 500_000_000  # of all recordings together: 2 GB
NAMED = "named"  # files that are in no split yet
_NAME = re.compile(r"(\d)_([^_]+)_(\d+)")


class SoundRecording(NamedTuple):
    """Samples at the task's rate, and what is said in them."""

    samples: NDArray[np.float32]
    transcript: str
    speaker: str = ""  # empty where it is not known
    name: str = ""


class Named(NamedTuple):
    """A file before it is read."""

    name: str
    transcript: str
    speaker: str = ""
    take: int = 0
    listed: str = ""  # the line of the list that names it, as FILE:LINE


Splits = dict[str, list[SoundRecording]]


def typed(path: str, rate: int, longest: float) -> SoundRecording:
    """A recording from a user's file, brought to `rate` samples per second; of at most `longest` seconds."""
    sound = read_sound(files.read_bytes(path, "--sound", MOST_BYTES), files.shown(path), "--sound")
    if sound.seconds > longest:
        raise BadValue(
            f"--sound: {files.shown(path)} takes {sound.seconds:.1f} seconds, expected at most {longest:g}. Cut it."
        )
    return SoundRecording(resampled(sound, rate), "", name=Path(path).name)


@reads_file
def load(data: Data | None, rate: int, *, unseen: str = "", seed: int = 0, encoding: str = "utf-8") -> Splits:
    """The recordings of each split. `unseen`: a speaker all of whose recordings are for the test.

    Named digits: takes 0 to 4 are for the test, a tenth of the others, by a hash of their names, for validation. Lists:
    by their names (train, dev, test), else 80/10/10 by a hash.
    """
    if data is None:
        return _without(_split(_made(rate), seed, None), unseen)
    by_split: dict[str, list[tuple[int, SoundRecording]]] = {}
    for path in paths_of(data):
        with _store(path) as store:
            for split, files in _files(store, path, encoding).items():
                by_split.setdefault(split, []).extend(_read(store, files, rate))
    if NAMED in by_split:
        if len(by_split) > 1:
            raise BadValue("data: expected files named <digit>_<speaker>_<n>.wav or lists of transcripts, got both.")
        return _without(_split(by_split[NAMED], seed, data), unseen)
    if unseen:
        raise BadValue("unseen: the lines of a list name no speakers. Expected files named <digit>_<speaker>_<n>.wav.")
    splits = {split: [recording for _, recording in files] for split, files in by_split.items()}
    if "train" not in splits:
        return splits
    return complete(splits, [recording.name for recording in splits["train"]], seed, data)


def speakers(splits: Splits) -> set[str]:
    """Everyone who speaks."""
    return {recording.speaker for recordings in splits.values() for recording in recordings}


def _made(rate: int) -> list[tuple[int, SoundRecording]]:
    """The tones, at this rate."""
    recordings = []
    for speaker in tones.SPEAKERS:
        for digit in range(len(tones.TUNES)):
            for take in range(tones.TAKES):
                samples = resampled(Sound(tones.spoken(digit, speaker, take), tones.RATE), rate)
                recordings.append((take, SoundRecording(samples, str(digit), speaker, f"{digit}_{speaker}_{take}.wav")))
    return recordings


def _split(recordings: Sequence[tuple[int, SoundRecording]], seed: int, data: Data | None) -> Splits:
    """Splits of named digits: by their takes, validation by a hash."""
    splits: Splits = {"train": [], "test": []}
    for take, recording in recordings:
        splits["test" if take < TEST_TAKES else "train"].append(recording)
    empty = [split for split, members in splits.items() if not members]
    if empty:
        raise BadValue(
            f"data: no recording is for {empty[0]}. Expected <digit>_<speaker>_<n>.wav with n from 0 to "
            f"{TEST_TAKES - 1} for the test and others for training."
        )
    # By the name alone, so that an archive and its folder are split alike.
    return complete(splits, [PurePosixPath(recording.name).name for recording in splits["train"]], seed, data)


def _without(splits: Splits, unseen: str) -> Splits:
    """All recordings of the unseen speaker are for the test."""
    if not unseen:
        return splits
    all_speakers = speakers(splits)
    if unseen not in all_speakers:
        raise unknown_name("unseen", unseen, all_speakers)
    if len(all_speakers) == 1:
        raise BadValue(f"unseen: {unseen} is the only speaker, so nothing would be left for training.")
    test = list(splits["test"])
    for split in ("train", "validation"):
        test += [recording for recording in splits[split] if recording.speaker == unseen]
        splits = {**splits, split: [recording for recording in splits[split] if recording.speaker != unseen]}
    return {**splits, "test": test}


def _is_list(path: Path) -> bool:
    return path.suffix.lower() in LISTS and not path.is_dir()


def _store(path: Path) -> stores.FolderFiles:
    """A folder or an archive; that of a list is the folder in which it lies."""
    return stores.FolderFiles(path.parent) if _is_list(path) else stores.opened(path)


def _files(store: stores.FolderFiles, path: Path, encoding: str) -> dict[str, list[Named]]:
    """The files of a path by split; those whose names say what is said are under `NAMED`."""
    if _is_list(path):
        return {next(iter(files_by_split([path])), "train"): _listed(read_lines(path, encoding), path)}
    lists = (
        [] if isinstance(store, stores.ZipFiles) else [path / name for name in store.names(LISTS) if "/" not in name]
    )
    if not lists:
        return {NAMED: _by_name(store)}
    by_split = files_by_split(lists) or {"train": lists[0]}
    return {split: _listed(read_lines(file, encoding), file) for split, file in by_split.items()}


def _by_name(store: stores.FolderFiles) -> list[Named]:
    names = store.names(SOUNDS)
    if not names:
        raise BadValue(f"data: {store.path} holds no sound. Expected files that end in {', '.join(SOUNDS)}.")
    named_files = []
    for name in names:
        match = _NAME.fullmatch(PurePosixPath(name).stem)
        if not match:
            raise BadValue(
                f"data: {store.shown(name)}: expected a name of the form <digit>_<speaker>_<n>.wav. For other sounds "
                "write a list with lines of path TAB transcript."
            )
        named_files.append(Named(name, match[1], match[2], int(match[3])))
    return named_files


def _listed(lines: Sequence[str], path: Path) -> list[Named]:
    """The files of a list, beside which they lie."""
    named_files = []
    for number, line in enumerate(lines, 1):
        if not trimmed(line):
            continue
        name, tab, transcript = line.partition("\t")
        if not tab or not trimmed(transcript):
            raise wrong(path, number, f"expected path TAB transcript, got {excerpt(line)}.")
        named_files.append(Named(trimmed(name), " ".join(split_words(transcript)), listed=f"{path}:{number}"))
    return named_files


def _read(store: stores.FolderFiles, files: Iterable[Named], rate: int) -> Iterator[tuple[int, SoundRecording]]:
    """The takes and the recordings of some files."""
    total = 0
    for file in files:
        try:
            samples = resampled(read_sound(store.read(file.name, MOST_BYTES), store.shown(file.name)), rate)
        except BadValue as trouble:
            raise BadValue(f"{file.listed}: {trouble}" if file.listed else str(trouble)) from None
        total += len(samples)
        if total > MOST_SAMPLES:
            raise BadValue(
                f"data: more than {MOST_SAMPLES / rate / 3600:,.0f} hours of sound are not held in memory. Take a part."
            )
        yield file.take, SoundRecording(samples, file.transcript, file.speaker, file.name)
