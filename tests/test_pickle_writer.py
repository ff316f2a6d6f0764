"""The pickle writer: what it writes, pickle and torch's weights-only loader read."""

from __future__ import annotations

import collections
import io
import pickle
import pickletools
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import OutputError
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Inert, Known, Ordered, Scalar
from ckptmigrate.wire.meanings import STANDARD
from ckptmigrate.wire.pickle_writer import Persistent, dump
from ckptmigrate.wire.pickles import load

# formats/torch.md 4.7, from torch/_weights_only_unpickler.py
ACCEPTED = {
    "PROTO",
    "STOP",
    "MARK",
    "GLOBAL",
    "NEWOBJ",
    "REDUCE",
    "BUILD",
    "APPEND",
    "APPENDS",
    "SETITEM",
    "SETITEMS",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "EMPTY_TUPLE",
    "EMPTY_LIST",
    "EMPTY_DICT",
    "EMPTY_SET",
    "BININT",
    "BININT1",
    "BININT2",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINSTRING",
    "BINPERSID",
    "BINGET",
    "LONG_BINGET",
    "BINPUT",
    "LONG_BINPUT",
    "LONG1",
}

leaves = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**2039), max_value=2**2039 - 1)
    | st.integers(-300, 70_000)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=20)
    | st.binary(max_size=20)
)
keys = st.text() | st.integers() | st.binary() | st.none() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=6).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(st.text(), inner, max_size=3).map(Ordered)
    ),
    max_leaves=30,
)


def torch_load(data: bytes, storages: dict[str, bytes] | None = None) -> Any:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
        for key, value in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", value)
    out.seek(0)
    return torch.load(out, weights_only=True)


def reduce(tensor: Tensor) -> tuple[str, tuple[Any, ...]]:
    shape = tensor.promise.shape
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    storage = Persistent(("storage", Known("torch.FloatStorage"), str(tensor.id), "cpu", tensor.promise.numel))
    return "torch._utils._rebuild_tensor_v2", (storage, 0, shape, strides, False, Ordered())


def of(values: np.ndarray[Any, Any], key: str) -> Tensor:
    return Tensor(array(values.astype(np.float32)), id=key)


@given(trees)
@settings(deadline=None)
def test_pickle_reads_back_what_was_written(tree: Any) -> None:
    found = pickle.loads(dump(tree))

    assert found == tree
    assert kinds(found) == kinds(tree)


def kinds(tree: Any) -> list[Any]:
    kind = "ordered" if isinstance(tree, (Ordered, collections.OrderedDict)) else type(tree)
    inner = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [kind, *(node for part in inner for node in kinds(part))]


@given(trees)
@settings(deadline=None, max_examples=50)
def test_our_machine_reads_back_what_was_written(tree: Any) -> None:
    assert load(dump(tree), meanings=STANDARD).value == tree


@given(trees)
@settings(deadline=None, max_examples=50)
def test_torch_reads_trees_without_tensors_with_weights_only(tree: Any) -> None:
    assert torch_load(dump(tree)) == tree


@given(trees)
@settings(deadline=None, max_examples=100)
def test_only_opcodes_that_a_weights_only_loader_takes_are_written(tree: Any) -> None:
    assert {op.name for op, _, _ in pickletools.genops(dump(tree))} <= ACCEPTED


@given(trees)
@settings(deadline=None, max_examples=30)
def test_the_same_tree_gives_the_same_bytes(tree: Any) -> None:
    copy = pickle.loads(pickle.dumps(tree)) if "Ordered" not in repr(kinds(tree)) else tree

    assert dump(tree) == dump(copy if kinds(copy) == kinds(tree) else tree)


