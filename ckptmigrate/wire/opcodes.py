"""The opcodes of pickle protocols 0 to 5: name, argument, action.

An argument is a number of bytes of fixed size (1, 2, 4, 8), bytes behind their length ("L1", "L4", "L8" unsigned, "S4" signed,
all little-endian), or one or two lines ("line", "lines"). Source: CPython's pickletools and pickle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.values import Known

from .actions import (
    append,
    appends,
    binget,
    binput,
    constant,
    dup,
    frame,
    fresh,
    inst,
    long_binget,
    long_binput,
    make_dict,
    make_frozenset,
    make_tuple,
    mark,
    memo_index,
    memoize,
    name_text,
    newobj,
    newobj_ex,
    obj,
    persistent,
    pop,
    pop_mark,
    proto,
    push_global,
    reduce_call,
    refused,
    setitem,
    setitems,
    stack_global,
    tuple_of,
    unknown,
)
from .literals import (
    DIGITS,
    binfloat,
    binint,
    binint1,
    binint2,
    binunicode,
    number,
    old_text,
    push_long,
    push_string,
    push_unicode,
    signed4,
    size1,
    size4,
    size8,
    text_digits,
    text_int,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .machine import Machine

STOP = 0x2E

OPCODES: dict[int, tuple[str, int | str, Callable[[Machine], None]]] = {
    0x28: ("MARK", 0, mark),
    0x29: ("EMPTY_TUPLE", 0, constant(())),
    0x2E: ("STOP", 0, unknown),  # the loop ends before it asks
    0x30: ("POP", 0, pop),
    0x31: ("POP_MARK", 0, pop_mark),
    0x32: ("DUP", 0, dup),
    0x42: ("BINBYTES", "L4", lambda m: m.push(m.take(size4(m)))),
    0x43: ("SHORT_BINBYTES", "L1", lambda m: m.push(m.take(size1(m)))),
    0x46: ("FLOAT", "line", lambda m: number(m, float, text_digits(m))),
    0x47: ("BINFLOAT", 8, binfloat),
    0x49: ("INT", "line", text_int),
    0x4A: ("BININT", 4, binint),
    0x4B: ("BININT1", 1, binint1),
    0x4C: ("LONG", "line", lambda m: number(m, int, text_digits(m).removesuffix(b"L"))),
    0x4D: ("BININT2", 2, binint2),
    0x4E: ("NONE", 0, constant(None)),
    0x50: ("PERSID", "line", lambda m: persistent(m, name_text(m, m.line(m.limits.name)))),
    0x51: ("BINPERSID", 0, lambda m: persistent(m, m.stack.pop())),
    0x52: ("REDUCE", 0, reduce_call),
    0x53: ("STRING", "line", push_string),
    0x54: ("BINSTRING", "S4", lambda m: old_text(m, m.take(signed4(m)))),
    0x55: ("SHORT_BINSTRING", "L1", lambda m: old_text(m, m.take(size1(m)))),
    0x56: ("UNICODE", "line", lambda m: push_unicode(m, m.line(m.limits.pickle), "raw-unicode-escape", "strict")),
    0x58: ("BINUNICODE", "L4", binunicode),
    0x5D: ("EMPTY_LIST", 0, fresh(list)),
    0x61: ("APPEND", 0, append),
    0x62: ("BUILD", 0, lambda m: m.build()),
    0x63: ("GLOBAL", "lines", push_global),
    0x64: ("DICT", 0, make_dict),
    0x65: ("APPENDS", 0, appends),
    0x67: ("GET", "line", lambda m: m.get(memo_index(m))),
    0x68: ("BINGET", 1, binget),
    0x69: ("INST", "lines", inst),
    0x6A: ("LONG_BINGET", 4, long_binget),
    0x6C: ("LIST", 0, lambda m: m.push(m.pop_mark())),
    0x6F: ("OBJ", 0, obj),
    0x70: ("PUT", "line", lambda m: m.put(memo_index(m))),
    0x71: ("BINPUT", 1, binput),
    0x72: ("LONG_BINPUT", 4, long_binput),
    0x73: ("SETITEM", 0, setitem),
    0x74: ("TUPLE", 0, make_tuple),
    0x75: ("SETITEMS", 0, setitems),
    0x7D: ("EMPTY_DICT", 0, fresh(dict)),
    0x80: ("PROTO", 1, proto),
    0x81: ("NEWOBJ", 0, newobj),
    0x82: ("EXT1", 1, refused("the registry of extension codes")),
    0x83: ("EXT2", 2, refused("the registry of extension codes")),
    0x84: ("EXT4", 4, refused("the registry of extension codes")),
    0x85: ("TUPLE1", 0, tuple_of(1)),
    0x86: ("TUPLE2", 0, tuple_of(2)),
    0x87: ("TUPLE3", 0, tuple_of(3)),
    0x88: ("NEWTRUE", 0, constant(True)),
    0x89: ("NEWFALSE", 0, constant(False)),
    0x8A: ("LONG1", "L1", lambda m: push_long(m, size1(m))),
    0x8B: ("LONG4", "S4", lambda m: push_long(m, signed4(m))),
    0x8C: ("SHORT_BINUNICODE", "L1", lambda m: push_unicode(m, m.take(size1(m)))),
    0x8D: ("BINUNICODE8", "L8", lambda m: push_unicode(m, m.take(size8(m)))),
    0x8E: ("BINBYTES8", "L8", lambda m: m.push(m.take(size8(m)))),
    0x8F: ("EMPTY_SET", 0, fresh(lambda: Known("builtins.set", ([],)))),
    0x90: ("ADDITEMS", 0, appends),
    0x91: ("FROZENSET", 0, make_frozenset),
    0x92: ("NEWOBJ_EX", 0, newobj_ex),
    0x93: ("STACK_GLOBAL", 0, stack_global),
    0x94: ("MEMOIZE", 0, memoize),
    0x95: ("FRAME", 8, frame),
    0x96: ("BYTEARRAY8", "L8", lambda m: m.push(Known("builtins.bytearray", (m.take(size8(m)),)))),
    0x97: ("NEXT_BUFFER", 0, refused("buffers beside the pickle")),
    0x98: ("READONLY_BUFFER", 0, refused("buffers beside the pickle")),
}
HANDLERS = [OPCODES[code][2] if code in OPCODES else unknown for code in range(256)]
_PREFIX = {"L1": 1, "L4": 4, "L8": 8, "S4": 4, "line": 0, "lines": 0}


def _fixed(argument: int | str) -> int:
    return argument if isinstance(argument, int) else _PREFIX[argument]


FIXED = [_fixed(OPCODES[code][1]) if code in OPCODES else 0 for code in range(256)]
"""Bytes that must follow each opcode, whatever the file says."""


def scan(head: bytes, count: int = 8) -> Iterator[tuple[str, int | bytes | None]]:
    """Give the first opcodes of a file's head by name, integers as numbers, other arguments as they lie there.

    Ends without an error where the head ends or is no pickle.
    """
    at = 0
    for _ in range(count):
        if at >= len(head) or head[at] not in OPCODES:
            return
        name, argument, _handler = OPCODES[head[at]]
        at += 1
        start = at + _fixed(argument)
        if isinstance(argument, int):
            end = start
        elif _PREFIX.get(argument):
            end = start + int.from_bytes(head[at:start], "little")
        else:
            end = head.find(b"\n", at) + 1
            if argument == "lines" and end:
                end = head.find(b"\n", end) + 1
            if not end:
                return
        if end > len(head):
            return
        data = head[at:end] if isinstance(argument, int) or start == at else head[start:end]
        at = end
        yield name, _decoded(name, data)
        if name == "STOP":
            return


_UNSIGNED = frozenset({"BININT1", "BININT2", "PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"})
_SIGNED = frozenset({"BININT", "LONG1", "LONG4"})


def _decoded(name: str, data: bytes) -> int | bytes | None:
    if name in _UNSIGNED or name in _SIGNED:
        return int.from_bytes(data[:256], "little", signed=name in _SIGNED)
    if name in ("INT", "LONG") and len(data) < DIGITS:
        digits = data.strip().removesuffix(b"L")
        return int(digits) if digits.removeprefix(b"-").isdigit() else data
    return data or None
