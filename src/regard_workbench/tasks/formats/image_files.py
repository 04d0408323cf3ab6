"""Pictures from untrusted files: refused by their size before any of it is unpacked.

What Pillow reads in many modes comes out as one of two: grey ("L") or colour ("RGB"), eight bits for each number.
"""

from __future__ import annotations

import io
import itertools
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.errors import BadValue
from regard_workbench import files
from regard_workbench.tasks.formats import libtiff

MOST_BYTES = 20_000_000
MOST_PIXELS = 40_000_000
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
FIRST_FRAME = "it is animated, and its first frame was read"
GREY = ("1", "L", "LA", "La")
TRANSPARENT = ("LA", "La", "PA", "RGBA", "RGBa")


class DecodedPicture(NamedTuple):
    """A decoded picture, and what is to be said about how it was read."""

    image: Any  # Pillow's, in the mode "L" or "RGB", turned as its EXIF data say
    notes: tuple[str, ...] = ()


class PicturesRead(UserWarning):
    """What a user should know of how pictures were read: files that were skipped, animated ones."""


def read_image(path: str) -> Any:
    """The picture of a user's file, as RGB; what is to be said about how it was read is a warning."""
    image, notes = read_picture(path)
    for note in notes:
        warnings.warn(f"{files.shown(path)!r}: {note}.", PicturesRead, stacklevel=2)
    return image.convert("RGB")


def read_picture(path: str | Path, argument: str = "--image") -> DecodedPicture:
    """The picture of a user's file."""
    with quiet():
        return decoded(picture_bytes(path, argument), files.shown(path), argument)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings of large images and of damage that it can read around, and without its log.

    Around `decoded`, not inside: the filters of warnings belong to the process, and `decoded` runs in threads.
    """
    log, nowhere = (logging.getLogger("PIL"), logging.NullHandler())  # with no handler, errors go to the terminal
    log.addHandler(nowhere)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.removeHandler(nowhere)


def read_frames(path: str | Path, count: int, argument: str = "--image") -> list[Any]:
    """The first `count` frames of an animated picture; refused where it has fewer."""
    from PIL import ImageSequence

    name = files.shown(path)
    with quiet(), _opened(picture_bytes(path, argument), name, argument) as image, _decoding(image):
        try:
            frames = [_plain(frame) for frame in itertools.islice(ImageSequence.Iterator(image), count)]
        except Exception as trouble:
            raise _unreadable(argument, name, trouble) from None
    if len(frames) < count:
        raise BadValue(f"{argument}: expected at least {count} frames, {name!r} has {len(frames)}.")
    return frames


def decoded(content: bytes, name: str, argument: str = "data") -> DecodedPicture:
    """The picture in the bytes of a file called `name`; of an animated one the first frame, and a note of it."""
    from PIL import ImageOps

    with _opened(content, name, argument) as image, _decoding(image):
        try:
            notes = (FIRST_FRAME,) if getattr(image, "is_animated", False) else ()
            return DecodedPicture(_plain(ImageOps.exif_transpose(image)), notes)
        except Exception as trouble:
            raise _unreadable(argument, name, trouble) from None


def _decoding(image: Any) -> AbstractContextManager[None]:
    return libtiff.silenced() if image.format == "TIFF" else nullcontext()


def picture_bytes(path: str | Path, argument: str) -> bytes:
    """The bytes of a file of at most MOST_BYTES."""
    file = Path(path)
    try:
        if not file.is_file():
            missing = not file.exists()
            fault = f"there is no file {str(path)!r}" if missing else f"{str(path)!r} is not a file"
            raise BadValue(f"{argument}: {fault}.")
        size = file.stat().st_size
    except OSError as trouble:
        raise BadValue(f"{argument}: {str(path)!r} cannot be read: {trouble.strerror or trouble}.") from None
    if size > MOST_BYTES:
        raise BadValue(f"{argument}: expected at most {MOST_BYTES // 10**6} MB, {str(path)!r} has {size / 1e6:.0f} MB.")
    return files.read_bytes(path, argument, MOST_BYTES)


def _opened(content: bytes, name: str, argument: str) -> Any:
    """Pillow's image, of which only the header was read."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:
        raise BadValue(f"{argument}: {name!r} is no image that can be read. Known: {', '.join(FORMATS)}.") from None
    except Image.DecompressionBombError:  # Pillow's own limit, which is above ours
        raise BadValue(
            f"{argument}: expected at most {MOST_PIXELS // 10**6} million pixels, {name!r} has several times as many. "
            "Make it smaller."
        ) from None
    except Exception as trouble:
        raise _unreadable(argument, name, trouble) from None
    if image.width * image.height > MOST_PIXELS:
        raise BadValue(
            f"{argument}: expected at most {MOST_PIXELS // 10**6} million pixels, {name!r} has {image.width} × "
            f"{image.height}. Make it smaller."
        )
    return image


def _plain(image: Any) -> Any:
    """An image in the mode "L" or "RGB"; what is transparent shows white paper."""
    from PIL import Image

    image.load()
    grey = image.mode in GREY
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image)))
    if "transparency" in image.info or image.mode in TRANSPARENT:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if grey else "RGB")


def _eight_bits(numbers: Any) -> Any:
    """Grey numbers as bytes. 65535 is white; of 32 bits 255 where none is above it, of floats likewise 1.0."""
    finite = np.nan_to_num(numbers.astype(np.float64), posinf=0.0, neginf=0.0)
    top = finite.max(initial=0.0)
    if numbers.itemsize > 2 and top <= 255.0:
        white = 1.0 if numbers.dtype.kind == "f" and top <= 1.0 else 255.0
    else:
        white = 65535.0
    return np.clip(np.rint(finite * (255.0 / white)), 0, 255).astype(np.uint8)


def _unreadable(argument: str, name: str, trouble: Exception) -> BadValue:
    """An error of Pillow's decoders, which raise errors of many kinds for damaged files, in one line."""
    if isinstance(trouble, BadValue):
        return trouble
    words = " ".join(str(trouble).split()) or type(trouble).__name__
    return BadValue(f"{argument}: {name!r} cannot be read: {words[:200]}.")
