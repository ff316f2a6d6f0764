"""Python's search for garbage waits while a file is read, and goes on afterwards whatever happened."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from ckptmigrate import store
from ckptmigrate.errors import CkptError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.wire.collector import paused_collector

if TYPE_CHECKING:
    from pathlib import Path


def test_no_search_runs_within_and_it_is_as_it_was_before() -> None:
    for running in (True, False):
        (gc.enable if running else gc.disable)()
        with paused_collector():
            within = gc.isenabled()
        after = gc.isenabled()
        gc.enable()

        assert (within, after) == (False, running)


def test_it_goes_on_after_a_file_was_read_and_after_one_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2)}, path)
    cut = tmp_path / "cut.pt"
    cut.write_bytes(path.read_bytes()[:-100])
    with Disk() as disk:
        store.read(disk.open(path), ReadOptions())

        assert gc.isenabled()

        with pytest.raises(CkptError):
            store.read(disk.open(cut), ReadOptions())

        assert gc.isenabled()
