"""The machine that reads pickles: where it reads, its stack and memo, and what it makes of names, calls and states.

Nothing here knows an opcode: `opcodes` is the table that drives it. A value is what `values.py` lists; a name, an object or a
call that no meaning is listed for is an inert node.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol

from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError
from ckptmigrate.values import NOTHING, Inert, Known, Ordered

from .names import Meaning, canonical, put_items

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptmigrate.limits import Limits

STRIDE = 4096  # opcodes between two looks at the limits: a look costs as much as twenty opcodes
EDGE = 16  # no opcode with an argument of fixed size is longer, so this many bytes in the window need no look
WINDOW = (4096, 1 << 20)  # the first window and the largest: legacy files begin with three pickles of some ten bytes
MARKS = 8  # open marks for each level of nesting; picklers open four at most
OPCODES = 4  # opcodes for each node; picklers write two or three
BAD_ARGUMENTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
COPYREG: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {  # how copyreg makes an object: what its class gets
    "copyreg._reconstructor": lambda args: () if args[1] is None else (args[1],),  # (class, base, the base's value)
    "copyreg.__newobj__": lambda args: args,
    "copyreg.__newobj_ex__": lambda args: (*args[0], args[1]) if args[1] else tuple(args[0]),
}


class Reader(Protocol):
    """What the machine reads: ``files.Source`` is one."""

    @property
    def size(self) -> int: ...  # noqa: D102 - bytes in all
    def read(self, offset: int, nbytes: int, /) -> bytes: ...  # noqa: D102 - exactly so many bytes


class Machine:
    """The state of one load: where it reads, the stack (one list for each open mark), the memo, the names seen so far."""

    __slots__ = (
        "at", "base", "callables", "calls", "encoding", "fence", "fixed", "globals", "limits", "made", "meanings", "memo", "nodes", "op",
        "opcodes", "outer", "persistent", "reach", "replaced", "size", "source", "stack", "start", "window",
    )  # fmt: skip

    def __init__(
        self,
        source: Reader,
        offset: int,
        limits: Limits,
        meanings: Mapping[str, Meaning],
        persistent: Callable[[Any], Any] | None,
        encoding: str,
        fixed: Sequence[int],
    ) -> None:
        self.source, self.size, self.limits, self.fixed = source, source.size, limits, fixed
        self.meanings, self.persistent, self.encoding = meanings, persistent, encoding
        self.start = self.base = offset
        self.window, self.at, self.fence, self.reach, self.op = b"", 0, 0, WINDOW[0], 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.globals: dict[str, Any] = {}
        self.callables: dict[int, tuple[str, Meaning | None]] = {}  # by identity of the value that stands for the name
        self.made: dict[
            int, tuple[Any, str, Callable[[Any, Any], Any]]
        ] = {}  # by identity: values that a BUILD may follow
        self.replaced: dict[int, tuple[Any, Any]] = {}  # by identity: what a BUILD put in a value's place, for the memo
        self.calls: list[tuple[int, Inert]] = []
        self.nodes = self.opcodes = 0

    def look(self) -> None:
        """Compare what has been taken with the limits."""
        limits = self.limits
        self.opcodes += STRIDE
        stack = len(self.stack) + sum(map(len, self.outer))
        for what, claimed, limit in (
            ("makes {} objects", self.nodes, limits.nodes),
            ("runs {} opcodes", self.opcodes, max(OPCODES * limits.nodes, STRIDE)),
            ("remembers {} values", len(self.memo), limits.memo),
            ("puts {} items on its stack", stack, limits.stack),
            ("opens {} marks", len(self.outer), MARKS * limits.nesting),
        ):
            if claimed > limit:
                message = f"the pickle {what.format(claimed)} by byte {self.where()}, more than the limit of {limit}"
                raise LimitError(message, limit=limit, claimed=claimed)

    # where it reads

    def where(self) -> int:
        """Give the offset of the opcode at work, or of what it read last."""
        return self.base + self.op

    def slide(self) -> None:
        """Bring the next opcode with its argument of fixed size into the window; the source may end within it."""
        position = self.base + self.at
        if position - self.start > self.limits.pickle:
            self.too_long(position - self.start)
        if self.base + len(self.window) < self.size:
            self.window = self.source.read(position, min(self.reach, self.size - position))
            self.base, self.at, self.fence = position, 0, len(self.window) - EDGE
            self.reach = min(self.reach * 8, WINDOW[1])
        present = self.size - position
        if present <= 0:
            raise TruncatedError(
                f"the pickle ends at byte {position} without a STOP", offset=position, needed=1, present=0
            )
        needed = 1 + self.fixed[self.window[self.at]]
        if needed > present:
            self.op = self.at
            self.truncated(position, needed, present)

    def take(self, nbytes: int) -> bytes:
        """Give the next ``nbytes`` bytes of an argument."""
        at = self.at
        if 0 <= nbytes <= len(self.window) - at:
            self.at = at + nbytes
            return self.window[at : at + nbytes]
        position = self.base + at
        if nbytes < 0:
            raise CorruptError(f"the pickle claims {nbytes} bytes at byte {position}", claimed=nbytes)
        if nbytes > self.size - position:
            self.truncated(position, nbytes, self.size - position)
        if position + nbytes - self.start > self.limits.pickle:
            self.too_long(position + nbytes - self.start)
        data = self.source.read(position, nbytes)
        self.base, self.window, self.at, self.fence, self.op = position + nbytes, b"", 0, 0, 0
        return data

    def line(self, limit: int) -> bytes:
        """Give the argument that a newline ends, without it; LimitError where it is longer than ``limit``."""
        end, position, reach = self.window.find(b"\n", self.at), self.base + self.at, WINDOW[0]
        while end < 0:
            self.window = self.source.read(position, min(reach, limit + 1, self.size - position))
            self.base, self.at, self.op, self.fence = position, 0, 0, len(self.window) - EDGE
            end = self.window.find(b"\n")
            if end < 0 and position + len(self.window) >= self.size:
                self.truncated(position, len(self.window) + 1, len(self.window))
            if end < 0 and len(self.window) > limit:
                end = len(self.window)
            reach *= 8
        if end - self.at > limit:
            message = f"a line of the pickle is longer than {end - self.at - 1} bytes at byte {position}, more than the limit of {limit}"
            raise LimitError(message, limit=limit, claimed=end - self.at)
        data = self.window[self.at : end]
        self.at = end + 1
        return data

    def truncated(self, position: int, needed: int, present: int) -> None:
        """Refuse what the source ends within."""
        message = f"the pickle is cut off: it needs {needed} bytes at byte {position}, {max(present, 0)} are left"
        raise TruncatedError(message, offset=position, needed=needed, present=max(present, 0))

    def too_long(self, claimed: int) -> None:
        """Refuse a pickle of more bytes than are allowed."""
        limit = self.limits.pickle
        raise LimitError(
            f"the pickle is {claimed} bytes or longer, more than the limit of {limit}", limit=limit, claimed=claimed
        )

    # the stack

    def push(self, value: Any) -> None:
        """Put a new value on the stack."""
        self.stack.append(value)
        self.nodes += 1

    def pop(self) -> Any:
        """Take the value that the pickle leaves."""
        if not self.stack:
            raise CorruptError(f"the pickle stops at byte {self.where()} with nothing on its stack")
        return self.current(self.stack.pop())

    def pop_mark(self) -> list[Any]:
        """Take all that has been put on the stack since the last mark."""
        if not self.outer:
            raise CorruptError(f"the pickle closes a run of items at byte {self.where()} that it never opened")
        items = self.stack
        self.stack = self.outer.pop()
        return items

    def get(self, index: int) -> None:
        """Push what was remembered, or what a BUILD has put in its place since."""
        try:
            value = self.memo[index]
        except KeyError:
            raise CorruptError(
                f"the pickle asks at byte {self.where()} for value {index}, which it has not remembered"
            ) from None
        self.stack.append(self.current(value) if self.replaced else value)

    def current(self, value: Any) -> Any:
        """Give a value, or what a BUILD has put in its place."""
        return self.replaced.get(id(value), (value, value))[1]

    def put(self, index: int) -> None:
        """Remember the top of the stack."""
        if index < 0:
            raise CorruptError(f"the pickle remembers a value under {index} at byte {self.where()}")
        self.memo[index] = self.stack[-1]

    # names, calls, objects

    def push_name(self, module: str, name: str) -> None:
        """Push what stands for a name: one value for one path."""
        if len(module) + len(name) > self.limits.name:
            message = f"a name of {len(module) + len(name)} characters at byte {self.where()}"
            raise LimitError(message, limit=self.limits.name, claimed=len(module) + len(name))
        path = canonical(module, name)
        value = self.globals.get(path, NOTHING)
        if value is NOTHING:
            meaning = self.meanings.get(path)
            value = Inert("name", path) if meaning is None or meaning.name is NOTHING else meaning.name
            self.globals[path] = value
            self.callables[id(value)] = (path, meaning)
            self.nodes += 1
        self.stack.append(value)

    def call(self, function: Any, args: Any) -> Any:
        """Give what REDUCE leaves: the listed meaning, an object that copyreg makes, or an inert call."""
        self.nodes += 1
        if type(args) is not tuple:
            raise CorruptError(
                f"a call at byte {self.where()} has a {type(args).__name__} for its arguments, expected a tuple"
            )
        path, meaning = self.callables.get(id(function)) or self.named(function)
        if meaning is not None and meaning.call is not None:
            return self.mean(path, meaning, args)
        if path in COPYREG and args:
            return self.new(args[0], self.ask(path, COPYREG[path], args[1:]))
        value = Inert(
            "call", path, args if type(function) is not Inert or function.kind == "name" else (function, *args)
        )
        self.calls.append((self.where(), value))
        return value

    def new(self, kind: Any, args: tuple[Any, ...]) -> Any:
        """Give a new object of a class: its listed meaning, or an inert object."""
        self.nodes += 1
        path, meaning = self.callables.get(id(kind)) or self.named(kind)
        if meaning is not None and meaning.call is not None:
            return self.mean(path, meaning, args)
        return Inert("object", path, args)

    def named(self, value: Any) -> tuple[str, Meaning | None]:
        """Give the path by which something is called that is not a name of this pickle."""
        if type(value) is Inert and value.kind != "fault":
            return (value.path, self.meanings.get(value.path)) if value.kind == "name" else (f"{value.path}()", None)
        raise CorruptError(f"the pickle calls a {type(value).__name__} at byte {self.where()}, expected a name")

    def mean(self, path: str, meaning: Meaning, args: tuple[Any, ...]) -> Any:
        """Give what a listed call or class stands for; note it where a BUILD may follow, or where the meaning refuses."""
        value = self.ask(path, meaning.call, args)
        if meaning.build is not None:
            self.made[id(value)] = (value, path, meaning.build)
        elif type(value) is Inert and value.kind == "call":
            self.calls.append((self.where(), value))
        return value

    def ask(self, path: str, answer: Callable[..., Any] | None, *arguments: Any) -> Any:
        """Ask a meaning, whose own refusals pass; arguments that it cannot take are the file's fault."""
        assert answer is not None
        try:
            return answer(*arguments)
        except CkptError:
            raise
        except BAD_ARGUMENTS as error:
            what = f"{type(error).__name__}: {error}"
            raise CorruptError(
                f"{path:.200} at byte {self.where()} has arguments that it cannot have ({what:.200})"
            ) from error

    def build(self) -> None:
        """Give the value on the stack the state on top of it."""
        state = self.stack.pop()
        value = self.stack[-1]
        kind = type(value)
        if id(value) in self.made:
            _, path, build = self.made[id(value)]
            built = self.ask(f"the state of {path}", build, value, state)
            if built is not value:
                self.replaced[id(value)] = (value, built)
                self.stack[-1] = built
        elif kind is Ordered:
            for part in state if type(state) is tuple and len(state) == 2 else (state,):
                if part is not None:
                    self.set_attributes(value, part)
        elif kind is Inert and value.kind in ("object", "call"):
            value.state = state if value.state is None else (value.state, state)
        elif kind is Inert and value.kind == "name":  # it would change the class itself, for everybody
            self.stack[-1] = Inert("call", f"{value.path}.__setstate__", (state,))
            self.calls.append((self.where(), self.stack[-1]))
        elif kind is not Inert:
            raise CorruptError(f"the pickle gives a state to a {kind.__name__} at byte {self.where()}, which has none")

    def set_attributes(self, value: Ordered, state: Any) -> None:
        """Give a dictionary its attributes, which are no items."""
        if type(state) not in (dict, Ordered) or not all(type(name) is str for name in state):
            raise CorruptError(f"the attributes at byte {self.where()} are no dictionary of names")
        value.attributes.update(state)

    # items

    def append(self, target: Any, items: list[Any]) -> None:
        """Add items to a list, a set or an inert object."""
        kind = type(target)
        if kind is list:
            target.extend(items)
        elif kind is Inert and target.kind in ("object", "call"):
            target.items.extend(items)
        elif kind is Known and target.args and type(target.args[0]) is list:
            target.args[0].extend(items)
        else:
            raise CorruptError(f"the pickle adds items to a {kind.__name__} at byte {self.where()}, expected a list")

    def set_items(self, target: Any, items: list[Any]) -> None:
        """Set pairs, key and value in turn, in a dictionary or an inert object."""
        if len(items) % 2:
            raise CorruptError(f"the pickle sets a key without a value at byte {self.where()}")
        kind = type(target)
        if kind is dict or kind is Ordered:
            put_items(target, items[::2], items[1::2])
        elif kind is Inert and target.kind in ("object", "call"):
            target.items.extend(zip(items[::2], items[1::2], strict=True))
        elif kind is Known and target.args and type(target.args[0]) is dict:
            put_items(target.args[0], items[::2], items[1::2])
        else:
            raise CorruptError(
                f"the pickle sets items of a {kind.__name__} at byte {self.where()}, expected a dictionary"
            )
