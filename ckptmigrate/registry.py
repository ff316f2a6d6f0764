"""What is installed: formats, layouts and families, from the own open folders and from entry points.

A file put into an open folder exists, one taken out is gone; there is no list to keep. Third parties deliver the same frozen
values through the entry points ``ckptmigrate.formats``, ``.layouts`` and ``.families``. They are imported when their name is
asked for, or when no built-in one claims a file; one that fails to import is broken under its own name and no other.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from .errors import CkptError, PluginError, UsageError
from .format import Family, Format, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Kind = Literal["formats", "layouts", "families"]
_SHAPES: dict[Kind, Any] = {"formats": Format, "layouts": Layout, "families": Family}


@dataclass(frozen=True, slots=True)
class Installed:
    """One row of what is installed: ``where`` is a module or "distribution version", ``error`` why it does not load."""

    name: str
    kind: Kind
    where: str
    error: str | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What loaded, by name (formats, layouts or families), and what did not, with the reason."""

    loaded: Mapping[str, Any]
    broken: Mapping[str, str]


def formats() -> tuple[Format, ...]:
    """Give the built-in formats, sorted by name."""
    return _sorted(_own("formats"))


def layouts() -> tuple[Layout, ...]:
    """Give the built-in layouts, sorted by name."""
    return _sorted(_own("layouts"))


def families() -> tuple[Family, ...]:
    """Give the built-in families, sorted by name."""
    return _sorted(_own("families"))


def plugin_formats() -> Found:
    """Import all installed plugin formats; for a file that no built-in format claims."""
    return _plugged("formats")


def plugin_layouts() -> Found:
    """Import all installed plugin layouts; for parts that no built-in layout recognises."""
    return _plugged("layouts")


def format(name: str) -> Format:  # noqa: A001 - a format is called what the field calls it; the builtin is not used here
    """Give the format of this name; UsageError lists what exists, PluginError says why an installed one does not load."""
    found: Format = _named("formats", name)
    return found


def has_format(name: str) -> bool:
    """Say whether there is a format of this name, built in or installed, whole or broken."""
    own = _own("formats")
    return name in own.loaded or name in own.broken or name in _entry_points("formats")


def layout(name: str) -> Layout:
    """Give the layout of this name; UsageError lists what exists, PluginError says why an installed one does not load."""
    found: Layout = _named("layouts", name)
    return found


def family(name: str) -> Family:
    """Give the family of this name; UsageError lists what exists, PluginError says why an installed one does not load."""
    found: Family = _named("families", name)
    return found


def neutral_family() -> Family:
    """Give the family as which a container that names none is read."""
    return next(f for f in families() if f.neutral)


def installed() -> list[Installed]:
    """Give a row for every format, layout and family, plugins too, each imported once to see whether it loads."""
    return [*_rows("formats"), *_rows("layouts"), *_rows("families")]


def forget() -> None:
    """Look again at the next call: for tests and notebooks that install something while the process runs."""
    _own.cache_clear()
    _plugin.cache_clear()
    _entry_points.cache_clear()


def _sorted(found: Found) -> tuple[Any, ...]:
    return tuple(found.loaded[name] for name in sorted(found.loaded))


def _named(kind: Kind, name: str) -> Any:
    own = _own(kind)
    if name in own.loaded:
        return own.loaded[name]
    if name in own.broken:
        raise PluginError(f"{_SHAPES[kind].__name__.lower()} {name!r} does not load: {own.broken[name]}", name=name)
    points = _entry_points(kind)
    if name in points:
        return _plugin(kind, name)
    known = sorted({*own.loaded, *points})
    raise UsageError(
        f"no {_SHAPES[kind].__name__.lower()} named {name!r}; there are: {', '.join(known) or 'none'}", present=known
    )


@functools.cache
def _own(kind: Kind) -> Found:
    package = importlib.import_module(f"{__package__}.{kind}")
    return _scan(package, _SHAPES[kind])


