"""The way back of a pattern and its template."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.operations.reversal import turned


@pytest.mark.parametrize(
    ("pattern", "template", "back"),
    [
        (r"fc\.weight", "head.weight", (r"head\.weight", "fc.weight")),
        (r"(.*)\.qkv\.(weight|bias)", r"\1.q.\2", (r"(.*)\.q\.(weight|bias)", r"\1.qkv.\2")),
        (r"(?P<m>.*)\.a\.(\d+)", r"\2.\g<m>", (r"(\d+)\.(.*)", r"\2.a.\1")),
        (r"h(\d+)0\.w", r"\1.w", (r"(\d+)\.w", r"h\g<1>0.w")),
        (r"([a(\]]+)_x", r"\1", (r"([a(\]]+)", r"\1_x")),
        (r"(a(?:b|c)*)", r"x\1", (r"x(a(?:b|c)*)", r"\1")),
    ],
)
def test_text_and_plain_groups_are_turned_round(pattern: str, template: str, back: tuple[str, str]) -> None:
    assert turned(pattern, template) == back


@pytest.mark.parametrize(
    ("pattern", "template"),
    [
        (r"fc.weight", "head"),  # any letter
        (r"(.*)\.(\d+)", r"\1"),  # a group that the template leaves out
        (r"(?:a|b)\.w", "w"),
        (r"((a)b)", r"\1"),  # a group in a group
        (r"(a)\1", r"\1"),  # a look back
        (r"(a)+", r"\1"),
        (r"\d", "x"),
        ("a|b", "x"),
        (r"(a)", r"\g<0>.x"),
        ("a*", "x"),
        (r"(?i:a)", "x"),
        (r"(a)(?=b)b", r"\1"),
    ],
)
def test_what_does_not_tell_every_name_has_no_way_back(pattern: str, template: str) -> None:
    re.compile(pattern)

    assert turned(pattern, template) is None


def test_a_group_that_stands_twice_must_be_the_same_text_both_times() -> None:
    way = turned(r"(\w+)\.w", r"\1.\1")

    assert way is not None
    assert re.fullmatch(way[0], "a.a")
    assert re.fullmatch(way[0], "a.b") is None


def test_a_number_that_is_counted_stands_as_braces_on_the_other_side() -> None:
    stacked = turned(r"(.*)\.e\.(\d+)\.w", r"\1.e.w", counts=True)

    assert stacked == (r"(.*)\.e\.w", r"\1.e.{}.w")
    assert turned(*stacked, counts=True) == (r"(.*)\.e\.(\d+)\.w", r"\1.e.w")


def test_only_digits_are_counted() -> None:
    assert turned(r"(.*)\.e\.(\w+)\.w", r"\1.e.w", counts=True) is None


texts = st.text(st.sampled_from("ab0._-{}\\("), max_size=3).map(lambda text: (text, re.escape(text)))
groups = st.sampled_from([r"(\w+)", "([ab]+)", "(a|b)", "(0+)"]).map(lambda group: (None, group))


@given(st.lists(st.one_of(texts, groups), max_size=4), st.data())
def test_what_is_turned_round_leads_back_to_the_name(parts: list[tuple[str | None, str]], data: st.DataObject) -> None:
    pattern = "".join(escaped for _, escaped in parts)
    order = data.draw(st.permutations(range(1, re.compile(pattern).groups + 1)))
    template = "x" + "".join(rf"_\g<{n}>" for n in order)
    name = "".join(
        data.draw(st.from_regex(group, fullmatch=True, alphabet="ab0")) if text is None else text
        for text, group in parts
    )
    found = re.fullmatch(pattern, name)
    way = turned(pattern, template)
    assert found is not None
    assert way is not None
    back = re.fullmatch(way[0], found.expand(template))

    assert back is not None
    assert sorted(map(str, back.groups())) == sorted(found.groups())
    assert back.expand(way[1]) == name
