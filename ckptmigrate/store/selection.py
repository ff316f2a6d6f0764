"""Which sections a checkpoint has, and leaving some of them out, each noted in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.checkpoint import Progress
from ckptmigrate.errors import SectionError

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint


def select(checkpoint: Checkpoint, only: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> None:
    """Leave out sections, each noted: "model", "twins", "twins.ema", "optimizers", "optimizers.1", "values.rng", "progress".

    SectionError names a section that is not there and those that are.
    """
    present = section_names(checkpoint)
    kinds = {section.partition(".")[0] for section in present} | {"optimizer", "scheduler"}
    for name in (*only, *drop):
        if name not in present and name not in kinds:
            raise SectionError(f"no section {name!r}; there are: {', '.join(sorted(present))}", present=sorted(present))

    def meant(section: str, names: tuple[str, ...]) -> bool:
        kind = section.partition(".")[0]
        return section in names or kind in names or kind.removesuffix("s") in names

    for section in reversed(present):
        kept_with_model = section in {"modules", "values.model", "values.metadata"} and "model" in only
        if (only and not meant(section, only) and not kept_with_model) or meant(section, drop):
            _remove(
                checkpoint,
                section,
                f"--drop {section}" if meant(section, drop) else f"not in --sections {' '.join(only)}",
            )


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
    return bool(checkpoint.model) and not [
        section
        for section in section_names(checkpoint)
        if section not in {"model", "modules", "values.model", "values.metadata"}
    ]


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
    item = section.replace(".", "/", 1)
    checkpoint.ledger.drop_under(item, reason)
    if kind in {"optimizers", "schedulers"}:
        _move_up(checkpoint, kind, int(name))


def _move_up(checkpoint: Checkpoint, kind: str, gone: int) -> None:
    """Close the gap that a removed optimizer or scheduler leaves."""
    places, ledger = checkpoint.origin.places, checkpoint.ledger
    count = len(checkpoint.optimizers if kind == "optimizers" else checkpoint.schedulers)
    for new in range(gone, count):
        if f"{kind}.{new + 1}" in places:
            places[f"{kind}.{new}"] = places.pop(f"{kind}.{new + 1}")
        old_item, new_item = f"{kind}/{new + 1}", f"{kind}/{new}"
        ledger.rename_all({item: ((new_item + item[len(old_item) :],), "renamed") for item in ledger.under(old_item)})
