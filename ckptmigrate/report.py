"""Terminal output: what was found, done or refused, as lines that a person reads top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PlanError, first_of_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .batch import RunReport
    from .chains import Row as ChainRow
    from .checking import Standing
    from .convert import Report
    from .doctor import Finding
    from .errors import CkptError
    from .planning import Forecast, Row
    from .propose import Written
    from .runs import Epoch, Run
    from .stamping import Stamped
    from .verify import Change, Diff, Difference, Kind, Spread

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
    """Give text as it may reach a terminal: what a file calls its tensors must not move the cursor, fake a line or its colour."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def error_lines(error: CkptError) -> Iterator[str]:
    """Give the message and its remedies; a line for each problem of a plan."""
    if isinstance(error, PlanError) and len(error.problems) > 1:
        yield f"ckptmigrate: {f'{error.path}: ' if error.path else ''}{len(error.problems)} problems:"
        yield from (f"  - {problem}" for problem in first_of_each(error.problems))
    else:
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
    elif report.pending:
        yield f"nothing written; {report.target} would be: {what}"
    else:
        yield f"nothing is pending, nothing written; {report.target} stays as it is"
    if report.backup:
        yield f"the original is kept as {report.backup}"
    yield from (f"step: {step}" for step in report.steps)
    for what in ("renamed", "derived", "moved"):
        yield from _some(what, [f"{f.source} -> {', '.join(f.targets)}" for f in report.fates if f.what == what])
    yield from _some("added", [item for item, _ in report.added])
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


def diff_lines(diff: Diff, a: str, b: str) -> Iterator[str]:
    """Give what sets two checkpoints apart: the counts, then each kind of change, the widest gaps first."""
    for side, path, (form, layout, family) in (("A", a, diff.a), ("B", b, diff.b)):
        yield f"{side}: {path}: {form}, {f'layout {layout}, ' if layout else ''}family {family}"
    counts = [f"{diff.same} {_plural('tensor', diff.same)} the same"]
    counts += [f"{len(diff.of(kind))} {said}" for kind, said in _KINDS.items() if diff.of(kind)]
    if diff.others:
        counts.append(f"{len(diff.others)} other {_plural('difference', len(diff.others))}")
    yield ("equal: " if diff.equal else "") + ", ".join(counts)
    yield from _some(_KINDS["renamed"], _rename_lines(diff.of("renamed")))
    for kind, said in _KINDS.items():
        if kind != "renamed":
            yield from _some(said, [_change_line(change) for change in diff.of(kind)])
    yield from _some("other", [f"{d.item}: {d.what}" for d in diff.others])


_KINDS: dict[Kind, str] = {
    "renamed": "renamed",
    "only in a": "only in A",
    "only in b": "only in B",
    "reshaped": "reshaped",
    "recast": "recast",
    "values": "with other values",
}


def _rename_lines(changes: Iterable[Change]) -> list[str]:
    """Give renames, those of one replaced stem as one line: a prefix that came over 300 names is one thing that happened."""
    stems: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        old, new = (item.replace("/", ".", 1).split(".") for item in (change.was or "", change.item))
        while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
            del old[-1], new[-1]
        stem = tuple(f"{section}/{'.'.join([*rest, '*'])}" for section, *rest in (old, new))
        stems.setdefault((stem[0], stem[1]), []).append(change)
    return [
        _change_line(held[0]) if len(held) == 1 else f"{old} -> {new}  {len(held)} tensors"
        for (old, new), held in stems.items()
    ]


def _change_line(change: Change) -> str:
    looks = [f"{look.dtype} {list(look.shape)}" for look in (change.a, change.b) if look is not None]
    name = change.item if change.was is None else f"{change.was} -> {change.item}"
    line = f"{name}  {' -> '.join(dict.fromkeys(looks))}"
    notes = [said for said in (change.note, change.spread and _spread(change.spread)) if said]
    return f"{line}: {'; '.join(notes)}" if notes else line


def _spread(apart: Spread) -> str:
    said = f"{apart.differ} of {apart.elements} differ"
    if apart.max_abs == apart.nan_a == apart.nan_b == 0:
        said += ", in bits only (signed zeros, NaNs)"
    elif apart.max_abs and apart.max_rel is not None:
        said += f", by up to {apart.max_abs:.6g} ({_figure(apart.a)} and {_figure(apart.b)}{f' at {list(apart.at)}' if apart.at else ''}), relatively {apart.max_rel:.3g}"
    for side, count in (("A", apart.nan_a), ("B", apart.nan_b)):
        said += f"; {count} NaN in {side} alone" if count else ""
    return said


def _figure(number: complex | None) -> str:
    return f"{number:.9g}" if isinstance(number, float) else str(number)


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


