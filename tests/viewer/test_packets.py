"""Codes, tiles, rows and thumbnails against loops written from their definition."""

import json
import math
import struct

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard_workbench.viewer import codes, packets
from regard_workbench.viewer.cache import ByteCache
from regard_workbench.viewer.packets import MapRequest, Packets
from regard_workbench.viewer.page_model import PageModel, Variant
from tests.viewer.stand_ins import Seen, StandIn, random_map, random_pair, small_page_model


def code_by_definition(weight):
    if weight == 0:
        return 0
    return max(1, min(255, round(255 + 254 * math.log10(weight) / 6)))


def difference_by_definition(value):
    if value == 0:
        return 128
    steps = round(127 + 126 * math.log10(abs(value)) / 4)
    return 128 if steps < 1 else 128 + int(math.copysign(min(steps, 127), value))


def test_weights_get_the_code_of_the_definition_and_come_back_within_half_a_step():
    weights = np.array([0, 1e-12, 1e-6, 3e-5, 0.0123, 0.25, 0.5, 0.999, 1], np.float32)
    made = codes.encode(weights)
    assert made.tolist() == [code_by_definition(float(weight)) for weight in weights]
    back = codes.decode(made)
    assert back[0] == 0 and back[-1] == 1
    assert np.abs(np.log10(back[2:] / weights[2:])).max() <= 6 / 254 / 2 + 1e-6


def test_weights_outside_0_to_1_have_a_code():
    assert codes.encode(np.array([math.nan, 7.0, math.inf, -0.5], np.float32)).tolist() == [0, 255, 255, 0]


def test_every_code_survives_decoding_and_encoding():
    every = np.arange(256, dtype=np.uint8)
    assert (codes.encode(codes.decode(every)) == every).all()
    assert (codes.encode_difference(codes.decode_difference(every[1:])) == every[1:]).all()


def test_differences_get_the_code_of_the_definition():
    values = np.array([0, 1e-5, -1e-5, 1e-4, -1e-4, 0.03, -0.03, 0.7, -1, 1], np.float32)
    assert codes.encode_difference(values).tolist() == [difference_by_definition(float(v)) for v in values]
    assert codes.encode_difference(np.array([math.nan], np.float32)).tolist() == [128]


def tile(found):
    width, height, flags = struct.unpack_from("<HHB", found)
    assert found[5:8] == b"\0\0\0"
    assert len(found) == 8 + width * height
    return np.frombuffer(found, np.uint8, offset=8).reshape(height, width), flags


def pooled_by_loops(weights, size, strongest):
    queries, keys = weights.shape
    return [
        [strongest([float(w) for w in weights[y : y + size, x : x + size].flatten()]) for x in range(0, keys, size)]
        for y in range(0, queries, size)
    ]


@pytest.mark.parametrize("level", [0, 1, 2, 3, 5])
def test_a_tile_holds_the_strongest_weight_of_each_cell(level):
    one = random_map(3, 37, 53)
    made = Packets(PageModel("x", [Variant("v", Seen([StandIn("layer.0", [one])]))]))
    found, flags = tile(made.tile(MapRequest(head=2), level, 0, 0))
    expected = [[code_by_definition(w) for w in row] for row in pooled_by_loops(one[2], 2**level, max)]
    assert found.tolist() == expected and flags == 0


@pytest.mark.parametrize("level", [0, 1, 3])
def test_a_difference_keeps_the_largest_magnitude_with_its_sign(level):
    page_model = small_page_model(layers=2, heads=3, length=29, variants=2)
    first, second = (page_model.variants[n].seen["encoder.layer.1.attention"].given[0][1] for n in (0, 1))
    found, _ = tile(Packets(page_model).tile(MapRequest(0, 1, 1, minus=1), level, 0, 0))
    largest = pooled_by_loops(first - second, 2**level, lambda cell: max(cell, key=abs))
    assert found.tolist() == [[difference_by_definition(value) for value in row] for row in largest]


def test_tiles_join_to_the_whole_map():
    one = random_map(1, 300, 523)
    made = Packets(PageModel("x", [Variant("v", Seen([StandIn("layer.0", [one])]))]))
    parts = [[tile(made.tile(MapRequest(), 0, x, y))[0] for x in range(3)] for y in range(2)]
    assert [part.shape for part in parts[1]] == [(44, 256), (44, 256), (44, 11)]
    assert (np.block(parts) == codes.encode(one[0].numpy())).all()


def test_a_map_too_large_to_be_computed_whole_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr(packets, "BAND", 64 * 101)
    one = random_map(1, 128, 101)
    site = StandIn("layer.0", [one])
    made = Packets(PageModel("x", [Variant("v", Seen([site]))]))
    found, flags = tile(made.tile(MapRequest(), 3, 0, 0))
    assert flags == 1 and found.shape == (16, 13)
    assert sum(site.asked) == 64  # half of the rows
    whole = np.array(pooled_by_loops(one[0], 8, max))
    assert (found <= codes.encode(whole.astype(np.float32))).all()
    assert tile(made.tile(MapRequest(), 0, 0, 0))[1] == 0


def test_scrolling_sideways_computes_nothing_again():
    site = StandIn("layer.0", [random_map(1, 7, 700)])
    made = Packets(PageModel("x", [Variant("v", Seen([site]))]))
    for x in range(3):
        made.tile(MapRequest(), 0, x, 0)
    assert len(site.asked) == 1


