"""The pickle machine: what real picklers write comes back; what hostile ones write is refused, quickly, and nothing runs."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import pickletools
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import Inert, Known, Ordered
from ckptmigrate.wire.meanings import STANDARD, Meaning
from ckptmigrate.wire.opcodes import OPCODES, scan
from ckptmigrate.wire.pickles import Loaded, first_int, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


# nothing runs


def exploits(marker: Path) -> dict[str, bytes]:
    command = f"touch {marker}".encode()
    quoted = b"S'" + command + b"'\n"
    path = repr(str(marker)).encode()
    return {
        "os.system": b"cos\nsystem\n(" + quoted + b"tR.",
        "posix.system": b"cposix\nsystem\n(" + quoted + b"tR.",
        "builtins.eval": b'c__builtin__\neval\n(S"open(' + path.replace(b"'", b"\\x27") + b', \\x27w\\x27)"\ntR.',
        "builtins.getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR.",
        "subprocess.Popen": b"\x80\x04"
        + text_op("subprocess")
        + text_op("Popen")
        + b"\x93"
        + text_op("touch")
        + b"\x85R.",
        "multiprocessing.util.spawnv_passfds": b"cmultiprocessing.util\nspawnv_passfds\n(" + quoted + b"tR.",
        "functools.partial": b"cfunctools\npartial\n(cos\nsystem\n" + quoted + b"tR.",
        "os.system()": b"cos\nsystem\n(" + quoted + b"tR(tR.",
        "os.system.__setstate__": b"cos\nsystem\n(S'__call__'\n" + quoted + b"db.",
    }


def test_exploits_run_nothing_and_come_out_as_inert_calls(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for path, data in exploits(marker).items():
        loaded = load(data, meanings=STANDARD)

        assert (loaded.value.kind, loaded.value.path) == ("call", path)
        assert loaded.calls[-1][1] is loaded.value
        assert not marker.exists()


def test_the_exploits_of_this_test_do_run_under_pickle(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    pickle.loads(exploits(marker)["os.system"])

    assert marker.exists()


def test_instances_of_functions_run_nothing(tmp_path: Path) -> None:
    command = f"S'touch {tmp_path / 'marker'}'\n".encode()
    for data in (
        b"(" + command + b"ios\nsystem\n.",
        b"(cos\nsystem\n" + command + b"o.",
        b"cos\nsystem\n(" + command + b"t\x81.",
    ):
        found = read(data)

        assert (found.kind, found.path) == ("object", "os.system")
    assert not (tmp_path / "marker").exists()


def test_a_call_that_the_pickle_throws_away_is_still_told() -> None:
    loaded = load(b"cos\nsystem\n(S'true'\ntR0(dS'w'\nI1\ns.", meanings=STANDARD)

    assert loaded.value == {"w": 1}
    assert [(at, call.path, call.args) for at, call in loaded.calls] == [(21, "os.system", ("true",))]


def test_picklescans_exploit_of_builtins_only_is_one_chain_of_inert_calls() -> None:
    data = (
        b"c__builtin__\nglobals\n(tRp100\n0c__builtin__\ncompile\n(S'fl=open(\"/etc/passwd\");picklesmashed=fl.read();'\nS''\nS'exec'\n"
        b"tRp101\n0c__builtin__\neval\n(g101\ng100\ntRp102\n0c__builtin__\ngetattr\n(c__builtin__\ndict\nS'get'\ntRp103\n0"
        b"c__builtin__\napply\n(g103\n(g100\nS'picklesmashed'\nltRp104\n0g104\n."
    )

    loaded = load(data, meanings=STANDARD)

    names = ["globals", "compile", "eval", "getattr", "apply"]
    assert [f"builtins.{name}" for name in names] == [call.path for _, call in loaded.calls]
    assert loaded.value is loaded.calls[-1][1]


@pytest.mark.parametrize("size", ["K\x05", "J\xff\xff\xff\x7f"])
def test_bytes_of_a_claimed_size_are_not_made(size: str) -> None:
    for name in (b"bytes", b"bytearray"):
        assert read(b"c__builtin__\n" + name + b"\n" + size.encode("latin-1") + b"\x85R.").kind == "call"


# hostile bytes


def samples() -> list[bytes]:
    ordered = collections.OrderedDict(w=np.arange(3.0), b=[1, 2.5, "é", None, True, -7, 2**70])
    tree = {
        "state": ordered,
        "set": {1},
        "lr": np.float64(0.1),
        "obj": Plain(a=(1, 2, 3, 4)),
        "raw": b"\xff",
        5: bytearray(b"x"),
    }
    return [pickle.dumps(tree, protocol) for protocol in PROTOCOLS]


def test_every_truncation_is_refused() -> None:
    for data in samples():
        for end in range(len(data)):
            with pytest.raises(TruncatedError) as refusal:
                read(data[:end])
            assert refusal.value.data["needed"] > refusal.value.data["present"] >= 0


def test_every_flipped_byte_gives_a_value_or_a_refusal_within_a_second() -> None:
    for data in samples():
        for at in range(len(data)):
            for flip in (0x01, 0x80, 0xFF):
                broken = bytearray(data)
                broken[at] ^= flip
                start = time.monotonic()
                with contextlib.suppress(CkptError):
                    read(bytes(broken), persistent=lambda key: key)
                assert time.monotonic() - start < 1


@given(st.lists(st.sampled_from(sorted(set(OPCODES) - {0x2E})), max_size=40).map(bytes), st.binary(max_size=12))
@settings(deadline=None, max_examples=500)
def test_any_run_of_opcodes_gives_a_value_or_a_refusal(codes: bytes, tail: bytes) -> None:
    with contextlib.suppress(CkptError):
        read(codes + tail + b".", persistent=lambda key: key)


small_ops = st.sampled_from(
    [
        b"(", b")", b"]", b"}", b"N", b"K\x01", b"K\x02", b"U\x01a", b"X\x01\x00\x00\x00b", b"\x85", b"\x86", b"t", b"l", b"d", b"a",
        b"e", b"s", b"u", b"b", b"R", b"\x81", b"\x92", b"o", b"0", b"1", b"2", b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"\x8f",
        b"\x90", b"\x91", b"\x94", b"Q", b"cacme\nNet\n", b"ccollections\nOrderedDict\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n",
        b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.multiarray\nscalar\n", b"cargparse\nNamespace\n", b"cuuid\nUUID\n",
        b"c__builtin__\nset\n", b"ccopy_reg\n_reconstructor\n", b"ccopy_reg\n__newobj__\n", b"ccollections\nCounter\n", b"U\x02f4",
        b"cdatetime\ndatetime\n", b"ccollections\ndefaultdict\n", b"c_codecs\nencode\n", b"iacme\nNet\n", b"C\x04abcd",
        b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01",
    ]
)  # fmt: skip


@given(st.lists(small_ops, max_size=60).map(b"".join))
@settings(deadline=None, max_examples=1500)
def test_any_run_of_whole_opcodes_gives_a_value_or_a_refusal(program: bytes) -> None:
    with contextlib.suppress(CkptError):
        read(program + b".", persistent=lambda key: key)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", TruncatedError, "ends at byte 0 without a STOP"),
        (b".", CorruptError, "nothing on its stack"),
        (b"0.", CorruptError, "never opened"),
        (b"a.", CorruptError, "more off its stack at byte 0"),
        (b"(o.", CorruptError, "more off its stack at byte 1"),
        (b"K\x01\xff.", CorruptError, "0xff at byte 2 is no opcode"),
        (b"h\x07.", CorruptError, "value 7, which it has not remembered"),
        (b"\x80\x06N.", UnsupportedFormatError, "protocol 6"),
        (b"\x82\x01.", UnsupportedFormatError, "extension codes"),
        (b"\x97.", UnsupportedFormatError, "buffers beside"),
        (b"X\xff\xff\xff\xffabc.", TruncatedError, "needs 4294967295 bytes at byte 5, 4 are left"),
        (b"\x8e" + b"\xff" * 8 + b"abc.", TruncatedError, "needs 18446744073709551615 bytes"),
        (b"\x95" + b"\xff" * 8 + b"N.", TruncatedError, "needs 18446744073709551615 bytes"),
        (b"T\xff\xff\xff\xffabc.", CorruptError, "claims -1 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", LimitError, "an integer of 2147483647 bytes at byte 0, more than the limit of 1024"),
        (b"I" + b"9" * 5000 + b"\n.", LimitError, "more than the limit of 4300"),
        (b"Iabc\n.", CorruptError, "is no number"),
        (b"S'abc\n.", CorruptError, "not in quotes"),
        (b"X\x01\x00\x00\x00\xff.", CorruptError, "is not utf-8"),
        (b"(]Nd.", CorruptError, "a list, which no dictionary takes"),
        (b"}(K\x01K\x02K\x01K\x03u.", CorruptError, "sets the key .*1 twice"),
        (b"}(K\x01u.", CorruptError, "a key without a value"),
        (b"K\x01K\x02a.", CorruptError, "adds items to a int"),
        (b"K\x01)R.", CorruptError, "calls a int"),
        (b"cos\nsystem\n]R.", CorruptError, "a list for its arguments"),
        (b"]}b.", CorruptError, "gives a state to a list"),
        (b"c\xff\nx\n.", CorruptError, "is not text"),
        (b"c" + b"m" * 70_000 + b"\nx\n.", LimitError, "more than the limit of 65536"),
        (b"ccollections\nOrderedDict\n)RK\x01b.", CorruptError, "no dictionary of names"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused_with_its_place(data: bytes, error: type[CkptError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(data)


def test_limits_are_told_with_both_numbers() -> None:
    for name, limit, data in (
        ("memo", 3, b"N" + b"\x94" * 10 + b"."),
        ("nodes", 5000, b"](" + b"]" * 20_000 + b"e."),
        ("stack", 100, b"N" * 9000 + b"."),
        ("pickle", 5000, b"N0" * 20_000 + b"N."),
        ("pickle", 5000, b"B" + struct.pack("<I", 6000) + bytes(6000) + b"."),
        ("nesting", 512, b"(" * 9000 + b"."),
        ("nodes", 10_000, b"N0" * 40_000 + b"N."),
    ):
        with pytest.raises(LimitError) as refusal:
            read(data, limits=replace(LIMITS, **{name: limit}))

        assert refusal.value.data["claimed"] > refusal.value.data["limit"] >= limit


def bombs() -> dict[str, tuple[bytes, type[CkptError] | None]]:
    return {
        "lists within lists": (b"]" * 100_000 + b"a" * 99_999 + b".", LimitError),
        "tuples within tuples": (b")" + b"\x85" * 100_000 + b".", LimitError),
        "objects within objects": (
            b"cacme\nNet\nq\x00)" + b"\x81q\x010h\x00h\x01\x85" * 100_000 + b"\x81.",
            LimitError,
        ),
        "a list doubled 500 times": (b"]" + b"".join(b"q\x00h\x00\x86" for _ in range(500)) + b".", None),
        "a list doubled 600 times": (b"]" + b"".join(b"q\x00h\x00\x86" for _ in range(600)) + b".", LimitError),
        "a key doubled 60 times": (b"}N" + b"".join(b"q\x00h\x00\x86" for _ in range(60)) + b"Ns.", CorruptError),
        "a deep key": (b"}N" + b"\x85" * 20_000 + b"Ns.", CorruptError),
        "appended and forgotten": (b"](" + b"N" * 2_000_000 + b"e.", LimitError),
        "open marks": (b"(" * 3_000_000 + b".", LimitError),
    }


@pytest.mark.parametrize("name", bombs())
def test_bombs_go_off_quietly_within_seconds(name: str) -> None:
    data, error = bombs()[name]
    start = time.monotonic()

    with pytest.raises(error) if error else contextlib.nullcontext():
        read(data)

    assert time.monotonic() - start < 20


def test_nesting_counts_levels_however_they_are_reached() -> None:
    limits = replace(LIMITS, nesting=12)
    inner = b"N" + b"\x85" * 10 + b"q\x00"  # ten levels, met first near the root
    outer = b"\x85" * 4

    assert read(b"(" + inner + b"t.", limits=limits)
    with pytest.raises(LimitError, match="more than the limit of 12"):
        read(b"(" + inner + b"h\x00" + outer + b"t.", limits=limits)


def test_a_source_is_read_in_windows_and_never_behind_its_end() -> None:
    data = pickle.dumps({f"key {n}": n for n in range(200_000)}, 2)
    asked: list[tuple[int, int]] = []

    class Reader:
        size = len(data)

        def read(self, offset: int, nbytes: int, /) -> bytes:
            asked.append((offset, nbytes))
            assert offset + nbytes <= self.size
            return data[offset : offset + nbytes]

    loaded = load(Reader(), meanings={})

    assert len(loaded.value) == 200_000
    assert max(nbytes for _, nbytes in asked) <= 1 << 20
    assert sum(nbytes for _, nbytes in asked) < len(data) * 1.1


def test_a_refused_call_of_a_meaning_is_told_among_the_calls() -> None:
    meaning: Callable[[tuple[Any, ...]], Any] = lambda args: Inert("call", "acme.make", args)  # noqa: E731 - a one-word function

    loaded = load(b"cacme\nmake\n)R.", meanings={"acme.make": Meaning(meaning)})

    assert loaded.calls == ((12, loaded.value),)
