"""Where a checkpoint stands in each chain, and the steps that lead it to where it should.

    stamp ─┐
    layout ├─ locate ─► Place ─ plan ─► Plan(steps, problems) ─ apply ─► checkpoint, stamped
    said   │            0 is before the first step
    marks ─┘

A plan is made on a sketch, a checkpoint of the same promises: every step is applied to it, so that the marks of the next are read
on names as its predecessors left them, and all problems are known before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate import engine, registry
from ckptmigrate.checkpoint import Applied, Stamp
from ckptmigrate.errors import CkptError, PlanError, VersionError
from ckptmigrate.marks import facts

from .catalog import Catalog, Row
from .place import BEFORE, Place, check_settled, held, locate, marked, own_versions, public
from .project import Project, project
from .sketch import sketched

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.engine import Direction, Ties
    from ckptmigrate.format import Family
    from ckptmigrate.migrator import Chain, Migrator

    from .catalog import Step

__all__ = [
    "BEFORE", "Catalog", "Place", "Plan", "Planned", "Project", "Row", "check_settled", "installed", "locate", "plan", "project",
    "public", "upgrade",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """One step to take, with the numbers it is given."""

    migrator: Migrator
    where: str
    direction: Direction = "up"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """Give one line: the chain, the way, the file."""
        arrow = "to" if self.direction == "up" else "back from"
        return f"{self.migrator.chain} {arrow} {self.migrator.version} ({self.where})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to happen, or why it cannot. ``stamps``: the version to write for each chain that was applied, stamped or said."""

    steps: tuple[Planned, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    stamps: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    crossings: Mapping[str, str] = field(default_factory=dict)  # chain -> the family that it leads to
    ties: Ties = "keep"

    @property
    def told(self) -> tuple[tuple[str, str | None, str], ...]:
        """Give each chain with the version at which the checkpoint stands (None: nothing tells), and what tells it."""
        placed = self.places.items()
        return tuple((name, None if at.version is None else str(at.version), at.how) for name, at in placed)

    def pending(self) -> tuple[str, ...]:
        """Give what keeps the checkpoint from being current, for ``check``: steps to take, and places that nothing tells."""
        return (*(step.describe() for step in self.steps), *self.problems)

    def apply(self, checkpoint: Checkpoint, family: Family) -> list[str]:
        """Take the steps, in place, and stamp; give every problem. PlanError where the plan has problems already."""
        if self.problems:
            raise PlanError(self.problems)
        problems: list[str] = []
        for number, step in enumerate(self.steps):
            problems += _take(checkpoint, step, family, self.ties)
            last = all(later.migrator.chain != step.migrator.chain for later in self.steps[number + 1 :])
            if last and (name := self.crossings.get(step.migrator.chain)):
                checkpoint.family, family = name, registry.family(name)
        versions = {**checkpoint.stamp.versions, **self.stamps}
        checkpoint.stamp = replace(checkpoint.stamp, versions=versions)
        _write_keys(checkpoint, self.stamps)
        return problems


def installed(folders: Iterable[Path | str] = ()) -> list[Row]:
    """Give a row for every chain that is found: shipped, installed, and of the given folders; a broken one with the reason."""
    return Catalog.find(folders).rows()


def plan(
    checkpoint: Checkpoint,
    catalog: Catalog,
    *,
    named: Mapping[str, str | None] | None = None,
    said: Mapping[str, str] | None = None,
    family: Family,
    projected: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    ties: Ties = "keep",
) -> Plan:
    """Give the steps from where a checkpoint stands to where it should; nothing in it changes.

    ``named``: chain -> target (None: its head), in the order in which they are applied; ``said``: chain -> version, as with
    ``--from``; ``projected``: chains of the project's configuration. Automatic chains and those of the stamp apply unasked.
    """
    making = _Making(checkpoint, catalog, dict(named or {}), dict(said or {}), family, dict(parameters or {}), ties)
    return making.run(projected)


def upgrade(checkpoint: Checkpoint, catalog: Catalog, *, family: Family, **options: Any) -> Plan:
    """Plan and apply in one, in place; PlanError with every problem. ``options`` are those of ``plan``."""
    made = plan(checkpoint, catalog, family=family, **options)
    problems = made.apply(checkpoint, family)
    if problems:
        raise PlanError(problems)
    return made


class _Making:
    """A plan in the making: the sketch that steps are tried on, and what was found so far."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        catalog: Catalog,
        named: dict[str, str | None],
        said: dict[str, str],
        family: Family,
        parameters: dict[str, Any],
        ties: Ties,
    ) -> None:
        self.checkpoint, self.sketch, self.catalog = checkpoint, sketched(checkpoint), catalog
        self.named, self.said, self.family, self.parameters, self.ties = named, said, family, parameters, ties
        self.steps: list[Planned] = []
        self.places: dict[str, Place] = {}
        self.stamps: dict[str, str] = {}
        self.crossings: dict[str, str] = {}
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def run(self, projected: Sequence[str]) -> Plan:
        stamped, asked = sorted(self.checkpoint.stamp.versions), [*projected, *self.said]
        absent = [name for name in stamped if name not in {*asked, *self.named} and not self.catalog.has(name)]
        self.notes += [f"chain {name}: not installed here, not checked" for name in absent]
        automatic = [chain.name for chain in self.catalog.loaded() if chain.automatic]
        unasked = [name for name in (*automatic, *stamped, *asked) if name not in {*self.named, *absent}]
        order = dict.fromkeys([*unasked, *self.named])  # what the call names, in the order in which it names it
        for name in order:
            try:
                self._chain(name)
            except CkptError as error:
                self.problems.append("; ".join([error.message, *error.hints]))
        idle = sorted(set(self.catalog.broken) - set(order))
        unused = sorted(set(self.parameters) - {name for step in self.steps for name in step.parameters})
        self.warnings += [f"--set {name}: no step that is taken needs it" for name in unused]
        self.warnings += [f"chain {name} does not load: {self.catalog.broken[name]}" for name in idle]
        return Plan(
            tuple(self.steps),
            self.places,
            self.stamps,
            tuple(self.problems),
            tuple(self.notes),
            tuple(self.warnings),
            tuple(self._suggestions(set(order))),
            self.crossings,
            self.ties,
        )

    def _chain(self, name: str) -> None:
        chain, steps = self.catalog.chain(name), self.catalog.steps(name)
        if chain.family not in (None, self.sketch.family):
            if name in self.named or name in self.said:
                self.problems.append(
                    f"chain {name} is for family {chain.family}, and the checkpoint is of {self.sketch.family}"
                )
            return
        self._check_history(name, steps)
        place = self.places[name] = locate(self.sketch, chain, steps, self.said.get(name))
        if place.version is None:
            self._unplaced(chain, place)
            return
        target = self._target(name, steps)
        if target < place.version and name in self.named and self.named[name] is not None:
            self._down(name, steps, place.version, target)
        else:
            self._up(chain, steps, place, place.version, target)

    def _unplaced(self, chain: Chain, place: Place) -> None:
        message = f"chain {chain.name}: {place.why}"
        if chain.automatic and chain.name not in self.named:
            self.warnings.append(f"{message}; not checked")
        else:
            self.problems.append(f"{message}; say where it stands with --from {chain.name}=VERSION")

    def _target(self, name: str, steps: Sequence[Step]) -> Version:
        text = self.named.get(name)
        if text is None:
            return steps[-1].migrator.release if steps else BEFORE
        target = public(text)
        if target is None:
            raise VersionError(f"chain {name}: {text!r} is no version (PEP 440)", chain=name)
        return target

    def _up(self, chain: Chain, steps: Sequence[Step], place: Place, standing: Version, target: Version) -> None:
        name = chain.name
        check_settled(self.sketch, chain, steps, place)
        taken, before = None, len(self.problems)
        for step in steps:
            migrator = step.migrator
            if not standing < migrator.release <= target:
                continue
            if migrator.marks and not marked(migrator, self.sketch):
                if chain.automatic:
                    continue
                if not migrator.optional and len(self.problems) == before:  # else a step before it left other names
                    raise VersionError(
                        f"chain {name}: {place.told}, and the marks of step {migrator.version} ({step.where}) do not match",
                        chain=name,
                    )
            self._step(step, "up", self.parameters)
            taken = migrator
        if taken is None and chain.automatic and place.how in {"stamp", "said"} and standing < target:
            self.stamps[name] = held(steps, target)  # what was passed without need holds as well
        elif taken is not None:
            self.stamps[name] = held(steps, target) if chain.automatic else taken.version
            if chain.crosses is not None:
                self.crossings[name] = self.sketch.family = chain.crosses
                self.family = registry.family(chain.crosses)
        elif place.text is not None and place.how in {"stamp", "said"}:
            self.stamps[name] = (
                place.text if place.how == "said" or place.version == public(place.text) else str(place.version)
            )
        elif (
            place.how == "marks" and steps and name in self.named and standing == steps[-1].migrator.release
        ):  # else a chain that was asked for would do nothing in silence
            about = f" ({chain.about})" if chain.about else ""
            self.notes.append(f"chain {name}: no step's marks match, so nothing of it is applied{about}")

    def _down(self, name: str, steps: Sequence[Step], standing: Version, target: Version) -> None:
        if not steps or standing > steps[-1].migrator.release:
            newest = steps[-1].migrator.version if steps else "none"
            raise VersionError(
                f"chain {name}: it stands at {standing}, above the newest step ({newest}), and cannot go down",
                chain=name,
            )
        history = {(a.chain, a.version): dict(a.parameters) for a in self.checkpoint.stamp.history}
        for step in reversed(steps):
            if target < step.migrator.release <= standing:
                self._step(step, "down", {**history.get((name, step.migrator.version), {}), **self.parameters})
        self.stamps[name] = held(steps, target)

    def _step(self, step: Step, direction: Direction, parameters: Mapping[str, Any]) -> None:
        given, _ = engine.numbers(self.sketch, step.migrator, parameters)
        planned = Planned(step.migrator, step.where, direction, given)
        self.problems += _take(self.sketch, planned, self.family, self.ties)
        self.steps.append(planned)

    def _check_history(self, name: str, steps: Sequence[Step]) -> None:
        known = {step.migrator.version: step for step in steps}
        for applied in self.checkpoint.stamp.history:
            step = known.get(applied.version)
            if applied.chain == name and step is None:
                self.warnings.append(f"{name} {applied.version} was applied, and is no step of the chain any more")
            elif applied.chain == name and step is not None and step.migrator.digest != applied.digest:
                self.warnings.append(f"{step.migrator.name} was applied, and has changed since ({step.where})")

    def _suggestions(self, done: set[str]) -> Iterator[str]:
        """Give the chains that nobody named and whose marks match in what the steps would leave, at a step that it does not have behind it."""
        for chain in self.catalog.loaded():
            if chain.name in done or chain.automatic or chain.family not in (None, self.sketch.family):
                continue
            steps = self.catalog.steps(chain.name)
            told = [found for text in own_versions(self.sketch, chain.name) if (found := public(text)) is not None]
            for step in steps:
                if step.migrator.release > max(told, default=BEFORE) and marked(step.migrator, self.sketch):
                    yield f"chain {chain.name} looks needed (step {step.migrator.version}); apply it with --chain {chain.name}"
                    break


def _take(checkpoint: Checkpoint, step: Planned, family: Family, ties: Ties) -> list[str]:
    """Take one step and write it into the history: up appends, down removes."""
    migrator = step.migrator
    problems = engine.apply(
        checkpoint, migrator, family, direction=step.direction, parameters=step.parameters, ties=ties
    )
    history = list(checkpoint.stamp.history)
    if step.direction == "up":
        history.append(
            Applied(migrator.chain, migrator.version, migrator.digest, tuple(sorted(step.parameters.items())))
        )
    else:
        same = [i for i, a in enumerate(history) if (a.chain, a.version) == (migrator.chain, migrator.version)]
        history = [a for i, a in enumerate(history) if not same or i != same[-1]]
    checkpoint.stamp = Stamp(dict(checkpoint.stamp.versions), tuple(history))
    return problems


def _write_keys(checkpoint: Checkpoint, stamps: Mapping[str, str]) -> None:
    """Write new versions where the file itself says them, so that key and stamp do not disagree."""
    for versions in facts(checkpoint, "versions"):
        versions.update({chain: stamps[chain] for chain in versions if chain in stamps})
    if checkpoint.origin.layout is None:
        return
    for chain, key in registry.layout(checkpoint.origin.layout).version_at.items():
        for holder in (checkpoint.values, *checkpoint.values.values()):
            if chain in stamps and isinstance(holder, dict) and isinstance(holder.get(key), str):
                holder[key] = stamps[chain]
