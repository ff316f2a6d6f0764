"""The object pickle of a torch file: read by the machine, settled into a tree, its strangers accounted for.

    pickle ──machine, table of calls──► value ──settle──► tree of tensors, state dicts, plain values, inert nodes

Calls that stay in the tree are refused by the walk that knows key paths. Those that no such walk would meet (taken off the
pickle's stack again, or among what modules hold beside their tensors) are refused here, for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, ForeignCallError
from ckptmigrate.values import Inert
from ckptmigrate.wire import pickles
from ckptmigrate.wire.meanings import STANDARD

from ._foreign_classes import FOREIGN_CLASSES
from ._torch_modules import nodes
from ._torch_settling import settle
from ._torch_storages import Claim, Storage, claim, fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts
    from ckptmigrate.values import Tree
    from ckptmigrate.wire.machine import Reader

    from ._torch import Calls

_OTHERS = {**STANDARD, **FOREIGN_CLASSES}


@dataclass(slots=True)
class Storages:
    """The storages of one file by key, each asked for once: ``find`` gives the storage of a claim, or its fault.

    A later claim of another class is what torch ignores: the first one's dtype holds, and a warning says so.
    """

    find: Callable[[Claim], Storage | Inert]
    claims: dict[str, Claim] = field(default_factory=dict)
    found: dict[str, Storage | Inert] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __call__(self, pid: Any) -> Any:
        """Give what a persistent id stands for: a storage, a view of one, or the class that a module was saved with."""
        if type(pid) is tuple and len(pid) == 4 and pid[0] == "module":
            return pid[1]  # the file and the source text beside it are the author's, and private
        if type(pid) is str:
            raise CorruptError(
                f"a storage is named by the text {pid[:80]!r}: pickle protocol 0 keeps nothing else of it",
                hint="save the object again with pickle protocol 2, torch's own default",
            )
        wanted = claim(pid)
        if isinstance(wanted, Inert):
            return wanted
        first = self.claims.setdefault(wanted.key, wanted)
        if wanted.key not in self.found:
            self.found[wanted.key] = self.find(first)
        if (first.dtype, first.numel) != (wanted.dtype, wanted.numel):
            self._warn(first, wanted)
        root = self.found[wanted.key]
        return root if wanted.view is None or isinstance(root, Inert) else self._view(root, wanted)

    def _view(self, root: Storage, wanted: Claim) -> Storage | Inert:
        assert wanted.view is not None
        key, offset, numel = wanted.view
        if offset + numel > root.numel:
            return fault(
                wanted.path, f"storage {key!r} is elements {offset} to {offset + numel} of storage {root.key!r}, "
                f"which has {root.numel}",
            )  # fmt: skip
        item = root.dtype.itemsize
        return Storage(key, root.range.part(offset * item, numel * item), root.dtype, numel, root.big_endian)

    def _warn(self, first: Claim, other: Claim) -> None:
        text = (
            f"storage {first.key!r} is claimed as {first.numel} of {first.dtype} and as {other.numel} of {other.dtype}: "
            "read as the first, as torch does"
        )
        if text not in self.warnings:
            self.warnings.append(text)


def load(source: Reader, offset: int, storages: Storages, calls: Calls) -> pickles.Loaded:
    """Read the object pickle at ``offset``, with all that the tables know."""
    return pickles.load(
        source,
        offset,
        limits=calls.options.limits,
        meanings=calls.meanings(_OTHERS),
        persistent=storages,
        encoding="utf-8",
    )


def finish(parts: Parts, loaded: pickles.Loaded, calls: Calls, source: Source) -> None:
    """Put the tree, the modules' classes and the warnings into ``parts``; ForeignCallError for calls that nobody would meet."""
    settled = settle(loaded.value, calls.attributes, calls.options.limits)
    parts.tree = settled.tree
    parts.warnings += settled.warnings
    if settled.modules:
        parts.facts["modules"] = settled.modules
    unseen = [*settled.dropped, *_unseen(settled.tree, loaded, {id(call) for _, call in settled.dropped})]
    if not unseen:
        return
    listed = "; ".join(f"{where} calls {call.path}" for where, call in unseen[:10])
    if not calls.options.inert_calls:
        raise ForeignCallError(
            f"{listed}; nobody here knows that call, and nothing is called",
            path=source.name, calls=[(where, call.path) for where, call in unseen],
            hint="--inert-calls leaves such calls out by name",
        )  # fmt: skip
    parts.warnings.append(f"left out: {listed}")


def _unseen(tree: Tree, loaded: pickles.Loaded, dropped: set[int]) -> list[tuple[str, Inert]]:
    calls = [(at, call) for at, call in loaded.calls if id(call) not in dropped]
    if not calls:
        return []
    seen = {id(node) for _, node in nodes(tree)}
    return [(f"the pickle at byte {at}", call) for at, call in calls if id(call) not in seen]
