"""What a recorder of Burn wrote (0.7 to 0.21), whatever the encoding: an envelope, and one tree, named as today's files name it.

    {metadata: {float, int, format, version, settings}, item: TREE, _b: nothing}       `_b` since 0.12

    TREE of a model            {id: TEXT, param: PAYLOAD}           a parameter, by the path of names and indices that leads to it
                               {name: TREE}, [TREE]                 a module, a variant of an enum, a list, a tuple
                               nil, [nil, nil]                      a constant: its name is kept under ``fields``, nothing else
    TREE of an optimizer       {ID: {V1: {Rank2: {momentum: {time: 3, moment_1: PAYLOAD}}}}}     `ID.momentum.time`, `ID.__rank`
                               {history_s: [PAYLOAD], …, g_iter: 3}                            LBFGS: `history_s.0`, `history_s.len`
    TREE of a scheduler        nil, 3, 0.5, [0.5, 0.1, 3], {schedulers: [{Linear: 3}]}    ``, `0`, `schedulers.0.Linear`

    PAYLOAD                    see _burn_payloads

What a payload is stands in it, never in the version. The first kind has no dtype: floats are ``metadata.float``, where that is f16
integers are bit patterns (a negative one proves an i16 parameter; of the others only a caller knows, so "patterns" is a fact of such
a record, and "doubts" tells which look like it), other integers are ``metadata.int``; truth values are BOOL.
A module may have fields called `id`, `param`, `value` or `shape`: only an id that is text and a value that is numbers tell.
Field names that are words of Rust lost their `r#` here, and today's files have it: it is put back.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BF16, F16, F32, F64, I16, I32, I64
from ckptmigrate.errors import CkptError, CorruptError, LimitError
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar, brief

from ._burn_payloads import Precision, is_numbers, is_payload, kind_of, tensor_of

if TYPE_CHECKING:
    from ckptmigrate.format import ReadOptions

METADATA = ("float", "int", "format", "version", "settings")
FLOATS = {"f32": F32, "f64": F64, "half::binary16::f16": F16, "half::bfloat::bf16": BF16}
INTS = {"i32": I32, "i16": I16, "i64": I64}
RANK = "__rank"
SUBNORMAL = 1 << 10  # f16 bit patterns below are less than 6.1e-5: no trained weights, all of them
KEYWORDS = frozenset(
    "abstract as async await become box break const continue do dyn else enum extern false final fn for if impl in let loop macro match"  # noqa: SIM905 - a table to read
    " mod move mut override priv pub ref return static struct trait true try type typeof unsafe unsized use virtual where while yield".split()
)  # strict and reserved words of Rust's edition 2021, without those that no raw identifier may be
_RANK = re.compile(r"Rank([0-8])")
_LBFGS = {"history_s", "history_y", "g_iter"}


def record(tree: Any, options: ReadOptions, *, typed: bool = False) -> Parts:
    """Give the parts of an envelope that was walked. CorruptError where it is none.

    ``typed``: a schema has said which numbers are integers, so that halves are never in doubt.
    """
    if not isinstance(tree, dict) or not isinstance(tree.get("metadata"), dict) or "item" not in tree:
        raise CorruptError(f"expected an object with metadata and item, found {brief(tree)}")
    told = {name: text for name, text in tree["metadata"].items() if isinstance(text, str)}
    if not told.keys() >= {"float", "int", "version"}:
        raise CorruptError(
            f"the metadata of a record has {', '.join(METADATA)}, this one {', '.join(told) or 'nothing'}"
        )
    if told["float"] not in FLOATS:
        raise CorruptError(f'the metadata names "{told["float"][:60]}" as its floats, known are {", ".join(FLOATS)}')
    precision = Precision(FLOATS[told["float"]], INTS.get(told["int"]))
    read = Record(precision, options, typed=typed)
    parts = read.parts(tree["item"])
    parts.facts |= {"versions": {"burn": told["version"]}, "envelope": told}
    if "settings" in told:
        parts.facts["settings"] = told["settings"]
    if precision.floating.itemsize == 2:
        parts.facts["half"] = True
        if read.listed and precision.integer is not None and not typed:
            parts.facts |= {"patterns": True, "doubts": read.doubts}
    return parts


class Record:
    """The names of one tree; ``parts`` gives all of it."""

    def __init__(self, precision: Precision, options: ReadOptions, *, typed: bool = False) -> None:
        self.precision, self.options, self.typed = precision, options, typed
        self.tensors: dict[str, Tensor | Scalar] = {}
        self.fields: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.nulls: list[str] = []
        self.doubts: dict[str, str] = {}
        self.listed = False  # whether a payload of the first kind was there

    def parts(self, item: Any) -> Parts:
        """Give what the item of an envelope says."""
        facts: dict[str, Any] = {}
        made = Parts(family="burn", tensors=self.tensors, facts=facts, warnings=self.warnings)
        entries = _entries(item)
        if entries is not None:
            facts["section"] = "optimizers"
            for text, rank, state in entries:
                self.put(f"{text}.{RANK}", Scalar("uint", rank))
                self.state(state, text, text)
        elif isinstance(item, dict) and item.keys() >= _LBFGS:
            facts["section"] = "optimizers"
            self.state(item, "", None)
        elif _is_schedule(item):
            facts["section"] = "schedulers"
            if item is None:
                made.tree = None
            self.state(item, "", None)
        else:
            self.model(item)
            facts["fields"] = self.fields
            if any(isinstance(value, Tensor) for value in self.tensors.values()):
                facts["section"] = "model"
        if self.nulls:
            some = ", ".join(self.nulls[:5]) + (f" and {len(self.nulls) - 5} more" if len(self.nulls) > 5 else "")
            self.warnings.append(
                f"null stands for NaN or an infinity, nobody can say which, and is read as NaN: {some}"
            )
        return made

    def put(self, name: str, value: Tensor | Scalar) -> None:
        """Add a tensor or number; CorruptError for a name that two paths lead to."""
        if name in self.tensors:
            raise CorruptError(f'the name "{name}" is that of two values', name=name)
        self.tensors[name] = value
        if len(self.tensors) > self.options.limits.tensors:
            most = self.options.limits.tensors
            raise LimitError(f"more than {most:,} tensors and numbers", limit=most, claimed=len(self.tensors))

    def model(self, item: Any) -> None:
        """Name the parameters of a module, in the order of the file."""
        stack: list[tuple[str, Any]] = [("", item)]
        while stack:
            path, node = stack.pop()
            if node is None or (is_numbers(node) and node.kind == "null"):
                continue
            if is_parameter(node):
                self.put(path, self.tensor(path, node["param"], node["id"]))
                self.doubt(path, node["param"].get("value"))
            elif is_payload(node):
                self.put(path, self.tensor(path, node, None))
            elif isinstance(node, dict):
                self.fields[path] = [raw(name) for name in node]
                stack.extend((_below(path, raw(name)), below) for name, below in reversed(node.items()))
            elif isinstance(node, list):
                stack.extend((_below(path, str(index)), node[index]) for index in reversed(range(len(node))))
            else:
                self.other(path, node)

    def doubt(self, name: str, value: Any) -> None:
        """Say so where bit patterns of f16 look like the numbers of an integer parameter, which nothing in the file tells apart."""
        few = value.values if is_numbers(value) and value.kind == "int" else None
        if self.typed or self.precision.floating != F16 or self.precision.integer is None or not few:
            return
        if all(0 <= number < SUBNORMAL for number in few) and any(few):
            self.doubts[name] = (
                f"{name} holds small integers, {', '.join(map(str, few[:4]))}: read as bit patterns of F16, as all floats here are;"
                f" if it is an integer parameter, its values are these, and --int '{re.escape(name)}' says so"
            )
            self.warnings.append(self.doubts[name])

    def state(self, item: Any, path: str, id: str | None) -> None:  # noqa: A002 - the field's name
        """Name the tensors and numbers of a state. A list of tensors says how long it is, as today's files have it."""
        stack: list[tuple[str, Any]] = [(path, item)]
        while stack:
            path, node = stack.pop()
            if is_payload(node):
                self.put(path, self.tensor(path, node, id))
            elif isinstance(node, dict):
                stack.extend((_below(path, name), below) for name, below in reversed(node.items()))
            elif isinstance(node, list):
                if all(map(is_payload, node)):
                    self.put(_below(path, "len"), Scalar("uint", len(node)))
                stack.extend((_below(path, str(index)), node[index]) for index in reversed(range(len(node))))
            elif node is not None:
                self.other(path, node)

    def other(self, path: str, node: Any) -> None:
        """Add what is no tensor: a number, or a few of them."""
        if is_numbers(node) and node.values is not None:
            for index, value in enumerate(node.values):
                if value is not None:
                    self.put(_below(path, str(index)), scalar(value))
        elif isinstance(node, (bool, int, float)):
            self.put(path, scalar(node))
        else:
            raise CorruptError(
                f"{path or 'the item'} is {kind_of(node)}, where a record has tensors, modules and numbers"
            )

    def tensor(self, name: str, payload: dict[str, Any], id: str | None) -> Tensor:  # noqa: A002 - the field's name
        """Give the tensor of a payload; any error names it."""
        try:
            found = tensor_of(payload, self.precision, self.options)
        except CkptError as error:
            error.message = f"{name or 'the tensor'}: {error.message}"
            error.data.setdefault("tensor", name)
            raise
        self.listed |= "value" in payload
        if getattr(payload.get("value"), "lossy", False):
            self.nulls.append(name)
        return replace(found, id=id)


