"""Which digit moves in a video, and where to? Scikit-learn's digits, moving over a small canvas."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers.questions import Questions
from regard_workbench.tasks.figures.overlay import overlays
from regard_workbench.tasks.formats.image_files import read_frames
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.moving import MOTIONS, moving
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Mean
from regard_workbench.tasks.parts.batch import INPUTS, Batch, Stream
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.shared_options import PATCH
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures import written_digits
from regard_workbench.tasks.pictures.digit_pictures import light_on_dark
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut, fold
from regard_workbench.tasks.pictures.pixels import fitted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIGIT, MOTION = "digit", "motion"
SIZES = {"train": 20_000, "validation": 500, "test": 1000}
INK, POWER = 0.305, 0.234  # mean of the pixels of a digit, and of their squares


class VideoExample(NamedTuple):
    """The frames of a video, and what is to be seen in it."""

    frames: Tensor  # (frames,1,side,side), from 0 to 1
    digit: int | None = None  # None where a user gave the video
    motion: int | None = None


def _right(names: tuple[str, ...], answered: Answered) -> tuple[float, float]:
    """How often all of these questions are answered rightly."""
    batch = answered.batch
    right = torch.ones(batch.size, dtype=torch.bool, device=batch.device)
    for name in names:
        right &= answered.outputs[name].argmax(-1) == batch.answers[name].data
    return float(right.sum()), float(batch.size)


def _accuracy(name: str, *questions: str) -> Mean:
    return Mean(name, unit=SHARE, over="videos", look=functools.partial(_right, questions))


class VideoPresenter(PatchPresenter["VideoTask"]):
    """Shows the frames of a video, and says what is to be seen in it."""

    def opened(self, task: VideoTask, path: str) -> VideoExample:
        """An animated picture, of which the first frames are read; light writing on a dark ground."""
        frames = [fitted(frame.convert("L"), task.size, task.size) for frame in read_frames(path, task.frames)]
        return VideoExample(torch.from_numpy(light_on_dark(np.stack(frames).astype(np.float32) / 255)))

    def words(self, task: VideoTask, example: VideoExample) -> str:
        if example.digit is None or example.motion is None:
            return "a video"
        return f"a video of {task.decode([example.digit, example.motion])}"

    def picture(self, task: VideoTask, example: VideoExample, batch: Batch) -> NDArray[np.float32]:
        """The frames below each other."""
        clip = fold(batch.inputs[:1], task.spec)[0, :, 0].cpu() * task.spread + task.mean
        return np.asarray(clip.clamp(0, 1).reshape(-1, task.size).numpy(), np.float32)

    def draw(self, task: VideoTask, predicted: Any, example: VideoExample, looked: Looked | None) -> Figure | None:
        """The frames side by side, and below them where the model looked; None where it cuts other patches."""
        spec = task.spec
        if looked is None or len(looked.columns) != spec.length:
            return None
        frames = self.picture(task, example, task.collate([example], torch.Generator()))
        weights = np.asarray(looked.weights, np.float32).reshape(-1, len(looked.columns)).mean(0)
        beside = _side_by_side(weights.reshape(-1, spec.columns), spec.frames).ravel().tolist()
        picture, grid = _side_by_side(frames, spec.frames), (spec.rows, spec.frames * spec.columns)
        figure = overlays(picture, [task.decode(predicted)], [beside], grid)
        for axes in figure.axes:
            for frame in range(1, spec.frames):
                axes.axvline(frame * task.size - 0.5, color="white", linewidth=1.5)
        return figure

    def decode(self, task: VideoTask, tokens: Sequence[int]) -> str:
        """The digit and its motion."""
        if len(tokens) != 2:
            raise BadValue(f"tokens: expected a digit and a motion, got {list(tokens)}.")
        article = "an" if tokens[0] == 8 else "a"
        return f"{article} {tokens[0]} that moves {list(MOTIONS)[tokens[1]]}"


@task("video")
class VideoTask(PatchTask):
    """Says which digit moves in a video and in which of eight directions; the videos are made, no files are needed.

    Where a digit starts says nothing about where it goes, and it may leave the canvas. Digits of the test are in no
    training video. accuracy: digit and motion both right.
    """

    judge = Judge.by(
        _accuracy("accuracy", DIGIT, MOTION), _accuracy("digit_accuracy", DIGIT), _accuracy("motion_accuracy", MOTION)
    )
    presenter = VideoPresenter()
    tried = ("--example", "8")
    recipe = Recipe(
        model="vit",
        steps=800,
        batch_size=64,
        lr=3e-3,
        warmup=50,
        models={"vit": "vit(dim=64, layers=2, dropout=0.0)", "encoder": "encoder(dim=64)"},
        reaches={"accuracy": 0.93},
    )

    frames: int = option("frames of a video", at_least(2), default=4)
    size: int = option("pixels of a side", at_least(written_digits.SIDE), default=16)
    patch: int = PATCH
    speed: int = option(
        "pixels that a digit moves from one frame to the next; it starts at a multiple of them", at_least(1), default=4
    )
    seed: int = option("which videos are made", whole_number, default=0)

    def check_options(self) -> None:
        self._spec = Patches.of(1, self.size, self.size, self.patch, self.frames)
        share = (written_digits.SIDE / self.size) ** 2  # of the canvas that a digit covers
        self.mean = share * INK
        self.spread = (share * POWER - self.mean**2) ** 0.5

    @property
    def spec(self) -> Patches:
        """Patches, frame by frame."""
        return self._spec

    def answers(self) -> list[Questions]:
        """The digit and the motion."""
        return [Questions((DIGIT, MOTION), (written_digits.CLASSES, len(MOTIONS)))]

    def examples(self, split: str) -> Sequence[VideoExample]:
        """Videos, drawn by seed and index."""
        return Generated(SIZES[checked_split(split)], functools.partial(self._example, split), even=True)

    def _example(self, split: str, index: int) -> VideoExample:
        draws = Draws("video", self.seed, split, index)
        pixels, shown = written_digits.images()
        chosen, motion = draws.among(written_digits.numbers_of(split)), draws.below(len(MOTIONS))
        starts = (self.size - written_digits.SIDE) // self.speed + 1  # places along a side, all inside the canvas
        top, left = (self.speed * draws.below(starts) for _ in range(2))
        down, right = (self.speed * component for component in list(MOTIONS.values())[motion])
        figure = pixels[chosen].reshape(written_digits.SIDE, written_digits.SIDE)
        clip = moving(figure, self.size, self.frames, (top, left), (down, right))
        return VideoExample(torch.from_numpy(clip[:, None]), shown[chosen], motion)

    def collate(self, examples: Sequence[VideoExample], generator: torch.Generator) -> Batch:
        """Patches of all frames, and both answers where they are known."""
        shape = (0, self.frames, 1, self.size, self.size)
        clips = torch.stack([example.frames for example in examples]) if examples else torch.zeros(shape)
        streams = {INPUTS: Stream(cut((clips - self.mean) / self.spread, self.spec))}
        right = [(example.digit, example.motion) for example in examples]
        if any(None in pair for pair in right):
            return Batch(streams)
        both = torch.tensor(right, dtype=torch.long).reshape(-1, 2)
        return Batch(streams, {DIGIT: Stream(both[:, 0]), MOTION: Stream(both[:, 1])})


def _side_by_side(stacked: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Frames that lie below each other, (frames·h,w), beside each other, (h,frames·w)."""
    return np.concatenate(np.split(stacked, frames), 1)
