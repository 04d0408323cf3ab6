"""`regard list` and `regard show`: every mechanism has its line and its page, and the pictures tell the truth."""

import functools
import json
import math
import re

import pytest
import torch

import regard
from regard import nn
from regard_workbench.cli.common import catalogue, docstring, shades
from regard_workbench.cli.common.command import verbs
from regard_workbench.cli.common.console import console
from regard_workbench.cli.main import main
from regard_workbench.cli.show import code_paths, facts, page, toy

PIECES = [f"{kind}.{item.name}" for kind, items in catalogue.KINDS.items() for item in items()]


@functools.cache
def facts_of(name):
    found = catalogue.find(name)
    return facts.of_value(found) if isinstance(found, catalogue.Item) else facts.of_mechanism(*found)


def picture(name, head=0):
    return torch.tensor(facts_of(name)["picture"]["heads"][head], dtype=torch.float64)


def printed(capsys, *arguments):
    code = main(list(arguments))
    return code, capsys.readouterr().out


def set_at(content, width):
    out = console(width)
    with out.capture() as captured:
        out.print(page.page(content, width))
    return captured.get()


@pytest.mark.parametrize("name", nn.names())
def test_every_mechanism_has_a_complete_page(name):
    content = facts_of(name)
    for part in ("summary", "formula", "paper", "empty_row", "example", "time", "memory", "runs", "picture"):
        assert content[part], f"{name} says nothing under {part}"
    assert content["summary"].endswith(".")
    assert content["example"].startswith(">>>")
    silent = [option["name"] for option in content["options"] if not option["meaning"]]
    assert not silent, f"{name}: no word on {silent}"
    assert [option["name"] for option in content["options"] if option["required"]] == ["dim"]
    layer = nn.build(name, dim=toy.WIDTH, **nn.entry(name).needs)
    assert content["parameters"] == sum(parameter.numel() for parameter in layer.parameters())
    json.dumps(content)


@pytest.mark.parametrize("name", nn.names())
def test_a_picture_is_finite_and_no_row_of_it_is_empty(name):
    drawn = picture(name)
    assert drawn.shape == (toy.POSITIONS, toy.POSITIONS)
    assert drawn.isfinite().all() and (drawn >= 0).all()
    assert (drawn.sum(-1) > 0).all()
    assert facts_of(name)["picture"]["quantity"] in ("weights", "influence")


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_of_any_page_is_longer_than_the_page_and_none_holds_colour_codes(width):
    for name in [*nn.names(), *PIECES]:
        text = set_at(facts_of(name), width)
        long = [line for line in text.splitlines() if len(line) > width]
        assert not long, f"{name} at {width}: {long}"
        assert "\x1b" not in text


def test_hidden_pairs_are_blank_in_the_picture():
    distance = torch.arange(toy.POSITIONS)[:, None] - torch.arange(toy.POSITIONS)
    assert torch.equal(picture("local") > 0, distance.abs() <= 2)
    assert torch.equal(picture("causal") > 0, distance >= 0)
    assert (picture("dynamic-memory")[distance < 0] == 0).all()
    assert torch.equal((picture("hard") > 0).sum(-1), torch.ones(toy.POSITIONS, dtype=torch.int64))
    assert ((picture("local-p") > 0).sum(-1) <= 5).all()


def test_local_p_is_not_renormalised_and_its_centre_wanders():
    drawn = picture("local-p")
    assert (drawn.sum(-1) < 0.99).all()
    assert len(set(drawn.argmax(-1).tolist())) >= 4


@pytest.mark.parametrize("name", ["global", "dot", "additive", "concat", "interactive"])
def test_attention_by_content_finds_the_position_and_its_mirror_image(name):
    drawn, own = picture(name), torch.arange(toy.POSITIONS)
    found = drawn[own, own] + torch.where(own == 8, 0, 1) * drawn[own, toy.POSITIONS - 1 - own]
    assert (found / drawn.sum(-1)).mean() > 0.4  # by chance: 2 of 17


def test_influence_is_the_size_of_the_jacobian():
    mixing = torch.rand(toy.POSITIONS, toy.POSITIONS, dtype=torch.float64).tril()

    class Mixing(nn.Mechanism):
        """A fixed mean of the rows."""

        def forward(self, query, source=None, *, mask=None, state=None):
            return mixing @ query

    expected = mixing / mixing.sum(-1, keepdim=True)
    drawn = toy.of_layer(Mixing(toy.WIDTH))
    assert drawn.quantity == "influence"
    torch.testing.assert_close(drawn.heads[0], expected)


def test_the_page_is_the_same_every_time_and_leaves_the_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for name in ("local-p", "concat"):
        torch.rand(5)
        again = facts.of_mechanism(nn.entry(name), {})
        assert again == facts_of(name)
    torch.manual_seed(3)
    facts.of_mechanism(nn.entry("hard"), {})
    assert torch.equal(before, torch.get_rng_state())


