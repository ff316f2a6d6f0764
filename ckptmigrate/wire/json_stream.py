r"""JSON text, walked in bounded memory: a tree of plain values in which arrays of numbers are ranges of the file.

    {"a": 1}      a dict; each name once                        [1.5, -2, null]   Numbers: numbers, null or truth values only
    "text"        str                                           [{…}, null]       a list
    null true 12  None, bool, int, float

An array of numbers is crossed by looking for its end and counting commas, window by window; when it is drawn, its text is cut at
commas into pieces that Python's own JSON reader decodes (strictly, and in C), for numpy to hold. ``null`` among numbers is what
serde_json makes of NaN and infinities.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptmigrate.dtypes import U8
from ckptmigrate.errors import CkptError, CorruptError, LimitError
from ckptmigrate.limits import KiB
from ckptmigrate.tensor import Made, View
from ckptmigrate.values import NOTHING, loads

from .cursor import NODES, add_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from ckptmigrate.dtypes import DType
    from ckptmigrate.files import Range
    from ckptmigrate.limits import Limits
    from ckptmigrate.tensor import Promise, Shape

    from .cursor import Cursor
    from .msgpack_numbers import Use

Judge: TypeAlias = "Callable[[bytes], bool]"
"""Tells from the text of whole numbers whether they are written in more detail than their kind says."""

WINDOW = 64 * KiB  # bytes of text looked at together
BRIEF = 64  # numbers of an array that are given at once: shapes, a scheduler's tuple
TOKEN = (
    1 * KiB
)  # bytes of the longest number; the longest integer of Python has four thousand digits and no record such
_SPACE = b" \t\r\n"
_BEYOND = re.compile(rb"[^-+0-9.eE, \t\r\nnultrfas]")  # what ends an array of numbers, or is none
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\.)*"')
_WORDS = {b"n": (b"null", None), b"t": (b"true", True), b"f": (b"false", False)}


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers in the text, not read. ``values`` only of a short one; ``lossy`` says that null stands among them."""

    count: int
    range: Range
    kind: Literal["float", "int", "bool", "null"]
    signed: bool
    lossy: bool
    detailed: bool
    values: tuple[float | bool | None, ...] | None = None

    def promise(self, dtype: DType, shape: Shape, use: Use = "value") -> Promise:
        """Give the tensor of that many elements; the caller has compared the counts."""
        return Made((View.rows(self.range, U8, (self.range.nbytes,)),), Parsed(dtype, shape, use))


