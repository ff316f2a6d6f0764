"""What one training step left behind, in memory: names, dtypes, shapes and promises of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Self

    from .files import Disk
    from .tensor import Tensor
    from .values import Tree

Counts = Literal["finished", "last", "next"]
GROUP = "group/"  # what stands before the name of a hyperparameter where those of slots are looked up


@dataclass(frozen=True, slots=True)
class Applied:
    """One migrator of the past: its chain, the version it led to, the digest of its operations, and the numbers it was given."""

    chain: str
    version: str
    digest: str
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a checkpoint says of itself: its version in each chain, and the steps that led there."""

    versions: dict[str, str] = field(default_factory=dict)
    history: tuple[Applied, ...] = ()


@dataclass(slots=True)
class Slot:
    """One optimizer value of one parameter."""

    value: Tree


@dataclass(slots=True)
class Param:
    """One entry of an optimizer, at its position in the optimizer's own order.

    ``name``: the model's name, None where it is not certain. ``by``: why it is: "file" (names or ids in it), "order", "like".
    ``key``: how the file calls it (index, address, id). ``slots`` None: the optimizer has no state for it yet.
    """

    name: str | None
    by: Literal["file", "order", "like"] | None
    key: Any
    group: int
    slots: dict[str, Slot] | None = None


@dataclass(slots=True)
class Optimizer:
    """An optimizer's state: ``kind`` where the file tells it, params in the optimizer's order, one dict of hyperparameters a group."""

    kind: str | None = None
    params: list[Param] = field(default_factory=list)
    groups: list[dict[str, Tree]] = field(default_factory=list)
    shared: dict[str, Tree] = field(
        default_factory=dict
    )  # state of no parameter (LBFGS), and what else the file's dict has


