"""Where an output goes: which format, which layout, one file or a folder; by what a caller says, OUT's suffix, or the family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import registry, store
from .errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from .checkpoint import Checkpoint
    from .format import Format, Layout


@dataclass(frozen=True, slots=True)
class Target:
    """Where the output goes: a format, its layout (None: every section back where it lay), and whether OUT is one file."""

    format: Format
    layout: Layout | None
    path: Path
    one_file: bool

    @property
    def name(self) -> str:
        """The file's own name where OUT is one file, "" where it is a folder."""
        return self.path.name if self.one_file else ""


def choose(checkpoint: Checkpoint, path: Path, out: Path | None, to: str | None, how: str | None) -> Target:
    """Give the target of a call: ``to`` names a format or a family, ``how`` is keep or standard, None lets the target decide.

    UsageError where the call contradicts itself or names what cannot be written.
    """
    if out is None:
        chosen, folder = _same_container(checkpoint), store.is_folder(checkpoint)
        own = registry.layout(checkpoint.origin.layout) if folder and checkpoint.origin.layout else None
        return Target(chosen, own, path, one_file=not folder)
    by_suffix = _by_suffix(out.name.lower())
    if not by_suffix and _called_alike(
        path, out
    ):  # one file like the one that there was, whatever such files are called
        by_suffix = _containers(checkpoint)[:1]
    wanted = _named(to) if to else None
    if wanted is not None and by_suffix and wanted not in by_suffix:
        raise UsageError(
            f"--to {to} writes {wanted.suffixes[0]}, and OUT ends in {out.suffix}",
            hint=f"name OUT {out.with_suffix(wanted.suffixes[0])}, or leave --to out",
        )
    writable = [f for f in by_suffix if f.lay_out is not None]
    if wanted is None and by_suffix and not writable:
        raise UsageError(
            f"{by_suffix[0].name} is read only", hint=f"writable: {', '.join(f.name for f in _writable())}"
        )
    chosen = wanted or (writable[0] if writable else _default(checkpoint))
    alone = chosen.family is not None and store.is_bare_state(
        checkpoint
    )  # a record, which its framework has as one file
    one_file = bool(writable) or (chosen.speaks == "tree") or alone or store.is_bare_model(checkpoint)
    keep = how == "keep" or (how is None and _keeps(checkpoint, chosen))
    if keep and not _keeps(checkpoint, chosen):
        raise UsageError(
            f"--layout keep: {chosen.name} cannot hold the keys of {checkpoint.origin.format}", hint="--layout standard"
        )
    layout = None if keep else registry.layout(chosen.standard) if chosen.standard else None
    return Target(chosen, layout, out, one_file)


def _called_alike(path: Path, out: Path) -> bool:
    return bool(out.suffix) and out.suffix.lower() == path.suffix.lower() and path.is_file()


def _by_suffix(name: str) -> list[Format]:
    own = [f for f in registry.formats() if f.suffixes and name.endswith(f.suffixes)]
    if own or "." not in name:
        return own
    plugged = (
        registry.plugin_formats().loaded.values()
    )  # asked only when no built-in claims it, as for a file that is read
    return [f for f in plugged if f.suffixes and name.endswith(f.suffixes)]


def _writable() -> list[Format]:
    return [f for f in registry.formats() if f.lay_out is not None]


def _named(name: str) -> Format:
    """Give the format that ``--to`` means: a format's own name, or a family's, whose default target it then is."""
    if registry.has_format(name):
        chosen = registry.format(name)
        if chosen.lay_out is None:
            raise UsageError(f"{name} is read only", hint=f"writable: {', '.join(f.name for f in _writable())}")
        return chosen
    for family in registry.families():
        if family.name == name:
            own = [f for f in _writable() if f.family == name and f.current]
            if own:
                return own[0]
    known = [*(f.name for f in _writable()), *(f.name for f in registry.families())]
    raise UsageError(f"no format or family is called {name}", hint=f"known: {', '.join(known)}")


def _default(checkpoint: Checkpoint) -> Format:
    target = registry.family(checkpoint.family).target
    if target is None:
        raise UsageError(f"family {checkpoint.family} has no default target", hint="say --to FORMAT")
    return registry.format(target)


def _same_container(checkpoint: Checkpoint) -> Format:
    """Give the format that an in-place upgrade writes; UsageError where there is none."""
    found = _containers(checkpoint)
    if not found:
        raise UsageError(f"{checkpoint.origin.format} cannot be written in place", hint="name OUT")
    return found[0]


def _containers(checkpoint: Checkpoint) -> list[Format]:
    """Give what can be written instead of the file that was read: its own format, else the current ones of its family that speak alike."""
    origin = registry.format(checkpoint.origin.format or "")
    alike = [f for f in _writable() if f.current and f.family == origin.family and f.speaks == origin.speaks]
    return [origin] if origin.lay_out is not None else alike


def _keeps(checkpoint: Checkpoint, target: Format) -> bool:
    """Say whether ``target`` can hold every section at the key where it lay: both are trees of one family."""
    origin = registry.format(checkpoint.origin.format or "")
    apart = any(place.file for place in checkpoint.origin.places.values())  # a part of it lay in a file of its own
    return origin.speaks == target.speaks == "tree" and origin.family == target.family and not apart
