"""Our own JSON object, whichever file carries it: read and spelled in one place, so that every carrier refuses the same.

    {"ckptmigrate": 1,      its major version; without it the object is of version 1
     "stamp": {...},        versions by chain, and the history of migrators applied
     "record": {...}, ...}  what the file has no key for

A newer major version is refused by its number, since nobody here knows what it means; within one, names that are new are carried
and not read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError, UnsupportedFormatError
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import brief, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.format import Blueprint
    from ckptmigrate.limits import Limits

MARK, MAJOR = "ckptmigrate", 1
_OBJECTS = ("stamp", "record")
_NODES = 2_000_000  # values; the 16 MiB of text that are allowed hold half of that, in any object that we write


def parsed(text: str | bytes, where: str, limits: Limits) -> dict[str, Any]:
    """Give the object whose text was found at ``where`` in a file. CorruptError, LimitError, UnsupportedFormatError name the place."""
    if len(text) > limits.text:
        raise LimitError(
            f"{where} has {len(text)} bytes, the limit is {limits.text}", limit=limits.text, claimed=len(text)
        )
    value = checked_json(text, where, replace(limits, nodes=min(limits.nodes, _NODES)))
    if not isinstance(value, dict):
        raise CorruptError(f"{where} is {brief(value)}, expected an object")
    major = value.get(MARK, MAJOR)
    if type(major) is not int or major < 1:
        raise CorruptError(
            f'{where} has {brief(major)} under "{MARK}", expected a version, which is a whole number from 1'
        )
    if major > MAJOR:
        raise UnsupportedFormatError(
            f"version {str(major)[:20]} of {where}, this release reads {MAJOR}",
            version=major, hint="install a newer ckptmigrate",
        )  # fmt: skip
    for name in _OBJECTS:
        if not isinstance(value.get(name, {}), dict):
            raise CorruptError(f'{where} has {brief(value[name])} under "{name}", expected an object')
    return value


def spelled(notes: Mapping[str, Any], blueprint: Blueprint) -> str:
    """Give the text of the object; one that no reader would take is a problem of the blueprint."""
    text = dumps(dict(notes))
    if len(text) > LIMITS.text:
        blueprint.problems.append(
            f"what the file has no key for takes {len(text)} bytes of text, readers take {LIMITS.text}"
        )
    return text


def checked_json(text: str | bytes, where: str, limits: Limits) -> Any:
    """Give a JSON text's value; an error says which text, and where in it."""
    try:
        return loads(text, limits)
    except CorruptError as error:
        raise misread(error, where) from error


def misread(error: CorruptError, where: str) -> CorruptError:
    """Give the error of a JSON text with what the text is, and the place in it."""
    message = f"{where} is not valid JSON: {error.message}"
    if "name" in error.data:
        message = f'{where} has the duplicate key "{error.data["name"]}"'
    elif "offset" in error.data:
        message = f"{where} is not valid JSON, column {error.data['offset'] + 1}: {error.message}"
    return CorruptError(message, **error.data)
