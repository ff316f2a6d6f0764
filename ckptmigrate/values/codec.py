"""The one lossless encoding of trees: strict JSON, and tensors by name.

In JSON most values stand for themselves. The exceptions are lists whose first item is a string that begins with "@":

    ["@tuple", a, b]   ["@list", "@x", b]            a tuple; a list that would look like one of these
    ["@float", "nan" | "inf" | "-inf"]               what JSON has no number for (every NaN is the one NaN)
    ["@int", "-0x1f..."]                             beyond 2**53, where other readers of JSON lose digits
    ["@str", BASE64]   ["@bytes", BASE64]            text with surrogates, spelled as UTF-8 would spell them; bytes
    ["@scalar", kind, value]                         Scalar
    ["@call", path, arg, ...]   ["@known", path]     Known with arguments; the bare name
    ["@name", path]                                  Inert of kind "name"
    ["@tensor", name, role, id]                      Tensor; None at the end is left out
    ["@quantised", name, role, id, scheme, axis, scale, zero_point]
    ["@dict", key, value, ...]                       a dict with a key that has no text of its own
    ["@ordered", n, attribute, value, ..., key, value, ...]    the same for Ordered, with n attributes

A dict is an object. Its keys are themselves, and "@" with the JSON text of the encoded key where they are no string ('@3',
'@null', '@["@tuple",0,1]'), or a string that begins with "@" or holds a surrogate. The name "@" marks an Ordered, "@.NAME" are
its attributes. So JSON is nested as deep as the tree was, and what ``limits.nesting`` let in can be written and read again.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import TYPE_CHECKING, Any, TypeGuard

from ckptmigrate.errors import CheckpointError, CkptError, CorruptError, TensorError
from ckptmigrate.tensor import Quantisation, Tensor

from .prune_tree import Opened, fold
from .strict_json import dumps, loads
from .tree import (
    LEAVES,
    Inert,
    Known,
    Ordered,
    Path,
    Scalar,
    Tree,
    brief,
    children,
    put_child,
    reason,
    spell,
    spell_step,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXACT = 1 << 53  # a reader of JSON that holds numbers as float64 keeps integers up to here
ROOM = 32  # levels that the record around an encoded tree may take, so that loads() accepts what dumps() gave
NAME = 512  # characters of a generated tensor name; a longer path gives way to a number


def encode(tree: Tree, prefix: str) -> tuple[Any, dict[str, Tensor]]:
    """Give a tree as a JSON value, and its tensors under names that begin with ``prefix``: "prefix/rng/cuda/0".

    The same tree gives the same names and text. TensorError names the path of what cannot be encoded (an Inert node, a type that
    is none of Tree's); CheckpointError that of a container within itself; LimitError: nested too deep, too many values.
    """
    tensors: dict[str, Tensor] = {}

    def opened(path: Path, node: Any) -> Opened:
        if isinstance(node, Tensor):
            return _open_tensor(node, _register(node, prefix, path, tensors))
        return _open(path, node)

    def cycle(path: Path) -> Any:
        msg = f"{spell(path)}: a container that holds itself cannot be written"
        raise CheckpointError(msg)

    return fold(tree, opened, cycle, room=ROOM), tensors


def _open(path: Path, node: Any) -> Opened:
    kind = type(node)
    if kind in LEAVES:
        return None, _leaf(node)
    if kind is Scalar:
        return None, ["@scalar", node.kind, _leaf(node.value)]
    if kind is list:
        return list(enumerate(node)), lambda items: ["@list", *items] if _is_tagged(items) else items
    if kind is tuple:
        return list(enumerate(node)), lambda items: ["@tuple", *items]
    if kind is Known:
        if node.args is None:
            return None, ["@known", _leaf(node.path)]
        return list(enumerate(node.args)), lambda args: ["@call", _leaf(node.path), *args]
    if kind is dict or kind is Ordered:
        return _open_dict(node)
    if kind is Inert and node.kind == "name":
        return None, ["@name", _leaf(node.path)]
    what = (
        f"{reason(node)} cannot be written"
        if kind is Inert
        else f"a value of type {kind.__name__} that no encoding has"
    )
    msg = f"{spell(path) or 'the root'}: {what}"
    raise TensorError(msg, tensor=spell(path), found=brief(node))


def _leaf(value: Any) -> Any:
    if type(value) is str:
        return ["@str", _base64(value.encode("utf-8", "surrogatepass"))] if _has_surrogate(value) else value
    if type(value) is int:
        return value if -EXACT <= value <= EXACT else ["@int", hex(value)]
    if type(value) is float:
        if math.isfinite(value):
            return value
        return ["@float", "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"]
    if type(value) is bytes:
        return ["@bytes", _base64(value)]
    return value  # None, True, False


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _is_tagged(items: Sequence[Any]) -> bool:
    return bool(items) and isinstance(items[0], str) and items[0].startswith("@")


def _open_dict(node: dict[Any, Any]) -> Opened:
    below = list(children(node))
    attributes = len(below) - len(node)
    texts = [_key_text(key) for key in node]
    spoken = not any(_has_surrogate(step[1]) for step, _ in below[:attributes])
    if None in texts or len(set(texts)) != len(texts) or not spoken:
        pairs = [(step, part) for step, value in below[attributes:] for part in (step, value)]
        if not isinstance(node, Ordered):
            return pairs, lambda items: ["@dict", *items]
        named = [(step, part) for step, value in below[:attributes] for part in (step[1], value)]
        return [*named, *pairs], lambda items: ["@ordered", attributes, *items]
    mark = {"@": "ordered"} if isinstance(node, Ordered) else {}
    names = [f"@.{step[1]}" for step, _ in below[:attributes]] + texts
    return below, lambda items: mark | dict(zip(names, items, strict=True))


def _key_text(key: Any) -> str | None:
    if type(key) is str and not key.startswith("@") and not _has_surrogate(key):
        return key
    if type(key) in LEAVES:
        return "@" + dumps(_leaf(key))
    if type(key) is tuple and all(type(node) is tuple or type(node) in LEAVES for _, node in walk(key)):
        return "@" + dumps(encode(key, "")[0])
    return None  # text within text within text would double its backslashes at every level


def _open_tensor(node: Tensor, name: str) -> Opened:
    ident = None if node.id is None else _leaf(node.id)
    quant = node.quant
    if quant is not None:
        below = [(("@", "scale"), quant.scale), (("@", "zero_point"), quant.zero_point)]
        return below, lambda items: ["@quantised", name, node.role, ident, quant.scheme, quant.axis, *items]
    if ident is not None:
        return None, ["@tensor", name, node.role, ident]
    return None, ["@tensor", name] if node.role is None else ["@tensor", name, node.role]


def _register(node: Tensor, prefix: str, path: Path, tensors: dict[str, Tensor]) -> str:
    """Name a tensor after its path; "~" and "/" within a step are spelled "~0" and "~1", so "~2", "~3" tell equal spellings apart."""
    steps = [spell_step(step).replace("~", "~0").replace("/", "~1") for step in path]
    plain = "/".join([prefix, *steps] if prefix else steps) or "value"
    plain = plain.encode("utf-8", "backslashreplace").decode(
        "utf-8"
    )  # a header's text is UTF-8, which has no surrogates
    if len(plain) > NAME:
        plain = f"{prefix}/~"
    name, count = plain, 2
    while name in tensors:
        name, count = f"{plain}~{count}", count + 1
    tensors[name] = node
    return name


# ---------------------------------------------------------------- and back


def decode(value: Any, tensors: Mapping[str, Any]) -> Tree:
    """Give the tree that ``encode`` was given; ``tensors`` may hold others besides.

    CorruptError names the place of what no encoding gives: unknown tags, wrong items, equal keys, tensors that are not there.
    """

    def opened(path: Path, node: Any) -> Opened:
        if isinstance(node, dict):
            return _reopen_dict(path, node)
        if isinstance(node, list):
            if not _is_tagged(node):
                return list(enumerate(node)), list
            try:
                return _reopen(path, node, tensors)
            except CkptError:
                raise
            except (IndexError, TypeError, ValueError, AttributeError) as error:
                raise _bad(path, f"{node[0]!r} with items that it cannot have") from error
        return None, node

    def cycle(path: Path) -> Any:
        raise _bad(path, "a container that holds itself")

    return fold(value, opened, cycle)


def _bad(path: Path, what: str) -> CorruptError:
    return CorruptError(f"{spell(path) or 'the root'}: {what}")


def _reopen(path: Path, node: list[Any], tensors: Mapping[str, Any]) -> Opened:
    tag, rest = node[0], node[1:]
    below = list(enumerate(rest))
    match tag:
        case "@list":
            return below, list
        case "@tuple":
            return below, tuple
        case "@dict":
            return below, lambda items: _paired(path, {}, items)
        case "@ordered" if rest:
            return below[1:], lambda items: _reordered(path, rest[0], items)
        case "@call" if isinstance(name := _reopen_leaf(path, rest[0]), str):
            return below[1:], lambda args: Known(name, tuple(args))
        case "@known" | "@name" if len(rest) == 1 and isinstance(name := _reopen_leaf(path, rest[0]), str):
            return None, Known(name) if tag == "@known" else Inert("name", name)
        case "@tensor" | "@quantised":
            return _reopen_tensor(path, tag, rest, tensors)
        case "@float" if rest in (["nan"], ["inf"], ["-inf"]):
            return None, float(rest[0])
        case "@scalar":
            kind, number = rest
            found = _reopen_leaf(path, number)
            if _fits(kind, found):
                return None, Scalar(kind, found)
    if len(rest) == 1 and isinstance(rest[0], str):
        text = rest[0]
        match tag:
            case "@int" if text.lstrip("-").startswith("0x"):
                return None, int(text, 16)
            case "@str":
                return None, _unbase64(path, text).decode("utf-8", "surrogatepass")
            case "@bytes":
                return None, _unbase64(path, text)
    raise _bad(path, f"an encoding that is not known here, {dumps(node)[:80]}")


def _fits(kind: object, value: Any) -> TypeGuard[Any]:
    return type(value) is {"uint": int, "int": int, "float": float, "bool": bool}.get(str(kind))


def _unbase64(path: Path, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _bad(path, f"no base64: {error}") from error


def _reopen_leaf(path: Path, node: Any) -> Any:
    if not isinstance(node, list):
        return node
    below, value = _reopen(path, node, {})
    return value if below is None else node


def _reopen_tensor(path: Path, tag: str, rest: list[Any], tensors: Mapping[str, Any]) -> Opened:
    name, role, ident = (*rest, None, None)[:3]
    found = tensors.get(name)
    if not isinstance(found, Tensor):
        raise _bad(path, f"no tensor {name!r}")
    ident = _reopen_leaf(path, ident)
    if role not in (None, "parameter", "buffer") or type(ident) not in (type(None), int, str):
        raise _bad(path, f"tensor {name!r} has role {role!r} and id {ident!r}")
    if tag == "@tensor":
        return None, Tensor(found.promise, role, ident)
    scheme, axis, scale, zero_point = rest[3:]
    if not isinstance(scheme, str) or type(axis) not in (type(None), int):
        raise _bad(path, f"tensor {name!r} has quantisation {scheme!r} along axis {axis!r}")
    below = [(("@", "scale"), scale), (("@", "zero_point"), zero_point)]
    return below, lambda items: Tensor(found.promise, role, ident, Quantisation(scheme, items[0], items[1], axis))


def _reopen_dict(path: Path, node: dict[str, Any]) -> Opened:
    ordered = node.get("@") == "ordered"
    below = [(_reopen_key(name), value) for name, value in node.items() if not (ordered and name == "@")]
    attributes = [step for step, _ in below if isinstance(step, _Attribute)]
    if attributes and not ordered:
        raise _bad(path, f"attribute {attributes[0].name!r} of a plain dict")
    steps = [("@", step.name) if isinstance(step, _Attribute) else step for step, _ in below]

    def build(items: list[Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = Ordered() if ordered else {}
        keyed = []
        for (step, _), item in zip(below, items, strict=True):
            if isinstance(step, _Attribute):
                put_child(made, ("@", step.name), item)
            else:
                keyed += [step, item]
        return _paired(path, made, keyed)

    return [(step, value) for step, (_, value) in zip(steps, below, strict=True)], build


class _Attribute:
    """A name of an object that spells an attribute, not a key."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _reopen_key(name: str) -> Any:
    if not name.startswith("@"):
        return name
    if name.startswith("@."):
        return _Attribute(name[2:])
    return decode(loads(name[1:]), {})


def _reordered(path: Path, count: Any, items: list[Any]) -> Ordered:
    made = Ordered()
    if type(count) is not int or not 0 <= 2 * count <= len(items):
        raise _bad(path, f"an Ordered of {count!r} attributes in {len(items)} items")
    for name, value in zip(items[: 2 * count : 2], items[1 : 2 * count : 2], strict=True):
        if type(name) is not str:
            raise _bad(path, f"an attribute that is called {brief(name)}")
        made.attributes[name] = value
    _paired(path, made, items[2 * count :])
    return made


def _paired(path: Path, made: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise _bad(path, f"{len(items)} keys and values, an odd number")
    for key, value in zip(items[::2], items[1::2], strict=True):
        try:
            twice = key in made
        except TypeError as error:
            raise _bad(path, f"a key that is {brief(key)}") from error
        if twice:
            raise _bad(path, f"two keys that are equal to {spell_step(key)}")
        made[key] = value
    return made
