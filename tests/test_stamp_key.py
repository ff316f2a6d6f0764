"""The stamp that a library puts into its own checkpoints: one text under our key, read wherever the checkpoint goes."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate.errors import CorruptError, PlanError, UsageError

from .test_upgrade import KEY, Library, Trained, laid_steps


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return laid_steps(tmp_path)


def test_the_stamp_of_a_file_of_tensors_is_handed_over(tmp_path: Path, migrations: Path) -> None:
    path = tmp_path / "m.safetensors"
    stamp = ckptmigrate.stamp_for("acme.net", version="1.0")
    safetensors.torch.save_file({"trunk.0.weight": torch.ones(2)}, path, metadata=stamp)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    state = safetensors.torch.load_file(path)

    by_metadata = ckptmigrate.upgrade(state, chain="acme.net", stamp=metadata, migrations=[migrations])
    by_path = ckptmigrate.upgrade(state, chain="acme.net", stamp=ckptmigrate.stamp_of(path), migrations=[migrations])

    assert list(by_metadata) == list(by_path) == ["trunk.0.kernel"]
    with pytest.raises(PlanError, match=r"it has no stamp, and step 2\.0 has no marks to tell by"):
        ckptmigrate.upgrade(state, chain="acme.net", migrations=[migrations])
    assert list(ckptmigrate.upgrade(state, chain="acme.net", said="1.0", migrations=[migrations])) == ["trunk.0.kernel"]


def test_a_state_dict_itself_comes_back_without_the_stamp_that_it_was_saved_with(migrations: Path) -> None:
    """``load_state_dict(strict=True)`` would ask what the key is; a library that saves bare state dicts merges the stamp in."""
    model = Library()
    saved = OrderedDict({**ckptmigrate.stamp_for("acme.net", version="1.0"), **model.state_dict()})
    saved["trunk.0.weight"] = saved["trunk.0.weight"] + 1
    state = ckptmigrate.upgrade(saved, chain="acme.net", version="1.0", migrations=[migrations])
    model.load_state_dict(state, strict=True)

    assert KEY not in state
    assert KEY in saved
    assert "trunk.0.kernel" in ckptmigrate.upgrade(saved, chain="acme.net", migrations=[migrations])


def test_a_stamp_for_is_what_check_and_migrate_read_from_the_file(tmp_path: Path, migrations: Path) -> None:
    path, out = tmp_path / "a.pt", tmp_path / "b.pt"
    torch.save(Trained().checkpoint(**ckptmigrate.stamp_for("acme.net", version="0.5")), path)
    (standing,) = ckptmigrate.check(path, migrations=(str(migrations),))
    ckptmigrate.migrate(path, out, chains={"acme.net": "1.0"}, migrations=(str(migrations),))
    loaded = torch.load(out, weights_only=True)

    assert ("acme.net", "0.5", "stamp") in standing.places
    assert json.loads(loaded[KEY])["stamp"]["versions"] == {"acme.net": "1.0"}
    assert list(loaded)[-1] == KEY  # where it stood
    again = ckptmigrate.upgrade(loaded, chain="acme.net", version="1.0", migrations=[migrations])
    assert again is loaded


@pytest.mark.parametrize(
    "stamp", [{"stamp": {"versions": {"acme.net": "1.0"}}}, '{"stamp":{"versions":{"acme.net":"1.0"}}}']
)
def test_a_stamp_under_the_key_is_read_as_an_object_and_as_text(tmp_path: Path, stamp: Any) -> None:
    torch.save({KEY: stamp, "model": {"a": torch.ones(1)}, "epoch": 1}, tmp_path / "a.pt")

    assert ckptmigrate.inspect(tmp_path / "a.pt")["versions"] == {"acme.net": "1.0"}


@pytest.mark.parametrize("stamp", [3, "no json", "[]", {"stamp": 3}, {"stamp": {"versions": {"a": 1}}}, torch.ones(1)])
def test_what_is_no_stamp_under_the_key_is_refused_and_never_a_value(tmp_path: Path, stamp: Any) -> None:
    torch.save({KEY: stamp, "model": {"a": torch.ones(1)}}, tmp_path / "a.pt")

    with pytest.raises(CorruptError, match=r"the key 'ckptmigrate'|the stamp's versions"):
        ckptmigrate.inspect(tmp_path / "a.pt")


def test_stamp_for_says_the_newest_step_and_knows_the_chains_that_are_there(migrations: Path) -> None:
    assert json.loads(ckptmigrate.stamp_for("acme.net", migrations=[migrations])[KEY]) == {
        "stamp": {"versions": {"acme.net": "2.0"}}
    }
    with pytest.raises(UsageError, match=r"no chain is called acme\.nte"):
        ckptmigrate.stamp_for("acme.nte", migrations=[migrations])
    with pytest.raises(UsageError, match="is no version"):
        ckptmigrate.stamp_for("acme.net", version="latest")
