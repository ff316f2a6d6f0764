"""How operations are spelled: as plain values for digests, as an author would write them, and with their numbers filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from .contract import Operation


def declared(operation: Any) -> dict[str, Any]:
    """Give an operation's class and the fields that differ from their default, so that a new field changes no old digest."""
    found = {"operation": type(operation).__name__}
    for field in fields(operation):
        value = getattr(operation, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = _plain(value)
    return found


def spelled(operation: Any) -> str:
    """Give an operation as an author would write it: ``Rename('a', 'b', optional=True)``."""
    parts, positional = [], True
    for number, field in enumerate(fields(operation)):
        value = getattr(operation, field.name)
        if field.default is not MISSING and value == field.default:
            positional = False
            continue
        positional = positional and (number < 2 or field.default is MISSING)
        said = _shown(value)
        parts.append(said if positional else f"{field.name}={said}")
    return f"{type(operation).__name__}({', '.join(parts)})"


def _shown(value: Any) -> str:
    """Give a value as it is written; a function by its name, because its repr tells where it lies in memory."""
    if isinstance(value, tuple):
        inside = ", ".join(map(_shown, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if hasattr(value, "describe"):
        return str(value.describe())
    return str(value.__name__) if callable(value) and hasattr(value, "__name__") else repr(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    if isinstance(value, Mapping):
        return [[str(key), _plain(each)] for key, each in value.items()]  # pairs: the first pattern that matches counts
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


Bound = TypeVar("Bound", bound=Operation)


def bind(operation: Bound, numbers: Mapping[str, Any]) -> tuple[Bound, list[str]]:
    """Put numbers where an operation names them; also give the names that nobody resolves.

    ``"*"`` and ``"*1"`` name axes, no numbers. UsageError where the operation has no use for a number it is given.
    """
    unresolved: list[str] = []

    def filled(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(each) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return tuple(filled(each) for each in value)
        if isinstance(value, str) and not value.startswith("*"):
            if value not in numbers:
                unresolved.append(value)
                return value
            number = numbers[value]
            return (
                int(number) if isinstance(number, float) and number.is_integer() else number
            )  # configurations have 16.0
        return value

    changes = {name: filled(getattr(operation, name)) for name in operation.traits.numbers}
    if not changes or unresolved:
        return operation, unresolved
    return replace(operation, **changes), []  # type: ignore[type-var] # every operation is a dataclass; a Protocol cannot say so
