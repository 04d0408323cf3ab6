"""Access control and responses of the viewer's server."""

import json
import socket
import struct
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

from regard.errors import BadValue
from regard_workbench.viewer import guard, server
from regard_workbench.viewer.codes import encode
from regard_workbench.viewer.requests import packed
from tests.viewer.requests import PORT, Visitor
from tests.viewer.stand_ins import small_page_model

TILE = "/api/tile?variant=0&site=1&head=2&level=0&x=0&y=0"


@pytest.fixture
def page_model():
    return small_page_model(layers=2, heads=3, length=7, variants=2)


@pytest.fixture
def visitor(page_model):
    return Visitor(page_model)


@pytest.mark.parametrize("target", ["/", "/index.html", "/views/tokens.js", TILE, "/api/scene", "/nothing"])
@pytest.mark.parametrize(
    "cookie", [None, "", "regard-8731=", "regard-8731=wrong", "regard-9999=" + "s" * 43, "x=" + "s" * 43]
)
def test_without_the_secret_nothing_is_answered(visitor, target, cookie):
    found = visitor.ask(target, cookie=cookie)
    assert found.status == 403
    assert b"page</title>" not in found.content or b"regard view" in found.content


@pytest.mark.parametrize("token", ["", "wrong", "s" * 42, "s" * 44, "%F0%9F%98%80", "%00"])
def test_a_wrong_token_opens_nothing_even_with_the_cookie(visitor, token):
    assert visitor.ask(f"/?token={token}").status == 403
    assert visitor.ask(f"/?token={token}", cookie=None).status == 403


def test_a_token_is_accepted_only_in_the_url_of_the_page(visitor):
    assert visitor.ask(f"{TILE}&token={visitor.token()}", cookie=None).status == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:1",
        f"127.0.0.1.evil.example:{PORT}",
        f"[::1]:{PORT + 1}",
        f"::1:{PORT}",
        "",
        f"127.0.0.1:{PORT}@evil.example",
        f"127.0.0.1:{PORT}:1",
        f"[::1{PORT}",
        f"192.168.1.7:{PORT}",
        f"127.0.0.1:{PORT}000000",
        f"127.0.0.1:+{PORT}",
        f"127.0.0.1:{PORT} ",
    ],
)
def test_a_foreign_host_is_refused_even_with_a_cookie(visitor, host):
    assert visitor.ask("/api/scene", host=host).status == 403
    assert visitor.ask(f"/?token={visitor.token()}", host=host).status == 403


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_the_names_of_this_machine_are_its_hosts(visitor, host):
    assert visitor.ask("/api/scene", host=host).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        f"https://127.0.0.1:{PORT}",
        "http://127.0.0.1:8888",
        f"file://127.0.0.1:{PORT}",
        f"http://127.0.0.1:{PORT}.evil.example",
        f"chrome-extension://127.0.0.1:{PORT}",
    ],
)
def test_a_foreign_origin_is_refused(visitor, origin):
    assert visitor.ask("/api/scene", origin=origin).status == 403
    assert visitor.ask("/", origin=origin).status == 403


