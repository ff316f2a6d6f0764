"""The field lists that bincode needs, as JSON, and the walk that reads a record's item by one: the tree that a named record has.

    {"struct": [[NAME, TYPE], …]}     fields in the order of their declaration, constants too
    {"option": TYPE}  {"vec": TYPE}  {"array": TYPE, "len": N}  {"tuple": [TYPE, …]}  {"map": TYPE}     (a map's keys are text)
    {"enum": [[VARIANT, TYPE], …]}    in the order of their declaration, in that release
    "param"  "param_int"  "param_bool"     an id and a tensor         "tensor"     a tensor alone, in optimizers
    "constant"                        a field that is no module: no byte in 0.7, one since
    "unit" "bool" "u64" "usize" "i32" "i64" "f32" "f64" "str"

A list of them instead of one is for a run: each file is read by the one that ends with it.
A schema is that of one model in one release: fields, variants and the prefix of arrays differ between them (formats/burn.md 3.4).
A record of the same model in another encoding gives most of it: a map is a struct, nil a constant or an option that is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from ckptmigrate.errors import CkptError, CorruptError, LimitError, UnsupportedFormatError, UsageError
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import brief
from ckptmigrate.wire import bincodes

from ._burn_dtypes import VARIANTS

if TYPE_CHECKING:
    from ckptmigrate.limits import Limits
    from ckptmigrate.wire.bincodes import Encoding
    from ckptmigrate.wire.cursor import Cursor

LEAVES = (
    "param",
    "param_int",
    "param_bool",
    "tensor",
    "constant",
    "unit",
    "bool",
    "u64",
    "usize",
    "i32",
    "i64",
    "f32",
    "f64",
    "str",
)
_NUMBERS = frozenset({"bool", "u64", "usize", "i32", "i64", "f32", "f64"})
NESTING = 64  # of a schema; the deepest of real models is 12
MOST = 1_000_000  # types in one schema, and values in one record that are no tensor's: both take a second or two
AXES = 64  # of a tensor; numpy's own bound

_ELEMENTS: dict[str, Encoding] = {
    "f32": "f32", "f64": "f64", "half::binary16::f16": "unsigned", "half::bfloat::bf16": "unsigned",
    "i16": "zigzag", "i32": "zigzag", "i64": "zigzag",
}  # fmt: skip
"""How the first kind of payload holds the elements that a record's metadata names."""

_SINCE = {
    name: Version(name)
    for name in ("0.8.0.dev0", "0.14.0.dev0", "0.16.0.dev0", "0.17.0.dev0", "0.18.0.dev0", "0.19.0.dev0")
}
_STORES_NUMBERED, _BOOL_STORES = Version("0.20.0-pre.5"), Version("0.21.0-pre.3")

_LATER = {"0.16.0.dev0": "U16", "0.17.0.dev0": "Flex32"}  # what the list did not have before
_QUANTISED = ("Q8F", "E5M2", "E4M3", "Q4F", "E2M1", "Q2F", "Q8S", "Q4S", "Q2S")
_SCALES = ("F32", "F16", "BF16", "UE8M0", "UE4M3")


@dataclass(frozen=True, slots=True)
class Type:
    """One type of a schema. ``least``: the fewest bytes that a value of it takes; 0 is a value that takes none at all."""

    kind: str
    parts: tuple[tuple[str, Type], ...] = ()
    count: int = 0
    least: int = 1


def schema(tree: Any, version: Version) -> Type:
    """Give the type that a schema's JSON means; UsageError names the place in it that means none."""
    return _Schema(1 if _since(version, "0.8.0.dev0") else 0).type(tree, "", 0)


class _Schema:
    def __init__(self, constant: int) -> None:
        self.sizes = {
            "constant": constant,
            "unit": 0,
            "param": 4,
            "param_int": 4,
            "param_bool": 4,
            "tensor": 2,
            "f32": 4,
            "f64": 8,
        }
        self.types = 0

    def type(self, tree: Any, path: str, depth: int) -> Type:
        self.types += 1
        if depth > NESTING or self.types > MOST:
            raise LimitError(
                f"the schema is nested deeper than {NESTING} levels or has more than {MOST:,} types", limit=NESTING
            )
        if isinstance(tree, str) and tree in LEAVES:
            return Type(tree, least=self.sizes.get(tree, 1))
        match tree:
            case {"struct": list(pairs)} if len(tree) == 1:
                parts = self.pairs(pairs, path, depth)
                return Type("struct", parts, least=sum(part.least for _, part in parts))
            case {"enum": list(pairs)} if len(tree) == 1 and pairs:
                parts = self.pairs(pairs, path, depth)
                return Type("enum", parts, least=1 + min(part.least for _, part in parts))
            case {"tuple": list(members)} if len(tree) == 1:
                parts = tuple((str(n), self.type(m, _below(path, n), depth + 1)) for n, m in enumerate(members))
                return Type("tuple", parts, least=sum(part.least for _, part in parts))
            case {"array": of, "len": int(count)} if (
                len(tree) == 2 and 0 <= count <= MOST and not isinstance(count, bool)
            ):
                part = self.type(of, _below(path, "0"), depth + 1)
                return Type("array", (("", part),), count, count * part.least)
            case {"option": of} | {"vec": of} | {"map": of} if len(tree) == 1:
                (kind,) = tree
                return Type(kind, (("", self.type(of, path, depth + 1)),))
        raise UsageError(
            f"the schema has {brief(tree)} at {path or 'its root'}, which is no type",
            hint=f'types: {", ".join(LEAVES)}, {{"struct": [[NAME, TYPE], …]}}, option, vec, array with len, tuple, enum, map',
        )

    def pairs(self, pairs: list[Any], path: str, depth: int) -> tuple[tuple[str, Type], ...]:
        found: dict[str, Type] = {}
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                raise UsageError(f"the schema has {brief(pair)} at {path or 'its root'}, expected [NAME, TYPE]")
            if pair[0] in found:
                raise UsageError(f"the schema names {_below(path, pair[0])} twice")
            found[pair[0]] = self.type(pair[1], _below(path, pair[0]), depth + 1)
        return tuple(found.items())


