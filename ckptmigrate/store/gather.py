"""From parts to a checkpoint: which section lies where, what belongs to what, and an account of every leaf.

one file      count every leaf ── find sections (record | family | layout | looks) ── unpack by family ─┐
folder        each file as the section that its layout says it is, joined; or by our record ─────────────┼─ stamp, number,
--part        a further file, joined: only what was asked of it competes with what is there ─────────────┘  name, select
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate import registry
from ckptmigrate.checkpoint import Checkpoint, Origin, Place
from ckptmigrate.errors import CheckpointError, CorruptError, SectionError
from ckptmigrate.format import GatherOptions, Parts
from ckptmigrate.tensor import Tensor

from . import record
from .accounting import account_encoded, account_recorded
from .companions import complete
from .folder import VALUES
from .joining import join
from .one_file import RECORDED, from_file, from_section, keep_metadata
from .owners import DECLARED, identify, is_declared, name_optimizers, number, warn_of_shared_ids
from .selection import check_selection, select_optimizers, select_others, why_left
from .stamps import BESIDE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.format import Family, Layout


Added = tuple[str, str, Parts]
"""A file that a caller names for a section: the section, the file's name, what it says."""


def gather(
    parts: Mapping[str, Parts],
    options: GatherOptions,
    *,
    container: str,
    layout: Layout | None = None,
    files: Mapping[str, str] | None = None,
    epoch: int | None = None,
    untaken: Mapping[str, str] | None = None,
    added: tuple[Added, ...] = (),
) -> Checkpoint:
    """Give the checkpoint that one file ({"": parts}) or the files of a folder's layout make; ``container`` is the format.

    ``files`` says which section each file of a folder is, ``epoch`` the number in their names, ``untaken`` of which sections there
    are files that were not read because nobody wants them. Raises CheckpointError and its kin where the parts do not make exactly
    one checkpoint.
    """
    everything = {**parts, **{file: p for _, file, p in added}}
    family = _family(everything)
    if layout is not None and layout.files:
        without = {section.partition(".")[0] for section in (untaken or {}).values()}
        checkpoint = _from_folder(parts, layout, family, options, files or {}, epoch, without)
    else:
        checkpoint = from_file(next(iter(parts.values())), layout, family, options)
    checkpoint.origin.format = container
    for file in dict.fromkeys(file for _, file, _ in added):
        wanted = [section for section, other, _ in added if other == file]
        join(checkpoint, _from_part(wanted, file, everything[file], family, options), file, wanted)
    _stamp(checkpoint, everything)
    for file, p in everything.items():
        checkpoint.origin.facts[file or "file"] = dict(p.facts)
        checkpoint.ledger.notes += [p.facts[BESIDE]] if BESIDE in p.facts else []
        checkpoint.ledger.warnings += [*p.warnings, *p.doubts]
        checkpoint.ledger.doubts += p.doubts
    place = checkpoint.origin.places.get("model")
    told = everything.get(place.file) if place is not None else None
    checkpoint.origin.facts[DECLARED] = is_declared(checkpoint.model, tree=told is not None and told.tensors is None)
    versions = {chain: v for p in everything.values() for chain, v in p.facts.get("versions", {}).items()}
    if versions:
        checkpoint.origin.facts["versions"] = versions | checkpoint.origin.facts.get("versions", {})
    return _finished(checkpoint, options, untaken or {})


def _finished(checkpoint: Checkpoint, options: GatherOptions, untaken: Mapping[str, str]) -> Checkpoint:
    """Give it numbered, named and without what is not wanted; every leaf must be explained."""
    number(checkpoint, options)
    check_selection(checkpoint, options.only, options.drop, untaken.values())
    for file, section in untaken.items():
        checkpoint.ledger.left_out(file, f"{why_left(section, options.only, options.drop)}, hence not read")
    recorded = checkpoint.origin.facts.pop(RECORDED, 0)
    select_optimizers(checkpoint, options.only, options.drop)
    name_optimizers(checkpoint, registry.family(checkpoint.family), options, recorded=bool(recorded))
    warn_of_shared_ids(checkpoint)
    select_others(checkpoint, options.only, options.drop)
    missing = checkpoint.ledger.unexplained()
    if missing:
        raise CheckpointError(
            f"{len(missing)} leaves of the file are in no section: {', '.join(missing[:5])}", leaves=missing
        )
    return checkpoint


def _family(parts: Mapping[str, Parts]) -> Family:
    named = {file: p.family for file, p in parts.items() if p.family}
    others = [file for file, name in named.items() if name != next(iter(named.values()))]
    if others:
        first = next(iter(named))
        raise CheckpointError(
            f"{first or 'the file'} is of family {named[first]}, {others[0]} of {named[others[0]]}",
            hint="only a named bridge crosses families: --chain NAME",
        )
    return registry.family(next(iter(named.values()))) if named else registry.neutral_family()


def _stamp(checkpoint: Checkpoint, parts: Mapping[str, Parts]) -> None:
    stamps = {file: record.stamp_of(p.notes) for file, p in parts.items() if "stamp" in p.notes}
    if not stamps:
        return
    first, checkpoint.stamp = next(iter(stamps.items()))
    other = next((file for file, stamp in stamps.items() if stamp != checkpoint.stamp), None)
    if other is not None:
        raise CheckpointError(f"{first or 'the file'} and {other} bear stamps that disagree", candidates=[first, other])


# ---------------------------------------------------------------- one file