@dataclass(slots=True)
class Progress:
    """Where training stood. ``counts`` says what ``epoch`` means: the epoch finished, the last one (from 0), the next one."""

    epoch: int | None = None
    counts: Counts | None = None
    step: int | None = None
    best: Tree = None

    def counted(self, counts: Counts | None) -> int | None:
        """Give the epoch in another way of counting; as it stands where one of the two ways is not known."""
        if self.epoch is None or self.counts is None or counts is None:
            return self.epoch
        return self.epoch + (self.counts == "last") - (counts == "last")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a section lay: ``file`` within a folder ("" for a file alone), then the keys inside it."""

    file: str
    path: tuple[Any, ...] = ()


@dataclass(slots=True)
class Origin:
    """Where a checkpoint came from: format and layout by name, the place of each section, top-level order, facts per file.

    Sections in ``places``: "model", "twins.NAME", "optimizers.N", "schedulers.N", "values.NAME", "progress.FIELD".
    """

    format: str | None = None
    layout: str | None = None
    places: dict[str, Place] = field(default_factory=dict)
    order: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


How = Literal["kept", "renamed", "moved", "derived", "dropped", "left out"]
_WEIGHT: dict[How, int] = {"kept": 0, "renamed": 1, "moved": 2, "derived": 3, "dropped": 4, "left out": 5}


@dataclass(slots=True)
class Fate:
    """What became of one source item: "kept", "renamed", "derived", "moved", "dropped" or "left out", with the reason."""

    source: str
    what: How
    targets: tuple[str, ...] = ()
    reason: str | None = None


class Ledger:
    """Accounts for every tensor, slot and value between source and target.

    A *source path* names a leaf of the file as ``values.spell`` does; all are counted from the parts, before gather. An *item* is
    what a leaf became: "model/fc.weight", "twins/ema/fc.weight", "optimizers/0/3/exp_avg" (by position),
    "optimizers/0/groups/1/lr", "schedulers/0/gamma", "values/extra/arch", "progress/epoch", "modules/fc/version".
    Gather calls ``source``, ``became`` and ``left_out``; operations call ``rename``, ``drop`` and ``add``; writers ``left_out``.
    """

    def __init__(self) -> None:
        self.sources: dict[str, str | None] = {}  # source path -> item it became, None: not yet explained, or left out
        self.fates: dict[str, Fate] = {}  # item as gathered -> what became of it
        self.omitted: dict[str, str] = {}  # source path -> why it became no item
        self.added: dict[str, str] = {}  # item that came from no source -> why
        self.notes: list[str] = []  # said in the report: assumptions, suggestions, ties
        self.warnings: list[str] = []
        self.doubts: list[str] = []  # those of the warnings that end with ``settle``
        self._now: dict[str, tuple[str, ...]] = {}  # item as it stands -> the items as gathered that it came from

    def settle(self) -> None:
        """Take back what was doubted of names: the model that is wanted has been seen to fit."""
        self.warnings = [text for text in self.warnings if text not in self.doubts]
        self.doubts = []

    def source(self, path: str) -> None:
        """Count one leaf of the file."""
        self.sources.setdefault(path, None)

    def became(self, path: str, item: str) -> None:
        """Explain a leaf: it is this item now. Several leaves may be one item (equal copies); one leaf has one item."""
        self.sources[path] = item
        self.omitted.pop(path, None)
        self.fates.setdefault(item, Fate(item, "kept", (item,)))
        self._now.setdefault(item, (item,))

    def left_out(self, path: str, reason: str) -> None:
        """Say why a leaf of the file, or an item that stood until now, is in no section of the target."""
        if path in self._now:
            self._lose(path, "left out", reason)
        else:
            self.sources.setdefault(path, None)
            self.omitted[path] = reason

    def add(self, item: str, reason: str) -> None:
        """Note an item that comes from no source: who made it, and of what."""
        self.added[item] = reason

    def rename(self, item: str, targets: tuple[str, ...] | list[str], how: How = "renamed") -> None:
        """Let one item become others. Renames that happen at once (a swap) go through ``rename_all``."""
        self.rename_all({item: (tuple(targets), how)})

    def rename_all(self, moves: Mapping[str, tuple[tuple[str, ...], How]]) -> None:
        """Let items become others, all at once: item -> (targets, how). Two items with one target are joined there."""
        taken = {item: self._now.pop(item, ()) for item in moves}
        reasons = {item: self.added.pop(item) for item in moves if item in self.added}
        for item, (targets, how) in moves.items():
            for target in targets:
                self._now[target] = tuple(dict.fromkeys(self._now.get(target, ()) + taken[item]))
                if item in reasons:
                    self.added[target] = reasons[item]
            for origin in taken[item]:
                fate = self.fates[origin]
                others = tuple(t for t in fate.targets if t != item)
                fate.targets = tuple(dict.fromkeys((*others, *targets)))
                fate.what = max(fate.what, how, key=_WEIGHT.__getitem__)

    def derive(self, item: str, reason: str) -> None:
        """Note that an item keeps its name and is no longer the bytes of its source (a cast, a transpose)."""
        for origin in self._now.get(item, ()):
            fate = self.fates[origin]
            fate.what, fate.reason = max(fate.what, "derived", key=_WEIGHT.__getitem__), reason

    def drop(self, item: str, reason: str) -> None:
        """Take an item out on purpose."""
        self._lose(item, "dropped", reason)

    def drop_under(self, prefix: str, reason: str, how: Literal["dropped", "left out"] = "dropped") -> None:
        """Take out every item that is ``prefix`` or lies under it."""
        self.drop_all_under({prefix: reason}, how)

    def drop_all_under(self, reasons: Mapping[str, str], how: Literal["dropped", "left out"] = "dropped") -> None:
        """Take out every item that is one of many prefixes or lies under one, in one pass: prefix -> reason."""
        for prefix, items in self.under_all(reasons).items():
            for item in items:
                self._lose(item, how, reasons[prefix])

    def under(self, prefix: str) -> list[str]:
        """Give the items, as they stand, that are ``prefix`` or lie under it."""
        return self.under_all((prefix,)).get(prefix, [])

    def under_all(self, prefixes: Collection[str]) -> dict[str, list[str]]:
        """Give the items under many prefixes in one pass, each under the nearest: prefix -> items; none where nothing lies under it."""
        found: dict[str, list[str]] = {}
        for item in (*self._now, *self.added):
            prefix = item
            while prefix and prefix not in prefixes:
                prefix = prefix.rpartition("/")[0]
            if prefix:
                found.setdefault(prefix, []).append(item)
        return found

    def unexplained(self) -> list[str]:
        """Give the leaves of the file that are neither an item nor left out; anything here is an error of this code."""
        return [path for path, item in self.sources.items() if item is None and path not in self.omitted]

    def came_from(self) -> dict[str, tuple[str, ...]]:
        """Give for each item, as it stands, the items as gathered that it came from; () for an added one."""
        return {**self._now, **dict.fromkeys(self.added, ())}

    def rows(self) -> list[Fate]:
        """Give the fate of every leaf of the file, in its order; ``source`` is the path in the file."""
        rows = []
        for path, item in self.sources.items():
            if item is None:
                rows.append(Fate(path, "left out", (), self.omitted.get(path, "not explained")))
            else:
                fate = self.fates[item]
                rows.append(Fate(path, fate.what, fate.targets, fate.reason))
        return rows

    def _lose(self, item: str, what: Literal["dropped", "left out"], reason: str) -> None:
        self.added.pop(item, None)
        for origin in self._now.pop(item, ()):
            fate = self.fates[origin]
            fate.targets = tuple(t for t in fate.targets if t != item)
            if not fate.targets:
                fate.what, fate.reason = what, reason


@dataclass(slots=True)
class Checkpoint:
    """What one training step left behind. A context manager: it owns the files its promises point into."""

    family: str
    model: dict[str, Tensor] = field(default_factory=dict)
    twins: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Tree] = field(default_factory=list)
    values: dict[str, Tree] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    stamp: Stamp = field(default_factory=Stamp)
    origin: Origin = field(default_factory=Origin)
    companions: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    disk: Disk | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; tensors that were not drawn cannot be drawn any more."""
        if self.disk is not None:
            self.disk.close()


