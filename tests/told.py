"""A file that torch saved, told to the command line: what came out, or what the refusal says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .command_line import Ran

if TYPE_CHECKING:
    from pathlib import Path


def saved(path: Path, held: Any) -> Path:
    """Give the path under which torch saved it."""
    torch.save(held, path)
    return path


def load(path: Path) -> Any:
    """Give what torch reads."""
    return torch.load(path, weights_only=True)


def upgraded(held: Any, folder: Path, *options: str) -> tuple[Any, Any]:
    """Give what came out, and the report."""
    source, out = saved(folder / "in.pt", held), folder / "out.pt"
    ran = Ran("migrate", source, out, *options, "--json")

    assert (ran.code, ran.err) == (0, "")
    return load(out), ran.json()


def refused(folder: Path, *arguments: str | Path) -> str:
    """Give what a refusal says: one message on stderr, exit status 3, nothing written."""
    before = sorted(folder.rglob("*"))
    ran = Ran("migrate", *arguments)

    assert (ran.code, ran.out) == (3, "")
    assert "Traceback" not in ran.err
    assert sorted(folder.rglob("*")) == before
    return ran.err
