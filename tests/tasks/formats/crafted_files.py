"""Files of strangers, made to break a reader: by reader, the task that reads them and their bytes by name.

Every number and shape in them is stated by the file alone; nothing here is copied from a real attack.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image
from scipy.sparse import csr_matrix

DIGITS, HUGE = "1" * 5000, "1" + "0" * 400
NODES, WIDTH = 11, 3

TURN = '{"system_transcript": "", "transcript": "hi there", "turn_label": [["food", "thai"]]}'


def dialogue(turns=TURN, before="", key="dialogue"):
    return f'[{{{before}"{key}": [{turns}]}}]'


WOZ = {
    "an escaped key": dialogue(key="dialog\\u0075e"),
    "a list of that name inside": dialogue(before='"x": {"dialogue": [1, 2, 3]}, '),
    "the key twice": dialogue(before='"dialogue": [1, 2, 3], '),
    "that key in a text": dialogue(before='"t": "\\"dialogue\\": [1]", '),
    "a number of 5,000 digits": dialogue(before=f'"n": {DIGITS}, '),
    "a turn of 5,000 digits": dialogue(DIGITS),
    "deep": '[{"dialogue":' + "[" * 100_000,
    "half a character": dialogue(TURN.replace("hi there", "\\ud800 hi")),
    "escape signs": dialogue(TURN.replace("thai", "\\u001b[31mred\\u202e")),
    "no number": "[NaN]",
    "a comma too many": dialogue(TURN + ","),
    "a key without quotes": dialogue().replace('"dialogue"', "dialogue"),
}


def coco(box="[0, 0, 4, 4]", width="8", more=""):
    image = f'{{"id": 1, "file_name": "a.png", "width": {width}, "height": 8}}'
    annotation = f'{{"id": 1, "image_id": 1, "category_id": 1, "bbox": {box}}}'
    categories = '[{"id": 1, "name": "x"}]'
    return f'{{"images": [{image}], "annotations": [{annotation}], "categories": {categories}{more}}}'


COCO = {
    "a number of 5,000 digits": coco(more=f', "n": {DIGITS}'),
    "a box of 10^400": coco(box=f"[0, 0, {HUGE}, 4]"),
    "a width of 10^400": coco(width=HUGE),
    "a box of 1e999": coco(box="[0, 0, 1e999, 4]"),
    "deep": '{"images": ' + "[" * 100_000,
}


def picture():
    content = io.BytesIO()
    Image.new("RGB", (8, 8)).save(content, "PNG")
    return content.getvalue()


def arrays(**changed):
    """The arrays of a small graph, some of them changed."""
    given = {
        "edges": np.array([[0, 1, 2], [1, 2, 3]]),
        "x_indptr": np.arange(NODES + 1),
        "x_indices": np.zeros(NODES, int),
        "x_data": np.ones(NODES, np.float32),
        "x_shape": np.array([NODES, WIDTH]),
        "y": np.arange(NODES) % 2,
        "train": np.arange(5),
        "val": np.array([5, 6]),
        "test": np.array([7, 8]),
    }
    return {**given, **changed}


def npz(method=zipfile.ZIP_DEFLATED, **changed):
    """An npz; bytes are written as they are in the place of an array."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, array in arrays(**changed).items():
            member = io.BytesIO()
            if isinstance(array, bytes):
                member.write(array)
            else:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", member.getvalue())
    return content.getvalue()


def header(shape, kind="<f4"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64)


def flagged(raw, central, local, bits, length=2):
    """A zip whose headers have other bits: `central`, `local` are places in the two kinds of header."""
    changed = bytearray(raw)
    for mark, place in ((b"PK\x01\x02", central), (b"PK\x03\x04", local)):
        at = raw.find(mark)
        while at >= 0:
            changed[at + place : at + place + length] = struct.pack("<H", bits)
            at = raw.find(mark, at + 1)
    return bytes(changed)


