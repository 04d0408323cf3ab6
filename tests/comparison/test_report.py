"""The page: whole, escaped, the same each time, without a wire to the outside, whatever the comparison holds."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from regard_workbench.comparison import report
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.report import tables
from regard_workbench.comparison.report.keys import keys_of
from regard_workbench.comparison.results import pairs, rows
from regard_workbench.figures import svg
from regard_workbench.tasks.measures.metrics import ACCURACY
from regard_workbench.training import train
from tests.comparison.made_up import comparison, outcome
from tests.comparison.made_up_runs import made

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = '<script>alert(1)</script>"\' onload="x" &amp; </style> {{ 7*7 }} $x$ `é'


class Page(HTMLParser):
    """A page taken apart: texts, attributes, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.scripts, self.styles = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        where = {"script": self.scripts, "style": self.styles}.get(self.open[-1] if self.open else "", self.texts)
        where.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def drawn_only(patch):
    """Pictures for the page alone: files are tested with the figures, and take most of the time."""
    patch.setattr(svg, "publish", lambda drawing, folder, keys=None: svg.inline(drawing))


@pytest.fixture
def undrawn(monkeypatch):
    """No pictures at all, for tests of what stands around them."""
    monkeypatch.setattr(svg, "publish", lambda drawing, folder, keys=None: "<svg></svg>")


