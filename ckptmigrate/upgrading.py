"""Checkpoints that are in memory already: a library's own objects upgraded inside its own ``load_checkpoint()``.

    object ── tensors as looks at their own memory ──► tree ── gather, plan, apply, scatter ──► tree ── looks as tensors ──► object

What comes out is of the kind that went in: tensors of torch or arrays of numpy, dictionaries, lists. Names, views and slices share
their memory with what went in; what must be computed is new. What went in is not changed.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import chains, engine, registry, store, values
from . import like as models
from .errors import CheckpointError, PlanError, TensorError, UsageError
from .files import Disk
from .format import Format, GatherOptions, Parts, ReadOptions, WriteOptions
from .limits import LIMITS
from .notes import MARK
from .store import stamps
from .store.paths import at
from .tensor import Joined, Made, Tensor, array
from .tensor.rules import Array
from .values import Known, Ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .format import Family
    from .operations import Operation
    from .tensor import Promise
    from .values import Tree

DEEP = (
    100  # containers within one another: real checkpoints stay under 30, and each takes three frames of Python's stack
)
MEMORY = Format("memory", sniff=lambda _: None, read=lambda _source, _options: Parts(), speaks="tree")
"""What an object is of: a tree of no family's own."""


def upgrade(
    given: Any,
    chain: str | None = None,
    *,
    version: str | None = None,
    said: str | None = None,
    stamp: Mapping[str, str] | None = None,
    migrations: Iterable[str | Path] = (),
    operations: Sequence[Operation] = (),
    numbers: Mapping[str, float] | None = None,
    like: Any = None,
    gather: GatherOptions | None = None,
) -> Any:
    """Give what ``torch.load`` or ``load_file`` gave, upgraded: the same kind of object, and the one that was given as it was.

        state = ckptmigrate.upgrade(torch.load(path, weights_only=True), chain="acme.vit")

    ``chain`` is applied up or down to ``version``, by default up to its newest step; automatic chains, and those of the stamp, apply
    too. The stamp is what ``stamp_for`` put into the dictionary, or ``stamp``, the text map of a file of tensors;
    ``said``: where an unstamped one stands in ``chain``. ``operations`` are taken after the steps; ``like`` is the model that the result
    must then fit: a file, a module, a mapping of names. PlanError has every problem.

    The result is stamped under our key, unless it is a state dict itself, of which ``load_state_dict`` would ask what the key is.
    """
    if chain is None and (version is not None or said is not None):
        raise UsageError("version and said are of a chain, and none is named")
    if not isinstance(given, dict | list | tuple):
        raise UsageError(f"a {type(given).__name__}, expected the dictionary that a checkpoint's loader gave")
    with Disk() as disk:
        memory = _Memory(disk)
        tree = memory.take(given)
        wanted = None if like is None else models.load(like, ReadOptions())
        options = replace(gather or GatherOptions(), like=wanted)
        checkpoint = _gathered(tree, stamp, options)
        family = registry.family(checkpoint.family)
        before = checkpoint.stamp
        plan = chains.plan(
            checkpoint,
            chains.Catalog.find(migrations),
            named={} if chain is None else {chain: version},
            said={} if chain is None or said is None else {chain: said},
            parameters=numbers or {},
            family=family,
        )
        problems = _applied(checkpoint, plan, family, operations)
        if wanted is not None:
            problems += models.fit(checkpoint, registry.family(checkpoint.family), options, ties="keep", said=None)
        if problems:
            raise PlanError(problems)
        untouched = not plan.steps and not operations and wanted is None and checkpoint.stamp == before
        if untouched and not (_alone(checkpoint) and isinstance(tree, dict) and MARK in tree):
            return given
        return memory.give(_back(checkpoint, tree))


def gathered(given: Any, disk: Disk) -> Checkpoint:
    """Give the checkpoint that an object in memory is, its stamp where it has one; errors as ``upgrade``."""
    return _gathered(_Memory(disk).take(given), None, GatherOptions())


def _gathered(tree: Tree, stamp: Mapping[str, str] | None, options: GatherOptions) -> Checkpoint:
    parts = stamps.lifted(Parts(registry.neutral_family().name, tree=tree), LIMITS)
    if stamp is not None and MARK in stamp:
        parts = stamps.joined(parts, stamp[MARK], "the stamp that was given", LIMITS)
    checkpoint = store.gather({"": parts}, options, container=MEMORY.name)
    if not (checkpoint.model or checkpoint.optimizers or checkpoint.schedulers):
        raise CheckpointError("holds no tensors")
    return checkpoint


def _applied(checkpoint: Checkpoint, plan: chains.Plan, family: Family, operations: Sequence[Operation]) -> list[str]:
    problems = list(plan.problems) or plan.apply(checkpoint, family)
    if operations and not problems:
        last = registry.family(checkpoint.family)
        problems += engine.apply_operations(checkpoint, operations, last, origin="the call")
    return problems


def _alone(checkpoint: Checkpoint) -> bool:
    """Say whether the object is the model's state dict itself, whose keys are asked for one by one when it is loaded."""
    place = checkpoint.origin.places.get("model")
    return place is not None and not place.path


