"""From parts to a checkpoint: which section lies where, what belongs to what, and an account of every leaf.

parts ── count every leaf ── find sections (record | layout | looks) ── unpack by family ── name optimizer entries ── account
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import naming, registry
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Origin, Place, Progress
from ckptmigrate.errors import CheckpointError, CorruptError, SectionError
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, spell

from . import record, sections
from .accounting import account, account_encoded
from .sections import Sections, StateDict
from .selection import select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.checkpoint import How
    from ckptmigrate.format import Family, GatherOptions, Layout
    from ckptmigrate.values import Path, Tree

NESTED, AROUND, FOLLOWS = "nested", "around", "follows"
"""Facts of an origin: the tree and paths of a nested model; the containers above the sections, as they were; behind which
name of a state dict each value that is no tensor stood."""


def gather(
    parts: Mapping[str, Parts],
    options: GatherOptions,
    *,
    container: str,
    layout: Layout | None = None,
) -> Checkpoint:
    """Give the checkpoint that one file ({"": parts}) or the files of a folder's layout make; ``container`` is the format.

    Raises CheckpointError and its kin where the parts do not make exactly one checkpoint.
    """
    family = next((p.family for p in parts.values() if p.family), None) or registry.neutral_family().name
    checkpoint = Checkpoint(family, origin=Origin(format=container))
    stamps = {file: record.stamp_of(p.notes) for file, p in parts.items() if "stamp" in p.notes}
    if stamps:
        first, stamp = next(iter(stamps.items()))
        other = next((file for file, s in stamps.items() if s != stamp), None)
        if other is not None:
            raise CheckpointError(f"{first} and {other} bear stamps that disagree", candidates=[first, other])
        checkpoint.stamp = stamp
    for file, p in parts.items():
        checkpoint.origin.facts[file or "file"] = dict(p.facts)
        checkpoint.ledger.warnings += p.warnings
    versions = {chain: v for p in parts.values() for chain, v in p.facts.get("versions", {}).items()}
    if versions:
        checkpoint.origin.facts["versions"] = versions
    if layout is not None and layout.files:
        _from_folder(parts, layout, checkpoint)
    elif next(iter(parts.values())).tensors is not None:
        _from_tensors(next(iter(parts.values())), checkpoint, options)
    else:
        _from_tree(next(iter(parts.values())), layout, checkpoint, options)
    _number(checkpoint, options)
    _name(checkpoint, registry.family(checkpoint.family), options)
    select(checkpoint, options.only, options.drop)
    missing = checkpoint.ledger.unexplained()
    if missing:
        raise CheckpointError(
            f"{len(missing)} leaves of the file are in no section: {', '.join(missing[:5])}", leaves=missing
        )
    return checkpoint


# ---------------------------------------------------------------- files of tensors


def _from_tensors(parts: Parts, checkpoint: Checkpoint, options: GatherOptions) -> None:
    """Take a file alone as the section that the family names, or a model where it names none; a record adds what it holds."""
    family = registry.family(checkpoint.family)
    section = family.section(parts) or "model"
    said = parts.notes.get("record", {})
    wanted = options.sections.get("model")
    if wanted:
        raise SectionError(f"a file of tensors has no keys, so nothing lies at {spell(wanted)}", present=[])
    if section != "model":
        value = family.unpack(section, parts, options)
        if value is None:
            raise CheckpointError(f"is no {section} of {checkpoint.family}")
        (checkpoint.optimizers if isinstance(value, Optimizer) else checkpoint.schedulers).append(value)
        checkpoint.origin.places[f"{section}.0"] = Place("")
        for name in parts.tensors or {}:
            checkpoint.ledger.became(name, f"{section}/0")
        return
    for name, tensor in (parts.tensors or {}).items():
        if isinstance(tensor, Tensor):
            checkpoint.model[name] = tensor
            checkpoint.ledger.became(name, f"model/{name}")
        else:
            checkpoint.values.setdefault("model", {})[name] = tensor
            checkpoint.ledger.became(name, f"values/model/{name}")
    if said:
        kept = checkpoint.values.get("model", {})
        record.add_from_tensors({k: v for k, v in said.items() if k not in {"optimizers", "twins"}}, {}, {}, checkpoint)
        if kept:
            checkpoint.values["model"] = kept | checkpoint.values.get("model", {})
    _keep_metadata(parts, checkpoint)
    checkpoint.origin.places["model"] = Place("")
    checkpoint.origin.layout = next(
        (layout.name for layout in registry.layouts() if () in layout.keys.get("model", ())), None
    )


def _keep_metadata(parts: Parts, checkpoint: Checkpoint) -> None:
    metadata = parts.facts.get("metadata")
    if metadata:
        checkpoint.values["metadata"] = dict(metadata)
        for key in metadata:
            checkpoint.ledger.became(f"metadata/{key}", f"values/metadata/{key}")


def _from_folder(parts: Mapping[str, Parts], layout: Layout, checkpoint: Checkpoint) -> None:
    """Join our own folder: the record says what the tensors of each file are."""
    checkpoint.origin.layout = layout.name
    notes = next((p.notes for p in parts.values() if "record" in p.notes and not p.tensors), None)
    if notes is None:
        raise CheckpointError(
            f"no file of the folder is a record, which layout {layout.name} needs", layout=layout.name
        )
    said = notes["record"]
    stems = {file.partition(".")[0]: file for file in parts}
    model_stem, slots_stem, state_stem = (layout.files[section] for section in ("model", "optimizers", "values"))

    def tensors(stem: str) -> dict[str, Any]:
        return dict(parts[stems[stem]].tensors or {}) if stem in stems else {}

    checkpoint.model = _tensors_of(tensors(model_stem), checkpoint, stems.get(model_stem, ""), "model")
    if model_stem in stems:
        checkpoint.origin.places["model"] = Place(stems[model_stem])
        _keep_metadata(parts[stems[model_stem]], checkpoint)
    for name, entry in said.get("twins", {}).items():
        stem = entry.get("file", name)
        if stem not in stems:
            raise CheckpointError(f"the record names a twin {name!r} in {stem}, and no such file is there", twin=name)
        checkpoint.twins[name] = _tensors_of(tensors(stem), checkpoint, stems[stem], f"twins/{name}")
        checkpoint.origin.places[f"twins.{name}"] = Place(stems[stem])
    slots, state = tensors(slots_stem), tensors(state_stem)
    metadata = checkpoint.values.pop("metadata", None)
    record.add_from_tensors(said, slots, state, checkpoint)
    if metadata:
        checkpoint.values.setdefault("metadata", metadata)
    account_encoded(checkpoint, slots, stems.get(slots_stem, slots_stem))
    account_encoded(checkpoint, state, stems.get(state_stem, state_stem))
    for number in range(len(checkpoint.optimizers)):
        checkpoint.origin.places[f"optimizers.{number}"] = Place(
            stems.get(slots_stem, layout.last or ""), (str(number),)
        )


def _tensors_of(tensors: Mapping[str, Any], checkpoint: Checkpoint, file: str, item: str) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise CorruptError(f"{name} is a number, expected a tensor", path=file)
        checkpoint.ledger.became(f"{file}/{name}", f"{item}/{name}")
    return dict(tensors)


# ---------------------------------------------------------------- trees


def _from_tree(parts: Parts, layout: Layout | None, checkpoint: Checkpoint, options: GatherOptions) -> None:
    tree = parts.tree
    family = registry.family(checkpoint.family)
    said = parts.notes.get("record", {})
    places = record.places_of(said)
    alone = None if options.sections or places else family.section(parts)
    if places is not None and not options.sections:
        found = _as_recorded(tree, places, family, options)
    elif alone is not None:
        found = Sections()
        found.put(f"{alone}.0", (), family.unpack(alone, parts, options))
    else:
        found = sections.find(tree, _recognised(tree, layout, family, options), family, options)
    _take(found, tree, checkpoint)
    if found.layout is not None:
        checkpoint.origin.layout = found.layout.name
        if checkpoint.progress.epoch is not None:
            checkpoint.progress.counts = found.layout.epoch_counts
        for chain, key in found.layout.version_at.items():
            if isinstance(version := sections.at(tree, (key,)), str):
                checkpoint.origin.facts.setdefault("versions", {})[chain] = version
    if said:
        record.add_from_tree(said, checkpoint)
    account(tree, found, checkpoint)


def _recognised(tree: Tree, wanted: Layout | None, family: Family, options: GatherOptions) -> Layout | None:
    """Give the layout that claims a tree. Plugins are asked where no built-in one knows it by keys of its own."""
    if wanted is not None:
        if sections.recognise(tree, [wanted], family, options) is None:
            raise CheckpointError(f"layout {wanted.name} does not claim it; its keys are: {sections.keys(tree)}")
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
        value = sections.at(tree, path)
        kind = section.partition(".")[0]
        if value is NOTHING:
            raise CorruptError(f"the record says that {section} lies at {spell(path)}, and nothing is there")
        if kind in {"model", "twins"}:
            flat = sections.state_dict(value) or StateDict({}, {})
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
    for section, value in found.values.items():
        kind, _, name = section.partition(".")
        if kind == "model":
            checkpoint.model = dict(value.tensors)
            checkpoint.modules = value.modules
            if value.others:
                checkpoint.values["model"] = value.others
                names = list(value.paths)
                checkpoint.origin.facts[FOLLOWS] = {
                    name: before for name, before in zip(names, [None, *names], strict=False) if name in value.others
                }
            if value.shape == "nested":
                checkpoint.origin.facts[NESTED] = {
                    "paths": dict(value.paths),
                    "tree": sections.at(tree, found.places["model"]),
                }
            if value.shape in {"lone", "list"}:
                checkpoint.origin.facts["shape"] = value.shape
        elif kind == "twins":
            checkpoint.twins[name] = dict(value.tensors)
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
    checkpoint.origin.facts[AROUND] = {path: sections.at(tree, path) for path in sorted(around, key=len)}
    rest = sections.without(tree, list(found.places.values()))
    if rest is not NOTHING and rest is not None:
        given = checkpoint.values.get("extra")
        checkpoint.values["extra"] = (
            rest if given is None else given | rest if isinstance(given, dict) and isinstance(rest, dict) else given
        )


# ---------------------------------------------------------------- what the caller says


def _number(checkpoint: Checkpoint, options: GatherOptions) -> None:
    progress = checkpoint.progress
    if options.epoch is not None and progress.epoch is None:
        checkpoint.progress = Progress(options.epoch, progress.counts, progress.step, progress.best)
    if options.epoch_means is not None:
        checkpoint.progress.counts = options.epoch_means


def _name(checkpoint: Checkpoint, family: Family, options: GatherOptions) -> None:
    """Name the optimizers' entries, take out orphans, and say what is assumed and what has no state yet."""
    ledger = checkpoint.ledger
    lists = list(options.params or ())
    if lists and len(lists) != sum(len(o.groups) for o in checkpoint.optimizers):
        groups = sum(len(o.groups) for o in checkpoint.optimizers)
        raise CheckpointError(
            f"{len(lists)} lists of names for {groups} groups of {len(checkpoint.optimizers)} optimizers"
        )
    shapes: dict[str, Any] | None = None
    for number, optimizer in enumerate(checkpoint.optimizers):
        if f"optimizers.{number}" in options.drop or "optimizers" in options.drop:
            continue
        if lists:
            naming.from_lists(optimizer, lists[: len(optimizer.groups)])
            del lists[: len(optimizer.groups)]
        stated = sum(param.slots is not None for param in optimizer.params)
        if stated < len(optimizer.params) and not optimizer.shared:
            ledger.notes.append(f"optimizer {number}: {stated} of {len(optimizer.params)} parameters have state")
        if not checkpoint.model or not optimizer.params:
            continue
        named = [param for param in optimizer.params if param.name is not None]
        if not named and options.names:
            if shapes is None:
                shapes = naming.entries(checkpoint.model, family.is_buffer)
            orphans = naming.from_order(optimizer, shapes, family.slots)
            _orphan(checkpoint, number, orphans)
            if any(param.by == "order" for param in optimizer.params):
                ledger.notes.append(f"optimizer {number}: {naming.ASSUMES}")
        naming.check_names(optimizer, checkpoint.model, family.slots)


def _orphan(checkpoint: Checkpoint, number: int, orphans: list[int]) -> None:
    """Leave out entries that are of no parameter of the model; those behind them move up."""
    optimizer, ledger = checkpoint.optimizers[number], checkpoint.ledger
    if not orphans:
        return
    lost = set(orphans)
    ledger.warnings.append(
        f"optimizer {number}: {len(lost)} of {len(optimizer.params)} parameters have a shape that no parameter of the model has;"
        " their state is left out"
    )
    gone = "its parameter is not the model's"
    ledger.drop_all_under({f"optimizers/{number}/{position}": gone for position in orphans}, "left out")
    kept = [(old, param) for old, param in enumerate(optimizer.params) if old not in lost]
    place = {str(old): new for new, (old, _) in enumerate(kept)}
    moves: dict[str, tuple[tuple[str, ...], How]] = {}
    for item in ledger.under(f"optimizers/{number}"):
        first, second, old, *rest = (*item.split("/", 3), "", "")
        if old in place and str(place[old]) != old:
            moves[item] = ((f"{first}/{second}/{place[old]}/{rest[0]}",), "renamed")
    ledger.rename_all(moves)
    optimizer.params = [param for _, param in kept]
