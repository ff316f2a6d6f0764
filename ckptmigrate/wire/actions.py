"""What the opcodes of memo, stack, names, calls and objects do; `opcodes` is the table that names them.

Each action finds the machine standing behind its opcode, its argument of fixed size within the window.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, UnsupportedFormatError
from ckptmigrate.values import Known

from .literals import size8, text_digits
from .names import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from .machine import Machine

_u32 = struct.Struct("<I").unpack_from


def constant(value: Any) -> Callable[[Machine], None]:
    """Give the action that pushes one value for everybody."""

    def push(machine: Machine) -> None:
        machine.stack.append(value)

    return push


def fresh(make: Callable[[], Any]) -> Callable[[Machine], None]:
    """Give the action that pushes a new container."""

    def push(machine: Machine) -> None:
        machine.push(make())

    return push


# memo


def binget(machine: Machine) -> None:
    """Push what is remembered under a byte."""
    at = machine.at
    machine.at = at + 1
    machine.get(machine.window[at])


def long_binget(machine: Machine) -> None:
    """Push what is remembered under four bytes."""
    at = machine.at
    machine.at = at + 4
    machine.get(_u32(machine.window, at)[0])


def binput(machine: Machine) -> None:
    """Remember the top under a byte."""
    at = machine.at
    machine.at = at + 1
    machine.memo[machine.window[at]] = machine.stack[-1]


def long_binput(machine: Machine) -> None:
    """Remember the top under four bytes."""
    at = machine.at
    machine.at = at + 4
    machine.memo[_u32(machine.window, at)[0]] = machine.stack[-1]


def memoize(machine: Machine) -> None:
    """Remember the top under the next number."""
    machine.memo[len(machine.memo)] = machine.stack[-1]


def memo_index(machine: Machine) -> int:
    """Give a number of protocol 0's memo."""
    digits = text_digits(machine)
    try:
        return int(digits)
    except ValueError:
        raise CorruptError(f"{digits!r:.80} at byte {machine.where()} is no number") from None


# the stack


def mark(machine: Machine) -> None:
    """Open a run of items."""
    machine.outer.append(machine.stack)
    machine.stack = []


def pop(machine: Machine) -> None:
    """Take the top away, or the mark below an empty run."""
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def pop_mark(machine: Machine) -> None:
    """Take a whole run of items away."""
    machine.pop_mark()


def dup(machine: Machine) -> None:
    """Push the top again."""
    machine.push(machine.stack[-1])


def make_tuple(machine: Machine) -> None:
    """Push a run of items as a tuple."""
    items = machine.pop_mark()
    machine.push(tuple(items))


def tuple_of(count: int) -> Callable[[Machine], None]:
    """Give the action that makes a tuple of so many items."""

    def make(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise IndexError
        stack[-count:] = [tuple(stack[-count:])]
        machine.nodes += 1

    return make


def make_dict(machine: Machine) -> None:
    """Push a run of pairs as a dictionary."""
    items = machine.pop_mark()
    made: dict[Any, Any] = {}
    machine.push(made)
    machine.set_items(made, items)


def append(machine: Machine) -> None:
    """Add the top to the list below it."""
    item = machine.stack.pop()
    machine.append(machine.stack[-1], [item])


def appends(machine: Machine) -> None:
    """Add a run of items to the list below it."""
    items = machine.pop_mark()
    machine.append(machine.stack[-1], items)


def setitem(machine: Machine) -> None:
    """Set one pair in the dictionary below it."""
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items(machine.stack[-1], [key, value])


def setitems(machine: Machine) -> None:
    """Set a run of pairs in the dictionary below it."""
    items = machine.pop_mark()
    machine.set_items(machine.stack[-1], items)


# names, calls, objects


def name_text(machine: Machine, data: bytes) -> str:
    """Give a name as text."""
    try:
        return data.decode()
    except ValueError:
        raise CorruptError(f"the name {data!r:.80} at byte {machine.where()} is not text") from None


def two_lines(machine: Machine) -> tuple[str, str]:
    """Give module and name from their lines."""
    module, name = machine.line(machine.limits.name), machine.line(machine.limits.name)
    return name_text(machine, module), name_text(machine, name)


def push_global(machine: Machine) -> None:
    """Push the name on two lines."""
    machine.push_name(*two_lines(machine))


def stack_global(machine: Machine) -> None:
    """Push the name whose two halves are on the stack."""
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise CorruptError(
            f"a global at byte {machine.where()} is named by a {type(module).__name__} and a {type(name).__name__}"
        )
    machine.push_name(module, name)


def reduce_call(machine: Machine) -> None:
    """Put the outcome of a call in the place of name and arguments."""
    args = machine.stack.pop()
    machine.stack[-1] = machine.call(machine.stack[-1], args)


def make_object(machine: Machine, kind: Any, args: Any) -> None:
    """Push an object of a class."""
    if type(args) is not tuple:
        raise CorruptError(
            f"an object at byte {machine.where()} has a {type(args).__name__} for its arguments, expected a tuple"
        )
    machine.stack.append(machine.new(kind, args))


def newobj(machine: Machine) -> None:
    """Push an object whose arguments are a tuple."""
    args, kind = machine.stack.pop(), machine.stack.pop()
    make_object(machine, kind, args)


def newobj_ex(machine: Machine) -> None:
    """Push an object with named arguments too, which become the last one."""
    named, args, kind = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    make_object(machine, kind, (*args, named) if named and type(args) is tuple else args)


def obj(machine: Machine) -> None:
    """Push an object whose class and arguments are a run of items."""
    items = machine.pop_mark()
    kind = items[0]  # IndexError is an empty stack
    machine.stack.append(machine.new(kind, tuple(items[1:])))


def inst(machine: Machine) -> None:
    """Push an object whose class is named on two lines."""
    module, name = two_lines(machine)
    args = machine.pop_mark()
    machine.push_name(module, name)
    machine.stack.append(machine.new(machine.stack.pop(), tuple(args)))


def persistent(machine: Machine, key: Any) -> None:
    """Push what lies outside the pickle."""
    if machine.persistent is None:
        raise CorruptError(
            f"the pickle asks for {show(key)} outside of it at byte {machine.where()}, and nothing goes with it"
        )
    machine.push(machine.ask("a persistent id", machine.persistent, key))


def refused(what: str) -> Callable[[Machine], None]:
    """Give the action that refuses what needs more than a file."""

    def refuse(machine: Machine) -> None:
        raise UnsupportedFormatError(f"the pickle uses {what} at byte {machine.where()}, which no file can carry")

    return refuse


def unknown(machine: Machine) -> None:
    """Refuse a byte that is no opcode."""
    code = machine.window[machine.op]
    raise CorruptError(f"0x{code:02x} at byte {machine.where()} is no opcode of a pickle", opcode=code)


def make_frozenset(machine: Machine) -> None:
    """Push a run of items as a frozenset."""
    machine.push(Known("builtins.frozenset", (machine.pop_mark(),)))


def proto(machine: Machine) -> None:
    """Check the protocol."""
    version = machine.window[machine.at]
    machine.at += 1
    if version > 5:
        raise UnsupportedFormatError(f"the pickle at byte {machine.where()} is of protocol {version}, expected 0 to 5")


def frame(machine: Machine) -> None:
    """Check a frame's length; frames mean nothing else."""
    nbytes = size8(machine)
    position = machine.base + machine.at
    if nbytes > machine.size - position:
        machine.truncated(position, nbytes, machine.size - position)
