"""Which of torch's zip archives a zip is, by the names of its members alone.

    P/data.pkl, P/data/KEY or P/tensors/KEY, P/version            torch.save             "save"
    P/constants.pkl, P/code/…, P/data.pkl; or P/model.json        torch.jit.save         "script"
    P/archive_format; or serialized_exported_program.json         torch.export.save      "export"
    P/.data/extern_modules, P/.data/KEY.storage                   torch.package          "package"

They share the container and part of the names, so the question is answered in one place, and once for a file: of a directory of
100,000 members each answer takes 0.3 s, and detection asks every format.
Sources: torch/serialization.py, torch/csrc/jit/serialization/export.cpp, torch/export/pt2_archive, torch/package of torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from ckptmigrate.errors import FormatError
from ckptmigrate.limits import LIMITS

from ._zip import is_zip, listing

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckptmigrate.files import Source

Kind = Literal["save", "script", "export", "package", "cut"]


@dataclass(frozen=True, slots=True)
class Archive:
    """What the names say. ``cut``: a zip whose directory cannot be read, of whatever kind.

    Of a file of torch.save: ``prefix`` stands before data.pkl, with its slash; ``current``: torch finds all that it needs there.
    """

    kind: Kind
    prefix: str = ""
    current: bool = False


_SEEN: WeakKeyDictionary[Source, Archive | None] = WeakKeyDictionary()  # a pure lookup: a source's bytes do not change


def archive_of(source: Source) -> Archive | None:
    """Say what a file is; None for what is no zip, or one that torch did not write."""
    if source not in _SEEN:
        _SEEN[source] = _asked(source)
    return _SEEN[source]


def _asked(source: Source) -> Archive | None:
    if not is_zip(source):
        return None
    try:
        return archive(listing(source, LIMITS))
    except FormatError:
        return Archive("cut")


def archive(names: Collection[str]) -> Archive | None:
    """Say which archive has members of these names, in the directory's order; None for a zip that torch did not write."""
    tails = {name.rpartition("/")[2] for name in names}
    if "extern_modules" in tails and any(_ends(name, ".data/extern_modules") for name in names):
        return Archive("package")
    if "archive_format" in tails or "serialized_exported_program.json" in tails:
        return Archive("export")
    if "constants.pkl" in tails or ("model.json" in tails and any("/tensors/" in name for name in names)):
        return Archive("script")
    prefixes = [
        name.removesuffix("data.pkl")
        for name in names
        if _ends(name, "data.pkl") and not name.startswith("__MACOSX/")  # what macOS adds is none
    ]
    if not prefixes:
        return None
    known = set(names)
    beside = [prefix for prefix in prefixes if {f"{prefix}version", f"{prefix}.data/version"} & known]
    prefix = min(beside or prefixes, key=len)
    first = prefix != "" and next(iter(names)).startswith(prefix)  # torch takes the prefix of the first member
    return Archive("save", prefix, prefix in beside and first and not is_preview(names, prefix))


def is_preview(names: Collection[str], prefix: str) -> bool:
    """Say whether these are the members of torch 1.4's preview, which kept its storages elsewhere."""
    starts = {name[len(prefix) :].partition("/")[0] for name in names if name.startswith(prefix)}
    return "tensors" in starts and "data" not in starts


def _ends(name: str, tail: str) -> bool:
    return name == tail or name.endswith(f"/{tail}")
