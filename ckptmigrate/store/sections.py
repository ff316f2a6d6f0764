"""Where the parts of a checkpoint lie in one tree: where a caller says, by a layout's table, and by what a value looks like.

Exactly one candidate is the model. A further one with exactly the model's names is a twin. Anything else is ambiguous. Every
value that the family accepts as an optimizer is one, wherever it lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Optimizer
from ckptmigrate.errors import AmbiguousError, CheckpointError, OptimizerError, SectionError
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Scalar, spell

from .paths import at, keys, members, names, resolve
from .selection import is_wanted
from .state_dicts import StateDict, any_tensors, at_root, nested, state_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptmigrate.format import Family, GatherOptions, Layout
    from ckptmigrate.values import Path, Tree

    Table = Mapping[str, Sequence[Path]]

SHALLOW = 2  # keys: a scheduler looks like any dictionary that counts epochs, so it is not looked for further down
_MARKS = ("state_dict", "model", "params", "net")  # what a twin's key says beside the twin's name


@dataclass(slots=True)
class Sections:
    """What lies where in one tree: section -> path, and the value of each, unpacked."""

    layout: Layout | None = None
    places: dict[str, Path] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    taken: set[Path] = field(default_factory=set)
    above: set[Path] = field(default_factory=set)  # every path that leads to a place, and the places

    def put(self, section: str, path: Path, value: Any) -> None:
        """Note a section."""
        self.places[section] = path
        self.values[section] = value
        self.above.update(path[:n] for n in range(len(path) + 1))
        self.taken.add(path)

    def next(self, kind: str) -> str:
        """Give the section of the next optimizer or scheduler."""
        return next(s for n in range(len(self.places) + 1) if (s := f"{kind}.{n}") not in self.places)

    def covers(self, path: Path) -> bool:
        """Say whether a section lies at, above or below a path."""
        return path in self.above or self.holds(path)

    def holds(self, path: Path) -> bool:
        """Say whether a section lies at or above a path."""
        return any(path[:n] in self.taken for n in range(len(path) + 1))


def find(tree: Tree, layout: Layout | None, family: Family, options: GatherOptions) -> Sections:
    """Give the sections of a file's tree; AmbiguousError, SectionError or CheckpointError where there is not one reading."""
    found = Sections(layout)
    for section, said in options.sections.items():
        path = resolve(tree, said)
        _force(found, section, path, at(tree, path), family, options)
    table = layout.keys if layout is not None else {}
    if "model" not in found.places and not found.places and (root := at_root(tree)):
        found.put("model", (), root)
        return found
    _from_table(tree, table, found, family, options)
    _search(tree, found, family, options)
    if "model" in found.places:
        _twins(_candidates(tree, found), table, found, strict=False)
    elif () not in found.taken:
        _model(tree, table, found)
    return found


def _force(found: Sections, section: str, path: Path, value: Tree, family: Family, options: GatherOptions) -> None:
    kind, _, name = section.partition(".")
    where = spell(path) or "the root"
    if section == "model" or (kind == "twins" and name):
        tensors = any_tensors(value)
        if tensors is None:
            raise SectionError(f"{where} is no set of tensors; it has: {keys(value)}", section=section)
        found.put(section, path, tensors)
    elif kind in {"optimizers", "optimizer", "schedulers", "scheduler"}:
        kind = kind.removesuffix("s") + "s"
        section = f"{kind}.{name}" if name else found.next(kind)
        one = _unpacked(kind, value, found, family, options)
        if one is None and kind == "optimizers":
            raise SectionError(f"{where} is no optimizer state; it has: {keys(value)}", section=section)
        found.put(section, path, value if one is None else one)
    elif (kind == "values" and name) or section in {"progress.epoch", "progress.step", "progress.best"}:
        if not _fits(section, value):
            raise SectionError(f"{where} is no {name}: it is a {type(value).__name__}", section=section)
        found.put(section, path, value)
    else:
        raise SectionError(
            f"no section is called {section!r}",
            section=section,
            hint="sections: model, twins.NAME, optimizers.N, schedulers.N, values.NAME, progress.epoch, .step, .best",
        )


