"""What a model is called with, several copies of it side by side in one batch, and the output of each copy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.errors import BadValue
from regard.observation.causes.batched import Batched
from regard.observation.seen import Seen
from regard.support.arguments import described, whole_number


@dataclass(frozen=True)
class ModelCall:
    """The arguments of one forward pass."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def batch(self) -> int:
        """The number of examples: the first axis of the first tensor."""
        first = next(tensors_in((self.args, self.kwargs)), None)
        if first is None or not first.dim():
            raise BadValue("inputs: there is no tensor with a batch axis in what the model is called with.")
        return len(first)

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all tensors."""
        return [tuple(tensor.shape) for tensor in tensors_in((self.args, self.kwargs))]

    def times(self, count: int) -> ModelCall:
        """The same examples `count` times, one copy after the other in the batch.

        Tensors whose first axis is not the batch (a mask for all examples) are passed as they are. Whether that was
        right, the caller checks by a copy that nothing was changed in.
        """
        batch = self.batch

        def repeat(tensor: Tensor) -> Tensor:
            if not tensor.dim() or len(tensor) != batch:
                return tensor
            return tensor.repeat(count, *(1,) * (tensor.dim() - 1))

        args, kwargs = mapped((self.args, self.kwargs), repeat, lambda found: found.times(count))
        return ModelCall(args, kwargs)

    def example(self, number: int) -> ModelCall:
        """One example of the batch."""
        number, batch = whole_number("example", number, 0), self.batch
        if number >= batch:
            raise BadValue(f"example: expected a number below {batch}, got {number}.")
        if batch == 1:
            return self

        def cut(tensor: Tensor) -> Tensor:
            return tensor[number : number + 1] if tensor.dim() and len(tensor) == batch else tensor

        args, kwargs = mapped((self.args, self.kwargs), cut, lambda found: found.rows([number]))
        return ModelCall(args, kwargs)


def model_call(argument: str, given: Any, seen: Seen) -> ModelCall:
    """What a model is called with: a tensor or batch, a tuple of arguments, or a dict of named ones.

    None or what was observed stand for the inputs of the observed forward pass.
    """
    if given is None:
        given = seen
    if isinstance(given, Seen):
        if given.inputs is None:
            raise BadValue(f"{argument}: no forward pass was observed. Call the model inside the with block.")
        return _checked(argument, ModelCall(given.inputs[0], dict(given.inputs[1])))
    if isinstance(given, Mapping):
        return _checked(argument, ModelCall((), dict(given)))
    return _checked(argument, ModelCall(tuple(given) if isinstance(given, (tuple, list)) else (given,), {}))


def _checked(argument: str, call: ModelCall) -> ModelCall:
    if next(tensors_in((call.args, call.kwargs)), None) is None:
        raise BadValue(
            f"{argument}: expected what the model is called with (a tensor, a tuple of arguments or a dict of named "
            f"ones), got {described(call.args or call.kwargs)}."
        )
    if call.kwargs.get("past_key_values") is not None:
        raise BadValue(f"{argument}: a decoding step cannot be run again. Observe the model on the whole text.")
    return call


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested arguments or outputs, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Batched):
        yield from tree.tensors().values()
    elif isinstance(tree, Mapping):
        for element in tree.values():
            yield from tensors_in(element)
    elif isinstance(tree, (tuple, list)):
        for element in tree:
            yield from tensors_in(element)


def mapped(tree: Any, change: Callable[[Tensor], Tensor], batches: Callable[[Batched], Any] | None = None) -> Any:
    """The same nested arguments or outputs with every tensor changed; what holds no tensors stays as it is."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Batched):
        return tree.map(change) if batches is None else batches(tree)
    if isinstance(tree, Mapping):
        contents = {name: mapped(element, change, batches) for name, element in tree.items()}
        if type(tree) is dict:
            return contents
        return _with_items(tree, contents)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(element, change, batches) for element in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(element, change, batches) for element in tree)
    return tree


def _with_items(tree: Any, found: dict[Any, Any]) -> Any:
    """A mapping of its own type with other contents; an output of Hugging Face is rebuilt from its fields."""
    try:
        return type(tree)(**found)
    except TypeError:
        twin = copy.copy(tree)
        for name, element in found.items():
            twin[name] = element
        return twin


def parts_of_output(output: Any, count: int, batch: int) -> list[Any]:
    """The output of each copy: every tensor whose first axis is that of all copies is cut."""
    if count == 1:
        return [output]
    return [
        mapped(
            output,
            lambda tensor, at=at: (  # type: ignore[misc]
                tensor[at * batch : (at + 1) * batch] if tensor.dim() and len(tensor) == count * batch else tensor
            ),
        )
        for at in range(count)
    ]


def first_tensor(output: Any) -> Tensor | None:
    """The rows that a layer returns: the output itself, or the first tensor of a tuple or mapping."""
    return next(tensors_in(output), None)


def with_first_tensor(output: Any, rows: Tensor) -> Any:
    """A layer's output with its first tensor replaced."""
    left = [rows]
    return mapped(output, lambda tensor: left.pop() if left else tensor)
