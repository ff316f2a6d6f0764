"""Patterns, groups, inverses and spellings of operations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.errors import UsageError
from ckptmigrate.operations import (
    Drop,
    Group,
    Operation,
    Reason,
    Rename,
    bind,
    literal,
    many_to_one,
    numeral,
    one_to_many,
    skipped,
)

names = st.lists(
    st.text(st.sampled_from("ab01._-"), min_size=1, max_size=6).filter(lambda n: "\n" not in n),
    min_size=1,
    max_size=6,
    unique=True,
)


def renamed(operation: Operation, given_names: list[str]) -> dict[str, str]:
    return {g.sources[0]: g.targets[0] for g in operation.match(dict.fromkeys(given_names)) if g.sources}


def test_a_pattern_matches_a_whole_name() -> None:
    assert renamed(Rename("fc", "head"), ["fc", "fc.weight", "xfc"]) == {"fc": "head"}


def test_groups_of_a_pattern_stand_in_the_template() -> None:
    found = renamed(Rename(r"features\.(\d+)\.(?P<leaf>.*)", r"stem.\1.\g<leaf>"), ["features.12.weight", "other"])

    assert found == {"features.12.weight": "stem.12.weight"}


def test_several_patterns_rename_at_once_so_a_swap_works() -> None:
    swap = Rename({r"a\.(.*)": r"b.\1", r"b\.(.*)": r"a.\1"})

    assert renamed(swap, ["a.w", "b.w", "c.w"]) == {"a.w": "b.w", "b.w": "a.w"}


def test_of_several_patterns_the_first_that_matches_counts() -> None:
    assert renamed(Rename({r"a\.w": "x", r"a\..*": "y"}), ["a.w", "a.b"]) == {"a.w": "x", "a.b": "y"}


def test_a_pattern_that_matches_nothing_is_a_gap_even_beside_one_that_does() -> None:
    groups = Rename({"a": "x", "b": "y"}).match({"a": None})

    assert groups == [Group(("a",), ("x",)), Group((), (), missing=("b",))]


@given(names, names)
def test_the_inverse_of_a_literal_rename_brings_every_name_back_and_touches_no_bystander(
    old: list[str], new: list[str]
) -> None:
    pairs = dict(zip(old, new, strict=False))
    operation = Rename({re.escape(a): b for a, b in pairs.items()}, optional=True)
    back = operation.inverse()
    assert isinstance(back, Rename)
    bystanders = [n for n in ("zz", "zz.a") if n not in pairs]

    forward = renamed(operation, [*pairs, *bystanders])
    assert forward == pairs
    assert {n: renamed(back, [*forward.values(), *bystanders]).get(n, n) for n in forward.values()} == {
        b: a for a, b in forward.items()
    }
    assert not set(bystanders) & set(renamed(back, [*forward.values(), *bystanders]))


def test_a_rename_whose_pattern_is_a_regular_expression_has_no_inverse_and_says_so() -> None:
    reason = Rename(r"a\.(.*)", r"b.\1").inverse()

    assert isinstance(reason, Reason)
    assert "back=" in reason.text


def test_an_unescaped_dot_is_a_regular_expression() -> None:
    assert isinstance(Rename("fc.weight", "head.weight").inverse(), Reason)


def test_back_says_what_the_names_were() -> None:
    operation = Rename(r"a\.(.*)", r"b.\1", back=(r"b\.(.*)", r"a.\1"))

    assert operation.inverse() == Rename(r"b\.(.*)", r"a.\1")


def test_two_literals_that_become_one_name_have_no_inverse() -> None:
    assert isinstance(Rename({"a": "x", "b": "x"}).inverse(), Reason)


def test_what_was_dropped_does_not_come_back() -> None:
    reason = Drop("a", reason="the head was retired").inverse()

    assert isinstance(reason, Reason)
    assert "the head was retired" in reason.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rename("(", "a"),
        lambda: Rename("a", r"\1"),
        lambda: Rename("(a)", r"\2"),
        lambda: Rename(5, 6),  # type: ignore[arg-type] # what a maintainer may write
        lambda: Rename({"a": 6}),  # type: ignore[dict-item] # same
        lambda: Drop("[", "x"),
        lambda: Rename("a", "b", back=("(", "a")),
        lambda: Rename("a", "b", back=("(a)", r"\2")),
    ],
)
def test_a_wrong_pattern_or_template_is_refused_where_it_is_written(make: object) -> None:
    with pytest.raises(UsageError, match="pattern"):
        make()  # type: ignore[operator] # one of the lambdas


def test_names_of_something_that_does_not_exist_are_refused_where_they_are_written() -> None:
    with pytest.raises(UsageError, match="on='slot': expected model, slots, values, items"):
        Rename("a", "b", on="slot")  # type: ignore[arg-type] # what a maintainer may write


def test_a_drop_says_why() -> None:
    with pytest.raises(UsageError, match="does not say why"):
        Drop("a", " ")


def test_a_template_may_name_any_group_even_an_optional_one() -> None:
    assert renamed(Rename(r"(x\.)?(?P<n>\w+)", r"\1\g<n>_"), ["x.a", "b"]) == {"x.a": "x.a_", "b": "b_"}


def test_a_split_gives_every_target_of_a_name() -> None:
    groups = one_to_many(["h.0.qkv", "norm"], r"(.*)\.qkv", [r"\1.q", r"\1.k", r"\1.v"])

    assert groups == [Group(("h.0.qkv",), ("h.0.q", "h.0.k", "h.0.v"))]


def test_sources_of_one_target_stand_in_the_order_of_the_patterns() -> None:
    groups = many_to_one(["h.0.v", "h.0.k", "h.0.q"], [r"(.*)\.q", r"(.*)\.k", r"(.*)\.v"], r"\1.qkv")

    assert groups == [Group(("h.0.q", "h.0.k", "h.0.v"), ("h.0.qkv",))]


def test_sources_of_one_pattern_stand_in_the_order_of_their_numbers() -> None:
    given_names = [f"e.{n}.w" for n in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)]

    assert many_to_one(given_names, [r"e\.\d+\.w"], "e.w")[0].sources == tuple(f"e.{n}.w" for n in range(11))


def test_a_group_that_lacks_a_member_names_the_pattern() -> None:
    groups = many_to_one(["h.0.q", "h.0.k", "h.1.q"], [r"(.*)\.q", r"(.*)\.k"], r"\1.qk")

    assert [group.missing for group in groups] == [(), (r"(.*)\.k",)]


def test_a_number_that_is_skipped_is_a_missing_member() -> None:
    assert many_to_one(["e.0.w", "e.1.w", "e.3.w"], [r"e\.\d+\.w"], "e.w")[0].missing == ("e.2.w",)


def test_what_a_file_claims_of_numbers_costs_nothing() -> None:
    names = ["e.0.w", "e.99999999999999999.w", f"e.{'9' * 6000}.w", "e.\u0663.w"]

    assert len(skipped(names[:2])) == 100
    assert many_to_one(names, [r"e\.\d+\.w"], "e.w")[0].sources[0] == "e.0.w"


def test_among_many_exact_names_and_patterns_the_first_that_matches_counts() -> None:
    operation = Rename({r"a\.0": "zero", r"a\.\d": "digit", r"a\.1": "one", **{f"b{n}": f"c{n}" for n in range(50)}})

    assert renamed(operation, ["a.0", "a.1", "b7", "x"]) == {"a.0": "zero", "a.1": "digit", "b7": "c7"}


@given(st.lists(st.integers(0, 400), min_size=1, max_size=20, unique=True))
def test_names_sort_by_their_numbers(numbers: list[int]) -> None:
    ordered = sorted((f"h.{n}.w" for n in numbers), key=numeral)

    assert ordered == [f"h.{n}.w" for n in sorted(numbers)]


@given(st.sets(st.integers(0, 30), min_size=2))
def test_skipped_gives_what_is_absent_between_the_lowest_and_the_highest(numbers: set[int]) -> None:
    expected = [f"e{n}w" for n in range(min(numbers), max(numbers)) if n not in numbers]

    assert skipped([f"e{n}w" for n in sorted(numbers)]) == expected


@given(st.text(st.characters(codec="utf-8", exclude_characters="\n\t\r\f\v "), min_size=1, max_size=8))
def test_a_literal_pattern_is_the_one_text_that_it_matches(text: str) -> None:
    assert literal(re.escape(text)) == text


def test_a_spelling_is_what_an_author_would_write() -> None:
    assert Rename("a", "b", optional=True).describe() == "Rename('a', 'b', optional=True)"
    assert Drop("a", reason="gone").describe() == "Drop('a', 'gone')"
    assert Drop("a", "gone", optional=True).describe() == "Drop('a', 'gone', optional=True)"
    assert Rename("a", "b", ("b", "a")).describe() == "Rename('a', 'b', back=('b', 'a'))"


def test_plain_values_hold_only_what_was_declared() -> None:
    assert Rename("a", "b").as_dict() == {"operation": "Rename", "pattern": "a", "into": "b"}


def test_the_order_of_patterns_is_part_of_the_plain_values() -> None:
    assert Rename({"a": "x", "b": "y"}).as_dict() != Rename({"b": "y", "a": "x"}).as_dict()


def test_an_operation_without_named_numbers_is_bound_already() -> None:
    operation = Rename("a", "b")

    assert bind(operation, {}) == (operation, [])