def version_of(text: str) -> Version:
    """Give a release of Burn as a version that compares; UnsupportedFormatError where the text is none."""
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UnsupportedFormatError(f"a record of release {text[:40]!r}, which is no version") from error


def item(cursor: Cursor, of: Type, metadata: dict[str, str], limits: Limits) -> Any:
    """Give the item that begins at the cursor as a tree of dicts, lists, numbers and payloads; an error names the place in it."""
    walk = _Walk(cursor, metadata, limits)
    try:
        return walk.value(of)
    except CkptError as error:
        error.message = f"{'.'.join(walk.path) or 'the item'}: {error.message}"
        error.add_note("the schema may be of another model, or of another release of Burn")
        raise


def payloads(cursor: Cursor, metadata: dict[str, str]) -> _Walk:
    """Give a walk that is asked for tensors by themselves."""
    return _Walk(cursor, metadata, LIMITS)


class _Walk:
    def __init__(self, cursor: Cursor, metadata: dict[str, str], limits: Limits) -> None:
        self.cursor, self.metadata, self.limits = cursor, metadata, limits
        self.version = version_of(metadata["version"])
        self.path: list[str] = []
        self.values = 0
        self.tensors = 0
        missing = {word for since, word in _LATER.items() if not _since(self.version, since)}
        self.dtypes = [word for word in VARIANTS if word not in missing]

    def value(self, of: Type) -> Any:
        """Give one value; recursive, as deep as its type is nested."""
        self.values += 1
        if self.values > MOST:
            raise LimitError(f"more than {MOST:,} values", limit=MOST)
        match of.kind:
            case "struct":
                return {name: self.below(name, part) for name, part in of.parts}
            case "tuple":
                return self.row(of)
            case "option":
                return self.value(of.parts[0][1]) if bincodes.truth(self.cursor) else None
            case "vec" | "array":
                return self.listed(of)
            case "enum":
                name, part = self.variant(of.parts)
                return {name: self.below(name, part)}
            case "map":
                return self.mapped(of.parts[0][1])
            case "constant" | "unit":
                if of.least and bincodes.truth(self.cursor):
                    raise CorruptError(f"a constant is 1 at {self.cursor.at - 1:,}, expected 0")
                return None
        return self.leaf(of.kind)

    def below(self, name: str, of: Type) -> Any:
        self.path.append(name)
        found = self.value(of)
        self.path.pop()
        return found

    def row(self, of: Type) -> Any:
        """Give a tuple; one of numbers only is an array of a few numbers, as named records have it."""
        start = self.cursor.at
        members = [self.below(name, part) for name, part in of.parts]
        if not members or not all(part.kind in _NUMBERS for _, part in of.parts):
            return members
        end, self.cursor.at = self.cursor.at, start
        return bincodes.Numbers(len(members), self.cursor.leave(end - start), "f64", tuple(members))

    def listed(self, of: Type) -> Any:
        part = of.parts[0][1]
        count = self.count(part) if of.kind == "vec" else of.count
        if part.least == 0:
            return None  # nothing is there, however often
        if part.kind == "constant":
            zeros = bincodes.measure(self.cursor, count, "bool")  # crossed at once: a count may be large
            return None if zeros.count else []
        return [self.below(str(index), part) for index in range(count)]

    def mapped(self, of: Type) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self.count(of)):
            key = bincodes.text(self.cursor, self.limits.name)
            if key in found:
                raise CorruptError(f'the key "{key[:60]}" stands twice in one map', name=key)
            found[key] = self.below(key, of)
        return found

    def count(self, of: Type) -> int:
        at = self.cursor.at
        count, left = bincodes.uint(self.cursor), self.cursor.left()
        if left is not None and count * of.least > left:
            raise self.cursor.short(count * of.least)
        if count > MOST and of.kind != "constant" and of.least:
            raise LimitError(f"a list of {count:,} at {at:,}, the limit is {MOST:,}", limit=MOST, claimed=count)
        return count

    def variant(self, parts: tuple[tuple[str, Type], ...]) -> tuple[str, Type]:
        at = self.cursor.at
        index = bincodes.uint(self.cursor)
        if index >= len(parts):
            raise CorruptError(
                f"variant {index} at {at:,}, expected one of the {len(parts)}: {', '.join(n for n, _ in parts[:10])}"
            )
        return parts[index]

    def one(self, *words: str) -> str:
        return self.variant(tuple((word, Type("unit")) for word in words))[0]

    def leaf(self, kind: str) -> Any:
        cursor = self.cursor
        match kind:
            case "param" | "param_int" | "param_bool":
                ident = bincodes.text(cursor, self.limits.name)
                return {"id": ident, "param": self.payload(kind)}
            case "tensor":
                return self.payload("param")
            case "u64" | "usize":
                return bincodes.uint(cursor)
            case "i32" | "i64":
                return bincodes.sint(cursor)
            case "f32" | "f64":
                return bincodes.real(cursor, kind)
            case "bool":
                return bincodes.truth(cursor)
        return bincodes.text(cursor, self.limits.name)

    def payload(self, kind: str) -> dict[str, Any]:
        """Give a tensor as named records have it, of the first kind or the second."""
        self.tensors += 1
        if self.tensors > self.limits.tensors:
            raise LimitError(f"more than {self.limits.tensors:,} tensors", limit=self.limits.tensors)
        count = bincodes.uint(self.cursor)
        if _since(self.version, "0.14.0.dev0"):
            left = self.cursor.left()
            if left is not None and count > left:
                raise self.cursor.short(count)
            found = self.cursor.leave(count)
            return {"bytes": found, "shape": self.shape(), "dtype": self.dtype()}
        told = self.metadata["int" if kind == "param_int" else "float"]
        encoding = "bool" if kind == "param_bool" else _ELEMENTS.get(told)
        if encoding is None:
            raise CorruptError(f"the metadata names {told[:60]!r} as elements, known are {', '.join(_ELEMENTS)}")
        return {"value": bincodes.measure(self.cursor, count, encoding), "shape": self.shape()}

    def shape(self) -> Any:
        at = self.cursor.at
        axes = bincodes.uint(self.cursor)
        if axes > AXES:
            raise LimitError(f"{axes} axes at {at:,}, the limit is {AXES}", limit=AXES, claimed=axes)
        start = self.cursor.at
        lengths = tuple(bincodes.uint(self.cursor) for _ in range(axes))
        end, self.cursor.at = self.cursor.at, start
        return bincodes.Numbers(axes, self.cursor.leave(end - start), "unsigned", lengths)

    def dtype(self) -> Any:
        word = self.one(*self.dtypes)
        if word == "Bool" and self.version >= _BOOL_STORES:
            return {"Bool": self.one("Native", "U8", "U32")}
        return {"QFloat": self.quantisation()} if word == "QFloat" else word

    def quantisation(self) -> Any:
        """Give what stands behind the index of QFloat, in the words that named records have."""
        cursor, one = self.cursor, self.one
        if not _since(self.version, "0.16.0.dev0"):
            if one("PerTensorAffineInt8", "PerTensorSymmetricInt8") == "PerTensorSymmetricInt8":
                return {"PerTensorSymmetricInt8": {"scale": bincodes.real(cursor, "f32"), "_q": None}}
            scale = bincodes.real(cursor, "f32")
            offset = int.from_bytes(cursor.take(1), "little", signed=True)
            return {"PerTensorAffineInt8": {"scale": scale, "offset": offset, "_a": None}}
        if not _since(self.version, "0.17.0.dev0"):
            return {one("PerTensorAffine", "PerTensorSymmetric"): one("QInt8")}
        if not _since(self.version, "0.18.0.dev0"):
            return {one("PerTensor"): [one("Symmetric"), one("QInt8")]}
        if not _since(self.version, "0.19.0.dev0"):
            return {
                "level": one("Tensor"), "mode": one("Symmetric"), "q_type": one("QInt8"),
                "acc_precision": one("Full", "Half"), "propagation": one("Propagate", "Inhibit"),
            }  # fmt: skip
        value, param = one(*_QUANTISED), one(*_SCALES)
        store: Any = (
            one("Native", "PackedNative", "PackedU32") if self.version >= _STORES_NUMBERED else one("Native", "U32")
        )
        if store.startswith("Packed"):
            store = {store: bincodes.uint(cursor)}
        level: Any = one("Tensor", "Block")
        if level == "Block":
            level = {"Block": {"storage": list(cursor.take(5)), "len": cursor.take(1)[0]}}
        return {"value": value, "param": param, "store": store, "level": level, "mode": one("Symmetric")}


def _since(version: Version, name: str) -> bool:
    return version >= _SINCE[name]


def _below(path: str, step: str | int) -> str:
    return f"{path}.{step}" if path else str(step)
