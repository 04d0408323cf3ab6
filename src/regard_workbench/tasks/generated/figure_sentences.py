"""Sentences about scenes of one or two digits: "a three left of a seven".

>>> sentences([3, 7], [(2, 10, 12, 20), (20, 8, 30, 18)])[:2]
['a three left of a seven', 'a seven right of a three']
"""

from __future__ import annotations

from collections.abc import Sequence

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CLEAR = 4  # pixels by which one direction must outweigh the other, so that people would agree

Box = Sequence[float]  # left, top, right, bottom


def offset(one: Box, other: Box) -> tuple[float, float]:
    """From the middle of a box to that of another: to the right, and down."""
    return (other[0] + other[2] - one[0] - one[2]) / 2, (other[1] + other[3] - one[1] - one[3]) / 2


def is_clear(boxes: Sequence[Box]) -> bool:
    """Whether two figures are clearly beside each other, or clearly one above the other."""
    if len(boxes) < 2:
        return True
    right, down = offset(boxes[0], boxes[1])
    return abs(abs(right) - abs(down)) >= CLEAR


def sentences(digits: Sequence[int], boxes: Sequence[Box]) -> list[str]:
    """What people might write about a scene, all of it true."""
    names = [NUMBERS[digit] for digit in digits]
    if len(names) == 1:
        return [f"a {names[0]} alone", f"there is only a {names[0]}"]
    right, down = offset(boxes[0], boxes[1])
    beside = abs(right) > abs(down)
    first, second = names if (right if beside else down) > 0 else reversed(names)
    if beside:
        return [
            f"a {first} left of a {second}",
            f"a {second} right of a {first}",
            f"there is a {first} to the left of a {second}",
            f"there is a {second} to the right of a {first}",
        ]
    return [
        f"a {first} above a {second}",
        f"a {second} below a {first}",
        f"there is a {first} on top and a {second} below",
        f"a {second} with a {first} above it",
    ]


def every_sentence() -> list[str]:
    """Sentences that hold every word and every form, each digit in each form."""
    origin, beside, below = (0, 0, 4, 4), (9, 0, 13, 4), (0, 9, 4, 13)
    groups = [sentences([digit], [origin]) for digit in range(len(NUMBERS))]
    groups += [sentences([digit, digit], [origin, place]) for digit in range(len(NUMBERS)) for place in (beside, below)]
    return [text for texts in groups for text in texts]
