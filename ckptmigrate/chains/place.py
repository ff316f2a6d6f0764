"""Where a checkpoint stands in a chain: what was said, its stamp, its file's own version, else its marks; 0 is before the first step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from ckptmigrate.errors import VersionError
from ckptmigrate.marks import facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.migrator import Chain, Migrator

    from .catalog import Step

BEFORE = Version("0")  # the place before the first step


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint stands in one chain. ``version`` None: nothing tells, ``why`` says so; ``text``: as it was found."""

    version: Version | None
    how: Literal["stamp", "layout", "marks", "said", "unknown"]
    text: str | None = None
    why: str | None = None
    whose: str | None = None

    @property
    def told(self) -> str:
        """Give who placed it, and where, as messages say it."""
        return f"{self.whose} says {self.text}" if self.whose else f"its marks place it at {self.version}"


def locate(
    checkpoint: Checkpoint, chain: Chain, steps: Sequence[Step], said: str | None = None, *, speaker: str = "--from"
) -> Place:
    """Tell where a checkpoint stands in a chain: what was said, its stamp, its layout's or format's own version, else its marks.

    Two of them that disagree are a VersionError that names both; ``speaker``: what messages call who said it.
    """
    found: list[tuple[Literal["stamp", "layout", "said"], str, str]] = []
    if chain.name in checkpoint.stamp.versions:
        found.append(("stamp", "its stamp", str(checkpoint.stamp.versions[chain.name])))
    found += [("layout", "the file's own version", text) for text in own_versions(checkpoint, chain.name)]
    if said is not None:
        if public(said) is None:
            raise VersionError(
                f"chain {chain.name}: {speaker} says {said!r}, which is no version (PEP 440)", chain=chain.name
            )
        found.append(("said", speaker, said))
    readable = [(how, whose, text, version) for how, whose, text in found if (version := public(text)) is not None]
    for (_, one, text, version), (_, other, second, different) in itertools.pairwise(readable):
        if version != different:
            raise VersionError(
                f"chain {chain.name}: {one} says {text}, {other} says {second}", chain=chain.name, said=(text, second)
            )
    if readable:
        how, whose, text, version = readable[0]
        return Place(_settled(checkpoint, version, steps), how, text, whose=whose)
    if found:
        _, whose, text = found[-1]
        return Place(None, "unknown", text, f"{whose} says {text!r}, which is no version (PEP 440)")
    return _by_marks(checkpoint, steps)


def public(text: str) -> Version | None:
    """Give the public part of a version, by which all are compared; None for text that is none."""
    try:
        return Version(Version(text).public)
    except ValueError:  # InvalidVersion is one, and so is a number of more digits than Python reads
        return None


def own_versions(checkpoint: Checkpoint, chain: str) -> Iterable[str]:
    """Give the versions that the files' own keys and formats tell of a chain, each once."""
    told = (versions.get(chain) for versions in facts(checkpoint, "versions") if isinstance(versions, dict))
    return dict.fromkeys(str(version) for version in told if version is not None)


def _settled(checkpoint: Checkpoint, version: Version, steps: Sequence[Step]) -> Version:
    """Let marks decide for a pre-release of a step's own version: without them the step is done, and the place is its version."""
    for step in steps:
        release = step.migrator.release
        own = (
            release == Version(version.base_version) and version < release
        )  # 2.0.post1.dev1 has that base, and comes after
        if own and step.migrator.marks and not marked(step.migrator, checkpoint):
            return release
    return version


def _by_marks(checkpoint: Checkpoint, steps: Sequence[Step]) -> Place:
    """Place an unstamped checkpoint: before the earliest step whose marks match, at the head if none does, or ask."""
    matching = [number for number, step in enumerate(steps) if marked(step.migrator, checkpoint)]
    earliest = matching[0] if matching else 0
    blind = [step for step in steps[earliest:] if not step.migrator.marks]
    if blind:
        return Place(
            None, "unknown", None, f"it has no stamp, and step {blind[0].migrator.version} has no marks to tell by"
        )
    taken = steps[: matching[0]] if matching else steps
    return Place(taken[-1].migrator.release if taken else BEFORE, "marks")


def held(steps: Sequence[Step], version: Version) -> str:
    """Give the version of the last step that holds at a version, as it was written; "0" before the first."""
    taken = [step.migrator.version for step in steps if step.migrator.release <= version]
    return taken[-1] if taken else str(BEFORE)


def check_settled(checkpoint: Checkpoint, chain: Chain, steps: Sequence[Step], place: Place) -> None:
    """Refuse a place that the marks of a step at or below it contradict: VersionError names both. Automatic chains have no such step."""
    if chain.automatic or place.how == "marks" or place.version is None:
        return
    for step in steps:
        if step.migrator.release <= place.version and marked(step.migrator, checkpoint):
            raise VersionError(
                f"chain {chain.name}: {place.told}, and the marks of step {step.migrator.version} "
                f"({step.where}) say that it is still needed",
                chain=chain.name,
            )


def marked(migrator: Migrator, checkpoint: Checkpoint) -> bool:
    """Say whether a step has marks, and all of them hold."""
    return bool(migrator.marks) and all(mark.holds(checkpoint) for mark in migrator.marks)