def _from_part(wanted: list[str], file: str, parts: Parts, family: Family, options: GatherOptions) -> Checkpoint:
    """Give what a file that a caller named holds; SectionError where it has not what was asked of it."""
    own = GatherOptions(drop=options.drop, scheduler=options.scheduler, steps=options.steps)
    part = from_file(parts, None, family, own)
    present = {"model": bool(part.model), "optimizers": bool(part.optimizers), "schedulers": bool(part.schedulers)}
    for section in wanted:
        if section not in present:
            raise SectionError(f"--part takes {', '.join(present)}, not {section!r}", present=sorted(present))
        if not present[section]:
            found = [name for name, there in present.items() if there]
            raise SectionError(f"{file} has no {section}; it has: {', '.join(found) or 'none of them'}", present=found)
    return part


# ---------------------------------------------------------------- folders


def _from_folder(
    parts: Mapping[str, Parts],
    layout: Layout,
    family: Family,
    options: GatherOptions,
    files: Mapping[str, str],
    epoch: int | None,
    without: set[str],
) -> Checkpoint:
    """Join the files of a folder: our record says what the tensors of each are, or the family unpacks each by itself.

    ``without``: the kinds of section whose files were not read.
    """
    if record.RECORD in layout.files:
        return _from_record(parts, layout, family, without)
    checkpoint = Checkpoint(family.name, origin=Origin(layout=layout.name))
    state: dict[str, Any] = {}
    for file, section in files.items():
        if section == VALUES:
            state |= parts[file].tensors or {}
        else:
            join(checkpoint, from_section(section, parts[file], family, options, file), file, [])
    if epoch is not None and checkpoint.progress.epoch is None:
        counts = layout.epoch_counts
        checkpoint.progress.epoch, checkpoint.progress.counts = epoch, None if callable(counts) else counts
    complete(checkpoint, layout, family, options)
    identify(checkpoint, family)
    said = next((p.notes[record.RECORD] for p in parts.values() if record.RECORD in p.notes), None)
    if said is not None:
        said = {key: value for key, value in said.items() if key not in without}
        _complete(checkpoint, said, state, complete=VALUES in files.values())
    for file, section in files.items():
        if section == VALUES:
            account_encoded(checkpoint, parts[file].tensors or {}, file)
    return checkpoint


def _complete(checkpoint: Checkpoint, said: Mapping[str, Any], state: Mapping[str, Any], *, complete: bool) -> None:
    """Add what our record says beside the files of a family. The number in a file's name tells more than a record in it."""
    named, lost = checkpoint.progress, list[str]()
    if not complete:
        said, lost = record.without_tensors(said)
    record.add_from_files(said, state, checkpoint)
    told = len(said.get("optimizers", ()))
    checkpoint.origin.facts[RECORDED] = told
    lost += [f"twins.{name}" for name in record.twin_files(said) if name not in checkpoint.twins]
    lost += [f"optimizers.{n}" for n in range(len(checkpoint.optimizers), told)]
    if lost:
        checkpoint.ledger.warnings.append(f"our record tells of {', '.join(lost)}, whose files are not there")
    account_recorded(checkpoint, record.RECORD)
    epoch = checkpoint.progress.counted(named.counts)
    if named.epoch is not None and (epoch or 0) != named.epoch:
        checkpoint.ledger.warnings.append(
            f"the files are named after epoch {named.epoch}, and the record in them says {epoch}: the names count"
        )
        checkpoint.progress.epoch, checkpoint.progress.counts = named.epoch, named.counts


def _from_record(parts: Mapping[str, Parts], layout: Layout, family: Family, without: set[str]) -> Checkpoint:
    checkpoint = Checkpoint(family.name, origin=Origin(layout=layout.name))
    written = next((f for f, p in parts.items() if record.RECORD in p.notes and not p.tensors), None)
    if written is None:
        raise CheckpointError(
            f"no file of the folder is a record, which layout {layout.name} needs", layout=layout.name
        )
    said = {key: value for key, value in parts[written].notes[record.RECORD].items() if key not in without}
    stems = {file.partition(".")[0]: file for file in parts}
    model_stem, slots_stem, state_stem = (layout.files[section] for section in ("model", "optimizers", "values"))

    def tensors(stem: str) -> dict[str, Any]:
        return dict(parts[stems[stem]].tensors or {}) if stem in stems else {}

    checkpoint.model = _tensors_of(tensors(model_stem), checkpoint, stems.get(model_stem, ""), "model")
    if model_stem in stems:
        checkpoint.origin.places["model"] = Place(stems[model_stem])
        keep_metadata(parts[stems[model_stem]], checkpoint)
    for name, stem in record.twin_files(said).items():
        if stem not in stems:
            raise CheckpointError(f"the record names a twin {name!r} in {stem}, and no such file is there", twin=name)
        checkpoint.twins[name] = _tensors_of(tensors(stem), checkpoint, stems[stem], f"twins/{name}")
        checkpoint.origin.places[f"twins.{name}"] = Place(stems[stem])
    slots, state = tensors(slots_stem), tensors(state_stem)
    metadata = checkpoint.values.pop("metadata", None)
    record.add_from_tensors(said, slots, state, checkpoint)
    if metadata:
        checkpoint.values.setdefault("metadata", metadata)
    checkpoint.origin.facts[RECORDED] = len(checkpoint.optimizers)
    account_encoded(checkpoint, slots, stems.get(slots_stem, slots_stem))
    account_encoded(checkpoint, state, stems.get(state_stem, state_stem))
    account_recorded(checkpoint, written)
    for index in range(len(checkpoint.optimizers)):
        checkpoint.origin.places[f"optimizers.{index}"] = Place(stems.get(slots_stem, layout.last or ""), (str(index),))
    return checkpoint


def _tensors_of(tensors: Mapping[str, Any], checkpoint: Checkpoint, file: str, item: str) -> dict[str, Tensor]:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise CorruptError(f"{name} is a number, expected a tensor", path=file)
        checkpoint.ledger.became(f"{file}/{name}", f"{item}/{name}")
    return dict(tensors)
