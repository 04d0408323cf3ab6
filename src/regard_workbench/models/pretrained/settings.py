"""Reading `config.json`: every value is checked, and a setting that regard cannot represent is refused by its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from regard.errors import BadValue

LARGEST = 2**26  # a width, a vocabulary, a number of positions

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}


class Settings:
    """The values of a configuration by key, with the family's defaults for those that are absent."""

    def __init__(
        self,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any],
        tensors: Collection[str] = (),
        differ: Callable[[str, str], bool] = lambda one, other: False,
    ) -> None:
        self.values, self.defaults = values, defaults
        self.tensors = tensors  # the names in the files
        self.differ = differ  # whether the files hold two tensors of these names, and they differ

    def given(self, key: str) -> Any:
        """The value of a key, else the family's default, else None."""
        return self.values.get(key, self.defaults.get(key))

    def wrong(self, key: str, expected: str, hint: str = "") -> BadValue:
        """The error for a value that is not what was expected."""
        return BadValue(f"config.json: {key}: expected {expected}, got {_short(self.given(key))}.{hint}")

    def size(self, key: str, most: int = LARGEST) -> int:
        """A whole number from 1 to `most`."""
        size = self.given(key)
        if type(size) is not int or not 1 <= size <= most:
            raise self.wrong(key, f"a whole number from 1 to {most:,}")
        return size

    def layers(self, key: str) -> int:
        """A number of layers. Each has tensors of its own, so there are at most as many as tensors in the files."""
        return self.size(key, max(1, len(self.tensors)))

    def size_or(self, key: str, default: int) -> int:
        """A size; the default where it is null or absent."""
        return default if self.given(key) is None else self.size(key)

    def token(self, key: str, count: int) -> int | None:
        """The id of a special token below `count`, or None. Of several, the first."""
        token = self.given(key)
        if isinstance(token, list) and token:
            token = token[0]
        if token is None or token == -1:
            return None
        if type(token) is not int or not 0 <= token < count:
            raise self.wrong(key, f"the id of a token below {count:,}")
        return token

    def number(self, key: str, above: float = 0.0) -> float:
        """A finite number above `above`."""
        number = self.given(key)
        if type(number) not in (int, float) or not above < number < math.inf:
            raise self.wrong(key, f"a number above {above:g}")
        return float(number)

    def rate(self, key: str) -> float:
        """A rate of dropout."""
        rate = self.given(key)
        if type(rate) not in (int, float) or not 0 <= rate <= 1:
            raise self.wrong(key, "a number from 0 to 1")
        return float(rate)

    def flag(self, key: str) -> bool:
        """True or false."""
        flag = self.given(key)
        if type(flag) is not bool:
            raise self.wrong(key, "true or false")
        return flag

    def tied(self, head: str, embedding: str) -> bool:
        """Whether a head shares the embedding: as configured, unless the files hold two different tensors."""
        return self.flag("tie_word_embeddings") and not self.differ(head, embedding)

    def activation(self, key: str) -> str:
        """The name that regard has for an activation."""
        name = self.given(key)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.wrong(key, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

    def require(self, **allowed: tuple[Any, ...]) -> None:
        """Refuse values that regard cannot represent; a key that is absent everywhere is fine."""
        for key, values in allowed.items():
            if self.given(key) not in (None, *values):
                shown = " or ".join(_short(value) for value in values) or "none"
                raise self.wrong(key, shown, " regard's models cannot represent this setting.")

    def labels(self) -> int:
        """How many classes a classifier has."""
        names = self.values.get("id2label")
        if isinstance(names, Mapping) and names:
            return len(names)
        count = self.values.get("num_labels", 2)
        if type(count) is not int or not 1 <= count <= LARGEST:
            raise BadValue(f"config.json: num_labels: expected a whole number from 1, got {_short(count)}.")
        return count


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
