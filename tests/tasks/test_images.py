"""`images`: class folders, archives and IDX files; broken files; training, prediction and what is shown."""

import gzip
import io
import json
import re
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.inspection.inspection import inspect_run
from regard_workbench.tasks.figures.colours import ON_PICTURES
from regard_workbench.tasks.formats.image_files import PicturesRead
from regard_workbench.tasks.parts.shown import Looked
from regard_workbench.tasks.pictures.patches import fold, names
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run


def shade(label, number, side=12, colour=False):
    """A picture whose brightness says its class, with a pixel that says its number."""
    numbers = np.full((side, side), {"cat": 40, "dog": 200}[label], np.uint8)
    numbers[0, 0] = number
    return Image.fromarray(np.stack([numbers, numbers, numbers // 2], -1) if colour else numbers)


def encoded(image, kind="PNG"):
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def members(count=15, **options):
    return [
        (f"{label}/{number:02}.png", encoded(shade(label, number, **options)))
        for label in ("dog", "cat")
        for number in range(count)
    ]


def written(folder, files):
    for name, content in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def idx(array):
    array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def idx_files(folder, packed=False, train=11, test=5):
    random = np.random.default_rng(5)
    for name, count in (("train", train), ("t10k", test)):
        labels = np.arange(count) % 3
        pixels = random.integers(0, 255, (count, 6, 4), np.uint8)
        for content, kind in ((idx(pixels), "images-idx3-ubyte"), (idx(labels), "labels-idx1-ubyte")):
            ending = ".gz" if packed else ""
            (folder / f"{name}-{kind}{ending}").write_bytes(gzip.compress(content) if packed else content)
    return str(folder)


def test_class_folders_are_split_and_their_pictures_keep_their_classes(tmp_path):
    task = tasks.build("images", data=written(tmp_path, members()))
    assert task.fitted.classes == ("cat", "dog") and task.fitted.channels == 1 and task.spec.rows == 3
    sizes = {split: len(task.examples(split)) for split in ("train", "validation", "test")}
    assert sizes == {"train": 24, "validation": 3, "test": 3}
    for split in sizes:
        for one in task.examples(split):
            assert one.pixels.shape == (1, 12, 12)
            assert int(one.pixels[0, 5, 5]) == (40, 200)[one.label]


def test_zip_and_tar_archives_hold_the_same_pictures_as_their_folder(tmp_path):
    files = members(7, colour=True)
    folder = written(tmp_path / "pictures", files)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in files:
            archive.writestr(f"around/{name}", content)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        for name, content in reversed(files):
            info = tarfile.TarInfo(f"around/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    whole = [tasks.build("images", data=str(path)) for path in (folder, tmp_path / "x.zip", tmp_path / "x.tar.gz")]
    for split in ("train", "validation", "test"):
        first, *others = (one.examples(split) for one in whole)
        for other in others:
            assert torch.equal(first.pixels, other.pixels) and torch.equal(first.labels, other.labels)
    assert whole[0].fitted.channels == 3


def test_folders_named_train_val_and_test_are_the_splits(tmp_path):
    files = [
        (f"{split}/{label}/{number}.png", encoded(shade(label, number)))
        for split, count in (("train", 5), ("val", 3), ("test", 2))
        for label in ("cat", "dog")
        for number in range(count)
    ]
    task = tasks.build("images", data=written(tmp_path, files))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [10, 6, 4]
    written(tmp_path, [("test/cow/1.png", encoded(shade("cat", 1)))])
    again = tasks.build("images", data=str(tmp_path))
    with pytest.raises(BadValue, match=r"test/cow/1\.png: the class 'cow' is not among those of training: cat, dog"):
        again.examples("test")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_as_they_are(tmp_path, packed):
    task = tasks.build("images(patch=2)", data=idx_files(tmp_path, packed))
    random = np.random.default_rng(5)
    train, test = (random.integers(0, 255, (count, 6, 4), np.uint8) for count in (11, 5))
    assert task.fitted.classes == ("0", "1", "2") and (task.spec.rows, task.spec.columns) == (3, 2)
    found = task.examples("test")
    assert np.array_equal(found.pixels[:, 0].numpy(), test) and found.labels.tolist() == [0, 1, 2, 0, 1]
    kept = {one.pixels.numpy().tobytes() for split in ("train", "validation") for one in task.examples(split)}
    assert kept == {picture.tobytes() for picture in train} and len(task.examples("validation")) == 1


def test_idx_files_that_do_not_belong_together_are_refused(tmp_path):
    idx_files(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(4)))
    with pytest.raises(BadValue, match="t10k-images-idx3-ubyte holds 5 pictures, its labels are 4"):
        tasks.build("images", data=str(tmp_path))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadValue, match="holds no labels for test"):
        tasks.build("images", data=str(tmp_path))


def test_a_broken_file_is_named_and_the_others_go_on_where_that_is_asked_for(tmp_path):
    whole = encoded(shade("dog", 3))
    files = [*members(6), ("dog/broken.png", whole[:40]), ("cat/words.jpg", b"no picture")]
    written(tmp_path, files)
    with pytest.raises(BadValue, match=r"cat/words\.jpg.*--bad-files skip"):
        tasks.build("images", data=str(tmp_path))
    with pytest.warns(PicturesRead, match=r"(?s)2 files were skipped: .*cat/words\.jpg.*dog/broken\.png"):
        task = tasks.build("images(bad_files=skip)", data=str(tmp_path))
    assert sum(len(task.examples(split)) for split in ("train", "validation", "test")) == 12
    with pytest.raises(BadValue, match="bad_files: there is no 'ignore'"):
        tasks.build("images(bad_files=ignore)")


@pytest.mark.filterwarnings("always::regard_workbench.tasks.formats.image_files.PicturesRead")
def test_the_flag_of_the_command_line_is_the_tasks_option(tmp_path, capsys):
    written(tmp_path / "set", [*members(8), ("cat/words.jpg", b"no picture")])
    out, options = tmp_path / "run", ["--device", "cpu"]
    small = ["--model", "vit(dim=8, layers=1, num_heads=2)", "--steps", "1", "--batch-size", "4", *options]
    train = ["train", "images", "--data", str(tmp_path / "set"), "--out", str(out), *small]
    assert main(train) == 2 and "--bad-files skip" in capsys.readouterr().err
    assert main([*train, "--bad-files", "skip"]) == 0
    assert re.search(r"^note: .*words\.jpg", capsys.readouterr().err, re.M)
    assert "task: images(bad_files=skip)" in (out / "config.yaml").read_text()
    assert main(["evaluate", str(out), *options]) == 0
    assert re.search(r"^note: .*words\.jpg", capsys.readouterr().err, re.M)
    assert main(["evaluate", str(out), "--bad-files", "stop", *options]) == 2
    assert "words.jpg" in capsys.readouterr().err
    for given in (["dates"], ["--resume", str(out)]):
        assert main(["train", *given, "--bad-files", "skip"]) == 2
        assert "--bad-files: " in capsys.readouterr().err


def test_an_animated_file_is_read_and_that_is_said(tmp_path):
    written(tmp_path, members(5))
    frames = [shade("dog", n) for n in (60, 61)]
    frames[0].save(tmp_path / "dog" / "moving.gif", save_all=True, append_images=frames[1:])
    with pytest.warns(PicturesRead, match=r"moving\.gif.*first frame"):
        tasks.build("images", data=str(tmp_path))


def test_the_order_does_not_depend_on_which_thread_is_done_first(tmp_path, monkeypatch):
    import time

    from regard_workbench.tasks.formats import class_folders

    written(tmp_path, members(20))
    before = tasks.build("images", data=str(tmp_path)).examples("train")
    plain, calls = class_folders.decoded, []

    def slowly(content, name, argument="data"):
        calls.append(name)
        time.sleep(0.01 if len(calls) % 3 == 1 else 0.0)
        return plain(content, name, argument)

    monkeypatch.setattr(class_folders, "decoded", slowly)
    after = tasks.build("images", data=str(tmp_path)).examples("train")
    assert torch.equal(before.pixels, after.pixels) and len(calls) == 41  # each once, and the first for its size


def test_pictures_of_other_sizes_are_covered_and_cut(tmp_path):
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 255  # the middle, which is kept
    files = [*members(6), ("cat/wide.png", encoded(Image.fromarray(wide)))]
    task = tasks.build("images(size=8)", data=written(tmp_path, files))
    every = [one.pixels for split in ("train", "validation", "test") for one in task.examples(split)]
    assert {tuple(one.shape) for one in every} == {(1, 8, 8)}
    assert sum(bool((one[0] > 200).float().mean() > 0.9) and int(one[0, 0, 0]) > 200 for one in every) >= 1


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("words.txt", b"x")], "holds no pictures"),
        ([("a.png", encoded(shade("cat", 1)))], "lies in no class folder"),
        ([("a/1.png", b"x"), ("b/2.png", b"y")], "cannot be read|no image"),
    ],
)
def test_folders_without_pictures_or_classes_are_refused(tmp_path, files, words):
    with pytest.raises(BadValue, match=words):
        tasks.build("images", data=written(tmp_path, files))


