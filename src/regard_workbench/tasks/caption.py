"""Pictures to sentences: generated scenes of digits, or any images with captions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard.support.declared import Check, at_least, option
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.formats import caption_files
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.caption_files import Described, read_described
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.picture_files import PictureFiles
from regard_workbench.tasks.formats.reading import Data, checked_encoding, paths_of
from regard_workbench.tasks.formats.splits import checked_split, of_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.figure_sentences import every_sentence, is_clear, sentences
from regard_workbench.tasks.generated.scenes import Scene, compose
from regard_workbench.tasks.measures.bleu import ORDERS, Bleu
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, PERPLEXITY, Answered, Counts, Metric
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.remembered import remembered
from regard_workbench.tasks.parts.shared_options import MIN_COUNT, STOP_OR_SKIP
from regard_workbench.tasks.parts.shown import Looked, Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.pictures.crops import varied
from regard_workbench.tasks.pictures.digit_pictures import BRIGHT
from regard_workbench.tasks.pictures.patch_task import PatchPresenter, PatchTask
from regard_workbench.tasks.pictures.patches import cut
from regard_workbench.tasks.pictures.pixels import COLOUR, GREY, Pixels, numbers, packed, shown, square
from regard_workbench.tasks.pictures.written_digits import SIDE, images, numbers_of
from regard_workbench.tasks.text import vocabulary
from regard_workbench.tasks.text.split_words import split_words
from regard_workbench.tasks.text.vocabulary import END, PADDING, START, Vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCENE, SCENE_PATCH = 32, 4  # pixels of a generated scene's side, and of a patch's
DIGITS = (11, 15)  # the least and the greatest height of a digit in a scene, in pixels
SIZES = {"train": 20_000, "validation": 300, "test": 500}  # generated scenes
STRIDE = 8  # training captions of files are padded to a multiple of so many words
ALONE = 40  # per cent of the scenes that hold one digit


class Captioned(NamedTuple):
    """A picture, a caption of it, and all captions where the model is made to write one for it."""

    pixels: Pixels
    caption: str | None = None
    references: tuple[str, ...] | None = None
    training: bool = False  # whether a batch shows another part of the picture each time


@dataclass(frozen=True)
class Captions(Fitted):
    """The words of the training captions, the length of the longest, its end included, and the form of pictures."""

    vocabulary: Vocabulary
    max_target: int
    size: int
    patch: int
    channels: int


class CaptionPresenter(PatchPresenter["Caption"]):
    """Shows a picture and its caption."""

    def opened(self, task: Caption, path: str) -> Captioned:
        """An image; where the run learned scenes of digits, light writing on a dark ground."""
        form = task.fitted
        pixels = square(read_image(path), form.size, form.channels)
        return Captioned(255 - pixels if form.channels == GREY and pixels.mean() > BRIGHT * 255 else pixels)

    def words(self, task: Caption, example: Captioned) -> str:
        return "an image" if example.caption is None else f"an image: “{example.caption}”"

    def picture(self, task: Caption, example: Captioned, batch: Batch) -> NDArray[np.float32]:
        return shown(example.pixels)

    def show(self, task: Caption, example: Captioned, batch: Batch) -> Shown:
        """The picture, with the names of its patches and the words of its caption."""
        target = [] if batch.targets is None else task.output_pieces(batch.targets[0].tolist())
        return replace(super().show(task, example, batch), target=target)

    def draw(self, task: Caption, predicted: Any, example: Captioned, looked: Looked | None) -> Figure | None:
        """The picture once for each word, with the weights of that word over it."""
        from regard_workbench.tasks.figures.overlay import overlays

        if looked is None:
            return None
        return overlays(shown(example.pixels), looked.rows, looked.weights, (task.spec.rows, task.spec.columns))

    def decode(self, task: Caption, tokens: Sequence[int]) -> str:
        """The caption."""
        return task.fitted.vocabulary.decode(tokens)

    def output_pieces(self, task: Caption, tokens: Sequence[int]) -> list[str]:
        """The word of each token."""
        return task.fitted.vocabulary.pieces(tokens)


def _or_default(least: int) -> Check:
    """Check for a whole number of at least `least`; 0 stands for the default."""
    return lambda name, number: whole_number(name, number, least) if number else None


@task("caption")
class Caption(PatchTask):
    """Writes a sentence about a picture; without files, scenes of digits: "a three left of a seven".

    Files: a folder, zip or tar archive of images, and lines of image[#n] TAB caption; lists such as
    Flickr_8k.trainImages.txt say which images are for training, validation and test. Captions are read in lower case,
    without punctuation.
    """

    metric = Counts("bleu", over="images", total="texts")  # `metrics` says how it is measured
    presenter = CaptionPresenter()
    fitted = Kept(Captions)
    tried = ("--example", "18")
    recipe = Recipe(
        model="captioner",
        steps=1200,
        batch_size=32,
        lr=2e-3,
        warmup=100,
        models={
            "captioner": "captioner(dim=64, width=16, blocks=0, dropout=0.0, norm=batch)",
            "transformer": "transformer(dim=64, layers=2, decoder_layers=1)",
        },
        compared=("captioner", "captioner(attention=hard)"),
        reaches={"bleu": 85.0},
    )

    data: Data | None = option("a folder with all of that, or the files and folders one by one", default=None)
    size: int | None = option(
        "pixels of a side that images are brought to; 32 for generated scenes", _or_default(8), default=None
    )
    patch: int | None = option("pixels of a patch's side; attention is over patches", _or_default(1), default=None)
    augment: bool = option(
        "show another part of each training image each time, mirrored half of the times; not for scenes", default=True
    )
    min_count: int = MIN_COUNT
    max_length: int = option("longest caption in words; longer ones are cut", at_least(1), default=30)
    bleu_examples: int = option("for how many validation images the model is made to write", at_least(1), default=300)
    bad_files: str = option(
        "at an image that cannot be read: stop, or skip it and say so", STOP_OR_SKIP, default="stop"
    )
    length_penalty: float = option(
        "with --beam, log-probabilities are divided by lengths to this power; above 1 prefers long texts",
        finite_number,
        default=1.0,
    )
    encoding: str = option(
        "how the files of text are encoded", lambda name, encoding: checked_encoding(encoding), default="utf-8"
    )
    seed: int = option(
        "which images are kept for validation and test where no list says; which scenes are generated",
        whole_number,
        default=0,
    )
    whole: bool = option(
        "measure on all images, keep none for training; for a model trained on other data", default=False
    )

    def check_options(self) -> None:
        size, patch, channels = self._form
        if self.data is None and size != SCENE:
            raise BadValue(f"size: generated scenes have {SCENE} pixels, got {size}. Leave it out, or give data.")
        Patches.of(channels, size, size, patch)  # refuses a side that does not divide

    @property
    def _form(self) -> tuple[int, int, int]:
        """Size, patch and channels of the pictures to train on."""
        size, patch, channels = (SCENE, SCENE_PATCH, GREY) if self.data is None else (128, 16, COLOUR)
        return self.size or size, self.patch or patch, channels

    @cached_property
    def _files(self) -> caption_files.CaptionFiles:
        assert self.data is not None
        return caption_files.sorted_out(paths_of(self.data), self.encoding, self.typed(encoding="latin-1"))

    @cached_property
    def described(self) -> dict[str, list[Described]]:
        """The names of the images of each split with their captions."""
        typed_encoding = self.typed(encoding="latin-1")
        return read_described(self._files, self.encoding, typed_encoding, self.seed, self.whole)

    def fit(self) -> Captions:
        texts = every_sentence()
        if self.data is not None:
            described = self.described.get("train") or next(iter(self.described.values()))
            texts = [plain(text) for image in described for text in image.captions]
        longest = min(self.max_length, max(len(split_words(text)) for text in texts))
        return Captions(vocabulary.build("word", texts, min_count=self.min_count), longest + 1, *self._form)

    @property
    def spec(self) -> Patches:
        """The patches of the picture."""
        form = self.fitted
        return Patches.of(form.channels, form.size, form.size, form.patch)

    @property
    def target_vocabulary(self) -> Vocabulary:
        """How a target that somebody types is read."""
        return self.fitted.vocabulary

    def answers(self) -> list[Writes]:
        """The caption."""
        return [Writes(len(self.fitted.vocabulary), self.fitted.max_target, START, END, self.length_penalty)]

    def metrics(self) -> tuple[Metric, ...]:
        """Those of the words; BLEU of up to 1, 2, 3 and (`bleu`) 4 words, against all captions of an image."""

        def bleu(longest: int) -> Metric:
            corpus_bleu = partial(self._bleu.score, longest=longest)
            return Counts(_bleu_name(longest), over="images", total="texts", look=self._ngrams, made=corpus_bleu)

        return (LOSS, ACCURACY, PERPLEXITY, *(bleu(longest) for longest in ORDERS))

    _bleu = Bleu("none")

    def _ngrams(self, answered: Answered) -> dict[str, float] | None:
        return answered.once(self._counted)

    def _counted(self, answered: Answered) -> dict[str, float] | None:
        """The counts of n-grams that make BLEU, for the images with references."""
        references = answered.batch.notes["references"]
        rows = [row for row, texts in enumerate(references) if texts is not None]
        if not rows:
            return None
        written = answered.model.generate(answered.batch.rows(rows))
        texts = [self.decode(best[0].tokens) if best else "" for best in written]
        return self._bleu.counts(texts, [references[row] for row in rows])

    def protocol(self) -> dict[str, Any]:
        """How BLEU is computed."""
        about = "lower case, no punctuation, all captions of an image are references"
        return {_bleu_name(longest): f"{about}; {self._bleu.signature()}" for longest in ORDERS}

    @remembered
    def _scene(self, split: str, index: int) -> tuple[Pixels, tuple[str, ...]]:
        """A generated scene and what may be said about it; each is read again in every epoch."""
        figures = scene(self.seed, split, index)
        return packed(figures.picture), tuple(sentences(figures.labels, figures.boxes.tolist()))

    def _generated(self, split: str, index: int) -> Captioned:
        pixels, texts = self._scene(split, index)
        chosen = texts[Draws("caption", self.seed, split, index, "which").below(len(texts))]
        return Captioned(pixels, chosen, None if split == "train" else texts)

    @remembered
    def examples(self, split: str) -> Sequence[Captioned]:
        """Each caption with its image; the first of an image has all of them as references."""
        if self.data is None:
            return Generated(SIZES[checked_split(split)], partial(self._generated, split), even=True)
        described = of_split(self.described, split, self.data)
        names = (image.image for image in described)
        pictures = PictureFiles(self._files.pictures).read(names, self.fitted.size, BadFiles(self.bad_files))
        readable = [image for image in described if image.image in pictures]
        every = 1 if split == "test" else max(1, len(readable) // self.bleu_examples)
        examples = []
        for number, image in enumerate(readable):
            texts = tuple(plain(text) for text in image.captions)
            written = split != "train" and number % every == 0
            examples += [
                Captioned(pictures[image.image], text, texts if written and not place else None, split == "train")
                for place, text in enumerate(texts)
            ]
        return examples

    def collate(self, examples: Sequence[Captioned], generator: torch.Generator) -> Batch:
        """Patches of the pictures, and the captions padded at their ends where all are known."""
        if not examples:
            return Batch.of(torch.zeros(0, self.spec.length or 0, self.spec.width), references=())
        pictures = numbers([example.pixels for example in examples])
        if self.augment and examples[0].training:
            pictures = varied(pictures, generator)
        batch = Batch.of(cut(pictures, self.spec), references=tuple(example.references for example in examples))
        captions = [example.caption for example in examples if example.caption is not None]
        if len(captions) < len(examples):
            return batch
        longest = self.fitted.max_target
        tokens = [[*ids[: longest - 1], END] for ids in self.fitted.vocabulary.encode_all(captions)]
        targets, keep = padded(tokens, PADDING)
        if examples[0].training:  # few different lengths, so that a GPU can repeat captured steps
            more = min(longest, -(-targets.shape[1] // STRIDE) * STRIDE) - targets.shape[1]
            keep = torch.ones_like(targets, dtype=torch.bool) if keep is None else keep
            targets, keep = F.pad(targets, (0, more), value=PADDING), F.pad(keep, (0, more))
        return batch.answered(targets, keep)


def plain(caption: str) -> str:
    """A caption in lower case, without punctuation."""
    return " ".join(re.findall(r"\w+(?:['’-]\w+)*", caption.lower())) or "-"


def scene(seed: int, split: str, index: int) -> Scene:
    """One or two digits of a split on a canvas, clearly beside or above each other."""
    pixels, digits = images()
    draws = Draws("caption", seed, split, index)
    count = 1 if draws.happens(ALONE) else 2
    while True:
        which = [draws.among(numbers_of(split)) for _ in range(count)]
        figures = [pixels[number].reshape(SIDE, SIDE) for number in which]
        drawn = compose(figures, [digits[number] for number in which], SCENE, SCENE, draws, sizes=DIGITS)
        if len(drawn.labels) == count and is_clear(drawn.boxes.tolist()):
            return drawn


def _bleu_name(longest: int) -> str:
    """As for every task, `bleu` alone is that of up to four words."""
    return "bleu" if longest == ORDERS[-1] else f"bleu_{longest}"
