"""Schedulers of Burn: today's names for a record of any release, the kind as the record or a caller says it."""

from __future__ import annotations

from typing import Any

import pytest

from ckptmigrate.checkpoint import Checkpoint
from ckptmigrate.errors import CheckpointError, UsageError
from ckptmigrate.format import Parts
from ckptmigrate.values import Scalar

from .burn_family import BURN, Said, scheduler, uint


@pytest.mark.parametrize(
    ("names", "burn", "tree"),
    [
        ({}, "0.18.0", {}),
        ({"": uint(9)}, "0.12.1", {"step": Scalar("float", 9.0)}),
        ({"": uint(9)}, "0.14.0", {"step": Scalar("float", 9.0)}),
        ({"": Scalar("float", 0.25)}, "0.18.0", {"previous_lr": Scalar("float", 0.25)}),
        ({"": uint((1 << 64) - 1)}, "0.18.0", {"current_iter": uint((1 << 64) - 1)}),
        ({"": Scalar("int", -1)}, "0.18.0", {"iter_idx": Scalar("int", -1)}),
        ({"": uint(9)}, "0.18.0", {"undetermined": uint(9)}),
        ({"": uint(9)}, None, {"undetermined": uint(9)}),
        ({"0": Scalar("float", 0.1), "1": Scalar("float", 0.9)}, "0.13.2", {"previous_lr": Scalar("float", 0.1)}),
        ({"0": Scalar("float", 0.1), "1": Scalar("float", 0.9), "2": uint(5)}, "0.13.2", {"remaining_iters": uint(5)}),
        (dict(zip("01234", [*[Scalar("float", 0.1)] * 3, uint(8), uint(3)], strict=True)), "0.14.0", {"current_iter": uint(3)}),
        ({"schedulers.0.Noam": uint(3), "schedulers.1.Exponential": Scalar("float", 0.5)}, "0.19.0", {"0": {"step": Scalar("float", 3.0)}, "1": {"previous_lr": Scalar("float", 0.5)}}),
        ({"schedulers.0.Linear": uint(6)}, "0.21.0", {"0": {"remaining_iters": uint(6)}}),
        ({"schedulers.0.Linear": uint(6)}, "0.21.0-pre.2", {"0": {"undetermined": uint(6)}}),
        ({"schedulers.0.Linear": uint((1 << 64) - 1)}, "0.19.1", {"0": {"current_iter": uint((1 << 64) - 1)}}),
        ({"0.current_iter": uint(2)}, None, {"current_iter": uint(2)}),
        ({"current_iter": uint(2)}, None, {"current_iter": uint(2)}),
        ({"0.step": uint(2), "0.1.current_iter": uint(2)}, None, {"step": uint(2), "1": {"current_iter": uint(2)}}),
        ({"0.step": Scalar("float", 2.0), "1.iter_idx": Scalar("int", 0)}, None, {"groups": {"0": {"step": Scalar("float", 2.0)}, "1": {"iter_idx": Scalar("int", 0)}}}),
    ],
)  # fmt: skip
def test_a_record_of_any_release_bears_todays_names(names: dict[str, Scalar], burn: str | None, tree: Any) -> None:
    assert scheduler(names, burn=burn) == tree


@pytest.mark.parametrize(
    ("said", "tree"),
    [
        ("noam", {"step": Scalar("float", 9.0)}), ("cosine", {"current_iter": uint(9)}), ("linear", {"remaining_iters": uint(9)}),
        ("step", {"iter_idx": Scalar("int", 9)}),
    ],
)  # fmt: skip
def test_a_kind_that_the_record_does_not_tell_is_taken_as_said_and_reported(said: str, tree: Any) -> None:
    parts = Parts(family="burn", tensors={"": uint(9)}, facts={"versions": {"burn": "0.20.1"}})

    assert BURN.unpack("schedulers", parts, Said(said)) == tree
    assert len(parts.warnings) == 1
    assert f"assumes that the scheduler is {said}" in parts.warnings[0]


def test_the_children_of_a_composed_one_are_said_between_brackets() -> None:
    names = {"schedulers.0.Linear": uint(2), "schedulers.1.Exponential": Scalar("float", 0.5)}

    assert scheduler(names, "composed(cosine, exponential)", "0.20.1")["0"] == {"current_iter": uint(2)}
    assert scheduler(names, "Composed(linear,exponential)", "0.20.1")["0"] == {"remaining_iters": uint(2)}
    with pytest.raises(CheckpointError, match="of exponential, not of noam"):
        scheduler(names, "composed(cosine,noam)", "0.20.1")


@pytest.mark.parametrize(
    ("names", "burn", "said"),
    [
        ({}, "0.18.0", "cosine"), ({"": uint(9)}, "0.14.0", "cosine"), ({"": Scalar("float", 0.5)}, "0.18.0", "noam"),
        ({"": uint(9)}, "0.18.0", "exponential"), ({"": uint(9)}, "0.15.0", "step"), ({"": Scalar("int", -1)}, "0.18.0", "cosine"),
        ({"0.current_iter": uint(2)}, None, "linear"), ({"0.step": uint(2)}, None, "noam"), ({"": uint(9)}, "0.18.0", "composed(noam)"),
    ],
)  # fmt: skip
def test_a_kind_that_the_record_contradicts_is_refused(names: dict[str, Scalar], burn: str | None, said: str) -> None:
    with pytest.raises(CheckpointError):
        scheduler(names, said, burn)


@pytest.mark.parametrize(
    "said", ["cosinus", "noam(step)", "composed(", "composed(cosine,wild)", "", "composed(cosine))"]
)
def test_a_kind_that_nobody_knows_is_wrong_usage(said: str) -> None:
    with pytest.raises(UsageError, match="no kind of scheduler"):
        scheduler({"": uint(9)}, said, "0.18.0")


@pytest.mark.parametrize(
    ("tree", "mention"),
    [
        ({"undetermined": uint(3)}, "does not tell"),
        ({"0": {"undetermined": uint(3)}}, "does not tell"),
        ({"gamma": 0.1}, "none of this family"),
        ({"current_iter": Scalar("float", 2.5)}, "whole"),
        ({"current_iter": Scalar("float", float("nan"))}, "whole"),
        ({"current_iter": Scalar("int", -2)}, "from 0"),
        ({"previous_lr": Scalar("bool", value=True)}, "number"),
        ([3], "none of this family"),
    ],
)
def test_what_is_no_record_of_today_is_not_written(tree: Any, mention: str) -> None:
    with pytest.raises(CheckpointError, match=mention):
        BURN.pack("schedulers", tree, Checkpoint("burn"))


def test_plain_numbers_are_written_as_burn_reads_them() -> None:
    tree = {"groups": {"0": {"step": 3}, "1": {"0": {"current_iter": 2}, "step": 4}, "2": {}}}
    packed = BURN.pack("schedulers", tree, Checkpoint("burn"))

    assert packed.tensors == {"0.step": Scalar("float", 3.0), "1.0.current_iter": uint(2), "1.step": uint(4)}


def test_one_number_twice_is_refused() -> None:
    with pytest.raises(CheckpointError, match="twice"):
        scheduler({"current_iter": uint(1), "0.current_iter": uint(2)})
