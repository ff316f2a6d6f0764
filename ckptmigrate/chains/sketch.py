"""A sketch: a checkpoint of the same promises whose containers are its own, to try steps on. Its ledger is empty: a trial explains nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptmigrate.checkpoint import Ledger, Optimizer, Param
from ckptmigrate.values import Ordered

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.values import Tree


def sketched(checkpoint: Checkpoint) -> Checkpoint:
    """Give a checkpoint that can be changed without changing this one; no promise is drawn or copied."""
    optimizers = [
        Optimizer(
            each.kind,
            [
                Param(
                    p.name,
                    p.by,
                    p.key,
                    p.group,
                    None if p.slots is None else {n: replace(s) for n, s in p.slots.items()},
                )
                for p in each.params
            ],
            _copied(each.groups),
            _copied(each.shared),
        )
        for each in checkpoint.optimizers
    ]
    return replace(
        checkpoint,
        model=dict(checkpoint.model),
        twins={name: dict(members) for name, members in checkpoint.twins.items()},
        modules=_copied(checkpoint.modules),
        optimizers=optimizers,
        schedulers=_copied(checkpoint.schedulers),
        values=_copied(checkpoint.values),
        progress=replace(checkpoint.progress),
        origin=replace(checkpoint.origin, facts=_copied(checkpoint.origin.facts)),
        ledger=Ledger(),
    )


def _copied(tree: Tree) -> Tree:
    """Copy the containers of a tree; what is in them is shared, and never changed in place."""
    if isinstance(tree, Ordered):
        made = Ordered((key, _copied(value)) for key, value in tree.items())
        made.attributes = dict(tree.attributes)
        return made
    if type(tree) is dict:
        return {key: _copied(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_copied(value) for value in tree)
    return tree
