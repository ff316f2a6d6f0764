"""Which of torch's zip archives a zip is, by the names of its members alone.

    P/data.pkl, P/data/KEY or P/tensors/KEY, P/version            torch.save             "save"
    P/constants.pkl, P/code/…, P/data.pkl; or P/model.json        torch.jit.save         "script"
    P/archive_format; or serialized_exported_program.json         torch.export.save      "export"
    P/.data/extern_modules, P/.data/KEY.storage                   torch.package          "package"

They share the container and part of the names, so the question is answered in one place.
Sources: torch/serialization.py, torch/csrc/jit/serialization/export.cpp, torch/export/pt2_archive, torch/package of torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ckptmigrate.errors import FormatError
from ckptmigrate.limits import LIMITS

from ._zip import is_zip, listing

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckptmigrate.files import Source

Archive = Literal["save", "script", "export", "package"]


def members(source: Source) -> list[str]:
    """Name the members of a zip; [] for what is none, or whose directory cannot be read."""
    try:
        return listing(source, LIMITS) if is_zip(source) else []
    except FormatError:
        return []


def archive(names: Collection[str]) -> Archive | None:
    """Say which archive has members of these names; None for a zip that torch did not write."""
    tails = {name.rpartition("/")[2] for name in names}
    if "extern_modules" in tails and any(_ends(name, ".data/extern_modules") for name in names):
        return "package"
    if "archive_format" in tails or "serialized_exported_program.json" in tails:
        return "export"
    if "constants.pkl" in tails or ("model.json" in tails and any("/tensors/" in name for name in names)):
        return "script"
    return "save" if pickles(names) else None


def pickles(names: Collection[str]) -> list[str]:
    """Name the members that hold the object pickle of a torch.save archive; what macOS adds is none."""
    return [name for name in names if _ends(name, "data.pkl") and not name.startswith("__MACOSX/")]


def _ends(name: str, tail: str) -> bool:
    return name == tail or name.endswith(f"/{tail}")