NPZ = {
    "a password": flagged(npz(), 8, 6, 1),
    "an unknown way of packing": flagged(npz(), 10, 8, 99),
    "a scalar x_shape": npz(x_shape=np.array(8)),
    "an x_shape of two axes": npz(x_shape=np.array([[8, 2], [1, 1]])),
    "an x_shape of texts": npz(x_shape=np.array(["8", "2"])),
    "a scalar indptr": npz(x_indptr=np.array(3)),
    "an indptr of two axes": npz(x_indptr=np.zeros((9, 2), int)),
    "indices of two axes": npz(x_indices=np.zeros((NODES, 2), int)),
    "data of two axes": npz(x_data=np.ones((NODES, 3))),
    "edges of three axes": npz(edges=np.zeros((2, 3, 4), int)),
    "scalar nodes of a split": npz(train=np.array(3)),
    "a shape of 10^15": npz(x_data=header((10**15,))),
    "a shape of 60 digits": npz(x_data=header((10**60,))),
    "a deep shape": npz(y=header("(" * 3000 + ")" * 3000)),
    "no array": npz(y=b"plain words"),
    "another version": npz(y=b"\x93NUMPY\x09\x00" + b"x" * 50),
    "a table of fields": npz(y=np.zeros(NODES, [("a", "i4")])),
    "the largest class": npz(y=np.full(NODES, 2**64 - 1, np.uint64)),
    "numbers beyond float32": npz(x_data=np.full(NODES, 1e300)),
    "cut off": npz()[:-40],
}


def words(nodes, width=WIDTH):
    return csr_matrix(np.ones((nodes, width), np.float32))


def planetoid(index="8\n9\n10\n", **changed):
    """Planetoid's eight files of a small graph, some of them changed."""
    hot = np.eye(2, dtype=np.int32)[np.arange(NODES) % 2]
    parts = {
        "x": words(5),
        "tx": words(3),
        "allx": words(8),
        "y": hot[:5],
        "ty": hot[8:],
        "ally": hot[:8],
        "graph": {node: [(node + 1) % NODES] for node in range(NODES)},
    }
    files = {
        f"ind.c.{name}": part if isinstance(part, bytes) else pickle.dumps(part, 2)
        for name, part in {**parts, **changed}.items()
    }
    return {**files, "ind.c.test.index": index.encode()}


def csr(**changed):
    return {"shape": (8, 3), "indptr": np.arange(9), "indices": np.zeros(8, int), "data": np.ones(8), **changed}


def itself():
    found = {}
    found[0] = found
    return found


PLANETOID = {
    "a number of neighbours": planetoid(graph={0: 1, 1: 2}),
    "no neighbours": planetoid(graph={0: None}),
    "nodes that are texts": planetoid(graph={"a": [1]}),
    "neighbours that are texts": planetoid(graph={0: ["a"]}),
    "neighbours in neighbours": planetoid(graph={0: [[1]]}),
    "a neighbour of 10^30": planetoid(graph={0: [10**30]}),
    "a neighbour that is no number": planetoid(graph={0: [float("nan")]}),
    "a graph of itself": planetoid(graph=itself()),
    "a list": planetoid(graph=[1, 2]),
    "a shape that is a number": planetoid(allx=csr(shape=5)),
    "a shape of texts": planetoid(allx=csr(shape=("a", "b"))),
    "a shape of three numbers": planetoid(allx=csr(shape=(1, 2, 3))),
    "a scalar indptr": planetoid(allx=csr(indptr=3)),
    "data of dictionaries": planetoid(allx=csr(data=[{}] * 8)),
    "data of texts": planetoid(allx=csr(data=["x"] * 8)),
    "other widths": planetoid(tx=words(3, 5)),
    "classes without width": planetoid(ally=np.zeros((8, 0), np.int32)),
    "classes of one axis": planetoid(ally=np.arange(8)),
    "a test node far away": planetoid(index="8\n9\n99999999999\n"),
    "no test node": planetoid(index="\n# none\n"),
    "bytes that are not there": planetoid(graph=b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x."),
    "a memo of 2^31": planetoid(graph=b"\x80\x02Nr\xff\xff\xff\x7f."),
    "100,000 levels": planetoid(graph=b"\x80\x02" + b"}(K\x00" * 100_000 + b"}" + b"u" * 100_000 + b"."),
}


def tar(size):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("x/a.png")
        member.pax_headers = {"size": size}
        archive.addfile(member)
    return content.getvalue()


def large_in_base_256():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("x/a.png"))
    raw = bytearray(content.getvalue())
    raw[124:136] = b"\x80" + (2**87).to_bytes(11, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw)


