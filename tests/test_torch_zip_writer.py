"""The torch zip writer: torch itself loads what is written; what it would not load is told."""

from __future__ import annotations

import io
import shutil
import zipfile
import zlib
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.serialization import config

from ckptmigrate.dtypes import F6_E2M3, F32, I64, QINT8, U8, U16, DType
from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Parts
from ckptmigrate.formats._torch_zip_writer import lay_out
from ckptmigrate.tensor import Quantisation, Tensor, View
from ckptmigrate.values import NOTHING, Inert, Known, Ordered, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ckptmigrate.format import Blueprint

from .torch_zip_desk import DEFAULT, DUPLICATE, WRITABLE, Desk, draw, equal


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with Disk() as disk:
        yield Desk(tmp_path, disk)


# --- torch loads it


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("dtype", WRITABLE, ids=str)
def test_torch_loads_every_dtype_that_it_has(desk: Desk, dtype: DType, mmap: bool) -> None:
    raw = (torch.arange(6 * dtype.itemsize) % 2).to(torch.uint8)
    assert dtype.torch is not None
    value = raw.view(getattr(torch, dtype.torch)).reshape(2, 3)
    loaded = torch.load(desk.write({"w": desk.tensor(value)}), weights_only=True, mmap=mmap)

    assert loaded["w"].dtype == value.dtype
    assert loaded["w"].shape == (2, 3)
    assert loaded["w"].stride() == (3, 1)
    assert not loaded["w"].requires_grad
    assert loaded["w"].view(torch.uint8).flatten().tolist() == raw.tolist()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (3, 1, 2), (0, 0)])
def test_every_shape_has_torch_s_own_strides(desk: Desk, shape: tuple[int, ...]) -> None:
    value = torch.zeros(shape)

    assert equal(desk.load([desk.tensor(value)]), [value])


def test_torch_finds_storages_by_its_own_offset_rule(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")  # torch compares the rule with the directory
    values = [torch.arange(n, dtype=torch.uint8) for n in (1, 0, 63, 64, 65, 0, 1000)]
    path = desk.write([desk.tensor(value) for value in values])
    with config.patch("load.calculate_storage_offsets", True):
        loaded = torch.load(path, weights_only=True, mmap=True)

    assert equal(loaded, values)


def test_a_state_dict_loads_strictly_with_its_metadata_and_the_stamp_beside_it(desk: Desk) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    state: Any = model.state_dict()
    tree = Ordered({name: desk.tensor(value) for name, value in state.items()})
    metadata = {prefix: dict(fields) for prefix, fields in state._metadata.items()}
    tree.attributes["_metadata"] = Ordered(metadata)
    path = desk.write(tree, notes={"versions": {"acme": "2.0"}})
    loaded: Any = torch.load(path, weights_only=True)

    assert loaded._metadata == metadata
    assert equal(loaded, OrderedDict(state))

    other = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))

    assert other.load_state_dict(loaded, strict=True) == ([], [])


def test_an_optimizer_goes_on_from_what_is_loaded(desk: Desk) -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.9, 0.99))
    parameter.grad = torch.ones(2, 3)
    optimizer.step()
    state = optimizer.state_dict()
    slots = {0: {name: desk.tensor(value) for name, value in state["state"][0].items()}}
    loaded = desk.load({"state": slots, "param_groups": state["param_groups"]})

    assert equal(loaded, state)
    optimizer.load_state_dict(loaded)


PLAIN: list[Any] = [
    None, True, False, 0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**2000, 1.5, -0.0, float("inf"),
    float("nan"), "", "é\U0001f600", "x" * 300, b"", b"\x00\xff" * 200, [], (), {}, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]],
    {1: "a", "b": (None, [2])}, {(1, "k"): 2.5}, {True: 1, None: 2, 1.5: 3, b"k": 4},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_plain_values_come_back_as_they_are(desk: Desk, value: Any) -> None:
    assert equal(desk.load([value]), [value])


KNOWN: list[tuple[Any, Any]] = [
    (Known("torch.Size", ([2, 3],)), torch.Size([2, 3])),
    (Known("torch.Size", ((2, 3),)), torch.Size([2, 3])),
    (Known("torch.device", ("cuda", 1)), torch.device("cuda", 1)),
    (Known("torch.device", ("cpu",)), torch.device("cpu")),
    (Known("torch.float8_e5m2"), torch.float8_e5m2),
    (Known("torch.per_channel_affine"), torch.per_channel_affine),
    (Known("builtins.complex", (1.0, -2.0)), 1 - 2j),
    (Known("builtins.set", ([1, 2],)), {1, 2}),  # numbers: text would be spelled in another order by each worker
    (Known("builtins.bytearray", (b"\x00\xff",)), bytearray(b"\x00\xff")),
    (Known("torch.serialization._get_layout", ("torch.sparse_coo",)), torch.sparse_coo),
    (Known("collections.Counter", ({"a": 2},)), Counter({"a": 2})),
    (Scalar("uint", 7), 7),
    (Scalar("bool", True), True),
]