def test_rows_and_columns_are_the_exact_weights():
    query, key = random_pair(5, 31)
    site = StandIn("layer.0", [(query, key)], causal=True)
    made = Packets(PageModel("x", [Variant("v", Seen([site]))]))
    scores = (query @ key.mT / 8**0.5).masked_fill(~torch.ones(31, 31).tril().bool(), -torch.inf)
    expected = scores.softmax(-1)[0, 3].numpy()
    np.testing.assert_allclose(made.row(MapRequest(head=3), 17), expected[17], atol=1e-6)
    np.testing.assert_allclose(made.column(MapRequest(head=3), 5), expected[:, 5], atol=1e-6)


def test_the_strongest_keys_of_each_row():
    one = random_map(2, 5, 13)
    made = Packets(PageModel("x", [Variant("v", Seen([StandIn("layer.0", [one])]))])).top(MapRequest(head=1), 3)
    values, keys = one[1].topk(3)
    assert made["keys"] == keys.tolist()
    np.testing.assert_allclose(made["weights"], values, atol=1e-6)


def test_the_overview_has_a_picture_for_every_head():
    page_model = small_page_model(layers=2, heads=3, length=7)
    line, _, rest = Packets(page_model).overview(0, -1).partition(b"\n")
    header = json.loads(line)
    assert header == {"size": 48, "sampled": False, "heads": [[s, h] for s in range(2) for h in range(3)]}
    pictures = np.frombuffer(rest, np.uint8).reshape(6, 48, 48)
    one = codes.encode(page_model.variants[0].seen["encoder.layer.1.attention"].given[0][2].numpy())
    grown = [[one[y * 7 // 48, x * 7 // 48] for x in range(48)] for y in range(48)]
    assert (pictures[5] == grown).all()


def test_a_step_of_decoding_is_a_call_and_an_encoder_stays_at_its_only_one():
    steps = [random_map(2, 5, 5), random_map(2, 1, 6, seed=1), random_map(2, 1, 7, seed=2)]
    seen = Seen([StandIn("encoder.0", [random_map(2, 4, 4)]), StandIn("decoder.0", steps)])
    made = Packets(PageModel("x", [Variant("v", seen)]))
    assert made.shape(MapRequest(site=1, call=1)) == (1, 6)
    assert made.shape(MapRequest(site=1)) == (1, 7)
    assert made.shape(MapRequest(site=0, call=2)) == (4, 4)


def test_the_overview_of_a_generation_joins_its_steps_to_one_map():
    steps = [random_map(2, 2, 2), random_map(2, 1, 3, seed=1), random_map(2, 1, 4, seed=2)]
    seen = Seen([StandIn("layer.0", steps)])
    made = Packets(PageModel("x", [Variant("v", seen)], generation={"prompt": 2, "steps": []}))
    whole = np.zeros((4, 4), np.float32)
    whole[:2, :2], whole[2, :3], whole[3] = steps[0][1], steps[1][1, 0], steps[2][1, 0]
    small = made.thumbs(0, 0, made.shown(MapRequest()))[1]
    assert (small[::12, ::12] == codes.encode(whole)).all() and (
        small == small[::12, ::12].repeat(12, 0).repeat(12, 1)
    ).all()
    assert made.shown(MapRequest(call=1)) == 1 and (made.thumbs(0, 0, 1)[1] == made.thumbs(0, 0, 1)[1][0]).all()


@pytest.mark.parametrize(
    "asked",
    [MapRequest(variant=1), MapRequest(site=9), MapRequest(head=3), MapRequest(minus=1), MapRequest(variant=-1)],
)
def test_requests_for_missing_maps_are_refused(asked):
    with pytest.raises(BadValue):
        Packets(small_page_model()).shape(asked)


@pytest.mark.parametrize(("level", "x", "y"), [(0, 1, 0), (0, 0, 1), (20, 1, 0), (3, 10**9, 0)])
def test_a_tile_off_the_map_is_refused(level, x, y):
    with pytest.raises(BadValue, match="no tile"):
        Packets(small_page_model()).tile(MapRequest(), level, x, y)


def test_maps_of_different_sizes_have_no_difference():
    seen = [Seen([StandIn("layer.0", [random_map(1, size, size)])]) for size in (5, 7)]
    made = Packets(PageModel("x", [Variant("a", seen[0]), Variant("b", seen[1])]))
    with pytest.raises(BadValue, match="different sizes"):
        made.tile(MapRequest(minus=1), 0, 0, 0)


def test_the_cache_stays_within_its_bytes():
    kept = ByteCache(100)
    made = [kept.get(number, lambda: bytes(30), len) for number in range(7)]
    assert len(made) == 7 and len(kept) == 3 and kept.bytes == 90
    kept.get(4, lambda: pytest.fail("it is still there"), len)
    assert kept.get("huge", lambda: bytes(1000), len) == bytes(1000) and len(kept) == 3


def test_a_failure_is_not_cached():
    kept = ByteCache()

    def fail():
        raise BadValue("no")

    with pytest.raises(BadValue):
        kept.get(1, fail, len)
    assert kept.get(1, lambda: b"now", len) == b"now"
