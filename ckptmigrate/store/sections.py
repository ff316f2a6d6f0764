"""Where the parts of a checkpoint lie in one tree: by a layout's table, and by what a value looks like.

    bare state dict     its keys are names, its values tensors; beside them at most numbers, text, `_extra_state`
    nested              no member looks like one: all tensors of the tree, names joined by "/"
    tensor, list        "value"; "0", "1", …

Exactly one candidate is the model. A further one with exactly the model's names is a twin. Anything else is ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import AmbiguousError, CheckpointError, SectionError
from ckptmigrate.format import Parts
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Inert, Known, Ordered, Scalar, spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ckptmigrate.format import Family, GatherOptions, Layout
    from ckptmigrate.values import Path, Tree

EXTRA_STATE = "_extra_state"
METADATA = "_metadata"
LONE = "value"  # the name of a tensor that has none
_PLAIN = (bool, int, float, str, bytes, Scalar, Known, Inert, tuple, type(None))
_MARKS = ("state_dict", "model", "params", "net")  # what a twin's key says beside the twin's name


@dataclass(slots=True)
class StateDict:
    """A set of tensors by name: ``paths`` says where each lies below its section, ``others`` what is no tensor, by name."""

    tensors: dict[str, Tensor]
    paths: dict[str, Path]
    others: dict[str, Tree] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    shape: str = "flat"  # "lone": one tensor, "list", "nested"


@dataclass(slots=True)
class Sections:
    """What lies where in one tree: section -> path, and the value of each, unpacked."""

    layout: Layout | None = None
    places: dict[str, Path] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    taken: set[Path] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)  # of optimizers and schedulers
    above: set[Path] = field(default_factory=set)  # every path that leads to a place, and the places

    def put(self, section: str, path: Path, value: Any) -> None:
        """Note a section."""
        kind = section.partition(".")[0]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.places[section] = path
        self.values[section] = value
        self.above.update(path[:n] for n in range(len(path) + 1))
        self.taken.add(path)

    def next(self, kind: str) -> str:
        """Give the section of the next optimizer or scheduler."""
        return f"{kind}.{self.counts.get(kind, 0)}"

    def covers(self, path: Path) -> bool:
        """Say whether a section lies at, above or below a path."""
        return path in self.above or any(path[:n] in self.taken for n in range(len(path) + 1))


def at(tree: Tree, path: Path) -> Tree:
    """Give the node at a path of keys and indices, NOTHING where there is none."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key, NOTHING)
        elif isinstance(tree, list | tuple) and isinstance(key, int) and 0 <= key < len(tree):
            tree = tree[key]
        elif isinstance(tree, list | tuple) and isinstance(key, str) and key.isdecimal() and int(key) < len(tree):
            tree = tree[int(key)]  # a path that was typed
        else:
            return NOTHING
    return tree


