"""What holds for one name holds for its siblings: the bias beside the weight, and the same name in another layer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ckptmigrate.errors import CkptError

from .derivation import Change, Derivation, change, operation
from .spelling import NUMBER, template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptmigrate.tensor import Tensor

EXAMPLES = 4  # derivations of one kind of name that are tried for another
KINDS = ("weight", "bias")


class Siblings:
    """Derivations by the module of their first source, numbers left out."""

    def __init__(self, derivations: Iterable[Derivation]) -> None:
        self.known: dict[tuple[str, ...], list[Derivation]] = defaultdict(list)
        self.exact: dict[str, list[Derivation]] = defaultdict(list)
        for derivation in derivations:
            module = _module(derivation.sources[0])
            self.exact[module].append(derivation)
            held = self.known[template(module)]
            if len(held) < EXAMPLES:
                held.append(derivation)

    def derive(self, name: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Derivation | None:
        """Give the derivation of a name as one of its siblings has it, where all it needs is there and fits; first its own module's."""
        module = _module(name)
        for example in (*self.exact.get(module, ()), *self.known.get(template(module), ())):
            sources = [_renamed(each, example.sources[0], name, source=True) for each in example.sources]
            targets = [_renamed(each, example.sources[0], name, source=False) for each in example.targets]
            if None in sources or None in targets or sources[0] != name:
                continue
            given, made = tuple(map(str, sources)), tuple(map(str, targets))
            if all(n in old for n in given) and all(n in new for n in made):
                found = _fitting(example, given, made, old, new)
                if found is not None:
                    return found
        return None


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _renamed(each: str, example: str, name: str, *, source: bool) -> str | None:
    """Give what a name beside the example is beside ``name``: its leaf and its numbers are exchanged as the example's were."""
    module, _, leaf = each.rpartition(".")
    own, _, first = example.rpartition(".")
    mine, _, last = name.rpartition(".")
    if last != first:
        if leaf == first:
            leaf = last
        else:
            swapped = [(a, b) for a in KINDS for b in KINDS if a != b and a in leaf and first.replace(a, b) == last]
            if not swapped:
                return None
            leaf = leaf.replace(*swapped[0])
    before, after = NUMBER.split(own)[1::2], NUMBER.split(mine)[1::2]
    pieces = NUMBER.split(module)
    for index, number in enumerate(pieces[1::2]):
        same = [i for i, value in enumerate(before) if value == number]
        if index in same:
            pieces[2 * index + 1] = after[index]
        elif same and not source:
            pieces[2 * index + 1] = after[same[0]]
    return ".".join(part for part in ("".join(pieces), leaf) if part)


def _fitting(
    example: Derivation,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
) -> Derivation | None:
    """Give the example's changes for other tensors, if shapes and dtypes come out; of vectors only what their one axis can bear."""
    tensors, wanted = [old[n] for n in sources], [new[n] for n in targets]
    flat = all(len(tensor.shape) == 1 for tensor in (*tensors, *wanted))
    befores = []
    for tensor, changes in zip(tensors, example.before, strict=True):
        made = [c for each in changes if (c := _changed(each, flat=flat)) is not None and c.operation != "Cast"]
        if tensor.dtype != wanted[0].dtype:
            made.insert(0, change("Cast", dtype=wanted[0].dtype.name, old=tensor.dtype.name))
        befores.append(tuple(made))
    joint = None if example.joint is None else _jointly(example.joint, tensors, wanted, flat=flat)
    afters = tuple(c for each in example.after if (c := _changed(each, flat=flat)) is not None)
    derivation = Derivation(
        sources, targets, tuple(befores), joint, afters, "name" if example.by == "name" else "pattern"
    )
    return derivation if _comes_out(derivation, tensors, wanted) else None


def _changed(given: Change, *, flat: bool) -> Change | None:
    """Give a change of a matrix as it is for a vector beside it: rows may be moved, nothing can be turned."""
    if not flat:
        return given
    if given.operation == "Reorder" and given["axis"] == 0:
        return given
    return given if given.operation == "Cast" else None


def _jointly(joint: Change, tensors: Sequence[Tensor], wanted: Sequence[Tensor], *, flat: bool) -> Change:
    arguments = dict(joint.arguments)
    axis = 0 if flat else arguments["axis"]
    parts = {"Split": wanted, "Concat": tensors}.get(joint.operation)
    if parts is None:
        return change(joint.operation, axis=axis)
    sizes = [part.shape[axis] if axis < len(part.shape) else 0 for part in parts]
    return change(joint.operation, axis=axis, sizes=sizes)


def _comes_out(derivation: Derivation, tensors: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Say whether the changes give the shapes and dtypes that are wanted; nothing is drawn."""
    try:
        made = list(tensors)
        for index, changes in enumerate(derivation.before):
            for each in changes:
                (made[index],) = operation(each).tensors((made[index],))
        if derivation.joint is not None:
            made = list(operation(derivation.joint, len(made), len(wanted)).tensors(tuple(made)))
        for each in derivation.after:
            (made[0],) = operation(each).tensors((made[0],))
    except CkptError:
        return False
    return [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in wanted]
