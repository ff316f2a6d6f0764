"""A learning-rate scheduler's record, of any release, as the scalars of today's, and back.

=============  ==========================  ===========================  ============================================
kind           0.7-0.14                    0.15-0.21                    today: names behind the group, "0."
=============  ==========================  ===========================  ============================================
constant       nil                         nil                          none
noam           step                        step                         step Float
cosine         [_, _, _, _, iteration]     iteration                    current_iter UInt
linear         [_, _, remaining]           remaining                    remaining_iters UInt
exponential    [previous_lr, _]            previous_lr                  previous_lr Float
step           -                           index, since 0.16            iter_idx Int
composed       -                           {schedulers: [{Kind: n}]}    "{child}." and the child's names
sequential     -                           -                            the same, and step UInt
=============  ==========================  ===========================  ============================================

In memory: {"current_iter": Scalar}, {} for a constant, {"0": …, "1": …} for a composed one, {"groups": {"0": …, "1": …}} where an
optimizer has several groups. A number whose kind neither the record nor a caller tells stands under "undetermined": nothing is
guessed, and it cannot be written. Up to 0.21.0-pre.2 a composed cosine bears the tag Linear, so there that tag tells little.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from ckptmigrate.errors import CheckpointError, UsageError
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Scalar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ckptmigrate.values import Tree

LEAVES: dict[str, tuple[str, str]] = {
    "noam": ("step", "float"),
    "cosine": ("current_iter", "uint"),
    "linear": ("remaining_iters", "uint"),
    "exponential": ("previous_lr", "float"),
    "step": ("iter_idx", "int"),
}
"""What today's record of a kind holds: the name and the kind of its one number."""

KINDS = (*LEAVES, "constant", "composed", "sequential")
UNDETERMINED = "undetermined"
_TUPLES = {2: ("exponential", 0), 3: ("linear", 2), 5: ("cosine", 4)}  # 0.13 and 0.14: the length tells the kind
_FRESH_COSINE = (1 << 64) - 1  # one before 0; no other kind gets there
_TODAY = re.compile(rf"(?:\d{{1,9}}\.){{0,16}}(?:{'|'.join(name for name, _ in LEAVES.values())})")
_OLD = re.compile(r"|\d{1,9}|schedulers\.(\d{1,9})\.(Linear|Cosine|Exponential|Noam)")
_WORD = re.compile(r"([a-z]+)(?:\((.*)\))?")
_TUPLES_END, _STEP, _RIGHT_TAGS = Version("0.15.0.dev0"), Version("0.16.0.dev0"), Version("0.21.0-pre.3")


def are_names(names: Mapping[str, Any]) -> bool:
    """Say whether these are the names of a scheduler's record, today's or an older one's."""
    if any(isinstance(value, Tensor) for value in names.values()):
        return False
    return all(_TODAY.fullmatch(name) for name in names) or all(_OLD.fullmatch(name) for name in names)


def unpack(names: Mapping[str, Scalar], burn: str | None, said: str | None, warnings: list[str]) -> Tree:
    """Give the tree of a record. ``burn``: the release that wrote it; ``said``: the kind that a caller says, "composed(noam,step)".

    CheckpointError where the record contradicts ``said``; where the record does not tell, a warning says what was assumed.
    """
    if names and all(_TODAY.fullmatch(name) for name in names):
        tree = _today(names)
        _check(tree, said)
        return tree
    numbers = sorted(names)
    if numbers and names.keys() <= {""}:
        return _one(names[""], _candidates(names[""], burn), said, warnings)
    if not numbers:
        _agree("constant", said)
        return {}
    if numbers == [str(n) for n in range(len(numbers))] and len(numbers) in _TUPLES:
        kind, at = _TUPLES[len(numbers)]
        return _one(names[str(at)], (kind,), said, warnings)
    return _composed(names, burn, said, warnings)


def _today(names: Mapping[str, Scalar]) -> Tree:
    groups: dict[str, Any] = {}
    for name, value in names.items():
        *steps, leaf = name.split(".")
        node = groups.setdefault(steps[0] if steps else "0", {})
        for step in steps[1:]:
            node = node.setdefault(step, {})
        if leaf in node:
            raise CheckpointError(f"{leaf} of one scheduler stands twice, with its group and without")
        node[leaf] = value
    return groups["0"] if groups.keys() == {"0"} else {"groups": groups}


def _composed(names: Mapping[str, Scalar], burn: str | None, said: str | None, warnings: list[str]) -> Tree:
    children = said_children(said)
    _agree("composed", said)
    tree: dict[str, Any] = {}
    for name, value in names.items():
        match = _OLD.fullmatch(name)
        if match is None or match[1] is None:
            raise CheckpointError(
                f"a scheduler's record of {len(names)} values ({', '.join(names)}) is of no known kind"
            )
        child = children[int(match[1])] if int(match[1]) < len(children) else None
        tag = match[2].lower()
        if tag == "linear" and not _since(burn, _RIGHT_TAGS):
            tree[match[1]] = _one(
                value, ("cosine",) if value.value == _FRESH_COSINE else ("linear", "cosine"), child, warnings
            )
        else:
            tree[match[1]] = _one(value, (tag,), child, warnings)
    return dict(sorted(tree.items(), key=lambda item: int(item[0])))


def said_children(said: str | None) -> list[str]:
    """Give the kinds that stand between the brackets of a composed kind, which may have brackets of their own."""
    match = _WORD.fullmatch(said or "")
    pieces: list[str] = []
    depth = 0
    for piece in (match[2] or "" if match else "").split(","):
        if depth:
            pieces[-1] += "," + piece
        elif piece:
            pieces.append(piece)
        depth += piece.count("(") - piece.count(")")
    return pieces


