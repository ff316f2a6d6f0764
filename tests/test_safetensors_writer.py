"""safetensors: what is written the reference library opens, and what comes back is what was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.dtypes import BITS8, BY_SAFETENSORS, C128, F4, F32, QINT8, U8, DType
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, WriteOptions
from ckptmigrate.formats._safetensors_writer import lay_out
from ckptmigrate.tensor import Quantisation, Tensor, View
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


from .safetensors_desk import (
    BARE,
    DEFAULT,
    DUPLICATE,
    TORCH_DTYPES,
    Desk,
    draw,
    elements,
    entry,
    file,
    header_of,
    names,
    same_promise,
)


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with Disk() as disk:
        yield Desk(tmp_path, disk)


def test_the_library_opens_what_is_written_with_the_same_names_dtypes_shapes_and_bytes(desk: Desk) -> None:
    arrays: dict[str, Any] = {
        "é/ü": np.arange(6, dtype=np.float32).reshape(2, 3),
        "u": np.array([7], np.uint8),
        "d": np.array(2.5),
        "0": np.zeros((2, 0), np.float32),
    }
    written = desk.write({name: desk.tensor(array) for name, array in arrays.items()}, family="torch")
    path = desk.folder / "out.safetensors"
    path.write_bytes(written)
    with safetensors.safe_open(path, "np") as opened:
        theirs = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - safe_open is no mapping
        metadata = opened.metadata()

    assert metadata == {"format": "pt"}
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        assert (theirs[name].dtype, theirs[name].shape) == (array.dtype, array.shape)
        assert theirs[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES, F4], ids=str)
def test_the_library_opens_every_dtype_that_torch_has(desk: Desk, dtype: DType) -> None:
    raw = np.arange(12 * dtype.itemsize, dtype=np.uint8) % 2
    path = desk.folder / "out.safetensors"
    path.write_bytes(desk.write({"w": desk.tensor(raw, dtype, (3, 4))}))
    assert dtype.torch is not None
    with safetensors.safe_open(path, "pt") as opened:
        theirs = opened.get_tensor("w")

    assert (theirs.dtype, theirs.shape) == (getattr(torch, dtype.torch), (3, 4))
    assert theirs.view(torch.uint8).numpy().tobytes() == raw.tobytes()


@pytest.mark.parametrize("dtype", list(BY_SAFETENSORS.values()), ids=str)
def test_every_dtype_of_the_format_comes_back(desk: Desk, dtype: DType) -> None:
    raw = np.arange(12 * dtype.itemsize, dtype=np.uint8) % 2
    found = desk.read(desk.write({"w": desk.tensor(raw, dtype, (3, 4))}))

    assert found.tensors is not None
    assert isinstance(found.tensors["w"], Tensor)
    assert (found.tensors["w"].promise.dtype, found.tensors["w"].promise.shape) == (dtype, (3, 4))
    assert elements(found.tensors["w"]) == raw.tobytes()


def test_order_is_the_source_s_in_header_and_data(desk: Desk) -> None:
    written = desk.write({"b": desk.tensor(np.array([1], np.uint8)), "a": desk.tensor(np.array([2.0]))})

    assert list(header_of(written)) == ["b", "a"]
    assert header_of(written)["a"]["data_offsets"] == [1, 9]
    assert safetensors.torch.load(written)["a"].item() == 2.0


def test_the_data_begins_on_a_multiple_of_eight(desk: Desk) -> None:
    for length in range(1, 10):
        written = desk.write({"n" * length: desk.tensor(np.array([1], np.uint8))})

        assert (len(written) - 1) % 8 == 0


def test_e11_a_transposed_view_is_written_row_major(desk: Desk) -> None:
    data = desk.source(np.arange(6, dtype=np.float32).tobytes(), "data")
    view = View(data.range(0, 24), F32, (3, 2), (4, 12))
    written = safetensors.numpy.load(desk.write({"t": Tensor(view)}))

    assert written["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_same_parts_give_the_same_bytes(desk: Desk) -> None:
    tensors = {"a": desk.tensor(np.arange(5.0)), "b": desk.tensor(np.arange(3, dtype=np.uint8))}

    assert desk.write(tensors, notes={"versions": {"x": "1"}}) == desk.write(tensors, notes={"versions": {"x": "1"}})


def test_a_bare_file_of_one_tensor_is_byte_for_byte_the_library_s(desk: Desk) -> None:
    ours = desk.write({"w": desk.tensor(np.arange(4, dtype=np.float32))}, BARE, family="torch", notes={"versions": {}})

    assert ours == safetensors.torch.save({"w": torch.arange(4.0)}, {"format": "pt"})


def test_format_pt_is_written_for_torch_only(desk: Desk) -> None:
    tensors = {"w": desk.tensor(np.arange(4.0))}

    assert "__metadata__" not in header_of(desk.write(tensors, family="burn"))
    assert header_of(desk.write(tensors, family="torch"))["__metadata__"] == {"format": "pt"}


# --- ties


def tied(desk: Desk) -> dict[str, Tensor]:
    shared = desk.tensor(np.arange(6.0).reshape(2, 3))
    return {"emb.weight": shared, "head.weight": Tensor(shared.promise), "last": desk.tensor(np.arange(2.0))}


def test_e01_a_tied_name_is_written_once_and_recorded_as_save_model_does(desk: Desk) -> None:
    written = desk.write(tied(desk))

    assert header_of(written)["__metadata__"]["head.weight"] == "emb.weight"
    assert set(safetensors.torch.load(written)) == {"emb.weight", "last"}


def test_e01_load_model_of_the_library_takes_the_tied_file(desk: Desk) -> None:
    model = torch.nn.ModuleDict(
        {"emb": torch.nn.Linear(3, 2, bias=False), "head": torch.nn.Linear(3, 2, bias=False)}
    ).double()
    model["head"].weight = model["emb"].weight
    path = desk.folder / "tied.safetensors"
    tensors = tied(desk)
    del tensors["last"]
    path.write_bytes(desk.write(tensors, family="torch"))

    assert safetensors.torch.load_model(model, path) == (set(), [])
    assert model["head"].weight.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_tied_names_come_back_in_their_order_and_notes_as_they_were(desk: Desk) -> None:
    found = desk.read(desk.write(tied(desk), notes={"versions": {"x": "1"}}, facts={"metadata": {"k": "v"}}))

    assert names(found) == ["emb.weight", "head.weight", "last"]
    assert same_promise(found, "emb.weight", "head.weight")
    assert (found.notes, found.facts["metadata"]) == ({"versions": {"x": "1"}}, {"k": "v"})


@pytest.mark.parametrize("options", [BARE, DUPLICATE])
def test_ties_are_duplicated_when_asked_and_in_a_bare_file(desk: Desk, options: WriteOptions) -> None:
    written = safetensors.torch.load(desk.write(tied(desk), options))

    assert torch.equal(written["emb.weight"], written["head.weight"])
    assert len(written) == 3


def test_disjoint_and_overlapping_views_of_one_range_are_no_ties(desk: Desk) -> None:
    place = desk.source(np.arange(6, dtype=np.uint8).tobytes(), "data").range(0, 6)
    views = {
        "a": Tensor(View(place, U8, (3,), (1,), 0)),
        "b": Tensor(View(place, U8, (3,), (1,), 3)),
        "c": Tensor(View(place, U8, (4,), (1,), 1)),
    }
    written = safetensors.torch.load(desk.write(views))

    assert {name: value.tolist() for name, value in written.items()} == {
        "a": [0, 1, 2],
        "b": [3, 4, 5],
        "c": [1, 2, 3, 4],
    }


def test_empty_tensors_are_never_tied(desk: Desk) -> None:
    empty = desk.tensor(np.zeros((0, 2), np.float32))
    written = desk.write({"a": empty, "b": empty})

    assert header_of(written) == {name: entry(0, 0, "F32", [0, 2]) for name in ("a", "b")}


@pytest.mark.parametrize("key", ["head.weight", "ckptmigrate", "format"])
def test_a_tied_name_that_the_metadata_needs_is_a_problem(desk: Desk, key: str) -> None:
    shared = desk.tensor(np.arange(2.0))
    parts = Parts(family="torch", tensors={"a": shared, key: shared}, facts={"metadata": {"head.weight": "x"}})

    (problem,) = lay_out(parts, WriteOptions(), "m").problems
    assert f'"{key}" is tied to "a"' in problem
    assert lay_out(parts, DUPLICATE, "m").problems == []


def test_text_that_names_a_tensor_by_chance_comes_back_as_text(desk: Desk) -> None:
    found = desk.read(desk.write(tied(desk), facts={"metadata": {"best": "last"}}))

    assert names(found) == ["emb.weight", "head.weight", "last"]
    assert found.facts["metadata"] == {"best": "last"}


def test_ties_of_a_file_that_another_tool_cut_down_stay_in_order(desk: Desk) -> None:
    header = {
        "__metadata__": {"t": "a", "u": "a", "ckptmigrate": '{"ties":{"t":900,"u":1,"gone":0}}'},
        "a": entry(0, 1), "b": entry(1, 2),
    }  # fmt: skip

    assert names(desk.read(file(header, b"xy"))) == ["a", "u", "b", "t"]


NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda name: name not in {"__metadata__", "ckptmigrate", "format"}
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    layout=st.lists(st.tuples(NAME, st.integers(0, 3)), unique_by=lambda pair: pair[0], max_size=8),
    metadata=st.dictionaries(NAME, NAME, max_size=3),
)
def test_names_order_ties_metadata_and_notes_survive(
    desk: Desk, layout: list[tuple[str, int]], metadata: dict[str, str]
) -> None:
    pool = [desk.tensor(np.arange(size, dtype=np.uint8)) for size in range(4)]
    tensors: dict[str, Tensor | Scalar] = {name: pool[which] for name, which in layout}
    metadata = {key: value for key, value in metadata.items() if key not in tensors}
    written = desk.write(tensors, family="torch", notes={"a": [1]}, facts={"metadata": metadata})
    found = desk.read(written)

    assert names(found) == list(tensors)
    assert found.tensors is not None
    assert [elements(tensor) for tensor in found.tensors.values()] == [elements(tensor) for tensor in tensors.values()]
    assert (found.family, found.facts["metadata"], found.notes) == ("torch", metadata, {"a": [1]})
    assert set(safetensors.torch.load(written)) <= set(tensors)


# --- problems


@pytest.mark.parametrize(
    ("dtype", "says"),
    [(C128, "is C128 (complex128), which safetensors cannot hold"), (BITS8, "is BITS8"), (QINT8, "--dequantize")],
    ids=str,
)
def test_e13_a_dtype_without_a_spelling_is_a_problem_that_names_tensor_and_dtype(
    desk: Desk, dtype: DType, says: str
) -> None:
    tensor = desk.tensor(np.zeros(dtype.itemsize, np.uint8), dtype, (1,))

    (problem,) = lay_out(Parts(tensors={"freqs": tensor}), WriteOptions(), "m").problems
    assert 'tensor "freqs"' in problem
    assert says in problem


def test_all_problems_are_told_at_once(desk: Desk) -> None:
    one = desk.tensor(np.zeros(1, np.uint8))
    parts = Parts(
        tensors={
            "step": Scalar("int", 3),
            "__metadata__": one,
            "\ud800": one,
            "q": Tensor(one.promise, quant=Quantisation("per_tensor", 1.0, 0)),
            "f": desk.tensor(np.zeros(1, np.uint8), F4, ()),
        },
        facts={"metadata": {"n": 1}},
    )

    assert len(lay_out(parts, WriteOptions(), "m").problems) == 6


def test_a_tree_is_a_problem() -> None:
    (problem,) = lay_out(Parts(tree={"a": 1}), DEFAULT, "m").problems

    assert problem == "dict of 1 is a tree, and safetensors holds tensors by name"


def test_a_bare_file_leaves_out_text_that_a_reader_would_take_for_a_tie(desk: Desk) -> None:
    parts = Parts(tensors={"w": desk.tensor(np.arange(2.0))}, facts={"metadata": {"best": "w", "k": "v"}})
    blueprint = lay_out(parts, BARE, "m")

    assert [path for path, _ in blueprint.left_out] == ["metadata/best"]
    assert header_of(draw(blueprint))["__metadata__"] == {"k": "v"}


@pytest.mark.parametrize("options", [DEFAULT, BARE])
def test_a_caller_s_metadata_never_overwrites_the_stamp(desk: Desk, options: WriteOptions) -> None:
    parts = Parts(tensors={}, facts={"metadata": {"ckptmigrate": "forged"}}, notes={"versions": {"x": "1"}})
    blueprint = lay_out(parts, options, "m")
    metadata = header_of(draw(blueprint)).get("__metadata__", {})

    assert metadata.get("ckptmigrate") == (None if options.bare else '{"versions":{"x":"1"}}')
    assert [path for path, _ in blueprint.left_out] == ["metadata/ckptmigrate"]


def test_more_texts_or_notes_than_the_reader_takes_are_problems(desk: Desk) -> None:
    tensor = desk.tensor(np.zeros(1, np.float32))
    texts = {"metadata": {str(at): "" for at in range(100_000)}}
    many = lay_out(Parts(tensors={"a": tensor}, facts=texts), DEFAULT, "m.safetensors").problems
    long = lay_out(Parts(tensors={"a": tensor}, notes={"x": "y" * (16 << 20)}), DEFAULT, "m.safetensors").problems

    assert [text.partition(" ")[0] for text in many] == ["100000"]
    assert "of text, readers take 16777216" in long[0]
