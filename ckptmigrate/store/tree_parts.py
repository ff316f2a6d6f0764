"""From a checkpoint to one tree: under our standard keys, or with every section back at the key where it lay."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ckptmigrate import registry, values
from ckptmigrate.checkpoint import Origin
from ckptmigrate.format import Format, Parts
from ckptmigrate.values import NOTHING, Ordered

from . import record
from .paths import AROUND, at
from .selection import is_bare_model, section_names
from .stamps import KEYED, keyed
from .state_dicts import FOLLOWS, LONE, METADATA, NESTED, SHAPE, UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Family, Layout, WriteOptions
    from ckptmigrate.tensor import Tensor
    from ckptmigrate.values import Path, Tree

_VALUE_KEYS = {"rng": "rng_state"}  # values whose key in our standard tree is not their own name


def tree_parts(checkpoint: Checkpoint, target: Format, layout: Layout | None, options: WriteOptions) -> Parts:
    """Give the parts of a file that holds a tree; ``layout`` None puts every section back where it lay."""
    keep = layout is None
    form = checkpoint.origin.facts.get("file", {}).get(KEYED)
    family = registry.family(checkpoint.family)
    if keep:
        places, tree = _kept_places(checkpoint), checkpoint.values.get("extra", NOTHING)
        tree = _copied(tree)
        for path, node in checkpoint.origin.facts.get(AROUND, {}).items():
            below = any(place[: len(path)] == path and place != path for place in places.values())
            stands = at(tree, path)  # None: an item of a list that was taken whole
            if below and (stands is NOTHING or stands is None):
                tree = values.put(tree, path, {} if isinstance(node, dict) else [])
    else:
        assert layout is not None
        places, tree = _standard_places(checkpoint, layout), NOTHING
        checkpoint = dataclasses.replace(checkpoint, origin=Origin())
    for section, path in places.items():
        value = _section_value(checkpoint, section, family)
        tree = values.put(tree, path, value) if path else _at_root(value, tree)
    if keep:
        for path, node in reversed(checkpoint.origin.facts.get(AROUND, {}).items()):
            if (stands := at(tree, path)) is not NOTHING:
                tree = values.put(tree, path, _like(stands, node))
    notes = record.stamp_notes(checkpoint.stamp)
    beside = {} if "values.metadata" in places else {n: v for n, v in checkpoint.values.items() if n == "metadata"}
    said = record.of_tree(checkpoint, {} if keep or places == {"model": ()} else places, beside)
    if said.keys() != {"family"}:
        notes["record"] = said
    if options.bare:
        notes = {}
        for name in beside:
            checkpoint.ledger.drop_under(f"values/{name}", "--bare writes nothing of ours beside the tree", "left out")
    else:
        tree = keyed(tree, checkpoint.stamp, form)
    return Parts(family=target.family, tree={} if tree is NOTHING else tree, notes=notes)


def _at_root(value: Tree, tree: Tree) -> Tree:
    """Join what lies beside a model at the root, which only a nested one leaves room for."""
    if isinstance(value, dict) and isinstance(tree, dict):
        value.update((key, item) for key, item in tree.items() if key not in value)
    return value


def _standard_places(checkpoint: Checkpoint, layout: Layout) -> dict[str, Path]:
    """Give each section its first key in the layout's table; several optimizers or schedulers are a list under it."""
    if is_bare_model(checkpoint):
        return {"model": ()}
    first = {section: paths[0] for section, paths in layout.keys.items()}
    places: dict[str, Path] = {}
    taken: set[Any] = set()
    for section in _sections(checkpoint):
        kind, _, name = section.partition(".")
        path: Path
        if kind in {"optimizers", "schedulers"}:
            count = len(checkpoint.optimizers if kind == "optimizers" else checkpoint.schedulers)
            path = first.get(kind, (kind,)) if count == 1 else (*first.get(kind, (kind,)), int(name))
        elif section in first:
            path = first[section]
        elif kind == "twins":
            path = (f"{name}_state_dict",)
        else:
            path = (_VALUE_KEYS.get(name, name),)
        while path[0] in taken and kind not in {"optimizers", "schedulers"}:
            path = (f"{kind}_{path[0]}", *path[1:])
        taken.add(path[0])
        places[section] = path
    return places


def _sections(checkpoint: Checkpoint) -> list[str]:
    progress = checkpoint.progress
    beside = {"modules", "progress", "values.model", "values.twins"}  # told with the section that they belong to
    named = [s for s in section_names(checkpoint) if s not in beside]
    fields = [f"progress.{field}" for field in ("epoch", "step", "best") if getattr(progress, field) is not None]
    order = ("model", "twins", "optimizers", "schedulers", "progress", "values")
    return sorted([*named, *fields], key=lambda section: order.index(section.partition(".")[0]))


def _kept_places(checkpoint: Checkpoint) -> dict[str, Path]:
    """Give each section the place where it lay; one that has none (moved, added) gets our standard key if it is free."""
    own = {section: place.path for section, place in checkpoint.origin.places.items()}
    places: dict[str, Path] = {}
    for section in _sections(checkpoint):
        if section == "values.extra":
            continue
        if section in own:
            places[section] = own[section]
        else:
            kind, _, name = section.partition(".")
            places[section] = (kind if not name else name if kind in {"values", "progress"} else f"{kind}_{name}",)
    return places


