"""From one file to a checkpoint: by our record, by what its family says it is, by a layout's table, by what it looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate import registry
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Place
from ckptmigrate.errors import CheckpointError, CorruptError, SectionError, TensorError
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Inert, Ordered, reason, spell

from . import paths, record, sections
from .accounting import account, account_recorded, account_tensors
from .paths import AROUND
from .sections import Sections
from .state_dicts import EXTRA_STATE, FOLLOWS, METADATA, NESTED, SHAPE, UNVERSIONED, StateDict, any_tensors, state_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.format import Family, GatherOptions, Layout
    from ckptmigrate.values import Path, Tree

RECORDED = "recorded"  # fact of an origin: how many optimizers our record has named, or left nameless


def from_file(parts: Parts, layout: Layout | None, family: Family, options: GatherOptions) -> Checkpoint:
    """Give the checkpoint that a file alone is: nothing numbered, named or left out yet."""
    if parts.tensors is None:
        return from_tree(parts, layout, family, options)
    if wanted := options.sections.get("model"):
        said = wanted if isinstance(wanted, str) else spell(tuple(wanted))
        raise SectionError(f"a file of tensors has no keys, so nothing lies at {said}", present=[])
    section = family.section(parts)
    if section is None:
        raise CheckpointError(f"is neither a model nor an optimizer nor a scheduler of family {family.name}")
    checkpoint = from_section(section, parts, family, options)
    if said := parts.notes.get(record.RECORD, {}):
        apart = {"optimizers", "twins"}  # a model file of a folder, read alone, has neither
        own = {"model": checkpoint.values["model"]} if "model" in checkpoint.values else {}
        metadata = {"metadata": checkpoint.values["metadata"]} if "metadata" in checkpoint.values else {}
        held, _ = record.without_tensors({k: v for k, v in said.items() if k not in apart})
        record.add_from_tensors(held, {}, {}, checkpoint)
        if own:
            checkpoint.values["model"] = own["model"] | checkpoint.values.get("model", {})
        checkpoint.values |= metadata
        account_recorded(checkpoint, record.RECORD)
    if checkpoint.model:
        checkpoint.origin.layout = next(
            (layout.name for layout in registry.layouts() if () in layout.keys.get("model", ())), None
        )
    return checkpoint


def from_section(section: str, parts: Parts, family: Family, options: GatherOptions, file: str = "") -> Checkpoint:
    """Give the checkpoint that is one section and nothing else: a file that is a model, an optimizer, a scheduler, a value."""
    kind = section.partition(".")[0]
    checkpoint = Checkpoint(family.name)
    what = file or "the file"
    if kind in {"optimizers", "schedulers"}:
        value = family.unpack(kind, parts, options)
        if kind == "optimizers" and not isinstance(value, Optimizer):
            raise CheckpointError(f"{what} is no optimizer's state of family {family.name}")
        if value is None:
            raise CheckpointError(f"{what} is no scheduler's state of family {family.name}")
    elif parts.tensors is None:
        value = any_tensors(parts.tree) if kind in {"model", "twins"} else parts.tree
        if value is None:
            raise CheckpointError(f"{what} is no set of tensors; it has: {paths.keys(parts.tree)}")
    elif kind in {"model", "twins"}:
        if (told := family.section(parts)) in {"optimizers", "schedulers"}:
            raise CheckpointError(f"{what} holds {told} of family {family.name}, and lies where a model should")
        members = parts.tensors
        tensors = {n: t for n, t in members.items() if isinstance(t, Tensor)}
        others = {n: t for n, t in members.items() if not isinstance(t, Tensor)}
        fields = {path: {"fields": list(names)} for path, names in parts.facts.get("fields", {}).items()}
        value = StateDict(tensors, {n: (n,) for n in members}, others, fields)
    else:
        value = dict(parts.tensors)
    found = Sections()
    found.put(f"{kind}.0" if kind in {"optimizers", "schedulers"} else section, (), value)
    tree = parts.tree if parts.tensors is None else parts.tensors
    _take(found, tree, checkpoint)
    if parts.tensors is None:
        account(tree, found, checkpoint)
    else:
        account_tensors(parts.tensors, found, checkpoint)
        if kind == "model":
            keep_metadata(parts, checkpoint)
        _account_beside(parts, found, checkpoint)
    return checkpoint


def _account_beside(parts: Parts, found: Sections, checkpoint: Checkpoint) -> None:
    """Account for what stands in a file beside its tensors: a part of an optimizer or scheduler, a value beside a model."""
    if parts.tree is NOTHING or parts.tree is None:
        return
    if not (checkpoint.optimizers or checkpoint.schedulers):
        checkpoint.values["extra"] = parts.tree
        found = Sections()
    account(parts.tree, found, checkpoint)


def keep_metadata(parts: Parts, checkpoint: Checkpoint) -> None:
    """Carry the text map of a model's file among the values."""
    metadata = parts.facts.get("metadata")
    if metadata:
        checkpoint.values["metadata"] = dict(metadata)
        for key in metadata:
            checkpoint.ledger.became(f"metadata/{key}", f"values/metadata/{key}")


