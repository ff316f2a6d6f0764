"""``docs/maintainers.md`` is a whole day, typed from top to bottom in an empty folder; README shows its stations, word for word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ckptmigrate
from ckptmigrate import registry

from .reader import ROOT, Reader, blocks, section

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "maintainers.md"
STEP = "acme_net/migrations/acme_net/v2_0_split_qkv.py"


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Type the page in an empty folder, whose package is really installed, and stay there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("day"))
        for name in ("path", "meta_path", "path_hooks"):
            patched.setattr(sys, name, list(getattr(sys, name)))
        reader = Reader(PAGE.read_text(), installs=True)
        reader.read()
        yield reader
    reader.forget()
    registry.forget()


def test_every_line_that_the_page_shows_comes_out(day: Reader) -> None:
    assert day.missed == []


def test_the_migrator_that_is_reviewed_is_the_one_that_was_proposed(day: Reader) -> None:
    assert day.made[STEP] == Path(STEP).read_text()


def test_a_step_that_nobody_wrote_is_what_keeps_ci_red(day: Reader) -> None:
    (before,) = ckptmigrate.check("old.pt", like="new.pt")
    (after,) = ckptmigrate.check("old.pt", like="new.pt", chains={"acme.net": None})

    assert (before.pending, len(before.misfits)) == ((), 12)
    assert (len(after.pending), after.misfits) == (1, ())


def test_the_installed_package_alone_brings_the_chain(day: Reader) -> None:
    (row,) = (row for row in ckptmigrate.chains.installed() if row.name == "acme.net")

    assert row.where == ("acme_net.migrations.acme_net.v2_0_split_qkv (acme-net 2.0)",)


@pytest.mark.parametrize("name", ["old.pt", "resumed.pt", "migrated.pt"])
def test_adam_goes_on_bit_for_bit_as_it_would_have_in_1_0(day: Reader, name: str) -> None:
    saved = torch.load("old.pt", weights_only=True)
    gradients = {key: torch.randn_like(value) for key, value in saved["model"].items()}
    old = stepped(saved["model"], saved["optimizer"], gradients)
    state = ckptmigrate.upgrade(torch.load(name, weights_only=True), chain="acme.net")

    assert state["epoch"] == 3
    assert equal(
        stepped(state["model"], state["optimizer"], upgraded(gradients)),
        {key: upgraded(was) for key, was in old.items()},
    )


def stepped(model: dict[str, Any], optimizer: dict[str, Any], gradients: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give weights and moments after one more step of torch's own Adam."""
    weights = {name: torch.nn.Parameter(value.clone()) for name, value in model.items()}
    adam = torch.optim.Adam(weights.values())
    adam.load_state_dict(optimizer)
    for name, weight in weights.items():
        weight.grad = gradients[name].clone()
    adam.step()
    found = {"weight": {name: weight.detach() for name, weight in weights.items()}}
    for slot in ("exp_avg", "exp_avg_sq"):
        found[slot] = {name: adam.state[weight][slot] for name, weight in weights.items()}
    return found


def upgraded(old: dict[str, Any]) -> dict[str, Any]:
    """Do by hand what 2.0 did."""
    new = {name.replace("features", "backbone"): value for name, value in old.items() if not name.startswith("qkv.")}
    for kind in ("weight", "bias"):
        new |= zip((f"q.{kind}", f"k.{kind}", f"v.{kind}"), old[f"qkv.{kind}"].chunk(3), strict=True)
    return new


def equal(found: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> bool:
    assert [sorted(each) for each in found.values()] == [sorted(each) for each in wanted.values()]
    return all(torch.equal(found[what][name], each) for what, row in wanted.items() for name, each in row.items())


def test_what_is_saved_today_bears_the_stamp(day: Reader) -> None:
    assert ckptmigrate.inspect("resumed.pt")["versions"] == {"acme.net": "2.0"}
    assert ckptmigrate.inspect("migrated.pt")["versions"] == {"acme.net": "2.0"}


def test_the_readme_shows_the_stations_of_the_day_in_their_order() -> None:
    shown, _ = section(ROOT / "README.md", "A maintainer's day")
    whole = iter(blocks(PAGE.read_text()))

    assert len(blocks(shown)) > 6
    for block in blocks(shown):
        assert block in whole, f"docs/maintainers.md has no such block, or has it earlier:\n{block[1]}"
