"""Labels and axes of sites, and the scene of a page."""

import json

import numpy as np
import pytest
import torch

import regard
from regard.errors import BadValue
from regard.observation.analysis.flow import flow
from regard.observation.analysis.rollout import rollout
from regard_workbench.viewer.page_model import PageModel, Variant, page_model_of
from regard_workbench.viewer.requests import NotFound, RequestHandler
from tests.viewer.stand_ins import Seen, StandIn, random_map, small_page_model


def scene_of(sites, labels=None, **options):
    return PageModel("x", [Variant("v", Seen(sites), labels or {})], **options).scene()


def test_layers_are_numbered_as_their_paths_are():
    names = ["bert.encoder.layer.0.attention.self", "bert.encoder.layer.11.attention.self"]
    found = scene_of([StandIn(name, [random_map(2, 3, 3)]) for name in names])
    assert [site["label"] for site in found["sites"]] == ["layer 0", "layer 11"]
    assert {site["group"] for site in found["sites"]} == {"layers"}


def test_a_module_that_attends_again_and_again_is_numbered_by_its_calls():
    names = ["albert.groups.0.attention", "albert.groups.0.attention#2", "albert.groups.0.attention#3"]
    found = scene_of([StandIn(name, [random_map(2, 3, 3)]) for name in names])
    assert [site["label"] for site in found["sites"]] == ["layer 0", "layer 1", "layer 2"]


def test_two_attentions_of_a_layer_have_different_labels():
    names = ["layers.0.attention.memory", "layers.0.attention.history", "layers.1.attention.memory"]
    found = scene_of([StandIn(name, [random_map(2, 3, 3)]) for name in names])
    assert [site["label"] for site in found["sites"]] == ["layer 0 memory", "layer 0 history", "layer 1"]


def test_a_model_that_reads_and_writes_has_three_kinds_of_attention():
    labels = {"tokens": list("abcde"), "targets": list("xyz"), "read": ["<s>", "x", "y"]}
    sites = [
        StandIn("encoder.block.0.layer.0.SelfAttention", [random_map(2, 5, 5)]),
        StandIn("decoder.block.0.layer.0.SelfAttention", [random_map(2, 3, 3)]),
        StandIn("decoder.block.0.layer.1.EncDecAttention", [random_map(2, 3, 5)]),
    ]
    found = scene_of(sites, labels, two_sides=True)
    assert [site["label"] for site in found["sites"]] == ["encoder 0", "decoder 0", "cross 0"]
    assert [(site["rows"], site["columns"]) for site in found["sites"]] == [
        ("tokens", "tokens"),
        ("read", "read"),
        ("targets", "tokens"),
    ]
    assert [site["cross"] for site in found["sites"]] == [False, False, True]


def test_a_memory_has_slots_and_lists_write_and_read_sites():
    shape = {"rows": "position", "columns": "slot"}
    sites = [StandIn(f"machine.tape.{name}", [random_map(1, 4, 6)], **shape) for name in ("write", "read")]
    found = scene_of(sites, {"steps": [f"step {n}" for n in range(4)]})
    assert found["memory"] == {"write": [0], "read": [1]} and found["start"] == "memory"
    assert found["sites"][0]["columns"] == "slots" and found["tokens"]["slots"][-1] == "slot 5"


def test_labels_that_are_too_few_are_filled_with_numbers():
    found = scene_of([StandIn("layer.0", [random_map(1, 5, 5)])], {"tokens": ["a", "b"]})
    assert found["tokens"]["tokens"] == ["a", "b", "token 2", "token 3", "token 4"]


def test_consecutive_calls_start_where_the_last_ended():
    maps = [random_map(1, 4, 4), random_map(1, 4, 8, seed=1), random_map(1, 2, 6, seed=2)]
    found = scene_of([StandIn("layer.0", maps)], {"tokens": [str(n) for n in range(10)]})
    assert [call["start"] for call in found["sites"][0]["calls"]] == [0, 4, 8]


