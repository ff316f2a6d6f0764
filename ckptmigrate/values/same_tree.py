"""Comparison of trees by content."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptmigrate.tensor import Tensor

from .tree import Inert, Known, Path, Scalar, Tree, brief, children, spell, spell_step

if TYPE_CHECKING:
    from ckptmigrate.tensor import Quantisation

Mode: TypeAlias = Literal["promise", "type", "values"]


def same(a: Tree, b: Tree, tensors: Mode = "promise") -> bool:
    """Tell whether two trees say the same; see ``difference``."""
    return difference(a, b, tensors) is None


def difference(a: Tree, b: Tree, tensors: Mode = "promise") -> str | None:
    """Name the first place where two trees differ, with both values, or give None.

    Types count (1, 1.0 and True differ), so do the sign of zero and the order of keys; every NaN is the same. Of tensors, role,
    id and quantisation are compared, and: equal promises; or dtype and shape; or dtype, shape and elements, drawn window by window.
    """
    seen: set[tuple[int, int]] = set()  # a pair met again holds no first difference: it was, or is being, compared
    stack: list[tuple[Path, Any, Any]] = [((), a, b)]
    while stack:
        path, left, right = stack.pop()
        if left is right or (id(left), id(right)) in seen:
            continue
        if type(left) is not type(right) or not _alike(left, right, tensors):
            return f"{_at(path)}: {brief(left)} is not {brief(right)}"
        if isinstance(left, Tensor):
            stack.extend(_quantisation(path, left.quant, right.quant))
        elif isinstance(left, (dict, list, tuple, Known, Inert)):
            seen.add((id(left), id(right)))
            ours, theirs = list(children(left)), list(children(right))
            if len(ours) != len(theirs):
                return f"{_at(path)}: {_counts(ours, theirs)}"
            pairs: list[tuple[Path, Any, Any]] = []
            for (here, mine), (there, other) in zip(ours, theirs, strict=True):
                if type(here) is str and here != there:
                    return f"{_at(path)}: {here!r} stands where the other has {spell_step(there)!r}"
                pairs += [((*path, here), here, there), ((*path, here), mine, other)]
            stack.extend(reversed(pairs))
    return None


def _at(path: Path) -> str:
    return spell(path) or "the root"


def _counts(ours: list[tuple[Any, Any]], theirs: list[tuple[Any, Any]]) -> str:
    few, many = sorted((ours, theirs), key=len)
    extra = next((step for (step, _), (other, _) in zip(many, few, strict=False) if step != other), many[len(few)][0])
    return f"{len(ours)} items, not {len(theirs)}; {spell_step(extra)!r} is only in the {'first' if many is ours else 'second'}"


def _alike(a: Any, b: Any, tensors: Mode) -> bool:
    """Compare two nodes of one type without their children."""
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Scalar):
        return a.kind == b.kind and type(a.value) is type(b.value) and _alike(a.value, b.value, tensors)
    if isinstance(a, Known):
        return bool(a.path == b.path) and (a.args is None) == (b.args is None)
    if isinstance(a, Inert):
        return bool(a.kind == b.kind and a.path == b.path)
    if isinstance(a, Tensor):
        return _alike_tensors(a, b, tensors)
    return isinstance(a, (dict, list, tuple)) or bool(a == b)


def _alike_tensors(a: Tensor, b: Tensor, tensors: Mode) -> bool:
    if (a.role, a.id, type(a.id)) != (b.role, b.id, type(b.id)) or (a.quant is None) != (b.quant is None):
        return False
    if a.quant and b.quant and (a.quant.scheme, a.quant.axis) != (b.quant.scheme, b.quant.axis):
        return False
    if tensors == "promise":
        return bool(a.promise == b.promise)
    kind = a.promise.dtype == b.promise.dtype and a.promise.shape == b.promise.shape
    return bool(kind) and (tensors == "type" or _equal_elements(a, b))


def _equal_elements(a: Tensor, b: Tensor) -> bool:
    numel = a.promise.numel
    window = max(1, min(a.promise.window, b.promise.window))
    spans = ((start, min(start + window, numel)) for start in range(0, numel, window))
    return all(bytes(a.promise.read(*span)) == bytes(b.promise.read(*span)) for span in spans)


def _quantisation(path: Path, a: Quantisation | None, b: Quantisation | None) -> list[tuple[Path, Any, Any]]:
    if a is None or b is None:
        return []
    return [((*path, ("@", f)), getattr(a, f), getattr(b, f)) for f in ("zero_point", "scale")]