def test_what_runs_a_layer_is_what_explain_says():
    layer, rows = nn.build("local", dim=64, window=5), torch.zeros(1, toy.POSITIONS, 64, requires_grad=True)
    view = layer.prepare(rows, None, None, None)
    plan = regard.explain(view.query, view.key, view.value, **layer.pieces(view))
    (run,) = code_paths.of_layer(layer)
    said = {answer.impl: answer for answer in run.answers}
    assert said[plan.impl].can == "yes"
    assert {name: said[name].reason for name in plan.rejected} == plan.rejected
    with pytest.raises(regard.Unsupported):
        regard.attend(view.query, view.key, view.value, **layer.pieces(view), impl="sdpa")
    assert (said["sdpa"].can, said["reference"].can) == ("no", "by name")


def test_a_layer_that_never_calls_attend_says_so_and_one_of_parts_names_them():
    (run,) = code_paths.of_layer(nn.build("linear", dim=64))
    assert "attend is not called" in run.code
    parts = {run.part for run in code_paths.of_layer(nn.build("global-layer", dim=64))}
    assert {"memory", "history"} <= parts


def test_list_shows_every_mechanism_with_its_sentence_and_ends_with_a_hint(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, text = printed(capsys, "list")
    assert code == 0 and "\x1b" not in text
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    flowing = " ".join(text.split())
    for name in nn.names():
        assert re.search(rf"^  {name} ", text, flags=re.M)
        assert docstring.read(nn.entry(name).layer).summary in flowing
    assert "regard show NAME" in text.splitlines()[-1]


def test_a_wide_list_puts_the_sentence_beside_the_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, text = printed(capsys, "list")
    assert re.search(r"^  global +Every query attends to every key", text, flags=re.M)


def test_list_as_json_is_a_list_of_objects(capsys):
    _, text = printed(capsys, "list", "--json")
    rows = json.loads(text)
    assert sorted(row["name"] for row in rows) == nn.names()
    assert {row["name"]: row["causal"] for row in rows} == {name: nn.entry(name).causal for name in nn.names()}
    families = [row["family"] for row in rows]
    assert families == sorted(families, key=families.index), "a family stands together"


@pytest.mark.parametrize("kind", list(catalogue.KINDS))
def test_the_pieces_of_the_core_can_be_listed(kind, capsys):
    code, text = printed(capsys, "list", kind)
    assert code == 0
    for item in catalogue.KINDS[kind]():
        assert item.name in text and item.summary
    _, data = printed(capsys, "list", kind, "--json")
    assert [row["name"] for row in json.loads(data)] == [item.name for item in catalogue.KINDS[kind]()]


# Implementations draw nothing, and positions="none" adds nothing.
DRAWN = [place for place in PIECES if not place.startswith("implementations") and place != "positions.none"]


@pytest.mark.parametrize("place", DRAWN)
def test_every_piece_but_implementations_has_a_picture(place):
    assert (picture(place) > 0).any(), f"{place} has no example: write one in cli/show/examples.py"


def test_the_picture_of_a_mask_is_the_mask(capsys):
    _, text = printed(capsys, "show", "masks.causal", "--json")
    shown = torch.tensor(json.loads(text)["picture"]["heads"][0])
    assert torch.equal(shown.bool(), torch.ones(17, 17).tril().bool())


def test_show_as_json_holds_what_the_page_says(capsys):
    _, text = printed(capsys, "show", "local", "--json")
    content = json.loads(text)
    assert content == facts_of("local")
    _, shown = printed(capsys, "show", "local", "--width", "100")
    flowing = " ".join(shown.split())
    for part in ("summary", "paper", "time"):
        assert content[part] in flowing
    assert all(" ".join(line.split()) in flowing for line in content["formula"].splitlines())
    assert all(line in shown for line in content["example"].splitlines())


def test_a_mechanism_wins_a_name_clash_and_a_kind_in_front_decides():
    assert facts_of("additive")["kind"] == "mechanism"
    assert facts_of("scores.additive")["kind"] == "scores"
    assert facts_of("sparsemax")["kind"] == "normalizers"
    assert facts_of("scaled-dot")["name"] == "scaled_dot"
    assert facts_of("soft")["name"] == "global"
    assert facts_of("local_p")["name"] == "local-p"


def test_options_in_parentheses_reach_the_picture():
    content = facts_of("local(window=3, causal=True)")
    drawn = torch.tensor(content["picture"]["heads"][0])
    assert torch.equal((drawn > 0).sum(-1), torch.tensor([1, 2, *[3] * 15]))
    assert content["shown_with"] == {"dim": 64, "window": 3, "causal": True}


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("lokal", "'local'"),
        ("masks.cousal", "'masks.causal'"),
        ("sparsmax", "'sparsemax'"),
        ("local(windw=3)", "'window'"),
    ],
)
def test_a_wrong_name_exits_with_two_and_a_suggestion(asked, meant, capsys):
    assert main(["show", asked]) == 2
    error = capsys.readouterr().err
    assert f"Did you mean {meant}?" in error