def test_numbers_have_mean_0_and_variance_1_and_are_shown_as_they_were(tmp_path):
    task = tasks.build("images", data=written(tmp_path, members(9, colour=True)))
    examples = task.examples("train")
    batch = task.batch(examples, range(len(examples)), torch.Generator())
    pictures = fold(batch.inputs, task.spec)
    assert pictures.mean((0, 2, 3)).abs().max() < 1e-5 and (pictures.std((0, 2, 3)) - 1).abs().max() < 1e-3
    single = task.collate([examples[3]], torch.Generator())
    assert torch.equal(single.inputs[0], batch.inputs[3])
    shown = task.show(examples[3], single)
    assert np.allclose(shown.picture * 255, examples[3].pixels.permute(1, 2, 0).numpy(), atol=0.01)
    assert shown.grid == (3, 3) and shown.pieces[5] == "1,2" and "class" in shown.words


def test_only_training_pictures_are_changed_and_only_by_the_generator(tmp_path):
    task = tasks.build("images(shift=2, flip=true, erase=0.5)", data=written(tmp_path, members(12)))
    for split in ("train", "test"):
        examples = task.examples(split)
        one, two, other = (task.batch(examples, range(2), torch.Generator().manual_seed(n)) for n in (1, 1, 2))
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.inputs, other.inputs) == (split == "test")
        again = task.collate([examples[n] for n in range(2)], torch.Generator().manual_seed(1))
        assert torch.equal(one.inputs, again.inputs)


