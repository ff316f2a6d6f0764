"""From a checkpoint to the parts of its files: the inverse of gather.

A format that holds a tree gets one: our standard keys, or every section back at the key where it lay (``layout`` None). A format
that holds tensors by name gets one file for a bare model, else the files of its standard layout, and our record.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from ckptmigrate import registry, values
from ckptmigrate.checkpoint import Slot
from ckptmigrate.engine.identity import made_id
from ckptmigrate.errors import UsageError
from ckptmigrate.format import Format, Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import spell

from . import record
from .folder import patterns
from .selection import section_names
from .tree_parts import tree_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Family, Layout, WriteOptions
    from ckptmigrate.values import Tree

_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
Scattered = dict[str, tuple[Format, Parts]]


def scatter(
    checkpoint: Checkpoint, target: Format, layout: Layout | None, options: WriteOptions, name: str = ""
) -> Scattered:
    """Give for each file of the target its format and parts: one file called ``name``, or with "" the files of a folder.

    ``layout`` None puts every section back where it lay. Inert nodes are taken out, each noted in the ledger.
    UsageError where the target cannot be what is asked.
    """
    if layout is None and (apart := sorted({p.file for p in checkpoint.origin.places.values() if p.file})):
        raise UsageError(
            f"nothing can be put back where it lay in one file: {', '.join(apart)} held a part of it",
            hint="--layout standard",
        )
    clean = _pruned(checkpoint)
    if target.speaks == "tree":
        if target.family not in {None, clean.family} and (clean.optimizers or clean.schedulers):
            raise _without_bridge(clean.family, target)
        return {name or f"checkpoint{target.suffixes[0]}": (target, tree_parts(clean, target, layout, options))}
    family = registry.family(target.family) if target.family else None
    if family is not None and family.name != clean.family:
        raise _without_bridge(clean.family, target)
    if name:
        return {name: (target, _one_file(clean, target, family, options))}
    standard = layout if layout is not None and layout.files else registry.layout(target.standard or "")
    return _folder(clean, target, standard, family, options)


def _without_bridge(family: str, target: Format) -> UsageError:
    """Give the refusal of another family's target; a bridge bears the names of the two that it joins."""
    bridge = "_".join(sorted((family, str(target.family))))
    return UsageError(
        f"the checkpoint is of family {family}, {target.name} of {target.family}",
        hint=f"only a named bridge crosses families: --chain {bridge}",
    )


def fits_one_file(checkpoint: Checkpoint, target: Format, layout: Layout | None) -> list[str]:  # noqa: ARG001 - every target is asked alike
    """Give the problem of a checkpoint with more sections than one file of the format holds, or nothing.

    Plain values and progress travel beside the stamp; whatever has tensors of its own needs a file or a key.
    """
    if target.speaks == "tree":
        return []
    more = [s for s in section_names(checkpoint) if s.startswith(("twins", "optimizers"))]
    more += [f"schedulers.{i}" for i, tree in enumerate(checkpoint.schedulers) if _has_tensors(tree)]
    more += [f"values.{name}" for name, tree in checkpoint.values.items() if _has_tensors(tree)]
    if _has_tensors(checkpoint.progress.best):
        more.append("progress")
    if not checkpoint.model:
        if target.family is not None and _alone(checkpoint) is not None:
            return []
        return [
            f"one {target.name} file holds a model, and the checkpoint has none: give OUT without a suffix (a folder)"
        ]
    if not more:
        return []
    listed = ", ".join(more)
    remedies = "give OUT without a suffix (a folder), or take the model alone with --sections model"
    return [f"one {target.name} file holds a model, and the checkpoint has {listed}: {remedies}"]


def _alone(checkpoint: Checkpoint) -> tuple[str, Any] | None:
    """Give the one optimizer or scheduler that is all there is."""
    values: list[tuple[str, Any]] = [("optimizers", o) for o in checkpoint.optimizers]
    values += [("schedulers", s) for s in checkpoint.schedulers]
    return values[0] if len(values) == 1 and not checkpoint.model and not checkpoint.twins else None


