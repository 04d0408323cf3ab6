"""Small changes to a source file, each of which a test should notice."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.Is: ("is", "is not"),
}  # fmt: skip
PRODUCTS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.FloorDiv: ("//", "*")}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes `start` to `end` of a file become `text`."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    function: tuple[int, int]  # the lines between which the definition of the function around it begins

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def chosen(root: Path, folders: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of the Python files below `folders`, the same for the same source and seed."""
    paths = sorted({path for folder in folders for path in _files(root / folder)})
    mutants = [mutant for path in paths for mutant in of_file(path, root)]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("*.py"))


def of_file(path: Path, root: Path) -> list[Mutant]:
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    mutants = []
    for function, node in _nodes(ast.parse(source)):
        for kind, first, last, text in _changes(node, source, starts):
            mutant = Mutant(str(path.relative_to(root)), node.lineno, kind, first, last, text, function)
            if _compiles(mutant.apply(source)):
                mutants.append(mutant)
    return mutants


def _compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _nodes(tree: ast.Module) -> Iterator[tuple[tuple[int, int], ast.AST]]:
    """What runs inside functions, each node with the lines of the innermost definition around it.

    Annotations, docstrings, and the texts of errors are left out.
    """

    def walk(node: ast.AST, function: tuple[int, int] | None) -> Iterator[tuple[tuple[int, int], ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.lineno)
            for statement in node.body:
                yield from walk(statement, inner)
            return
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if function and hasattr(node, "lineno"):
            yield function, node
        for name, field in ast.iter_fields(node):
            if name not in ("annotation", "returns", "type_params"):
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        yield from walk(child, function)

    yield from walk(tree, None)


def _changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[tuple[str, int, int, str]]:
    def begin(of: ast.AST) -> int:
        return starts[of.lineno - 1] + of.col_offset

    def end(of: ast.AST) -> int:
        return starts[of.end_lineno - 1] + of.end_col_offset

    def text(of: ast.AST) -> str:
        return source[begin(of) : end(of)].decode()

    def between(left: ast.AST, right: ast.AST, symbols: tuple[str, str]) -> Iterator[tuple[str, int, int, str]]:
        old, new = symbols
        space = source[end(left) : begin(right)].decode()
        pattern = rf"\b{old}\b" if old.isalpha() else re.escape(old)
        if re.search(pattern, space):
            yield type(node).__name__, end(left), begin(right), re.sub(pattern, new, space, count=1)

    match node:
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in COMPARISONS:
            yield from between(left, right, COMPARISONS[type(operation)])
        case ast.BoolOp(values=[first, second, *_]):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from between(first, second, words)
        case ast.BinOp(left=left, right=right) if type(node.op) in PRODUCTS and not (_is_text(left) or _is_text(right)):
            yield from between(left, right, PRODUCTS[type(node.op)])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "Not", begin(node), end(node), f"({text(operand)})"
        case ast.Constant(value=bool() as value):
            yield "Constant", begin(node), end(node), str(not value)
        case ast.Constant(value=int() as value) if value < 1000:
            yield "Constant", begin(node), end(node), str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield "Statement", begin(node), end(node), "pass"
        case ast.If(test=test, body=[ast.Return()], orelse=[]):
            yield "Return", begin(test), end(test), "False"
        case ast.Call(args=[first, second, *_]) if not {type(first), type(second)} & {ast.Starred, ast.GeneratorExp}:
            swapped = text(second) + source[end(first) : begin(second)].decode() + text(first)
            yield "Arguments", begin(first), end(second), swapped


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
