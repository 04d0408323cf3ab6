"""A Chinese page says what its English original says: the same code, numbers, links and headings, in the same order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRANSLATED = sorted([*ROOT.glob("*.zh.md"), *ROOT.glob("docs/*.zh.md")])
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
by_page = pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in TRANSLATED])


def original(page):
    return page.with_name(page.name.replace(".zh.md", ".md"))


def prose(page):
    """The text of a page without its fenced blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def numbers(text):
    return re.findall(r"\d+(?:[.,]\d+)*", re.sub(r"\]\([^)]*\)", "]", text))


def links(text):
    """Where links and pictures lead, those between the two languages left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [to for to in found if Path(to).name not in ("README.md", "README.zh.md", "tutorial.md", "tutorial.zh.md")]


def test_the_readme_and_the_tutorial_are_translated():
    assert {page.name for page in TRANSLATED} == {"README.zh.md", "tutorial.zh.md"}


@by_page
def test_the_code_is_that_of_the_original(page):
    theirs, ours = (FENCED.findall(one.read_text(encoding="utf-8")) for one in (original(page), page))
    assert ours == theirs


@by_page
def test_the_numbers_are_those_of_the_original_in_its_order(page):
    assert numbers(prose(page)) == numbers(prose(original(page)))


@by_page
def test_commands_and_names_in_the_text_are_those_of_the_original(page):
    theirs, ours = (sorted(re.findall(r"`([^`\n]+)`", prose(one))) for one in (original(page), page))
    assert ours == theirs


@by_page
def test_links_lead_where_those_of_the_original_lead(page):
    assert links(prose(page)) == links(prose(original(page)))


@by_page
def test_headings_have_the_levels_of_the_original(page):
    theirs, ours = (re.findall(r"^(#+) ", prose(one), re.MULTILINE) for one in (original(page), page))
    assert ours == theirs


@by_page
def test_the_two_languages_link_to_each_other(page):
    assert f"]({original(page).name})" in prose(page)
    assert f"]({page.name})" in prose(original(page))


@by_page
def test_the_text_is_chinese(page):
    """At least a fifth of the letters of the prose, where names and numbers are Latin."""
    text = re.sub(r"`[^`\n]+`|\]\([^)]*\)", "", prose(page))
    chinese = len(re.findall(r"[一-鿿]", text))
    assert chinese > 0.2 * len(re.findall(r"\w", text))
