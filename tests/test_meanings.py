"""What listed names mean: values of the standard library and of numpy, as their own picklers write them."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import types
import typing
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptmigrate.errors import CorruptError
from ckptmigrate.formats._foreign_classes import FOREIGN_CLASSES
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known
from ckptmigrate.wire.meanings import STANDARD
from ckptmigrate.wire.pickles import load

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
EAST = dt.timezone(dt.timedelta(hours=5, minutes=30))


def read(data: bytes, **options: Any) -> Any:
    return load(data, meanings={**STANDARD, **FOREIGN_CLASSES}, **options).value


def numbers(tensor: Any) -> np.ndarray[Any, Any]:
    assert type(tensor) is Tensor
    promise = tensor.promise
    return np.frombuffer(promise.read(0, promise.numel), promise.dtype.numpy_dtype()).reshape(promise.shape)


PLAIN: list[tuple[Any, Any]] = [
    (argparse.Namespace(lr=0.1, steps=[1]), {"lr": 0.1, "steps": [1]}),
    (argparse.Namespace(), {}),
    (types.SimpleNamespace(a=1), {"a": 1}),
    (collections.defaultdict(list, {"a": [1]}), {"a": [1]}),
    (collections.deque([1, 2], maxlen=3), [1, 2]),
    (pathlib.PurePosixPath("/data/run 1/x.pt"), "/data/run 1/x.pt"),
    (pathlib.PurePosixPath("x/y"), "x/y"),
    (pathlib.PurePosixPath(), "."),
    (pathlib.PosixPath("/"), "/"),
    (pathlib.PureWindowsPath("C:\\data\\x.pt"), "C:\\data\\x.pt"),
    (pathlib.PureWindowsPath("C:x\\y"), "C:x\\y"),
    (uuid.UUID(int=2**100 + 5), str(uuid.UUID(int=2**100 + 5))),
    (decimal.Decimal("1.50"), "1.50"),
    (dt.timedelta(days=1, seconds=2, microseconds=3), 86402.000003),
    (dt.timedelta(days=-1, microseconds=1), -86399.999999),
    *((moment, moment.isoformat()) for moment in (
        dt.datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001 - files hold both kinds
        dt.datetime(1, 1, 1),  # noqa: DTZ001 - same
        dt.datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001 - same
        dt.datetime(2024, 2, 29, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, tzinfo=EAST),
        dt.datetime(2024, 2, 29, tzinfo=dt.timezone(-dt.timedelta(hours=3, seconds=7))),
        dt.date(9999, 12, 31),
        dt.time(1, 2, 3, 4),
        dt.time(1, 2, tzinfo=EAST),
    )),
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("value", "plain"), PLAIN, ids=[repr(value) for value, _ in PLAIN])
def test_values_of_well_known_classes_become_plain(value: Any, plain: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == plain


def test_the_factory_of_a_defaultdict_is_a_name_that_nobody_calls() -> None:
    loaded = load(b"ccollections\ndefaultdict\n(cos\ngetcwd\ntR(S'a'\nI1\nu.", meanings=STANDARD)

    assert (loaded.value, loaded.calls) == ({"a": 1}, ())


def test_a_path_of_python_3_13_is_one_string() -> None:
    assert read(b"cpathlib._local\nPosixPath\n(S'/a/b'\ntR.") == "/a/b"


def test_generators_of_random_numbers_are_objects_and_no_reason_to_refuse() -> None:
    for protocol in PROTOCOLS:
        for value in (random.Random(1), np.random.RandomState(1), np.random.default_rng(1)):
            loaded = load(pickle.dumps(value, protocol), meanings=STANDARD)

            assert (type(loaded.value), loaded.value.kind, loaded.calls) == (Inert, "object", ())


def test_annotations_are_inert_objects_and_no_reason_to_refuse() -> None:
    for protocol in PROTOCOLS:
        for value in (typing.Optional[int], list[int], typing.Dict[str, typing.List[None]]):  # noqa: UP006, UP045 - as files have them
            loaded = load(pickle.dumps(value, protocol), meanings=STANDARD)

            assert (loaded.value.kind, loaded.calls) == ("object", ())


def test_other_items_and_types_are_calls_that_are_refused() -> None:
    assert read(b"c_operator\ngetitem\n(cos\nenviron\nS'HOME'\ntR.").kind == "call"
    assert read(b"c__builtin__\ntype\n(S'X'\n)}tR.").kind == "call"


SCALARS: list[Any] = [
    np.float64(0.1), np.float32(0.1), np.float16(1.5), np.int64(-(2**63)), np.uint64(2**64 - 1), np.int32(-5), np.uint8(255),
    np.int8(-128), np.bool_(True), np.bool_(False), np.str_("hé☃"), np.bytes_(b"ab"), np.float64("inf"),
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_scalars_become_python_numbers_exactly(protocol: int) -> None:
    found = read(pickle.dumps(SCALARS, protocol))

    assert [scalar.item() for scalar in SCALARS] == found
    assert [type(scalar.item()) for scalar in SCALARS] == [type(value) for value in found]


def test_numpy_scalars_of_big_endian_machines_become_the_same_numbers() -> None:
    dtype = b"cnumpy\ndtype\n(S'f8'\nI00\nI01\ntR(I3\nS'>'\nNNNI-1\nI-1\nI0\ntb"

    for core in (b"numpy.core", b"numpy._core"):
        data = b"\x80\x03c" + core + b".multiarray\nscalar\n(" + dtype + b"C\x08" + struct.pack(">d", 0.1) + b"tR."
        assert read(data) == 0.1


def test_numpy_complex_dates_and_objects_have_a_plain_spelling() -> None:
    for value in (np.complex64(1 + 2j), np.complex128(1 + 2j)):
        found = read(pickle.dumps(value))
        assert (found.path, found.args) == ("builtins.complex", (1.0, 2.0))
    for text in (
        "2024",
        "2024-02",
        "2024-02-29",
        "2024-02-29T05",
        "2024-02-29T05:06",
        "2024-02-29T05:06:07",
        "1969-12-31T23:59:59.999",
    ):
        assert read(pickle.dumps(np.datetime64(text))) == text
    assert read(pickle.dumps(np.datetime64("2024-02-29T05:06:07.123456789"))) == "2024-02-29T05:06:07.123456789"
    assert read(pickle.dumps(np.datetime64("NaT"))) == "NaT"
    assert read(pickle.dumps(np.timedelta64(1500, "ms"))) == 1.5
    assert read(pickle.dumps(np.timedelta64(3, "W"))) == 3 * 7 * 86400.0
    assert read(pickle.dumps(np.array([np.datetime64("2024-02-29")]))) == ["2024-02-29"]


def test_a_long_double_is_an_inert_object_because_no_float_holds_it() -> None:
    assert read(pickle.dumps(np.longdouble("0.1"))).kind == "object"


kinds = st.sampled_from(
    ["?", "i1", "<i2", ">i4", "<i8", "u1", "<u2", ">u4", "<u8", "<f2", ">f2", "<f4", ">f8", "<c8", ">c16"]
)


@given(
    kinds.flatmap(
        lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    ),
    st.sampled_from(PROTOCOLS),
    st.booleans(),
)
def test_numpy_arrays_become_tensors_of_the_same_numbers(
    array: np.ndarray[Any, Any], protocol: int, fortran: bool
) -> None:
    array = np.asfortranarray(array) if fortran and array.ndim else array

    found = numbers(read(pickle.dumps(array, protocol)))

    assert found.shape == array.shape
    assert found.dtype == array.dtype.newbyteorder("<")
    assert found.tobytes() == array.astype(found.dtype).tobytes()


@pytest.mark.parametrize("old", [b"numpy.core.", b"numpy._core."])
@pytest.mark.parametrize("protocol", [2, 5])
def test_both_spellings_of_numpys_module_give_the_same_array(old: bytes, protocol: int) -> None:
    data = pickle.dumps(np.arange(3, dtype=np.float32), protocol)
    other = data
    for name in (b"multiarray", b"numeric"):
        other = other.replace(b"cnumpy._core." + name, b"c" + old + name)
        there = b"numpy._core." + name
        other = other.replace(bytes([len(there)]) + there, bytes([len(old + name)]) + old + name)
    other = b"\x80\x05" + other[11:] if protocol == 5 else other  # without the frame, whose length has changed

    assert numbers(read(other)).tolist() == [0.0, 1.0, 2.0]


def test_a_python_2_payload_is_bytes_whether_it_looks_like_text_or_not() -> None:
    head = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\nt"
    dtype = b"cnumpy\ndtype\n(S'i2'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
    for payload in (b"ab\xc3\xa9", b"\xff\x00\x01\x02", b"abcd"):
        for encoding in ("utf-8", "latin-1"):
            data = head + dtype + b"I00\nU\x04" + payload + b"tb."
            assert numbers(read(data, encoding=encoding)).tobytes() == payload


def test_arrays_of_objects_and_text_become_nested_lists() -> None:
    for protocol in PROTOCOLS:
        objects = np.array([[1, "a", None], [2.5, (1,), b"x"]], object)

        assert read(pickle.dumps(objects, protocol)) == objects.tolist()
        assert read(pickle.dumps(np.asfortranarray(objects), protocol)) == objects.tolist()
        assert read(pickle.dumps(np.array(["é", "bc"]), protocol)) == ["é", "bc"]
        assert read(pickle.dumps(np.array([b"a", b"bcd"]), protocol)) == [b"a", b"bcd"]


@pytest.mark.parametrize("protocol", range(6))
def test_a_structured_dtype_stays_inert_wherever_it_is_shared(protocol: int) -> None:
    dtype = np.dtype([("a", "f4"), ("b", "i8", (2,))])
    tree = read(pickle.dumps([dtype, np.zeros(2, dtype), dtype, np.zeros(3, dtype)], protocol))

    assert [(node.kind, node.path) for node in tree] == [("object", "numpy.dtype"), ("object", "numpy.ndarray")] * 2


def test_structured_arrays_and_subclasses_stay_inert() -> None:
    for value in (
        np.zeros(2, [("a", "i4"), ("b", "f8", (2,))]),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(1, [("a", "i4")]).view(np.recarray),
    ):
        loaded = load(pickle.dumps(value, 2), meanings=STANDARD)

        assert (type(loaded.value), loaded.value.kind) == (Inert, "object")


def test_an_array_that_its_bytes_do_not_fill_is_a_fault_that_says_so() -> None:
    data = pickle.dumps(np.arange(4, dtype=np.float32), 4).replace(b"K\x04\x85", b"K\x05\x85")

    found = read(data)

    assert (found.kind, found.args) == ("fault", ("an array of shape [5] needs 20 bytes, its pickle has 16",))


def test_an_array_with_a_shape_that_is_none_is_refused() -> None:
    for shape in (b"J\xff\xff\xff\xff\x85", b"N\x85", b"(" + b"K\x01" * 65 + b"t"):
        data = pickle.dumps(np.arange(4, dtype=np.float32), 4).replace(b"K\x04\x85", shape)
        frameless = data[:2] + data[11:]
        with pytest.raises(CorruptError, match="a shape that is"):
            read(frameless)


def test_an_array_of_no_objects_costs_nothing_whatever_its_shape() -> None:
    data = pickle.dumps(np.zeros((1, 0), object), 2).replace(b"K\x01K\x00\x86", b"J\xff\xff\xff\x7fK\x00\x86")

    assert read(data) == []


def test_ml_dtypes_arrays_become_tensors_of_their_dtype() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)

    tensor = read(pickle.dumps(array, 2))

    assert (tensor.promise.dtype.name, numbers(tensor).tobytes()) == ("BF16", array.tobytes())


def test_numpy_scalars_need_no_numpy() -> None:
    data = pickle.dumps([np.float64(0.1), np.int32(3), np.datetime64("2024-01-02")], 2)
    program = f"""
