"""Pictures by name, from folders and zip archives of strangers, all brought to one size."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from regard.errors import BadValue
from regard.tasks.formats.image_files import MOST_BYTES, read_image
from regard.tasks.formats.stores import FolderFiles, ZipFiles, opened
from regard.tasks.pictures.pixels import Pixels, square

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")


class PictureFiles:
    """The pictures of some folders and archives. A picture is named by its path inside of one, or by its file name."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)

    def read(self, wanted: Iterable[str], size: int) -> dict[str, Pixels]:
        """The pictures of these names, size × size pixels in colours; a name that no place has is refused."""
        missing = dict.fromkeys(wanted)
        found: dict[str, Pixels] = {}
        for place in self.places:
            with opened(place) as store:
                inside = store.names(ENDINGS)
                by_name = {PurePosixPath(name).name: name for name in inside} | {
                    name: name for name in inside
                }
                for name in [one for one in missing if one in by_name]:
                    found[name] = square(_image(store, by_name[name]), size)
                    del missing[name]
        if missing:
            first = next(iter(missing))
            raise BadValue(
                f"data: no picture {first!r} in {', '.join(str(place) for place in self.places) or 'the data'}, "
                f"which lack {len(missing):,} of the pictures that are named. Give their folder or zip, too."
            )
        return found


def _image(store: FolderFiles, name: str) -> object:
    """A picture, checked by the reader of files: a member of an archive passes through a file of its own."""
    if not isinstance(store, ZipFiles):
        return read_image(str(store.path / name))
    content = store.read(name, MOST_BYTES)
    handle, path = tempfile.mkstemp(suffix=PurePosixPath(name).suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return read_image(path)
    except BadValue as trouble:
        raise BadValue(f"data: {store.shown(name)}: {str(trouble).replace(path, name)}") from None
    finally:
        os.unlink(path)