def forecast_lines(found: Forecast) -> Iterator[str]:
    """Give what a conversion would do: where the checkpoint stands, steps, the table, what it takes, and every problem."""
    which = "" if found.epoch is None else f", epoch {found.epoch}"
    yield f"{found.source}{which}: family {found.family}"
    yield from _place_lines(found.places)
    for step in found.steps:
        numbers = ", ".join(f"{name}={value}" for name, value in step.numbers)
        way = "to" if step.direction == "up" else "back from"
        yield f"step: {step.chain} {way} {step.version}{f' with {numbers}' if numbers else ''} ({step.where})"
        yield from (f"  {operation}" for operation in step.operations)
    changed = [row for row in found.table if row.changes]
    yield f"tensors: {len(found.table) - len(changed)} stay as they are, {len(changed)} change"
    yield from (f"  {line}" for line in _row_lines(changed[:SHOWN]))
    if len(changed) > SHOWN:
        yield f"  {len(changed) - SHOWN} more (all with --json)"
    yield from _some("left out", [f"{path} ({reason})" for path, reason in found.left_out])
    if not found.problems:
        yield f"output: {size(found.nbytes)}, {found.format} (layout {found.layout}), {len(found.files)} {_plural('file', len(found.files))}"
        yield f"takes: {size(found.memory)} of memory for windows, {size(found.scratch)} of scratch"
    if found.stamps:
        yield "stamp: " + ", ".join(f"{name} {version}" for name, version in found.stamps)
    yield from (f"note: {note}" for note in found.notes)
    yield from (f"warning: {warning}" for warning in found.warnings)
    yield from (f"problem: {problem}" for problem in first_of_each(found.problems))
    if not found.pending:
        yield "nothing is pending"


def _row_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Give the rows of the table, its names side by side."""
    cells = [(" + ".join(row.before) or "(new)", row.after or f"(dropped: {row.reason})", row) for row in rows]
    width = max((len(before) for before, _, _ in cells), default=0)
    for before, after, row in cells:
        looks = [f"{dtype} {list(shape)}" for dtype, shape in filter(None, (row.was, row.becomes))]
        yield f"{before:{width}}  ->  {after}  {' -> '.join(dict.fromkeys(looks))}"


def _place_lines(places: Iterable[tuple[str, str | None, str]]) -> Iterator[str]:
    for name, version, by in places:
        yield f"  {name}: {'not known' if version is None else version} ({_BY[by]})"


_BY = {
    "stamp": "by its stamp",
    "layout": "by the file's own version",
    "marks": "by its marks",
    "said": "as the call says",
    "unknown": "nothing tells",
}


def standing_lines(found: Iterable[Standing]) -> Iterator[str]:
    """Give for each checkpoint whether it is current, and what is pending."""
    for one in found:
        which = "" if one.epoch is None else f", epoch {one.epoch}"
        if one.error is not None:
            yield f"{one.path}{which}: broken: {one.error}"
            yield from (f"  hint: {hint}" for hint in one.hints)
            continue
        behind = "unknown" if any(version is None for _, version, _ in one.places) else "behind"
        stands = [*([behind] if one.pending else ()), *(["does not fit"] if one.misfits else ())]
        yield f"{one.path}{which}: {', '.join(stands) or 'current'} ({one.format})"
        yield from _place_lines(one.places)
        yield from (f"  pending: {what}" for what in one.pending)
        yield from (f"  {what}" for what in first_of_each(one.misfits))
        yield from (f"  note: {note}" for note in one.notes)
        yield from (f"  warning: {warning}" for warning in one.warnings)


def chain_lines(found: Sequence[ChainRow]) -> Iterator[str]:
    """Give each chain with its versions, whether it applies unasked, what it is about, and where its steps lie."""
    for row in found:
        if row.error is not None:
            yield f"{row.name}: does not load: {row.error}"
            continue
        automatic = ", automatic" if row.automatic else ""
        yield f"{row.name}: {', '.join(row.versions) or 'no step'}{automatic}{f'; {row.about}' if row.about else ''}"
        yield from (f"  {where}" for where in row.where)


def written_lines(found: Written) -> Iterator[str]:
    """Give the file that was written, what is proven of it and what is not, and what is still to be said."""
    yield f"wrote {found.path}"
    if found.proposal is None:
        yield "fill in its marks and operations"
        return
    count = len(found.proposal.operations)
    yield f"{count} {_plural('operation', count)} proposed"
    yield from found.proposal.proof.lines()
    yield from (f"to be said: {line}" for line in found.proposal.open)


def stamped_lines(found: Stamped) -> Iterator[str]:
    """Give where a stamp was put, and why there."""
    said = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    if not found.files:
        yield f"{found.path}: {said}: {', '.join(found.reasons)}; nothing written"
        return
    yield from (f"{file}: {said}" for file in found.files)
    yield from (f"beside it, because {reason}" for reason in found.reasons)
    if found.backup is not None:
        yield f"the original is kept as {found.backup}"