class SlotNames(Mapping[str, Any]):
    """The slots of one parameter by name; ``in`` finds the hyperparameters of its group too, as ``group/lr``."""

    __slots__ = ("_group", "_values")

    def __init__(self, values: Mapping[str, Tree], group: Mapping[str, Tree]) -> None:
        self._values, self._group = values, group

    def __getitem__(self, name: str) -> Tree:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        own = str(name)
        return own in self._values or (own.startswith(GROUP) and own.removeprefix(GROUP) in self._group)


def slot_names(optimizer: Optimizer, param: Param) -> SlotNames:
    """Give the slots of one parameter as marks and operations see them."""
    group = optimizer.groups[param.group] if param.group < len(optimizer.groups) else {}
    return SlotNames({name: slot.value for name, slot in (param.slots or {}).items()}, group)


def items_of(checkpoint: Checkpoint, *, whole: bool) -> dict[str, Any]:
    """Give what a checkpoint holds beside tensors as one tree, through its own containers; with ``whole`` the tensors too.

    An item's name is its path, joined by ``/``: ``values/config/heads``, ``schedulers/0/last_epoch``, ``progress/epoch``,
    ``optimizers/0/groups/1/lr``, ``model/fc.weight``, ``twins/ema/fc.weight``.
    """
    progress = checkpoint.progress
    rest = {
        "values": checkpoint.values,
        "schedulers": checkpoint.schedulers,
        "progress": {f.name: value for f in fields(Progress) if (value := getattr(progress, f.name)) is not None},
        "optimizers": [{"groups": each.groups, "shared": each.shared} for each in checkpoint.optimizers],
    }
    return {"model": checkpoint.model, "twins": checkpoint.twins, **rest} if whole else rest


def named(items: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str, Tree]]:
    """Give every node below a section's root, inner ones too, so that a pattern can take a whole dictionary: (path, name, node)."""
    waiting: list[tuple[tuple[Any, ...], Tree]] = [((), items)]
    while waiting:
        path, node = waiting.pop()
        if len(path) > 1:
            yield path, "/".join(map(str, path)), node
        if isinstance(node, dict):
            members = list(node.items())
        else:
            members = list(enumerate(node)) if isinstance(node, list | tuple) else []
        waiting += [((*path, key), member) for key, member in reversed(members)]
