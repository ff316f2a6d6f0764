"""The pickle machine under attack: nothing runs, and what is wrong is refused, quickly and with its place."""

from __future__ import annotations

import collections
import contextlib
import pickle
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import Inert
from ckptmigrate.wire.meanings import STANDARD, Meaning
from ckptmigrate.wire.opcodes import OPCODES
from ckptmigrate.wire.pickles import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def read(data: bytes, **options: Any) -> Any:
    return load(data, meanings=STANDARD, **options).value


def text_op(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


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


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


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
