"""A random chain over a random model does what an oracle does that knows only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate.operations import Drop, Rename

from .toys import Concat, Split, Transpose, arrays, make, run, state
from .toys_later import Reorder

Oracle = list[tuple[str, np.ndarray[Any, Any]]]


def turned(model: Oracle, index: int, choice: str) -> tuple[Oracle, Any]:
    """Do one thing to a list of named arrays with numpy alone, and give the operation that should do the same."""
    name, value = model[index]
    rest = [n for n, _ in model]
    exact = name.replace(".", r"\.")
    if choice == "transpose" and value.ndim == 2:
        return [(n, v.T if n == name else v) for n, v in model], Transpose(exact)
    if choice == "split" and value.ndim and value.shape[0] >= 2:
        new = [(f"{name}.x", value[:1]), (f"{name}.y", value[1:])]
        return [*model[:index], *new, *model[index + 1 :]], Split(
            exact, (f"{name}.x", f"{name}.y"), (1, value.shape[0] - 1)
        )
    if choice == "reorder" and value.ndim and value.shape[0] % 2 == 0:
        half = value.shape[0] // 2
        turned_round = np.concatenate([value[half:], value[:half]])
        return [(n, turned_round if n == name else v) for n, v in model], Reorder(exact, (1, 0))
    partner = next(
        (
            i
            for i, (n, v) in enumerate(model)
            if n != name and v.ndim and v.ndim == value.ndim and v.shape[1:] == value.shape[1:]
        ),
        None,
    )
    if choice == "concat" and partner is not None:
        other, second = model[partner]
        new_name = f"j{len(model)}{name}"
        whole = (new_name, np.concatenate([value, second]))
        first = min(index, partner)
        out = [
            whole if i == first else entry for i, entry in enumerate(model) if i == first or i not in (index, partner)
        ]
        return out, Concat((exact, other.replace(".", r"\.")), new_name)
    if choice == "drop" and len(model) > 1:
        return [*model[:index], *model[index + 1 :]], Drop(exact, "x")
    new_name = f"r{len(rest)}{name}"
    return [(new_name if n == name else n, v) for n, v in model], Rename(exact, new_name)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([(2, 3), (3, 3), (4,), (1,), (), (5, 3)]), min_size=1, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from(["transpose", "split", "concat", "reorder", "drop", "rename"])),
        max_size=6,
    ),
)
def test_a_random_chain_does_to_tensors_twins_and_slots_what_numpy_does(
    shapes: list[tuple[int, ...]], choices: list[tuple[int, str]]
) -> None:
    names = {f"p{i}.w": shape for i, shape in enumerate(shapes)}
    checkpoint = make(names, [list(names)])
    first = checkpoint.optimizers[0].params

    def slot(which: str) -> Oracle:
        return [(str(p.name), p.slots[which].value.numpy()) for p in first if p.slots is not None]

    sets: list[Oracle] = [[(n, t.numpy()) for n, t in m.items()] for m in (checkpoint.model, checkpoint.twins["ema"])]
    sets += [slot("exp_avg"), slot("exp_avg_sq")]
    operations = []
    for index, choice in choices:
        at = index % len(sets[0])
        results = [turned(each, at, choice) for each in sets]
        sets = [result[0] for result in results]
        operations.append(results[0][1])

    assert run(checkpoint, *operations) == []
    model, twin, average, square = sets
    assert [(n, v.tolist()) for n, v in model] == list(arrays(checkpoint.model).items())
    assert [(n, v.tolist()) for n, v in twin] == list(arrays(checkpoint.twins["ema"]).items())
    expected = [
        (n, 0, {"step": 7, "exp_avg": v.tolist(), "exp_avg_sq": w.tolist()})
        for (n, v), (_, w) in zip(average, square, strict=True)
    ]
    assert state(checkpoint) == expected
