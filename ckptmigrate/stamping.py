"""Saying once where a checkpoint stands: ``stamp``, and what a library stamps its own checkpoints with.

stamp ─┬─ a format that adds it and changes nothing else, or that writes back all that the file holds ──► inside, with a backup
       └─ any other file, a link, or where the caller wants the file left alone ──► FILE.ckptmigrate.json beside it
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import chains, convert, registry, store, values
from .checkpoint import Stamp
from .errors import ChangedError, CkptError, PlanError, UsageError, VerificationError, VersionError, reading
from .files import SIDECAR, Disk
from .files.sink import Sink
from .notes import MARK
from .store import record, stamps
from .target import choose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.version import Version

    from .checkpoint import Checkpoint
    from .files import Source
    from .format import Format


SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Stamped:
    """Where a stamp was put: ``inside`` the checkpoint, with a ``backup`` of what it was, or in ``files`` beside, for ``reasons``."""

    path: str
    versions: Mapping[str, str]
    inside: bool
    files: tuple[str, ...]
    backup: str | None = None
    reasons: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        return {
            "path": self.path,
            "versions": dict(self.versions),
            "inside": self.inside,
            "files": list(self.files),
            "backup": self.backup,
            "reasons": list(self.reasons),
        }


def stamp(path: str | Path, versions: Mapping[str, str], options: convert.Options, *, beside: bool = False) -> Stamped:
    """Write down where the checkpoint at a path stands: chain -> version. Chains that are not installed are taken at their word.

    VersionError where its own stamp, or marks of an installed chain, say something else; ``beside``: leave the file as it is.
    """
    if not versions:
        raise UsageError("no chain and version to stamp", hint="name them: acme.vit=1.0")
    catalog = chains.Catalog.find(options.migrations)
    with Disk(options.scratch, keep=True) as disk, reading(str(path)):
        checkpoint = store.open_checkpoint(path, options.read, options.gather, disk)
        if store.is_numbered(checkpoint):
            raise UsageError(
                f"--epoch {options.gather.epoch}: it is no run, and a stamp numbers nothing", hint="leave it out"
            )
        for chain, version in versions.items():
            _check(checkpoint, catalog, chain, version)
        told = checkpoint.stamp.versions
        if all(told.get(chain) == version for chain, version in versions.items()):
            return Stamped(str(path), dict(versions), inside=True, files=(), reasons=("it says so already",))
        checkpoint.stamp = Stamp({**told, **versions}, checkpoint.stamp.history)
        reasons = ["the call wants the file left as it is"] if beside else []
        backup = None if beside else _inside(checkpoint, Path(path), options, disk, reasons)
        if backup is not None:
            return Stamped(str(path), dict(versions), inside=True, files=(str(path),), backup=backup)
        files = _files(checkpoint, disk.open(path))
        written = tuple(_write_beside(checkpoint.stamp, file) for file in files)
        return Stamped(str(path), dict(versions), inside=False, files=written, reasons=tuple(reasons))


def stamp_for(*names: str, version: str | None = None, migrations: Iterable[str | Path] = ()) -> dict[str, str]:
    """Give what a library puts into its checkpoint when it saves one: one text under our key, for a dictionary or a text map.

        torch.save({**stamp_for("acme.vit"), "model": model.state_dict()}, path)
        save_file(model.state_dict(), path, metadata=stamp_for("acme.vit"))

    It says the newest step of each chain; ``version`` says another version of the one. UsageError for a chain that is not here and
    no version.
    """
    if not names or (version is not None and len(names) > 1):
        raise UsageError("stamp_for takes the names of chains, or one name and its version")
    if version is not None:
        _public(names[0], version)
        stands = {names[0]: version}
    else:
        catalog = chains.Catalog.find(migrations)
        heads = {name: catalog.steps(name) for name in names}
        stands = {name: steps[-1].migrator.version if steps else str(chains.BEFORE) for name, steps in heads.items()}
    return {MARK: values.dumps(record.stamp_notes(Stamp(stands)))}


def stamp_of(path: str | Path, options: convert.Options) -> dict[str, str]:
    """Give what a file's stamp is, wherever it lies, as ``stamp_for`` would give it; {} where it has none."""
    with store.open_checkpoint(path, options.read, options.gather) as checkpoint:
        notes = record.stamp_notes(checkpoint.stamp)
        return {MARK: values.dumps(notes)} if notes else {}


def _public(chain: str, version: str) -> Version:
    found = chains.public(version)
    if found is None:
        raise UsageError(f"{chain}={version}: {version!r} is no version (PEP 440)")
    return found