def _one_file(checkpoint: Checkpoint, target: Format, family: Family | None, options: WriteOptions) -> Parts:
    alone = _alone(checkpoint)
    if family is None or alone is None:
        return _model_file(checkpoint, target, options)
    packed = family.pack(*alone, checkpoint)
    return dataclasses.replace(packed, notes={} if options.bare else record.stamp_notes(checkpoint.stamp))


def _has_tensors(tree: Tree) -> bool:
    return any(isinstance(node, Tensor) for _, node in values.walk(tree) if not isinstance(node, values.Inert))


def _pruned(checkpoint: Checkpoint) -> Checkpoint:
    """Give the checkpoint without Inert nodes; a key is dropped, a list item None, and each is in the ledger."""
    pruned: dict[str, str] = {}

    def clean(tree: Tree, item: str) -> Tree:
        kept, gone = values.prune(tree)
        pruned.update((f"{item}/{spell(path)}" if path else item, reason) for path, reason in gone)
        return kept

    optimizers = [
        dataclasses.replace(
            optimizer,
            params=[
                param
                if param.slots is None
                else dataclasses.replace(
                    param,
                    slots={s: Slot(clean(v.value, f"optimizers/{n}/{i}/{s}")) for s, v in param.slots.items()},
                )
                for i, param in enumerate(optimizer.params)
            ],
            groups=clean(optimizer.groups, f"optimizers/{n}/groups"),
            shared=clean(optimizer.shared, f"optimizers/{n}/shared"),
        )
        for n, optimizer in enumerate(checkpoint.optimizers)
    ]
    kept = {name: clean(tree, f"values/{name}") for name, tree in checkpoint.values.items()}
    schedulers = [clean(tree, f"schedulers/{n}") for n, tree in enumerate(checkpoint.schedulers)]
    modules = {name: clean(entry, f"modules/{name}") for name, entry in checkpoint.modules.items()}
    if pruned:
        checkpoint.ledger.drop_all_under(pruned, "left out")
    return dataclasses.replace(checkpoint, optimizers=optimizers, values=kept, schedulers=schedulers, modules=modules)


def _model_file(checkpoint: Checkpoint, target: Format, options: WriteOptions) -> Parts:
    """Give a model that is a file alone, with what of the checkpoint needs no tensors in the record beside the stamp."""
    lone = dataclasses.replace(
        checkpoint,
        twins={},
        optimizers=[],
        schedulers=[tree for tree in checkpoint.schedulers if not _has_tensors(tree)],
        values={
            name: tree for name, tree in checkpoint.values.items() if name != "metadata" and not _has_tensors(tree)
        },
    )
    said, _, _ = record.of_tensors(lone, {})
    notes = record.stamp_notes(checkpoint.stamp)
    if said.keys() != {"family"}:
        notes["record"] = said
    if options.bare:
        notes = {}
    return _tensors(checkpoint, checkpoint.model, target, notes)


def _tensors(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], target: Format, notes: dict[str, Any]) -> Parts:
    facts = (
        {"metadata": dict(checkpoint.values["metadata"])}
        if "metadata" in checkpoint.values and tensors is checkpoint.model
        else {}
    )
    return Parts(family=target.family or checkpoint.family, tensors=dict(tensors), facts=facts, notes=notes)


def _folder(
    checkpoint: Checkpoint, target: Format, layout: Layout, family: Family | None, options: WriteOptions
) -> Scattered:
    if family is not None:
        return _framework_folder(checkpoint, target, layout, family, options)
    if options.bare:
        raise UsageError(
            "--bare writes no record, and without it a folder's optimizers and values cannot be read back",
            hint="--sections model gives one bare file",
        )
    stems = _twin_stems(checkpoint, layout)
    held = dataclasses.replace(checkpoint, values={n: v for n, v in checkpoint.values.items() if n != "metadata"})
    said, slots, state = record.of_tensors(held, stems)
    stamp = record.stamp_notes(checkpoint.stamp)
    suffix = target.suffixes[0]
    files: Scattered = {}
    if checkpoint.model:
        files[layout.files["model"] + suffix] = (target, _tensors(checkpoint, checkpoint.model, target, dict(stamp)))
    for name, twin in checkpoint.twins.items():
        files[stems[name] + suffix] = (target, _tensors(checkpoint, twin, target, dict(stamp)))
    for section, tensors in (("optimizers", slots), ("values", state)):
        if tensors:
            files[layout.files[section] + suffix] = (target, _tensors(checkpoint, tensors, target, dict(stamp)))
    last = layout.last or ""
    written = next((f for f in registry.formats() if f.lay_out is not None and last.endswith(f.suffixes)), None)
    if written is None:
        raise UsageError(f"no format here writes {last}, which layout {layout.name} needs")
    files[last] = (written, Parts(notes={**stamp, "record": said}))
    return files


