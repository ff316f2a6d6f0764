"""Files of sections that nobody takes are not looked at: what the others give is the same, whatever became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import ckptmigrate
from ckptmigrate import store
from ckptmigrate.errors import SectionError
from ckptmigrate.format import GatherOptions
from ckptmigrate.testing import assert_same_checkpoint

from .acme import full, installed, laid, opened
from .command_line import CHECKPOINT, Ran

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three files' framework that our record completes: two optimizers, two schedulers, a twin, values."""
    return laid(full(), tmp_path / "run")


def spoilt(folder: Path, kind: str) -> None:
    found = [path for path in folder.rglob("*") if path.is_file() and path.name.startswith(kind)]
    assert found
    for path in found:
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"tensors"', b'"censors"', 1) if b'"tensors"' in data else data[:-7])


def told(checkpoint: Checkpoint) -> list[str]:
    return [text for text in checkpoint.ledger.warnings if "record tells of" in text]


@pytest.mark.parametrize(
    ("options", "kind", "files"),
    [
        ({"only": ("model",)}, "optim", 2),
        ({"only": ("model", "schedulers")}, "optim", 2),
        ({"only": ("model", "optimizers.1")}, "scheduler", 2),
        ({"drop": ("optimizers",)}, "optim", 2),
        ({"drop": ("optimizer",)}, "optim", 2),
        ({"drop": ("scheduler",)}, "scheduler", 2),
    ],
)
def test_a_folder_gives_the_same_without_them(
    folder: Path, options: dict[str, tuple[str, ...]], kind: str, files: int
) -> None:
    with opened(folder, **options) as whole:
        spoilt(folder, kind)
        with pytest.raises(KeyError, match="tensors"):  # as this plugin's reader refuses it
            opened(folder)
        with opened(folder, **options) as rest:
            assert_same_checkpoint(whole, rest)
            assert (told(whole), told(rest)) == ([], [])
            reasons = {r.source: r.reason for r in rest.ledger.rows() if r.source.startswith(f"checkpoint/{kind}")}
    assert len(reasons) == files, reasons
    assert all("hence not read" in str(reason) for reason in reasons.values())


def test_of_two_optimizers_the_one_that_is_taken_keeps_its_number(folder: Path) -> None:
    with opened(folder, only=("model", "optimizers.1")) as checkpoint:
        assert len(checkpoint.optimizers) == 1
        assert [param.key for param in checkpoint.optimizers[0].params] == ["72"]


def test_our_own_folder_has_all_optimizers_in_one_file(tmp_path: Path) -> None:
    ckptmigrate.migrate(CHECKPOINT, tmp_path / "ours", to="safetensors")
    with opened(tmp_path / "ours", only=("model",)) as whole:
        spoilt(tmp_path / "ours", "optimizer")
        with opened(tmp_path / "ours", only=("model",)) as rest:
            assert_same_checkpoint(whole, rest)
            assert ("optimizer.safetensors", "not in --sections model, hence not read") in {
                (row.source, row.reason) for row in rest.ledger.rows()
            }
    ran = Ran("migrate", tmp_path / "ours", tmp_path / "model.safetensors", "--sections", "model", "--json")

    assert ran.code == 0
    assert "optimizer.safetensors" in {left["path"] for left in ran.json()["left_out"]}
    assert Ran("migrate", tmp_path / "ours", tmp_path / "all", "--to", "safetensors").code == 3


def test_a_section_in_a_file_that_is_not_read_is_a_section_and_a_slip_is_none(folder: Path) -> None:
    with opened(folder, drop=("optimizers", "optimizers.1")):
        pass
    with pytest.raises(SectionError, match=r"optimizers\.0"):
        store.open_checkpoint(folder, gather_options=GatherOptions(drop=("optimizers", "nix")))