def test_a_restored_task_needs_no_files_and_reads_pictures_alike(tmp_path):
    task = tasks.build("images", data=written(tmp_path / "data", members(9)))
    state = json.loads(json.dumps(task.state()))
    fresh = tasks.build("images", data=str(tmp_path / "gone"), state=state)
    assert fresh.problems() == task.problems()
    path = tmp_path / "x.png"
    path.write_bytes(encoded(shade("dog", 3, side=31, colour=True)))
    one, two = (made.collate([made.parse({"image": str(path)})], torch.Generator()) for made in (task, fresh))
    assert torch.equal(one.inputs, two.inputs) and one.targets is None


def test_dark_writing_on_paper_is_read_as_light_on_dark_and_that_is_said(tmp_path):
    task = tasks.build("images")
    ink = np.full((40, 40), 255, np.uint8)
    ink[10:30, 18:22] = 0
    path = tmp_path / "one.png"
    Image.fromarray(ink).save(path)
    example = task.parse({"image": str(path)})
    assert float(example.pixels.float().mean()) < 100
    assert "light on dark" in task.understood({"image": str(path)}, example).notes[0]


def test_scenes_show_their_digit_and_keep_test_digits_apart():
    task = tasks.build("images")
    again = tasks.build("images")
    assert torch.equal(task.examples("test").pixels, again.examples("test").pixels)
    assert not torch.equal(task.examples("test").pixels, tasks.build("images(seed=1)").examples("test").pixels)
    train, test = task.examples("train"), task.examples("test")
    assert train.pixels.shape[1:] == (1, 20, 20) and set(train.labels.tolist()) == set(range(10))
    assert not {one.tobytes() for one in train.pixels.numpy()} & {one.tobytes() for one in test.pixels.numpy()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on two classes of plain pictures."""
    folder = tmp_path_factory.mktemp("images")
    data = written(folder / "data", members(15))
    settings = {"steps": 30, "batch_size": 12, "eval_every": 30, "optim": {"lr": 0.01, "warmup": 5}}
    settings |= {"task": "images", "data": data, "out": str(folder / "run"), "device": "cpu"}
    found = train({"model": "vit(dim=16, layers=2, num_heads=2)", **settings}, quiet=True)
    return folder, found


def test_a_small_run_learns_its_classes(run):
    assert run[1].best["value"] == 1.0


def test_a_picture_is_predicted_with_the_patches_that_were_looked_at(run, capsys):
    path = run[0] / "grey.jpg"
    path.write_bytes(encoded(shade("dog", 3, side=31), "JPEG"))
    assert main(["predict", str(run[0] / "run"), "--image", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["output"] == "dog" and set(found["probabilities"]) == {"cat", "dog"}
    assert [one["piece"] for one in found["looked_at"]["pieces"]][4] == "1,1"
    assert sum(one["weight"] for one in found["looked_at"]["pieces"]) == pytest.approx(1, abs=1e-3)


def test_a_figure_shows_where_the_model_looked_on_the_picture(run):
    path, figure = run[0] / "x.png", run[0] / "looked.svg"
    path.write_bytes(encoded(shade("dog", 3)))
    assert main(["predict", str(run[0] / "run"), "--image", str(path), "--figure", str(figure)]) == 0
    text = figure.read_text()
    assert text.count("<image") == 2  # the picture, and the picture with the weights on it
    task = load(run[0] / "run").task
    looked = Looked([0.0] * 8 + [1.0], names(task.spec), [], "by hand")
    _, lit = (frame.images[0].get_array() for frame in task.draw("dog", task.parse({"image": str(path)}), looked).axes)
    below = 0.6 * 200 / 255  # the picture, dimmed
    colour = np.array([int(ON_PICTURES[2][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    assert np.allclose(lit[8:, 8:], 0.35 * below + 0.65 * colour, atol=0.01)
    assert np.allclose(lit[4:8, 4:8], below, atol=0.01)


def test_the_page_lays_attention_over_the_picture(run):
    opened = open_run(ViewOptions(str(run[0] / "run"), device="cpu"), str(run[0] / "run"), None, lambda text: None)
    assert (opened.image["rows"], opened.image["columns"]) == (3, 3) and opened.image["width"] == 12
    assert len(opened.labels["patches"]) == 9
    with regard.observe(opened.model) as seen:
        opened.run()
    assert seen["layers.1.attention"].shape() == (1, 2, 9, 9)


@pytest.mark.parametrize("model", ["vit(pool=class, patch=2)", "cnn-attention", "cnn-attention(self_attention=false)"])
def test_other_models_are_explained_and_opened_alike(tmp_path, model, capsys):
    data = written(tmp_path / "data", members(6))
    small = model.replace("vit(", "vit(dim=16, layers=1, ").replace("cnn-attention(", "cnn-attention(dim=16, ")
    settings = {"steps": 2, "batch_size": 4, "eval_every": 2, "out": str(tmp_path / "run"), "device": "cpu"}
    train({"task": "images", "data": data, "model": small, **settings}, quiet=True)
    path = tmp_path / "x.png"
    path.write_bytes(encoded(shade("cat", 3)))
    assert main(["predict", str(tmp_path / "run"), "--image", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    patches = [one["piece"] for one in found["looked_at"]["pieces"]]
    assert found["output"] in ("cat", "dog") and patches[-1] == ("5,5" if "patch=2" in model else "2,2")
    options = ViewOptions(str(tmp_path / "run"), image=str(path), device="cpu")
    opened = open_run(options, str(tmp_path / "run"), None, lambda text: None)
    with regard.observe(opened.model) as seen:
        opened.run()
    picture = opened.image
    assert picture["skip"] == ("class" in model) and picture["width"] == 12
    assert picture["skip"] + picture["rows"] * picture["columns"] == seen[seen.names()[-1]].shape()[3]
    inspected = inspect_run(tmp_path / "run")
    assert inspected.attributions and "says" in inspected.answer


def test_a_broken_file_stops_a_training_with_its_name(tmp_path, capsys):
    written(tmp_path / "data", [*members(6), ("dog/broken.png", b"x")])
    command = ["train", "images", "--data", str(tmp_path / "data"), "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(command) != 0
    assert "dog/broken.png" in capsys.readouterr().err
