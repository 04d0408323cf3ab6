"""A tour of the core: eight attentions over one short text, a printed table, a saved picture.

    python examples/tour.py [--out demo/attention.png]

Nothing is downloaded. The words' vectors come from the letters they share, so that a picture means something:
words that look alike attend to each other. One mechanism, the additive one, is trained first, for a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

import regard
from picture import Panel, draw
from regard import biases, masks, scores

OPENING = "the fisherman fished until the fish slept and then the fisher slept"
STORY = (
    OPENING
    + """
in the morning the boat that had drifted all night was far from the harbour and the sleepy man in it saw
neither the lighthouse nor the light only water and above the water a white bird that circled the boat
he fished the oars from under the bench and rowed toward the circling bird because birds sleep on land
by noon the land was a line by evening the line was a harbour with a lighthouse and a lit window
and in the window sat his daughter who had watched the light all night and had not slept at all
"""
)

DIM = 64
NGRAMS = (3, 4, 2, 1)  # head 0 compares words by their three-letter pieces, head 1 by four letters, …
SHARPNESS = 3.5  # the score of a word with itself


@dataclass
class Attention:
    """A named attention: the keyword arguments of `regard.attend`, and how a reader would write them."""

    name: str
    written: str
    options: Callable[[int], dict[str, Any]] = field(repr=False)  # given the length


def main() -> None:
    """Embed, train the additive score, tabulate all attentions on the story, draw them on its opening."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("demo/attention.png"), help="where to save the picture")
    out = arguments.parse_args().out
    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    torch.set_num_threads(1)  # a hundred words do not keep two cores busy

    words, opening = STORY.split(), OPENING.split()
    additive, before, after = train_additive(embed(opening), opening)
    tour = attentions(additive)

    story = embed(words)
    console.print(table(tour, story))
    console.print(
        f"{len(words)} words, {len(NGRAMS)} heads, {DIM} dimensions each, float32. The additive score was trained "
        f"on the opening to find words of the same stem: loss {before:.2f} → {after:.2f}.\n",
        highlight=False,
    )
    console.print("print(regard.explain(x, x, x, mask=masks.window(2))) says:", highlight=False)
    print(regard.explain(story, story, story, mask=masks.window(2)))

    draw([panel(attention, embed(opening)) for attention in tour], opening, out)
    console.print(f"\npicture: {out}", highlight=False)


def attentions(additive: torch.Tensor) -> list[Attention]:
    """The stops of the tour; each is one call with other arguments."""
    heads = len(NGRAMS)

    def around_itself(length: int) -> torch.Tensor:
        return torch.arange(length, dtype=torch.float32).expand(1, heads, length)

    return [
        Attention("scaled dot product", "(the default)", lambda n: {}),
        Attention("causal", "mask=masks.causal()", lambda n: {"mask": masks.causal()}),
        Attention("sliding window", "mask=masks.window(2)", lambda n: {"mask": masks.window(2)}),
        Attention(
            "ALiBi, causal",
            "mask=masks.causal(), bias=biases.alibi(4)",
            lambda n: {"mask": masks.causal(), "bias": biases.alibi(heads)},
        ),
        Attention("additive, trained", "score=scores.additive(w)", lambda n: {"score": scores.additive(additive)}),
        Attention("sparsemax", 'normalize="sparsemax"', lambda n: {"normalize": "sparsemax"}),
        Attention("hard", 'normalize="hard"', lambda n: {"normalize": "hard"}),
        Attention(
            "local Gaussian",
            "bias=biases.gaussian(centre, 1.5)",
            lambda n: {"bias": biases.gaussian(around_itself(n), 1.5)},
        ),
    ]


def embed(words: list[str]) -> torch.Tensor:
    """Words as (1, h, n, d): per head, the normalised sum of fixed random vectors of their letter n-grams."""
    heads = []
    for size in NGRAMS:
        rows = torch.stack([sum((_piece(p) for p in _pieces(word, size)), torch.zeros(DIM)) for word in words])
        heads.append(rows / rows.norm(dim=-1, keepdim=True))
    strength = (SHARPNESS * DIM**0.5) ** 0.5  # so that q·k/√d of a word with itself is SHARPNESS
    return torch.stack(heads)[None] * strength


def _pieces(word: str, size: int) -> list[str]:
    framed = f"^{word}$"
    return [framed[i : i + size] for i in range(max(1, len(framed) - size + 1))]


def _piece(letters: str) -> torch.Tensor:
    """A fixed random vector for a piece of a word: the same on every machine and in every run."""
    return torch.randn(DIM, generator=torch.Generator().manual_seed(zlib.crc32(letters.encode())))


def train_additive(x: torch.Tensor, words: list[str], steps: int = 40) -> tuple[torch.Tensor, float, float]:
    """Fit the additive score's weight so that words attend to words of the same stem; gradients come from regard."""
    stems = [word[:4] for word in words]
    same = torch.tensor([[a == b for b in stems] for a in stems], dtype=torch.float32)
    target = same / same.sum(dim=-1, keepdim=True)  # (q, k)
    weight = torch.zeros(len(NGRAMS), DIM, requires_grad=True)  # per head
    optimizer = torch.optim.Adam([weight], lr=0.3)
    losses = []
    for _ in range(steps):
        attended = regard.weights(x, x, score=scores.additive(weight))  # (1, h, q, k)
        loss = -(target * attended.clamp_min(1e-9).log()).sum(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return weight.detach(), losses[0], losses[-1]


def table(tour: list[Attention], x: torch.Tensor) -> Table:
    """What each call is, which implementation ran it, how it compares with the reference."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="one call each: regard.attend(x, x, x, …)")
    for header in ("mechanism", "arguments", "plan"):
        shown.add_column(header)
    for header in ("entropy (nats)", "max error vs reference", "time (ms)"):
        shown.add_column(header, justify="right")
    for attention in tour:
        options = attention.options(x.shape[-2])
        out = regard.attend(x, x, x, **options)
        error = (out - regard.attend(x, x, x, impl="reference", **options)).abs().max()
        entropy = regard.summarize(x, x, **options).entropy.mean()
        shown.add_row(
            attention.name,
            attention.written,
            regard.explain(x, x, x, **options).impl,
            f"{entropy:.2f}",
            f"{error:.1e}" if error else "0",
            f"{1e3 * _seconds(lambda o=options: regard.attend(x, x, x, **o)):.2f}",
        )
    return shown


def _seconds(call: Callable[[], object], repeats: int = 15) -> float:
    readings = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        readings.append(time.perf_counter() - start)
    return statistics.median(readings)


def panel(attention: Attention, x: torch.Tensor) -> Panel:
    """The weights of head 0 as a picture wants them, with what the mask hides told apart from weight zero."""
    options = attention.options(x.shape[-2])
    length = x.shape[-2]
    weights = regard.weights(x, x, heads=[0], **options)[0, 0]
    visible = options.get("mask", masks.full()).dense(length, length)[0, 0]
    entropy = regard.summarize(x, x, **options).entropy[0, 0].mean()
    return Panel(attention.name, attention.written, weights.numpy(), visible.numpy(), float(entropy))


if __name__ == "__main__":
    main()
