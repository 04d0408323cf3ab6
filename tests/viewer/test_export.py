"""The page as one file: its content, its size, and that labels stay text."""

import base64
import hashlib
import json
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

from regard.errors import BadType, BadValue
from regard_workbench import viewer
from regard_workbench.viewer.codes import encode
from regard_workbench.viewer.page_model import PageModel, Variant
from regard_workbench.viewer.payload import payload
from tests.viewer.stand_ins import Seen, StandIn, random_map, random_pair, small_page_model

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "]]>",
    "&lt;",
    "\u2028",
    '"><img src=x onerror=alert(1)>',
    "\\",
]


class Parts(HTMLParser):
    """Every element of a page with its content, as a browser's tokenizer splits it."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append([tag, dict(attributes), ""])

    def handle_endtag(self, tag):
        self.found.append(["end", {}, ""])

    def handle_data(self, data):
        if self.found:
            self.found[-1][2] += data


def parsed(path):
    reader = Parts()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.found


def contents(path):
    """The JSON and the bytes of an exported page."""
    scripts = {one[1].get("id"): one[2] for one in parsed(path) if one[0] == "script"}
    data = json.loads(scripts["regard-data"])
    return data, zlib.decompress(base64.b64decode(scripts["regard-bytes"]))


def test_a_small_page_is_stored_whole(tmp_path):
    page_model = small_page_model(layers=2, heads=3, length=7)
    data, content = contents(viewer.export(page_model, tmp_path / "page.html"))
    assert data["scene"]["embedded"] is True and len(data["parts"]) == 6
    for part in data["parts"]:
        assert part["kind"] == "full" and part["call"] == 0 and part["size"] == 49
        name = f"encoder.layer.{part['site']}.attention"
        one = encode(page_model.variants[0].seen[name].given[0][part["head"]].numpy())
        assert content[part["at"] : part["at"] + 49] == one.tobytes()
    (overview,) = data["overview"]
    assert overview["heads"] == [[s, h] for s in range(2) for h in range(3)] and overview["size"] == 48
    assert len(content) >= overview["at"] + 6 * 48 * 48
    (facts,) = data["facts"]
    assert len(facts["sites"]) == 2 and sorted(facts["order"]["entropy"]) == overview["heads"]


def test_hostile_tokens_stay_text(tmp_path):
    path = viewer.export(small_page_model(length=7, labels=HOSTILE), tmp_path / "page.html")
    found = parsed(path)
    assert [one[0] for one in found].count("script") == 3 and "img" not in [one[0] for one in found]
    data, _ = contents(path)
    assert data["scene"]["tokens"]["tokens"] == HOSTILE
    text = path.read_text(encoding="utf-8")
    assert "alert(1)</script>" not in text and "<!--" not in text


def test_a_hostile_title_stays_a_title(tmp_path):
    page_model = small_page_model()
    page_model.title = "</title><script>alert(1)</script>"
    found = parsed(viewer.export(page_model, tmp_path / "page.html"))
    assert [one[0] for one in found].count("script") == 3


def test_the_policy_names_the_one_script_by_its_hash_and_allows_no_other(tmp_path):
    path = viewer.export(small_page_model(), tmp_path / "page.html")
    found = parsed(path)
    metas = [one[1] for one in found if one[0] == "meta" and one[1].get("http-equiv")]
    (policy,) = [meta["content"] for meta in metas]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy.replace("https", "")
    scripts = [one[2] for one in found if one[0] == "script" and "type" not in one[1]]
    styles = [one[2] for one in found if one[0] == "style"]
    assert len(scripts) == len(styles) == 1
    for text, rule in ((scripts[0], "script-src"), (styles[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy
    kinds = [one[0] for one in found]
    assert kinds.index("style") > kinds.index("meta") and "link" not in [k for k in kinds if k == "script"]
    assert not [one for one in found if one[1].get("src") or one[1].get("href", "data:").startswith("http")]
    assert not [one for one in found if any(name.startswith("on") or name == "style" for name in one[1])]


def test_twelve_layers_of_twelve_heads_over_512_tokens_fit_into_five_megabytes(tmp_path):
    """Random maps hardly compress; those of real models are smaller."""
    sites = [StandIn(f"layer.{n}", [random_pair(12, 512, 16, seed=n)]) for n in range(12)]
    tokens = [f"word{n * 7919 % 512}" for n in range(512)]
    path = viewer.export(Seen(sites), tmp_path / "page.html", tokens=tokens)
    assert path.stat().st_size <= 5_000_000
    data, content = contents(path)
    tops = [part for part in data["parts"] if part["kind"] == "top"]
    assert len(tops) == 144 and all(part["top"] == 8 and part["size"] == 512 * 8 * 3 for part in tops)
    assert any(part["kind"] == "full" for part in data["parts"])
    part = tops[77]
    weights = sites[part["site"]].weights(heads=[part["head"]])[0, 0]
    values, keys = weights.topk(8)
    for row in (0, 300, 511):
        at = part["at"] + row * 24
        read = [struct.unpack_from("<HB", content, at + 3 * rank) for rank in range(8)]
        assert [key for key, _ in read] == keys[row].tolist()
        assert [code for _, code in read] == encode(values[row].numpy()).tolist()


def test_requested_heads_are_stored_whole(tmp_path):
    sites = [StandIn(f"layer.{n}", [random_map(3, 211, 211, seed=n)]) for n in range(2)]
    path = viewer.export(Seen(sites), tmp_path / "page.html", heads=[(1, 2)], room=600_000)
    data, content = contents(path)
    (full,) = [part for part in data["parts"] if part["kind"] == "full"]
    assert (full["site"], full["head"]) == (1, 2)
    assert content[full["at"] : full["at"] + 211**2] == encode(sites[1].given[0][2].numpy()).tobytes()
    assert sum(part["kind"] == "top" for part in data["parts"]) == 6


def test_only_requested_sites_are_stored(tmp_path):
    data, _ = contents(viewer.export(small_page_model(layers=3), tmp_path / "page.html", sites=[1]))
    assert {part["site"] for part in data["parts"]} == {1}


def test_a_missing_head_is_refused(tmp_path):
    with pytest.raises(BadValue, match="--heads"):
        viewer.export(small_page_model(), tmp_path / "page.html", heads=[(0, 9)])
    assert not list(tmp_path.iterdir())


def test_all_steps_of_a_generation_are_stored():
    maps = [random_map(2, 3, 3), random_map(2, 1, 4, seed=1), random_map(2, 1, 5, seed=2)]
    page_model = PageModel("x", [Variant("v", Seen([StandIn("layer.0", maps)]))], generation={"prompt": 3, "steps": []})
    made = payload(page_model)
    assert {(part["call"], part["size"]) for part in made.data["parts"]} == {(0, 9), (1, 4), (2, 5)}
    assert {one["call"] for one in made.data["overview"]} == {-1, 0, 1, 2}
    assert [call["start"] for call in made.data["scene"]["sites"][0]["calls"]] == [0, 3, 4]


def test_a_long_generation_stores_what_fits():
    maps = [random_map(4, 3, 3), *(random_map(4, 1, 3 + n, seed=n) for n in range(1, 40))]
    sites = [StandIn(f"layer.{n}", maps) for n in range(3)]
    page_model = PageModel("x", [Variant("v", Seen(sites))], generation={"prompt": 3, "steps": []})
    made = payload(page_model, room=450_000, heads=[(2, 3)])
    kept = {(part["site"], part["head"], part["call"]) for part in made.data["parts"]}
    assert {(2, 3, call) for call in range(40)} <= kept and len(kept) < 3 * 4 * 40
    assert [one["call"] for one in made.data["overview"]] == [-1]
    assert len(json.dumps(made.data["parts"])) + len(made.packed()) * 4 / 3 < 100_000


def test_a_row_with_fewer_keys_than_stored_has_empty_entries():
    page_model = PageModel("x", [Variant("v", Seen([StandIn("layer.0", [random_pair(2, 300)], causal=True)]))])
    made = payload(page_model, room=600_000)
    part = next(part for part in made.data["parts"] if part["kind"] == "top")
    first = np.frombuffer(bytes(made.content), np.uint8, 24, part["at"]).reshape(8, 3)
    assert first[0].tolist() == [0, 0, 255] and not first[1:].any()


@pytest.mark.parametrize("path", ["page.txt", "page", "page.html.exe"])
def test_the_name_of_a_page_ends_in_html(tmp_path, path):
    with pytest.raises(BadValue, match="html"):
        viewer.export(small_page_model(), tmp_path / path)


def test_an_object_that_is_not_a_seen_is_refused(tmp_path):
    with pytest.raises(BadType, match=r"regard\.observe"):
        viewer.export([1, 2], tmp_path / "page.html")
    with pytest.raises(BadType, match="tokens"):
        viewer.export(Seen([StandIn("a", [random_map(1, 3, 3)])]), tmp_path / "page.html", tokens="abc")
    with pytest.raises(BadValue, match="nothing was observed"):
        viewer.export(Seen([]), tmp_path / "page.html")


def test_the_page_contains_no_foreign_url(tmp_path):
    text = viewer.export(small_page_model(), tmp_path / "page.html").read_text(encoding="utf-8")
    assert not [a for a in re.findall(r"https?://[\w.]+", text) if a != "http://www.w3.org"]
