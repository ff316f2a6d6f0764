r"""What the standard library's and numpy's names in pickles mean, in our own code.

    collections.OrderedDict           Ordered                    argparse.Namespace, types.SimpleNamespace   dict
    collections.Counter               Known, written back        pathlib.*Path            text, parts joined
    collections.defaultdict           dict; the factory goes     datetime.*               ISO 8601 text; timedelta: seconds
    collections.deque                 list; its maxlen goes      uuid.UUID, Decimal       text
    set, frozenset, complex,          Known, written back        numpy scalars            bool, int, float, bytes, text
    bytearray, range, slice                                      numpy arrays             Tensor, or lists (text, objects, dates)
    _codecs.encode, builtins.bytes    bytes                      RNG, patterns, typing    inert objects

Everything else is a stranger: an object stays inert, a call is refused. Sources: the ``__reduce__`` of each class in CPython.
"""

from __future__ import annotations

from typing import Any

from ckptmigrate.values import Inert, Known, Ordered

from .arrays import ARRAYS, octets
from .names import Meaning, harmless, put_items

__all__ = ["STANDARD", "Meaning", "attributes", "harmless", "namespace"]

_ENCODINGS = {
    "latin1": "latin-1",
    "latin-1": "latin-1",
    "iso-8859-1": "latin-1",
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
}


def attributes(state: Any) -> dict[str, Any]:
    """Give an object's attributes from its state: a dictionary, or that and one of slots."""
    parts = state if type(state) is tuple and len(state) == 2 else (state,)
    found: dict[str, Any] = {}
    for part in parts:
        if part is not None:
            found.update(part)
    return found


def namespace() -> Meaning:
    """Give the meaning of a class whose objects are their attributes, or a dictionary: a plain dictionary."""

    def call(args: tuple[Any, ...]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        if args:
            _fill(made, args[0])
        return made

    def build(value: dict[Any, Any], state: Any) -> dict[Any, Any]:
        value.update(attributes(state))
        return value

    return Meaning(call, build)


def _fill(target: dict[Any, Any], content: Any) -> None:
    pairs = content.items() if isinstance(content, dict) else content
    keys, values = [], []
    for key, value in pairs:
        keys.append(key)
        values.append(value)
    put_items(target, keys, values)


def _ordered(args: tuple[Any, ...]) -> Ordered:
    made = Ordered()
    if args:
        _fill(made, args[0])
    return made


def _counter(args: tuple[Any, ...]) -> Known:
    made: dict[Any, Any] = {}
    if args:
        _fill(made, args[0])
    return Known("collections.Counter", (made,))


def _items(path: str) -> Meaning:
    return Meaning(lambda args: Known(path, (list(_plain_items(args[0])) if args else [],)))


def _plain_items(value: Any) -> Any:
    if type(value) is Known and value.args:
        return value.args[0]
    if type(value) not in (list, tuple):
        raise TypeError(f"a {type(value).__name__} is no list")
    return value


def _deque(args: tuple[Any, ...]) -> list[Any]:
    return list(_plain_items(args[0])) if args else []


def _numbers(path: str) -> Meaning:
    """Give the meaning of a call that takes numbers or None only."""

    def call(args: tuple[Any, ...]) -> Any:
        plain = all(type(arg) in (int, float, bool, type(None)) for arg in args)
        return Known(path, args) if plain else Inert("object", path, args)

    return Meaning(call)


def _bytes(args: tuple[Any, ...]) -> Any:
    match args:
        case ():
            return b""
        case (bytes(),):
            return args[0]
        case (str(), str()):
            return _encode(args)
        case ([*items],) if all(type(item) is int for item in items):
            return bytes(items)
    return Inert("call", "builtins.bytes", args)  # bytes(10**12) would take a terabyte


def _bytearray(args: tuple[Any, ...]) -> Any:
    made = _bytes(args)
    return Known("builtins.bytearray", (made,)) if type(made) is bytes else Inert("call", "builtins.bytearray", args)


def _encode(args: tuple[Any, ...]) -> Any:
    text, name = args[0], args[1] if len(args) > 1 else "utf-8"
    if type(text) is not str or name not in _ENCODINGS:
        return Inert("call", "_codecs.encode", args)
    return text.encode(_ENCODINGS[name])


def _path(separator: str) -> Meaning:
    def call(args: tuple[Any, ...]) -> str:
        if not args:
            return "."
        head, *rest = args
        tail = separator.join(rest)
        glue = "" if not tail or head.endswith((separator, ":")) else separator
        return str(head + glue + tail)

    return Meaning(call)


def _clock(data: bytes, zone: Any) -> str:
    hour, minute, second = data[0] & 0x7F, data[1], data[2]
    micro = int.from_bytes(data[3:6], "big")
    return f"{hour:02}:{minute:02}:{second:02}" + (f".{micro:06}" if micro else "") + (zone or "")


def _date(args: tuple[Any, ...]) -> str:
    data = octets(args[0], 4)
    return f"{data[0] * 256 + data[1]:04}-{data[2] & 0x7F:02}-{data[3]:02}"  # month's high bit: the second of two equal hours


def _time(args: tuple[Any, ...]) -> Any:
    zone = args[1] if len(args) > 1 else None
    return _clock(octets(args[0], 6), zone) if _is_zone(zone) else Inert("object", "datetime.time", args)


def _datetime(args: tuple[Any, ...]) -> Any:
    data, zone = octets(args[0], 10), args[1] if len(args) > 1 else None
    if not _is_zone(zone):
        return Inert("object", "datetime.datetime", args)
    return f"{_date((data[:4],))}T{_clock(data[4:], zone)}"


def _is_zone(zone: Any) -> bool:
    return zone is None or type(zone) is str


def _timedelta(args: tuple[Any, ...]) -> float:
    days, seconds, micros = args
    return float((days * 86400 + seconds) * 10**6 + micros) / 10**6


def _timezone(args: tuple[Any, ...]) -> str:
    seconds = abs(round(args[0]))
    sign = "-" if args[0] < 0 else "+"
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}" + (f":{seconds % 60:02}" if seconds % 60 else "")


