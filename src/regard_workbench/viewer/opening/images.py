"""Images for the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_png(pixels: NDArray[np.float32]) -> bytes:
    """Pixels (height, width[, 3]) from 0 to 1 as a file."""
    from PIL import Image

    picture = Image.fromarray((np.clip(np.nan_to_num(pixels), 0, 1) * 255).round().astype(np.uint8))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def as_data(pixels: NDArray[np.float32]) -> tuple[str, int, int]:
    """A data URL of pixels (height, width[, 3]) from 0 to 1, with width and height."""
    return ("data:image/png;base64," + base64.b64encode(as_png(pixels)).decode(), pixels.shape[1], pixels.shape[0])


def on_grid(pixels: NDArray[np.float32], rows: int, columns: int, skip: int = 0) -> dict[str, Any]:
    """The scene's entry for an image whose patches are positions of the input."""
    data, width, height = as_data(pixels)
    return {"data": data, "rows": rows, "columns": columns, "skip": skip, "width": width, "height": height}


def patch_labels(rows: int, columns: int, skip: int = 0) -> list[str]:
    """Labels of the positions: extra tokens before the patches, then the patches row by row, from 0."""
    before = ["CLS", *(f"extra {number}" for number in range(skip - 1))][:skip]
    return [*before, *(f"{row},{column}" for row in range(rows) for column in range(columns))]
