"""All that sets two checkpoints apart, tensor by tensor and value by value, with the renames that contents prove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .contents import contents, quantisation, renames
from .elements import fingerprint
from .following import Names, followers, own
from .items import Difference, paired, pairs
from .sayings import sayings
from .spread import Spread, spread

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.tensor import Shape, Tensor

    from .contents import Contents
    from .items import Identify

Kind = Literal["renamed", "only in a", "only in b", "reshaped", "recast", "values"]
KINDS: tuple[Kind, ...] = ("renamed", "only in a", "only in b", "reshaped", "recast", "values")
MODEL = "model/"


@dataclass(frozen=True, slots=True)
class Look:
    """What one side says of a tensor; the shape in values."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that is not the same on both sides.

    ``item`` names it as the ledger does and as B calls it, ``was`` as A does where that is another name. ``spread``: how far the
    elements lie apart, where both have one shape. ``note``: what else is known, in words.
    """

    kind: Kind
    item: str
    a: Look | None
    b: Look | None
    was: str | None = None
    spread: Spread | None = None
    note: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give it in the shape of ``diff --json``; what is not there is left out."""
        shown: dict[str, Any] = {"item": self.item}
        if self.was is not None:
            shown["was"] = self.was
        for side, look in (("a", self.a), ("b", self.b)):
            if look is not None:
                shown[side] = {"dtype": look.dtype, "shape": list(look.shape)}
        if self.spread is not None:
            shown["spread"] = self.spread.as_dict()
        if self.note is not None:
            shown["note"] = self.note
        return shown


@dataclass(frozen=True, slots=True)
class Diff:
    """All that sets two checkpoints apart: ``same`` tensors are equal under one name, ``tensors`` are not, ``others`` are no tensors.

    ``a`` and ``b``: format, layout and family of the two, which may differ without a difference.
    """

    a: tuple[str | None, str | None, str]
    b: tuple[str | None, str | None, str]
    same: int
    tensors: tuple[Change, ...]
    others: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        """Tell whether nothing sets them apart."""
        return not self.tensors and not self.others

    def of(self, kind: Kind) -> list[Change]:
        """Give the tensors of one kind of change, in the order of the files; of values the widest apart first."""
        return [change for change in self.tensors if change.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        """Give it in the shape of ``diff --json``."""
        names = ("format", "layout", "family")
        return {
            "equal": self.equal,
            "a": dict(zip(names, self.a, strict=True)),
            "b": dict(zip(names, self.b, strict=True)),
            "same": self.same,
            "tensors": {kind.replace(" ", "_"): [change.as_dict() for change in self.of(kind)] for kind in KINDS},
            "others": [{"item": d.item, "what": d.what} for d in self.others],
        }


def diff(left: Checkpoint, right: Checkpoint, identify: Identify | None = None) -> Diff:
    """Give all that sets two checkpoints apart. What only one of two files can say (a role, a kind) does not.

    Tensors of the model are drawn once for their contents, those that differ under one name once more; all others once. A
    tensor of the left that has another name on the right is followed under it into twins, optimizers and modules. ``identify`` as ``compare`` takes it.
    """
    old, new = contents(left.model), contents(right.model)
    proven = renames(old, new)
    following = followers(proven, old, new)
    names = Names.of(proven | following, left, right)
    ours, theirs, found = paired(left, right, identify, names.label, names.module)
    changes = list(_model(left, right, old, new, names, following))
    same = len(left.model) - sum(change.a is not None for change in changes)
    for item, one, other in pairs(ours.tensors, theirs.tensors):
        if not item.startswith(MODEL):
            change = _change(item, one, other)
            same += change is None
            changes += [] if change is None else [change]
    changes += _lonely("only in a", ours.tensors, theirs.tensors)
    changes += _lonely("only in b", theirs.tensors, ours.tensors)
    found += sayings(left, right, ours, theirs, names.label, ordered=identify is None)
    found = [Difference(own(d.item), d.what) for d in found]
    return Diff(_of_file(left), _of_file(right), same, tuple(sorted(changes, key=_rank)), tuple(found))


def _of_file(checkpoint: Checkpoint) -> tuple[str | None, str | None, str]:
    return checkpoint.origin.format, checkpoint.origin.layout, checkpoint.family


def _rank(change: Change) -> tuple[int, float]:
    """Sort by kind; of values the widest apart first, and before all those with a NaN or without numbers."""
    gap = None if change.spread is None else change.spread.max_abs
    if change.kind != "values":
        return KINDS.index(change.kind), 0.0
    if gap is None or (change.spread and (change.spread.nan_a or change.spread.nan_b)):
        return KINDS.index(change.kind), -float("inf")
    return KINDS.index(change.kind), -gap


def _model(
    left: Checkpoint, right: Checkpoint, old: Contents, new: Contents, names: Names, following: Collection[str]
) -> Iterator[Change]:
    for name, tensor in left.model.items():
        label = names.label(name)
        other = right.model.get(label)
        if name in names.renamed:
            note = "as its module, for its own values prove nothing" if name in following else None
            yield Change("renamed", f"{MODEL}{label}", _look(tensor), _look(tensor), was=f"{MODEL}{name}", note=note)
        elif other is None:
            yield Change("only in a", f"{MODEL}{name}", _look(tensor), None, note=_elsewhere(name, left, old, new, "B"))
        elif old.of[name] != new.of[name]:
            change = _change(f"{MODEL}{name}", tensor, other)
            if change is not None:
                yield change
    come = set(new.of) - {names.label(name) for name in old.of}
    for name, tensor in right.model.items():
        if name in come:
            yield Change(
                "only in b", f"{MODEL}{name}", None, _look(tensor), note=_elsewhere(name, right, new, old, "A")
            )


def _elsewhere(name: str, checkpoint: Checkpoint, mine: Contents, its: Contents, side: str) -> str | None:
    """Say where else the values of a tensor without a partner are."""
    content, promise = mine.of[name], checkpoint.model[name].promise
    if content.elements.constant:
        return None
    for other in mine.names[content]:
        if other != name and checkpoint.model[other].promise == promise:
            return f"tied to {other}"
    held = its.names.get(content, ())
    return (
        None if not held else f"the same values as {held[0]} in {side}, which proves nothing: several tensors hold them"
    )


def _lonely(kind: Kind, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Iterator[Change]:
    for item, tensor in ours.items():
        if item not in theirs and not item.startswith(MODEL):
            look = _look(tensor)
            yield Change(kind, own(item), look if kind == "only in a" else None, look if kind == "only in b" else None)


def _look(tensor: Tensor) -> Look:
    return Look(tensor.dtype.name, tensor.dtype.spelled_shape(tensor.shape))


def _change(item: str, one: Tensor, other: Tensor) -> Change | None:
    """Compare two tensors that should be one; None where they are."""
    looks = _look(one), _look(other)
    if one.shape != other.shape:
        stays = one.dtype == other.dtype and one.nbytes == other.nbytes
        stays = stays and fingerprint(one.promise) == fingerprint(other.promise)
        return Change("reshaped", item, *looks, note="the same elements in the same order" if stays else None)
    apart = None if one.promise == other.promise and one.quant == other.quant else spread(one, other)
    if one.dtype != other.dtype:
        return Change("recast", item, *looks, spread=apart, note=None if apart else "the same numbers")
    if quantisation(one.quant) != quantisation(other.quant):
        return Change("values", item, *looks, spread=apart, note="other quantisation")
    return None if apart is None else Change("values", item, *looks, spread=apart)