def from_tree(parts: Parts, layout: Layout | None, family: Family, options: GatherOptions) -> Checkpoint:
    """Give the checkpoint that a tree is: each section where it was found, and everything else among the values."""
    tree = parts.tree
    checkpoint = Checkpoint(family.name)
    said = parts.notes.get(record.RECORD, {})
    places = None if options.sections else record.places_of(said)
    alone = None if options.sections or places else family.section(parts)
    if places is not None:
        found = _as_recorded(tree, places, family, options)
    elif alone is not None:
        found = Sections()
        found.put(f"{alone}.0", (), family.unpack(alone, parts, options))
    else:
        found = sections.find(tree, _recognised(tree, layout, family, options), family, options)
    _take(found, tree, checkpoint)
    checkpoint.ledger.notes += found.notes
    if found.layout is not None:
        checkpoint.origin.layout = found.layout.name
        if checkpoint.progress.epoch is not None:
            counts = found.layout.epoch_counts
            checkpoint.progress.counts = counts(tree) if callable(counts) else counts
        for chain, key in found.layout.version_at.items():
            if isinstance(version := paths.at(tree, (key,)), str):
                checkpoint.origin.facts.setdefault("versions", {})[chain] = version
    account(tree, found, checkpoint)
    if said:
        told = record.add_from_tree(said, checkpoint)
        if told:
            checkpoint.origin.facts[RECORDED] = told
        account_recorded(checkpoint, record.RECORD)
    return checkpoint


def _recognised(tree: Tree, wanted: Layout | None, family: Family, options: GatherOptions) -> Layout | None:
    """Give the layout that claims a tree. Plugins are asked where no built-in one knows it by keys of its own."""
    if wanted is not None:
        if sections.recognise(tree, [wanted], family, options) is None:
            raise CheckpointError(f"layout {wanted.name} does not claim it; its keys are: {paths.keys(tree)}")
        return wanted
    own = sections.recognise(tree, registry.layouts(), family, options)
    if own is not None and own.recognised_by:
        return own
    plugged = [layout for layout in registry.plugin_layouts().loaded.values() if layout.recognised_by]
    return sections.recognise(tree, plugged, family, options) or own


def _as_recorded(tree: Tree, places: Mapping[str, Path], family: Family, options: GatherOptions) -> Sections:
    """Take each section where our record says that we put it."""
    found = Sections()
    for section, path in places.items():
        value = paths.at(tree, path)
        kind = section.partition(".")[0]
        if value is NOTHING:
            raise CorruptError(f"the record says that {section} lies at {spell(path)}, and nothing is there")
        if kind in {"model", "twins"}:
            flat = state_dict(value) or StateDict({}, {})
            found.put(section, path, flat)
        elif kind == "optimizers":
            found.put(section, path, family.unpack(kind, Parts(tree=value), options))
            if found.values[section] is None:
                raise CorruptError(f"the record says that {spell(path)} is an optimizer's state, and it is none")
        else:
            found.put(section, path, value)
    return found


