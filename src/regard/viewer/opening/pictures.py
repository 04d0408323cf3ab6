"""Images from files that nobody vouches for, and images for the page."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue

MOST_BYTES = 20_000_000
MOST_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")


def read_image(path: str) -> Any:
    """A picture from a file, as RGB; refused by its size before any of it is unpacked."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    file = Path(path)
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise BadValue(f"--image: {path!r} is not a file.")
        if size > MOST_BYTES:
            raise BadValue(
                f"--image: expected at most {MOST_BYTES // 10**6} MB, {path!r} has {size / 1e6:.0f} MB."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's, of large images and of damage that it can read around
            with Image.open(file, formats=FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise BadValue(
                        f"--image: expected at most {MOST_PIXELS // 10**6} million pixels, got "
                        f"{opened.width} × {opened.height}. Make it smaller."
                    )
                return ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError:
        raise BadValue(f"--image: there is no file {path!r}.") from None
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise BadValue(
            f"--image: {path!r} is no image that can be read. Known: {', '.join(FORMATS)}."
        ) from None
    except (OSError, SyntaxError, ValueError) as trouble:
        if isinstance(trouble, BadValue):
            raise
        raise BadValue(f"--image: {path!r} cannot be read: {trouble}.") from None


def as_data(pixels: NDArray[np.float32]) -> tuple[str, int, int]:
    """A data address of pixels (height, width[, 3]) from 0 to 1, and width and height."""
    from PIL import Image

    made = Image.fromarray((np.clip(np.nan_to_num(pixels), 0, 1) * 255).round().astype(np.uint8))
    buffer = io.BytesIO()
    made.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(), made.width, made.height


def on_grid(pixels: NDArray[np.float32], rows: int, columns: int, skip: int = 0) -> dict[str, Any]:
    """The scene's entry for an image whose patches are positions of the input."""
    data, width, height = as_data(pixels)
    return {"data": data, "rows": rows, "columns": columns, "skip": skip, "width": width, "height": height}


def patch_labels(rows: int, columns: int, skip: int = 0) -> list[str]:
    """Names of the positions: what comes before the patches, then the patches row by row, counted from 0."""
    before = ["CLS", *(f"extra {number}" for number in range(skip - 1))][:skip]
    return [*before, *(f"{row},{column}" for row in range(rows) for column in range(columns))]
