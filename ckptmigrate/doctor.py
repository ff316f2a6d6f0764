"""What a framework says of a checkpoint, or silently does wrong with it: collects what formats, layouts and families diagnose.

    file ── its name's format and its content's ──► symptoms ── the layout of its run ──► the loader's words
         └─ its family: as what it is given, beside the other files of its epoch ──► symptoms

A file that our own readers refuse is no failure here but a symptom: the error goes into the facts. What is said to ``diagnose`` in
``parts.facts``: to a format "source", "refused" (the error, or None) and "content" (the name of the format whose content it is, or
None); to a family "expected" (the section as which the file is given), "beside" (section -> parts), "others" (epoch -> parts of its
model) and "hints"; to a layout, file by file, "expected", "file" (None: there is none), "wanted", "epoch", "versions" (who wrote the
epoch), "formats" (of what is there of it) and "said", the symptoms that its answer replaces. Remedies may hold {path}, {stem}, {suffix}, {folder}, {epoch} and {other:N}, the model of epoch N.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import registry, runs, store
from .errors import CheckpointError, CkptError, UnknownFormatError
from .files import Disk
from .format import Parts, ReadOptions, Symptom
from .limits import LIMITS
from .store import companions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .files import Source
    from .format import Format, Layout
    from .runs import Epoch, Run

MODEL = "model"
EPOCH_ANEW = "ckptmigrate migrate {folder} {folder}.new --epoch {epoch}"
ALLOWING = ("--dequantize", "--densify", "--inert-calls")  # what a refusal's hint may ask for
_OTHER = re.compile(r"\{other:(\d+)\}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One symptom: of which file, ``epoch`` None outside a run; ``remedy`` is a command line, "" where nothing mends it."""

    file: str
    epoch: int | None
    message: str
    cause: str
    silent: bool
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Give the finding as JSON can hold it."""
        return asdict(self)


@dataclass(slots=True)
class _Seen:
    """One file that was looked at: what it says, or why it cannot be read."""

    source: Source
    parts: Parts
    content: Format | None
    refused: CkptError | None


@dataclass(frozen=True, slots=True)
class _Words:
    """What the placeholders of a remedy stand for."""

    path: str
    folder: str
    epoch: int | None = None
    others: Mapping[int, str] = field(default_factory=dict)

    def fill(self, remedy: str) -> str:
        """Give a remedy as it is typed."""
        plain = {
            "{path}": self.path,
            "{stem}": _stem(self.path),
            "{suffix}": _suffix(self.path),
            "{folder}": self.folder,
            "{epoch}": str(self.epoch if self.epoch is not None else ""),
        }
        words = []
        for word in shlex.split(remedy):
            for mark, text in plain.items():
                word = word.replace(mark, text)  # noqa: PLW2901 - one mark after the other
            words.append(_OTHER.sub(lambda found: self.others[int(found[1])], word))
        return shlex.join(words)


def examine(path: str | Path) -> list[Finding]:
    """Give the symptoms of a file, or of the runs at and below a folder; [] where there is none. Nothing that a file holds raises."""
    try:
        with Disk() as disk:
            source = disk.open(path)
            if not source.is_folder():
                return list(_alone(source, str(path)))
            try:
                found = runs.find(path)
            except CheckpointError as error:
                return list(_folder(str(path), error))
            return [finding for run in found for finding in _run(disk, run)]
    except CkptError as error:
        return [_plain(str(path), None, error)]


def _plain(path: str, epoch: int | None, error: CkptError) -> Finding:
    """Give an error of ours that no framework has words for."""
    return Finding(path, epoch, error.message, "; ".join(error.hints), silent=False, remedy="")


def _folder(path: str, no_run: CheckpointError) -> Iterator[Finding]:
    """Give what is wrong with a folder that is no run: one checkpoint, or nothing that is known."""
    try:
        with store.open_checkpoint(path):
            return
    except CheckpointError as error:
        yield _plain(path, None, error)
    except CkptError as error:
        yield _plain(path, None, no_run if isinstance(error, UnknownFormatError) else error)


def _alone(source: Source, path: str) -> Iterator[Finding]:
    """Give the symptoms of one file, with no look at its neighbours: as what its name says it is, where a layout knows that."""
    seen = _look(source)
    facts = {"expected": _expected(path)}
    symptoms = [*_format(seen), *_family(seen, facts)]
    parent = path.rpartition("/")[0] or "."
    folders = {p.rpartition("/")[0] for layout in registry.layouts() for p in layout.files.values()} - {""}
    folder = parent.removesuffix("/" + parent.rpartition("/")[2]) if parent.rpartition("/")[2] in folders else parent
    folder = folder if folder not in folders else "."
    for symptom in symptoms:
        mends = "{folder}" not in symptom.remedy or _is_run(folder)  # a file that lies in no run has none to go on with
        yield from _findings([symptom if mends else replace(symptom, remedy="")], path, _Words(path, folder))
    if not symptoms and seen.refused is None:
        try:
            with store.open_checkpoint(path):
                pass
        except CkptError as error:
            yield _plain(path, None, error)


def _is_run(folder: str) -> bool:
    """Say whether a folder is a run that can be migrated, at least by its models."""
    try:
        run = runs.at(folder, ReadOptions())
    except CkptError:
        return False
    return run is not None and not any(MODEL in epoch.missing for epoch in run.epochs)


def _run(disk: Disk, run: Run) -> Iterator[Finding]:
    layout, root = registry.layout(run.layout), disk.open(run.path)
    beside, _ = companions.beside(root, (), LIMITS)
    hints = layout.hints(beside) if layout.hints is not None else {}
    seen = {e.number: {file.name: _look(store.child(root, file.name)) for file in e.files} for e in run.epochs}
    models = {
        epoch.number: (file.name, seen[epoch.number][file.name].parts)
        for epoch in run.epochs
        for file in epoch.files
        if file.kind == MODEL and _is_model(seen[epoch.number][file.name])
    }
    for epoch in run.epochs:
        others = {number: parts for number, (_, parts) in models.items() if number != epoch.number}
        facts = {"hints": hints, "others": others}
        names = {number: f"{run.path}/{name}" for number, (name, _) in models.items()}
        yield from _epoch(run, layout, epoch, seen[epoch.number], facts, names)


def _epoch(
    run: Run, layout: Layout, epoch: Epoch, seen: Mapping[str, _Seen], facts: dict[str, Any], models: Mapping[int, str]
) -> Iterator[Finding]:
    """Give the symptoms of one epoch in the order of its layout's table, which is the loader's."""
    told = list(_told(run, layout, epoch, seen, facts))
    lost = [said[0].remedy for name, _, said in told if said and (name is None or seen[name].refused is not None)]
    for _, path, said in told:
        mended = [replace(symptom, remedy=_without(symptom.remedy, lost)) for symptom in said]
        yield from _findings(mended, path, _Words(path, run.path, epoch.number, models))
    if not any(said for _, _, said in told):
        for problem in epoch.problems:
            yield _plain(run.path, epoch.number, CheckpointError(problem))


def _told(
    run: Run, layout: Layout, epoch: Epoch, seen: Mapping[str, _Seen], facts: dict[str, Any]
) -> Iterator[tuple[str | None, str, list[Symptom]]]:
    """Give each file of an epoch, None for one that should be there, its path, and its symptoms with the remedies of a run."""
    beside = {file.kind: seen[file.name].parts for file in epoch.files if seen[file.name].refused is None}
    versions = {chain: text for parts in beside.values() for chain, text in parts.facts.get("versions", {}).items()}
    formats = {found.name for file in epoch.files if (found := seen[file.name].content) is not None}
    inner = not any("/" in file.name for file in epoch.files)  # the folder of the files itself was named
    for section, pattern in layout.files.items():
        wanted = f"{run.path}/{pattern.rpartition('/')[2] if inner else pattern}".replace("{epoch}", str(epoch.number))
        files: list[str | None] = [file.name for file in epoch.files if file.kind == section]
        if section in epoch.missing:
            files.append(None)
        for name in files:
            one = None if name is None else seen[name]
            said = [] if one is None else _format(one)
            if layout.diagnose is not None:
                told = {"expected": section, "file": name, "wanted": wanted, "epoch": epoch.number, "said": said}
                said = layout.diagnose(Parts(facts={**told, "versions": versions, "formats": formats}), None)
            elif name is None:
                said = [
                    Symptom(f"epoch {epoch.number} has no {section}", f"{wanted} is not there", silent=False, remedy="")
                ]
            if one is not None:
                said = [*said, *_family(one, {"expected": section, "beside": beside, **facts})]
            path = wanted if name is None else f"{run.path}/{name}"
            yield name, path, [replace(symptom, remedy=_of_run(symptom.remedy)) for symptom in said]


def _without(remedy: str, lost: list[str]) -> str:
    """Give the remedy that mends what is left of an epoch: one that takes all of it would be refused for what is lost of it."""
    if not lost or not remedy.startswith(EPOCH_ANEW):
        return remedy
    first = lost[0]
    further = remedy.removeprefix(EPOCH_ANEW) if remedy not in lost and first.startswith(EPOCH_ANEW) else ""
    return f"{first}{further}"


def _of_run(remedy: str) -> str:
    """Give a remedy that writes one file anew as it is for a run, whose loader looks for no other name."""
    words = remedy.split(" ")
    if words[:3] != ["ckptmigrate", "migrate", "{path}"]:
        return remedy
    return " ".join([EPOCH_ANEW, *words[4:]])


def _is_model(seen: _Seen) -> bool:
    """Say whether a file can be what the models of other epochs are compared with."""
    if seen.refused is not None or seen.parts.family is None:
        return seen.refused is None
    return registry.family(seen.parts.family).section(seen.parts) in {MODEL, None}


def _look(source: Source) -> _Seen:
    content = None
    try:
        match = store.detect(source)
        content = match.format
        return _Seen(source, store.read(source, ReadOptions(), match), content, None)
    except CkptError as error:
        return _Seen(source, Parts(), content, error)


def _format(seen: _Seen) -> list[Symptom]:
    """Give what the format of a file's name and that of its content say; where neither has words, what our reader found."""
    content = None if seen.content is None else seen.content.name
    facts = {"source": seen.source, "refused": seen.refused, "content": content}
    parts = replace(seen.parts, facts={**seen.parts.facts, **facts})
    asked = [each for each in (_named(seen.source.name), seen.content) if each is not None]
    symptoms: list[Symptom] = []
    for one in dict.fromkeys(each.name for each in asked):
        diagnose = registry.format(one).diagnose
        for symptom in diagnose(parts, None) if diagnose is not None else ():
            if symptom.message not in {other.message for other in symptoms}:
                symptoms.append(symptom)
    if seen.refused is not None and not symptoms:
        hints = "; ".join(seen.refused.hints)
        options = [option for option in ALLOWING if option in hints]
        remedy = " ".join(["ckptmigrate migrate {path} {stem}.new{suffix}", *options]) if options else ""
        symptoms.append(Symptom(seen.refused.message, hints, silent=False, remedy=remedy))
    return symptoms