@pytest.mark.parametrize(("node", "value"), KNOWN, ids=lambda value: repr(value)[:40])
def test_listed_calls_and_names_come_back_as_what_they_stand_for(desk: Desk, node: Any, value: Any) -> None:
    (loaded,) = desk.load([node])

    assert type(loaded) is type(value)
    assert loaded == value


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=TREES)
def test_any_tree_comes_back(desk: Desk, tree: Any) -> None:
    assert equal(desk.load(tree), tree)


# --- storages


def test_equal_promises_share_one_storage(desk: Desk) -> None:
    shared = desk.tensor(torch.arange(6.0))
    path = desk.write({"emb": shared, "head": Tensor(shared.promise), "other": desk.tensor(torch.arange(6.0))})
    loaded = torch.load(path, weights_only=True)

    assert loaded["emb"].data_ptr() == loaded["head"].data_ptr() != loaded["other"].data_ptr()
    assert sum("/data/" in name for name in zipfile.ZipFile(path).namelist()) == 2


def test_duplicated_ties_have_storages_of_their_own(desk: Desk) -> None:
    shared = desk.tensor(torch.arange(6.0))
    loaded = desk.load({"emb": shared, "head": shared}, DUPLICATE)

    assert equal(loaded["emb"], loaded["head"])
    assert loaded["emb"].data_ptr() != loaded["head"].data_ptr()


def test_empty_tensors_share_nothing(desk: Desk) -> None:
    empty = desk.tensor(torch.zeros(0, 2))
    path = desk.write([empty, empty])

    assert sum("/data/" in name for name in zipfile.ZipFile(path).namelist()) == 2
    assert [value.shape for value in torch.load(path, weights_only=True)] == [(0, 2), (0, 2)]


def test_a_view_takes_only_its_own_elements_row_major(desk: Desk) -> None:
    place = desk.source(np.arange(100, dtype=np.float32).tobytes()).range(0, 400)
    path = desk.write({"t": Tensor(View(place, F32, (3, 2), (4, 12), 40))})
    loaded = torch.load(path, weights_only=True)

    assert loaded["t"].tolist() == [[10, 13], [11, 14], [12, 15]]
    assert loaded["t"].untyped_storage().nbytes() == 24


def test_storages_are_numbered_in_order_of_first_use(desk: Desk) -> None:
    one, two = desk.tensor(torch.tensor([1])), desk.tensor(torch.tensor([2]))
    archive = zipfile.ZipFile(desk.write({"b": two, "x": {"c": [two, one]}}))

    assert [archive.read(f"archive/data/{key}")[0] for key in range(2)] == [2, 1]


def test_parameters_are_written_as_plain_tensors(desk: Desk) -> None:
    tensor = desk.tensor(torch.ones(2))
    loaded = desk.load([Tensor(tensor.promise, role="parameter", id="fc.weight")])

    assert type(loaded[0]) is torch.Tensor


# --- what cannot be written


def problems(tree: Any) -> list[str]:
    return lay_out(Parts(tree=tree), DEFAULT, "m.pt").problems


def test_a_dtype_that_torch_does_not_have_is_a_problem(desk: Desk) -> None:
    tensor = desk.tensor(torch.zeros(3, dtype=torch.uint8))
    place = tensor.promise.range if isinstance(tensor.promise, View) else None
    assert place is not None

    (problem,) = problems({"m": {"w": Tensor(View.rows(place, F6_E2M3, (1,)))}})
    assert problem == 'tensor "m/w" is F6_E2M3, a dtype that torch does not have'


def test_quantised_tensors_are_a_problem(desk: Desk) -> None:
    plain = desk.tensor(torch.zeros(3, dtype=torch.uint8))
    typed = desk.tensor(torch.zeros(3, dtype=torch.int8), QINT8)

    assert len(problems([typed, Tensor(plain.promise, quant=Quantisation("per_tensor", 1.0, 0))])) == 2


def test_inert_nodes_are_a_problem_that_names_class_and_path() -> None:
    (problem,) = problems({"hp": [Inert("object", "acme.Config")]})

    assert "hp/0" in problem
    assert "acme.Config" in problem


def test_no_tree_is_a_problem() -> None:
    assert len(problems(NOTHING)) == 1


def knot() -> list[Any]:
    items: list[Any] = [1]
    items.append(items)
    return items