def _section_value(checkpoint: Checkpoint, section: str, family: Family) -> Tree:
    kind, _, name = section.partition(".")
    if kind == "model":
        return _state_dict(
            checkpoint, section, checkpoint.model, checkpoint.values.get("model") or {}, checkpoint.modules
        )
    if kind == "twins":
        others = checkpoint.values.get("twins", {}).get(name, {})
        modules = (
            others.attributes.get(METADATA, checkpoint.modules) if isinstance(others, Ordered) else checkpoint.modules
        )
        if section in checkpoint.origin.facts.get(UNVERSIONED, ()):
            modules = {}
        return _state_dict(checkpoint, section, checkpoint.twins[name], others, modules)
    if kind == "optimizers":
        return family.pack(kind, checkpoint.optimizers[int(name)], checkpoint).tree
    if kind == "schedulers":
        return family.pack(kind, checkpoint.schedulers[int(name)], checkpoint).tree
    if kind == "progress":
        return getattr(checkpoint.progress, name)
    return checkpoint.values[name]


def _state_dict(
    checkpoint: Checkpoint,
    section: str,
    tensors: Mapping[str, Tensor],
    others: Mapping[str, Tree],
    modules: Mapping[str, Any],
) -> Tree:
    """Give a model or a twin as its file had it: a state dict with its module versions, one tensor, a list, a nest."""
    facts = checkpoint.origin.facts
    shape = facts.get(SHAPE, {}).get(section)
    if shape == "lone" and list(tensors) == [LONE] and not others:
        return tensors[LONE]
    if shape == "list" and all(name == str(i) for i, name in enumerate(tensors)) and not others:
        return list(tensors.values())
    if section in facts.get(NESTED, {}) and not others:
        return _nest(tensors, facts[NESTED][section])
    stood = facts.get(FOLLOWS, {}).get(section, {})
    behind: dict[str | None, list[str]] = {}
    for other in others:
        behind.setdefault(stood.get(other), []).append(other)
    result = Ordered()
    for first in (None, *tensors):
        pending: list[str | None] = [first]
        while pending:
            name = pending.pop()
            if name is not None:
                result[name] = tensors[name] if name in tensors else others[name]
            pending.extend(reversed(behind.pop(name, [])))
    result.update(
        (other, others[other]) for rest in behind.values() for other in rest
    )  # what they stood behind is gone
    if modules:
        result.attributes[METADATA] = Ordered(modules)
    return result


def _nest(model: Mapping[str, Tensor], nested: Mapping[str, Any]) -> Tree:
    """Give a nest as it was, with the tensors of now; names that it had not are new paths, split at "/"."""
    paths, tree = nested["paths"], nested["tree"]
    names = {path: name for name, path in paths.items()}
    if names.keys() == {paths[name] for name in model if name in paths}:

        def opened(path: Path, node: Tree) -> Any:
            if path in names:
                return None, model[names[path]]
            if not isinstance(node, dict | list | tuple):
                return None, node
            steps = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
            return steps, lambda built: _rebuilt(node, [step for step, _ in steps], built)

        tree, fresh = values.fold(tree, opened, lambda _path: None), False
    else:
        tree, fresh = NOTHING, True
    for name, tensor in model.items():
        if fresh or name not in paths:
            tree = values.put(tree, paths.get(name, tuple(name.split("/"))), tensor)
    return tree


def _rebuilt(node: Tree, steps: list[Any], built: list[Any]) -> Tree:
    if not isinstance(node, dict):
        return built if isinstance(node, list) else tuple(built)
    made: dict[Any, Any] = (
        Ordered(zip(steps, built, strict=True)) if isinstance(node, Ordered) else dict(zip(steps, built, strict=True))
    )
    if isinstance(made, Ordered) and isinstance(node, Ordered):
        made.attributes = node.attributes
    return made


def _copied(tree: Tree) -> Tree:
    """Give a tree whose containers can be put into without changing the checkpoint; tuples and leaves are shared."""
    if isinstance(tree, Ordered):
        made = Ordered({key: _copied(value) for key, value in tree.items()})
        made.attributes = dict(tree.attributes)
        return made
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(item) for item in tree] if isinstance(tree, list) else tree


def _like(tree: Tree, node: Tree) -> Tree:
    """Give a container the class and the order of keys of the one that stood there."""
    if isinstance(tree, list) and isinstance(node, tuple):
        return tuple(tree)
    if not isinstance(tree, dict) or not isinstance(node, dict):
        return tree
    made: dict[Any, Any] = Ordered() if isinstance(node, Ordered) else {}
    if isinstance(made, Ordered) and isinstance(node, Ordered):
        made.attributes = node.attributes
    made.update((key, tree[key]) for key in node if key in tree)
    made.update((key, value) for key, value in tree.items() if key not in made)
    return made
