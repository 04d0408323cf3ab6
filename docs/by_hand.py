"""Attention by hand: three words, every number of docs/attention-by-hand.md computed here.

python docs/by_hand.py            # rewrite docs/attention-by-hand.md
python docs/by_hand.py --check    # exit with 1 if it would change
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import regard

PAGE = Path(__file__).with_name("attention-by-hand.md")
WORDS = ("the", "cat", "sleeps")
# Vectors of two numbers, chosen so that the sums can be done on paper: what a word looks for, offers and says.
QUERY = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
KEY = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
VALUE = torch.tensor([[1.0, 1.0], [10.0, 0.0], [0.0, 10.0]])


def table(corner: str, columns: tuple[str, ...], rows: tuple[str, ...], numbers: Tensor, digits: int) -> str:
    """A Markdown table of numbers."""
    lines = [f"| {corner} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, row in zip(rows, numbers.tolist(), strict=True):
        lines.append(f"| **{name}** | {' | '.join(number(value, digits) for value in row)} |")
    return "\n".join(lines)


def number(value: float, digits: int) -> str:
    """A number with so many digits behind the point, without a minus before zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def page() -> str:
    """The whole page."""
    scores = QUERY @ KEY.T
    scaled = scores / 2**0.5
    powers = scaled.exp()
    weights = powers / powers.sum(-1, keepdim=True)
    output = weights @ VALUE
    batch = (QUERY[None], KEY[None], VALUE[None])
    causal = regard.weights(*batch[:2], mask=regard.masks.causal())[0]
    causal_output = regard.attend(*batch, mask=regard.masks.causal())[0]
    hard = regard.weights(*batch[:2], normalize="hard")[0]
    # The steps on paper and the library must agree, or there is no page.
    torch.testing.assert_close(weights, regard.weights(*batch[:2])[0])
    torch.testing.assert_close(output, regard.attend(*batch)[0])
    keys, both = WORDS, ("first", "second")
    last = powers[2].tolist()
    terms = [
        f"e^{number(score, 4)} = {number(power, 4)}" for score, power in zip(scaled[2].tolist(), last, strict=True)
    ]
    shares = zip(weights[2].tolist(), VALUE[:, 0].tolist(), strict=True)
    mixed = " + ".join(f"{number(share, 4)}·{number(value, 0)}" for share, value in shares)
    return f"""\
# Attention by hand

Three words, vectors of two numbers, and a pencil. Every number on this page is computed by [by_hand.py](by_hand.py),
which writes the page; a test keeps the two together. The numbers that go in were chosen, not learned.

Each word has a **query** (what it looks for), a **key** (what it offers) and a **value** (what it says):

{table("query", both, WORDS, QUERY, 0)}

{table("key", both, WORDS, KEY, 0)}

{table("value", both, WORDS, VALUE, 0)}

## 1. Scores: how well does a key fit a query?

The dot product: multiply number by number and add. *sleeps* asks with (2, 0), *cat* offers (1, 0):
2·1 + 0·0 = {number(float(scores[2, 1]), 0)}.

{table("q·k", keys, WORDS, scores, 0)}

## 2. Scale

Vectors of d numbers have dot products that grow with √d, so scores are divided by √d = √2 = {number(2**0.5, 4)}:

{table("q·k / √2", keys, WORDS, scaled, 4)}

## 3. Softmax: scores become shares

Raise e to each score and divide by the sum of the row. For *sleeps*: {terms[0]}, {terms[1]}
and {terms[2]} add up to {number(sum(last), 4)},
so *cat* gets {number(last[1], 4)} / {number(sum(last), 4)} = {number(float(weights[2, 1]), 4)}. Each row adds up to 1:

{table("weight", keys, WORDS, weights, 4)}

## 4. Mix the values

The output of a word is the sum of all values, each times its weight. For *sleeps*, the first number is
{mixed} ≈ {number(float(output[2, 0]), 4)} (computed with the weights before rounding).
*sleeps* has taken most from *cat*:

{table("output", both, WORDS, output, 4)}

The same in one call:

```python
import torch, regard

query = torch.tensor([[[0.0, 1.0], [1.0, 1.0], [2.0, 0.0]]])
key = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
value = torch.tensor([[[1.0, 1.0], [10.0, 0.0], [0.0, 10.0]]])
regard.weights(query, key)        # step 3
regard.attend(query, key, value)  # step 4
```

## Two variations

**Causal** (`mask=regard.masks.causal()`): a word sees itself and what came before it. Scores of later words are left
out before step 3, so *the* can only take from itself:

{table("weight", keys, WORDS, causal, 4)}

{table("output", both, WORDS, causal_output, 4)}

**Hard** (`normalize="hard"`): each word takes one value, that of the best score; of equal scores, the first:

{table("weight", keys, WORDS, hard, 0)}

Where this step stands in whole networks is drawn in [architectures.md](architectures.md).
"""


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, lambda: {PAGE: page()}))
