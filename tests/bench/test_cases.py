"""Benchmark cases: selection by name, bars, the record of a case that fails, and the table."""

import io
import json

import pytest
from rich.console import Console

from regard.errors import BadValue
from regard_workbench.bench.case import CASES, Case, Measurement, Setting, Wrong, select
from regard_workbench.bench.checkout import load_cases
from regard_workbench.bench.figure import drawn, speed, wanted
from regard_workbench.bench.run import footer, markdown, run, table
from regard_workbench.cli import main

load_cases()


def named(cases):
    return [one.name for one in cases]


def made(measure, device="cuda", **changes):
    values = {"name": "made", "work": "some work", "peer": "a peer", "bar": 1.3, "unit": "× faster", "at_most": False}
    return Case(**{**values, **changes}, measure=measure, device=device)


def test_each_device_has_its_own_cases_and_nothing_of_the_cpu_is_gone():
    cpu, gpu = named(select(None, "cpu")), named(select(None, "cuda"))
    assert not set(cpu) & set(gpu)
    assert cpu[0] == "dot-full-forward" and {"window-memory", "ntm-step", "loop-overhead", "decode-cache"} <= set(cpu)
    long = named(select("autotuned", "cuda"))
    assert len(cpu) == 27 and len(cpu) + len(gpu) + len(long) == len(list(CASES))
    assert gpu[0] == "dot-full-4k-d128-forward"


def test_every_row_of_the_promise_has_its_cases_on_the_gpu():
    gpu = named(select(None, "cuda"))
    for ending in ("forward", "train"):
        for shape in ("4k-d64", "4k-d128", "16k-d64", "16k-d128"):
            for work in ("window", "global", "softcap", "alibi", "prefix", "documents"):
                assert f"{work}-{shape}-{ending}" in gpu
        for shape in ("4k-d64", "4k-d128", "16k-d128"):
            assert {f"dot-full-{shape}-{ending}", f"dot-causal-{shape}-{ending}"} <= set(gpu)
        assert {f"lengths-dot-causal-{ending}", f"additive-4k-{ending}"} <= set(gpu)
    others = {"additive-4k-memory", "additive-many-train", "ntm-train", "summarize-time-16k", "decode-32k"}
    assert others <= set(gpu)


def test_a_large_graph_is_judged_on_both_devices_against_the_same_peer():
    cpu, gpu = select("graph", "cpu"), select("graph", "cuda")
    assert named(cpu) == ["graph-train", "graph-v2-train", "graph-memory"]
    assert named(gpu) == ["graph-gpu-train", "graph-gpu-v2-train", "graph-gpu-memory"]
    for one, other in zip(cpu, gpu, strict=True):
        assert (one.work, one.peer, one.bar, one.at_most) == (other.work, other.peer, other.bar, other.at_most)
        assert "100,000 nodes, 1,000,000 edges" in one.work
        row = other.row(Measurement(1.0, 1.0, 1.0, 3), Setting(device="cuda"))
        assert row["met"] is True


def test_what_matters_most_is_measured_first():
    gpu = named(select(None, "cuda"))
    families = {name.split("-")[0] for name in gpu}
    first = gpu[: gpu.index("dot-full-16k-d128-forward")]
    assert {name.split("-")[0] for name in first} == families
    assert all("d64" not in name and "16k-d128" not in name for name in first) and len(first) == 41
    assert gpu.index("window-4k-d64-train") < gpu.index("window-16k-d64-forward")


def test_no_case_starts_when_the_time_is_over_and_rows_are_passed_on_one_by_one():
    heard, seen = [], []
    cases = [made(fine, "cpu", name=name) for name in "abc"]
    rows = run(cases, Setting(device="cpu"), heard.append, lambda rows: seen.append(len(rows)))
    assert len(rows) == 3 and seen == [1, 2, 3] and rows[0]["spent"] >= 0
    assert any(text.startswith("a ") and "2.00 × faster" in text and "met" in text for text in heard)
    heard.clear()
    assert run(cases, Setting(device="cpu"), heard.append, seconds=-1.0) == []
    assert heard == ["no time left for 3 cases, from a on"] and footer([]) == "nothing was measured"
    run([made(broken, "cpu")], Setting(device="cpu"), heard.append)
    assert "RuntimeError: out of memory" in heard[-1]


def test_names_families_and_prefixes_select_cases():
    assert named(select("window-16k", "cuda")) == [
        f"window-16k-{rest}" for rest in ("d128-forward", "d128-train", "d64-forward", "d64-train")
    ]
    assert named(select("window", "cpu")) == ["window-vs-dense", "window-vs-causal", "window-memory"]
    assert named(select("ntm_train, decode", "cuda")) == ["ntm-train", "decode-32k", "decode-4k-single"]
    assert named(select("window-16k-d64-train, decode-32k, window-4k-d128-train", "cuda")) == [
        "window-16k-d64-train",
        "decode-32k",
        "window-4k-d128-train",
    ]
    with pytest.raises(BadValue, match="windows"):
        select("windows", "cuda")


def test_what_takes_very_long_is_measured_only_by_name():
    long = select("autotuned", "cuda")
    assert named(long) == [
        f"autotuned-window-4k-{rest}" for rest in ("d128-forward", "d128-train", "d64-forward", "d64-train")
    ]
    assert not set(named(long)) & set(named(select(None, "cuda")))
    assert [one.bar for one in long] == [1.3, 1.25, 1.3, 1.5]
    quoted = ("0.205 ms", "0.869 ms", "0.157 ms", "0.586 ms")
    for one, figure in zip(long, quoted, strict=True):
        assert figure in one.work and "quoted, not measured" in one.work and "max-autotune" in one.peer


