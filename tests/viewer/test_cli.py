"""The command `regard view`."""

import json
import re
import signal
import urllib.request
from http.cookiejar import CookieJar

import pytest

from regard_workbench.viewer.guard import Guard
from regard_workbench.viewer.widget import respond, script, show
from tests.cli.trained import called
from tests.training.commands import Command, until
from tests.viewer.stand_ins import small_page_model


def test_a_page_is_written_and_described(runs, tmp_path, capsys):
    path = tmp_path / "page.html"
    code, out, err = called(
        capsys, "view", runs["dates"], "--text", "3rd of May, 1979", "--export", path, "--json", "--device", "cpu"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["file"] == str(path) and found["bytes"] == path.stat().st_size
    assert found["sites"][0]["label"] == "cross 0"
    assert "3rd of May" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text", " "], "--text"),
        (["--port", "70000"], "--port"),
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--heads", "1.1"], "--export"),
        (["--export", "page.txt"], ".html"),
        (["--host", "192.168.0.7"], "--allow-remote"),
        (["--export", "p.html", "--heads", "1"], "LAYER.HEAD"),
        (["--export", "p.html", "--sites", "-1"], "from 0"),
        (["--export", "p.html", "--sites", "7"], "no layer 7"),
        (["--export", "p.html", "--heads", "0.7"], "no head 7"),
        (["--export", "no/folder/page.html"], "no/folder"),
        (["--checkpoint", "nope"], "checkpoint"),
        (["--beams", "2"], "--generate"),
        (["--against", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_call_says_what_to_try_and_exits_with_2(runs, capsys, tmp_path, monkeypatch, arguments, words):
    folder = runs["dates"]
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, "view", folder, "--device", "cpu", *arguments)
    assert code == 2 and not out and words in err
    assert not list(tmp_path.iterdir())


def test_an_unknown_option_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit) as stopped:
        called(capsys, "view", "runs/x", "--txt", "a")
    assert stopped.value.code == 2 and "--text" in capsys.readouterr().err


def test_a_missing_folder_is_refused(capsys):
    code, _, err = called(capsys, "view", "no/such/run")
    assert code == 2 and "no/such/run" in err and "does not exist" in err


def test_help_ends_in_two_real_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        called(capsys, "view", "--help")
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.replace(" \\\n", " ").strip().splitlines()  # a long one is continued
    assert lines[-3].strip() == "examples:" and all("regard view" in line for line in lines[-2:])


@pytest.mark.slow
def test_the_page_is_served_until_it_is_interrupted(runs, tmp_path):
    options = ["--no-browser", "--json", "--port", 0, "--device", "cpu"]
    served = Command(tmp_path, "view", runs["dates"], *options)
    try:
        address = json.loads(until(lambda: re.search(r"^{.*}$", served.text, re.MULTILINE), 60)[0])["url"]
        assert address.startswith("http://127.0.0.1:") and "?token=" in address
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(address, timeout=30) as page:
            assert page.url.endswith("/") and b'<div id="regard">' in page.read()
        with browser.open(address.partition("?")[0] + "api/scene", timeout=30) as found:
            assert json.loads(found.read())["sites"]
    finally:
        served.send(signal.SIGINT)
        code = served.wait()
    assert code == 0 and "Stopped." in served.text and "Traceback" not in served.text


def test_the_address_is_written_as_browsers_need_it():
    assert Guard(80, "::1").address("t") == "http://[::1]:80/?token=t"
    assert Guard(81, "0.0.0.0").address() == "http://127.0.0.1:81/"


def test_a_notebook_gets_the_page_and_answers_over_messages():
    anywidget = pytest.importorskip("anywidget")
    made = show(small_page_model(layers=2, heads=3, length=7))
    assert isinstance(made, anywidget.AnyWidget)
    assert json.loads(made._data)["scene"]["title"] == "a small model" and made._bytes
    assert script().rstrip().endswith(".widget;")


def test_messages_from_a_notebook_are_checked_as_requests_are():
    from regard_workbench.viewer.requests import RequestHandler

    answers, sent = RequestHandler(small_page_model()), []

    def send(content, buffers=()):
        sent.append((content, list(buffers)))

    tile = {"site": 0, "head": 1, "level": 0, "x": 0, "y": 0}
    respond(answers, send, {"id": 1, "path": "tile", "query": tile})
    respond(answers, send, {"id": 2, "path": "tile", "query": {**tile, "head": -1}})
    respond(answers, send, {"id": 3, "path": "../etc", "query": {}})
    for odd in (None, "x", {}, {"id": "1"}, {"id": None, "path": "scene"}):
        respond(answers, send, odd)
    respond(answers, send, {"id": 4, "path": "scene", "query": 7})
    assert [content["id"] for content, _ in sent] == [1, 2, 3, 4]
    assert len(sent[0][1][0]) == 8 + 49 and sent[1][0]["status"] == 400 and sent[2][0]["status"] == 404
    assert json.loads(sent[3][1][0])["sites"]
