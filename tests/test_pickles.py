"""The pickle machine: what real picklers write comes back, and what nobody knows stays inert."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import CorruptError
from ckptmigrate.values import Inert, Known, Ordered
from ckptmigrate.wire.meanings import STANDARD, Meaning
from ckptmigrate.wire.opcodes import OPCODES, scan
from ckptmigrate.wire.pickles import Loaded, first_int, load

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
MAGIC = 0x1950A86A20F9469CFC6C


def read(data: bytes, **options: Any) -> Any:
    return load(data, meanings=STANDARD, **options).value


def text_op(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


# what real picklers write

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**2000), max_value=2**2000)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=40)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
keys = (
    st.integers()
    | st.text()
    | st.binary()
    | st.tuples(st.integers(), st.text())
    | st.floats(allow_nan=False)
    | st.none()
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=40,
)


@given(trees, st.sampled_from(PROTOCOLS))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_pickle_writes_comes_back_equal_at_every_protocol(tree: Any, protocol: int) -> None:
    data = pickle.dumps(tree, protocol)

    loaded = load(data + b"what follows", meanings=STANDARD)

    assert loaded == Loaded(tree, len(data), ())
    assert list(map(type, walk(loaded.value))) == [
        Ordered if t is collections.OrderedDict else t for t in map(type, walk(tree))
    ]


def walk(tree: Any) -> list[Any]:
    inner = [*tree, *tree.values()] if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [tree, *(node for part in inner for node in walk(part))]


@given(trees)
@settings(deadline=None, max_examples=50)
def test_the_python_pickler_without_memo_comes_back_equal(tree: Any) -> None:
    out = io.BytesIO()
    pickler = pickle._Pickler(out, 0)
    pickler.fast = True
    pickler.dump(tree)

    assert read(out.getvalue()) == tree


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sets_numbers_and_bytes_keep_their_kind(protocol: int) -> None:
    values = [
        {1},
        frozenset({2}),
        1 + 2j,
        bytearray(b"ab"),
        range(1, 9, 2),
        slice(1, None),
        collections.Counter("aab"),
        b"",
        b"\xff\x00",
    ]

    found = read(pickle.dumps(values, protocol))

    assert [(known.path, known.args) for known in found[:7]] == [
        ("builtins.set", ([1],)),
        ("builtins.frozenset", ([2],)),
        ("builtins.complex", (1.0, 2.0)),
        ("builtins.bytearray", (b"ab",)),
        ("builtins.range", (1, 9, 2)),
        ("builtins.slice", (1, None, None)),
        ("collections.Counter", ({"a": 2, "b": 1},)),
    ]
    assert found[7:] == [b"", b"\xff\x00"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_containers_stay_shared_and_rings_stay_rings(protocol: int) -> None:
    inner: list[Any] = [1]
    ring: dict[str, Any] = {"a": inner, "b": inner}
    ring["self"] = ring
    inner.append((ring,))

    found = read(pickle.dumps(ring, protocol))

    assert found["a"] is found["b"]
    assert found["self"] is found
    assert found["a"][1][0] is found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_attributes_of_an_ordered_dict_are_no_items(protocol: int) -> None:
    state = collections.OrderedDict([("w", 1), ("b", 2)])
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]

    found = read(pickle.dumps(state, protocol))

    assert type(found) is Ordered
    assert list(found.items()) == [("w", 1), ("b", 2)]
    assert found.attributes == {"_metadata": {"": {"version": 1}}}


def test_large_values_are_read_across_windows() -> None:
    tree = {"text": "é" * 3_000_000, "bytes": bytes(5_000_000), "many": list(range(200_000)), "last": "x"}
    for protocol in (0, 2, 4, 5):
        assert read(pickle.dumps(tree, protocol)) == tree


def test_a_pickle_is_read_from_its_offset_and_ends_behind_its_stop() -> None:
    first, second = pickle.dumps({"a": 1}, 2), pickle.dumps([2], 4)
    data = b"????" + first + second + b"rest"

    one = load(data, 4, meanings={})
    two = load(data, one.end, meanings={})

    assert (one.value, two.value) == ({"a": 1}, [2])
    assert data[two.end :] == b"rest"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_first_integer_is_found_in_the_head_at_any_protocol(protocol: int) -> None:
    assert first_int(pickle.dumps(MAGIC, protocol) + b"rest") == MAGIC
    assert first_int(pickle.dumps([MAGIC], protocol)) is None
    assert first_int(pickle.dumps(MAGIC, protocol)[:-1]) is None


def test_the_head_scan_ends_quietly_where_there_is_no_pickle() -> None:
    for head in (b"", b"<html>", b"\x80", b"PK\x03\x04", b"\x8a\xff", b"X\xff\xff\xff\xffab", bytes(range(256))):
        assert len(list(scan(head))) <= 8
        assert first_int(head) is None


@given(trees, st.sampled_from(PROTOCOLS))
@settings(deadline=None, max_examples=50)
def test_the_head_scan_names_opcodes_as_pickletools_does(tree: Any, protocol: int) -> None:
    data = pickle.dumps(tree, protocol)

    expected = [op.name for op, _, _ in pickletools.genops(data)]

    assert expected == [name for name, _ in scan(data, len(data))]


def test_the_table_has_every_opcode_that_pickletools_has() -> None:
    assert {ord(op.code): op.name for op in pickletools.opcodes} == {
        code: name for code, (name, _, _) in OPCODES.items()
    }


# names, objects, calls


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class MyList(list[Any]):
    pass


class MyDict(dict[Any, Any]):
    pass


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_of_an_unknown_class_is_an_inert_node_with_its_state(protocol: int) -> None:
    found = read(pickle.dumps([Plain(a=1), Plain(b=[2])], protocol))

    path = f"{Plain.__module__}.Plain"
    assert [("object", path, (), {"a": 1}), ("object", path, (), {"b": [2]})] == [
        (n.kind, n.path, n.args, n.state) for n in found
    ]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_subclasses_of_list_and_dict_keep_items_and_state(protocol: int) -> None:
    items, pairs = MyList([1, 2]), MyDict(a=1)
    items.note, pairs.note = "x", "y"  # type: ignore[attr-defined]

    first, second = read(pickle.dumps([items, pairs], protocol))

    assert (first.kind, first.items, first.state) == ("object", [1, 2], {"note": "x"})
    assert (second.kind, second.items, second.state) == ("object", [("a", 1)], {"note": "y"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bare_name_is_one_node_wherever_it_stands(protocol: int) -> None:
    found = read(pickle.dumps({Plain: [Plain, os.path.join]}, protocol))

    (key,) = found
    assert key is found[key][0]
    assert [("name", f"{Plain.__module__}.Plain"), ("name", "posixpath.join")] == [(n.kind, n.path) for n in found[key]]


def test_renamed_modules_are_known_by_their_name_of_today() -> None:
    for old, today in {
        "__builtin__\nlong": "builtins.int",
        "__builtin__\nxrange": "builtins.range",
        "copy_reg\n_reconstructor": "copyreg._reconstructor",
        "numpy.core.multiarray\nscalar": "numpy._core.multiarray.scalar",
        "pathlib._local\nPosixPath": "pathlib.PosixPath",
    }.items():
        assert read(b"c" + old.encode() + b"\n.").path == today


def test_a_dotted_name_is_text_and_not_a_walk_through_attributes() -> None:
    found = read(b"\x80\x04" + text_op("os") + text_op("path.join") + b"\x93.")

    assert (found.kind, found.path) == ("name", "os.path.join")


def test_a_bare_name_may_have_a_value_of_its_own() -> None:
    half = Known("acme.half")

    assert load(b"(cacme\nhalf\n0cacme\nhalf\n.", meanings={"acme.half": Meaning(name=half)}).value is half


def test_a_meaning_that_builds_takes_its_place_in_the_memo_too() -> None:
    meaning = Meaning(lambda args: Inert("object", "acme.Box", args), lambda _, state: ("box", state))
    data = b"\x80\x02](cacme\nBox\n)\x81q\x05K\x07bh\x05e."

    assert load(data, meanings={"acme.Box": meaning}).value == [("box", 7), ("box", 7)]


def test_arguments_that_a_meaning_cannot_take_are_the_files_fault() -> None:
    with pytest.raises(CorruptError, match=r"datetime\.datetime at byte 25 has arguments that it cannot have"):
        read(b"cdatetime\ndatetime\n(K\x01K\x02tR.")


def test_python_2_strings_are_text_where_they_decode_else_bytes() -> None:
    data = b"\x80\x02(U\x01wU\x02\xc5\xbcU\x01\xffT\x02\x00\x00\x00\xc5\xbct."

    assert read(data) == ("w", "ż", b"\xff", "ż")
    assert read(data, encoding="ascii") == ("w", b"\xc5\xbc", b"\xff", b"\xc5\xbc")
    assert read(data, encoding="latin-1") == ("w", "Å¼", "ÿ", "Å¼")


def test_python_2_protocol_0_strings_keep_their_escapes() -> None:
    assert read(b"S'a\\n\\x41\\\\\\'\\101\\q'\np0\n.") == "a\nA\\'A\\q"
    assert read(b'S"\\xff"\n.') == b"\xff"
    assert read(b"Vsnow \\u2603\n.") == "snow ☃"
    assert read(b"(I01\nI00\nI7\nL123L\nF1.5\nt.") == (True, False, 7, 123, 1.5)


def test_python_2_ordered_dicts_and_instances_are_read() -> None:
    ordered = read(
        b"\x80\x02ccollections\nOrderedDict\nq\x01]q\x02]q\x03(U\x01wK\x01ea\x85q\x04Rq\x05}q\x06U\x05_metaK\x01sb."
    )
    instance, other = read(b"((iold.mod\nKlass\np1\n(dp2\nS'a'\nI1\nsb(cold.mod\nKlass\nI5\not.")

    assert (dict(ordered), ordered.attributes) == ({"w": 1}, {"_meta": 1})
    assert (instance.kind, instance.path, instance.state) == ("object", "old.mod.Klass", {"a": 1})
    assert (other.kind, other.args) == ("object", (5,))


def test_old_style_copyreg_makes_objects_not_calls() -> None:
    loaded = load(
        b"ccopy_reg\n_reconstructor\n(cacme\nNet\nc__builtin__\nobject\nNtR(dS'x'\nI1\nsb.", meanings=STANDARD
    )
    new = read(b"ccopy_reg\n__newobj__\n(cacme\nNet\nI3\ntR.")

    assert (loaded.value.kind, loaded.value.path, loaded.value.state, loaded.calls) == (
        "object",
        "acme.Net",
        {"x": 1},
        (),
    )
    assert (new.kind, new.path, new.args) == ("object", "acme.Net", (3,))


def test_persistent_ids_of_both_kinds_are_asked_for() -> None:
    assert read(b"\x80\x02(X\x01\x00\x00\x00aK\x01tQ.", persistent=lambda key: ["found", key]) == ["found", ("a", 1)]
    assert read(b"Pkey 1\n.", persistent=lambda key: ["found", key]) == ["found", "key 1"]
    with pytest.raises(CorruptError, match="nothing goes with it"):
        read(b"Pkey 1\n.")
