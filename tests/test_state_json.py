"""training_state.json: our own object is read as it lies, and what is not ours is refused by what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ckptmigrate.errors import CorruptError, LimitError, UnsupportedFormatError
from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.formats.state_json import FORMAT
from ckptmigrate.limits import LIMITS
from ckptmigrate.testing import Memory, written

NOTES = {"major": 1, "versions": {"acme.vit": "2.0"}, "record": {"family": "x", "progress": {"epoch": 3}}}


def lay_out(notes: dict[str, Any]) -> bytes:
    assert FORMAT.lay_out is not None
    return written(FORMAT.lay_out(Parts(tensors={}, notes=notes), WriteOptions(), "training_state.json"))[
        "training_state.json"
    ]


def read(text: str | bytes) -> Parts:
    return FORMAT.read(Memory(text.encode() if isinstance(text, str) else text, "training_state.json"), ReadOptions())


def test_the_object_comes_back_with_its_version_first() -> None:
    assert list(read(lay_out(NOTES)).notes.items()) == [("ckptmigrate", 1), *NOTES.items()]


def test_what_was_read_is_written_back_byte_for_byte() -> None:
    data = lay_out(NOTES)

    assert lay_out(read(data).notes) == data
    assert data.startswith(b'{"ckptmigrate":1,')
    assert data.endswith(b"}\n")


def test_an_object_that_an_editor_spread_out_is_read() -> None:
    spread = json.dumps({"ckptmigrate": 1, **NOTES}, indent=4).encode()

    assert FORMAT.sniff(Memory(spread)) is not None
    assert read(spread).notes["record"] == NOTES["record"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"weight_map": {}}', '{"record": {}, "ckptmigrate": 1}', '"ckptmigrate"']
)
def test_json_of_others_is_not_claimed(text: str) -> None:
    assert FORMAT.sniff(Memory(text.encode())) is None


def test_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"training_state\.json: version 2 .* reads 1"):
        read('{"ckptmigrate": 2, "record": 5}')


@pytest.mark.parametrize(
    "text",
    [
        '{"ckptmigrate": "1"}',
        '{"ckptmigrate": true}',
        '{"ckptmigrate": 0}',
        '{"ckptmigrate": 1.0}',
        '{"ckptmigrate": 1, "record": []}',
        '{"ckptmigrate": 1, "stamp": null}',
        '{"ckptmigrate": 1, "ckptmigrate": 1}',
        '{"ckptmigrate": 1, "x": NaN}',
        '{"ckptmigrate": 1} {}',
        '{"ckptmigrate": 1',
        '["ckptmigrate"]',
    ],
)
def test_what_is_no_object_of_ours_is_refused_with_the_file(text: str) -> None:
    with pytest.raises(CorruptError, match=r"training_state\.json: "):
        read(text)


def test_a_text_beyond_the_limit_is_refused_before_it_is_read() -> None:
    source = Memory(lay_out(NOTES))
    with pytest.raises(LimitError, match="limit is 10"):
        FORMAT.read(source, ReadOptions(limits=replace(LIMITS, text=10)))

    assert source.taken == [0]


def test_trees_and_tensors_are_problems() -> None:
    assert FORMAT.lay_out is not None
    problems = FORMAT.lay_out(Parts(tree=[1]), WriteOptions(), "training_state.json").problems

    assert problems == ["list of 1 is a tree, and training_state.json holds one record only"]