def without(tree: Tree, paths: Sequence[Path]) -> Tree:
    """Give a tree without the nodes at ``paths``: keys are gone, list items None, containers that are empty then are gone too."""
    if () in paths:
        return NOTHING
    below: dict[Any, list[Path]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    if isinstance(tree, dict):
        kept = Ordered() if isinstance(tree, Ordered) else {}
        if isinstance(kept, Ordered) and isinstance(tree, Ordered):
            kept.attributes = tree.attributes
        for key, value in tree.items():
            rest = without(value, below[key]) if key in below else value
            if rest is not NOTHING:
                kept[key] = rest
        return kept or NOTHING
    items = [without(value, below[i]) if i in below else value for i, value in enumerate(tree)]
    return NOTHING if all(item is NOTHING for item in items) else [None if item is NOTHING else item for item in items]


def any_tensors(value: Tree) -> StateDict | None:
    """Give the tensors of a value of any form: a state dict, one tensor, a list of them, a nest of them."""
    if isinstance(value, Tensor):
        return StateDict({LONE: value}, {LONE: ()}, shape="lone")
    if isinstance(value, list | tuple) and value and all(isinstance(item, Tensor) for item in value):
        return StateDict(
            {str(i): t for i, t in enumerate(value)}, {str(i): (i,) for i in range(len(value))}, shape="list"
        )
    return state_dict(value) or _nested(value)


def state_dict(value: Tree) -> StateDict | None:
    """Give the state dict that a value is; None for anything else, a single tensor too."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return None
    tensors = {name: item for name, item in value.items() if isinstance(item, Tensor)}
    others = {name: item for name, item in value.items() if not isinstance(item, Tensor)}
    if not tensors or not all(name.endswith(EXTRA_STATE) or isinstance(item, _PLAIN) for name, item in others.items()):
        return None
    return StateDict(tensors, {name: (name,) for name in value}, others, _modules(value))


def _modules(value: Tree) -> dict[str, dict[str, Any]]:
    metadata = value.attributes.get(METADATA) if isinstance(value, Ordered) else None
    if not isinstance(metadata, dict):
        return {}
    return {key: dict(entry) for key, entry in metadata.items() if isinstance(key, str) and isinstance(entry, dict)}


def _nested(value: Tree) -> StateDict | None:
    """Give a nest whose leaves are all tensors, in its order; a name that two paths spell is None: nothing is guessed."""
    tensors: dict[str, Tensor] = {}
    paths: dict[str, Path] = {}
    stack: list[tuple[Path, Tree]] = [((), value)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, Tensor) and path:
            name = "/".join(str(key) for key in path)
            if name in tensors:
                return None
            tensors[name], paths[name] = node, path
        elif isinstance(node, dict) and len(path) < 64:
            stack.extend(((*path, key), item) for key, item in reversed(node.items()))
        elif isinstance(node, list | tuple) and len(path) < 64:
            stack.extend(((*path, i), item) for i, item in reversed(list(enumerate(node))))
        else:
            return None
    return StateDict(tensors, paths, shape="nested") if tensors else None


def find(tree: Tree, layout: Layout | None, family: Family, options: GatherOptions) -> Sections:
    """Give the sections of a file's tree; AmbiguousError, SectionError or CheckpointError where there is not one reading."""
    found = Sections()
    for section, path in options.sections.items():
        value = at(tree, path)
        if value is NOTHING:
            raise SectionError(
                f"nothing at {spell(path)}; there are: {keys(tree)}", present=_names(tree), section=section
            )
        _force(found, section, path, value, family, options)
    found.layout = layout
    table = layout.keys if layout is not None else {}
    if "model" not in found.places and (root := _root(tree)):
        found.put("model", (), root)
        return found
    _from_table(tree, table, found, family, options)
    _search(tree, found, family, options)
    if "model" not in found.places:
        _model(tree, table, found)
    else:
        _twins(_candidates(tree, found), table, found, strict=False)
    return found


def _root(tree: Tree) -> StateDict | None:
    """Give a root that is a state dict, one tensor, or a list of tensors."""
    found = any_tensors(tree) if isinstance(tree, Tensor | list | tuple) else state_dict(tree)
    return None if found is None or found.shape == "nested" else found


def _force(found: Sections, section: str, path: Path, value: Tree, family: Family, options: GatherOptions) -> None:
    kind = section.partition(".")[0]
    if kind in {"model", "twins"}:
        tensors = any_tensors(value)
        if tensors is None:
            raise SectionError(
                f"{spell(path) or 'the root'} is no set of tensors; it has: {keys(value)}", section=section
            )
        found.put(section, path, tensors)
    elif kind in {"optimizers", "schedulers"}:
        one = family.unpack(kind, Parts(tree=value), options)
        if one is None and kind == "optimizers":
            raise SectionError(f"{spell(path)} is no optimizer state; it has: {keys(value)}", section=section)
        found.put(section if "." in section else f"{kind}.0", path, value if one is None else one)
    elif kind in {"values", "progress"}:
        found.put(section, path, value)
    else:
        raise SectionError(
            f"no section is called {section!r}", section=section, hint="model, twins.NAME, optimizers.N, …"
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
            (state_dict(at(tree, path)) if path else _root(tree)) is not None for path in layout.keys.get("model", ())
        )
        score = (len(layout.recognised_by), int(model), len(probe.places))
        if any(score):
            claims.append((score, layout))
    best = max((score for score, _ in claims), default=None)
    winners = [layout for score, layout in claims if score == best]
    if len(winners) > 1:
        names = sorted(layout.name for layout in winners)
        raise AmbiguousError(
            f"layouts {' and '.join(names)} claim it alike", candidates=names, hint=f"--layout {names[0]}"
        )
    return winners[0] if winners else None


def _from_table(
    tree: Tree, table: Mapping[str, Sequence[Path]], found: Sections, family: Family, options: GatherOptions
) -> None:
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


def _fits(section: str, value: Tree) -> bool:
    if section in {"progress.epoch", "progress.step"}:
        return isinstance(value, int) and not isinstance(value, bool)
    if section == "progress.best":
        return isinstance(value, int | float | Scalar | Tensor) and not isinstance(value, bool)
    return True


def _take_list(
    kind: str, path: Path, value: Tree, found: Sections, family: Family, options: GatherOptions, *, loose: bool
) -> bool:
    """Take one optimizer or scheduler, or every one of a list or dictionary of them."""
    one = family.unpack(kind, Parts(tree=value), options)
    if isinstance(value, list | tuple) and value and one is None:
        members = [family.unpack(kind, Parts(tree=item), options) for item in value]
        if all(member is not None for member in members):
            for index, member in enumerate(members):
                found.put(found.next(kind), (*path, index), member)
            return True
    if one is not None:
        found.put(found.next(kind), path, one)
        return True
    if isinstance(value, dict):
        pairs = [(key, family.unpack(kind, Parts(tree=item), options)) for key, item in value.items()]
        taken = {key: member for key, member in pairs if member is not None}
        for key, member in taken.items():
            found.put(found.next(kind), (*path, key), member)
        if taken:
            return True
        if loose and value and state_dict(value) is None:
            found.put(found.next(kind), path, value)
            return True
    return False


def _search(tree: Tree, found: Sections, family: Family, options: GatherOptions) -> None:
    """Take every value that the family accepts as an optimizer or scheduler, at the top and one level below."""
    for path, value in _members(tree):
        for kind in ("optimizers", "schedulers"):
            if not found.covers(path):
                _take_list(kind, path, value, found, family, options, loose=False)


def _members(tree: Tree) -> Iterator[tuple[Path, Tree]]:
    if isinstance(tree, dict):
        yield from (((key,), value) for key, value in tree.items())
    elif isinstance(tree, list | tuple):
        yield from (((index,), value) for index, value in enumerate(tree))


def _candidates(tree: Tree, found: Sections) -> list[tuple[Path, StateDict]]:
    """Give the state dicts at the top, or one level below where the top has none."""
    level = [(path, value) for path, value in _members(tree) if not found.covers(path)]
    for _ in range(2):
        sets = [(path, state_dict(value)) for path, value in level]
        candidates = [(path, tensors) for path, tensors in sets if tensors is not None]
        if candidates:
            return candidates
        level = [
            ((*path, *rest), value) for path, node in level if isinstance(node, dict) for rest, value in _members(node)
        ]
    return []


def _model(tree: Tree, table: Mapping[str, Sequence[Path]], found: Sections) -> None:
    candidates = _candidates(tree, found)
    if not candidates:
        for path in table.get("model", ()):
            nested = _nested(at(tree, path))
            if nested is not None:
                found.put("model", path, nested)
                return
        rest = _nested(tree) if not found.places else None
        if rest is not None:
            found.put("model", (), rest)
        elif not any(section.startswith(("optimizers", "schedulers")) for section in found.places):
            raise CheckpointError(f"holds no tensors; its keys are: {keys(tree)}", present=_names(tree))
        return
    path, model = _choose(candidates, table)
    found.put("model", path, model)
    _twins([c for c in candidates if c[0] != path], table, found, strict=True)


def _choose(candidates: list[tuple[Path, StateDict]], table: Mapping[str, Sequence[Path]]) -> tuple[Path, StateDict]:
    """Give the model: the only candidate, or of several under equal names the one at the table's first key."""
    by_path = dict(candidates)
    for path in table.get("model", ()):
        if path in by_path:
            return path, by_path[path]
    twins = {path for section, paths in table.items() if section.startswith("twins.") for path in paths}
    return next((c for c in candidates if c[0] not in twins and "ema" not in str(c[0][-1]).lower()), candidates[0])


def _twins(
    candidates: list[tuple[Path, StateDict]], table: Mapping[str, Sequence[Path]], found: Sections, *, strict: bool
) -> None:
    """Take the candidates under exactly the model's names as twins; others are ambiguous, or stay among the values."""
    model: StateDict = found.values["model"]
    others = [(path, c) for path, c in candidates if c.tensors.keys() != model.tensors.keys()]
    if strict and others:
        listed = [(found.places["model"], model), *candidates]
        shown = "; ".join(f"{spell(path)} ({len(c.tensors)} tensors)" for path, c in listed)
        raise AmbiguousError(
            f"several sets of tensors could be the model: {shown}",
            candidates={spell(path): len(c.tensors) for path, c in listed},
            hint=f"--section model={spell(listed[0][0])}",
        )
    named = {
        path: section.partition(".")[2]
        for section, paths in table.items()
        if section.startswith("twins.")
        for path in paths
    }
    for path, tensors in candidates:
        if tensors.tensors.keys() == model.tensors.keys():
            name = named.get(path) or _twin_name(str(path[-1]))
            section = f"twins.{name}" if f"twins.{name}" not in found.places else f"twins.{spell(path)}"
            found.put(section, path, tensors)


def _twin_name(key: str) -> str:
    name = key
    for mark in _MARKS:
        name = name.removesuffix(f"_{mark}").removeprefix(f"{mark}_")
    return name or key


def _names(tree: Tree) -> list[str]:
    if isinstance(tree, dict):
        return [str(key) for key in tree]
    return [str(i) for i in range(len(tree))] if isinstance(tree, list | tuple) else []


def keys(tree: Tree) -> str:
    """Give the keys of a node as a message lists them."""
    names = _names(tree)
    if not names:
        return f"none (a {type(tree).__name__})"
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