def test_the_own_origin_is_accepted(visitor):
    assert visitor.ask("/api/scene", origin=f"http://127.0.0.1:{PORT}").status == 200


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "navigate", 403),
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("same-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_fetch_metadata_decides_which_requests_are_accepted(visitor, site, mode, status):
    assert visitor.ask("/", sec_fetch_site=site, sec_fetch_mode=mode).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_only_get_and_head_are_answered(visitor, method):
    assert visitor.ask("/api/scene", method=method).status == 405


@pytest.mark.parametrize("header", [{"content_length": "7"}, {"transfer_encoding": "chunked"}])
def test_a_request_with_a_body_is_refused(visitor, header):
    assert visitor.ask("/api/scene", **header).status == 413


def test_head_has_the_headers_and_no_body(visitor):
    found = visitor.ask("/", method="HEAD")
    assert found.status == 200 and found.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("target", ["/", "/api/scene", TILE, "/nothing", "/api/tile", "/?token=wrong"])
def test_every_response_has_the_security_headers(visitor, target):
    found = visitor.ask(target).headers
    policy = found["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    for rule in ("script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert rule in policy
    assert found["x-content-type-options"] == "nosniff" and found["referrer-policy"] == "no-referrer"
    assert found["cache-control"] == "no-store" and "access-control-allow-origin" not in found


@pytest.mark.parametrize(
    "path",
    [
        "/../guard.py",
        "/..%2fguard.py",
        "/%2e%2e/guard.py",
        "/views/../../server.py",
        "//etc/passwd",
        "/etc/passwd",
        "/\\..\\guard.py",
        "/views",
        "/views/",
        "/index.html/",
        "/index.html%00.js",
        "/.git/config",
        "/api/../index.html",
        "/page/index.html",
        "/INDEX.HTML",
    ],
)
def test_no_path_leads_anywhere_but_to_the_page_s_own_files(visitor, path):
    assert visitor.ask(path).status == 404


def test_error_pages_repeat_nothing_that_was_sent(visitor):
    for target in ("/<script>alert(1)</script>", "/?token=<script>alert(1)</script>", "/api/<b>?x=<i>"):
        found = visitor.ask(target)
        assert found.status in (403, 404)
        assert "alert" not in found.text and "<b>" not in found.text and "<i>" not in found.text
    assert "<script>" not in visitor.ask("/api/tile?site=<script>").text


@pytest.mark.parametrize(
    "value", ["-1", "99", "NaN", "inf", "1e3", "0x1", "", " 1", "1.0", "٣", "9" * 5000, "1" * 11, "null"]
)
@pytest.mark.parametrize("name", ["variant", "site", "head", "level", "x", "y", "minus"])
def test_a_number_out_of_range_is_refused(visitor, name, value):
    words = {"variant": "0", "site": "1", "head": "2", "level": "0", "x": "0", "y": "0", name: value}
    found = visitor.ask("/api/tile?" + "&".join(f"{k}={v}" for k, v in words.items()))
    assert found.status in (400, 413)
    if found.status == 400:
        assert found.json["error"]


@pytest.mark.parametrize(
    "target",
    [
        "/api/tile",
        "/api/row?site=0&head=0",
        "/api/row?site=0&head=0&row=7",
        "/api/column?site=0&head=0&key=7",
        "/api/top?site=0&head=0&top=1000",
        "/api/scene?x=1",
        TILE + "&site=0",
        TILE + "&what=1",
        "/api/overview?variant=2",
        "/api/row?site=0&head=0&row=-1",
    ],
)
def test_a_wrong_request_gets_an_error(visitor, target):
    found = visitor.ask(target)
    assert found.status == 400 and found.headers["content-type"] == "application/json"
    assert len(found.json["error"]) > 10


def test_an_unknown_request_is_not_found(visitor):
    assert visitor.ask("/api/secrets").status == 404
    assert "scene" in visitor.ask("/api/secrets").json["error"]


def test_the_scene_lists_sites_and_variants(visitor):
    scene = visitor.ask("/api/scene").json
    assert scene["title"] == "a small model" and [v["name"] for v in scene["variants"]] == ["variant 0", "variant 1"]
    assert [site["label"] for site in scene["sites"]] == ["layer 0", "layer 1"]
    assert scene["sites"][0]["heads"] == 3 and scene["sites"][0]["calls"] == [{"queries": 7, "keys": 7, "start": 0}]
    assert scene["tokens"]["tokens"] == [f"t{n}" for n in range(7)]
    assert scene["limits"] == {"tile": 256, "thumb": 48, "sampled": True} and scene["embedded"] is False


def test_tiles_rows_and_overview_over_the_wire(visitor, page_model):
    one = page_model.variants[0].seen["encoder.layer.1.attention"].given[0][2].numpy()
    found = visitor.ask(TILE)
    assert found.headers["content-type"] == "application/octet-stream"
    assert struct.unpack_from("<HHB", found.content) == (7, 7, 0)
    assert found.content[8:] == encode(one).tobytes()
    row = np.frombuffer(visitor.ask("/api/row?site=1&head=2&row=4").content, "<f4")
    np.testing.assert_allclose(row, one[4], atol=1e-7)
    column = np.frombuffer(visitor.ask("/api/column?site=1&head=2&key=3").content, "<f4")
    np.testing.assert_allclose(column, one[:, 3], atol=1e-7)
    other = page_model.variants[1].seen["encoder.layer.1.attention"].given[0][2].numpy()
    minus = np.frombuffer(visitor.ask("/api/row?site=1&head=2&row=4&minus=1").content, "<f4")
    np.testing.assert_allclose(minus, one[4] - other[4], atol=1e-7)
    overview = visitor.ask("/api/overview").content
    assert json.loads(overview.partition(b"\n")[0])["heads"][-1] == [1, 2]


def test_hostile_labels_travel_as_json_text_only():
    labels = ["</script><script>alert(1)</script>", "\u202eabc", "\ud800", "a" * 10_000, "\0", "\n", "<!--"]
    visitor = Visitor(small_page_model(length=7, labels=labels))
    found = visitor.ask("/api/scene")
    assert found.headers["content-type"] == "application/json"
    tokens = found.json["tokens"]["tokens"]
    assert tokens[0] == labels[0] and len(tokens[3]) == 200 and tokens[2] == "\ufffd"


def test_an_error_of_the_model_is_reported_and_its_traceback_printed(visitor, page_model, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(page_model.variants[0].seen["encoder.layer.1.attention"], "weights", fail)
    found = visitor.ask(TILE)
    assert found.status == 500 and "ZeroDivisionError" in found.json["error"] and "deep" not in found.text
    assert found.headers["content-security-policy"] and "deep inside" in capsys.readouterr().err


def test_a_remote_host_needs_allow_remote():
    with pytest.raises(BadValue, match="--allow-remote"):
        guard.checked_host("0.0.0.0", allow_remote=False)
    assert guard.checked_host("0.0.0.0", allow_remote=True) == "0.0.0.0"
    for host in ("127.0.0.1", "localhost", "::1", "127.9.8.7"):
        assert guard.checked_host(host, allow_remote=False) == host


def test_a_remote_server_takes_addresses_in_numbers_but_no_foreign_names(page_model):
    visitor = Visitor(page_model, host="0.0.0.0")
    assert visitor.ask("/api/scene", host=f"192.168.1.7:{PORT}").status == 200
    assert visitor.ask("/api/scene", host=f"evil.example:{PORT}").status == 403


def test_json_has_no_form_for_nan():
    with pytest.raises(ValueError, match="JSON"):
        packed({"a": float("nan")})


def test_a_port_in_use_gives_the_next_one():
    first = server.listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = server.listen("127.0.0.1", port)
    assert port < second.getsockname()[1] < port + server.PORTS_TRIED
    with pytest.raises(BadValue, match="--port"):
        server.listen("127.0.0.1", port, search=False)
    first.close()
    second.close()


def test_the_real_server_serves_this_machine_and_stops(page_model):
    made = server.Server(page_model)
    assert made.socket.getsockname()[0] == "127.0.0.1"
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        port = made.guard.port
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/scene",
            headers={"cookie": f"{made.guard.cookie}={made.guard.sessions.spend(made.guard.sessions.token())}"},
        )
        with urllib.request.urlopen(request, timeout=20) as found:
            assert json.loads(found.read())["title"] == "a small model"
            assert "server" not in {name.lower() for name in found.headers}
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/scene", timeout=20)
        assert refusal.value.code == 403
        refusal.value.close()
    finally:
        made.stop()
        thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass
