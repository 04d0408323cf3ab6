"""The options of `regard view`, and a model opened for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from regard.errors import BadValue

if TYPE_CHECKING:
    from regard_workbench.viewer.opening.generation import Writer

LONGEST_TEXT = 200_000  # characters
MOST_WRITTEN = 1000  # tokens of a generation that is stepped through
MOST_BEAMS = 16


@dataclass(frozen=True)
class ViewOptions:
    """What to open and which input to show; checked on construction."""

    where: str  # a run's folder, one of its checkpoints, or the folder of a Hugging Face model
    text: str | None = None
    target: str | None = None  # the target of an encoder-decoder, instead of its own output
    image: str | None = None
    sound: str | None = None
    table: str | None = None
    generate: int | None = None  # tokens to generate, step by step
    beams: int = 1
    against: str | None = None
    checkpoint: str | None = None
    checkpoints: bool = False
    gold: str | None = None
    importance: bool = False
    example: int | None = None  # which test example of a run's task is shown, where no input is given
    device: str = "auto"
    allow_missing: bool = False  # open a folder with missing tensors; the random weights are labelled

    def __post_init__(self) -> None:
        for name in ("where", "against", "image", "sound", "table", "gold"):
            value = getattr(self, name)
            shown = {"where": "RUN"}.get(name, f"--{name}")
            if value is not None and ("\0" in value or not value.strip()):
                raise BadValue(f"{shown}: expected the path of a folder or a file, got {value[:40]!r}.")
        for name in ("text", "target"):
            value = getattr(self, name)
            if value is not None and not value.strip():
                raise BadValue(f"--{name}: expected some text, got none.")
            if value is not None and len(value) > LONGEST_TEXT:
                raise BadValue(
                    f"--{name}: expected at most {LONGEST_TEXT:,} characters, got {len(value):,}. Shorten it."
                )
        # Whether an image with a question can be read, only the opened model says.
        self.inputs(together=self.sound is None and self.table is None)
        if self.generate is not None and not 1 <= self.generate <= MOST_WRITTEN:
            raise BadValue(f"--generate: expected 1 to {MOST_WRITTEN} tokens, got {self.generate}.")
        if self.example is not None and self.inputs(together=True):
            raise BadValue("--example: it chooses an input of the task; leave the other input out.")
        if not 1 <= self.beams <= MOST_BEAMS:
            raise BadValue(f"--beams: expected 1 to {MOST_BEAMS}, got {self.beams}.")
        if self.beams > 1 and self.generate is None:
            raise BadValue("--beams: only with --generate. Add --generate 20, or leave --beams out.")
        if self.target is not None and self.generate is not None:
            raise BadValue("--target: expected --target (given words) or --generate (own words), not both.")
        if self.gold is not None and self.generate is not None:
            raise BadValue("--gold: it aligns given words. Use --target with it, not --generate.")
        if self.checkpoints and (self.against is not None or self.checkpoint is not None):
            option = "--against" if self.against is not None else "--checkpoint"
            raise BadValue(f"--checkpoints: it shows all of them; leave {option} out.")
        if self.importance and self.generate is not None:
            raise BadValue("--importance: it compares one forward pass; leave --generate out.")
        if self.generate is not None and (self.against is not None or self.checkpoints):
            option = "--against" if self.against is not None else "--checkpoints"
            raise BadValue(
                f"--generate: two models may write different words, which cannot be compared. Leave {option} out, "
                "or give the words with --target."
            )

    def inputs(self, together: bool = False) -> dict[str, str]:
        """The inputs that were given; one at most, unless what is opened reads several together."""
        options = {name: getattr(self, name) for name in ("text", "image", "sound", "table")}
        inputs = {name: value for name, value in options.items() if value is not None}
        if len(inputs) > 1 and not together:
            first, second, *_ = (f"--{name}" for name in inputs)
            raise BadValue(f"{second}: expected {first} or {second}, not both.")
        return inputs


@dataclass
class OpenedModel:
    """A model and its input, ready to run."""

    title: str  # of the page
    name: str  # of the variant
    model: nn.Module
    run: Callable[[], Any]  # one forward pass
    labels: Mapping[str, list[str]]
    words: str = ""
    input: str = ""  # the input in one line
    two_sides: bool = False
    ids: list[int] | None = None
    step: int | None = None
    image: dict[str, Any] | None = None
    writer: Writer | None = None
    room: int | None = None  # positions left for generated tokens
    no_writer: str = "it writes no text"  # why it cannot generate
    doubt: str = ""  # which weights are random or unused, where the folder does not match the model
    notes: list[str] = field(default_factory=list)  # for stderr
    # The answer of a classifier from the output of `run`: {"text": …, "others": …}.
    answer: Callable[[Any], dict[str, Any] | None] | None = None
    piece: Callable[[int], str] | None = None  # the text of a class or token that it answers with
    # Where it answers at several positions, those that may be asked about, each with its words; else its last one.
    places: list[tuple[int, str]] = field(default_factory=list)
    has_logits: bool = False  # whether the output of `run` has logits
    # Of a task of bits: what goes in and out at each step, from the output of `run`.
    bits: Callable[[Any], dict[str, Any] | None] | None = None
    found_bits: dict[str, Any] | None = None  # what `bits` gave
    takes: tuple[str, ...] = ("text",)  # what may be given as another input: text, image, sound, table
    text: str = ""  # the text that was read, where one was
    examples: int = 0  # test examples of a run's task
    # The same model with the input of other options; the model is not loaded again.
    reopen: Callable[[ViewOptions], OpenedModel] | None = None
    # Called with the number of keys of the first site once the model has run: the patch grid is only known then.
    finish: Callable[[int], tuple[dict[str, list[str]], dict[str, Any] | None]] | None = None
