"""What a project says of its chains, in its ``pyproject.toml``; only the working directory's is ever asked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptmigrate.errors import UsageError
from ckptmigrate.files import Disk

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Project:
    """What a project says of itself: ``[tool.ckptmigrate]`` of a ``pyproject.toml``; folders are absolute."""

    migrations: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()


def project(path: Path | str) -> Project:
    """Read ``[tool.ckptmigrate]`` of a ``pyproject.toml``; UsageError where it is not what it should be."""
    with Disk() as disk:
        source = disk.open(path)
        text = source.read(0, source.size)
        folder = source.name.rpartition("/")[0]
    try:
        said = tomllib.loads(text.decode()).get("tool", {}).get("ckptmigrate", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"is no TOML: {error}", path=str(path)) from error
    lists = {}
    for key, value in said.items() if isinstance(said, dict) else [("tool.ckptmigrate", said)]:
        if (
            key not in {"migrations", "chains"}
            or not isinstance(value, list)
            or not all(isinstance(v, str) for v in value)
        ):
            raise UsageError(
                f"[tool.ckptmigrate] {key}: expected migrations = [folders] and chains = [names]", path=str(path)
            )
        lists[key] = tuple(value)
    folders = tuple(
        each if each.startswith("/") or not folder else f"{folder}/{each}" for each in lists.get("migrations", ())
    )
    return Project(folders, lists.get("chains", ()))