def _check(checkpoint: Checkpoint, catalog: chains.Catalog, name: str, version: str) -> None:
    """Refuse a version that the checkpoint itself contradicts."""
    told = checkpoint.stamp.versions.get(name)
    if told is not None and chains.public(told) not in {_public(name, version), None}:
        raise VersionError(f"chain {name}: its stamp says {told}, and {version} is to be written", chain=name)
    _public(name, version)
    if not catalog.has(name):
        return
    chain, steps = catalog.chain(name), catalog.steps(name)
    if chain.family not in {None, checkpoint.family}:
        raise UsageError(f"chain {name} is for family {chain.family}, and the checkpoint is of {checkpoint.family}")
    chains.check_settled(checkpoint, chain, steps, chains.locate(checkpoint, chain, steps, version, speaker="the call"))


def _inside(checkpoint: Checkpoint, path: Path, options: convert.Options, disk: Disk, reasons: list[str]) -> str | None:
    """Write the stamp into the checkpoint and give its backup; None, and the reason, where more than the stamp would change."""
    own = registry.format(checkpoint.origin.format or "")
    if path.is_symlink():
        reasons.append("it is a link, which is never replaced")
    elif not store.is_current(checkpoint) or own.lay_out is None:
        reasons.append(f"a file of this kind carries no stamp ({own.name})")
    elif own.stamp is not None and not store.is_folder(checkpoint):
        return _added(checkpoint, own, path, options, disk)
    elif own.speaks == "tree":  # values of classes that are well known come back plain, which no stamp may do to a file
        reasons.append(f"what is no tensor in it would be written anew, and a stamp changes nothing else ({own.name})")
    else:
        made = _written_back(checkpoint, path, options, reasons)
        if made is not None:
            in_place = replace(options, in_place=True)
            return convert.write(disk, made, convert.report_of(made, str(path), in_place), in_place).backup
    return None


def _added(checkpoint: Checkpoint, own: Format, path: Path, options: convert.Options, disk: Disk) -> str:
    """Let the format put the stamp into the file, and nothing else; give the backup. VerificationError where it reads otherwise."""
    source = disk.open(path)
    notes = {**own.read(source, options.read).notes, **record.stamp_notes(checkpoint.stamp)}
    assert own.stamp is not None
    blueprint = own.stamp(source, notes, options.read)
    if blueprint.problems:
        raise PlanError(blueprint.problems, path=str(path))
    with Sink(path, folder=False, verify=options.verify, force=True) as sink:
        store.write(blueprint, sink)
        sink.finish()
        with Disk() as written:
            found = record.stamp_of(own.read(written.open(sink.path), options.read).notes)
        if found != checkpoint.stamp:
            raise VerificationError(f"what was written says {found.versions}", path=str(path))
        if changed := disk.changed():
            raise ChangedError("changed while it was stamped", path=changed[0])
        return str(sink.publish(backup=True))


def _written_back(
    checkpoint: Checkpoint, path: Path, options: convert.Options, reasons: list[str]
) -> convert.Prepared | None:
    """Give what would write a checkpoint of tensors back with its stamp; None, and the reason, where that would not be the whole."""
    try:
        target = choose(checkpoint, path, None, None, "keep")
        problems: list[str] = []
        scattered, blueprint = convert.lay_out(checkpoint, target, options.write, problems)
    except CkptError as error:
        reasons.append(f"it cannot be written back: {error.message}")
        return None
    lost = [f.source for f in checkpoint.ledger.rows() if f.what in {"left out", "dropped"}]
    lost += [where for where, _ in blueprint.left_out]
    if problems or lost:
        reasons.append(problems[0] if problems else f"it could not be written back whole: {', '.join(lost[:SHOWN])}")
        return None
    return convert.Prepared(checkpoint, checkpoint.model, target, chains.Plan(), (), scattered, blueprint)


def _files(checkpoint: Checkpoint, source: Source) -> list[Source]:
    """Give the files of a checkpoint; a folder whose files are no checkpoint by themselves is stamped as a whole."""
    names = sorted({place.file for place in checkpoint.origin.places.values() if place.file})
    return [store.child(source, name) for name in names] or [source]


def _write_beside(stamp: Stamp, source: Source) -> str:
    place = f"{source.name.rstrip('/')}{SIDECAR}"
    with Sink(place, folder=False, force=True) as sink:
        sink.open().write(stamps.spelled_beside(stamp, source))
        sink.publish()
    return place
