"""Pictures by name, from folders and archives of strangers, all brought to one size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from regard.errors import BadValue
from regard_workbench.tasks.formats.bad_files import BadFiles
from regard_workbench.tasks.formats.image_files import ENDINGS, MOST_BYTES, decoded
from regard_workbench.tasks.formats.stores import opened
from regard_workbench.tasks.pictures.pixels import Pixels, held_bytes, square


class PictureFiles:
    """The pictures of some folders and archives. A picture is named by its path inside of one, or by its file name."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)

    def read(self, wanted: Iterable[str], size: int, bad: BadFiles) -> dict[str, Pixels]:
        """The pictures of these names, size × size pixels in colours.

        `bad` says what happens to those that cannot be read. A name that no place has is refused: then a folder is
        missing, not one file.
        """
        missing = dict.fromkeys(wanted)
        pixels_by_name: dict[str, Pixels] = {}
        byte_count = 0
        for place in self.places:
            with opened(place) as store:
                inside = store.names(ENDINGS)
                by_name = {PurePosixPath(name).name: name for name in inside} | {name: name for name in inside}
                present = [picture_name for picture_name in missing if picture_name in by_name]
                for name in present:
                    del missing[name]

                def fetch(name: str) -> bytes:
                    return store.read(by_name[name], MOST_BYTES)  # noqa: B023 (called inside this turn)

                def decode(name: str, content: bytes) -> tuple[Pixels, tuple[str, ...]]:
                    picture = decoded(content, store.shown(by_name[name]))  # noqa: B023
                    return square(picture.image, size), picture.notes

                for name, (pixels, notes) in bad.each(present, fetch, decode):
                    bad.notes += [f"{store.shown(by_name[name])}: {note}" for note in notes]
                    byte_count = held_bytes(byte_count + pixels.nbytes, place, size)
                    pixels_by_name[name] = pixels
        if missing:
            first = next(iter(missing))
            raise BadValue(
                f"data: no picture {first!r} in {', '.join(str(place) for place in self.places) or 'the data'}, "
                f"which lack {len(missing):,} of the pictures that are named. Give their folder or archive, too."
            )
        bad.tell()
        return pixels_by_name
