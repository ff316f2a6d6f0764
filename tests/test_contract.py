"""Every format keeps one contract: files of the museum, and what each writer writes, against the whole suite.

The examples are found by content: every file under fixtures/ belongs to the format that claims it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.package import PackageExporter

from ckptmigrate import registry, store
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Progress, Stamp
from ckptmigrate.dtypes import DTYPES, F32, U8
from ckptmigrate.errors import CkptError
from ckptmigrate.files import Range
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import Format, GatherOptions, Match, Parts, ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.testing import (
    EVERYWHERE,
    Memory,
    assert_same_checkpoint,
    check_flips,
    check_reads_lazily,
    check_refuses_others,
    check_round_trip,
    check_same_bytes_twice,
    check_sniffs_own,
    check_truncation,
    checkpoints,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.files import Source

FIXTURES = Path(__file__).parent / "fixtures"
LARGEST = 1 << 20  # fixtures are small; a larger one is for tests of its own
MOST = 3  # of each format: the suite reads an example some five thousand times
SCHEMAS = [json.loads(path.read_text()) for path in sorted(FIXTURES.rglob("schema*.json"))]
OPTIONS = ReadOptions(dequantize=True, densify=True, inert_calls=True)


class Example(NamedTuple):
    form: Format
    name: str
    data: bytes
    readable: bool  # False: recognised and refused by name
    options: ReadOptions = OPTIONS


def parts(form: Format) -> Parts:
    """Give parts with what every writer must hold: views of all kinds, ties, nothing in them, no dimension; notes where none are."""
    data = bytes(range(256)) * 4
    file = Memory(data).range(0, len(data)).file
    two = View.rows(Range(file, 4, 24), F32, (2, 3))
    tensors = {
        "fc.weight": Tensor(two),
        "fc.turned": Tensor(two.transpose((1, 0))),
        "tied.weight": Tensor(two),
        "empty": Tensor(View.rows(Range(file, 0, 0), F32, (0, 3))),
        "scalar": Tensor(View.rows(Range(file, 40, 4), F32, ())),
        "bytes": Tensor(View.rows(Range(file, 100, 300), U8, (300,))),
    }
    notes = {"major": 1, "versions": {"acme": "1.0"}}
    if form.speaks == "tree":
        tree = {
            "state": dict(tensors),
            "lr": 0.1,
            "betas": (0.9, float("inf")),
            3: None,
            "raw": b"\x00\xff",
            "big": 1 << 70,
        }
        return Parts(family=form.family, tree=tree, notes=notes)
    if form.standard is None:
        return Parts(tensors={}, notes={"ckptmigrate": 1, **notes, "record": {"family": "x"}})
    return Parts(family=form.family, tensors=dict(tensors), notes=notes)


def made_by_others() -> list[bytes]:
    """Give files that no fixture is of, made by those who define them."""
    package = io.BytesIO()
    with PackageExporter(package) as exporter:
        exporter.save_pickle("model", "weights.pkl", {"w": torch.ones(2)})
    return [pickle.dumps({"blobs": {"w": np.ones(3)}}, protocol) for protocol in (0, 2, 4)] + [package.getvalue()]


@cache
def examples() -> dict[str, list[Example]]:
    """Give the examples by format: what it writes, and the smallest files of the museum that it claims."""
    found: dict[str, list[Example]] = {form.name: [] for form in registry.formats()}
    for form in registry.formats():
        if form.lay_out is not None:
            (data,) = written(form.lay_out(parts(form), WriteOptions(), "written")).values()
            found[form.name].append(Example(form, "written", data, readable=True))
    files = [path for path in FIXTURES.rglob("*") if path.is_file() and path.stat().st_size <= LARGEST]
    datas = [(str(path.relative_to(FIXTURES)), path.read_bytes()) for path in files]
    datas += [(f"made-{number}", data) for number, data in enumerate(made_by_others())]
    for name, data in sorted(datas, key=lambda named: (len(named[1]), named[0])):
        for form in registry.formats():
            match = form.sniff(Memory(data))
            options = None if match is None or len(found[form.name]) == MOST else reading(form, data)
            if match is not None and (options or (match.refuse and len(found[form.name]) < MOST)):
                readable = match.refuse is None
                found[form.name].append(Example(form, name, data, readable, options or OPTIONS))
    return found


def reading(form: Format, data: bytes) -> ReadOptions | None:
    """Give the options that a file is read with: what an encoding without names needs is a schema, and only one fits."""
    for schema in (None, *SCHEMAS):
        options = dataclasses.replace(OPTIONS, schema=schema)
        try:
            form.read(Memory(data), options)
        except CkptError as error:
            if not any("schema" in text for text in (error.message, *error.hints)):
                return None
        else:
            return options
    return None


FOUND = [example for found in examples().values() for example in found]
ALL = [pytest.param(example, id=f"{example.form.name}-{example.name}") for example in FOUND]
READABLE = [pytest.param(example, id=f"{example.form.name}-{example.name}") for example in FOUND if example.readable]
WRITERS = [pytest.param(form, id=form.name) for form in registry.formats() if form.lay_out is not None]


PAIRS = [
    pytest.param(form, family.name, id=f"{form.name}-{family.name}")
    for form in registry.formats()
    for family in registry.families()
    if form.lay_out is not None and form.standard is not None and form.family in {None, family.name}
]


def test_every_format_has_an_example() -> None:
    assert [name for name, found in examples().items() if not found] == []


@pytest.mark.parametrize("example", ALL)
def test_a_format_claims_its_own(example: Example) -> None:
    check_sniffs_own(example.form, example.data)


@pytest.mark.parametrize("form", registry.formats(), ids=lambda form: form.name)
def test_a_format_claims_nothing_of_others(form: Format) -> None:
    for name, found in examples().items():
        for example in found if name != form.name else []:
            check_refuses_others(form, example.data)


@pytest.mark.parametrize("example", READABLE)
def test_reading_draws_no_tensor(example: Example) -> None:
    check_reads_lazily(example.form, example.data, example.options)


@pytest.mark.parametrize("example", ALL)
def test_a_file_cut_anywhere_is_refused_or_says_the_same(example: Example) -> None:
    check_truncation(example.form, example.data, options=example.options, clock=time.monotonic)


@pytest.mark.parametrize("example", ALL)
def test_a_flipped_bit_gives_a_result_or_an_error_of_the_tree(example: Example) -> None:
    check_flips(example.form, example.data, options=example.options, clock=time.monotonic)


@pytest.mark.parametrize("form", WRITERS)
def test_a_writer_gives_the_same_bytes_twice(form: Format) -> None:
    check_same_bytes_twice(form, parts(form))


@pytest.mark.parametrize("form", WRITERS)
def test_what_a_writer_lays_out_its_reader_gives_back(form: Format) -> None:
    check_round_trip(form, parts(form))


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize(("form", "family"), PAIRS)
def test_a_generated_checkpoint_comes_back_whole(form: Format, family: str, data: st.DataObject) -> None:
    tree = form.speaks == "tree"
    dtypes = EVERYWHERE if tree else [dtype for dtype in DTYPES if dtype.safetensors]
    if form.family is not None and not tree:
        dtypes = [dtype for dtype in DTYPES if dtype.burn]
    assert_comes_back(data.draw(checkpoints(family, dtypes, tree=tree)), form)


def assert_comes_back(checkpoint: Checkpoint, form: Format) -> None:
    """Scatter, lay out, write, publish, open, gather: identity, and a second time the same bytes."""
    assert checkpoint.disk is not None
    layout = registry.layout(form.standard or "")
    with checkpoint.disk, TemporaryDirectory() as folder:
        blueprint = store.lay_out(store.scatter(checkpoint, form, layout, WriteOptions()), WriteOptions())
        assert blueprint.problems == []
        assert blueprint.left_out == []
        one_file = form.speaks == "tree"
        with Sink(Path(folder) / "written", folder=not one_file) as sink:
            store.write(blueprint, sink)
            sink.publish(last=blueprint.last)
        with store.open_checkpoint(sink.target, None, GatherOptions(names=False)) as back:
            assert_same_checkpoint(checkpoint, back)
            assert back.ledger.unexplained() == []
            again = store.lay_out(store.scatter(back, form, layout, WriteOptions()), WriteOptions())
            assert written(again) == written(blueprint)


# ---------------------------------------------------------------- the suite finds what it is for


def toy(read: Callable[[Source, ReadOptions], Parts]) -> Format:
    """Give a format: its claim is one byte, its content one tensor of whatever follows it."""
    form = Format(
        "toy", sniff=lambda source: Match(form) if source.size > 1 and source.read(0, 1) == b"T" else None, read=read
    )
    return form


def whole(source: Source, options: ReadOptions) -> Parts:
    return Parts(tensors={"x": Tensor(View.rows(source.range(1, source.size - 1), U8, (source.size - 1,)))})


def test_a_reader_that_draws_is_found() -> None:
    def draws(source: Source, options: ReadOptions) -> Parts:
        parts = whole(source, options)
        held = (parts.tensors or {})["x"]
        assert isinstance(held, Tensor)
        held.promise.read(0, 1)
        return parts

    with pytest.raises(AssertionError, match="were drawn while reading"):
        check_reads_lazily(toy(draws), b"Tabc")


def test_a_reader_that_takes_all_bytes_is_found() -> None:
    def takes(source: Source, options: ReadOptions) -> Parts:
        source.read(0, source.size)
        return whole(source, options)

    with pytest.raises(AssertionError, match="toy read 1000000 of 1000000 bytes"):
        check_reads_lazily(toy(takes), b"T" * 1_000_000)


def test_a_reader_that_takes_a_cut_file_for_whole_is_found() -> None:
    with pytest.raises(
        AssertionError, match=r"toy cut to 2 of 4 bytes is read, and says other things: 0/x: .*\[3\].*\[1\]"
    ):
        check_truncation(toy(whole), b"Tabc")


def test_a_reader_that_fails_by_another_exception_is_found() -> None:
    def fails(source: Source, options: ReadOptions) -> Parts:
        return Parts(tensors={}, notes={"text": source.read(1, source.size - 1).decode("ascii")})

    with pytest.raises(UnicodeDecodeError) as caught:
        check_flips(toy(fails), b"T" + b"abc" * 4)

    assert caught.value.__notes__ == ["toy, bit 7 of byte 7 flipped: expected a result or a CkptError"]


def test_a_reader_that_takes_minutes_is_found() -> None:
    hours = iter(range(0, 1 << 20, 3600))

    with pytest.raises(AssertionError, match=r"toy, .*: took 3600\.0 s"):
        check_flips(toy(whole), b"Tabc", clock=lambda: float(next(hours)))


def test_checkpoints_that_differ_are_told_apart() -> None:
    names = ("family", "model", "twins", "modules", "optimizers", "schedulers", "values", "progress", "stamp")
    tensor = Tensor(View.rows(Memory(bytes(4)).range(0, 4), F32, ()))
    others: dict[str, Any] = {
        "family": "y", "model": {"w": tensor}, "twins": {"ema": {}}, "modules": {"": {}}, "optimizers": [Optimizer()],
        "schedulers": [None], "values": {"rng": 1}, "progress": Progress(epoch=1), "stamp": Stamp({"a": "1"}),
    }  # fmt: skip
    for name in names:
        with pytest.raises(AssertionError, match=name):
            assert_same_checkpoint(Checkpoint(family="x"), replace(Checkpoint(family="x"), **{name: others[name]}))


def test_ties_that_came_apart_are_told() -> None:
    data = bytes(8)
    tied, apart = (Tensor(View.rows(Memory(data).range(0, 8), F32, (2,))) for _ in range(2))

    assert_same_checkpoint(Checkpoint("x", {"a": tied, "b": tied}), Checkpoint("x", {"a": apart, "b": apart}))
    with pytest.raises(AssertionError, match="model: tied are"):
        assert_same_checkpoint(Checkpoint("x", {"a": tied, "b": tied}), Checkpoint("x", {"a": tied, "b": apart}))
