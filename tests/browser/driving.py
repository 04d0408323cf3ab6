"""Actions of a user on the page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def until(page: Any, condition: str, *given: Any) -> None:
    """Waits for a function of the page, passed as a function because the policy forbids evaluating text."""
    page.wait_for_function(f"given => {condition}", arg=given[0] if given else None)


def state(page: Any) -> dict[str, Any]:
    """The state that the page reports."""
    return page.evaluate("() => window.__regard.state()")


def opened(page: Any, address: str, view: str = "overview", **more: Any) -> None:
    """The page in a view, after its first frame."""
    words = "&".join(f"{name}={value}" for name, value in {"view": view, **more}.items())
    page.goto("about:blank")  # a URL that differs only in its fragment would not reload
    page.goto(f"{address}#{words}")
    until(page, "window.__regard && window.__regard.state().view === given", view)
    if view == "overview":
        page.get_by_test_id("cell-0-0").wait_for()
    if view == "matrix":
        settled(page)


def settled(page: Any) -> None:
    """Waits until the matrix is drawn."""
    until(page, "window.__regard.frames && window.__regard.frames().ready")


def cell(page: Any, row: int, key: int) -> tuple[float, float]:
    """The screen position of a cell of the matrix."""
    box, found = page.get_by_test_id("matrix").bounding_box(), page.evaluate("() => window.__regard.frames()")
    x, y = (key + 0.5 - found["x"]) * found["zoom"], (row + 0.5 - found["y"]) * found["zoom"]
    return box["x"] + x, box["y"] + y


def pixels(page: Any) -> np.ndarray:
    """The screen as (height, width, 3) numbers."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def saved(page: Any, kind: str) -> bytes:
    """What the page's menu saves."""
    return saved_as(page, kind)[1]


def saved_as(page: Any, kind: str) -> tuple[str, bytes]:
    """What the page's menu saves, with its file name without extension."""
    page.get_by_test_id("save").click()
    with page.expect_download() as download:
        page.get_by_test_id(f"save-{kind}").click()
    name = download.value.suggested_filename
    assert name.endswith(f".{kind}")
    return name.removesuffix(f".{kind}"), Path(download.value.path()).read_bytes()
