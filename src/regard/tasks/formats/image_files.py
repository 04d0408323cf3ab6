"""Images from untrusted files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

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