def _take(found: Sections, tree: Tree, checkpoint: Checkpoint) -> None:
    """Move the sections into the checkpoint, and everything else into ``values["extra"]``."""
    _renumber(found)
    for section in sorted(found.values, key=lambda section: section != "model"):  # a twin is compared with the model
        value = found.values[section]
        kind, _, name = section.partition(".")
        if kind in {"model", "twins"}:
            _take_tensors(section, value, tree, found, checkpoint)
        elif kind == "optimizers":
            checkpoint.optimizers.append(value)
        elif kind == "schedulers":
            checkpoint.schedulers.append(value)
        elif kind == "progress":
            setattr(checkpoint.progress, name, value)
        else:
            checkpoint.values[name] = value
    checkpoint.origin.places = {section: Place("", path) for section, path in found.places.items()}
    checkpoint.origin.order = list(tree) if isinstance(tree, dict) else []
    around = {path[:n] for path in found.places.values() for n in range(len(path))}
    checkpoint.origin.facts[AROUND] = {path: paths.at(tree, path) for path in sorted(around, key=len)}
    rest = paths.without(tree, list(found.places.values()))
    if rest is not NOTHING and rest is not None:
        given = checkpoint.values.get("extra")
        checkpoint.values["extra"] = (
            rest if given is None else given | rest if isinstance(given, dict) and isinstance(rest, dict) else given
        )


def _renumber(found: Sections) -> None:
    """Let optimizers and schedulers stand in the order of their numbers, from 0, whatever numbers a caller gave."""
    for kind in ("optimizers", "schedulers"):
        told = [s for s in found.places if s.startswith(f"{kind}.")]
        told.sort(key=lambda s: (not s.rpartition(".")[2].isdecimal(), s.rpartition(".")[2].zfill(9)))
        taken = [(found.places.pop(s), found.values.pop(s)) for s in told]
        for index, (path, value) in enumerate(taken):
            found.places[f"{kind}.{index}"], found.values[f"{kind}.{index}"] = path, value


def _take_tensors(section: str, value: StateDict, tree: Tree, found: Sections, checkpoint: Checkpoint) -> None:
    """Take a model or a twin: its tensors, what stands among them, and what its form was."""
    _check_inert(value, found.places[section])
    facts = checkpoint.origin.facts
    if section == "model":
        checkpoint.model, checkpoint.modules = dict(value.tensors), value.modules
        if value.others:
            checkpoint.values["model"] = value.others
    else:
        twin = section.partition(".")[2]
        checkpoint.twins[twin] = dict(value.tensors)
        kept = Ordered(value.others)
        if not value.modules:
            facts.setdefault(UNVERSIONED, []).append(section)
        elif value.modules != checkpoint.modules:  # else it has those of the model
            kept.attributes[METADATA] = Ordered(value.modules)
        if kept or kept.attributes:
            checkpoint.values.setdefault("twins", {})[twin] = kept
    if value.others:
        names = list(value.paths)
        behind = {name: before for name, before in zip(names, [None, *names], strict=False) if name in value.others}
        facts.setdefault(FOLLOWS, {})[section] = behind
    if value.shape == "nested":
        nest = {"paths": dict(value.paths), "tree": paths.at(tree, found.places[section])}
        facts.setdefault(NESTED, {})[section] = nest
    if value.shape in {"lone", "list"}:
        facts.setdefault(SHAPE, {})[section] = value.shape


def _check_inert(state: StateDict, place: Path) -> None:
    """Refuse an object of a class that nobody here knows under the name of a module's parameter: it should be a tensor."""
    for name, node in state.others.items():
        parameter = "." in name and not name.endswith(EXTRA_STATE)
        if parameter and isinstance(node, Inert) and node.kind in {"object", "name"}:
            where = spell((*place, name))
            raise TensorError(
                f"{where}: {reason(node)}, where a tensor should be",
                tensor=where,
                hint="save it as a plain tensor in the program that has the class",
            )