def written(comparison, found=None):
    """The report of a comparison, as text."""
    path = comparison.out / "report.html"
    report.write(comparison, rows(comparison) if found is None else found, path)
    return path.read_text()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three contestants, of whom the first has a real run to look into."""
    folder = tmp_path_factory.mktemp("three")
    comparison = made(folder)
    for number, model in enumerate(("static-transformer(dim=8, layers=1, num_heads=2, attention=static-memory)",)):
        place = folder / "real" / str(number)
        train(
            {"task": "digits", "model": model, "steps": 2, "device": "cpu", "out": str(place)},
            quiet=True,
            tell=lambda text: None,
        )
    runs = [dataclasses.replace(comparison.outcomes[0], folder=str(place)), *comparison.outcomes[1:]]
    return dataclasses.replace(comparison, outcomes=runs)


@pytest.fixture(scope="module")
def page(three):
    with pytest.MonkeyPatch.context() as patch:
        drawn_only(patch)
        return written(three)


def test_the_page_is_whole_and_has_its_sections(page):
    found = Page(page)
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for section in ("results", "curves", "pairs", "cost", "attention", "fairness", "details"):
        assert section in ids
    for _, attrs in found.tags:
        for name, value in attrs.items():
            for target in re.findall(r"^#(.+)$" if name == "href" else r"url\(#([^)]+)\)", value or ""):
                assert target in ids, f"{name}={value} leads nowhere"


def test_the_page_refers_to_nothing_outside(page):
    found = Page(page)
    for tag, attrs in found.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        for name, value in attrs.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "action", "srcset", "data", "poster"):
                assert value.startswith(("#", "data:image/png;base64,")), value
            if "url(" in (value or ""):
                assert re.fullmatch(r"url\(#[\w-]+\)", value)
    own = "".join(found.styles + found.scripts)
    assert not re.search(r"https?:|//\w|url\(|@import|fetch\(|XMLHttpRequest", own)
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_the_page_allows_nothing_but_its_own_script(page):
    found = Page(page)
    (policy,) = [attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    (script,) = found.scripts
    assert rules["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def test_every_figure_has_a_text_alternative(page):
    charts = [attrs for tag, attrs in Page(page).tags if tag == "svg"]
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") == "true" for attrs in charts)
    assert sum(attrs.get("role") == "img" for attrs in charts) >= 12
    assert all(len(attrs["aria-label"]) > 40 for attrs in charts if attrs.get("role") == "img")


def test_every_number_of_the_rows_is_on_the_page(page, three):
    text = Page(page).text
    for row in rows(three):
        for field in ("parameters", "steps_per_second", "peak_memory_mib", "flops_per_step", "steps", "seconds"):
            value = row[field]
            whole = f"{value:,.0f}" if float(value).is_integer() and value >= 1000 else f"{value:.6g}"
            assert whole in text, (row["label"], field)
        for split in ("validation", "test"):
            for metric, over in row[split].items():
                numbers = " ".join(f"{over[end]:.6g}" for end in ("mean", "low", "high"))
                assert f"{split} {metric} {numbers}" in text
        assert row["signature"] in text
        for command in row["commands"].values():
            assert command in text
    assert all(pair["claim"] in text for pair in pairs(three, ACCURACY))
    assert three.command in text and "ntm: it gives past" in text


def test_a_run_with_a_checkpoint_shows_its_attention(page):
    text = Page(page).text
    assert "static-memory of the last layer: writing the memory" in text
    assert "seed 0 says “" in text
    assert text.count("The run could not be inspected") == 2  # the made-up runs have no checkpoint


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_with_files_or_without(page, three, monkeypatch):
    rendered = svg._rendered
    monkeypatch.setattr(svg, "_rendered", lambda f, kind: b"%PDF" if kind == "pdf" else rendered(f, kind))
    assert written(three) == page
    figures = {path.name for path in (three.out / "figures").iterdir()}
    assert {"test-bars.svg", "test-bars.pdf", "cost-parameters.pdf", "attention-1-1.svg"} <= figures


@pytest.mark.slow
def test_hostile_names_and_errors_stay_text(tmp_path, monkeypatch):
    drawn_only(monkeypatch)
    comparison = made(tmp_path, failed=[(1, 0), (1, 1), (1, 2)])
    found = rows(comparison)

    def spoilt(value):
        return {
            str: lambda: value.replace("dynamic-transformer", HOSTILE).replace("it ran out of luck", HOSTILE),
            dict: lambda: {key: spoilt(inner) for key, inner in value.items()},
            list: lambda: [spoilt(inner) for inner in value],
        }.get(type(value), lambda: value)()

    contestants = [dataclasses.replace(one, model=spoilt(one.model)) for one in comparison.contestants]
    runs = [
        dataclasses.replace(run, model=spoilt(run.model), error=spoilt(run.error), command=spoilt(run.command))
        for run in comparison.outcomes
    ]
    changed = dataclasses.replace(
        comparison,
        contestants=contestants,
        outcomes=runs,
        task=HOSTILE,
        command=HOSTILE,
        budget=HOSTILE,
        left_out=[(HOSTILE, HOSTILE)],
    )
    text = written(changed, [{**spoilt(row), "attention": HOSTILE} for row in found])
    page = Page(text)
    assert len(page.scripts) == 1 and len(page.styles) == 1
    assert HOSTILE in page.text and "49" not in page.text.split("7*7")[0][-20:]
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")], tag
    assert f"Seed 0 failed: RuntimeError: {HOSTILE}" in page.text


def test_one_seed_has_no_intervals_and_claims_nothing(tmp_path, undrawn):
    text = Page(written(made(tmp_path, seeds=1))).text
    assert "one seed, so no interval" in text and "With one seed no difference can be claimed" in text
    assert "±" not in text


def test_a_failed_contestant_is_reported_and_the_others_are_compared(tmp_path, undrawn):
    text = Page(written(made(tmp_path, failed=[(1, 0), (1, 1), (1, 2), (2, 0)]))).text
    assert "dynamic-transformer , seed 0, 1, 2: RuntimeError: it ran out of luck" in text
    assert "lstm-attention , seed 0: RuntimeError" in text and "2 of 3" in text
    assert "static-transformer is best on the test split" in text
    assert "No run of this contestant finished." in text


def test_a_comparison_in_which_everything_failed_still_has_its_page(tmp_path, undrawn):
    failed = [(place, seed) for place in range(3) for seed in range(3)]
    text = Page(written(made(tmp_path, failed=failed))).text
    assert "No run finished with a finite result, so there is nothing to compare." in text
    assert "No run finished: there is nothing to compare." in text


def test_without_costs_there_is_no_such_section(tmp_path, undrawn):
    comparison = made(tmp_path, costs=False)
    found = rows(comparison)
    for row in found:
        row |= {"parameters": None, "steps_per_second": None}
    text = written(comparison, found)
    assert 'id="cost"' not in text and "steps/s" not in Page(text).text


@pytest.mark.nightly
def test_eighteen_contestants_fit_on_a_page(tmp_path, monkeypatch):
    drawn_only(monkeypatch)
    comparison = made(tmp_path, 18)
    text = written(comparison)
    assert len(text.encode()) < 1_000_000  # attention pictures add about 20 kB for each
    found = Page(text)
    assert "18 attentions in encoder on digits" in found.text
    assert len([attrs for tag, attrs in found.tags if attrs.get("class") == "chip"]) == 36
    assert f"Every pair in a sentence ({18 * 17 // 2})" in found.text


def test_versions_and_machine_come_from_the_runs(tmp_path, undrawn):
    comparison = made(tmp_path, 1, 1)
    facts = {"system": "Minix-2", "processors": 3, "started": "2031-02-03T04:05:06Z", "gpu": None}
    (tmp_path / "run-0-0" / "env.json").write_text(json.dumps(facts))
    text = Page(written(comparison)).text
    assert "system Minix-2" in text and "processors 3" in text and "begun 2031-02-03" in text and "gpu" not in text


def test_the_matrix_turns_signs_with_the_point_of_view(three):
    looks = keys_of(rows(three))
    found = tables.matrix(pairs(three, ACCURACY), looks)
    (_, (own, other, _)), (_, (turned, _, _)), _ = found
    assert own is None
    assert other.difference.replace("+", "−") == turned.difference and other.difference.startswith("+")
    assert {other.word, turned.word} in ({"better", "worse"}, {"unclear"})
    assert other.claim == turned.claim


def test_an_interval_that_leaves_the_possible_range_is_cut_and_marked(tmp_path, undrawn):
    """Of 97, 99 and 100 %: the mean is 98.67 %, half of the t interval 4.303 · 1.528 / √3 = 3.79 points."""
    runs = [outcome("encoder", seed, share) for seed, share in enumerate((0.97, 0.99, 1.0))]
    runs += [outcome("transformer", seed, share) for seed, share in enumerate((0.1, 0.9, 0.5))]
    given = comparison(runs, [Contestant("encoder"), Contestant("transformer")], out=tmp_path, costs={})
    page = Page(written(given))
    assert "98.7 ± 3.8 % †" in page.text and "cut there" in page.text
    assert "95 % interval over 3 seeds: 94.87–100.00 %, cut at what is possible" in page.text
    # Of 10, 50 and 90 %: ± 99 points on both sides of 50 %.
    assert "50.0 % ‡" in page.text and "Too few seeds" in page.text


def test_tables_and_figures_have_one_order_the_best_first(tmp_path, undrawn):
    shares = {"encoder": 0.5, "transformer": 0.9, "lstm-attention": 0.7}
    runs = [outcome(name, seed, share + 0.01 * seed) for name, share in shares.items() for seed in range(2)]
    given = comparison(runs, [Contestant(name) for name in shares], out=tmp_path, seeds=[0, 1], costs={})
    text = written(given)
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    order = sorted(shares, key=lambda name: body.index(f">{name}<") if f">{name}<" in body else body.index(name))
    assert order == ["transformer", "lstm-attention", "encoder"]
    details = text[text.index('id="details"') :]
    assert sorted(shares, key=lambda name: details.index(f"--model {name} ")) == order
    assert "<h1>3 models on digits</h1>" in text  # the three names would break at their hyphens


def test_robustness_is_a_section_where_an_attack_was_kept(tmp_path, undrawn):
    runs = [outcome(name, 0, 0.9, folder=str(tmp_path / name)) for name in ("encoder", "transformer")]
    given = comparison(runs, [Contestant("encoder"), Contestant("transformer")], out=tmp_path, seeds=[0], costs={})
    assert "Robustness" not in Page(written(given)).text
    for name, accuracy in (("encoder", 0.25), ("transformer", 0.5)):
        folder = tmp_path / name / "attacks"
        folder.mkdir(parents=True)
        rows = [{"eps": 0.1, "choice": None, "accuracy": {"value": accuracy}}]
        kept = {"split": "test", "clean": {"value": 0.9}, "rows": rows}
        (folder / "pgd-test.json").write_text(json.dumps({"attack": {"method": "pgd"}, "runs": [kept]}))
        (folder / "broken.json").write_text("{")
        (folder / "hostile.json").write_text(json.dumps({"attack": {"method": HOSTILE}, "runs": [kept]}))
    text = Page(written(given)).text
    assert "pgd, test split contestant none ε = 0.1 encoder 90.0 % 25.0 % transformer 90.0 % 50.0 %" in text


def test_the_batch_size_stands_beside_the_operations(tmp_path, undrawn):
    text = Page(written(comparison(out=tmp_path))).text
    assert "FLOPs per step batch size memory MiB" in text and "1.00G 32 31.2" in text
