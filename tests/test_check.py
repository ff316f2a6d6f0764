"""``check``: the law "Current", for CI. 0 all are current, 1 one is behind, unknown or broken, 2 wrong usage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate.errors import UsageError

from .command_line import BARE, OLD, Ran
from .lines import HERE

RIGHT = ("--migrations", HERE / "right")
BURN = OLD.parents[2] / "burn"


def saved(path: Path, *names: str, stamp: str | None = None) -> Path:
    metadata = None if stamp is None else ckptmigrate.stamp_for("acme.right", version=stamp)
    safetensors.torch.save_file({name: torch.ones(2) for name in names}, path, metadata=metadata)
    return path


@pytest.fixture
def head(tmp_path: Path) -> Path:
    return saved(tmp_path / "head.safetensors", "head", "body.conv", stamp="2.0")


@pytest.fixture
def behind(tmp_path: Path) -> Path:
    return saved(tmp_path / "behind.safetensors", "trunk.fc", "trunk.conv", stamp="0")


def test_a_checkpoint_at_the_head_of_its_chains_in_a_current_file_is_current(head: Path) -> None:
    ran = Ran("check", head, *RIGHT)

    assert ran.code == 0
    assert ran.out.startswith(f"{head}: current (safetensors)\n")


def test_one_behind_says_which_steps_are_pending(behind: Path) -> None:
    ran = Ran("check", behind, *RIGHT)

    assert ran.code == 1
    assert [line for line in ran.out.splitlines() if "pending" in line] == [
        f"  pending: acme.right to 1.0 ({HERE}/right/acme_right/v1_0_body.py)",
        f"  pending: acme.right to 2.0 ({HERE}/right/acme_right/v2_0_head.py)",
    ]


def test_several_paths_are_all_told_and_one_behind_is_enough(head: Path, behind: Path) -> None:
    shown = Ran("check", head, behind, *RIGHT, "--json")

    assert shown.code == 1
    assert [(one["path"], one["current"]) for one in shown.json()["checkpoints"]] == [
        (str(head), True),
        (str(behind), False),
    ]
    assert shown.json()["current"] is False


def test_a_chain_that_nobody_stamped_or_named_is_a_note_and_not_pending(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", "trunk.fc")
    asked, named = Ran("check", path, *RIGHT), Ran("check", path, *RIGHT, "--chain", "acme.right")

    assert asked.code == 0
    assert "note: chain acme.right looks needed (step 1.0); apply it with --chain acme.right" in asked.out
    assert named.code == 1


def test_the_named_target_is_the_head_that_counts(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", "body.fc", stamp="1.0")

    assert Ran("check", path, *RIGHT, "--chain", "acme.right=1.0").code == 0
    assert Ran("check", path, *RIGHT).code == 1


def test_a_file_that_todays_framework_does_not_open_is_pending_whatever_its_chains_say() -> None:
    ran = Ran("check", OLD)

    assert ran.code == 1
    assert "pending: today's framework does not open it as it is (torch_legacy)" in ran.out


def test_a_place_that_nothing_tells_is_unknown(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", "a")
    shown = Ran("check", path, "--migrations", HERE / "blind", "--chain", "acme.blind", "--json")
    (one,) = shown.json()["checkpoints"]

    assert shown.code == 1
    assert {"chain": "acme.blind", "version": None, "by": "unknown"} in one["places"]
    assert any("it has no stamp, and step 1.0 has no marks to tell by" in what for what in one["pending"])


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"PK\3\4"])
def test_a_broken_file_is_told_and_the_others_are_checked_all_the_same(
    tmp_path: Path, head: Path, content: bytes
) -> None:
    broken = tmp_path / "broken.pt"
    broken.write_bytes(content)
    shown = Ran("check", broken, tmp_path / "absent", head, *RIGHT, "--json")
    first, second, third = shown.json()["checkpoints"]

    assert shown.code == 1
    assert first["error"].startswith(str(broken))
    assert second["error"] == f"{tmp_path}/absent: no such file"
    assert (third["current"], third["error"]) == (True, None)


def test_a_chain_that_is_not_here_is_wrong_usage(head: Path) -> None:
    assert Ran("check", head, *RIGHT, "--chain", "acme.rihgt").code == 2
    assert Ran("check", head, *RIGHT, "--from", "acme.none=1.0").code == 2
    with pytest.raises(UsageError, match=r"no chain is called acme\.none"):
        ckptmigrate.check(head, chains={"acme.none": None})


def test_a_stamp_of_a_chain_that_is_not_installed_is_said_to_be_not_checked(head: Path) -> None:
    ran = Ran("check", head)

    assert ran.code == 0
    assert "note: chain acme.right: not installed here, not checked" in ran.out


def test_a_broken_chain_makes_what_needs_it_unknown_and_nothing_else(tmp_path: Path, head: Path) -> None:
    path = tmp_path / "m.safetensors"
    stamp = ckptmigrate.stamp_for("acme.broken", version="1.0")
    safetensors.torch.save_file({"a": torch.ones(1)}, path, metadata=stamp)
    ran = Ran("check", path, head, "--migrations", HERE / "broken")

    assert ran.code == 1
    assert "pending: chain acme.broken does not load: " in ran.out
    assert f"{head}: current" in ran.out


def test_the_epochs_of_a_run_are_checked_one_by_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(BURN / "0.13.2" / "run-adam", run)
    shown = Ran("check", run, "--json")
    told = shown.json()["checkpoints"]

    assert shown.code == 1
    assert [one["epoch"] for one in told] == [epoch.number for epoch in ckptmigrate.epochs(run)[0].epochs]
    assert Ran("check", run, "--epoch", told[-1]["epoch"], "--json").json()["checkpoints"] == told[-1:]


def test_what_was_migrated_is_current(tmp_path: Path) -> None:
    for source, out in ((OLD, tmp_path / "a.pt"), (OLD, tmp_path / "folder"), (BARE, tmp_path / "b.safetensors")):
        assert Ran("migrate", source, out).code == 0

        assert Ran("check", out).code == 0


def test_a_checkpoint_that_fits_the_model_is_current_and_one_that_does_not_says_all_that_is_amiss(head: Path) -> None:
    like = saved(head.with_name("like.safetensors"), "head", "trunk.conv")

    assert Ran("check", head, *RIGHT, "--like", head).code == 0
    ran = Ran("check", head, *RIGHT, "--like", like)
    assert ran.code == 1
    assert ran.out.splitlines()[0] == f"{head}: does not fit (safetensors)"
    assert [line for line in ran.out.splitlines() if "--like" in line] == [
        f"  --like {like}: missing: trunk.conv F32 [2]; closest of the unmatched: body.conv (same shape)",
        f"  --like {like}: unexpected: body.conv F32 [2]; closest of the unmatched: trunk.conv (same shape)",
    ]


def test_what_is_behind_is_compared_as_its_pending_steps_leave_it(behind: Path, head: Path) -> None:
    fits, not_yet = (Ran("check", behind, *RIGHT, "--like", model, "--json") for model in (head, behind))

    assert [(ran.code, len(ran.json()["checkpoints"][0]["pending"])) for ran in (fits, not_yet)] == [(1, 2), (1, 2)]
    assert fits.json()["checkpoints"][0]["misfits"] == []
    assert any("missing: trunk.fc" in what for what in not_yet.json()["checkpoints"][0]["misfits"])


def test_a_name_that_only_like_itself_would_mend_is_pending_as_a_strict_load_refuses_it(tmp_path: Path) -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    torch.save(state, tmp_path / "today.pt")
    del state["num_batches_tracked"]
    torch.save(dict(state), tmp_path / "old.pt")
    today, old = (Ran("check", tmp_path / name, "--like", tmp_path / "today.pt") for name in ("today.pt", "old.pt"))

    assert today.code == 0
    assert old.code == 1
    assert "loads it only with these names mended: num_batches_tracked" in old.out


def test_a_model_that_is_not_there_is_wrong_usage_and_no_verdict_on_the_checkpoint(head: Path) -> None:
    ran = Ran("check", head, *RIGHT, "--like", "acme_that_nobody_has:Net")

    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize("stamp", ["0", "1.0", "2.0", "9", None])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_check_plan_and_in_place_mean_the_same_by_pending(tmp_path: Path, suffix: str, stamp: str | None) -> None:
    names = {"0": "trunk.fc", "1.0": "body.fc", None: "other"}
    path = saved(tmp_path / "m.safetensors", names.get(stamp, "head"), stamp=stamp)
    if suffix == "pt":
        path = tmp_path / "m.pt"
        ckptmigrate.migrate(
            tmp_path / "m.safetensors",
            path,
            chains={"acme.right": stamp} if stamp else {},
            migrations=(str(HERE / "right"),),
        )
    options: dict[str, Any] = {"migrations": (str(HERE / "right"),)}
    (standing,) = ckptmigrate.check(path, **options)
    (told,) = ckptmigrate.plan(path, in_place=True, **options)
    done = ckptmigrate.migrate(path, in_place=True, **options)

    assert standing.current is not told.pending
    assert told.pending is done.written
    assert ckptmigrate.check(path, **options)[0].current


def test_a_file_without_a_model_fits_none(tmp_path: Path, head: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "optimizer.pt")
    ran = Ran("check", tmp_path / "optimizer.pt", "--like", head)

    assert ran.code == 1
    assert f"it holds no model that could be compared with {head}" in ran.out


@pytest.mark.parametrize("option", ["--migrations", "--like"])
def test_what_the_call_names_and_is_not_there_is_no_verdict_on_the_checkpoint(option: str, head: Path) -> None:
    ran = Ran("check", head, option, head.parent / "nowhere.pt")

    assert ran.code == 3
    assert "nowhere.pt: no such file" in ran.err


def test_a_place_that_nothing_tells_is_called_unknown(tmp_path: Path) -> None:
    stamp = {
        name: text.replace('"1.0"', '"banana"') for name, text in ckptmigrate.stamp_for("bert", version="1.0").items()
    }
    torch.save({**stamp, "model": {"a": torch.ones(2)}}, tmp_path / "odd.pt")
    ran = Ran("check", tmp_path / "odd.pt")

    assert (ran.code, ran.out.splitlines()[0]) == (1, f"{tmp_path / 'odd.pt'}: unknown (torch_zip)")