REFUSED: list[tuple[Any, Any, str]] = [
    ({"a": Known("builtins.frozenset", ([1],)), "b": 2}, {"b": 2}, "builtins.frozenset"),
    ([1, Known("datetime.datetime", (b"x",))], [1, None], "datetime.datetime"),
    (({"a": (Known("numpy.float64"), 2)},), ({"a": (None, 2)},), "numpy.float64"),
    ({Known("builtins.range", (3,)): 1, "b": 2}, {"b": 2}, "its key: builtins.range"),
    ({("k", 1 << 2040): 1, "b": 2}, {"b": 2}, "255 bytes"),
    ([1 << 2040], [None], "255 bytes"),
    ([-(1 << 2039) - 1], [None], "255 bytes"),
    ({"a": knot()}, {"a": [1, None]}, "holds itself"),
    (Ordered({"a": 1j}), OrderedDict(), "a complex"),
]


@pytest.mark.parametrize(("tree", "loaded", "why"), REFUSED, ids=[case[2] for case in REFUSED])
def test_what_the_restricted_unpickler_refuses_is_left_out_and_listed(
    desk: Desk, tree: Any, loaded: Any, why: str
) -> None:
    blueprint = lay_out(Parts(tree=tree), DEFAULT, "m.pt")

    assert blueprint.problems == []
    ((_, reason),) = blueprint.left_out
    assert why in reason
    assert equal(torch.load(io.BytesIO(draw(blueprint)), weights_only=True), loaded)


def test_a_deep_tree_is_written_without_recursion(desk: Desk) -> None:
    tree: Any = []
    for _ in range(400):
        tree = [tree]
    loaded = desk.load(tree)
    for _ in range(400):
        (loaded,) = loaded

    assert loaded == []


def test_a_new_dtype_is_told_with_the_release_that_loads_it_once(desk: Desk) -> None:
    tensor = desk.tensor(torch.ones(1, dtype=torch.uint16))
    blueprint = lay_out(
        Parts(tree={"a": tensor, "b": desk.tensor(torch.zeros(1, dtype=torch.uint16))}), DEFAULT, "m.pt"
    )

    assert blueprint.notes == ["a is U16: torch 2.6 or newer loads the file"]


def test_ties_are_told(desk: Desk) -> None:
    shared = desk.tensor(torch.ones(2))
    tree = {"a": shared, "b": shared}

    assert lay_out(Parts(tree=tree), DEFAULT, "m").notes == ["b is a: written once, tied"]
    assert lay_out(Parts(tree=tree), DUPLICATE, "m").notes == ["b is a: 8 bytes written twice"]


# --- large files


@pytest.mark.slow
def test_d19_a_file_beyond_4_gib_loads_in_torch_and_in_zipfile(desk: Desk) -> None:
    size = 4_402_341_479  # 4.1 GiB
    if shutil.disk_usage(desk.folder).free < 12 << 30:
        pytest.skip("needs 12 GB of free disk")
    sparse = desk.folder / "sparse"
    with sparse.open("wb") as stream:
        stream.seek(size - 1)
        stream.write(b"\x07")
    big = Tensor(View.rows(desk.disk.open(sparse).range(0, size), U8, (size,)))
    tree = {
        "big": big,
        "small": desk.tensor(torch.tensor([1, 2, 3]), I64),
        "u": desk.tensor(torch.tensor([9], dtype=torch.uint16), U16),
    }
    blueprint = lay_out(Parts(tree=tree), DEFAULT, "m.pt")
    out = desk.folder / "out.pt"
    with out.open("wb") as stream:
        draw_into(stream, blueprint)
    loaded = torch.load(out, weights_only=True, mmap=True)

    assert blueprint.problems == []
    assert (loaded["big"].shape, loaded["big"][-1].item(), loaded["big"][-2].item()) == ((size,), 7, 0)
    assert (loaded["small"].tolist(), loaded["u"].tolist()) == ([1, 2, 3], [9])
    assert zipfile.ZipFile(out).testzip() is None


def draw_into(stream: Any, blueprint: Blueprint) -> None:
    """Draw a blueprint in windows; runs of zeros stay holes."""
    window, zeros = 64 << 20, bytes(64 << 20)
    crcs: list[int] = []
    for offset, piece in blueprint.files["m.pt"]:
        stream.seek(offset)
        if isinstance(piece, bytes):
            stream.write(piece)
        elif isinstance(piece, Late):
            stream.write(piece.make(crcs))
        else:
            crc = 0
            for start in range(0, piece.numel, window):
                drawn = bytes(piece.read(start, min(start + window, piece.numel)))
                crc = zlib.crc32(drawn, crc)
                if drawn == zeros:
                    stream.seek(window, 1)
                else:
                    stream.write(drawn)
            crcs.append(crc)
