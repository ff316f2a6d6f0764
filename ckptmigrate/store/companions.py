"""What lies around a folder's checkpoint and tells of it: JSON files, of which a layout may make hints.

A scheduler's record may not tell of what kind it is. Then a caller says it, else the configuration beside the run does, where the
layout recognises one; two that contradict each other are refused, and so is one that the record contradicts.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CheckpointError, CkptError, UsageError
from ckptmigrate.format import GatherOptions, Parts
from ckptmigrate.values import strict_json

from .detection import detect
from .selection import is_wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.files import Source
    from ckptmigrate.format import Family, Layout, ReadOptions
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Tree

SUFFIX = ".json"
SCHEDULERS = "schedulers"
WAY_OUT = "name the inner folder, around which nothing is read, if that configuration is of another run"


def read_json(source: Source, limits: Limits) -> Any:
    """Give the value of a JSON file. CkptError where it is none, or larger than what a side file may be."""
    if source.size > limits.text:
        raise CheckpointError(f"{source.size:,} bytes of JSON, of which {limits.text:,} are allowed")
    return strict_json.loads(source.read(0, source.size), limits)


def beside(source: Source, taken: Collection[str], limits: Limits) -> tuple[dict[str, Any], list[str]]:
    """Give the JSON files at the top of a folder that are no part of its checkpoint, by name, and notes on those that are no JSON."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    for name in source.children():
        if not name.endswith(SUFFIX) or name in taken or (file := source.child(name)).is_folder():
            continue
        try:
            found[name] = read_json(file, limits)
        except CkptError as error:
            notes.append(f"{name} tells nothing: {error.message}")
    return found, notes


def told(options: GatherOptions, layout: Layout, companions: Mapping[str, Any]) -> GatherOptions:
    """Give the options with the scheduler's kind that the files beside tell; UsageError where a caller says another."""
    kind = layout.hints(companions).get("scheduler") if layout.hints is not None else None
    if kind is None or not is_wanted(f"{SCHEDULERS}.0", options.only, options.drop):
        return options
    said = options.scheduler
    if said is not None and _word(said) not in {kind, kind.partition("(")[0]}:
        raise UsageError(
            f"--scheduler {said}: {', '.join(companions)} beside the checkpoint has the configuration of {kind}",
            hint=WAY_OUT,
        )
    return replace(options, scheduler=kind)


@contextmanager
def explaining(said: GatherOptions, options: GatherOptions, companions: Mapping[str, Any]) -> Iterator[None]:
    """Add to a refusal of the scheduler's kind where it comes from, if not from the caller."""
    try:
        yield
    except CheckpointError as error:
        kind = (options.scheduler or "").partition("(")[0]
        if said.scheduler is None and kind and kind in error.message:
            error.add_note(f"{', '.join(companions)} tells of {kind}: {WAY_OUT}")
        raise


def _word(said: str) -> str:
    return said.replace(" ", "").lower()


def complete(checkpoint: Checkpoint, layout: Layout, family: Family, options: GatherOptions) -> None:
    """Add the scheduler without state that a caller says, where a layout has a file for one and the folder has none; else say so.

    CheckpointError where the kind that is said has state.
    """
    lacks = SCHEDULERS in layout.files and not checkpoint.schedulers and bool(checkpoint.optimizers)
    added = any(section.startswith("scheduler") for section in options.parts)  # --part: it comes from a file of its own
    if not lacks or added or not is_wanted(f"{SCHEDULERS}.0", options.only, options.drop):
        return
    if options.scheduler is None:
        checkpoint.ledger.warnings.append(
            f"has no {SCHEDULERS}, and training cannot be resumed without their file:"
            " --scheduler KIND adds that of a kind without state"
        )
        return
    try:
        value = family.unpack(SCHEDULERS, Parts(family=family.name, tree=None, tensors={}), options)
    except CheckpointError as error:
        raise CheckpointError(
            f"has no {SCHEDULERS}, and one of kind {options.scheduler} has state, which nobody can make up",
            hint="a kind without state can be added; without --scheduler the rest is taken",
        ) from error
    checkpoint.schedulers.append(value)
    checkpoint.ledger.notes.append(f"the scheduler is added, as --scheduler {options.scheduler} says: it has no state")


def schema(source: Source, options: ReadOptions) -> Tree | Parts:
    """Give what ``--schema`` says: the parts of a file that a format claims, else its JSON as it is."""
    try:
        match = detect(source)
    except CkptError:
        match = None
    if match is not None:
        return match.format.read(source, options)
    try:
        return read_json(source, options.limits)
    except CkptError as error:
        raise UsageError(
            f"--schema {source.name}: neither a checkpoint nor JSON: {error.message}",
            hint=next(iter(error.hints), None),
        ) from error
