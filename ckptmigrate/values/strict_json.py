"""Strict JSON text: what RFC 8259 allows and nothing more, each name once, bounded.

Python's own module reads ``NaN``, keeps the last of two equal names and turns ``1e999`` into infinity; each of these would
let a file say one thing to us and another to the next reader.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ckptmigrate.errors import CorruptError, LimitError, TensorError
from ckptmigrate.limits import LIMITS, Limits


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
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as error:
        fault = error.msg[:1].lower() + error.msg[1:].removesuffix(" at")
        msg = f"no JSON: {fault} at character {error.pos}"
        raise CorruptError(msg, offset=error.pos) from error
    except RecursionError as error:
        msg = f"JSON nested deeper than the {limits.nesting} levels allowed"
        raise LimitError(msg, limit=limits.nesting) from error
    except (CorruptError, LimitError):
        raise
    except ValueError as error:  # the one left: int() refuses more than 4,300 digits
        msg = "JSON with an integer of more than 4300 digits"
        raise LimitError(msg, limit=4300) from error
    _check_nesting(value, limits)
    return value


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
    raise CorruptError(msg)


def _float(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        msg = f"JSON holds {token[:40]}, a number beyond float64"
        raise CorruptError(msg)
    return value


def _check_nesting(value: Any, limits: Limits) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > limits.nesting:
            msg = f"JSON nested deeper than the {limits.nesting} levels allowed"
            raise LimitError(msg, limit=limits.nesting)
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