def _uuid(_value: Inert, state: Any) -> str:
    digits = f"{attributes(state)['int']:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _alias(args: tuple[Any, ...]) -> Inert:
    """Answer for typing.List[int] and the like, which pickle as getitem(typing.List, int)."""
    match args:
        case (Inert(kind="name", path=path), _) if path.startswith("typing."):
            return Inert("object", "operator.getitem", args)
    return Inert("call", "operator.getitem", args)


def _type(args: tuple[Any, ...]) -> Inert:
    """Answer for the class of None, which has no name to be found by."""
    return Inert("name", "builtins.NoneType") if args == (None,) else Inert("call", "builtins.type", args)


STANDARD: dict[str, Meaning] = {
    "collections.OrderedDict": Meaning(_ordered),
    "collections.Counter": Meaning(_counter),
    "collections.defaultdict": Meaning(lambda args: dict(_ordered(args[1:]))),
    "collections.deque": Meaning(_deque),
    "builtins.set": _items("builtins.set"),
    "builtins.frozenset": _items("builtins.frozenset"),
    "builtins.complex": _numbers("builtins.complex"),
    "builtins.range": _numbers("builtins.range"),
    "builtins.slice": _numbers("builtins.slice"),
    "builtins.bytes": Meaning(_bytes),
    "builtins.bytearray": Meaning(_bytearray),
    "_codecs.encode": Meaning(_encode),
    "argparse.Namespace": namespace(),
    "types.SimpleNamespace": namespace(),
    **{f"pathlib.{name}": _path("/") for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")},
    **{f"pathlib.{name}": _path("\\") for name in ("WindowsPath", "PureWindowsPath")},
    "datetime.date": Meaning(_date),
    "datetime.time": Meaning(_time),
    "datetime.datetime": Meaning(_datetime),
    "datetime.timedelta": Meaning(_timedelta),
    "datetime.timezone": Meaning(_timezone),
    "uuid.UUID": Meaning(lambda args: Inert("object", "uuid.UUID", args), _uuid),
    "decimal.Decimal": Meaning(lambda args: str(args[0])),
    "_operator.getitem": Meaning(_alias),
    "builtins.type": Meaning(_type),
    "types.GenericAlias": harmless("types.GenericAlias"),
    "random.Random": harmless("random.Random"),
    "re._compile": harmless("re._compile"),
    **ARRAYS,
}
"""The canonical names of the standard library and of numpy, and what each means; formats add their own to these."""