def _candidates(value: Scalar, burn: str | None) -> tuple[str, ...]:
    """Give the kinds that a lone number of a record can be of."""
    if value.kind == "float":
        return ("exponential",)
    if value.value < 0:
        return ("step",)
    if burn is not None and not _since(burn, _TUPLES_END):
        return ("noam",)
    if value.value == _FRESH_COSINE:
        return ("cosine",)
    step = ("step",) if burn is None or _since(burn, _STEP) else ()
    return ("noam", "cosine", "linear", *step)


def _since(burn: str | None, version: Version) -> bool:
    try:
        return burn is not None and Version(burn) >= version
    except InvalidVersion:
        return False


def _one(value: Scalar, candidates: Sequence[str], said: str | None, warnings: list[str]) -> Tree:
    if len(candidates) == 1:
        _agree(candidates[0], said)
        return {LEAVES[candidates[0]][0]: _as(candidates[0], value)}
    if said is None:
        return {UNDETERMINED: value}
    if said not in candidates:
        raise CheckpointError(
            f"the scheduler's record is the number {value.value}, which is of {_listed(candidates)}, not of {said}",
            candidates=list(candidates),
        )
    others = _listed([kind for kind in candidates if kind != said])
    note = (
        f"assumes that the scheduler is {said}: its record is the number {value.value}, which may also be of {others}"
    )
    if note not in warnings:
        warnings.append(note)
    return {LEAVES[said][0]: _as(said, value)}


def _as(kind: str, value: Scalar) -> Scalar:
    wanted = LEAVES[kind][1]
    if value.kind == wanted:
        return value
    if value.kind == "bool":
        raise CheckpointError(f"the scheduler's record is {value.value}, and {kind} has a number")
    if wanted == "float":
        return Scalar("float", float(value.value))
    if value.kind == "float" and not float(value.value).is_integer():
        raise CheckpointError(f"the scheduler's record is the number {value.value}, and {kind} counts in whole ones")
    if wanted == "uint" and value.value < 0:
        raise CheckpointError(f"the scheduler's record is the number {value.value}, and {kind} counts from 0")
    return Scalar("uint" if wanted == "uint" else "int", int(value.value))


def checked(said: str | None) -> str | None:
    """Give the kind that a caller says in our spelling; UsageError lists those that there are."""
    if said is None:
        return None
    word = said.replace(" ", "").lower()
    match = _WORD.fullmatch(word)
    if match is None or match[1] not in KINDS or (match[2] is not None and match[1] not in {"composed", "sequential"}):
        raise UsageError(f"{said!r} is no kind of scheduler; kinds: {', '.join(KINDS)}, composed(KIND,KIND)")
    for child in said_children(word):
        checked(child)
    return word


def _agree(kind: str, said: str | None) -> None:
    if said is not None and said.partition("(")[0] != kind:
        raise CheckpointError(f"the scheduler's record is of {kind}, not of {said}", candidates=[kind])


def kind_of(tree: Tree) -> str | None:
    """Give the kind whose record a tree is, None where it does not tell."""
    if not isinstance(tree, dict) or UNDETERMINED in tree or "groups" in tree:
        return None
    if not tree:
        return "constant"
    if any(key.isdecimal() for key in tree):
        return "sequential" if "step" in tree else "composed"
    step = tree.get("step")
    if isinstance(step, Scalar) and step.kind == "uint":
        return "sequential"  # of constants; noam's is a float
    return next((kind for kind, (name, _) in LEAVES.items() if tree.keys() == {name}), None)


def _check(tree: Tree, said: str | None) -> None:
    kind = kind_of(tree)
    if kind is not None:
        _agree(kind, said)


def pack(tree: Tree) -> dict[str, Scalar]:
    """Give the scalars of today's record; CheckpointError where the kind is not known."""
    groups = tree["groups"] if isinstance(tree, dict) and "groups" in tree else {"0": tree}
    found: dict[str, Scalar] = {}
    stack = [(str(group), below) for group, below in reversed(groups.items())]
    while stack:
        prefix, node = stack.pop()
        if not isinstance(node, dict):
            raise CheckpointError(f"a scheduler of {node!r} is none of this family")
        if UNDETERMINED in node:
            raise CheckpointError(
                f"the scheduler's record is the number {node[UNDETERMINED].value}, and does not tell of which kind",
                hint=f"--scheduler KIND tells: {', '.join(LEAVES)}, or composed(KIND,KIND); --drop schedulers goes on without it",
            )
        for key, value in node.items():
            name = f"{prefix}.{key}"
            if isinstance(value, dict):
                stack.append((name, value))
            else:
                found[name] = _scalar(key, value, node)
    return found


def _scalar(leaf: str, value: Any, node: Mapping[str, Any]) -> Scalar:
    kind = next((kind for kind, (name, _) in LEAVES.items() if name == leaf), None)
    if kind is None or isinstance(value, bool) or not isinstance(value, Scalar | int | float):
        raise CheckpointError(f"a scheduler's {leaf} of {value!r} is none of this family")
    counts = leaf == "step" and any(str(key).isdecimal() for key in node)  # a sequential one's
    if not isinstance(value, Scalar):
        return _as("cosine" if counts else kind, Scalar("float" if isinstance(value, float) else "int", value))
    return value if counts or (leaf == "step" and value.kind == "uint") else _as(kind, value)


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(kinds[:-1]) + " or " + kinds[-1] if len(kinds) > 1 else kinds[0]
