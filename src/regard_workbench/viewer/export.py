"""The page as one HTML file: script, style and data inside, nothing fetched from anywhere.

Labels come from untrusted models and texts. They are embedded in JSON in which every "<" is escaped, and the page only
makes text nodes of them. The content security policy allows the one script by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.viewer.bundle import page_script, page_style, read_page
from regard_workbench.viewer.page_model import PageModel, page_model_of
from regard_workbench.viewer.payload import ROOM, Payload, payload

_SCRIPT = re.compile(r'[ \t]*<script type="module" src="[^"]*"></script>\n')
_STYLE = re.compile(r'[ \t]*<link rel="stylesheet" href="[^"]*">\n')
_TITLE = re.compile(r"<title>[^<]*</title>")


def export(
    seen_or_model: Any,
    path: str | Path,
    tokens: Any = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    sites: Sequence[int] | None = None,
    room: int = ROOM,
) -> Path:
    """Write the page of what was seen to `path`, atomically.

    tokens: labels of the positions. heads: (site, head) pairs, from 0, of which every weight is stored; where not all
    heads fit into `room` bytes, the others store the strongest weights of each row. sites: store only these.
    """
    from regard_workbench.training.run_folder import durable

    target = Path(path)
    if target.suffix.casefold() not in (".html", ".htm"):
        raise BadValue(f"path: expected a name that ends in .html, got {str(path)!r}.")
    if not target.parent.is_dir():
        raise BadValue(f"path: the folder {str(target.parent)!r} does not exist. Create it first.")
    page_model = page_model_of(seen_or_model, tokens)
    page = rendered(page_model, payload(page_model, heads=heads, sites=sites, room=room))
    durable.replace(target, page.encode())
    return target


def rendered(page_model: PageModel, carried: Payload) -> str:
    """The page as text."""
    script, style = page_script(), page_style()
    if "</style" in style.casefold():
        raise BadValue("page: a style that contains </style cannot be embedded.")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(carried.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # "<" can only occur inside JSON strings, where this escape is the same character; so no label can end the element.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    inside = base64.b64encode(carried.packed()).decode()
    page = read_page()["index.html"]
    page = _STYLE.sub("", _SCRIPT.sub("", page))
    page = _TITLE.sub(lambda _: f"<title>{html.escape(page_model.title)} · regard</title>", page, count=1)
    head = f'<meta http-equiv="content-security-policy" content="{policy}">\n    <style>{style}</style>\n'
    # The policy comes first: it applies only to what follows it.
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n    {head}', 1)
    tail = (
        f'<script type="application/json" id="regard-data">{data}</script>\n'
        f'<script type="text/plain" id="regard-bytes">{inside}</script>\n'
        f"<script>{script}</script>\n"
    )
    before, body, after = page.rpartition("</body>")
    if not body:
        raise BadValue("page: index.html has no </body>.")
    return f"{before}{tail}  {body}{after}"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