def test_keys_dropped_by_a_cache_have_weight_0():
    """A window of 3: the third step passes keys 2, 3 and 4 of five positions."""
    maps = [random_map(2, 3, 3), random_map(2, 1, 3, seed=1), random_map(2, 1, 3, seed=2)]
    seen = Seen([StandIn("layer.0", maps)])
    page_model = PageModel("x", [Variant("v", seen)], generation={"prompt": 3, "steps": []})
    assert [call["keys"] for call in page_model.scene()["sites"][0]["calls"]] == [3, 4, 5]
    site = page_model.site(0, 0)
    assert site.weights(call=2).shape == (1, 2, 1, 5)
    torch.testing.assert_close(site.weights(call=2)[0, :, 0], torch.nn.functional.pad(maps[2][:, 0], (2, 0)))
    assert site.columns_of([1], call=2).abs().sum() == 0
    torch.testing.assert_close(site.columns_of([4], call=2)[0, :, 0, 0], maps[2][:, 0, 2])
    assert site.summary(top=1, call=2).top_keys[0, :, 0, 0].tolist() == (maps[2].argmax(-1)[:, 0] + 2).tolist()
    small = site.pooled(1, 5, call=2)
    torch.testing.assert_close(small[:, 0, 2:], maps[2][:, 0])
    answers = RequestHandler(page_model)
    row = answers.answer("row", {"site": "0", "head": "1", "call": "2", "row": "0"})[1]
    assert len(row) == 5 * 4 and row[:8] == bytes(8)


def test_a_single_query_over_the_input_is_labelled_so():
    found = scene_of([StandIn("attention", [random_map(1, 1, 4)])], {"tokens": list("abcd")})
    assert found["sites"][0]["rows"] == "whole" and found["tokens"]["whole"] == ["the whole input"]


def test_sites_without_readable_weights_are_left_out():
    class Lost(StandIn):
        def shape(self, call=-1):
            return (0, 0, 0, 0)

    found = scene_of([Lost("layer.0", [None]), StandIn("layer.1", [random_map(1, 3, 3)])])
    assert [site["name"] for site in found["sites"]] == ["layer.1"]


def test_another_input_has_its_own_labels():
    seen = small_page_model().variants[0].seen
    page_model = PageModel(
        "x", [Variant("a", seen, {"tokens": list("abcdefg")}), Variant("b", seen, {"tokens": list("hijklmn")})]
    )
    first, second = page_model.scene()["variants"]
    assert "tokens" not in first and second["tokens"]["tokens"] == list("hijklmn")


def test_a_layer_that_only_one_model_has_is_refused():
    both = [Seen([StandIn(f"a.{n}", [random_map(1, 3, 3)]) for n in range(count)]) for count in (3, 2)]
    page_model = PageModel("x", [Variant("three", both[0]), Variant("two", both[1])])
    assert page_model.site(1, 1).name == "a.1"
    with pytest.raises(BadValue, match=r"two has no layer 2. It has layer 0, layer 1"):
        page_model.site(1, 2)


def bert_like(prefix, layers, heads, length=5):
    names = [f"{prefix}encoder.layer.{n}.attention.self" for n in range(layers)]
    return Seen([StandIn(name, [random_map(heads, length, length, n)]) for n, name in enumerate(names)])


