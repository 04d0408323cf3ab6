"""Pictures by name, from folders and zip archives of strangers, all brought to one size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from regard.errors import BadValue
from regard.tasks.formats.image_files import ENDINGS, MOST_BYTES, decoded, quiet
from regard.tasks.formats.stores import opened
from regard.tasks.pictures.pixels import Pixels, square


class PictureFiles:
    """The pictures of some folders and archives. A picture is named by its path inside of one, or by its file name."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)

    def read(self, wanted: Iterable[str], size: int) -> dict[str, Pixels]:
        """The pictures of these names, size × size pixels in colours; a name that no place has is refused."""
        missing = dict.fromkeys(wanted)
        found: dict[str, Pixels] = {}
        for place in self.places:
            with opened(place) as store, quiet():
                inside = store.names(ENDINGS)
                by_name = {PurePosixPath(name).name: name for name in inside} | {
                    name: name for name in inside
                }
                for name in [one for one in missing if one in by_name]:
                    content = store.read(by_name[name], MOST_BYTES)
                    found[name] = square(decoded(content, store.shown(by_name[name])).image, size)
                    del missing[name]
        if missing:
            first = next(iter(missing))
            raise BadValue(
                f"data: no picture {first!r} in {', '.join(str(place) for place in self.places) or 'the data'}, "
                f"which lack {len(missing):,} of the pictures that are named. Give their folder or zip, too."
            )
        return found
