"""Small changes to a source file, each of which a test should notice."""

import ast
import random
import re
from dataclasses import dataclass

COMPARISONS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
COMPARISONS |= {ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.Is: ("is", "is not")}
PRODUCTS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.FloorDiv: ("//", "*")}


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes `start` to `end` of a file become `text`."""

    path: str
    kind: str
    start: int
    end: int
    text: str
    function: tuple[int, int]  # the lines between which the definition of the function around it begins

    def apply(self, source):
        return source[: self.start] + self.text.encode() + source[self.end :]


def chosen(root, places, count, seed):
    """`count` mutants of the Python files at and below `places`, the same for the same source and seed."""
    paths = {path for place in places for path in [root / place, *(root / place).rglob("*.py")] if path.is_file()}
    mutants = [mutant for path in sorted(paths) for mutant in of_file(path, root)]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def of_file(path, root):
    source, starts, mutants = path.read_bytes(), [0], []
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, node in _inside_functions(ast.parse(source), None):
        for start, end, text in _changes(node, source, starts):
            mutant = Mutant(str(path.relative_to(root)), type(node).__name__, start, end, text, function)
            try:
                ast.parse(mutant.apply(source))
            except SyntaxError:
                continue
            mutants.append(mutant)
    return mutants


def _inside_functions(node, function):
    """What runs inside functions, each node with the lines of the innermost definition around it.

    Annotations, assertions and the texts of errors are left out.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        lines = (min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.lineno)
        for statement in node.body:
            yield from _inside_functions(statement, lines)
        return
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if function and hasattr(node, "lineno"):
        yield function, node
    for name, field in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from _inside_functions(child, function)


def _changes(node, source, starts):
    def begin(of):
        return starts[of.lineno - 1] + of.col_offset

    def end(of):
        return starts[of.end_lineno - 1] + of.end_col_offset

    def text(of):
        return source[begin(of) : end(of)].decode()

    def between(left, right, old, new):
        space, pattern = source[end(left) : begin(right)].decode(), rf"\b{old}\b" if old.isalpha() else re.escape(old)
        if re.search(pattern, space):
            yield end(left), begin(right), re.sub(pattern, new, space, count=1)

    match node:
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in COMPARISONS:
            yield from between(left, right, *COMPARISONS[type(operation)])
        case ast.BoolOp(values=[first, second, *_]):
            yield from between(first, second, *(("and", "or") if isinstance(node.op, ast.And) else ("or", "and")))
        case ast.BinOp(left=left, right=right) if type(node.op) in PRODUCTS and not (_is_text(left) or _is_text(right)):
            yield from between(left, right, *PRODUCTS[type(node.op)])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield begin(node), end(node), f"({text(operand)})"
        case ast.Constant(value=bool() as truth):
            yield begin(node), end(node), str(not truth)
        case ast.Constant(value=int() as number) if number < 1000:
            yield begin(node), end(node), str(number + 1)
        case ast.Expr(value=ast.Call()):
            yield begin(node), end(node), "pass"
        case ast.If(test=test, body=[ast.Return()], orelse=[]):
            yield begin(test), end(test), "False"
        case ast.Call(args=[first, second, *_]) if not {type(first), type(second)} & {ast.Starred, ast.GeneratorExp}:
            yield begin(first), end(second), text(second) + source[end(first) : begin(second)].decode() + text(first)


def _is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