@pytest.mark.parametrize("swapped", [False, True])
def test_models_of_another_depth_and_prefix_are_paired_layer_by_layer(swapped):
    """An encoder of 3 layers of 5 heads, and the same kind of encoder inside a classifier, 2 layers of 3 heads."""
    variants = [Variant("bare", bert_like("", 3, 5)), Variant("wrapped", bert_like("bert.", 2, 3))]
    if swapped:
        variants.reverse()
    bare, wrapped = (1, 0) if swapped else (0, 1)
    page_model = PageModel("x", variants)
    scene = page_model.scene()
    assert [site["label"] for site in scene["sites"]] == ["layer 0", "layer 1", "layer 2"]
    assert [site["headsOf"][bare] for site in scene["sites"]] == [5, 5, 5]
    assert [site["headsOf"][wrapped] for site in scene["sites"]] == [3, 3, 0]
    assert [site["heads"] for site in scene["sites"]] == [5, 5, 5]
    assert scene["sites"][1]["namesOf"][wrapped] == "bert.encoder.layer.1.attention.self"
    assert scene["sites"][2]["namesOf"][wrapped] is None
    for layer in range(2):
        assert page_model.site(bare, layer).name == f"encoder.layer.{layer}.attention.self"
        assert page_model.site(wrapped, layer).name == f"bert.encoder.layer.{layer}.attention.self"
    answers = RequestHandler(page_model)
    heads = [json.loads(answers.answer("overview", {"variant": str(v)})[1].split(b"\n")[0])["heads"] for v in (0, 1)]
    assert [len(heads[bare]), len(heads[wrapped])] == [15, 6]
    shared = {"site": "1", "head": "2", "variant": str(bare), "minus": str(wrapped), "row": "4"}
    found = np.frombuffer(answers.answer("row", shared)[1], np.float32)
    np.testing.assert_allclose(found, random_map(5, 5, 5, 1)[2, 4] - random_map(3, 5, 5, 1)[2, 4], atol=1e-6)
    with pytest.raises(BadValue, match=r"wrapped has no layer 2. It has layer 0, layer 1"):
        answers.answer("row", {**shared, "site": "2"})
    with pytest.raises(BadValue, match=r"no head 3 in layer 1 of wrapped. Its heads are 0 to 2"):
        answers.answer("row", {**shared, "head": "3"})
    rolled = np.frombuffer(answers.answer("rollout", {"variant": str(wrapped), "row": "4"})[1], np.float32)
    assert rolled.sum() == pytest.approx(1, abs=1e-5)
    assert len(json.loads(answers.answer("facts", {"variant": str(wrapped)})[1])["sites"]) == 2


def test_sites_that_only_the_second_model_has_follow_their_neighbours():
    two = [
        ["layers.0.self", "layers.0.cross_attn", "layers.1.self"],
        ["layers.0.self", "layers.1.self", "layers.2.self"],
    ]
    seen = [Seen([StandIn(name, [random_map(1, 3, 3)]) for name in names]) for names in two]
    page_model = PageModel("x", [Variant("a", seen[0]), Variant("b", seen[1])])
    assert [place.name for place in page_model.page_sites] == [*two[0], "layers.2.self"]
    assert page_model.sites(0) == [0, 1, 2] and page_model.sites(1) == [0, 2, 3]


def test_layers_under_other_names_are_matched_in_order():
    both = [Seen([StandIn(f"{name}.{n}", [random_map(1, 3, 3)]) for n in range(2)]) for name in "ab"]
    page_model = PageModel("x", [Variant("first", both[0]), Variant("second", both[1])])
    assert page_model.site(1, 1).name == "b.1"


def test_rollout_of_one_layer_is_half_the_row_and_half_itself():
    page_model = small_page_model(layers=1, heads=3, length=7)
    _, content = RequestHandler(page_model).answer("rollout", {"row": "4"})
    expected = 0.5 * page_model.variants[0].seen["encoder.layer.0.attention"].given[0][:, 4].mean(0)
    expected[4] += 0.5
    torch.testing.assert_close(torch.frombuffer(bytearray(content), dtype=torch.float32), expected, atol=1e-6, rtol=0)


def test_rollout_has_no_meaning_between_two_sequences():
    labels = {"tokens": list("abcde"), "targets": list("xyz")}
    seen = Seen([StandIn("cross.0", [random_map(2, 3, 5)])])
    with pytest.raises(NotFound, match="no rollout"):
        RequestHandler(PageModel("x", [Variant("v", seen, labels)], two_sides=True)).answer("rollout", {"row": "0"})


def test_facts_name_patterns_and_give_orders_of_all_heads():
    import json

    eye, back = torch.eye(31), torch.eye(31).roll(-1, 1)
    site = StandIn("layer.0", [torch.stack([eye, back.T @ eye, torch.full((31, 31), 1 / 31)])])
    _, content = RequestHandler(PageModel("x", [Variant("v", Seen([site]))])).answer("facts", {})
    found = json.loads(content)
    (entry,) = found["sites"]
    assert entry["heads"][0]["pattern"] == "diagonal" and entry["heads"][2]["pattern"] == "uniform"
    for order in ("pattern", "entropy", "cluster"):
        assert sorted(found["order"][order]) == [[0, 0], [0, 1], [0, 2]]
    assert found["order"]["entropy"][-1] == [0, 2]


