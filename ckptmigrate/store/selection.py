"""Which sections a checkpoint has, and leaving some of them out, each noted in the ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import SectionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import GatherOptions

Names = tuple[str, ...]
_OF = {"modules": "model", "values.model": "model", "values.metadata": "model", "values.twins": "twins"}
"""Sections that go where another goes, because they are a part of it."""


def check_selection(checkpoint: Checkpoint, only: Names, drop: Names, beside: Iterable[str] = ()) -> None:
    """Refuse the name of a section that is not there, nor ``beside``, in a file that was not read; SectionError lists those that are."""
    present = [*section_names(checkpoint), *beside]
    kinds = {section.partition(".")[0] for section in present}
    known = {*present, *kinds, "optimizer", "optimizers", "scheduler", "schedulers", "model", "twins", "progress"}
    for name in (*only, *drop):
        kind, dot, rest = name.partition(".")
        if name not in known and f"{kind}s{dot}{rest}" not in known:
            raise SectionError(f"no section {name!r}; there are: {', '.join(sorted(present))}", present=sorted(present))


def is_wanted(section: str, only: Names, drop: Names) -> bool:
    """Say whether a section stays: it, or its kind in one word or the other, is named by ``only``, and not by ``drop``."""
    return not _meant(section, drop) and (
        not only or _meant(section, only) or (section in _OF and any(n.partition(".")[0] == _OF[section] for n in only))
    )


def asked(options: GatherOptions) -> GatherOptions:
    """Give what a caller wants gathered, also where it is not wanted in the end: a file that was named for a section may tell of others.

    (An optimizer tells a step which gates of the model were ever trained.)
    """
    told = {
        kind for kind in untaken(options.only, options.drop) if any(_meant(kind, (part,)) for part in options.parts)
    }
    if not told:
        return options
    drop = tuple(name for name in options.drop if not any(_meant(kind, (name,)) for kind in told))
    return replace(options, only=(*options.only, *sorted(told)) if options.only else (), drop=drop)


def untaken(only: Names, drop: Names) -> set[str]:
    """Give the kinds, optimizers and schedulers, of which nobody wants any, whatever numbers they have: one file may hold several."""
    named = {name.partition(".")[0].removesuffix("s") for name in only}
    words = {name.removesuffix("s") for name in drop}
    kinds = ("optimizers", "schedulers")
    return {kind for kind in kinds if (one := kind.removesuffix("s")) in words or (only and one not in named)}


def why_left(section: str, only: Names, drop: Names) -> str:
    """Give the reason for which a section that is not wanted is left out.

    A caller need not have said "progress": the files of a run are named by it, so it goes along.
    """
    said = ",".join(name for name in only if name != "progress") or "progress"
    return f"--drop {section}" if _meant(section, drop) else f"not in --sections {said}"


def _meant(section: str, names: Names) -> bool:
    kind, dot, name = section.partition(".")
    one = kind.removesuffix("s")
    return section in names or kind in names or one in names or f"{one}{dot}{name}" in names


def select(checkpoint: Checkpoint, only: Names = (), drop: Names = ()) -> None:
    """Leave out sections, each noted: "model", "twins", "twins.ema", "optimizers", "optimizers.1", "values.rng", "progress"."""
    check_selection(checkpoint, only, drop)
    select_optimizers(checkpoint, only, drop)
    select_others(checkpoint, only, drop)


def select_optimizers(checkpoint: Checkpoint, only: Names, drop: Names) -> None:
    """Leave out optimizers: before the others are named, so that one that does not fit the model can be dropped."""
    _select([s for s in section_names(checkpoint) if s.startswith("optimizers")], checkpoint, only, drop)


def select_others(checkpoint: Checkpoint, only: Names, drop: Names) -> None:
    """Leave out all other sections: after optimizers were named by the model."""
    _select([s for s in section_names(checkpoint) if not s.startswith("optimizers")], checkpoint, only, drop)


def _select(sections: list[str], checkpoint: Checkpoint, only: Names, drop: Names) -> None:
    for section in reversed(sections):
        if not is_wanted(section, only, drop):
            _remove(checkpoint, section, why_left(section, only, drop))


def section_names(checkpoint: Checkpoint) -> list[str]:
    """Give the sections that a checkpoint has, in their order."""
    progress = checkpoint.progress
    return [
        *(["model"] if checkpoint.model else []),
        *(["modules"] if checkpoint.modules else []),
        *(f"twins.{name}" for name in checkpoint.twins),
        *(f"optimizers.{i}" for i in range(len(checkpoint.optimizers))),
        *(f"schedulers.{i}" for i in range(len(checkpoint.schedulers))),
        *(f"values.{name}" for name in checkpoint.values),
        *(["progress"] if any(v is not None for v in (progress.epoch, progress.step, progress.best)) else []),
    ]


def is_bare_model(checkpoint: Checkpoint) -> bool:
    """Say whether there is a model and nothing that a training run would need beside it."""
    return bool(checkpoint.model) and all(s == "model" or _OF.get(s) == "model" for s in section_names(checkpoint))


def is_bare_state(checkpoint: Checkpoint) -> bool:
    """Say whether there is one optimizer or scheduler and nothing else: a framework's record of it, given alone."""
    return section_names(checkpoint) in (["optimizers.0"], ["schedulers.0"])


def _remove(checkpoint: Checkpoint, section: str, reason: str) -> None:
    kind, _, name = section.partition(".")
    if kind == "model":
        checkpoint.model = {}
    elif kind == "modules":
        checkpoint.modules = {}
    elif kind == "twins":
        del checkpoint.twins[name]
    elif kind == "optimizers":
        del checkpoint.optimizers[int(name)]
    elif kind == "schedulers":
        del checkpoint.schedulers[int(name)]
    elif kind == "values":
        del checkpoint.values[name]
    else:
        checkpoint.progress = Progress()
    places = checkpoint.origin.places
    for key in [k for k in places if k == section or (kind == section and k.startswith(f"{kind}."))]:
        del places[key]
    checkpoint.ledger.drop_under(section.replace(".", "/", 1), reason)
    if kind in {"optimizers", "schedulers"}:
        _move_up(checkpoint, kind, int(name))
    if kind == "model":
        for part in [p for p in section_names(checkpoint) if _OF.get(p) == "model"]:
            _remove(checkpoint, part, reason)
    if kind == "twins":
        _remove_others_of(checkpoint, name, reason)


def _remove_others_of(checkpoint: Checkpoint, twin: str, reason: str) -> None:
    """Leave out what stood in a twin and is no tensor."""
    others = checkpoint.values.get("twins", {})
    if twin in others:
        del others[twin]
        checkpoint.ledger.drop_under(f"values/twins/{twin}", reason)
        if not others:
            del checkpoint.values["twins"]


def _move_up(checkpoint: Checkpoint, kind: str, gone: int) -> None:
    """Close the gap that a removed optimizer or scheduler leaves."""
    places, ledger = checkpoint.origin.places, checkpoint.ledger
    count = len(checkpoint.optimizers if kind == "optimizers" else checkpoint.schedulers)
    for new in range(gone, count):
        if f"{kind}.{new + 1}" in places:
            places[f"{kind}.{new}"] = places.pop(f"{kind}.{new + 1}")
        old_item, new_item = f"{kind}/{new + 1}", f"{kind}/{new}"
        ledger.rename_all({item: ((new_item + item[len(old_item) :],), "renamed") for item in ledger.under(old_item)})
