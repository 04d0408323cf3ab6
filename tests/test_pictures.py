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
