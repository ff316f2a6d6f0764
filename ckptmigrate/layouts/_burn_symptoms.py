"""What Burn's learner says when `.checkpoint(n)` does not load, in the order in which it loads: model, optimizer, scheduler.

It looks for one name, `checkpoint/model-{n}.bpk`, whatever lies beside it. What comes in ``parts.facts``: "expected", the section;
"file", the name of its file, None where there is none; "wanted", the path as the layout knows it, without a suffix; "epoch"; "said",
what the file's format says of its content. Source: burn-train/src/learner/base.rs 0.22.1; fixtures/burn/learner/messages.json.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptmigrate.format import Symptom

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.format import Parts

SUFFIX = ".bpk"
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
_CAUSES = {
    "model": "retention removed it, or the epoch was never saved",
    "optimizers": "without it nothing resumes; the weights alone can be taken",
    "schedulers": "every epoch needs one, a constant scheduler's too; the first releases wrote none",
}
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
        return [Symptom(_record(panic, absent), _CAUSES[section], False, _MISSING[section])]
    if file.endswith(SUFFIX):
        loud = next((at for at, symptom in enumerate(said) if not symptom.silent), None)
        if loud is not None:
            remedy = said[loud].remedy and MIGRATE
            said[loud] = replace(
                said[loud], message=_record(panic, said[loud].message), remedy=remedy or _MISSING["model"]
            )
        return said
    first = said.pop(0) if said and not said[0].silent else None  # what opening it under today's name would say
    cause = f"{file} is there, and today's Burn looks for no other name: {first.cause if first else 'rename it'}"
    remedy = MIGRATE if first is None or first.remedy else _MISSING["model"]
    others = [symptom if symptom.silent else replace(symptom, remedy=symptom.remedy and MIGRATE) for symptom in said]
    return [Symptom(_record(panic, absent), cause, False, _with_options(remedy, first)), *others]


def _with_options(remedy: str, first: Symptom | None) -> str:
    """Give a remedy for a run with the options that its file's own has: names for a binary record, numbers for a quantised one."""
    words = first.remedy.split() if first is not None else []
    at = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return " ".join([remedy, *words[at:]]) if remedy == MIGRATE else remedy


def _record(panic: str, text: str) -> str:
    return f"{panic}: Record(Io({json.dumps(text, ensure_ascii=False)}))"