def is_parameter(node: Any) -> bool:
    """Tell whether a node is a parameter: exactly an id, which is text, and what it is the id of."""
    return (
        isinstance(node, dict)
        and node.keys() == {"id", "param"}
        and isinstance(node["id"], str)
        and is_payload(node["param"])
    )


def raw(name: str) -> str:
    """Give a field's name as Rust's identifier, which today's files have."""
    return f"r#{name}" if name in KEYWORDS else name


def scalar(value: bool | float) -> Scalar:
    """Give a number with its kind."""
    if isinstance(value, bool):
        return Scalar("bool", value)
    if isinstance(value, int):
        return Scalar("uint" if value >= 0 else "int", value)
    return Scalar("float", value)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _entries(item: Any) -> list[tuple[str, int, Any]] | None:
    """Give id, rank and state of every entry of an optimizer's tree; None where it is none."""
    if not isinstance(item, dict) or not item:
        return None
    found = []
    for text, entry in item.items():
        inner = entry["V1"] if isinstance(entry, dict) and entry.keys() == {"V1"} else None
        if not isinstance(inner, dict) or len(inner) != 1:
            return None
        ((name, state),) = inner.items()
        rank = _RANK.fullmatch(name)
        if rank is None:
            return None
        found.append((text, int(rank[1]), state))
    return found


def _is_schedule(item: Any) -> bool:
    """Tell whether an item is a scheduler's: nothing, a number, a few, or those of its children."""
    if item is None or isinstance(item, (int, float)):
        return True
    if is_numbers(item):
        return item.values is not None
    if isinstance(item, dict) and item.keys() == {"schedulers"} and isinstance(item["schedulers"], list):
        numbers_only = (int, float, type(None))
        return all(
            isinstance(child, dict) and len(child) == 1 and isinstance(next(iter(child.values())), numbers_only)
            for child in item["schedulers"]
        )
    return False
