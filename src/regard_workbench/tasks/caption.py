"""Pictures to sentences: generated scenes of digits, or any images with captions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from regard.errors import BadValue
from regard.support.arguments import finite_number, whole_number
from regard_workbench.tasks.answers import Writes
from regard_workbench.tasks.formats import caption_files
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.caption_files import Described, read_described
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.tasks.formats.picture_files import PictureFiles
from regard_workbench.tasks.formats.reading import Data, checked_encoding, paths_of
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.generated.figure_sentences import every_sentence, is_clear, sentences
from regard_workbench.tasks.generated.scenes import Scene, compose
from regard_workbench.tasks.measures.bleu import ORDERS, Bleu
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS, PERPLEXITY, Answered, Counts, Metric
from regard_workbench.tasks.parts.batch import INPUTS, Batch
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Looked, Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.pictures.crops import varied
from regard_workbench.tasks.pictures.digit_pictures import BRIGHT
from regard_workbench.tasks.pictures.patches import cut, names
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


@task("caption")
class Caption(Task):
    """Writes a sentence about a picture; without files, scenes of digits: "a three left of a seven".

    Files: a folder, zip or tar archive of images, and lines of image[#n] TAB caption; lists such as
    Flickr_8k.trainImages.txt say which images are for training, validation and test. Captions are read in lower case,
    without punctuation.

    Args:
        data: a folder with all of that, or the files and folders one by one
        size: pixels of a side that images are brought to; 32 for generated scenes
        patch: pixels of a patch's side; attention is over patches
        augment: show another part of each training image each time, mirrored half of the times; not for scenes
        min_count: how often a word must occur in training to be known
        max_length: longest caption in words; longer ones are cut
        bleu_examples: for how many validation images the model is made to write
        bad_files: at an image that cannot be read: stop, or skip it and say so
        length_penalty: with --beam, log-probabilities are divided by lengths to this power; above 1 prefers long texts
        encoding: how the files of text are encoded
        seed: which images are kept for validation and test where no list says; which scenes are generated
        whole: measure on all images, keep none for training; for a model trained on other data
    """

    takes = ("image",)
    tried = ("--example", "18")
    metric: ClassVar[Metric] = Counts("bleu", over="images", total="texts")  # `metrics` says how it is measured
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

    def __init__(
        self,
        data: Data | None = None,
        size: int | None = None,
        patch: int | None = None,
        augment: bool = True,
        min_count: int = 1,
        max_length: int = 30,
        bleu_examples: int = 300,
        bad_files: str = "stop",
        length_penalty: float = 1.0,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        self.data, self.augment, self.whole, self.bad = data, augment, whole, BadFiles(bad_files)
        self.size = whole_number("size", size or (SCENE if data is None else 128), 8)
        self.patch = whole_number("patch", patch or (SCENE_PATCH if data is None else 16), 1)
        if data is None and self.size != SCENE:
            raise BadValue(f"size: generated scenes have {SCENE} pixels, got {size}. Leave it out, or give data.")
        self.channels = GREY if data is None else COLOUR
        self.min_count = whole_number("min_count", min_count, 1)
        self.max_length = whole_number("max_length", max_length, 1)
        self.bleu_examples = whole_number("bleu_examples", bleu_examples, 1)
        self.length_penalty = finite_number("length_penalty", length_penalty)
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.spec = Patches.of(self.channels, self.size, self.size, self.patch)
        self.target_vocabulary: Vocabulary | None = None
        self.max_target = 0  # the end included
        self._examples: dict[str, Sequence[Captioned]] = {}
        self._scenes: dict[tuple[str, int], tuple[Pixels, tuple[str, ...]]] = {}

    @cached_property
    def _files(self) -> caption_files.CaptionFiles:
        assert self.data is not None
        return caption_files.sorted_out(paths_of(self.data), self.encoding, self.typed(encoding="latin-1"))

    @cached_property
    def described(self) -> dict[str, list[Described]]:
        """The names of the images of each split with their captions."""
        other = self.typed(encoding="latin-1")
        return read_described(self._files, self.encoding, other, self.seed, self.whole)

    def _known(self) -> Vocabulary:
        """The words of the training captions; made from the data where no state was restored."""
        if self.target_vocabulary is None:
            if self.data is None:
                texts = every_sentence()
            else:
                first = self.described.get("train") or next(iter(self.described.values()))
                texts = [plain(text) for one in first for text in one.captions]
            self.target_vocabulary = vocabulary.build("word", texts, min_count=self.min_count)
            self.max_target = min(self.max_length, max(len(split_words(text)) for text in texts)) + 1
        return self.target_vocabulary

    def streams(self) -> dict[str, Patches]:
        """The patches of the picture."""
        return {INPUTS: self.spec}

    def answers(self) -> list[Writes]:
        """The caption."""
        return [Writes(len(self._known()), self.max_target, START, END, self.length_penalty)]

    def metrics(self) -> tuple[Metric, ...]:
        """Those of the words; BLEU of up to 1, 2, 3 and (`bleu`) 4 words, against all captions of an image."""

        def bleu(longest: int) -> Metric:
            made = partial(self._bleu.score, longest=longest)
            return Counts(_bleu_name(longest), over="images", total="texts", look=self._ngrams, made=made)

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
        found = answered.model.generate(answered.batch.rows(rows))
        texts = [self.decode(best[0].tokens) if best else "" for best in found]
        return self._bleu.counts(texts, [references[row] for row in rows])

    def protocol(self) -> dict[str, Any]:
        """How BLEU is computed."""
        about = "lower case, no punctuation, all captions of an image are references"
        return {_bleu_name(longest): f"{about}; {self._bleu.signature()}" for longest in ORDERS}

    def _scene(self, split: str, index: int) -> tuple[Pixels, tuple[str, ...]]:
        """A generated scene and what may be said about it; kept, since each is read again in every epoch."""
        key = split, index
        if key not in self._scenes:
            made = scene(self.seed, split, index)
            texts = tuple(sentences(made.labels, made.boxes.tolist()))
            self._scenes[key] = packed(made.picture), texts
        return self._scenes[key]

    def _generated(self, split: str, index: int) -> Captioned:
        pixels, texts = self._scene(split, index)
        chosen = texts[Draws("caption", self.seed, split, index, "which").below(len(texts))]
        return Captioned(pixels, chosen, None if split == "train" else texts)

    def examples(self, split: str) -> Sequence[Captioned]:
        """Each caption with its image; the first of an image has all of them as references."""
        if checked_split(split) not in self._examples:
            self._examples[split] = self._read(split)
        return self._examples[split]

    def _read(self, split: str) -> Sequence[Captioned]:
        if self.data is None:
            return Generated(SIZES[split], partial(self._generated, split), even=True)
        if split not in self.described:
            raise BadValue(f"data: {self.data} has nothing for {split}. It has: {', '.join(self.described)}.")
        wanted = (one.image for one in self.described[split])
        pictures = PictureFiles(self._files.pictures).read(wanted, self.size, self.bad)
        part = [one for one in self.described[split] if one.image in pictures]
        every = 1 if split == "test" else max(1, len(part) // self.bleu_examples)
        found = []
        for number, one in enumerate(part):
            texts = tuple(plain(text) for text in one.captions)
            written = split != "train" and number % every == 0
            found += [
                Captioned(pictures[one.image], text, texts if written and not place else None, split == "train")
                for place, text in enumerate(texts)
            ]
        return found

    def length(self, example: Captioned) -> int:
        """Patches: the same for all."""
        return self.spec.rows * self.spec.columns

    def collate(self, examples: Sequence[Captioned], generator: torch.Generator) -> Batch:
        """Patches of the pictures, and the captions padded at their ends where all are known."""
        if not examples:
            return Batch.of(torch.zeros(0, self.length(Captioned(None)), self.spec.width), references=())  # type: ignore[arg-type]
        pictures = numbers([example.pixels for example in examples])
        if self.augment and examples[0].training:
            pictures = varied(pictures, generator)
        batch = Batch.of(cut(pictures, self.spec), references=tuple(one.references for one in examples))
        captions = [one.caption for one in examples if one.caption is not None]
        if len(captions) < len(examples):
            return batch
        tokens = [[*ids[: self.max_target - 1], END] for ids in self._known().encode_all(captions)]
        targets, keep = padded(tokens, PADDING)
        if examples[0].training:  # few different lengths, so that a GPU can repeat captured steps
            more = min(self.max_target, -(-targets.shape[1] // STRIDE) * STRIDE) - targets.shape[1]
            keep = torch.ones_like(targets, dtype=torch.bool) if keep is None else keep
            targets, keep = F.pad(targets, (0, more), value=PADDING), F.pad(keep, (0, more))
        return batch.answered(targets, keep)

    def parse(self, given: Mapping[str, str]) -> Captioned:
        """An image; where the run learned scenes of digits, light writing on a dark ground."""
        if set(given) != {"image"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        pixels = square(read_image(given["image"]), self.size, self.channels)
        if self.channels == GREY and pixels.mean() > BRIGHT * 255:
            pixels = 255 - pixels
        return Captioned(pixels)

    def show(self, example: Captioned, batch: Batch) -> Shown:
        """The picture, with the names of its patches and the words of its caption."""
        target = [] if batch.targets is None else self.output_pieces(batch.targets[0].tolist())
        words = "an image" if example.caption is None else f"an image: “{example.caption}”"
        grid = (self.spec.rows, self.spec.columns)
        return Shown(words, names(self.spec), "patches", target=target, picture=shown(example.pixels), grid=grid)

    def draw(self, predicted: Any, example: Captioned, looked: Looked | None) -> Figure | None:
        """The picture once for each word, and on it where the word looked."""
        from regard_workbench.tasks.figures.overlay import overlays

        if looked is None:
            return None
        grid = (self.spec.rows, self.spec.columns)
        return overlays(shown(example.pixels), looked.rows, looked.weights, grid)

    def decode(self, tokens: Sequence[int]) -> str:
        """The caption."""
        return self._known().decode(tokens)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """The word of each token."""
        return self._known().pieces(tokens)

    def state(self) -> dict[str, Any]:
        """The vocabulary, the longest caption, and the form of pictures."""
        return {
            "vocabulary": self._known().state(),
            "max_target": self.max_target,
            "size": self.size,
            "patch": self.patch,
            "channels": self.channels,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.target_vocabulary = vocabulary.restored(state["vocabulary"])
        self.max_target = whole_number("max_target", state["max_target"], 1)
        self.size, self.patch = (whole_number("size", state["size"], 1), whole_number("patch", state["patch"], 1))
        self.channels = whole_number("channels", state["channels"], 1)
        self.spec = Patches.of(self.channels, self.size, self.size, self.patch)


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
        made = compose(figures, [digits[number] for number in which], SCENE, SCENE, draws, sizes=DIGITS)
        if len(made.labels) == count and is_clear(made.boxes.tolist()):
            return made


def _bleu_name(longest: int) -> str:
    """As for every task, `bleu` alone is that of up to four words."""
    return "bleu" if longest == ORDERS[-1] else f"bleu_{longest}"