def test_an_observation_is_shown_unchanged():
    import regard

    model = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
    page_model = page_model_of(seen, tokens=list("abcde"))
    scene = page_model.scene()
    assert scene["title"] == "TransformerEncoderLayer" and scene["sites"][0]["heads"] == 4
    _, content = RequestHandler(page_model).answer("row", {"site": "0", "head": "3", "row": "2"})
    row = torch.frombuffer(bytearray(content), dtype=torch.float32)
    q, k, _ = torch.nn.functional.linear(x, model.self_attn.in_proj_weight, model.self_attn.in_proj_bias).chunk(3, -1)
    expected = (q[0, 2, 12:] @ k[0, :, 12:].T / 2).softmax(-1)
    torch.testing.assert_close(row, expected.detach(), atol=1e-6, rtol=0)


def test_concurrent_requests_get_the_same_results_as_sequential_ones():
    from concurrent.futures import ThreadPoolExecutor

    import regard

    layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad(), regard.observe(model) as seen:
        model(torch.randn(1, 37, 16))
    tile = {"level": "0", "x": "0", "y": "0"}
    questions = [
        (path, {"site": str(site), "head": str(head), **more})
        for site in range(2)
        for head in range(4)
        for path, more in (("tile", tile), ("row", {"row": "11"}), ("column", {"key": "7"}), ("top", {"top": "3"}))
    ]
    alone = [RequestHandler(page_model_of(seen)).answer(*question) for question in questions]
    answers = RequestHandler(page_model_of(seen))
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda question: answers.answer(*question), questions * 3))
    assert together == alone * 3


def test_examples_of_a_batch_are_shown_one_by_one():
    torch.manual_seed(3)
    model = torch.nn.MultiheadAttention(12, 3, batch_first=True).eval()
    given = torch.randn(3, 5, 12)
    with torch.no_grad(), regard.observe(model) as seen:
        model(given, given, given)
    page_model = page_model_of(seen, [list("abcde"), list("vwxyz")])
    scene = page_model.scene()
    assert [one["name"] for one in scene["variants"]] == ["example 0", "example 1"] and scene["start"] is None
    assert scene["tokens"]["tokens"] == list("abcde") and scene["variants"][1]["tokens"]["tokens"] == list("vwxyz")
    expected = seen[seen.names()[0]].weights(rows=[2], heads=[1])[:, 0, 0]
    handler = RequestHandler(page_model)
    for variant in (0, 1):
        which = {"variant": str(variant), "site": "0", "head": "1"}
        row = torch.frombuffer(bytearray(handler.answer("row", {**which, "row": "2"})[1]), dtype=torch.float32)
        torch.testing.assert_close(row, expected[variant], atol=1e-6, rtol=0)
        top = json.loads(handler.answer("top", {**which, "top": "2"})[1])
        assert top["keys"][2] == expected[variant].topk(2).indices.tolist()
    assert len(page_model_of(seen).variants) == 3  # without labels every example
    assert len(page_model_of(seen, list("abcde")).variants) == 1  # the labels belong to the first
    with pytest.raises(BadValue, match="lists for 3 examples, got 4"):
        page_model_of(seen, [list("abcde")] * 4)


@pytest.mark.parametrize("kind", ["rollout", "flow"])
def test_a_decoder_is_followed_into_its_encoder(kind):
    labels = {"tokens": list("abcde"), "targets": list("xyz"), "read": list("_xy")}
    sites = [("encoder.0", 5, 5), ("decoder.0.self", 3, 3), ("decoder.0.cross", 3, 5)]
    seen = Seen([StandIn(name, [random_map(2, rows, keys)]) for name, rows, keys in sites])
    page_model = PageModel("x", [Variant("v", seen, labels)], two_sides=True)
    analysis = {"rollout": rollout, "flow": flow}[kind](seen, [2])[0].float()
    handler = RequestHandler(page_model)
    for site, expected in ((1, analysis[:3]), (2, analysis[3:])):
        _, content = handler.answer(kind, {"row": "2", "site": str(site)})
        torch.testing.assert_close(torch.frombuffer(bytearray(content), dtype=torch.float32), expected)
    own = torch.frombuffer(bytearray(handler.answer(kind, {"row": "2", "site": "0"})[1]), dtype=torch.float32)
    expected = {"rollout": rollout, "flow": flow}[kind](seen, [2], layers=["encoder.0"])[0].float()
    torch.testing.assert_close(own, expected)