import sys
sys.modules["numpy"] = None
from ckptmigrate.wire.meanings import STANDARD
from ckptmigrate.wire.pickles import load
assert load({data!r}, meanings=STANDARD).value == [0.1, 3, "2024-01-02"]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# classes of training frameworks


def test_a_scheduler_method_is_inert_and_no_reason_to_refuse() -> None:
    of_class = b"c__builtin__\ngetattr\n(ctorch.optim.lr_scheduler\nOneCycleLR\nS'_annealing_cos'\ntR."
    of_object = b"c__builtin__\ngetattr\n(ctorch.optim.lr_scheduler\nOneCycleLR\n)\x81S'_annealing_cos'\ntR."
    of_ones_own = b"c__builtin__\ngetattr\n(ctrain\nWarmup\n)\x81S'_annealing_cos'\ntR."
    for data in (of_class, of_object, of_ones_own):
        loaded = load(data, meanings={**STANDARD, **FOREIGN_CLASSES})

        assert (loaded.value.kind, loaded.value.path, loaded.calls) == ("object", "builtins.getattr", ())


@pytest.mark.parametrize(
    "target",
    [
        b"cos\nsystem\n",
        b"ctorch.optim.lr_scheduler.evil\nX\n",
        b"cevil_lr_scheduler\nX\n",
        b"cos\nsystem\n)R",
        b"ctorch._C\nFileStore\n",
        b"ctorch\nload\n",
        b"S'text'\n",
    ],
)
def test_any_other_getattr_is_a_call_that_is_refused(target: bytes) -> None:
    loaded = load(b"c__builtin__\ngetattr\n(" + target + b"S'x'\ntR.", meanings={**STANDARD, **FOREIGN_CLASSES})

    assert loaded.value.kind == "call"
    assert loaded.calls[-1][1] is loaded.value


