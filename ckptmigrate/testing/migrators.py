"""What a step's author checks: from this to that, back again, with the optimizer and an EMA along, and nothing else touched.

    check_migrator("migrations/acme_net/v1_0_trunk.py", before={"backbone.w": …}, after={"trunk.w": …})

``before`` and ``after`` are what ``torch.load`` or ``load_file`` gives, or a Checkpoint; small ones will do.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptmigrate import engine, registry
from ckptmigrate.chains import Catalog
from ckptmigrate.chains.place import marked
from ckptmigrate.chains.sketch import sketched
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Slot
from ckptmigrate.errors import MigratorError
from ckptmigrate.files import Disk
from ckptmigrate.format import FOLLOWS
from ckptmigrate.operations import Reason, bind
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.upgrading import gathered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ckptmigrate.migrator import Migrator

BYSTANDERS = ("bystander.weight", "a.bystander.0.bias", "bystander")
"""Names that no step means: they must come back as they were, up and down."""
PRIME = (
    251  # seeds repeat after so many elements: no block of them is like its neighbour, and every float type holds them
)


def check_migrator(
    step: Migrator | str,
    before: Any,
    after: Any,
    *,
    back: bool = True,
    numbers: Mapping[str, float] | None = None,
    bystanders: Sequence[str] = BYSTANDERS,
    tolerance: float = 0.0,
) -> None:
    """Assert that a step makes ``after`` of ``before``: names, order, dtypes, shapes, elements; the message says what differs.

    ``step`` is the Migrator, or the path of its file.
    Its marks must match before and not after. Down it must make ``before`` of ``after`` again; ``back=False`` says that there is no
    way back, which is then asserted. A moment of each parameter, and an EMA, must have had what the parameter had. ``bystanders``
    must come through untouched. ``tolerance``: how far elements may differ, relative to the largest; for steps that compute.
    """
    migrator = _loaded(step) if isinstance(step, str) else step
    with Disk() as disk:
        start, goal = _opened(before, disk), _opened(after, disk)
        if migrator.marks and not marked(migrator, start):
            raise AssertionError(f"{migrator.name}: its marks do not match before it: {_listed(start)}")
        if migrator.marks and marked(migrator, goal):
            raise AssertionError(f"{migrator.name}: its marks still match after it: {_listed(goal)}")
        ways = [] if back else _reasons(migrator, numbers or {})
        if not back and not ways:
            raise AssertionError(f"{migrator.name}: every operation has a way back; leave back=False out")
        beside = {name: Tensor(array(np.arange(3, dtype="f4") + 7 * n)) for n, name in enumerate(bystanders)}
        for checkpoint in (start, goal):
            taken = set(beside) & set(checkpoint.model)
            if taken:
                raise AssertionError(
                    f"{migrator.name}: {', '.join(sorted(taken))} cannot be a bystander, it is a tensor"
                )
        start.model |= beside
        result = sketched(start)
        _apply(result, migrator, "up", numbers)
        _compare(f"{migrator.name} up", {**goal.model, **beside}, result.model, tolerance, beside)
        if back:
            _apply(result, migrator, "down", numbers)
            _compare(f"{migrator.name} down", start.model, result.model, tolerance, beside)
        _check_followers(migrator, start, numbers)


def _loaded(path: str) -> Migrator:
    """Give the step of a file, loaded as ``--migrations`` loads it; MigratorError where the file is wrong."""
    folder, _, name = path.rpartition("/")
    catalog = Catalog()
    catalog.add_folder(folder or ".")
    for chain in catalog.names():
        for found in catalog.steps(chain):
            if found.where.rpartition("/")[2] == name:
                return found.migrator
    raise MigratorError("is no step", path=path)


def _opened(given: Any, disk: Disk) -> Checkpoint:
    """Give a checkpoint of one's own, that may be changed."""
    return sketched(given if isinstance(given, Checkpoint) else gathered(given, disk))


def _reasons(migrator: Migrator, numbers: Mapping[str, float]) -> list[str]:
    turned = [bind(operation, numbers)[0].inverse() for operation in migrator.operations]
    return [each.text for each in turned if isinstance(each, Reason)]


def _apply(checkpoint: Checkpoint, migrator: Migrator, way: Any, numbers: Mapping[str, float] | None) -> None:
    family = registry.family(checkpoint.family)
    problems = engine.apply(checkpoint, migrator, family, direction=way, parameters=numbers)
    if problems:
        hint = "\nhint: back=False says that no way back is meant" if way == "down" else ""
        raise AssertionError(f"{migrator.name} {way}:\n" + "\n".join(f"  {problem}" for problem in problems) + hint)