@dataclass(frozen=True, slots=True)
class Parsed:
    """The elements of an array of JSON numbers, from its text."""

    dtype: DType
    shape: Shape
    use: Use

    @property
    def elementwise(self) -> Literal[False]:
        """A number may lie anywhere."""
        return False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give all elements in order; CorruptError for what is no JSON number, or another count."""
        (text,) = inputs
        left = prod(self.shape)
        rest = b""
        for start in range(0, text.numel, WINDOW):
            rest += text.read(start, min(start + WINDOW, text.numel))
            last = start + WINDOW >= text.numel
            end = len(rest) if last else rest.rfind(b",")
            if end < 0:
                if len(rest) > WINDOW + TOKEN:
                    raise CorruptError(f"a number of more than {TOKEN} characters")
                continue
            values = self._elements(_parse(rest[:end]))
            rest = rest[end + 1 :]
            left -= len(values)
            yield values
        if left:
            raise CorruptError(f"{left:,} numbers of an array are not where they were when it was measured")

    def _elements(self, values: list[Any]) -> np.ndarray[Any, Any]:
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        wanted = np.dtype(self.dtype.numpy_dtype() if self.use == "value" else f"<u{self.dtype.itemsize}")
        if wanted.kind == "b":
            if set(map(type, values)) != {bool}:
                raise CorruptError("an array of truth values holds others")
            return np.array(values, bool)
        if not set(map(type, values)) <= {int, float, type(None)}:
            raise CorruptError("a truth value in an array of numbers")
        try:
            if wanted.kind not in "iu":
                with np.errstate(over="ignore"):
                    return np.array(values, np.float64).astype(wanted)  # null becomes NaN
            exact = np.array(values, np.uint64 if wanted == np.uint64 else np.int64)
        except (OverflowError, TypeError, ValueError) as error:
            raise CorruptError(f"an array of {self.dtype} holds what is none: {error}") from error
        bounds = np.iinfo(wanted)
        if len(exact) and not bounds.min <= int(exact.min()) <= int(exact.max()) <= bounds.max:
            extreme = int(exact.max()) if int(exact.max()) > bounds.max else int(exact.min())
            what = f"no {self.dtype}" if self.use == "value" else f"no bit pattern of {self.dtype}"
            raise CorruptError(f"the number {extreme} is {what}")
        return exact.astype(wanted)


def load(cursor: Cursor, limits: Limits, judge: Judge | None = None) -> Any:
    """Give the value that begins at the cursor, and move behind it and the space that follows."""
    return _Walk(cursor, limits, judge).run()


class _Walk:
    """One value, without recursion; ``open`` holds the containers around the place, each with the name whose value comes next."""

    def __init__(self, cursor: Cursor, limits: Limits, judge: Judge | None) -> None:
        self.cursor, self.limits, self.judge = cursor, limits, judge
        self.open: list[list[Any]] = []
        self.nodes, self.most = 0, min(NODES, limits.nodes)

    def run(self) -> Any:
        """Give the value; an error says at which key of it."""
        try:
            return self._whole()
        except CkptError as error:
            add_keys(error, ((held, name) for held, name in self.open))
            raise

    def _whole(self) -> Any:
        value = self._value()
        while self.open or value is NOTHING:
            value = self._step(value)
        self._space()
        return value

    def _step(self, value: Any) -> Any:
        """Put a value into the innermost container and read on; NOTHING: that container has just begun."""
        container = self.open[-1][0]
        closes = b"}" if isinstance(container, dict) else b"]"
        if value is not NOTHING:
            if isinstance(container, dict):
                container[self.open[-1][1]] = value
            else:
                container.append(value)
        mark = self._next()
        if mark == closes:
            self.cursor.at += 1
            return self.open.pop()[0]
        if value is not NOTHING:
            self._expect(b",")
            mark = self._next()
        if isinstance(container, dict):
            name = self._text()
            if name in container:
                raise CorruptError(
                    f'the name "{name[:60]}" stands twice in one object, again before {self.cursor.at:,}', name=name
                )
            self._next()
            self._expect(b":")
            self.open[-1][1] = name
        return self._value()

    def _space(self) -> None:
        cursor = self.cursor
        while window := cursor.look(256):
            rest = window.lstrip(_SPACE)
            cursor.at += len(window) - len(rest)
            if rest:
                return

    def _next(self) -> bytes:
        self._space()
        found = self.cursor.look(1)
        if not found:
            raise self.cursor.short(1)
        return found

    def _expect(self, mark: bytes) -> None:
        found = self.cursor.take(1)
        if found != mark:
            raise self._fault(f"{found!r} stands where {mark.decode()} should", self.cursor.at - 1)

    def _fault(self, message: str, at: int) -> CorruptError:
        return CorruptError(f"no JSON: {message}, at {at:,}", offset=at)

    def _value(self) -> Any:
        self.nodes += 1
        if self.nodes > self.most:
            raise LimitError(f"more than {self.most:,} values", limit=self.most)
        mark = self._next()
        if mark == b"{":
            return self._container({})
        if mark == b"[":
            self.cursor.at += 1
            if self._next() == b"]":
                self.cursor.at += 1
                return []
            numbers = self._numbers()
            if numbers is not None:
                return numbers
            self.cursor.at -= 1
            while self.cursor.look(1) != b"[":
                self.cursor.at -= 1
            return self._container([])
        if mark == b'"':
            return self._text()
        if mark in _WORDS:
            word, value = _WORDS[mark]
            if self.cursor.take(len(word)) != word:
                raise self._fault("an unknown word", self.cursor.at - len(word))
            return value
        found = _NUMBER.match(self.cursor.look(TOKEN))
        if found is None or found.end() == TOKEN:
            raise self._fault(f"{mark!r} begins no value", self.cursor.at)
        self.cursor.at += found.end()
        return loads(found[0], self.limits)

    def _container(self, made: Any) -> Any:
        if len(self.open) >= self.limits.nesting:
            raise LimitError(f"nested deeper than the {self.limits.nesting} levels allowed", limit=self.limits.nesting)
        self.cursor.at += 1
        self.open.append([made, None])
        return NOTHING

    def _text(self) -> str:
        size = 256
        while True:
            held = self.cursor.look(size)
            found = _STRING.match(held)
            if found is not None:
                if found.end() - 2 > self.limits.name:
                    break
                self.cursor.at += found.end()
                return loads(found[0], self.limits)  # type: ignore[no-any-return]
            if held[:1] not in {b'"', b""}:
                raise self._fault(f"{held[:1]!r} stands where a text should", self.cursor.at)
            if len(held) < size:
                raise self.cursor.short(len(held) + 1)
            if size > self.limits.name:
                break
            size *= 8
        raise LimitError(f"a text of more than {self.limits.name:,} bytes", limit=self.limits.name)

    def _numbers(self) -> Numbers | None:
        """Give the array of numbers whose first item is next, and move behind its end; None, without moving, if it is another."""
        cursor, start, count = self.cursor, self.cursor.at, 1
        flags = dict.fromkeys((b".", b"e", b"E", b"-", b"n", b"t", b"f"), False)
        detailed, rest = self.judge is None, b""
        while True:
            window = cursor.look(WINDOW)
            if not window:
                raise cursor.short(1)
            stop = _BEYOND.search(window)
            text = window[: stop.start()] if stop else window
            count += text.count(b",")
            for mark, seen in flags.items():
                flags[mark] = seen or mark in text
            if not detailed and self.judge is not None:
                whole, _, rest = (rest + text + (b"," if stop else b"")).rpartition(b",")
                detailed = self.judge(whole)
            cursor.at += len(text)
            if stop:
                break
        if window[stop.start() : stop.end()] != b"]":
            if cursor.at - start > WINDOW:
                raise self._fault(f"{stop[0]!r} among numbers", cursor.at)
            cursor.at = start
            return None
        nbytes = cursor.at - start
        values = None
        if count <= BRIEF and nbytes <= BRIEF * TOKEN:
            values = tuple(_parse(cursor.source.read(start, nbytes)))
        cursor.at = start
        place = cursor.leave(nbytes)
        cursor.at += 1
        truth = flags[b"t"] or flags[b"f"]
        kind: Literal["float", "int", "bool", "null"] = (
            "bool" if truth else "float" if flags[b"."] or flags[b"e"] or flags[b"E"] else "int"
        )
        if values is not None and all(value is None for value in values):
            kind = "null"
        return Numbers(count, place, kind, flags[b"-"], flags[b"n"], detailed and self.judge is not None, values)


def _parse(text: bytes) -> list[Any]:
    """Give the numbers of a piece of an array's text."""
    try:
        values = json.loads(b"[" + text + b"]")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"an array of numbers is no JSON: {error}") from error
    except ValueError as error:
        raise LimitError("an integer of more than 4300 digits", limit=4300) from error
    return values  # type: ignore[no-any-return]


__all__ = ["Judge", "Numbers", "Parsed", "load"]