def _family(seen: _Seen, facts: Mapping[str, Any]) -> list[Symptom]:
    if seen.refused is not None or seen.parts.family is None:
        return []
    diagnose = registry.family(seen.parts.family).diagnose
    return [] if diagnose is None else diagnose(replace(seen.parts, facts={**seen.parts.facts, **facts}), None)


def _named(name: str) -> Format | None:
    """Give the format that a file bears the suffix of, where it diagnoses and no other family's files bear it."""
    suffix = _suffix(name)
    bearers = [one for one in registry.formats() if suffix in one.suffixes]
    alone = len({one.family for one in bearers}) == 1
    return next((one for one in bearers if one.diagnose is not None), None) if alone else None


def _suffix(name: str) -> str:
    """Give the longest suffix of a file that a format writes or reads."""
    known = {suffix for one in registry.formats() for suffix in one.suffixes if name.lower().endswith(suffix)}
    return max(known, key=len, default="")


def _stem(path: str) -> str:
    return path[: len(path) - len(_suffix(path))]


def _expected(path: str) -> str | None:
    """Give the section that a file's name says it is, where the layout of its loader diagnoses."""
    name = path.rpartition("/")[2]
    for layout in registry.layouts():
        for section, pattern in layout.files.items() if layout.diagnose is not None else ():
            before, hole, after = pattern.rpartition("/")[2].partition("{epoch}")
            if hole and re.fullmatch(rf"{re.escape(before)}\d{{1,18}}{re.escape(after)}", _stem(name)):
                return section
    return None


def _findings(symptoms: list[Symptom], path: str, words: _Words) -> Iterator[Finding]:
    for symptom in symptoms:
        remedy = words.fill(symptom.remedy) if symptom.remedy else ""
        yield Finding(path, words.epoch, symptom.message, symptom.cause, symptom.silent, remedy)
