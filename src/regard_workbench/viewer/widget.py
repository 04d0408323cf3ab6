"""The page in a notebook, through anywidget: while the kernel runs it answers requests, afterwards the payload does."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from regard.errors import BadValue, RegardError
from regard_workbench.viewer.bundle import bundle_module, page_style, read_page
from regard_workbench.viewer.page_model import page_model_of
from regard_workbench.viewer.payload import payload
from regard_workbench.viewer.requests import NotFound, RequestHandler

ROOM = 2_000_000  # bytes stored in a saved notebook
WORDS = 12
HEIGHT = "\n.regard-notebook { height: 720px; overflow: auto; border: 1px solid #8884; border-radius: 4px; }\n"


def show(seen: Any, tokens: Any = None, *, room: int = ROOM) -> Any:
    """A widget of what was seen. `tokens`: labels of the positions; `room`: bytes stored in a saved notebook."""
    page_model = page_model_of(seen, tokens)
    carried = payload(page_model, room=room)
    handler = RequestHandler(page_model)
    page_widget = _kind()(_data=json.dumps(carried.data, ensure_ascii=False, allow_nan=False), _bytes=carried.packed())
    page_widget.on_msg(lambda widget, content, buffers: respond(handler, widget.send, content))
    return page_widget


def respond(handler: RequestHandler, send: Any, content: Any) -> None:
    """Answer one message of the page; messages of another form are ignored."""
    if not isinstance(content, dict) or not isinstance(content.get("id"), int):
        return
    query, path = content.get("query"), content.get("path")
    words = query if isinstance(query, dict) and len(query) <= WORDS else {}
    try:
        _, answer = handler.answer(str(path), {str(name): str(value) for name, value in words.items()})
    except NotFound as why:
        send({"id": content["id"], "error": str(why), "status": 404})
    except RegardError as why:
        send({"id": content["id"], "error": str(why), "status": 400})
    else:
        send({"id": content["id"]}, buffers=[answer])


@cache
def script() -> str:
    """The page as an ES module with a `render` for anywidget."""
    widget_script = (Path(str(files("regard_workbench.viewer"))) / "widget.js").read_text(encoding="utf-8")
    return bundle_module({**read_page(), "widget.js": widget_script}, "widget.js", "widget")


@cache
def _kind() -> Any:
    """The widget class, created on first use: anywidget is optional."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise BadValue(
            "show: notebooks need the package anywidget, which is not installed. "
            'Install it: pip install "regard[notebook]". Or write a file: regard.viewer.export(seen, "page.html").'
        ) from None

    class Page(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
        """The page in a notebook."""

        _esm = script()
        _css = page_style() + HEIGHT
        _data = traitlets.Unicode().tag(sync=True)
        _bytes = traitlets.Bytes().tag(sync=True)

    return Page
