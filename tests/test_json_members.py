"""JSON that is read member by member is the JSON that is read at once, and is refused where that is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.errors import CorruptError, LimitError
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import Members, loads

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def piecewise(text: str) -> Any:
    reader = Members(text, LIMITS)
    found = {name: reader.value() for name in reader.members()}
    reader.end()
    return found


@given(st.dictionaries(st.text(), values), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_members_are_those_that_json_finds(tree: dict[str, Any], indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)

    assert piecewise(text) == loads(text) == tree
    assert list(piecewise(text)) == list(tree)


@given(st.dictionaries(st.text(), values, min_size=1), st.data())
def test_a_damaged_text_is_refused_in_both_ways_or_in_neither(tree: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(tree)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "x", ",", "}", '"', ":", "[", "\\"])) + text[at + 1 :]
    try:
        expected = json.loads(damaged)
    except ValueError:
        expected = None
    if isinstance(expected, dict) and damaged.count('"') // 2 >= len(expected):
        try:
            assert piecewise(damaged) == expected
        except CorruptError as error:
            assert "name" in error.data or "token" in error.data  # noqa: PT017 - the two things that json lets pass
    else:
        with pytest.raises((CorruptError, LimitError)):
            piecewise(damaged)


def test_a_value_longer_than_allowed_is_refused_with_its_place_and_one_as_long_is_not() -> None:
    for text, longest in (('{"a": 12345}', 5), ('{"a": "xyz"}', 5), ('{"a": [1,2]}', 5)):
        reader = Members(text, LIMITS)
        assert [reader.value(longest) for _ in reader.members()] == [json.loads(text)["a"]]
        reader = Members(text, LIMITS)
        with pytest.raises(LimitError) as refusal:
            [reader.value(longest - 1) for _ in reader.members()]
        assert refusal.value.data == {"limit": longest - 1, "offset": 6}