def _back(checkpoint: Checkpoint, tree: Tree) -> Tree:
    """Give the tree with every section where it lay, and the stamp under our key where a loader has room for it."""
    facts = checkpoint.origin.facts.setdefault("file", {})
    facts[stamps.KEYED] = None if _alone(checkpoint) else facts.get(stamps.KEYED) or (True, 0)
    made = store.scatter(checkpoint, MEMORY, None, WriteOptions(), MEMORY.name)[MEMORY.name][1].tree
    for section, place in checkpoint.origin.places.items():
        stood = at(tree, place.path)
        if section.partition(".")[0] in {"model", "twins"} and type(stood) is dict:
            now = at(made, place.path)  # a state dict comes out ordered; one that was a plain dictionary is one again
            made = values.put(made, place.path, dict(now)) if place.path else dict(now)
    return made


class _Memory:
    """An object as a tree, and back: what is neither a container nor a tensor goes through as it is."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._holder: Any = None
        self._kept: dict[Known, Any] = {}
        self._arrays: dict[Promise, Any] = {}
        self._bases: set[int] = set()
        self._open: set[int] = set()

    def take(self, node: Any) -> Tree:
        """Give the tree of an object; dictionaries of other classes are entered where they hold tensors.

        CheckpointError where it is nested deeper than a checkpoint is, or holds itself.
        """
        if node is None or type(node) in {bool, int, float, str, bytes}:
            return node
        if not isinstance(node, dict | list | tuple):
            return self._tensor(node) or self._keep(node)
        if id(node) in self._open or len(self._open) == DEEP:
            raise CheckpointError(f"a {type(node).__name__} that holds itself, or {DEEP} within one another")
        self._open.add(id(node))
        try:
            return self._container(node)
        finally:
            self._open.discard(id(node))

    def _container(self, node: Any) -> Tree:
        if isinstance(node, dict):
            members = [(key, self.take(value)) for key, value in node.items()]
            if type(node) not in {dict, OrderedDict} and not any(_holds(value) for _, value in members):
                return self._keep(node)
            if not isinstance(node, OrderedDict):
                return dict(members)
            made = Ordered(members)
            made.attributes = {name: self.take(value) for name, value in vars(node).items()}
            return made
        items = [self.take(value) for value in node]
        if type(node) not in {list, tuple} and not any(map(_holds, items)):
            return self._keep(node)
        return items if isinstance(node, list) else tuple(items)

    def _tensor(self, node: Any) -> Tensor | None:
        """Give what a tensor or an array is; None for what is neither, or no plain numbers."""
        if hasattr(node, "untyped_storage"):
            if self._holder is None:
                # By name, when such an object is there: that room is the only one that imports it, and stands after this one.
                room = importlib.import_module("ckptmigrate.torch")  # house: the one way to it
                self._holder = room.Holder(self._disk)
            taken: Tensor | None = self._holder.take(node)
            return taken
        if hasattr(node, "__array_interface__") and hasattr(node, "setfield"):
            import numpy as np  # noqa: PLC0415 - somebody has it, or there were no array

            if not isinstance(node, np.ndarray):
                return None
            try:
                made = Tensor(array(node))
            except TensorError:  # objects, texts, records: no numbers
                return None
            self._arrays.setdefault(made.promise, node)
            self._bases.add(_base(node))
            return made
        return None

    def _keep(self, node: Any) -> Known:
        made = Known(f"{type(node).__module__}.{type(node).__qualname__}")
        self._kept[made] = node
        return made

    def give(self, tree: Tree) -> Any:
        """Give the object of a tree."""
        if isinstance(tree, Tensor):
            return self._given(tree)
        if isinstance(tree, Known):
            return self._kept.get(tree, tree)
        if isinstance(tree, dict):
            members = ((key, self.give(value)) for key, value in tree.items())
            if not isinstance(tree, Ordered):
                return dict(members)
            made = OrderedDict(members)
            vars(made).update((name, self.give(value)) for name, value in tree.attributes.items())
            return made
        if isinstance(tree, list | tuple):
            items = (self.give(value) for value in tree)
            return list(items) if isinstance(tree, list) else tuple(items)
        return tree

    def _given(self, tensor: Tensor) -> Any:
        promise = tensor.promise
        if promise in self._arrays:
            return self._arrays[promise]
        if self._holder is not None and not self._is_of_arrays(promise):
            return self._holder.give(tensor)
        if isinstance(promise, Made) and isinstance(promise.rule, Array):
            return promise.rule.values
        return tensor.numpy()

    def _is_of_arrays(self, promise: Promise) -> bool:
        """Say whether what is given back is made of arrays that were taken: only asked where tensors were taken too."""
        if isinstance(promise, Made) and isinstance(promise.rule, Array):
            return _base(promise.rule.values) in self._bases
        below = promise.parts if isinstance(promise, Joined) else promise.inputs if isinstance(promise, Made) else ()
        return any(map(self._is_of_arrays, below))


def _base(numbers: Any) -> int:
    """Give whose memory an array looks at."""
    while getattr(numbers, "base", None) is not None and hasattr(numbers.base, "base"):
        numbers = numbers.base
    return id(numbers)


def _holds(tree: Tree) -> bool:
    if isinstance(tree, dict):
        return any(map(_holds, tree.values()))
    return isinstance(tree, Tensor) or (isinstance(tree, list | tuple) and any(map(_holds, tree)))
