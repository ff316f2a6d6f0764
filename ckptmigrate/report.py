"""Terminal output: what was found, done or refused, as lines that a person reads top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .batch import RunReport
    from .convert import Report
    from .doctor import Finding
    from .errors import CkptError
    from .runs import Epoch, Run
    from .verify import Difference

SHOWN = 20  # items of one kind on a terminal; --json has them all


def size(nbytes: int) -> str:
    """Give bytes as people read them: 512 B, 1.5 kB, 2.7 GB (powers of ten)."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def printable(text: str) -> str:
    """Give text as it may reach a terminal: what a file calls its tensors must not move the cursor or fake a line's colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def error_lines(error: CkptError) -> Iterator[str]:
    """Give the message and its remedies."""
    yield f"ckptmigrate: {error}"
    for hint in error.hints:
        yield f"hint: {hint}"


def error_dict(error: CkptError) -> dict[str, Any]:
    """Give an error as JSON can hold it."""
    shown: dict[str, Any] = {
        "type": type(error).__name__,
        "message": error.message,
        "path": error.path,
        "hints": error.hints,
    }
    problems = getattr(error, "problems", None)
    if problems:
        shown["problems"] = list(problems)
    return {"error": shown}


def report_lines(report: Report) -> Iterator[str]:
    """Give what a conversion did, would do, or found not to be pending."""
    what = f"{report.tensors} tensors, {size(report.nbytes)}, {report.format} (layout {report.layout})"
    if report.written:
        yield f"wrote {report.target}: {what}{', verified' if report.verified else ''}"
    else:
        yield f"nothing written; {report.target} would be: {what}"
    if report.backup:
        yield f"the original is kept as {report.backup}"
    yield from (f"step: {step}" for step in report.steps)
    yield from _some("renamed", [f"{f.source} -> {', '.join(f.targets)}" for f in report.fates if f.what == "renamed"])
    yield from _some("dropped", [f"{f.source} ({f.reason})" for f in report.fates if f.what == "dropped"])
    yield from _some("left out", [f"{path} ({reason})" for path, reason in report.left_out])
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"warning: {warning}" for warning in report.warnings)


def run_report_lines(report: RunReport) -> Iterator[str]:
    """Give what became of each epoch of a run, then of the files around them."""
    for number, one in report.reports.items():
        yield f"epoch {number}:"
        yield from (f"  {line}" for line in report_lines(one))
    for number, error in report.refused.items():
        yield f"epoch {number}: refused: {error}"
        yield from (f"  hint: {hint}" for hint in error.hints)
    yield from _some("copied", list(report.copied))
    yield from _some("not copied, as a record or unreadable", list(report.not_copied))
    if report.refused:
        yield f"{len(report.refused)} of {len(report.refused) + len(report.reports)} epochs refused"


def difference_lines(differences: Iterable[Difference]) -> Iterator[str]:
    """Give each difference; nothing when there is none."""
    yield from (f"{d.item}: {d.what}" for d in differences)


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Give each symptom under its file: what is said or silently done, why, and the command that mends it."""
    file = None
    for finding in findings:
        if finding.file != file:
            file = finding.file
            yield f"{file}:"
        yield f"  {'silent' if finding.silent else 'loud'}: {finding.message}"
        yield f"    why: {finding.cause}"
        yield f"    mend: {finding.remedy or 'nothing here; what is not in the file cannot be brought back'}"


def run_lines(runs: Iterable[Run]) -> Iterator[str]:
    """Give each run with its epochs, what is not there, and the newest epoch that can be resumed."""
    for run in runs:
        newest = run.newest
        yield f"{run.path}: layout {run.layout}, {len(run.epochs)} {_plural('epoch', len(run.epochs))}"
        yield from (line for epoch in run.epochs for line in _epoch_lines(epoch))
        gaps = [str(first) if first == last else f"{first} to {last}" for first, last in run.gaps]
        if gaps:
            yield f"  not there, as retention removed them or they were never saved: {', '.join(gaps)}"
        if newest is None:
            yield "  no epoch can be resumed"
        else:
            after = "" if newest.current else ", once it is migrated: its files are older than today's"
            yield f"  the newest that can be resumed: {newest.number}{after}"


def _epoch_lines(epoch: Epoch) -> Iterator[str]:
    there = ", ".join(f"{_section(file.section)} ({file.format or 'unknown'})" for file in epoch.files)
    yield f"  epoch {epoch.number}: {'whole' if epoch.whole else 'not whole'}: {there}"
    yield from (f"    no {_section(section)}" for section in epoch.missing)
    yield from (f"    {file.name} cannot be read: {file.problem}" for file in epoch.files if file.problem)
    yield from (f"    together: {problem}" for problem in epoch.problems)
    yield from (f"    warning: {warning}" for warning in epoch.warnings)
    yield from (f"    {name} is no part of it" for name in epoch.beside)


def _section(section: str) -> str:
    """Give a section as people say it: optimizer, optimizer 1."""
    kind, _, number = section.partition(".")
    return kind.removesuffix("s") + (f" {number}" if number not in {"", "0"} else "")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def inspection_lines(found: dict[str, Any]) -> Iterator[str]:
    """Give what ``inspect`` found, section by section."""
    yield f"{found['path']}: {found['format']}, layout {found['layout']}, family {found['family']}"
    if found["versions"]:
        yield "versions: " + ", ".join(f"{chain} {version}" for chain, version in found["versions"].items())
    sections = found["sections"]
    yield from _model_lines("model", sections["model"])
    for name, twin in sections.get("twins", {}).items():
        yield from _model_lines(f"twin {name}", twin)
    for number, optimizer in enumerate(sections["optimizers"]):
        state = sum(1 for p in optimizer["params"] if p["slots"] is not None)
        kind = optimizer["kind"] or "of a kind that the file does not tell"
        yield f"optimizer {number}: {kind}, {len(optimizer['groups'])} groups, {len(optimizer['params'])} parameters, {state} with state"
    for number, scheduler in enumerate(sections["schedulers"]):
        yield f"scheduler {number}: {', '.join(map(str, scheduler)) if isinstance(scheduler, dict) else scheduler}"
    for name, value in sections["values"].items():
        shown = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        yield f"values {name}: {shown}"
    if sections["progress"]:
        yield "progress: " + ", ".join(f"{key} {value}" for key, value in sections["progress"].items())
    yield from _some("left out", [f"{item['path']} ({item['reason']})" for item in found["left_out"]])
    yield from (f"note: {note}" for note in found["notes"])
    yield from (f"warning: {warning}" for warning in found["warnings"])


def _model_lines(title: str, model: dict[str, Any]) -> Iterator[str]:
    tensors = model["tensors"]
    yield f"{title}: {len(tensors)} tensors, {size(sum(t['nbytes'] for t in tensors))}"
    width = max((len(t["name"]) for t in tensors), default=0)
    for tensor in tensors:
        tie = model.get("ties", {}).get(tensor["name"])
        extra = f"  = {tie}" if tie else ""
        digest = f"  {tensor['sha256']}" if "sha256" in tensor else ""
        yield f"  {tensor['name']:{width}}  {tensor['dtype']:5} {tensor['shape']}{extra}{digest}"


def _some(title: str, items: list[str]) -> Iterator[str]:
    yield from (f"{title}: {item}" for item in items[:SHOWN])
    if len(items) > SHOWN:
        yield f"{title}: {len(items) - SHOWN} more (all with --json)"