def test_cases_that_a_record_has_are_left_out(tmp_path, capsys):
    kept = tmp_path / "rows.json"
    rows = [{"name": "decode-32k", "trouble": None}, {"name": "decode-4k-single", "trouble": "out of memory"}]
    ask = ["bench", "--device", "cuda", "--list", "--json", "--only", "decode", "--missing", str(kept)]
    for written in (rows, {"date": "today", "rows": rows}):
        kept.write_text(json.dumps(written))
        assert main.main(ask) == 0
        assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["decode-4k-single"]
    for content in ("[1]", "{", "{}"):
        kept.write_text(content)
        assert main.main(ask) == 2
        assert "--missing" in capsys.readouterr().err


def test_a_case_of_the_other_device_can_be_asked_for_by_name_and_is_not_judged():
    (one,) = select("overhead-plain", "cuda")
    row = one.row(Measurement(5.0, 4.0, 6.0, 3), Setting(device="cuda"))
    assert row["met"] is None and row["bar"] is None
    assert one.row(Measurement(5.0, 4.0, 6.0, 3), Setting(device="cpu"))["met"] is True


@pytest.mark.parametrize(("value", "met"), [(1.3, True), (1.29, False)])
def test_a_floor_is_met_from_its_number_on(value, met):
    row = made(lambda setting: None).row(Measurement(value, 1, 2, 5, best="someone"), Setting(device="cuda"))
    assert row["met"] is met and row["relation"] == ">=" and row["peer"] == "someone"


def wrong(setting):
    raise Wrong("not timed, because it is wrong: relative error of output 0.5; at most 0.01 is allowed.")


def broken(setting):
    raise RuntimeError("out of memory")


def fine(setting):
    return Measurement(
        2.0, 1.9, 2.1, 7, 1e-3, 2e-3, "triton", "FlexAttention", {"FlexAttention": 2e-3, "varlen_attn": "TypeError: no"}
    )


def shown(rows):
    console = Console(width=200, file=io.StringIO())
    console.print(table(rows))
    return console.file.getvalue()


def test_a_case_that_is_wrong_or_raises_is_reported_and_the_others_are_measured():
    cases = [made(wrong, "cpu", name="w"), made(broken, "cpu", name="b"), made(fine, "cpu", name="f")]
    rows = run(cases, Setting(device="cpu"))
    assert [row["met"] for row in rows] == [False, False, True]
    assert [row["measured"] for row in rows] == [None, None, 2.0]
    assert "relative error" in rows[0]["trouble"] and rows[1]["trouble"] == "RuntimeError: out of memory"
    assert json.loads(json.dumps(rows))[2]["peers"] == {"FlexAttention": 2e-3, "varlen_attn": "TypeError: no"}
    text = shown(rows)
    assert text.count("FAILED") == 2 and "met" in text
    assert "1 of 3 bars met" in footer(rows)
    assert markdown(rows).count("\n| ") == 4


def test_a_table_of_a_gpu_also_shows_times():
    row = {**made(fine).row(fine(None), Setting(device="cuda")), "device": "cuda", "device_name": "H200"}
    text = shown([row])
    assert "1 ms" in text and "2 ms" in text and "FlexAttention" in text and "triton" in text


def test_the_picture_has_a_bar_for_each_row_with_a_peer_and_a_tick_where_its_bar_is(tmp_path):
    about = {"device": "cuda", "device_name": "H200"}
    setting = Setting(device="cuda")
    rows = [{**made(fine, name=f"case-{n}").row(fine(None), setting), **about} for n in range(3)]
    rows.append({**made(fine).failed(RuntimeError("x"), setting), **about})
    assert speed(rows[0]) == 2.0 and speed(rows[3]) is None and wanted(rows[0]) == 1.3
    assert wanted({"bar": 1.25, "unit": "× time"}) == 0.8 and wanted({"bar": 50, "unit": "ms"}) is None
    figure = drawn(rows)
    (frame,) = figure.axes
    assert [label.get_text() for label in frame.get_yticklabels()] == ["case-0", "case-1", "case-2"]
    assert [patch.get_width() for patch in frame.patches] == [1.0, 1.0, 1.0]
    figure.savefig(tmp_path / "speed.svg")


@pytest.mark.slow
def test_the_command_lists_draws_and_refuses(tmp_path, capsys, monkeypatch):
    assert main.main(["bench", "--device", "cuda", "--list", "--json", "--only", "decode-32k"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["bar"] == 95 and entry["relation"] == ">="
    picture, kept = tmp_path / "speed.png", tmp_path / "rows.json"
    measure = ["bench", "--device", "cpu", "--quick", "--only", "overhead-plain"]
    assert main.main([*measure, "--figure", str(picture), "--json", str(kept)]) == 0
    assert picture.stat().st_size > 1000
    assert json.loads(kept.read_text())[0]["name"] == "overhead-plain"
    capsys.readouterr()
    # Once measured is enough: what follows is about the output.
    monkeypatch.setattr("regard_workbench.bench.overhead.overhead", lambda *_: Measurement(7.0, 6.0, 8.0, 3))
    assert main.main([*measure, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["met"] is True  # 7 of at most 10 µs
    assert main.main(["bench", "--figure", str(tmp_path / "speed.doc"), "--device", "cpu"]) == 2
    assert "--figure" in capsys.readouterr().err
