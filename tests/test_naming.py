from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate import naming
from ckptmigrate.checkpoint import Optimizer, Param, Slot
from ckptmigrate.errors import OptimizerError
from ckptmigrate.format import FOLLOWS, SCALAR
from ckptmigrate.tensor import Tensor, array

Shape = tuple[int, ...]
SLOTS = {"exp_avg": FOLLOWS, "step": SCALAR}
SHAPES = st.sampled_from([(2,), (3,), (2, 3)])
GROUPS = st.lists(st.lists(st.one_of(st.none(), SHAPES), max_size=4), min_size=1, max_size=3)


def tensor(*shape: int) -> Tensor:
    return Tensor(array(np.zeros(shape, "f4")))


def optimizer(*groups: list[Shape | None]) -> Optimizer:
    params = [
        Param(None, None, None, number, None if shape is None else {"exp_avg": Slot(tensor(*shape))})
        for number, group in enumerate(groups)
        for shape in group
    ]
    return Optimizer(params=params, groups=[{} for _ in groups])


def layings(shapes: list[Shape], groups: list[list[Shape | None]]) -> list[tuple[tuple[int, ...], ...]]:
    """Give every way to lay all groups along the entries, each in order, no entry twice: by trying them all."""
    choices = [
        [
            places
            for places in itertools.combinations(range(len(shapes)), len(group))
            if all(shape is None or shapes[place] == shape for place, shape in zip(places, group, strict=True))
        ]
        for group in groups
    ]
    return [
        chosen
        for chosen in itertools.product(*choices)
        if len({place for places in chosen for place in places}) == sum(map(len, chosen))
    ]


@given(st.lists(SHAPES, max_size=7), GROUPS)
def test_a_certain_name_is_the_name_in_every_laying(shapes: list[Shape], groups: list[list[Shape | None]]) -> None:
    known = [[s for s in group if s is None or s in shapes] for group in groups]
    found = naming.by_order(shapes, known)
    for laying in layings(shapes, known):
        for group, places in zip(found.entries, laying, strict=True):
            for entry, place in zip(group, places, strict=True):
                assert entry is None or entry == place


@given(st.lists(SHAPES, max_size=8), st.lists(st.one_of(st.none(), SHAPES), max_size=5))
def test_of_one_group_all_that_is_certain_is_named(shapes: list[Shape], group: list[Shape | None]) -> None:
    known = [s for s in group if s is None or s in shapes]
    every = [laying[0] for laying in layings(shapes, [known])]
    agreed = [places[0] if len(set(places)) == 1 else None for places in zip(*every, strict=True)]

    assert list(naming.by_order(shapes, [known]).entries[0]) == (agreed if every else [None] * len(known))


@given(st.lists(SHAPES, min_size=1, max_size=12))
def test_a_group_of_the_whole_model_is_named_whole(shapes: list[Shape]) -> None:
    found = naming.by_order(shapes, [list(shapes)])

    assert found.entries == (tuple(range(len(shapes))),)


@given(st.lists(SHAPES, min_size=1, max_size=10), st.data())
def test_groups_that_split_the_model_in_two_never_get_a_wrong_name(shapes: list[Shape], data: st.DataObject) -> None:
    side = data.draw(st.lists(st.booleans(), min_size=len(shapes), max_size=len(shapes)))
    parts = [[i for i, s in enumerate(side) if s is which] for which in (True, False)]
    found = naming.by_order(shapes, [[shapes[i] for i in part] for part in parts])
    for entries, part in zip(found.entries, parts, strict=True):
        assert all(entry in (None, true) for entry, true in zip(entries, part, strict=True))


def test_what_one_group_is_certain_of_is_taken_from_the_other() -> None:
    weight, bias = (3, 4), (3,)
    found = naming.by_order([weight, bias, weight, bias], [[weight, weight], [bias, None]])

    assert found.entries == ((0, 2), (1, 3))


def test_a_parameter_of_a_shape_that_no_entry_has_is_an_orphan() -> None:
    found = naming.by_order([(2,), (3,)], [[(2,), (9, 9), (3,)]])

    assert found.orphans == ((0, 1),)
    assert found.entries == ((0, None, 1),)
    assert found.whole