def test_torch_reads_tensors_attributes_and_known_calls() -> None:
    weights = np.arange(6.0).reshape(2, 3)
    state = Ordered({"w": of(weights, "0"), "b": of(np.ones(2), "1")})
    state.attributes["_metadata"] = Ordered({"": {"version": 2}})
    tree = {
        "model": state, "set": Known("builtins.set", ([1, 2],)), "count": Known("collections.Counter", ({"a": 2},)),
        "size": Known("torch.Size", ((2, 3),)), "dtype": Known("torch.float16"), "device": Known("torch.device", ("cpu",)),
        "complex": Known("builtins.complex", (1.0, 2.0)), "raw": Known("builtins.bytearray", (b"\xff",)), "step": Scalar("uint", 7),
    }  # fmt: skip

    found = torch_load(
        dump(tree, reduce=reduce), {"0": weights.astype("f4").tobytes(), "1": np.ones(2, "f4").tobytes()}
    )

    model = found.pop("model")
    assert (type(model), list(model), model._metadata) == (collections.OrderedDict, ["w", "b"], {"": {"version": 2}})
    assert torch.equal(model["w"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(model["b"], torch.ones(2))
    assert found == {
        "set": {1, 2}, "count": collections.Counter(a=2), "size": torch.Size([2, 3]), "dtype": torch.float16,
        "device": torch.device("cpu"), "complex": 1 + 2j, "raw": bytearray(b"\xff"), "step": 7,
    }  # fmt: skip


def test_known_calls_that_only_pickle_reads_come_back() -> None:
    tree = [
        Known("builtins.frozenset", ([1],)),
        Known("builtins.range", (1, 5, 2)),
        Known("builtins.slice", (1, None, None)),
        Known("builtins.int"),
    ]

    assert pickle.loads(dump(tree)) == [frozenset([1]), range(1, 5, 2), slice(1, None), int]


def test_shared_containers_stay_shared_and_rings_stay_rings() -> None:
    shared: list[Any] = [1]
    ring: dict[str, Any] = {"a": shared, "b": (shared, shared)}
    ring["self"] = [ring]

    for found in (pickle.loads(dump(ring)), torch_load(dump(ring)), load(dump(ring), meanings=STANDARD).value):
        assert found["a"] is found["b"][0] is found["b"][1]
        assert found["self"][0] is found


def test_one_tensor_under_two_names_is_one_tensor_again() -> None:
    tensor = of(np.ones(2), "0")

    found = torch_load(dump([tensor, tensor], reduce=reduce), {"0": np.ones(2, "f4").tobytes()})

    assert found[0] is found[1]


def test_large_containers_are_written_in_batches() -> None:
    tree = {
        "list": list(range(2500)),
        "dict": {str(n): n for n in range(2001)},
        "exact": list(range(1000)),
        "tuple": tuple(range(3000)),
    }

    assert pickle.loads(dump(tree)) == tree
    assert torch_load(dump(tree)) == tree


def test_depth_costs_no_recursion() -> None:
    tree: Any = []
    for _ in range(5000):
        tree = [tree]

    assert dump(tree).count(b"a") >= 5000


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, Inert("object", "acme.Net")]}, "a/1: a object node of acme.Net has no place"),
        ({"a": (1 << 2040,)}, "a/0: an integer of 256 bytes, more than the 255"),
        ({"a": {"b": -(1 << 2100)}}, "a/b: an integer of 263 bytes"),
        ([of(np.ones(1), "0")], "0: a Tensor has no place"),
        ([{1, 2}], "0: a set has no place"),
        (Known("a.b", (Inert("call", "os.system"),)), "0: a call node of os.system"),
    ],
)
def test_what_has_no_place_is_refused_by_its_path(tree: Any, message: str) -> None:
    with pytest.raises(OutputError) as refusal:
        dump(tree)

    assert message in str(refusal.value)


def test_the_longest_integers_that_fit_are_written() -> None:
    for value in (2**2039 - 1, -(2**2039), 2**31, -(2**31), -(2**31) - 1, 255, 256, 65535, 65536, -1):
        assert pickle.loads(dump(value)) == value
        assert torch_load(dump([value])) == [value]


def test_a_tuple_that_holds_itself_is_refused() -> None:
    inner: list[Any] = []
    ring = (inner,)
    inner.append(ring)

    with pytest.raises(OutputError, match="holds itself"):
        dump(ring)