def _scan(package: ModuleType, shape: Any) -> Found:
    """Import every module of a package that does not begin with an underscore; its value must bear the module's name."""
    loaded: dict[str, Any] = {}
    broken: dict[str, str] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            continue
        value: Any
        value, error = _attempt(functools.partial(_module_value, f"{package.__name__}.{info.name}", shape))
        if value is not None and value.name != info.name:
            value, error = None, f"module {package.__name__}.{info.name} offers the name {value.name!r}"
        if value is None:
            broken[info.name] = error
        else:
            loaded[info.name] = value
    return Found(loaded, broken)


def _module_value(name: str, shape: Any) -> Any:
    return _value(importlib.import_module(name), shape)


def _value(module: ModuleType, shape: Any) -> Any:
    attribute = shape.__name__.upper()
    value = getattr(module, attribute, None)
    if not isinstance(value, shape):
        raise PluginError(f"module {module.__name__} has no {attribute} that is a {shape.__name__}")
    return value


def _attempt(load: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return load(), ""
    except CkptError as error:
        return None, str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever another's import raises is that plugin's trouble alone
        return None, f"{type(error).__name__}: {error}"


@functools.cache
def _entry_points(kind: Kind) -> Mapping[str, tuple[importlib.metadata.EntryPoint, ...]]:
    found: dict[str, tuple[importlib.metadata.EntryPoint, ...]] = {}
    for point in importlib.metadata.entry_points(group=f"ckptmigrate.{kind}"):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


@functools.cache
def _plugin(kind: Kind, name: str) -> Any:
    points = _entry_points(kind)[name]
    if len(points) > 1:
        raise PluginError(
            f"the plugin {name!r} is offered by {_where(points)}, and nothing says which is meant", name=name
        )
    value, error = _attempt(lambda: _from_entry_point(points[0], _SHAPES[kind]))
    if value is None:
        raise PluginError(f"the plugin {name!r} ({_where(points)}) does not load: {error}", name=name)
    return value


def _from_entry_point(point: importlib.metadata.EntryPoint, shape: Any) -> Any:
    target = point.load()
    if isinstance(target, shape):
        value = target
    elif isinstance(target, ModuleType) and hasattr(target, shape.__name__.upper()):
        value = _value(target, shape)
    elif isinstance(target, ModuleType) and hasattr(target, "__path__"):
        found = _scan(target, shape)
        if point.name not in found.loaded:
            reason = found.broken.get(point.name, f"package {target.__name__} has no module of that name")
            raise PluginError(reason)
        value = found.loaded[point.name]
    else:
        raise PluginError(f"{point.value} gives no {shape.__name__}")
    if value.name != point.name:
        raise PluginError(f"{point.value} offers the name {value.name!r}")
    return value


def _plugged(kind: Kind) -> Found:
    loaded: dict[str, Any] = {}
    broken: dict[str, str] = {}
    for name in sorted(set(_entry_points(kind)) - set(_own(kind).loaded)):
        try:
            loaded[name] = _plugin(kind, name)
        except PluginError as error:
            broken[name] = error.message
    return Found(loaded, broken)


def _rows(kind: Kind) -> Iterator[Installed]:
    own, plugged = _own(kind), _plugged(kind)
    rows = [
        *(Installed(n, kind, f"{__package__}.{kind}.{n}", None, v.about) for n, v in own.loaded.items()),
        *(Installed(n, kind, f"{__package__}.{kind}.{n}", e) for n, e in own.broken.items()),
        *(Installed(n, kind, _where(_entry_points(kind)[n]), None, v.about) for n, v in plugged.loaded.items()),
        *(Installed(n, kind, _where(_entry_points(kind)[n]), e) for n, e in plugged.broken.items()),
    ]
    yield from sorted(rows, key=lambda row: row.name)


def _where(points: Iterable[importlib.metadata.EntryPoint]) -> str:
    said = (f"{p.dist.name} {p.dist.version}" if p.dist is not None else p.value for p in points)
    return " and ".join(sorted(said))
