"""preprocessor_config.json of a stranger: sizes and numbers are checked before a picture is brought to them."""

import json

import pytest

from regard.errors import BadValue
from regard_workbench.viewer.opening.preprocessing import check_size, read_settings

PICTURE = (503, 307)  # width and height


def settings(folder, text):
    (folder / "preprocessor_config.json").write_text(text if isinstance(text, str) else json.dumps(text))
    return read_settings(str(folder), PICTURE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": {"height": 8000, "width": 8000}}, "size asks for a picture of more than 17 million pixels"),
        ({"size": {"height": 10**400, "width": 1}}, "size asks for"),
        ({"size": 100_000}, "size asks for"),
        ({"size": [4099, 4099]}, "size asks for"),
        ({"size": {"shortest_edge": 3301}}, "size asks for"),  # 3,301 × 5,408 pixels, as the picture is wide
        ({"size": {"longest_edge": 5501}}, "size asks for"),
        ({"crop_size": {"height": 100_000, "width": 100_000}}, "crop_size asks for"),
        ({"image_std": [0, 0, 0]}, "image_std: expected numbers above 0, by which pixels are divided, got 0"),
        ({"image_std": -0.5}, "image_std: expected numbers above 0"),
        ('{"image_mean": [NaN, 0.5, 0.5]}', "image_mean: expected finite numbers"),
        ('{"image_mean": [1' + "0" * 400 + ", 0.5, 0.5]}", "image_mean: expected finite numbers"),
        ('{"image_std": [1e999, 0.5, 0.5]}', "image_std: expected finite numbers"),
    ],
)
def test_what_no_model_reads_is_refused_in_one_line(tmp_path, given, words):
    with pytest.raises(BadValue, match=words) as refused:
        settings(tmp_path, given)
    assert str(refused.value).startswith("RUN: preprocessor_config.json: ") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"size": {"height": 224, "width": 224}, "image_mean": [0.485, 0.456, 0.4], "image_std": [0.229, 0.22, 0.225]},
        {"size": {"height": 2560, "width": 1920}, "crop_size": 384},
        {"size": {"shortest_edge": 800, "longest_edge": 1333}},
        {"size": {"shortest_edge": 3136, "longest_edge": 1000}},  # the longer side decides
        {"size": {"longest_edge": 1024}, "pad_size": {"height": 1024, "width": 1024}},
        {"size": "large", "image_mean": None, "image_std": "half"},
        {},
    ],
)
def test_settings_of_usual_models_are_returned_as_they_are(tmp_path, given):
    assert settings(tmp_path, given) == given


def test_without_a_readable_file_there_are_no_settings(tmp_path):
    assert read_settings(str(tmp_path), PICTURE) == {}
    assert settings(tmp_path, "[" * 100_000) == settings(tmp_path, "[3]") == settings(tmp_path, "{") == {}


def test_the_size_of_a_configuration_is_held_to_the_same_bound():
    check_size("config.json: image_size", [1024, 1024], PICTURE)
    with pytest.raises(BadValue, match=r"^RUN: config\.json: image_size asks for a picture of more than"):
        check_size("config.json: image_size", [60_000, 60_000], PICTURE)
