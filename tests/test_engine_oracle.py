"""A random chain of all operations over a random model does what an oracle does that knows only arrays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.operations import (
    Add,
    Apply,
    Cast,
    Concat,
    Drop,
    Move,
    Operation,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
)

from .oracle import Arrays, Deed, World
from .toys import make, run

if TYPE_CHECKING:
    from ckptmigrate.tensor import Tensor

KINDS = [
    "transpose", "split", "concat", "stack", "unstack", "reorder", "fold", "reshape", "cast", "apply", "drop", "move",
    "rename", "reindex", "order", "add", "add buffer", "tie", "untie", "untie", "fan", "fan",
]  # fmt: skip
TIED = {"rename", "reindex", "order", "untie", "drop"}  # what may be done to one of two tied names


def double(value: Any) -> Any:
    return value * 2


def deed_of(kind: str, world: World, name: str, fresh: str, data: st.DataObject) -> Deed | None:
    """Give a deed of this kind to this name, None where there is none that the engine would not refuse."""
    value = world.model[name]
    if kind == "untie":
        return next((Deed("untie", (second,)) for second in world.ties), None)
    if kind == "fan":
        return fan_of(world, name, fresh, data)
    if kind not in TIED and name in {*world.ties, *world.ties.values()}:
        return None
    mates = [
        other
        for other, each in world.model.items()
        if other != name
        and each.dtype == value.dtype
        and other not in {*world.ties, *world.ties.values()}
        and (world.state(other), other in world.buffers) == (world.state(name), name in world.buffers)
    ]
    tail = value.shape[1:] if kind == "concat" else value.shape
    mates = [
        m for m in mates if world.model[m].ndim == value.ndim and world.model[m].shape[value.ndim - len(tail) :] == tail
    ]
    mate = data.draw(st.sampled_from(mates)) if mates and kind in {"concat", "stack", "tie"} else None
    rows = value.shape[0] if value.ndim else 0
    match kind:
        case "transpose":
            return Deed(kind, (name,), (name,), tuple(data.draw(st.permutations(range(value.ndim)))))
        case "split" if rows:
            axis = data.draw(st.integers(0, value.ndim - 1))
            first = data.draw(st.integers(0, value.shape[axis]))
            return Deed(kind, (name,), (f"{fresh}.x", f"{fresh}.y"), (axis, (first, value.shape[axis] - first)))
        case "concat" if mate is not None and value.ndim:
            return Deed(kind, (name, mate), (fresh,), 0)
        case "stack" if mate is not None:
            return Deed(kind, (name, mate), (fresh,), data.draw(st.integers(0, value.ndim)))
        case "unstack" if value.ndim and 0 < value.shape[-1] < 5:
            return Deed(kind, (name,), tuple(f"{fresh}.{n}" for n in range(value.shape[-1])), value.ndim - 1)
        case "reorder" if rows and rows % 2 == 0:
            return Deed(kind, (name,), (name,), (1, 0))
        case "fold" if rows and rows % 2 == 0:
            return Deed(kind, (name,), (name,), 2)
        case "reshape":
            return Deed(kind, (name,), (name,), (1, *value.shape[:-1], -1) if value.size else value.shape)
        case "cast" if value.dtype == np.float32:
            return Deed(kind, (name,), (name,), "f8")
        case "apply":
            return Deed(kind, (name,), (fresh,))
        case "drop" | "move" if len(world.model) > 1:
            return Deed(kind, (name,), (), fresh)
        case "rename":
            return Deed(kind, (name,), (fresh,))
        case "reindex" if any(re.fullmatch(r"p\d+\.w", each) for each in world.model):
            return Deed(kind, ())
        case "order":
            return Deed(kind, tuple(data.draw(st.permutations(list(world.model)))[: data.draw(st.integers(1, 4))]))
        case "add" if rows and world.state(name) != "nothing":
            return Deed(kind, (name,), (fresh,))
        case "add buffer":
            return Deed(kind, (name,), (fresh,))
        case "tie" if mate is not None and value.size and np.ptp(value) > 0:  # an added tensor has no bytes to share
            return Deed(kind, (name, mate))
    return None


def fan_of(world: World, name: str, fresh: str, data: st.DataObject) -> Deed | None:
    """Give the halving of some names of some modules, in one operation."""
    modules = {name.rpartition(".")[0], data.draw(st.sampled_from(list(world.model))).rpartition(".")[0]}
    leaves = data.draw(st.sets(st.sampled_from(sorted({n.rpartition(".")[2] for n in world.model})), min_size=1))
    names = [n for n in world.model if n.rpartition(".")[0] in modules - {""} and n.rpartition(".")[2] in leaves]
    tied = {*world.ties, *world.ties.values()}
    if not names or any(n in tied or not len(world.model[n].shape[:1]) or len(world.model[n]) % 2 for n in names):
        return None
    into = [f"{fresh}.{n.rpartition('.')[0]}.{part}.{n.rpartition('.')[2]}" for n in names for part in "xy"]
    return Deed("fan", tuple(names), tuple(into))


def operation_of(deed: Deed) -> Operation:
    """Give the operation that should do what the deed does."""
    kind, names, into, argument = deed
    exact = [re.escape(name) for name in names]
    match kind:
        case "transpose":
            return Transpose(exact[0], argument)
        case "split":
            return Split(exact[0], into, argument[0], argument[1])
        case "fan":
            modules, leaves = ({re.escape(name.rpartition(".")[at]) for name in names} for at in (0, 2))
            fresh = into[0].partition(".")[0]
            pattern = f"({'|'.join(sorted(modules))})\\.({'|'.join(sorted(leaves))})"
            return Split(pattern, [rf"{fresh}.\1.{part}.\2" for part in "xy"])
        case "concat":
            return Concat(exact, into[0], argument)
        case "stack":
            return Stack(exact, into[0], argument)
        case "unstack":
            return Unstack(exact[0], f"{into[0].removesuffix('0')}{{}}", -1)
        case "reorder":
            return Reorder(exact[0], argument)
        case "fold":
            return Reorder(exact[0], fold=(-1, argument), axes=(1, 0))
        case "reshape":
            return Reshape(exact[0], argument)
        case "cast":
            return Cast(exact[0], "F64")
        case "apply":
            return Apply(exact, into, double, slots="follow")
        case "drop":
            return Drop(exact[0], "it goes")
        case "move":
            return Move(f"model/{exact[0]}", f"values/{argument}")
        case "rename":
            return Rename(exact[0], into[0])
        case "reindex":
            return Reindex(r"p(\d+)\.w")
        case "order":
            return Order(exact)
        case "add":
            return Add(into[0], exact[0], fill=2, shape=["*"])
        case "add buffer":
            return Add(into[0], exact[0], shape=[], dtype="I64", role="buffer")
        case "tie":
            return Tie(exact[0], names[1])
    return Untie(exact[0])


def plain(arrays: Arrays | None) -> Any:
    return None if arrays is None else [(name, value.dtype.name, value.tolist()) for name, value in arrays.items()]


def drawn(members: dict[str, Tensor]) -> Arrays:
    return {name: member.numpy() for name, member in members.items()}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([(2, 3), (4, 3), (4,), (1,), (), (2, 2, 2)]), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(KINDS)), max_size=9),
    st.data(),
)
def test_a_random_chain_does_to_tensors_twins_and_slots_what_numpy_does(
    shapes: list[tuple[int, ...]], choices: list[tuple[int, str]], data: st.DataObject
) -> None:
    names = {f"p{i - i % 2}.{'wb'[i % 2]}": shape for i, shape in enumerate(shapes)}
    checkpoint = make(names, [list(names)])
    entries: list[tuple[str, Arrays | None]] = [
        (str(p.name), {key: (p.slots or {})[key].value.numpy() for key in ("exp_avg", "exp_avg_sq")})
        for p in checkpoint.optimizers[0].params
    ]
    world = World(drawn(checkpoint.model), drawn(checkpoint.twins["ema"]), entries, set(), {})
    operations = []
    for number, (index, kind) in enumerate(choices):
        deed = deed_of(kind, world, list(world.model)[index % len(world.model)], f"n{number}", data)
        if deed is not None:
            operations.append(operation_of(deed))
            world.do(deed)

    assert run(checkpoint, *operations) == []
    assert plain(drawn(checkpoint.model)) == plain(world.model)
    assert plain(drawn(checkpoint.twins["ema"])) == plain(world.twin)
    found = [
        (p.name, None if p.slots is None else plain({n: s.value.numpy() for n, s in p.slots.items() if n != "step"}))
        for p in checkpoint.optimizers[0].params
    ]
    assert found == [(name, plain(slots)) for name, slots in world.entries]
    assert all(p.slots["step"].value == 7 for p in checkpoint.optimizers[0].params if p.slots is not None)
    assert checkpoint.ledger.unexplained() == []
    assert {item for item in checkpoint.ledger.came_from() if item.startswith("model/")} == {
        f"model/{n}" for n in world.model
    }
