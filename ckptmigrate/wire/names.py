"""What the names in pickles are called today, and what a listed name means.

A pickle names a global by module and name. ``canonical`` joins both and undoes the renames that Python 3, numpy 2 and
Python 3.13 made, so that a table lists each thing once. Source of the renames: CPython's ``_compat_pickle``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError
from ckptmigrate.values import NOTHING, Inert, brief

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "exceptions": "builtins",
    "cPickle": "pickle",
    "_abcoll": "collections.abc",
    "Queue": "queue",
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
    "StringIO": "io",
    "cStringIO": "io",
    "ConfigParser": "configparser",
    "commands": "subprocess",
    "pathlib._local": "pathlib",  # where Python 3.13 keeps the classes
}
NAMES = {
    "builtins.long": "builtins.int",
    "builtins.unicode": "builtins.str",
    "builtins.basestring": "builtins.str",
    "builtins.unichr": "builtins.chr",
    "builtins.xrange": "builtins.range",
    "builtins.intern": "sys.intern",
    "builtins.reduce": "functools.reduce",
    "collections.IterableUserDict": "collections.UserDict",
}
MOVED = (("numpy.core.", "numpy._core."),)

KEY_ITEMS = 10_000  # a tuple of tuples that share items hashes in exponential time; real keys hold a handful
PLAIN_KEYS = frozenset({str, int, float, bool, type(None), bytes})


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a listed name means. ``call`` gives the value of a call or of a new object, in our own code.

    ``build`` takes the value that ``call`` gave and the state of a BUILD, and gives the value that takes its place; such a
    ``call`` must give a fresh object each time. ``name`` is what the bare name stands for, by default a name node.
    A call may give ``Inert("call", …)`` to refuse those arguments, ``Inert("fault", …)`` for a value that is wrong.
    """

    call: Callable[[tuple[Any, ...]], Any] | None = None
    build: Callable[[Any, Any], Any] | None = None
    name: Any = NOTHING


def harmless(path: str) -> Meaning:
    """Give the meaning of a call whose result nobody needs: an inert object, left out by name and no reason to refuse."""
    return Meaning(lambda args: Inert("object", path, args))


def canonical(module: str, name: str) -> str:
    """Give "module.Name" as today's Python and numpy spell it."""
    path = f"{MODULES.get(module, module)}.{name}"
    for old, new in MOVED:
        if path.startswith(old):
            path = new + path[len(old) :]
    return NAMES.get(path, path)


def show(value: Any) -> str:
    """Say what a value is, for messages; a repr could take forever, since values may share and hold each other."""
    return brief(value[:80] if isinstance(value, (str, bytes)) else value)


def check_key(key: Any) -> None:
    """Pass what may be a dictionary's key; CorruptError for a list or dictionary, and for a tuple too large to hash."""
    pending, items = [key], 0
    while pending:
        part = pending.pop()
        if type(part) is tuple:
            items += len(part)
            if items > KEY_ITEMS:
                raise CorruptError(f"a dictionary's key is a tuple of more than {KEY_ITEMS} items", claimed=items)
            pending.extend(part)
        elif type(part).__hash__ is None:
            raise CorruptError(f"a dictionary's key is a {type(part).__name__}, which no dictionary takes")


CROWD = 2048  # keys at which, and at each doubling, a dictionary is looked at: so many that all collide take 50 ms


def put_items(target: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Set pairs in a dictionary; CorruptError for what is no key, and for a plain key that is set twice.

    No pickler writes a key twice, and the second value would silently hide the first.
    """
    for key, value in zip(keys, values, strict=True):
        if type(key) not in PLAIN_KEYS:
            check_key(key)
        try:
            fresh = key not in target
            if not fresh and type(key) in PLAIN_KEYS:
                raise CorruptError(f"a dictionary sets the key {show(key)} twice", key=key)
            target[key] = value
        except TypeError as error:
            raise CorruptError(f"a dictionary's key is a {type(key).__name__}, which no dictionary takes") from error
        count = len(target)
        if fresh and count >= CROWD and count & (count - 1) == 0:
            _check_crowd(target)


def _check_crowd(target: dict[Any, Any]) -> None:
    """Refuse keys that were chosen to hash alike (multiples of 2**61 - 1 do): each more is compared with all before it."""
    if len({hash(key) for key in target}) < len(target) // 4:
        raise CorruptError(f"{len(target)} keys of a dictionary collide, as no keys do that nobody chose for it")