def _twin_stems(checkpoint: Checkpoint, layout: Layout) -> dict[str, str]:
    """Give each twin its file's stem: its name, where that is a plain file name that no other section has."""
    taken = {text.rpartition("/")[2].partition("{")[0].rstrip("-") for text in patterns(layout).values()}
    stems: dict[str, str] = {}
    for number, name in enumerate(checkpoint.twins):
        stem = name
        if not _STEM.fullmatch(stem) or stem.lower() in taken:
            stem = f"twin-{number}"
        taken.add(stem.lower())
        stems[name] = stem
    return stems


def _identified(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Give the model, where each tensor that an optimizer names has an id: one that had none gets that of its name."""
    named = {param.name for optimizer in checkpoint.optimizers for param in optimizer.params}
    return {
        name: dataclasses.replace(tensor, id=made_id((), name)) if tensor.id is None and name in named else tensor
        for name, tensor in checkpoint.model.items()
    }


def _framework_folder(
    checkpoint: Checkpoint, target: Format, layout: Layout, family: Family, options: WriteOptions
) -> Scattered:
    """Give the files that a framework's own checkpointer writes; our record in the first of them says what it has no place for.

    UsageError names the sections that the layout has no file for.
    """
    if family.identify is not None:
        checkpoint = dataclasses.replace(checkpoint, model=_identified(checkpoint))
    epoch = checkpoint.progress.counted(None if callable(layout.epoch_counts) else layout.epoch_counts) or 0
    stamp = {} if options.bare else record.stamp_notes(checkpoint.stamp)
    suffix, table = target.suffixes[0], patterns(layout)
    files: dict[str, Parts] = {}
    missing: list[str] = []

    def add(section: str, parts: Parts, number: int = 0, **holes: Any) -> str:
        kind = section.partition(".")[0]
        if kind not in table:
            missing.append(section)
            return ""
        stem = table[kind].format(epoch=epoch, **holes) + (f"-{number}" if number else "")
        if stem + suffix in files:
            raise UsageError(
                f"{layout.name} would have two files of the name {stem + suffix}", hint=f"--drop {section}"
            )
        files[stem + suffix] = dataclasses.replace(parts, notes={**stamp, **parts.notes})
        return stem

    held = dataclasses.replace(checkpoint, values={n: v for n, v in checkpoint.values.items() if n != "metadata"})
    if checkpoint.model:
        add("model", _tensors(checkpoint, checkpoint.model, target, {}))
    for number, optimizer in enumerate(checkpoint.optimizers):
        add(f"optimizers.{number}", family.pack("optimizers", optimizer, checkpoint), number)
    for number, scheduler in enumerate(checkpoint.schedulers):
        add(f"schedulers.{number}", family.pack("schedulers", scheduler, checkpoint), number)
    if options.bare:
        missing += [s for s in section_names(held) if s.startswith(("twins", "values"))]
    else:
        stems = {
            name: add(f"twins.{name}", _tensors(checkpoint, checkpoint.twins[name], target, {}), twin=stem)
            for name, stem in _twin_stems(checkpoint, layout).items()
        }
        said, state = record.of_files(held, stems)
        if state:
            add("values", _tensors(checkpoint, state, target, {}))
        if files:
            next(iter(files.values())).notes[record.RECORD] = said
    if missing:
        raise UsageError(
            f"layout {layout.name} has no file for {', '.join(missing)}", hint=f"--drop {missing[0].partition('.')[0]}"
        )
    first, *others = files
    return {
        name: (target, files[name]) for name in (*others, first)
    }  # without the first nobody takes the set for whole
