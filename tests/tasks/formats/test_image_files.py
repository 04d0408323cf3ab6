"""Pictures in every mode that files have, against numbers that were worked out by hand."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from regard.errors import BadValue
from regard_workbench.tasks.formats import image_files
from regard_workbench.tasks.formats.image_files import PicturesRead, decoded, read_frames, read_image, read_picture


def content(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(given, kind="PNG", **options):
    found = decoded(content(given, kind, **options), "x").image
    return found.mode, np.asarray(found)


def test_sixteen_bits_of_grey_become_eight_and_stay_grey():
    numbers = np.array([[0, 257, 65535], [128 * 257, 5 * 257, 256 * 100]], np.uint16)
    for kind in ("PNG", "TIFF"):
        mode, found = pixels(Image.fromarray(numbers), kind)
        assert mode == "L" and found.tolist() == [[0, 1, 255], [128, 5, 100]]


def test_floats_are_read_from_0_to_1_or_to_255():
    assert pixels(Image.fromarray(np.array([[0.0, 0.2, 1.0]], np.float32)), "TIFF")[1].tolist() == [[0, 51, 255]]
    assert pixels(Image.fromarray(np.array([[0.0, 51.0, 204.0]], np.float32)), "TIFF")[1].tolist() == [[0, 51, 204]]
    bad = np.array([[np.nan, 0.2, np.inf]], np.float32)
    assert pixels(Image.fromarray(bad), "TIFF")[1].tolist() == [[0, 51, 0]]


def test_bits_and_grey_stay_grey():
    assert pixels(Image.fromarray(np.array([[True, False, True]])))[1].tolist() == [[255, 0, 255]]
    assert pixels(Image.fromarray(np.array([[7, 200]], np.uint8)))[0] == "L"


def test_a_palette_gives_its_colours():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 0, 250])
    image.putdata([0, 1, 2])
    mode, found = pixels(image)
    assert mode == "RGB" and found.tolist() == [[[10, 20, 30], [200, 0, 0], [0, 0, 250]]]


def test_cmyk_gives_its_colours():
    mode, found = pixels(Image.new("CMYK", (2, 3), (0, 255, 255, 0)), "TIFF")
    assert mode == "RGB" and (found == [255, 0, 0]).all()


def test_what_is_transparent_shows_white_paper():
    image = Image.new("RGBA", (2, 1))
    image.putdata([(0, 0, 0, 0), (200, 0, 0, 255)])
    assert pixels(image)[1].tolist() == [[[255, 255, 255], [200, 0, 0]]]
    grey = Image.new("LA", (2, 1))
    grey.putdata([(0, 0), (9, 255)])
    mode, found = pixels(grey)
    assert mode == "L" and found.tolist() == [[255, 9]]


def test_a_photograph_is_turned_as_its_exif_data_say():
    image = Image.new("RGB", (5, 3))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: the picture is to be turned by 90° clockwise
    _, found = pixels(image, "PNG", exif=exif)
    assert found.shape == (5, 3, 3) and found[0, 2].tolist() == [255, 255, 255] and found.sum() == 3 * 255


def test_of_an_animated_picture_the_first_frame_is_read_and_that_is_said(tmp_path):
    frames = [Image.new("L", (7, 5), shade) for shade in (11, 99, 180)]
    path = tmp_path / "moving.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    found = read_picture(path)
    assert (np.asarray(found.image) == 11).all() and "first frame" in found.notes[0]
    assert decoded(content(frames[1]), "x").notes == ()
    read = [np.asarray(frame.convert("L")) for frame in read_frames(path, 3)]
    assert [int(frame[0, 0]) for frame in read] == [11, 99, 180]
    with pytest.raises(BadValue, match=r"expected at least 4 frames, .* has 3"):
        read_frames(path, 4)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_bomb_is_refused_by_its_header_before_it_is_unpacked():
    """The header of a PNG says 50,000 × 50,000 pixels; the data would be 2.5 GB of zeros."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(BadValue, match=r"data: .*at most 40 million pixels, 'x\.png' has several times"):
        decoded(bomb, "x.png")
    header = struct.pack(">IIBBBBB", 7000, 7000, 8, 0, 0, 0, 0)  # below Pillow's own limit, above ours
    large = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    with pytest.raises(BadValue, match=r"at most 40 million pixels, 'x\.png' has 7000 × 7000"):
        decoded(large, "x.png")


def test_cut_off_and_foreign_files_are_refused_with_their_names(tmp_path):
    whole = content(Image.fromarray(np.random.default_rng(3).integers(0, 255, (31, 37, 3), np.uint8)))
    with pytest.raises(BadValue, match=r"data: 'a/b\.png' cannot be read"):
        decoded(whole[: len(whole) // 2], "a/b.png")
    for foreign in (b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        with pytest.raises(BadValue, match="is no image that can be read"):
            decoded(foreign, "x.png")
    with pytest.raises(BadValue, match="--image: there is no file"):
        read_image(str(tmp_path / "missing.png"))
    with pytest.raises(BadValue, match=r"--image: .* is not a file"):
        read_image(str(tmp_path))


def test_a_file_with_too_many_bytes_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "MOST_BYTES", 1000)
    path = tmp_path / "x.png"
    path.write_bytes(bytes(1001))
    with pytest.raises(BadValue, match="MB"):
        read_image(str(path))


def test_a_task_that_reads_one_image_says_that_it_is_animated(tmp_path):
    frames = [Image.new("RGB", (7, 5), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    with pytest.warns(PicturesRead, match=r"moving\.gif.*first frame"):
        found = read_image(str(tmp_path / "moving.gif"))
    assert found.getpixel((3, 2)) == (255, 0, 0)