def recognise(tree: Tree, layouts: Sequence[Layout], family: Family, options: GatherOptions) -> Layout | None:
    """Give the layout with most ``recognised_by`` keys; between those without any, the one whose table finds most."""
    claims: list[tuple[tuple[int, int, int], Layout]] = []
    present = set(tree) if isinstance(tree, dict) else set()
    for layout in layouts:
        if not layout.keys or not present.issuperset(layout.recognised_by):
            continue
        probe = Sections()
        _from_table(tree, layout.keys, probe, family, options)
        model = any(
            (state_dict(at(tree, path)) if path else at_root(tree)) is not None for path in layout.keys.get("model", ())
        )
        score = (len(layout.recognised_by), int(model), len(probe.places))
        if any(score):
            claims.append((score, layout))
    best = max((score for score, _ in claims), default=None)
    winners = [layout for score, layout in claims if score == best]
    if len(winners) > 1:
        listed = sorted(layout.name for layout in winners)
        raise AmbiguousError(
            f"layouts {' and '.join(listed)} claim it alike", candidates=listed, hint=f"--layout {listed[0]}"
        )
    return winners[0] if winners else None


def _from_table(tree: Tree, table: Table, found: Sections, family: Family, options: GatherOptions) -> None:
    """Take what a table finds, but for model and twins; a key whose value is not what its section needs is not taken."""
    for section, alternatives in table.items():
        kind = section.partition(".")[0]
        if kind in {"model", "twins"} or section in found.places:
            continue
        for path in alternatives:
            value = at(tree, path)
            if value is NOTHING or value is None or found.covers(path):
                continue
            if kind in {"optimizers", "schedulers"}:
                _take_list(kind, path, value, found, family, options, loose=kind == "schedulers")
            elif _fits(section, value):
                found.put(section, path, value)
                break
            elif kind == "progress":
                found.notes.append(_odd(section, path, value))


def _odd(section: str, path: Path, value: Tree) -> str:
    remedy = "; --epoch N numbers it" if section == "progress.epoch" else ""
    wanted = "number" if section == "progress.best" else "whole number"
    return f"{spell(path)} is no {wanted} but a {type(value).__name__}: carried among the values{remedy}"


def _fits(section: str, value: Tree) -> bool:
    if section in {"progress.epoch", "progress.step"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if section == "progress.best":
        return isinstance(value, int | float | Scalar | Tensor) and not isinstance(value, bool)
    return True


def _unpacked(kind: str, value: Tree, found: Sections, family: Family, options: GatherOptions) -> Any:
    """Give what the family makes of a value; one that it refuses is nothing to refuse where nobody wants the section."""
    try:
        return family.unpack(kind, Parts(tree=value), options)
    except OptimizerError:
        if is_wanted(found.next(kind), options.only, options.drop):
            raise
        return Optimizer()


def _take_list(
    kind: str, path: Path, value: Tree, found: Sections, family: Family, options: GatherOptions, *, loose: bool
) -> None:
    """Take one optimizer or scheduler, or every one of a list or dictionary of them."""
    one = _unpacked(kind, value, found, family, options)
    if one is not None:
        found.put(found.next(kind), path, one)
        return
    some = False
    for key, item in members(value):
        member = _unpacked(kind, item, found, family, options)
        if member is not None:
            found.put(found.next(kind), (*path, key), member)
            some = True
    if loose and not some and isinstance(value, dict) and value and state_dict(value) is None:
        found.put(found.next(kind), path, value)


def _search(tree: Tree, found: Sections, family: Family, options: GatherOptions) -> None:
    """Take every value that the family accepts as an optimizer, wherever it lies, and the schedulers at the top and below it.

    A value that stands at several places is looked at where it stands first.
    """
    seen = {id(tree)}
    stack: list[tuple[Path, Tree]] = [((key,), value) for key, value in reversed(list(members(tree)))]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict | list | tuple) or id(node) in seen or found.holds(path):
            continue
        seen.add(id(node))
        if path not in found.above:
            for kind in ("optimizers", "schedulers") if len(path) <= SHALLOW else ("optimizers",):
                one = _unpacked(kind, node, found, family, options)
                if one is not None:
                    found.put(found.next(kind), path, one)
                    break
        if not found.holds(path):
            stack.extend(((*path, key), value) for key, value in reversed(list(members(node))))


