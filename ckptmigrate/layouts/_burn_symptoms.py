"""What Burn's learner says when `.checkpoint(n)` does not load, in the order in which it loads: model, optimizer, scheduler.

It looks for one name, `checkpoint/model-{n}.bpk`, whatever lies beside it. What comes in ``parts.facts``: "expected", the section;
"file", the name of its file, None where there is none; "wanted", the path as the layout knows it, without a suffix; "epoch"; "versions",
{"burn": release} where its records tell who wrote them; "formats" of the epoch's files; "said", what the file's format says of its content.
Sources: burn-train/src/learner/base.rs 0.22.1; fixtures/burn/learner/messages.json; burn-core/src/module/state.rs 0.4 for the State era.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from ckptmigrate.format import Symptom

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Parts

SUFFIX = ".bpk"
LOADED = "Failed to load record"  # the panic of a file that was opened, and does not fit the model
PANICS = {
    "model": "Can load model checkpoint.",
    "optimizers": "Can load optimizer checkpoint.",
    "schedulers": "Can load learning rate scheduler checkpoint.",
}
_MISSING = {
    "model": "ckptmigrate epochs {folder}",
    "optimizers": "ckptmigrate migrate {folder} {folder}.new --epoch {epoch} --sections model",
    "schedulers": "ckptmigrate migrate {folder} {folder}.new --epoch {epoch} --scheduler constant",
}
_DAMAGED = _MISSING | {"schedulers": "ckptmigrate migrate {folder} {folder}.new --epoch {epoch} --drop schedulers"}
_CAUSES = {
    "model": "retention removed it, or the epoch was never saved",
    "optimizers": "without it nothing resumes; the weights alone can be taken",
    "schedulers": "every epoch needs one, a constant scheduler's too; the first releases wrote none",
}
STATE, STATES = "burn_state", {"model", "optimizers"}  # the releases that wrote these had no scheduler
UNFOUND = (
    "called `Result::unwrap()` on an `Err` value: StateError(FileNotFound("
    '"Os { code: 2, kind: NotFound, message: \\"No such file or directory\\" }"))'
)
_RECORDERS, _WORDED, _TODAY = Version("0.7.0"), Version("0.10.0"), Version("0.22.0.dev0")
MIGRATE = "ckptmigrate migrate {folder} {folder}.new --epoch {epoch}"


def diagnose(parts: Parts, _: Checkpoint | None) -> list[Symptom]:
    """Give the symptoms of one of the three files, in the learner's words, in place of those that its format gave."""
    facts = parts.facts
    section, file, wanted, said = facts["expected"], facts["file"], facts["wanted"], list(facts["said"])
    panic = PANICS.get(section)
    if panic is None:
        return said
    absent = f"I/O error: cannot open '{wanted}{SUFFIX}': No such file or directory (os error 2)"
    if file is None:
        remedy = _MISSING[section]
        found = [Symptom(_record(panic, absent), _CAUSES[section], False, remedy)]
        before = _before(panic, facts.get("versions", {}).get("burn"))
        if section in STATES and STATE in facts.get("formats", ()):
            before = [(UNFOUND, "0.3 to 0.6")]
        return found + [Symptom(text, f"Burn {release} says so of the same", False, remedy) for text, release in before]
    if file.endswith(SUFFIX):
        loud = next(
            (at for at, symptom in enumerate(said) if not symptom.silent and LOADED not in symptom.message), None
        )
        if loud is not None:
            said[loud] = replace(
                said[loud],
                message=_record(panic, said[loud].message),
                remedy=said[loud].remedy or _DAMAGED[section],
            )
        return said
    first = said.pop(0) if said and not said[0].silent else None  # what opening it under today's name would say
    cause = f"{file} is there, and today's Burn looks for no other name: {first.cause if first else 'rename it'}"
    remedy = MIGRATE if first is None else first.remedy or _DAMAGED[section]
    return [Symptom(_record(panic, absent), cause, False, remedy), *said]


def _before(panic: str, version: str | None) -> list[tuple[str, str]]:
    """Give what the release of recorders that wrote an epoch says of a file that is not there, and that release; [] where none tells."""
    try:
        release = None if version is None else Version(version)
    except InvalidVersion:
        return []
    if release is None or not _RECORDERS <= release < _TODAY:
        return []
    found = 'RecorderError(FileNotFound("No such file or directory (os error 2)"))'
    said = f"{panic}: {found}" if release >= _WORDED else f"called `Result::unwrap()` on an `Err` value: {found}"
    return [(said, str(release))]


def _record(panic: str, text: str) -> str:
    return f"{panic}: Record(Io({json.dumps(text, ensure_ascii=False)}))"
