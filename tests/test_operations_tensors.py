"""What each operation makes of tensors, against numpy and torch, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import BF16, F4, F32, QINT8
from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.operations import (
    Add,
    Cast,
    Group,
    Operation,
    Order,
    Reindex,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
    bind,
)
from ckptmigrate.tensor import Quantisation, Tensor, array, fill
from ckptmigrate.values import Scalar

from .toys import tensor


def numbered(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)


def made(operation: Operation, *sources: Any) -> list[Any]:
    given_ = tuple(tensor(source) if isinstance(source, np.ndarray) else source for source in sources)
    return [each.numpy() if isinstance(each, Tensor) else each for each in operation.tensors(given_)]


def groups(operation: Operation, *names: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(group.sources, group.targets) for group in operation.match(dict.fromkeys(names))]


def refusal(operation: Operation, *sources: Any) -> str:
    with pytest.raises(TensorError) as caught:
        made(operation, *sources)
    return caught.value.message


# Transpose, Reorder, Reshape.


def test_a_transpose_puts_axes_in_the_order_that_is_given() -> None:
    value = numbered(2, 3, 4, 5)

    np.testing.assert_array_equal(made(Transpose("k", (3, 2, 0, 1)), value)[0], value.transpose(3, 2, 0, 1))


def test_a_transpose_of_another_number_of_axes_is_refused() -> None:
    assert refusal(Transpose("k"), numbered(3)) == "has the shape [3], expected 2 axes"


def test_gates_are_blocks_in_another_order() -> None:
    value = numbered(8, 3)
    input_, forget, cell, output = np.split(value, 4)

    np.testing.assert_array_equal(
        made(Reorder("w", (0, 2, 1, 3)), value)[0], np.concatenate([input_, cell, forget, output])
    )


def test_blocks_are_permuted_within_each_of_as_many_parts() -> None:
    value = numbered(2, 12)
    expected = value.reshape(2, 2, 3, 2)[:, :, [2, 0, 1]].reshape(2, 12)

    np.testing.assert_array_equal(made(Reorder("w", (2, 0, 1), axis=-1, within=2), value)[0], expected)


def test_more_parts_than_are_laid_side_by_side_give_the_same() -> None:
    value = numbered(4 * 300)
    expected = value.reshape(300, 2, 2)[:, ::-1].reshape(-1)

    np.testing.assert_array_equal(made(Reorder("w", (1, 0), within=300), value)[0], expected)


def permuted(weight: torch.Tensor, heads: int, first: int, second: int) -> torch.Tensor:
    """Do what convert_llama_weights_to_hf.py of transformers does."""
    return weight.view(heads, first // heads // 2, 2, second).transpose(1, 2).reshape(first, second)


@pytest.mark.parametrize(("heads", "width"), [(4, 6), (2, 2), (300, 4)])
def test_the_rotary_permutation_of_transformers_is_one_operation(heads: int, width: int) -> None:
    weight = torch.arange(heads * width * 5, dtype=torch.float32).reshape(heads * width, 5)
    operation, unresolved = bind(
        Reorder(r".*\.[qk]_proj\.weight", fold=("heads", -1, 2), axes=(0, 2, 1)), {"heads": heads}
    )
    expected = permuted(weight, heads, heads * width, 5)

    assert unresolved == []
    (there,) = made(operation, weight.numpy())
    np.testing.assert_array_equal(there, expected.numpy())
    np.testing.assert_array_equal(made(operation.inverse(), there)[0], weight.numpy())


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
        lambda fold: st.tuples(st.just(fold), st.permutations(range(len(fold))))
    ),
    st.integers(0, 2),
)
def test_a_fold_is_view_permute_and_reshape(fold_and_axes: tuple[list[int], list[int]], axis: int) -> None:
    fold, axes = fold_and_axes
    shape = [2, 3, 2]
    shape[axis] = int(np.prod(fold))
    value = torch.from_numpy(numbered(*shape))
    seen = value.view(*shape[:axis], *fold, *shape[axis + 1 :])
    order = [*range(axis), *(axis + each for each in axes), *range(axis + len(fold), seen.dim())]

    np.testing.assert_array_equal(
        made(Reorder("w", axis=axis, fold=fold, axes=axes), value.numpy())[0],
        seen.permute(order).reshape(shape).numpy(),
    )


def test_an_axis_that_has_no_equal_blocks_or_does_not_fold_is_refused() -> None:
    assert refusal(Reorder("w", (1, 0)), numbered(3)) == "axis 0 of [3] has no 2 equal blocks"
    assert (
        refusal(Reorder("w", (1, 0), within=2), numbered(6))
        == "axis 0 of [6] has no 2 equal blocks in each of 2 equal parts"
    )
    assert refusal(Reorder("w", (1, 0), axis=1), numbered(4)) == "has the shape [4], and no axis 1"
    assert refusal(Reorder("w", fold=(4, -1), axes=(1, 0)), numbered(6)) == "axis 0 of [6] does not fold into [4, -1]"
    assert refusal(Reorder("w", fold=(4, 2), axes=(1, 0)), numbered(6)) == "axis 0 of [6] does not fold into [4, 2]"


@pytest.mark.parametrize(
    ("shape", "old", "before", "after"),
    [
        (("*", "*"), ("*", "*", 1, 1), (2, 3, 1, 1), (2, 3)),
        (("*", -1), None, (2, 3, 4), (2, 12)),
        ((-1,), None, (), (1,)),
        ((2, -1, "*1"), None, (4, 5), (2, 2, 5)),
        ((), None, (1, 1), ()),
        ((0, 3), None, (3, 0), (0, 3)),
    ],
)
def test_a_reshape_keeps_the_elements(shape: Any, old: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    value = numbered(*before)

    np.testing.assert_array_equal(made(Reshape("w", shape, old=old), value)[0], value.reshape(after))


def test_what_does_not_have_the_old_shape_or_does_not_make_the_new_is_refused() -> None:
    assert refusal(Reshape("w", ("*", "*"), old=("*", "*", 1, 1)), numbered(2, 3, 3, 3)).endswith(
        "[2, 3, 3, 3], expected ['*', '*', 1, 1]"
    )
    assert refusal(Reshape("w", (4, -1)), numbered(6)) == "has the shape [6], which does not make [4, -1]"
    assert refusal(Reshape("w", (4,)), numbered(6)) == "has the shape [6], which does not make [4]"
    assert refusal(Reshape("w", (0, -1)), numbered(0)) == "has the shape [0], which does not make [0, -1]"
    assert refusal(Reshape("w", ("*", "*")), numbered(6)) == "has the shape [6], and no axis 1 to copy"


# Add.


def test_an_added_tensor_has_the_shape_and_dtype_of_its_neighbour_or_its_own() -> None:
    near = Tensor(fill(1, BF16, (4, 3)))

    def added(**how: Any) -> Tensor:
        (target,) = Add(r"\1.b", r"(.*)\.w", **how).tensors((near,))
        assert isinstance(target, Tensor)
        return target

    assert (added().shape, added().dtype, added().role) == ((4, 3), BF16, "parameter")
    assert added(shape=["*"]).shape == (4,)
    assert added(shape=["*1", 7]).shape == (3, 7)
    assert added(shape=[], dtype="F32", fill=2.5, role="buffer").numpy().item() == 2.5
    assert added(role="buffer").role == "buffer"


def test_one_name_is_added_for_each_neighbour_and_two_neighbours_of_one_name_add_it_once() -> None:
    operation = Add(r"\1.scale", near=r"(.*)\.(w|b)")

    assert operation.match(dict.fromkeys(["x.w", "x.b", "y.b"])) == [
        Group((), ("x.scale",), near="x.w"),
        Group((), ("y.scale",), near="y.b"),
    ]


def test_only_those_that_lack_it_get_it_and_the_others_are_told() -> None:
    operation = Add(r"\1.n", near=r"(.*)\.mean", shape=[], dtype="I64", role="buffer", lacking=True)

    assert operation.match(dict.fromkeys(["a.mean", "a.n", "b.mean"])) == [
        Group((), ("b.n",), near="b.mean"),
        Group((), (), standing=("a.n",)),
    ]


def test_an_added_axis_that_the_neighbour_has_not_is_refused() -> None:
    assert refusal(Add("b", "w", shape=["*1"]), numbered(3)) == "has the shape [3], and no axis 1 to copy"


def test_beside_a_number_a_number_is_added() -> None:
    assert Add("m", "step", fill=3, on="slots").tensors((7,)) == (3,)
    assert Add("values/config/heads", fill=[16], on="values").tensors(()) == ([16],)


# Cast.


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F64", "I32", "BOOL"])
def test_a_cast_is_that_of_torch(dtype: str) -> None:
    value = np.array([[0.1, -3.5, 1e4, 0]], "f4")
    (cast,) = Cast("w", dtype).tensors((tensor(value),))
    assert isinstance(cast, Tensor)
    names = {"BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64, "I32": torch.int32, "BOOL": torch.bool}

    assert torch.equal(cast.torch(), torch.from_numpy(value).to(names[dtype]))


def test_a_step_is_a_number_or_a_tensor() -> None:
    (there,) = Cast("step", "F32", old="int", on="slots").tensors((7,))
    assert isinstance(there, Tensor)

    assert (there.dtype, there.shape, there.numpy().item()) == (F32, (), 7.0)
    back = Cast("step", "F32", old="int", on="slots").inverse()
    assert isinstance(back, Cast)
    assert back.tensors((there,)) == (7,)
    assert Cast("time", "uint", on="slots").tensors((there,)) == (Scalar("uint", 7),)
    assert Cast("time", "float", on="slots").tensors((Scalar("uint", 7),)) == (7.0,)


def test_what_is_no_such_number_or_was_of_another_dtype_is_refused() -> None:
    assert refusal(Cast("step", "F32", old="int", on="slots"), 7.5) == "is float, expected int"
    assert refusal(Cast("step", "int", on="slots"), 7.5) == "7.5 is no int"
    assert refusal(Cast("step", "int", on="slots"), float("nan")) == "nan is no int"
    assert refusal(Cast("step", "bool", on="slots"), 2) == "2 is no bool"
    assert refusal(Cast("step", "int", on="slots"), numbered(2)) == "has the shape [2], expected one number"
    assert refusal(Cast("step", "F32", on="slots"), "text") == "is str, expected one number"
    assert refusal(Cast("w", "F32", old="BF16"), numbered(2)) == "is F32, expected BF16"
    with pytest.raises(UsageError, match="300 is no U8"):
        made(Cast("step", "U8", on="slots"), 300)


def test_a_cast_to_what_it_is_already_is_the_tensor_itself() -> None:
    source = tensor(numbered(2))

    assert Cast("w", "F32").tensors((source,)) == (source,)


# Tie, Untie, Order, Reindex.


def test_a_tie_takes_the_place_of_the_second_or_adds_it() -> None:
    assert groups(Tie("a", "b"), "a", "b") == [(("a", "b"), ("a", "b"))]
    assert groups(Tie(r"(.*)a", r"\1b", adds=True), "x.a") == [(("x.a",), ("x.a", "x.b"))]
    assert Tie("a", "b").match({"a": None})[0].missing == ("b",)
    assert refusal(Tie("a", "b"), numbered(2), numbered(3)) == "are F32 [2] and F32 [3], and cannot be one"


def test_every_copy_is_a_tensor_of_its_own() -> None:
    source = tensor(numbered(3))
    (one,), (other,) = Untie("a").tensors((source,)), Untie("a").tensors((source,))
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)

    assert one.numpy().tolist() == [0, 1, 2]
    assert len({one.promise, other.promise, source.promise}) == 3


def test_an_order_puts_names_of_each_pattern_at_the_places_that_they_have() -> None:
    operation = Order([r"c\..*", "a"])
    final = ("c.0", "b", "c.1", "a")

    assert operation.match(dict.fromkeys(["a", "b", "c.0", "c.1"])) == [Group(final, final)]
    assert Order(["a", "x"]).match({"a": None})[1:] == [Group((), (), missing=("x",))]


def test_lists_are_numbered_each_for_itself() -> None:
    operation = Reindex(r"(.*)\.h\.(?P<n>\d+)\..*")

    assert groups(operation, "a.h.3.w", "a.h.3.b", "b.h.1.w", "a.h.10.w", "z") == [
        (("a.h.3.w",), ("a.h.0.w",)),
        (("a.h.3.b",), ("a.h.0.b",)),
        (("b.h.1.w",), ("b.h.0.w",)),
        (("a.h.10.w",), ("a.h.1.w",)),
    ]


def test_a_map_says_the_new_numbers_and_leaves_the_others() -> None:
    assert groups(Reindex(r"h\.(\d+)", map={2: 0, 0: 2}), "h.0", "h.1", "h.2") == [
        (("h.0",), ("h.2",)),
        (("h.1",), ("h.1",)),
        (("h.2",), ("h.0",)),
    ]


# What no operation on axes can do.


@pytest.mark.parametrize("operation", [Transpose("w"), Split("w", ["a", "b"]), Reshape("w", (-1,)), Stack(["a"], "b")])
def test_what_is_no_tensor_or_has_scales_along_an_axis_is_refused(operation: Operation) -> None:
    quantised = Tensor(fill(1, QINT8, (2, 2)), quant=Quantisation("affine", 0.5, 0, 1))

    assert refusal(operation, 7) == "is int, expected a tensor"
    assert "quantised along axis 1" in refusal(operation, quantised)


def test_what_packs_several_values_in_one_is_cut_along_other_axes_only() -> None:
    packed = Tensor(array(b"abcdef", F4, (2, 3)))

    assert [part.shape for part in Split("w", ["a", "b"]).tensors((packed,)) if isinstance(part, Tensor)] == [
        (1, 3),
        (1, 3),
    ]
    for operation in (
        Transpose("w"),
        Split("w", ["a", "b", "c"], 1),
        Reshape("w", (6,)),
        Stack(["w"], "v", -1),
        Unstack("w", "{}", 1),
    ):
        assert "2 values in one unit" in refusal(operation, packed)