def _candidates(tree: Tree, found: Sections) -> list[tuple[Path, StateDict]]:
    """Give the state dicts at the top, or one level below where the top has none."""
    level: list[tuple[Path, Tree]] = [((key,), value) for key, value in members(tree) if not found.covers((key,))]
    for _ in range(2):
        sets = [(path, state_dict(value)) for path, value in level]
        candidates = [(path, tensors) for path, tensors in sets if tensors is not None]
        if candidates:
            return candidates
        level = [((*path, key), value) for path, node in level if isinstance(node, dict) for key, value in node.items()]
    return []


def _model(tree: Tree, table: Table, found: Sections) -> None:
    candidates = _candidates(tree, found)
    if not candidates:
        for path in table.get("model", ()):
            nest = nested(at(tree, path))
            if nest is not None:
                found.put("model", path, nest)
                return
        rest = nested(tree) if not found.places else None
        if rest is not None:
            found.put("model", (), rest)
        elif not any(section.startswith(("optimizers", "schedulers", "twins")) for section in found.places):
            raise CheckpointError(f"holds no tensors; its keys are: {keys(tree)}", present=names(tree))
        return
    path, model = _choose(candidates, table)
    found.put("model", path, model)
    _twins([c for c in candidates if c[0] != path], table, found, strict=True)


def _choose(candidates: list[tuple[Path, StateDict]], table: Table) -> tuple[Path, StateDict]:
    """Give the model: the only candidate, or of several under equal names the one at the table's first key."""
    by_path = dict(candidates)
    for path in table.get("model", ()):
        if path in by_path:
            return path, by_path[path]
    twins = {path for section, paths in table.items() if section.startswith("twins.") for path in paths}
    return next((c for c in candidates if c[0] not in twins and "ema" not in str(c[0][-1]).lower()), candidates[0])


def _twins(candidates: list[tuple[Path, StateDict]], table: Table, found: Sections, *, strict: bool) -> None:
    """Take the candidates under exactly the model's names as twins; others are ambiguous, or stay among the values."""
    model: StateDict = found.values["model"]
    others = [(path, c) for path, c in candidates if c.tensors.keys() != model.tensors.keys()]
    if strict and others:
        raise _ambiguous([(found.places["model"], model), *candidates])
    named = {
        path: section.partition(".")[2]
        for section, paths in table.items()
        if section.startswith("twins.")
        for path in paths
    }
    for path, tensors in candidates:
        if tensors.tensors.keys() == model.tensors.keys():
            found.put(_free_twin(named.get(path) or _twin_name(str(path[-1])), path, found), path, tensors)


def _ambiguous(candidates: list[tuple[Path, StateDict]]) -> AmbiguousError:
    shown = "; ".join(f"{spell(path)} ({len(c.tensors)} tensors)" for path, c in candidates)
    error = AmbiguousError(
        f"several sets of tensors could be the model: {shown}",
        candidates={spell(path): len(c.tensors) for path, c in candidates},
    )
    for path, _ in candidates[:5]:
        error.add_note(f"--section model={spell(path)} takes this one and carries the others among the values")
    return error


def _free_twin(name: str, path: Path, found: Sections) -> str:
    """Give the twin's section; two keys that say the same name are told apart by their whole paths, then by a number."""
    choices: Iterator[str] = iter([name, spell(path)])
    count = 1
    section = f"twins.{next(choices)}"
    while section in found.places:
        count += 1
        section = f"twins.{next(choices, f'{name}-{count}')}"
    return section


def _twin_name(key: str) -> str:
    name = key
    for mark in _MARKS:
        name = name.removesuffix(f"_{mark}").removeprefix(f"{mark}_")
    return name or key