def _compare(
    what: str, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], tolerance: float, beside: Mapping[str, Tensor]
) -> None:
    wrong = [f"{name} is missing{_close(name, set(found) - set(beside))}" for name in wanted if name not in found]
    wrong += [
        f"{name} was not expected{_close(name, set(wanted) - set(beside))}" for name in found if name not in wanted
    ]
    both = [name for name in wanted if name in found]
    wrong += [line for name in both if (line := _differs(name, wanted[name], found[name], tolerance)) is not None]
    touched = [name for name in beside if name not in found or found[name].promise != beside[name].promise]
    wrong += [f"{name} is a bystander, and was touched: a pattern takes more than it should" for name in touched]
    order = [name for name in found if name in wanted and name not in beside]
    if not wrong and order != [name for name in wanted if name not in beside]:
        wrong.append(f"the order is {', '.join(order)}, expected {', '.join(n for n in wanted if n not in beside)}")
    if wrong:
        raise AssertionError(f"{what}:\n" + "\n".join(f"  {line}" for line in wrong))


def _close(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, sorted(names), 2)
    return f"; close to it: {', '.join(close)}" if close else ""


def _differs(name: str, wanted: Tensor, found: Tensor, tolerance: float) -> str | None:
    if (wanted.dtype, tuple(wanted.shape)) != (found.dtype, tuple(found.shape)):
        return f"{name} is {found.dtype} {list(found.shape)}, expected {wanted.dtype} {list(wanted.shape)}"
    ours, theirs = found.numpy(), wanted.numpy()
    same = (
        ours.view("u1") == theirs.view("u1") if ours.dtype.kind == "V" else (ours == theirs) | _both_nan(ours, theirs)
    )
    if tolerance and found.dtype.kind in {"float", "complex"}:
        largest = np.abs(theirs.astype("f8")).max(initial=0.0)
        same = same | (np.abs(ours.astype("f8") - theirs.astype("f8")) <= tolerance * largest)
    if same.all():
        return None
    at = np.unravel_index(int(np.argmin(same)), same.shape)
    place = [int(each) for each in at]
    return f"{name}{place} is {ours[at]}, expected {theirs[at]}; {int((~same).sum())} of {same.size} elements differ"


def _both_nan(a: Any, b: Any) -> Any:
    return (a != a) & (b != b)  # noqa: PLR0124 - what a NaN is, in every float type


def _check_followers(migrator: Migrator, start: Checkpoint, numbers: Mapping[str, float] | None) -> None:
    """Let a moment of every parameter hold the parameter's own elements, and an EMA too: after the step they must do so again."""
    if start.optimizers or any(operation.traits.slots != "follow" for operation in migrator.operations):
        return  # the author's own optimizer is what conditions ask; what is not to follow is said by the operation
    family = registry.family(start.family)
    follows = next((name for name, how in family.slots.items() if how == FOLLOWS), None)
    seeded = sketched(start)
    seeds = _seeds(start.model)
    seeded.model = dict(seeds)
    seeded.twins = {"ema": dict(seeds)}
    held = [name for name in _once(seeded.model) if not family.is_buffer(name, seeded.model[name])]
    if follows is not None and held:
        params = [Param(name, "file", n, 0, {follows: Slot(seeds[name])}) for n, name in enumerate(held)]
        seeded.optimizers = [Optimizer(None, params, [{"lr": 0.1}])]
    _apply(seeded, migrator, "up", numbers)
    wrong = [
        f"the EMA's {name} is not what the model's is" for name, tensor in seeded.model.items()
        if (twin := seeded.twins["ema"].get(name)) is None or _differs(name, tensor, twin, 0.0)
    ]  # fmt: skip
    for param in seeded.optimizers[0].params if seeded.optimizers else ():
        value = None if param.slots is None else param.slots[str(follows)].value
        if param.name is None or param.name not in seeded.model:
            wrong.append(f"the state of {param.name} has no parameter any more")
        elif value is not None and not np.array_equal(
            seeded.model[param.name].numpy().astype("f8"), value.numpy().astype("f8")
        ):
            wrong.append(f"the state of {param.name} did not have done to it what was done to {param.name}")
    if wrong:
        raise AssertionError(f"{migrator.name}: what follows:\n" + "\n".join(f"  {line}" for line in wrong))


def _seeds(model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a model of the same looks with other elements: whole numbers, so that every float type holds them; ties stay ties."""
    made: dict[Any, Tensor] = {}
    for number, tensor in enumerate(model.values()):
        if tensor.promise not in made and tensor.dtype.kind == "float":
            elements = ((np.arange(tensor.promise.numel) * 7 + number) % PRIME).astype(tensor.dtype.numpy_dtype())
            made[tensor.promise] = replace(tensor, promise=array(elements.reshape(tensor.shape), tensor.dtype))
    return {name: made.get(tensor.promise, tensor) for name, tensor in model.items()}


def _once(model: Mapping[str, Tensor]) -> Iterator[str]:
    """Give the names, of tied ones the first; an optimizer has each parameter once."""
    seen = set()
    for name, tensor in model.items():
        if tensor.promise not in seen:
            seen.add(tensor.promise)
            yield name


def _listed(checkpoint: Checkpoint) -> str:
    names = list(checkpoint.model)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