def test_a_function_of_torch_is_inert_and_no_reason_to_refuse_but_a_call_of_it_is() -> None:
    relu = b"c__builtin__\ngetattr\n(ctorch._C\n_VariableFunctionsClass\nS'from_file'\ntR"
    bare = load(relu + b".", meanings={**STANDARD, **FOREIGN_CLASSES})
    called = load(relu + b"(S'/etc/passwd'\ntR.", meanings={**STANDARD, **FOREIGN_CLASSES})

    assert (bare.value.kind, bare.calls) == ("object", ())
    assert (called.value.kind, called.value.path) == ("call", "builtins.getattr()")


def test_a_member_of_a_listed_enum_is_its_value_and_torch_1_0_backends_are_inert_objects() -> None:
    enum = load(
        b"ctransformers.trainer_utils\nIntervalStrategy\n(S'steps'\ntR.", meanings={**STANDARD, **FOREIGN_CLASSES}
    )
    backend = load(
        b"ctorch.nn.backends.thnn\n_get_thnn_function_backend\n)R.", meanings={**STANDARD, **FOREIGN_CLASSES}
    )

    assert (enum.value, enum.calls) == ("steps", ())
    assert (backend.value.kind, backend.calls) == ("object", ())


def test_omegaconf_trees_become_plain_values_through_their_content() -> None:
    node = b"comegaconf.nodes\nAnyNode\n)\x81q\x02}(U\x07_parenth\x01U\x04_val%sub"
    tree = (
        b"\x80\x02comegaconf.dictconfig\nDictConfig\n)\x81q\x01}(U\x07_parentNU\x09_metadatacomegaconf.base\nContainerMetadata\n)\x81}U\x01xK\x01sb"
        b"U\x08_content}(U\x02lr"
        + node % b"G?\xb9\x99\x99\x99\x99\x99\x9a"
        + b"U\x03ref"
        + node % b"U\x06${.lr}"
        + b"U\x04list"
        b"comegaconf.listconfig\nListConfig\n)\x81}(U\x07_parenth\x01U\x08_content]"
        + node
        % b"K\x07"
        + b"aubU\x04nonecomegaconf.dictconfig\n"
        b"DictConfig\n)\x81}(U\x07_parenth\x01U\x08_contentNubuub."
    )

    assert read(tree) == {"lr": 0.1, "ref": "${.lr}", "list": [7], "none": None}


def test_lightnings_attribute_dict_is_a_plain_dict() -> None:
    data = b"\x80\x02cpytorch_lightning.utilities.parsing\nAttributeDict\n)\x81q\x00(U\x02lrG?\xb9\x99\x99\x99\x99\x99\x9aU\x01nK\x03u."

    assert read(data) == {"lr": 0.1, "n": 3}
    assert type(read(data)) is dict


def test_every_meaning_refuses_or_answers_whatever_it_is_given() -> None:
    odd: list[Any] = [
        None,
        1,
        -1,
        2**70,
        "text",
        b"bytes",
        [],
        [1],
        {},
        (),
        (1,),
        Inert("name", "a.b"),
        Known("builtins.set", ([],)),
    ]
    names = {**STANDARD, **FOREIGN_CLASSES}
    expected = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
    for meaning in names.values():
        for args in [(), *((one,) for one in odd), *((one, two) for one in odd for two in odd)]:
            try:
                value = meaning.call(args) if meaning.call else None
                for state in odd if meaning.build else ():
                    meaning.build(value, state)  # type: ignore[misc]
            except expected:
                pass
