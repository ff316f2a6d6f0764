"""``new``: what is proposed from two checkpoints of one pair maps another pair of the same architectures, with other values, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ckptmigrate

from .architectures import ARCHITECTURES, UNMARKED, State, cast, flat_convolutions, pair, prefix_and_rename, split_qkv
from .command_line import Ran
from .proposals import CHAIN, assert_maps, propose


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_proposal_maps_another_pair_of_the_same_architectures_bit_by_bit(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    written = propose(tmp_path, *pair(architecture, 0))

    assert written.proposal is not None
    told = [line for line in written.proposal.open if "--from says where it stands" not in line]
    assert (told, len(written.proposal.open)) == ([], architecture in UNMARKED)
    assert written.proposal.proof.equal == written.proposal.proof.tensors
    assert_maps(tmp_path, *pair(architecture, 1), unmarked=architecture in UNMARKED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_twenty_four_layers_are_as_many_operations_as_two(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    counts = []
    for count in (2, 24) if architecture is not flat_convolutions else (6, 24):
        (tmp_path / f"{count}").mkdir()
        written = propose(tmp_path / f"{count}", *pair(architecture, 0, count))
        assert written.proposal is not None
        counts.append([spec.operation for spec in written.proposal.operations])

    assert counts[0] == counts[1]
    assert_maps(tmp_path / "24", *pair(architecture, 1, 24), unmarked=architecture in UNMARKED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_proposal_goes_back_as_well_wherever_nothing_is_lost(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    propose(tmp_path, *pair(architecture, 0))
    old, new = pair(architecture, 1)
    assert_maps(tmp_path, old, new, unmarked=architecture in UNMARKED)
    back = Ran(
        "migrate", tmp_path / "made.pt", tmp_path / "back.pt", "--migrations", tmp_path / "migrations", "--chain", f"{CHAIN}=0"
    )  # fmt: skip
    assert back.code == 0, back.err
    again = torch.load(tmp_path / "back.pt", weights_only=True)

    assert set(again) == set(old)
    if architecture is not cast:  # what bf16 rounded stays rounded
        assert all(torch.equal(again[name], tensor) for name, tensor in old.items())


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each not in UNMARKED])
def test_marks_tell_the_old_architecture_from_the_new_one(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    written = propose(tmp_path, *pair(architecture, 0))
    assert written.proposal is not None
    for seed in (0, 1):
        for kind, state in zip(("old", "new"), pair(architecture, seed), strict=True):
            torch.save(state, tmp_path / "one.pt")
            with ckptmigrate.open(tmp_path / "one.pt") as checkpoint:
                holds = all(mark.made().holds(checkpoint) for mark in written.proposal.marks)

            assert written.proposal.marks
            assert holds == (kind == "old")


def test_a_tensor_that_one_value_fills_proves_nothing_and_follows_its_neighbours(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        ones, zeros = torch.ones(4), torch.zeros(4)
        old = {"x.weight": a, "x.bias": zeros, "x.scale": ones, "y.weight": b, "y.bias": zeros.clone()}
        new = {"b.weight": b, "b.bias": zeros.clone(), "a.weight": a, "a.bias": zeros.clone(), "a.scale": ones.clone()}
        return old, new

    written = propose(tmp_path, *states(0))
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 2, "pattern": 3}
    old, new = states(1)
    old["x.bias"], old["y.bias"] = torch.full((4,), 2.0), torch.full((4,), 3.0)
    new["a.bias"], new["b.bias"] = old["x.bias"], old["y.bias"]
    assert_maps(tmp_path, old, new)


def test_what_a_checkpoint_holds_twice_is_no_evidence(tmp_path: Path) -> None:
    torch.manual_seed(0)
    twice, once = torch.randn(4, 4), torch.randn(4, 4)
    old = {"ema.weight": twice.clone(), "net.weight": twice.clone(), "other.weight": once}
    new = {"net.weight": twice.clone(), "ema.weight": twice.clone(), "last.weight": once}
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 1, "name": 2}
    assert [spec.sources for spec in written.proposal.operations] == [("other.weight",)]


def test_tied_names_are_one_tensor_and_each_keeps_a_name(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        tied, fc = torch.randn(6, 4), torch.randn(4, 4)
        return (
            {"wte.weight": tied, "fc.weight": fc, "lm_head.weight": tied},
            {"embed.weight": tied, "fc.weight": fc, "lm_head.weight": tied},
        )

    written = propose(tmp_path, *states(0))
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 3}
    assert [spec.sources for spec in written.proposal.operations] == [("wte.weight",)]
    assert_maps(tmp_path, *states(1))
    made = torch.load(tmp_path / "made.pt", weights_only=True)
    assert made["embed.weight"].data_ptr() == made["lm_head.weight"].data_ptr()


def test_a_second_name_is_tied_and_one_that_is_gone_is_dropped(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        a, b = torch.randn(6, 4), torch.randn(4, 4)
        return {"a": a, "a2": a, "b": b}, {"a": a, "b": b, "b2": b}

    propose(tmp_path, *states(0))

    assert_maps(tmp_path, *states(1))


def test_without_equal_contents_names_are_all_there_is_and_the_file_says_so(tmp_path: Path) -> None:
    (old, _), (_, new) = pair(prefix_and_rename, 0), pair(prefix_and_rename, 1)
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert "The contents prove nothing" in written.text
    assert "proven by content" not in written.text.partition('"""\n\n')[2]
    assert_maps(tmp_path, *pair(prefix_and_rename, 2))