def nameless_zip():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.png", b"x")
    return content.getvalue().replace(b"x.png", b"\0.png")


ARCHIVES = {
    "a.tar": {"a size of 10^400": tar(HUGE), "a negative size": tar("-1"), "a size of 2^87": large_in_base_256()},
    "a.zip": {"a member without a name": nameless_zip()},
}


def wav(rate=8000, bits=16, channels=1, samples=b"\0\1" * 800, kind=1, stated=None, align=None):
    form = struct.pack("<HHIIHH", kind, channels, rate, 0, channels * bits // 8 if align is None else align, bits)
    length = len(samples) if stated is None else stated
    body = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", length) + samples
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


WAV = {
    "no rate": wav(rate=0),
    "no channels": wav(channels=0),
    "65,535 bits": wav(bits=65535),
    "odd bytes": wav(samples=b"\0" * 801),
    "4 GiB stated": wav(stated=2**32 - 1),
    "no frame": wav(align=0),
    "floats that are none": wav(kind=3, bits=32, samples=b"\xff" * 800),
    "100,000 empty chunks": b"RIFF\xff\xff\xff\xffWAVE" + b"junk\0\0\0\0" * 100_000,
    "another kind": wav(kind=2),
}

JSON_LINES = {
    "a number of 5,000 digits": f'{{"text": "a", "label": {DIGITS}}}\n',
    "deep": "[" * 100_000 + "\n",
    "labels that are no numbers": '{"text": "a", "label": NaN}\n{"text": "b", "label": 1e999}\n',
    "half characters": '{"text": "\\ud800", "label": "a"}\n{"text": "x", "label": "\\udfff"}\n' * 20,
}

RECORDINGS = [f"{digit}_x_{take}.wav" for digit in range(2) for take in range(6)]


def cases():
    """Reader and what is odd: the task, its files by name, and which of them is given."""
    for odd, text in WOZ.items():
        yield f"woz: {odd}", "dialogue", {"a.json": text.encode()}, "a.json"
    ontology = f'{{"informable": {{"food": ["thai"], "x": {DIGITS}}}}}'
    files = {"train.json": f'[{{"dialogue": [{TURN}]}}]'.encode(), "ontology.json": ontology.encode()}
    yield "ontology: a number of 5,000 digits", "dialogue", files, ""
    for odd, text in COCO.items():
        yield f"coco: {odd}", "detect", {"a.json": text.encode(), "a.png": picture()}, ""
    for odd, content in NPZ.items():
        yield f"npz: {odd}", "graph", {"g.npz": content}, "g.npz"
    for odd, files in PLANETOID.items():
        yield f"planetoid: {odd}", "graph", files, ""
    for name, archives in ARCHIVES.items():
        for odd, content in archives.items():
            yield f"{name}: {odd}", "images", {name: content}, name
    for odd, content in WAV.items():
        yield f"wav: {odd}", "speech", dict.fromkeys(RECORDINGS, content), ""
    for odd, text in JSON_LINES.items():
        yield f"json lines: {odd}", "classify", {"a.jsonl": text.encode("utf-8", "surrogatepass")}, "a.jsonl"
    gold = {"x.src-tgt": b"a b ||| c d\n" * 6, "x.gold": b"1-1 \xff\n"}
    yield "gold: not UTF-8", "align", gold, "x.src-tgt"
    asked = json.dumps({"image": "a.png", "question": "what", "answer": 1}).replace("1", DIGITS)
    yield "questions: a number of 5,000 digits", "ask", {"q.jsonl": asked.encode(), "a.png": picture()}, ""
