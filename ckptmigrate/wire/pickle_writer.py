r"""Trees of values as pickles of protocol 2, in the opcodes that a weights-only loader accepts.

    80 02  PROTO 2      7D EMPTY_DICT   71 00 BINPUT   28 MARK   58 … BINUNICODE "w"   <tensor>   75 SETITEMS   2E STOP

    a tensor           GLOBAL, its arguments, REDUCE: what the caller's ``reduce`` says
    Persistent(id)     the tuple, BINPERSID
    Ordered            GLOBAL collections OrderedDict, EMPTY_TUPLE, REDUCE, SETITEMS, and BUILD where it has attributes
    Known              GLOBAL and, with arguments, REDUCE, under its Python 2 name, as Python 3 does at this protocol
    bytes              GLOBAL _codecs encode, (text, "latin1"), REDUCE: there is no BINBYTES before protocol 3
    integers           BININT1, BININT2, BININT, LONG1 up to 255 bytes; nothing loads LONG4

Each container and tensor is written once and fetched from the memo where it occurs again, so what was shared stays shared and
rings stay rings; text is written once, by value. The same tree gives the same bytes. Source: CPython's ``pickle._Pickler``; which
opcodes a weights-only loader takes is its own list, which the tests hold.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import OutputError
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Ordered, Path, Scalar, spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Reduce = Callable[[Tensor], tuple[str, tuple[Any, ...]]]
    Trail = tuple["Trail", Any] | None  # where a value stands: the trail of what holds it, and its key

BATCH = 1000  # items for each SETITEMS or APPENDS, as CPython writes them: it bounds a reader's stack
LONGEST = 255  # bytes of an integer that LONG1 can tell
MODULES = {"builtins": "__builtin__", "copyreg": "copy_reg"}
NAMES = {
    "builtins.int": ("__builtin__", "long"),
    "builtins.str": ("__builtin__", "unicode"),
    "builtins.range": ("__builtin__", "xrange"),
}


@dataclass(frozen=True, slots=True)
class Persistent:
    """A value that the container of the pickle keeps: ``id`` is the tuple by which it is found."""

    id: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Code:
    """Opcodes that stand after the values before them; ``memo`` is what has been made by then."""

    code: bytes
    memo: Any = None


def dump(tree: Any, *, reduce: Reduce | None = None) -> bytes:
    """Give the tree as one pickle. ``reduce`` says for a tensor which global makes it of which arguments.

    The arguments may hold `Persistent` nodes. OutputError names the path of what has no place: inert nodes, integers of
    more than 255 bytes, tuples that hold themselves, a tensor without ``reduce``.
    """
    writer = _Writer(reduce)
    writer.run(tree)
    return bytes(writer.out)


class _Writer:
    """One pickle being written: the bytes so far, the memo, and the work left, last first."""

    __slots__ = ("globals", "kept", "memo", "open", "out", "reduce", "text", "work")

    def __init__(self, reduce: Reduce | None) -> None:
        self.reduce = reduce
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[int, int] = {}  # by identity
        self.text: dict[str | bytes, int] = {}
        self.globals: dict[str, int] = {}
        self.open: set[int] = set()  # tuples and calls whose arguments are being written
        self.kept: list[Any] = []  # what ``reduce`` gave: an identity may not be given away again
        self.work: list[tuple[Any, Trail]] = []

    def run(self, tree: Any) -> None:
        self.work.append((tree, None))
        while self.work:
            value, trail = self.work.pop()
            if type(value) is _Code:
                self.out += value.code
                if value.memo is not None:
                    self.open.discard(id(value.memo))
                    self.put(value.memo)
            else:
                self.write(value, trail)
        self.out += b"."

    def write(self, value: Any, trail: Trail) -> None:
        kind = type(value)
        if value is None:
            self.out += b"N"
        elif kind is bool:
            self.out += b"\x88" if value else b"\x89"
        elif kind is int:
            self.integer(value, trail)
        elif kind is float:
            self.out += b"G" + struct.pack(">d", value)
        elif kind is str:
            self.string(value)
        elif kind is bytes:
            self.octets(value)
        elif kind is Scalar:
            self.write(value.value, trail)
        elif kind is Persistent:
            self.push((value.id, trail), (_Code(b"Q"), None))
        elif kind is tuple and not value:
            self.out += b")"
        elif id(value) in self.memo:
            self.get(self.memo[id(value)])
        elif kind is dict or kind is Ordered:
            self.mapping(value, trail)
        elif kind is list:
            self.out += b"]"
            self.put(value)
            self.batches((((item, (trail, at)),) for at, item in enumerate(value)), len(value), b"a", b"e")
        elif kind is tuple:
            self.sequence(value, trail)
        elif kind is Known:
            self.known(value, trail)
        elif kind is Tensor and self.reduce is not None:
            path, args = self.reduce(value)
            self.call(value, path, args, trail)
        else:
            what = f"a {value.kind} node of {value.path}" if kind is Inert else f"a {kind.__name__}"
            raise OutputError(f"{where(trail)}: {what} has no place in a pickle", value=value)

    # leaves

    def integer(self, value: int, trail: Trail) -> None:
        if 0 <= value < 1 << 8:
            self.out += b"K" + value.to_bytes(1, "little")
        elif 0 <= value < 1 << 16:
            self.out += b"M" + value.to_bytes(2, "little")
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            size = (value if value >= 0 else ~value).bit_length() // 8 + 1
            if size > LONGEST:
                message = (
                    f"{where(trail)}: an integer of {size} bytes, more than the {LONGEST} that a pickle's reader takes"
                )
                raise OutputError(message, limit=LONGEST, claimed=size)
            self.out += b"\x8a" + size.to_bytes(1, "little") + value.to_bytes(size, "little", signed=True)

    def string(self, value: str) -> None:
        if value in self.text:
            self.get(self.text[value])
            return
        data = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + len(data).to_bytes(4, "little") + data
        self.text[value] = self.number()

    def octets(self, value: bytes) -> None:
        if value in self.text:
            self.get(self.text[value])
            return
        self.name("_codecs.encode")
        data = value.decode("latin-1").encode()
        self.out += b"X" + len(data).to_bytes(4, "little") + data
        self.string("latin1")
        self.out += b"\x86R"
        self.text[value] = self.number()

    # containers

    def mapping(self, value: dict[Any, Any], trail: Trail) -> None:
        if type(value) is Ordered:
            self.name("collections.OrderedDict")
            self.out += b")R"
        else:
            self.out += b"}"
        self.put(value)
        if type(value) is Ordered and value.attributes:
            self.push((value.attributes, trail), (_Code(b"b"), None))
        pairs = (((key, trail), (item, (trail, key))) for key, item in value.items())
        self.batches(pairs, len(value), b"s", b"u")

    def batches(self, groups: Iterable[tuple[tuple[Any, Trail], ...]], count: int, one: bytes, many: bytes) -> None:
        """Leave the groups of values to be written, ``BATCH`` at a time."""
        if count == 1:
            self.push(*(entry for group in groups for entry in group), (_Code(one), None))
            return
        entries: list[tuple[Any, Trail]] = []
        for at, group in enumerate(groups):
            if at % BATCH == 0:
                entries += [(_Code(many), None)] if at else []
                entries.append((_Code(b"("), None))
            entries += group
        if entries:
            self.push(*entries, (_Code(many), None))

    def sequence(self, value: tuple[Any, ...], trail: Trail) -> None:
        self.enter(value, trail)
        items = [(item, (trail, at)) for at, item in enumerate(value)]
        if len(value) <= 3:
            self.push(*items, (_Code((b"\x85", b"\x86", b"\x87")[len(value) - 1], value), None))
        else:
            self.out += b"("
            self.push(*items, (_Code(b"t", value), None))

    def known(self, value: Known, trail: Trail) -> None:
        if value.args is None:
            self.name(value.path)
        else:
            self.call(value, value.path, value.args, trail)

    def call(self, value: Any, path: str, args: tuple[Any, ...], trail: Trail) -> None:
        self.enter(value, trail)
        self.kept.append((value, args))
        self.name(path)
        self.push((args, trail), (_Code(b"R", value), None))

    def enter(self, value: Any, trail: Trail) -> None:
        if id(value) in self.open:
            raise OutputError(f"{where(trail)}: a tuple or call that holds itself, which no weights-only loader takes")
        self.open.add(id(value))

    def push(self, *entries: tuple[Any, Trail]) -> None:
        self.work += reversed(entries)

    # names and memo

    def name(self, path: str) -> None:
        if path in self.globals:
            self.get(self.globals[path])
            return
        module, _, name = path.rpartition(".")
        module, name = NAMES.get(path, (MODULES.get(module, module), name))
        self.out += f"c{module}\n{name}\n".encode()
        self.globals[path] = self.number()

    def put(self, value: Any) -> None:
        self.memo[id(value)] = self.number()

    def number(self) -> int:
        index = len(self.memo) + len(self.text) + len(self.globals)
        self.out += b"q" + index.to_bytes(1, "little") if index < 256 else b"r" + index.to_bytes(4, "little")
        return index

    def get(self, index: int) -> None:
        self.out += b"h" + index.to_bytes(1, "little") if index < 256 else b"j" + index.to_bytes(4, "little")


def where(trail: Trail) -> str:
    """Spell the path of a trail."""
    steps: list[Any] = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    path: Path = tuple(reversed(steps))
    return spell(path) or "the value itself"
