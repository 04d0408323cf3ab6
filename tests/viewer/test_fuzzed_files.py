"""Damaged images, tokenizers and configurations: opened, or refused in one line; never another exception."""

import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from regard.errors import RegardError
from regard_workbench.tasks.formats.image_files import FORMATS, read_image
from regard_workbench.viewer.opening import ViewOptions, open_page
from tests.viewer.pretrained import save

PICTURE = Image.fromarray((np.arange(13 * 17 * 3) % 251).astype(np.uint8).reshape(13, 17, 3))


def encoded(kind):
    buffer = io.BytesIO()
    PICTURE.save(buffer, kind)
    return buffer.getvalue()


WHOLE = {kind: encoded(kind) for kind in FORMATS}
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), max_size=6)


def damaged(content, changes, cut):
    found = bytearray(content[: max(1, int(cut * len(content)))])
    for place, value in changes:
        found[int(place * len(found))] = value
    return bytes(found)


def image_or_refused(path, content):
    path.write_bytes(content)
    try:
        found = read_image(str(path))
    except RegardError as refusal:
        assert "\n" not in str(refusal)
        return
    assert found.mode == "RGB" and found.width * found.height > 0


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(FORMATS), changes=CHANGES, cut=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1]))
@example(kind="TIFF", changes=[], cut=0.1)  # Pillow warned on the terminal
def test_any_damaged_image_is_read_or_refused(tmp_path_factory, kind, changes, cut):
    image_or_refused(tmp_path_factory.getbasetemp() / "image", damaged(WHOLE[kind], changes, cut))


@pytest.mark.nightly
@settings(max_examples=30_000, deadline=None)
@given(kind=st.sampled_from(FORMATS), changes=CHANGES, cut=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1]))
def test_many_damaged_images_are_read_or_refused(tmp_path_factory, kind, changes, cut):
    image_or_refused(tmp_path_factory.getbasetemp() / "many", damaged(WHOLE[kind], changes, cut))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    whole = save("gpt2", tmp_path_factory.mktemp("models") / "whole")
    return whole, tmp_path_factory.mktemp("models") / "changed"


VALUES = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        3,
        7,
        10**9,
        10**30,
        0.5,
        "",
        "x",
        "\x1b[31m\n",
        [],
        [1],
        {},
        {"a": 1},
        "gpt2",
        "../..",
        "http://127.0.0.1:9/x",
        ["GPT2LMHeadModel"],
        ["os.system"],
        float("nan"),
    ]
)


def places(found, before=()):
    """The path to every value of a JSON value."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in inner:
        yield (*before, key)
        yield from places(value, (*before, key))


def changed(found, where, value):
    where = list(places(found))[int(where * len(list(places(found))))]
    inner = found
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return found


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("tokenizer_config.json", "model_max_length", ""),  # found by fuzzing: a comparison of a number with a text
        ("config.json", "architectures", 7),
        ("tokenizer.json", "model", {"type": "BPE", "vocab": {"a": 10**12}, "merges": []}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_fuzzing_found_is_opened_or_refused(folder, name, key, value):
    opened_or_refused_with(folder, name, json.loads((folder[0] / name).read_text()) | {key: value})


def opened_or_refused(folder, name, where, value):
    content = json.loads((folder[0] / name).read_text())
    opened_or_refused_with(folder, name, changed(content, where, value))


def opened_or_refused_with(folder, name, content):
    whole, copy = folder
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    (copy / name).write_text(json.dumps(content))
    try:
        scene = open_page(ViewOptions(str(copy), text="the cat sat", device="cpu")).scene()
    except RegardError as refusal:
        assert "\n" not in str(refusal)
        return
    assert scene["sites"] and not scene["warning"]


NAMES = st.sampled_from(["tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json"])
PLACES = st.floats(0, 1, exclude_max=True)


@pytest.mark.filterwarnings("ignore")  # the library's own, about what it was given
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES, where=PLACES, value=VALUES)
def test_any_changed_folder_is_opened_or_refused(folder, name, where, value):
    opened_or_refused(folder, name, where, value)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES, where=PLACES, value=VALUES)
def test_many_changed_folders_are_opened_or_refused(folder, name, where, value):
    opened_or_refused(folder, name, where, value)
