"""Apply: a function of the migrator's own, declared, checked, run once, and known by its name and revision."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate import engine
from ckptmigrate.dtypes import BF16, F32
from ckptmigrate.errors import TensorError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import Apply, Rename
from ckptmigrate.tensor import Tensor, View, array

from .toys import FAMILY, make, run, state, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUNS: list[tuple[Any, ...]] = []


def norm(weight: Any) -> Any:
    """Give magnitude and direction of each row."""
    RUNS.append((type(weight), weight.shape))
    gain = np.linalg.norm(weight, axis=1, keepdims=True).astype(weight.dtype)
    return gain, weight / gain


def double(weight: Any) -> Any:
    return weight * 2


NORM = Apply([r"(.*)\.weight"], {r"\1.g": {"shape": ["*", 1]}, r"\1.v": {}}, norm)


@pytest.fixture
def weight(tmp_path: Path) -> Iterator[Tensor]:
    RUNS.clear()
    (tmp_path / "raw").write_bytes(np.arange(1, 7, dtype="f4").tobytes())
    with Disk() as disk:
        yield Tensor(View.rows(disk.open(tmp_path / "raw").range(0, 24), F32, (2, 3)), "parameter")


def test_several_outputs_are_declared_planned_without_running_and_made_by_one_run(weight: Tensor) -> None:
    gain, direction = NORM.tensors((weight,))
    assert isinstance(gain, Tensor)
    assert isinstance(direction, Tensor)
    again = NORM.tensors((weight,))

    assert (gain.shape, gain.dtype, direction.shape, direction.role) == ((2, 1), F32, (2, 3), "parameter")
    assert RUNS == []
    np.testing.assert_array_equal(gain.numpy() * direction.numpy(), weight.numpy())
    assert [each.numpy().shape for each in again if isinstance(each, Tensor)] == [(2, 1), (2, 3)]
    assert [shape for _, shape in RUNS] == [(2, 3)]


def test_tensors_in_memory_are_made_at_once_and_once() -> None:
    RUNS.clear()
    gain, direction = NORM.tensors((tensor(np.ones((2, 3), "f4")),))
    assert isinstance(gain, Tensor)
    assert isinstance(direction, Tensor)

    assert gain.numpy().shape == (2, 1)
    assert direction.numpy().shape == (2, 3)
    assert len(RUNS) == 1


def test_a_function_may_want_tensors_of_torch_of_any_dtype() -> None:
    value = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    source = Tensor(array(bytes(value.view(torch.uint8).numpy()), BF16, (1, 2)))

    def turned(x: Any) -> Any:
        assert isinstance(x, torch.Tensor)
        return x.T

    (made,) = Apply(["w"], {"w": {"shape": ["*1", "*0"]}}, turned, wants="torch").tensors((source,))
    assert isinstance(made, Tensor)
    assert (made.dtype, made.shape) == (BF16, (2, 1))
    assert torch.equal(made.torch(), value.T)


def test_numbers_are_keywords_of_the_function_and_lengths_of_its_outputs() -> None:
    def headed(x: Any, heads: int) -> Any:
        return x.reshape(heads, -1)

    step = Migrator(
        "toy", "1.0", [Apply(["w"], {"w": {"shape": ["heads", 3]}}, headed, numbers=["heads"], slots="follow")],
        needs={"heads": "config/n_head"},
    )  # fmt: skip
    checkpoint = make({"w": (6,)}, [["w"]])
    checkpoint.values["config"] = {"n_head": 2}

    assert engine.apply(checkpoint, step, FAMILY) == []
    assert checkpoint.model["w"].shape == (2, 3)
    assert np.shape(state(checkpoint)[0][2]["exp_avg"]) == (2, 3)
    assert engine.apply(make({"w": (6,)}), step, FAMILY) == [
        "toy 1.0: needs heads, and the values have no number at config/n_head; set it with --set heads=VALUE"
    ]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x[:1], "gave F32 [1, 3] as output 0, expected F32 [2, 3]"),
        (lambda x: x.astype("f8"), "gave F64 [2, 3] as output 0, expected F32 [2, 3]"),
        (lambda x: (x, x), "gave 2 outputs, expected 1"),
        (lambda _: [1], "gave a list, expected an array"),
        (lambda x: x.missing, "of F32 [2, 3]: AttributeError: "),
        (lambda x: x.astype("U4"), "is no tensor of a known dtype"),
    ],
)
def test_what_a_function_gives_is_checked_when_it_is_drawn(weight: Tensor, fn: Any, said: str) -> None:
    (made,) = Apply(["w"], ["w"], fn).tensors((weight,))
    assert isinstance(made, Tensor)

    with pytest.raises(TensorError, match=re.escape(said)):
        made.numpy()


def test_what_fails_in_memory_is_a_problem_that_names_step_operation_and_tensor() -> None:
    (problem,) = run(make({"a.weight": (2, 3)}), Apply([r"(.*)\.weight"], [r"\1.w"], lambda x: x.T))

    assert problem.startswith("toy 1.0: Apply(")
    assert "a.weight: <lambda> gave F32 [3, 2] as output 0, expected F32 [2, 3]" in problem


def test_state_with_the_parameters_axes_is_refused_unless_the_operation_says_what_becomes_of_it() -> None:
    def applied(slots: Any) -> Any:
        checkpoint = make({"a.weight": (2, 2)}, [["a.weight"]])
        before = state(checkpoint)[0][2]
        problems = run(checkpoint, Apply([r"(.*)\.weight"], [r"\1.w"], double, slots=slots))
        return problems, before, state(checkpoint)

    assert "exp_avg has the parameter's axes" in applied("refuse")[0][0]
    _, before, after = applied("keep")
    assert after == [("a.w", 0, before)]
    _, before, after = applied("follow")
    assert after[0][2]["exp_avg"] == (2 * np.array(before["exp_avg"])).tolist()
    assert applied("drop")[2] == [("a.w", 0, None)]


def test_a_function_is_known_by_its_name_and_revision() -> None:
    first = Apply(["a"], ["b"], double)

    assert first.as_dict() == {"operation": "Apply", "reads": ["a"], "writes": ["b"], "fn": "double"}
    assert first.describe() == "Apply(('a',), ('b',), double)"
    digests = {
        Migrator("x", "1", [operation]).digest
        for operation in (
            first,
            Apply(["a"], ["b"], double, revision=2),
            Apply(["a"], ["b"], norm),
            Apply(["a"], {"b": {"like": 0}}, double),
        )
    }
    assert len(digests) == 4
    with_back = Apply(["a"], ["b"], double, back=Rename("b", "a"))
    assert with_back.as_dict()["back"] == Rename("b", "a").as_dict()
    assert with_back.describe() == "Apply(('a',), ('b',), double, back=Rename('b', 'a'))"


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: Apply([], ["b"], double),
        lambda: Apply(["a"], [], double),
        lambda: Apply(["("], ["b"], double),
        lambda: Apply(["a"], [r"\1"], double),
        lambda: Apply(["a"], ["b"], "double"),  # type: ignore[arg-type] # what a maintainer may write
        lambda: Apply(["a"], ["b"], double, slots="all"),  # type: ignore[arg-type] # same
        lambda: Apply(["a"], ["b"], double, wants="jax"),  # type: ignore[arg-type] # same
        lambda: Apply(["a"], {"b": {"kind": 1}}, double),  # type: ignore[typeddict-unknown-key] # same
        lambda: Apply(["a"], {"b": {"dtype": "float32"}}, double),
        lambda: Apply(["a"], {"b": {"shape": [-1]}}, double),
        lambda: Apply(["a"], {"b": {"shape": ["heads"]}}, double),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_written(make_it: Any) -> None:
    with pytest.raises(UsageError):
        make_it()


def test_an_output_like_a_source_that_is_not_there_is_a_problem() -> None:
    (problem,) = run(make({"a": (1,)}), Apply(["a"], {"b": {"like": 1}}, double))

    assert problem.endswith("a: 'b' is like source 1, and there are 1")


def test_where_takes_only_what_has_its_partner_beside_it() -> None:
    fold = Apply(
        [r"(.*)\.g", r"(.*)\.v"], {r"\1.weight": {"like": 1}}, scaled, where={r"(.*)\.g": r"\1.v", r"(.*)\.v": r"\1.g"}
    )
    names = {"a.g": None, "a.v": None, "b.v": None, "c.g": None}

    assert [(group.sources, group.targets, group.missing) for group in fold.match(names)] == [
        (("a.g", "a.v"), ("a.weight",), ())
    ]


def scaled(gain: Any, direction: Any) -> Any:
    return gain * direction


def test_a_function_that_wants_to_end_the_process_is_a_problem_as_any_other() -> None:
    def leave(weight: Any) -> Any:
        raise SystemExit(7)

    with pytest.raises(TensorError, match=r"leave of F32 \[2\]: SystemExit: 7"):
        Apply(["a"], ["b"], leave).tensors((tensor(np.ones(2, "f4")),))
