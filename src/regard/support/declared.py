"""Options declared once: name, type, default, check and meaning in one line, from which everything else is read.

    class Copy(Declared):
        max_length: int = option("longest sequence in training", at_least(1), default=20)
        seed: int = option("which sequences are generated", whole_number, default=0)

    Copy(max_length=0)    BadValue: max_length: expected a whole number of at least 1, got 0.

The declaration makes the constructor: its signature, of keywords alone, for editors and type checkers (PEP 681), its
checks and its attributes. `regard.support.options` reads the types by which text is converted from here, and
`regard show` the meanings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, dataclass_transform, overload

from regard.errors import BadType, unknown_name
from regard.registry import refuse_unknown
from regard.support.arguments import whole_number

Check = Callable[[str, Any], Any]  # the name of an option and a value → the value, or an error that names both
REQUIRED = Parameter.empty  # the default of an option that has none
Default = TypeVar("Default")


@dataclass(frozen=True)
class Option:
    """One option of a class, as it was declared."""

    about: str  # what it means
    check: Check | None
    default: Any
    last: bool  # whether it comes after those of subclasses in a signature
    annotation: str = "Any"
    module: str = __name__  # where the names of the annotation are known

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED

    def checked(self, name: str, value: Any) -> Any:
        """The value as the check returns it. None passes where it is the default."""
        unset = value is None and self.default is None
        return value if self.check is None or unset else self.check(name, value)

    @property
    def names(self) -> dict[str, Any]:
        """The names that the annotation may hold."""
        return vars(sys.modules[self.module]) if self.module in sys.modules else {}

    def parameter(self, name: str) -> Parameter:
        """What stands for it in a signature."""
        return Parameter(name, Parameter.KEYWORD_ONLY, default=self.default, annotation=self.annotation)


@overload
def option(about: str, check: Check | None = None, *, default: Default, last: bool = False) -> Default: ...
@overload
def option(about: str, check: Check | None = None, *, last: bool = False) -> Any: ...
def option(about: str, check: Check | None = None, *, default: Any = REQUIRED, last: bool = False) -> Any:
    """Declare an option by its meaning, its check and its default."""
    return Option(about, check, default, last)


def at_least(least: int) -> Check:
    """Check for a whole number of at least `least`."""
    return lambda name, value: whole_number(name, value, least)


def one_of(names: Iterable[str]) -> Check:
    """Check for one of several names; a near miss is suggested."""

    def check(name: str, value: Any) -> Any:
        if value not in names:
            raise unknown_name(name, value, names)
        return value

    return check


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class Declared:
    """The base of classes whose constructor is made of the options that they and their parents declare.

    A subclass that gives a value in place of an option (`seed = 0`) has no such option. One with an `__init__` of its
    own is a class like any other.
    """

    declared: ClassVar[Mapping[str, Option]] = MappingProxyType({})  # in the order of the signature
    _own_options: ClassVar[Mapping[str, Option]] = MappingProxyType({})  # those of the class body alone

    def __init__(self) -> None:
        self.check_options()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        declared = {name: thing for name, thing in vars(cls).items() if isinstance(thing, Option)}
        inherited = _inherited(cls)
        for name, declaration in declared.items():
            last = declaration.last or (name in inherited and inherited[name].last)
            annotation = cls.__annotations__[name]
            declared[name] = replace(declaration, last=last, annotation=annotation, module=cls.__module__)
            delattr(cls, name)  # or an instance without it would have the declaration in its place
        cls._own_options = MappingProxyType(declared)
        options = {name: declaration for name, declaration in (inherited | declared).items() if name not in vars(cls)}
        cls.declared = MappingProxyType(dict(sorted(options.items(), key=lambda pair: pair[1].last)))
        if "__init__" not in vars(cls) and hasattr(cls.__init__, "options"):
            setattr(cls, "__init__", _constructor(cls))  # noqa: B010  # mypy refuses an assignment to a method

    def check_options(self) -> None:
        """Refuse options that do not go together; what one can know alone is its own check's."""


vars(Declared.__init__).update(options=Declared.declared)  # as those that `_constructor` makes


def _inherited(cls: type[Declared]) -> dict[str, Option]:
    """The options of the parents of a class, less those that one of them has a value for."""
    options: dict[str, Option] = {}
    for parent in reversed(cls.__mro__[1:]):
        options |= vars(parent).get("_own_options", {})
        options = {name: declaration for name, declaration in options.items() if name not in vars(parent)}
    return options


def _constructor(cls: type[Declared]) -> Callable[..., None]:
    """The `__init__` of a class."""
    options = cls.declared

    def __init__(self: Declared, **values: Any) -> None:
        refuse_unknown(type(self).__name__, values, options)
        for name, declaration in options.items():
            if name not in values and declaration.required:
                raise BadType(f"{name}: {type(self).__name__} needs it: {declaration.about}.")
            setattr(self, name, declaration.checked(name, values.get(name, declaration.default)))
        self.check_options()

    this = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [declaration.parameter(name) for name, declaration in options.items()]
    vars(__init__).update(options=options, __signature__=Signature([this, *parameters]))
    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    __init__.__doc__ = "\n".join(f"{name}: {declaration.about}" for name, declaration in options.items())
    return __init__
