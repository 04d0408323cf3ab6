"""The page's modules as one script, for pages that must be a single file.

Each module becomes a function that runs once, after those it imports, and returns its exports. This is not a general
bundler: the page's modules use only `import { a, b as c } from "./x.js";` and `export function | class | const`,
and anything else is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from regard.errors import RegardError

_IMPORT = re.compile(r'^import\s*\{([^{}]*)\}\s*from\s*"([^"]+)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const)\s+([A-Za-z_$][\w$]*)", re.MULTILINE)
_FOREIGN = re.compile(r"^(?:import\b(?!\s*\.meta)|export\b)|\bimport\s*\(", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^[ \t]*//[^\n]*\n", re.MULTILINE)


class NotBundled(RegardError):
    """A module uses a form that this bundler does not know."""


def read_page(folder: Path | None = None) -> dict[str, str]:
    """Every script, style and HTML file of the page, by its path in the page's folder."""
    root = page_folder() if folder is None else folder
    texts = {}
    for path in sorted(root.rglob("*")):
        if path.suffix in (".js", ".css", ".html"):
            texts[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return texts


def page_folder() -> Path:
    """The folder of the page's files."""
    return Path(str(files("regard_workbench.viewer"))) / "page"


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """A script that runs `entry` and its imports, in strict mode, without defining a global name."""
    body, entrance = _parts(modules, entry)
    return f'(() => {{\n"use strict";\n{body}void {entrance};\n}})();\n'


def bundle_module(modules: Mapping[str, str], entry: str, default: str) -> str:
    """The same as an ES module whose default export is the entry's export `default`."""
    body, entrance = _parts(modules, entry)
    return f"{body}export default {entrance}.{default};\n"


def _parts(modules: Mapping[str, str], entry: str) -> tuple[str, str]:
    order = _in_order(modules, entry)
    names = {path: f"module{number}" for number, path in enumerate(order)}
    texts = [_wrapped(path, modules[path], names) for path in order]
    return _harmless("".join(texts)), names[entry]


def _in_order(modules: Mapping[str, str], entry: str) -> list[str]:
    """The entry and everything it imports, each module after its imports."""
    done: list[str] = []
    open_: list[str] = []

    def visit(path: str, wanted_by: str) -> None:
        if path in done:
            return
        if path not in modules:
            raise NotBundled(f"{wanted_by} imports {path}, which is not among the page's files.")
        if path in open_:
            circle = " → ".join([*open_[open_.index(path) :], path])
            raise NotBundled(f"modules import each other in a circle: {circle}.")
        open_.append(path)
        for statement in _IMPORT.finditer(modules[path]):
            visit(_resolved(path, statement[2]), path)
        open_.pop()
        done.append(path)

    visit(entry, "the page")
    return done


def _wrapped(path: str, text: str, names: Mapping[str, str]) -> str:
    def taken(found: re.Match[str]) -> str:
        words = [word.strip() for word in found[1].split(",") if word.strip()]
        pairs = ", ".join(re.sub(r"\s+as\s+", ": ", word) for word in words)
        return f"const {{ {pairs} }} = {names[_resolved(path, found[2])]};"

    exported = [match[2] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(taken, text))
    foreign = _FOREIGN.search(body)
    if foreign:
        line = body[: foreign.start()].count("\n") + 1
        raise NotBundled(
            f"{path}:{line}: {body.splitlines()[line - 1].strip()[:80]!r} is a form that the bundler does not know."
        )
    handed = ", ".join(exported)
    return f"const {names[path]} = (() => {{\n{_COMMENT_LINE.sub('', body).strip()}\nreturn {{ {handed} }};\n}})();\n"


def _resolved(path: str, target: str) -> str:
    if not target.startswith("."):
        raise NotBundled(f"{path}: {target!r} is not a file of the page.")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _harmless(script: str) -> str:
    """The script with the sequences escaped that would end a script element or begin a comment."""
    script = re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE)
    return script.replace("<!--", "<\\!--")


@cache
def page_script() -> str:
    """The page's own script, bundled."""
    return bundle(read_page(), "main.js")


@cache
def page_style() -> str:
    """All styles of the page, in the order of its HTML."""
    page = read_page()
    named = re.findall(r'<link rel="stylesheet" href="([^"]+)">', page["index.html"])
    return "\n".join(page[name] for name in named)
