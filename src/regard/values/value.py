"""Values: small immutable objects (masks, scores, biases, normalisers) that say what to compute, not how.

Each value flattens into `(spec, tensors)`: a string that holds the structure and every plain number, and the
tensors in order. Plan keys, arguments of custom operators (strings and tensors, not objects), device moves, equality
and hashing all use this form.

The spec is JSON. A value is a list `["kind", field, …]`, a tensor is `{}`, a tuple is `{"tuple": […]}`. A class with
its own `__init__` may set different attributes each time, so the spec of an instance also lists their names:
`["kind", {"names": […]}, field, …]`. The spec is built with the value. `torch.compile` traces the string
operations and treats the result of Python's JSON encoder as a constant.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Iterator
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, Self, dataclass_transform

import torch
from torch import Tensor

from regard.errors import BadType, Frozen
from regard.registry import Registry
from regard.support.arguments import described
from regard.support.tracing import constant_when_traced

_KINDS: Registry[type[Value]] = Registry("value")


@dataclass_transform(frozen_default=True, eq_default=False)
class Value:
    """A frozen dataclass whose fields are numbers, strings, tuples, tensors or other values.

    A subclass declares its public `name` and `namespace` (the module users import it from); it becomes a dataclass
    and is registered automatically.
    """

    namespace: ClassVar[str] = ""
    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""  # for the spec: namespace.name, with a number behind it if that is taken
    head: ClassVar[str] = ""  # the kind as JSON
    fields: ClassVar[tuple[str, ...]] = ()
    spec: str
    tensors: tuple[Tensor, ...]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._check_bases()
        if "name" not in cls.__dict__:  # a user's class: its import path is its name
            cls.namespace, cls.name = "", f"{cls.__module__}.{cls.__qualname__}"
        cls.kind = _free(cls._label())
        cls.head = encode_basestring_ascii(cls.kind)
        if "__init__" in cls.__dict__:
            _adopt(cls)
        elif getattr(cls.__init__, "adopted", False):
            pass  # inherits the `__init__` that a parent class wrote itself
        else:
            dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
            cls.fields = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
        _KINDS.add(cls.kind, cls)

    def __post_init__(self) -> None:
        specs = [self.head]
        if "fields" in self.__dict__:
            specs.append('{"names":[' + ",".join([_text(name) for name in self.fields]) + "]}")
        tensors: list[Tensor] = []
        for name in self.fields:
            content = getattr(self, name)
            if isinstance(content, Value):
                specs.append(content.spec)
                tensors.extend(content.tensors)
            elif isinstance(content, Tensor):
                specs.append("{}")
                tensors.append(content)
            else:
                specs.append(_encode(content))
        object.__setattr__(self, "spec", "[" + ",".join(specs) + "]")
        object.__setattr__(self, "tensors", tuple(tensors))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Value.__post_init__(self)  # the number in the kind may differ in this process

    @classmethod
    def _check_bases(cls) -> None:
        """Refuse a class that is derived from one of ours: kernels know ours by its class, not by what it defines."""
        for base in cls.__mro__[1:]:
            leaf = issubclass(base, Value) and base is not Value and Value not in base.__bases__
            if leaf and _is_ours(base) and not _is_ours(cls):
                kind = next(base_class for base_class in base.__mro__ if Value in base_class.__bases__)
                raise BadType(
                    f"class {cls.__name__}: it is derived from {base.__name__}, for which kernels compute what that "
                    f"class stands for. Derive it from {kind.__name__}, and hold a {base.__name__} as a field if you "
                    f"need what it does."
                )

    @classmethod
    def _label(cls) -> str:
        """The name users know this class by: namespace.name."""
        return f"{cls.namespace}.{cls.name}" if cls.namespace else cls.name

    def contents(self) -> tuple[Any, ...]:
        """The fields, in the order the constructor takes them."""
        return tuple([getattr(self, name) for name in self.fields])

    def with_tensors(self, tensors: Iterator[Tensor] | tuple[Tensor, ...]) -> Self:
        """The same value with other tensors in place of its own, in order."""
        return rebuild(self.spec, tensors)  # type: ignore[return-value]

    def to(self, device: torch.device | str) -> Self:
        """The same value with its tensors on `device`."""
        return self.with_tensors(tuple([tensor.to(device) for tensor in self.tensors]))

    def structure(self) -> tuple[Any, ...]:
        """For plan keys: the spec and the shapes, dtypes and devices of the tensors, not their contents."""
        signature: list[Any] = [self.spec]
        for tensor in self.tensors:
            signature += (tensor.shape, tensor.dtype, tensor.device)
        return tuple(signature)

    def __hash__(self) -> int:
        return hash((self.spec, *[(tensor.shape, tensor.dtype) for tensor in self.tensors]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or self.spec != other.spec:
            return NotImplemented if not isinstance(other, Value) else False
        return all(
            mine.dtype == theirs.dtype and mine.device == theirs.device and torch.equal(mine, theirs)
            for mine, theirs in zip(self.tensors, other.tensors, strict=True)
        )

    def __repr__(self) -> str:
        fields: dict[str, dataclasses.Field[Any]] = self.__dataclass_fields__  # type: ignore[attr-defined]
        words = []
        for name, content in zip(self.fields, self.contents(), strict=True):
            default = fields[name].default if name in fields else dataclasses.MISSING
            if default is dataclasses.MISSING:
                words.append(_show(content))
            elif isinstance(content, Tensor) or content != default:
                words.append(f"{name}={_show(content)}")
        return f"{self._label()}({', '.join(words)})"


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "regard"


def _free(label: str) -> str:
    """`label`, with a number behind it if another class has it (a notebook cell run twice, classes made by a function).

    An instance must be rebuilt as its own class, not as the latest class of that name.
    """
    kind, count = label, 1
    while kind in _KINDS:
        count += 1
        kind = f"{label}#{count}"
    return kind


def _adopt(cls: type[Value]) -> None:
    """Make a value class of one that has its own `__init__`: the attributes it sets are the fields."""
    own_init = cls.__init__

    def __init__(self: Value, *arguments: Any, **options: Any) -> None:
        own_init(self, *arguments, **options)
        if type(self).__init__ is __init__:  # not where the `__init__` of a subclass calls this one
            object.__setattr__(self, "fields", tuple([name for name in self.__dict__ if name != "fields"]))
            Value.__post_init__(self)

    def __setattr__(self: Value, name: str, content: Any) -> None:
        if "spec" in self.__dict__:
            raise Frozen(
                f"{name}: {type(self).__name__} is a value and cannot be changed after construction, since an "
                f"implementation may compute with a copy. Build another one."
            )
        object.__setattr__(self, name, content)

    __init__.adopted = True  # type: ignore[attr-defined]
    cls.__init__ = __init__  # type: ignore[method-assign, assignment]
    cls.__setattr__ = __setattr__  # type: ignore[method-assign, assignment]


@constant_when_traced
def _text(text: str) -> str:
    """`text` as JSON."""
    return encode_basestring_ascii(text)


_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}  # as Python's JSON reads them


def _number(number: float) -> str:
    """`number` as JSON. Its hexadecimal form turns a float that is symbolic under `torch.compile` into a constant."""
    if torch.compiler.is_compiling():
        number = float.fromhex(number.hex())
    return str(number) if -math.inf < number < math.inf else _NOT_FINITE[str(number)]


def _encode(content: Any) -> str:
    if content is None:
        return "null"
    if content is True or content is False:
        return "true" if content else "false"
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, int):
        return str(operator.index(content))
    if isinstance(content, float):
        return _number(content)
    if isinstance(content, tuple):
        return '{"tuple":[' + ",".join([_encode(element) for element in content]) + "]}"
    raise BadType(f"a value can hold numbers, strings, tuples, tensors and other values, not {described(content)}.")


def _show(content: Any) -> str:
    if isinstance(content, Tensor):
        return f"tensor(shape={tuple(content.shape)}, dtype={str(content.dtype).removeprefix('torch.')})"
    return repr(content)


def rebuild(spec: str, tensors: Iterator[Tensor] | tuple[Tensor, ...]) -> Value:
    """The value that flattened into `spec` and `tensors`. Nothing is checked or copied again."""
    value: Value = _build(_parsed(spec), iter(tensors))
    return value


_parsed = lru_cache(maxsize=1024)(json.loads)


def _build(node: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(node, dict):
        if "tuple" in node:
            return tuple([_build(element, tensors) for element in node["tuple"]])
        return next(tensors)
    if not isinstance(node, list):
        return node
    cls = _KINDS[node[0]]
    value = object.__new__(cls)
    names, contents = cls.fields, node[1:]
    if contents and isinstance(contents[0], dict) and "names" in contents[0]:
        names, contents = tuple(contents[0]["names"]), contents[1:]
        object.__setattr__(value, "fields", names)
    for name, content in zip(names, contents, strict=True):
        object.__setattr__(value, name, _build(content, tensors))
    Value.__post_init__(value)
    return value
