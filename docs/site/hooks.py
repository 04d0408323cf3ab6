"""What MkDocs calls while it builds the site: pages that are made from the code are added, links are adapted.

Nothing that is made here is kept in the repository, so no page can be out of date.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]

import api_pages
import mechanism_pages
import notebook_pages
import reference_page
import repository
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.regard")
LOADS = "script|img|iframe|source|link|video|audio"
FOREIGN = re.compile(rf"""<(?:{LOADS})\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
# Pages that only the site has, because they link to pages that are made.
OWN_PAGES = {"site/home.md": "index.md", "site/api.md": "api/index.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the menu that list what the code has."""
    assert config.nav is not None
    found: dict[str, list[Any]] = {}
    for entry in config.nav:
        if isinstance(entry, dict):
            found |= entry
    found["Mechanisms"] += [
        {family: [f"mechanisms/{row['name']}.md" for row in rows]}
        for family, rows in mechanism_pages.families().items()
    ]
    found["API"] += [{name: f"api/{name}.md"} for name in api_pages.names()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages that are made, pages of the repository's root, and the sources that pages link to."""

    def add(path: str, text: str) -> None:
        files.append(File.generated(config, path, content=text))

    for path, text in (*mechanism_pages.pages(), *api_pages.pages(), ("reference.md", reference_page.page())):
        add(path, text)
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        files.remove(files.src_uris[f"notebooks/{notebook.name}"])
        add(f"notebooks/{notebook.stem}.md", notebook_pages.page(notebook))
    for path, place in OWN_PAGES.items():
        add(place, (DOCS / path).read_text(encoding="utf-8"))
    for path, place in repository.PAGES.items():
        add(place, (repository.ROOT / path).read_text(encoding="utf-8"))
    documents = [f"docs/{file.src_uri}" for file in files.documentation_pages() if file.abs_src_path]
    sources: set[str] = set()
    for document in [*repository.PAGES, *(one for one in documents if one.startswith("docs/"))]:
        place = repository.ROOT / document
        if place.exists():
            sources |= repository.linked(place.read_text(encoding="utf-8"), document)
    for path in sorted(sources):
        if repository.site_path(path).startswith("files/") and (repository.ROOT / path).is_file():
            add(repository.site_path(path), repository.source_page(path))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the links of a page that is also read in the repository, and what Markdown dialects read differently."""
    markdown = repository.plain_bars(markdown)
    made = {place: path for path, place in repository.PAGES.items()}
    own = made.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if not (repository.ROOT / own).exists():
        return markdown
    return repository.for_site(markdown, own)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn, and so fail in strict mode, where a browser would load something from another host."""
    for found in FOREIGN.finditer(output):
        log.warning("%s loads something from another host: %s", page.file.src_uri, found[0])
    return output
