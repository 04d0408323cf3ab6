"""The pictures in docs/architectures.md are those of the modules."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
_SPEC = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
make_pictures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_pictures)


@pytest.mark.parametrize("name", make_pictures.MODELS)
def test_a_picture_in_the_documents_is_that_of_the_model(name):
    kept = (DOCS / "images" / f"architecture-{name}.svg").read_text(encoding="utf-8")
    assert make_pictures.picture(name) == kept, "run python docs/make_pictures.py"
    assert f"images/architecture-{name}.svg" in (DOCS / "architectures.md").read_text(encoding="utf-8")


_GALLERY = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
make_gallery = importlib.util.module_from_spec(_GALLERY)
_GALLERY.loader.exec_module(make_gallery)


@pytest.mark.parametrize("name", make_gallery.NAMES)
def test_a_picture_of_the_gallery_is_small_and_stands_below_the_commands_that_make_it(name):
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    commands, picture = "\n".join(make_gallery.commands(name)), f"(images/gallery-{name}.svg)"
    assert 0 <= text.index(commands) < text.index(picture)
    assert 2000 < (DOCS / "images" / f"gallery-{name}.svg").stat().st_size < 150_000