def test_names_that_are_alike_to_several_stay_candidates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"left.weight": torch.randn(4, 4), "fc.weight": torch.randn(3, 3)}
    new = {"a1.weight": torch.randn(4, 4), "a2.weight": torch.randn(4, 4), "fc.weight": torch.randn(3, 3)}
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert not written.proposal.operations
    assert '# Rename(r"left\\.weight", "a1.weight")' in written.text
    assert '# Rename(r"left\\.weight", "a2.weight")' in written.text
    assert any("left.weight" in line for line in written.proposal.open)


def test_what_shapes_would_allow_is_a_candidate_and_nothing_is_dropped_for_it(tmp_path: Path) -> None:
    (old, _), (_, new) = pair(split_qkv, 0), pair(split_qkv, 1)
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert [spec.operation for spec in written.proposal.operations] == []
    assert "# Split(" in written.text
    assert "sizes=(8, 4, 4)" in written.text


def test_what_only_the_old_one_has_is_dropped_with_a_reason(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {"fc.weight": torch.randn(4, 4), "aux.weight": torch.randn(5, 4), "aux.bias": torch.randn(5)}
        return old, {"fc.weight": old["fc.weight"]}

    written = propose(tmp_path, *states(0))

    assert 'reason="it is in the old checkpoint only"' in written.text
    assert_maps(tmp_path, *states(1))


def test_what_is_one_value_throughout_is_added_with_it(tmp_path: Path) -> None:
    constants = {
        "fc.scale": torch.full((4,), 0.25), "fc.limit": torch.tensor(float("-inf")), "fc.half": torch.ones(3, dtype=torch.bfloat16),
        "fc.count": torch.tensor(7), "fc.on": torch.ones(2, dtype=torch.bool),
    }  # fmt: skip

    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {"fc.weight": torch.randn(4, 4)}
        return old, {**old, **constants}

    written = propose(tmp_path, *states(0))

    assert written.text.count("Add(") == 5
    assert_maps(tmp_path, *states(1))


def test_a_part_of_a_tensor_is_told_and_its_source_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"emb.weight": torch.randn(10, 4), "fc.weight": torch.randn(4, 4)}
    written = propose(tmp_path, old, {"emb2.weight": old["emb.weight"][:8].clone(), "fc.weight": old["fc.weight"]})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert any(line.startswith("emb2.weight is made of lines of emb.weight") for line in written.proposal.open)


def test_values_that_nothing_tells_are_asked_for_and_never_made_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"fc.weight": torch.randn(4, 4)}
    written = propose(tmp_path, old, {**old, "head.weight": torch.randn(7, 4)})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert any("head.weight" in line for line in written.proposal.open)
    assert '# Add("head.weight", near=r"fc\\.weight", fill=0, shape=[7, 4])' in written.text


def test_a_tensor_that_kept_its_name_and_not_its_elements_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {f"h.{n}.weight": torch.randn(4, 4) for n in range(3)}
    written = propose(tmp_path, old, {**old, "h.1.weight": torch.randn(4, 4)})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert [line for line in written.proposal.open if line.startswith("h.1.weight: ")]


def test_two_names_can_be_swapped(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {f"{name}.weight": torch.randn(4, 4) for name in "ab"}
        return old, {"a.weight": old["b.weight"], "b.weight": old["a.weight"]}

    propose(tmp_path, *states(0))

    assert_maps(tmp_path, *states(1), unmarked=True)