@pytest.mark.parametrize("asked", ["", "(", "local(", "local()x", "masks.", ".", "nonsense of three words"])
def test_nonsense_exits_with_two_and_no_traceback(asked, capsys):
    assert main(["show", asked]) == 2
    assert "regard show:" in capsys.readouterr().err


def test_a_wrong_kind_and_a_narrow_page_are_wrong_calls(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["list", "mask"])
    assert stopped.value.code == 2
    assert "Did you mean 'masks'?" in capsys.readouterr().err
    assert main(["show", "local", "--width", "10"]) == 2


@pytest.mark.parametrize("verb", ["list", "show"])
def test_help_ends_in_two_real_commands(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[-2:]] == list(verbs()[verb].EXAMPLES)


def test_pages_are_no_verb():
    assert {"list", "show"} <= set(verbs())
    assert not {"common", "main"} & set(verbs())


def test_a_docstring_is_taken_apart_in_order():
    class Thing:
        """Does one thing
        well.

            y = x,   z = 2x
              continued

        A note.

            w = 3

        Paper: A and B 2020,
        section 2.
        Empty row: zeros.

        Args:
            dim: how wide: very
                wide.
            other: more.

        >>> 1 + 1
        2
        """

    doc = docstring.read(Thing)
    assert doc.summary == "Does one thing well."
    assert doc.body == [("formula", "y = x,   z = 2x\n  continued"), ("note", "A note."), ("formula", "w = 3")]
    assert doc.labelled == {"Paper": "A and B 2020, section 2.", "Empty row": "zeros."}
    assert doc.options == {"dim": "how wide: very wide.", "other": "more."}
    assert doc.example == ">>> 1 + 1\n2"


def test_options_are_explained_by_the_nearest_class():
    class Parent:
        """P.

        Args:
            a: from the parent.
            b: from the parent.
        """

    class Child(Parent):
        """C.

        Args:
            b: from the child.
        """

    class Silent(Child):
        pass

    assert docstring.meanings(Silent) == {"a": "from the parent.", "b": "from the child."}


def test_a_formula_breaks_at_wide_spaces_only_where_it_must():
    assert page.formula("a = b,   c = d", 14) == "a = b,   c = d"
    assert page.formula("a = b,   c = d", 13) == "a = b,\n    c = d"


def test_shades_follow_the_share_of_the_largest():
    cells = [shades.cell(value, 2.0) for value in (0.0, 1e-9, 0.11, 0.5, 1.0, 1.5, 2.0)]
    assert cells == ["  ", "· ", "░░", "▒▒", "▓▓", "██", "██"]
    assert shades.drawn([[1.0, 0.0], [0.5, 1.0]])[1:] == ["   ┌────┐", " 0 │██  │", "   │▓▓██│", "   └────┘"]
    assert shades.bars([0.0, 0.5, 1.0]) == " ▅█"


def test_the_table_of_half_wave_positions_is_the_formula():
    table = picture("half-wave")
    for position in range(17):
        angle = (position + 1) * math.pi / 17
        assert table[position, 0] == pytest.approx(math.sin(angle), abs=1e-3)
        assert table[position, 1] == pytest.approx(math.cos(angle), abs=1e-3)


def test_the_network_is_printed_and_written_as_svg(tmp_path, capsys):
    code = main(
        ["show", "transformer(layers=2, dim=8, num_heads=2)", "--svg", str(tmp_path / "net.svg"), "--width", "100"]
    )
    text = capsys.readouterr().out
    assert code == 0 and "The network as built for" in text and "layer × 2" in text
    assert (tmp_path / "net.svg").read_text(encoding="utf-8").startswith("<svg")
    assert main(["show", "masks.causal", "--svg", str(tmp_path / "none.svg")]) == 2
    assert "--svg" in capsys.readouterr().err and not (tmp_path / "none.svg").exists()


def test_a_name_with_two_meanings_is_resolved_by_its_kind(tmp_path, capsys):
    code, text = printed(capsys, "show", "gla", "--svg", str(tmp_path / "mechanism.svg"))
    assert code == 0 and "There is a model of this name, too: regard show models.gla" in text
    assert "global-query" in (tmp_path / "mechanism.svg").read_text(encoding="utf-8")
    code, text = printed(
        capsys, "show", "gla(dim=8, layers=2)", "--kind", "model", "--svg", str(tmp_path / "model.svg")
    )
    assert code == 0 and "of this name" not in text
    assert "feed-forward" in (tmp_path / "model.svg").read_text(encoding="utf-8")
    for asked, other in (("graph", "task"), ("tasks.graph", "model")):
        code, text = printed(capsys, "show", asked)
        assert code == 0 and f"There is a {other} of this name, too: regard show {other}s.graph" in text
    assert main(["show", "gla", "--kind", "mask"]) == 2
    assert "--kind: expected mechanism, model or task, got 'mask'" in capsys.readouterr().err
