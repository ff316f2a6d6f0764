"""Strict JSON text: what RFC 8259 allows and nothing more, each name once, bounded.

``loads`` takes a whole text, ``Members`` one piece after another. Python's own module reads ``NaN``, keeps the last of two equal
names and turns ``1e999`` into infinity; each of these would let a file say one thing to us and another to the next reader.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.limits import LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

SPACE = re.compile(r"[ \t\n\r]+")
SPACES = (" ", "\t", "\n", "\r")


def dumps(value: Any) -> str:
    r"""Give the one text of a JSON value: names in their order, no spaces, ASCII only.

    A lone surrogate comes out as its escape (``\ud800``) and is read back by ``loads``. TensorError where the value is no JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"a value that JSON cannot hold: {error}"
        raise TensorError(msg) from error


def loads(text: str | bytes, limits: Limits = LIMITS) -> Any:
    """Give the value of a JSON text; its size is the caller's to bound, before it is read.

    CorruptError: no JSON, bytes that are no UTF-8, a name twice in one object, NaN or an infinity, a number beyond float64.
    LimitError: more nodes, deeper nesting or longer integers than ``limits`` allow.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            msg = f"JSON text is no UTF-8 at byte {error.start}"
            raise CorruptError(msg, offset=error.start) from error
    nodes = text.count(",") + text.count("[") + text.count("{")  # a bound from above, before any node takes memory
    if nodes > limits.nodes:
        msg = f"JSON of up to {nodes} values, more than the {limits.nodes} allowed"
        raise LimitError(msg, limit=limits.nodes, claimed=nodes)
    reader = Members(text, limits)
    value = reader.value()
    reader.end()
    return value


class Members:
    """A JSON text read piece by piece: a header of 100 MB may name millions of things, and its reader keeps what he wants.

        { "name" : value , "name" : { … } , … }
          ↑ members() gives "name", and the caller takes what stands behind the colon: value(), text() or members() again

    Errors have the ``offset`` in the text, or the ``name`` or ``token`` that is wrong. A name that comes twice among members() is
    the caller's to see, who knows what he keeps.
    """

    def __init__(self, text: str, limits: Limits) -> None:
        self._text, self._limits = text, limits
        self._decode = json.JSONDecoder(
            object_pairs_hook=_object, parse_constant=_constant, parse_float=_float
        ).raw_decode
        self._at = 0
        self._step(0)

    def next_is(self, opening: str) -> bool:
        """Tell whether the next value begins with a character."""
        return self._text.startswith(opening, self._at)

    def members(self) -> Iterator[str]:
        """Give the names in the object that comes next, each when the value before it has been taken."""
        self._pass("{", "value")
        if self.next_is("}"):
            self._step(1)
            return
        while True:
            if not self.next_is('"'):
                raise self._fault("expecting property name enclosed in double quotes")
            name = self.text()
            self._pass(":", "':' delimiter")
            yield name
            if self.next_is("}"):
                self._step(1)
                return
            self._pass(",", "',' delimiter")

    def text(self) -> str:
        """Take the text that comes next."""
        if not self.next_is('"'):
            raise self._fault("expecting a text")
        try:
            found: str
            found, self._at = json.decoder.scanstring(self._text, self._at + 1)  # type: ignore[attr-defined] # known to the module
        except json.JSONDecodeError as error:
            raise _fault_of(error, 0) from error
        self._step(0)
        return found

    def value(self, longest: int | None = None) -> Any:
        """Take the value that comes next; LimitError where it is of more than ``longest`` characters."""
        longest = len(self._text) if longest is None else longest
        piece = self._text[self._at : self._at + longest + 1]
        try:
            found, end = self._decode(piece)
        except json.JSONDecodeError as error:
            if len(piece) > longest:
                raise self._too_long(longest) from error
            raise _fault_of(error, self._at) from error
        except RecursionError as error:
            raise self._too_deep() from error
        except (CorruptError, LimitError):
            raise
        except ValueError as error:  # the one left: int() refuses more than 4,300 digits
            msg = "JSON with an integer of more than 4300 digits"
            raise LimitError(msg, limit=4300, offset=self._at) from error
        if end > longest:
            raise self._too_long(longest)
        if _depth(found, self._limits.nesting) > self._limits.nesting:
            raise self._too_deep()
        self._step(end)
        return found

    def end(self) -> None:
        """Refuse what follows the value but white space."""
        if self._at != len(self._text):
            raise self._fault("extra data")

    def _pass(self, character: str, what: str) -> None:
        if not self.next_is(character):
            raise self._fault(f"expecting {what}")
        self._step(1)

    def _step(self, count: int) -> None:
        self._at += count
        if self._text[self._at : self._at + 1] in SPACES and (found := SPACE.match(self._text, self._at)):
            self._at = found.end()

    def _fault(self, what: str) -> CorruptError:
        msg = f"no JSON: {what} at character {self._at}"
        return CorruptError(msg, offset=self._at)

    def _too_long(self, longest: int) -> LimitError:
        msg = f"a JSON value of more than {longest} characters at character {self._at}"
        return LimitError(msg, limit=longest, offset=self._at)

    def _too_deep(self) -> LimitError:
        msg = f"JSON nested deeper than the {self._limits.nesting} levels allowed"
        return LimitError(msg, limit=self._limits.nesting, offset=self._at)


def _fault_of(error: json.JSONDecodeError, base: int) -> CorruptError:
    """Give the error that the json module's becomes; ``base`` is where the text lies in which it counted."""
    fault = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
    msg = f"no JSON: {fault} at character {base + error.pos}"
    return CorruptError(msg, offset=base + error.pos)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        msg = f"JSON names {twice!r} twice in one object"
        raise CorruptError(msg, name=twice)
    return found


def _constant(token: str) -> None:
    msg = f"JSON holds {token}, which is no JSON number"
    raise CorruptError(msg, token=token)


def _float(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        msg = f"JSON holds {token[:40]}, a number beyond float64"
        raise CorruptError(msg, token=token[:40])
    return value


def _depth(value: Any, limit: int) -> int:
    """Give how many levels of objects and arrays lie within each other, counting no further than one above ``limit``."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level and depth <= limit:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
    return depth
