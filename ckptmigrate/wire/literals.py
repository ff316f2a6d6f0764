"""What the opcodes of numbers, text and bytes push; `opcodes` is the table that names them.

Each action finds the machine standing behind its opcode, its argument of fixed size within the window.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .machine import Machine

DIGITS = 4300  # what Python itself converts; more is quadratic
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
ESCAPED = dict(zip(b"ntrabfv\\'\"", b"\n\t\r\a\b\f\v\\'\"", strict=True))
_u16, _i32, _u32, _u64, _f64 = (struct.Struct(form).unpack_from for form in ("<H", "<i", "<I", "<Q", ">d"))


def binint1(machine: Machine) -> None:
    """Push a byte."""
    machine.stack.append(machine.window[machine.at])
    machine.at += 1


def binint2(machine: Machine) -> None:
    """Push two bytes as a number."""
    machine.stack.append(_u16(machine.window, machine.at)[0])
    machine.at += 2


def binint(machine: Machine) -> None:
    """Push four bytes as a signed number."""
    machine.push(_i32(machine.window, machine.at)[0])
    machine.at += 4


def binfloat(machine: Machine) -> None:
    """Push eight bytes, big-endian, as a float."""
    machine.push(_f64(machine.window, machine.at)[0])
    machine.at += 8


def push_long(machine: Machine, nbytes: int) -> None:
    """Push a signed integer of any size; LimitError above ``limits.integer``."""
    limit = machine.limits.integer
    if nbytes > limit:
        message = f"an integer of {nbytes} bytes at byte {machine.where()}, more than the limit of {limit}"
        raise LimitError(message, limit=limit, claimed=nbytes)
    machine.push(int.from_bytes(machine.take(nbytes), "little", signed=True))


def text_digits(machine: Machine) -> bytes:
    """Give the digits of a line."""
    return machine.line(DIGITS).strip()


def number(machine: Machine, convert: Callable[[bytes], Any], digits: bytes) -> None:
    """Push what digits say."""
    try:
        value = convert(digits)
    except ValueError:
        raise CorruptError(f"{digits!r:.80} at byte {machine.where()} is no number") from None
    machine.push(value)


def text_int(machine: Machine) -> None:
    """Push an integer of protocol 0, where 00 and 01 are False and True."""
    digits = text_digits(machine)
    if digits in (b"00", b"01"):
        machine.stack.append(digits == b"01")  # how protocols 0 and 1 spell False and True
    else:
        number(machine, int, digits)


# text and bytes


def size4(machine: Machine) -> int:
    """Give an unsigned length of four bytes."""
    at = machine.at
    machine.at = at + 4
    size: int = _u32(machine.window, at)[0]
    return size


def size8(machine: Machine) -> int:
    """Give an unsigned length of eight bytes."""
    at = machine.at
    machine.at = at + 8
    size: int = _u64(machine.window, at)[0]
    return size


def size1(machine: Machine) -> int:
    """Give a length of one byte."""
    at = machine.at
    machine.at = at + 1
    return machine.window[at]


def signed4(machine: Machine) -> int:
    """Give a length of four bytes that is not negative."""
    at = machine.at
    machine.at = at + 4
    size: int = _i32(machine.window, at)[0]
    if size < 0:
        raise CorruptError(f"the pickle claims {size} bytes at byte {machine.where()}", claimed=size)
    return size


def push_unicode(machine: Machine, data: bytes, encoding: str = "utf-8", errors: str = "surrogatepass") -> None:
    """Push text."""
    try:
        machine.push(data.decode(encoding, errors))
    except ValueError as error:
        raise CorruptError(f"text at byte {machine.where()} is not {encoding}: {error}") from None


def old_text(machine: Machine, data: bytes) -> None:
    """Push a string of Python 2, which may be text or bytes."""
    try:
        machine.push(data.decode(machine.encoding))
    except ValueError:
        machine.push(data)


def push_string(machine: Machine) -> None:
    """Push a Python 2 string of protocol 0: in quotes, with escapes."""
    line = machine.line(machine.limits.pickle).strip()
    if len(line) < 2 or line[0] != line[-1] or line[0] not in b"'\"":
        raise CorruptError(f"a string at byte {machine.where()} is not in quotes")

    def unescape(match: re.Match[bytes]) -> bytes:
        what = match[1]
        if what[0] in ESCAPED:
            return bytes([ESCAPED[what[0]]])
        if what[0] in b"01234567":
            return bytes([int(what, 8) & 0xFF])
        if len(what) == 3:
            return bytes([int(what[1:], 16)])
        return match[0]  # Python keeps what it does not know

    old_text(machine, ESCAPE.sub(unescape, line[1:-1]))


def binunicode(machine: Machine) -> None:
    """Push text behind its length of four bytes: the most frequent argument."""
    start = machine.at + 4
    end = start + _u32(machine.window, machine.at)[0]
    if end <= len(machine.window):
        data = machine.window[start:end]
        machine.at = end
    else:
        machine.at = start
        data = machine.take(end - start)
    try:
        machine.stack.append(str(data, "utf-8"))
        machine.nodes += 1
    except ValueError:
        push_unicode(machine, data)
