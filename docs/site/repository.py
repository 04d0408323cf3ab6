"""Files of the repository on the site: pages from outside `docs`, and the sources that pages link to."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages that live where GitHub looks for them, and their places on the site.
PAGES = {
    "README.md": "readme.md",
    "README.zh.md": "readme.zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
TABLE_CODE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".ipynb": "json"}
ENDS_A_PARAGRAPH = re.compile(r"^(?!\s*(?:[-*+]|\d+\.)\s|\s*$|#|\||>|\s{2,})(.+)\n(?=(?:[-*+]|1\.) )", re.MULTILINE)


def site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/notebooks/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def linked(text: str, page: str) -> set[str]:
    """The files of the repository that a page links to, as paths from the root; `page` is the page's own."""
    folder = posixpath.dirname(page)
    return {
        posixpath.normpath(posixpath.join(folder, found[2]))
        for part in FENCED.split(text)[::2]
        for found in LINK.finditer(part)
    }


def for_site(text: str, page: str) -> str:
    """A page's text for the site: its links lead to pages of the site, and lists begin where GitHub begins them."""
    folder, own = posixpath.dirname(page), posixpath.dirname(site_path(page))

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        if not (ROOT / target).exists():
            return found[0]  # a page that is made for the site, or a mistake, which MkDocs reports
        return f"{found[1]}{posixpath.relpath(site_path(target), own or '.')}{found[3] or ''}{found[4]}"

    parts = FENCED.split(text)
    parts[::2] = [ENDS_A_PARAGRAPH.sub(r"\1\n\n", LINK.sub(moved, part)) for part in parts[::2]]
    return "".join(parts)


def plain_bars(text: str) -> str:
    """GitHub wants a bar inside a table's cell escaped; Python-Markdown wants it as it is where the cell is code."""
    return TABLE_CODE.sub(lambda found: found[0].replace("\\|", "|"), text)


def source_page(path: str) -> str:
    """A page that shows a source file."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    assert "\n````" not in text, f"{path} cannot be shown between four backticks"
    head = f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n# {os.path.basename(path)}\n\n`{path}`\n\n"
    return f"{head}````{language}\n{text}\n````\n"
