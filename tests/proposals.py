"""What is proposed from two checkpoints, and what the file that was written makes of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ckptmigrate

from .command_line import Ran

if TYPE_CHECKING:
    from ckptmigrate.propose import Written

    from .architectures import State

CHAIN = "acme.net"


def propose(folder: Path, old: Any, new: Any, **options: Any) -> Written:
    torch.save(old, folder / "old.pt")
    torch.save(new, folder / "new.pt")
    return ckptmigrate.new(
        CHAIN, "2.0", folder / "old.pt", folder / "new.pt", into=str(folder / "migrations"), **options
    )


def assert_maps(folder: Path, old: State, new: State, *, unmarked: bool = False) -> None:
    """The file that was written, found as a user's is, makes exactly ``new`` of a file with ``old``."""
    torch.save(old, folder / "second.pt")
    where = ("--from", f"{CHAIN}=0") if unmarked else ("--chain", CHAIN)
    ran = Ran("migrate", folder / "second.pt", folder / "made.pt", "--migrations", folder / "migrations", *where)
    assert ran.code == 0, ran.err
    made = torch.load(folder / "made.pt", weights_only=True)

    assert {n: (t.dtype, t.shape) for n, t in made.items()} == {n: (t.dtype, t.shape) for n, t in new.items()}
    assert all(torch.equal(made[name], tensor) for name, tensor in new.items())