def test_an_optimizer_is_named_whole_or_not_at_all() -> None:
    opt = optimizer([(2,), (3,)])
    orphans = naming.from_order(opt, {"a": (2,), "b": (3,), "c": (3,)}, SLOTS)

    assert orphans == []
    assert [param.name for param in opt.params] == [None, None]


def test_names_found_so_are_marked_by_order() -> None:
    opt = optimizer([(2,), None])
    naming.from_order(opt, {"a": (2,), "b": (3,)}, SLOTS)

    assert [(param.name, param.by) for param in opt.params] == [("a", "order"), ("b", "order")]


def test_an_optimizer_of_which_no_entry_matches_is_refused() -> None:
    with pytest.raises(OptimizerError, match="none of the optimizer's 2 parameters"):
        naming.from_order(optimizer([(7,), (8,)]), {"a": (2,)}, SLOTS)


def test_an_optimizer_without_any_state_fits_any_model_that_is_large_enough() -> None:
    assert naming.from_order(optimizer([None]), {"a": (2,), "b": (3,)}, SLOTS) == []


def test_a_tied_set_is_one_entry_and_buffers_are_none() -> None:
    tied, other, buffer = tensor(2, 3), tensor(4), tensor(4)
    model = {"embed": tied, "norm": other, "mean": buffer, "head": Tensor(tied.promise)}

    assert naming.entries(model, lambda name, _: name == "mean") == {"embed": (2, 3), "norm": (4,)}


@pytest.mark.parametrize(
    ("slots", "shape"),
    [
        ({"step": tensor(), "exp_avg": tensor(2, 3)}, (2, 3)),
        ({"unknown": tensor(5)}, (5,)),
        ({"row": tensor(5, 1), "col": tensor(1, 3)}, None),
        ({"step": tensor()}, None),
        ({"exp_avg": tensor(2), "unknown": tensor(9)}, (2,)),
        ({"counter": 3}, None),
    ],
)
def test_a_parameter_has_the_shape_that_its_state_tells(slots: dict[str, Any], shape: Shape | None) -> None:
    param = Param(None, None, 0, 0, {name: Slot(value) for name, value in slots.items()})

    assert naming.shape_of(param, SLOTS) == shape


def test_lists_name_each_group_by_position() -> None:
    opt = optimizer([(2,)], [(3,), (3,)])
    naming.from_lists(opt, [["w"], ["a", "b"]])

    assert [(param.name, param.by) for param in opt.params] == [("w", "file"), ("a", "file"), ("b", "file")]


def test_a_list_of_another_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(OptimizerError, match="group 1 has 2 parameters, its list 1 names"):
        naming.from_lists(optimizer([(2,)], [(3,), (3,)]), [["w"], ["a"]])


def test_a_name_that_the_model_has_not_is_refused() -> None:
    opt = Optimizer(params=[Param("x", "file", "x", 0)], groups=[{}])
    with pytest.raises(OptimizerError, match="names x, which the model has not"):
        naming.check_names(opt, {"a": tensor(2)}, SLOTS)


def test_two_entries_of_one_name_are_refused() -> None:
    opt = Optimizer(params=[Param("a", "file", 0, 0), Param("a", "file", 1, 0)], groups=[{}])
    with pytest.raises(OptimizerError, match="names a twice"):
        naming.check_names(opt, {"a": tensor(2)}, SLOTS)


def test_state_of_another_shape_than_its_parameter_is_refused_by_name() -> None:
    opt = Optimizer(params=[Param("a", "file", 0, 0, {"exp_avg": Slot(tensor(3))})], groups=[{}])
    with pytest.raises(OptimizerError, match=r"a\.exp_avg has shape \[3\], its parameter \[2\]"):
        naming.check_names(opt, {"a": tensor(2)}, SLOTS)


def test_a_thousand_groups_of_one_parameter_are_laid_in_no_time() -> None:
    shapes = [(i % 3 + 1,) for i in range(1000)]
    found = naming.by_order(shapes, [[shape] for shape in shapes])

    assert not found.whole
