r"""The zip file of ``torch.save``: the default since torch 1.6, a flag in 1.4 and 1.5.

    P/data.pkl                  the object, a pickle of protocol 2 (any may be asked for); persistent ids:
                                  ("storage", class, key, location, numel): numel elements of the class's dtype, bytes of UntypedStorage
    P/.format_version           "1"   since 2.7: storages lie in order of first use
    P/.storage_alignment        "64"  since 2.7
    P/byteorder                 "little" or "big"; absent before 2.1, which means little
    P/data/KEY                  one storage each, raw: exactly numel elements
    P/version                   "3\n" since 1.6; also found as P/.data/version; above 10 nobody knows what it means
    P/.data/serialization_id    40 digits; nobody reads them
    P/.data/ckptmigrate.json    ours: the stamp, and what the pickle has no key for

P is "archive" or the stem of the first name that the file had; it is taken from the member that ends in data.pkl and from nothing
else, and may be empty. The preview of torch 1.4 has P/tensors/KEY and six items in a persistent id, the last None.
Members are stored, and deflated where somebody packed the file again. CRC 0 is no CRC (``set_crc32_options(False)``, skip_data).
In a big-endian file every element is turned round, each part of a complex one by itself.
Sources: torch/serialization.py, caffe2/serialize/inline_container.cc of torch 1.4 to 2.13, and files that those wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import U8
from ckptmigrate.errors import LimitError, UnsupportedFormatError, reading
from ckptmigrate.format import Blueprint, Format, Match, Parts
from ckptmigrate.notes import parsed, spelled
from ckptmigrate.tensor import View

from ._compressed import compressed
from ._torch import Calls
from ._torch_archives import archive, archive_of, is_preview
from ._torch_pickles import Storages, finish, load
from ._torch_storages import Claim, Storage, fault
from ._torch_stream import nested
from ._torch_zip_archive import extended
from ._torch_zip_writer import lay_out
from ._zip import Directory, Entry, directory, raw_directory
from ._zip_records import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.files import Source
    from ckptmigrate.format import ReadOptions
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Inert

_VERSIONS = range(
    1, 11
)  # kMinSupportedFileFormatVersion to kMaxSupportedFileFormatVersion in caffe2/serialize/versions.h
_NOTES = ".data/ckptmigrate.json"


def sniff(source: Source) -> Match | None:
    """Claim archives of torch.save by the names of their members, and cut zips of anything, for ``read`` to say so."""
    found = archive_of(source)
    if found is not None:
        facts = {"prefix": found.prefix.rstrip("/"), "current": found.current} if found.kind == "save" else {}
        return Match(FORMAT, facts) if found.kind in ("save", "cut") else None
    within = compressed(source)
    if within is None or not within.head.startswith(LOCAL):
        return None
    return Match(FORMAT, refuse=f"a zip compressed once more with {within.codec}; decompress it first ({within.tool})")


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the object as a tree whose tensors are looks into the file.

    A storage that is missing or has another length is a fault in the tree, which names key and both numbers. Raises TruncatedError
    for a cut file; CorruptError for a directory that contradicts the file, or a wrong CRC of data.pkl; UnsupportedFormatError for
    a version or byte order that is not known; ForeignCallError, LimitError.
    """
    with reading(source.name):
        found = directory(source, options.limits)
        file = _Archive.of(source, found, options.limits)
        parts = Parts(family="torch", facts={"prefix": file.prefix.rstrip("/")})
        parts.facts["version"] = file.version(parts.warnings)
        byteorder = file.byteorder()
        parts.facts["byteorder"] = byteorder
        entry = found.members[f"{file.prefix}data.pkl"]
        if entry.size > options.limits.pickle:
            raise LimitError(
                f"{entry.name} has {entry.size} bytes, the limit of a pickle is {options.limits.pickle}",
                limit="pickle", claimed=entry.size,
            )  # fmt: skip
        entry.verify(source)
        pickle = entry.source(source, options.limits)
        disk = source.range(0, 0).file.disk
        calls = Calls(options, nested=lambda data: nested(data, disk, options.limits))
        storages = Storages(lambda claim: file.storage(claim, big_endian=byteorder == "big"))
        with reading(pickle.name):
            loaded = load(pickle, 0, storages, calls)
            head = pickle.read(0, 2)
        parts.facts["protocol"] = head[1] if head[:1] == b"\x80" else 0
        finish(parts, loaded, calls, source)
        parts.warnings += storages.warnings
        if trailing := entry.size - loaded.end:
            parts.warnings.append(f"{trailing} bytes after the end of the pickle in {entry.name}: they are not read")
        parts.notes = file.notes()
        return parts


def stamp(source: Source, notes: Mapping[str, Any], options: ReadOptions) -> Blueprint:
    """Give the file with its stamp in a record of its own, behind everything else, which stays where and as it is.

    A record that it had before is in no directory any more. Errors as ``read``; LimitError where the notes are too long.
    """
    with reading(source.name):
        start, entries = raw_directory(source, options.limits)
        known = archive(dict(entries))
        if known is None or known.kind != "save":
            raise UnsupportedFormatError("a zip that torch.save did not write")
        name = f"{known.prefix}{_NOTES}"
        blueprint = Blueprint(last=source.name)
        text = spelled(notes, blueprint).encode()
        kept = View.rows(source.range(0, start), U8, (start,))
        others = [raw for each, raw in entries if each != name]
        blueprint.files[source.name], blueprint.sizes[source.name] = extended(kept, others, name, text)
        return blueprint


@dataclass(frozen=True, slots=True)
class _Archive:
    source: Source
    members: dict[str, Entry]
    prefix: str
    folder: str
    limits: Limits

    @classmethod
    def of(cls, source: Source, found: Directory, limits: Limits) -> _Archive:
        known = archive(found.members)
        if known is None or known.kind != "save":
            raise UnsupportedFormatError("a zip that torch.save did not write")
        folder = "tensors/" if is_preview(found.members, known.prefix) else "data/"
        return cls(source, found.members, known.prefix, folder, limits)

    def record(self, name: str) -> bytes | None:
        entry = self.members.get(f"{self.prefix}{name}")
        return None if entry is None else entry.text(self.source, self.limits)

    def version(self, warnings: list[str]) -> int | None:
        text = self.record("version")
        text = self.record(".data/version") if text is None else text
        if text is None:
            warnings.append("no version record, which torch refuses; read as version 3")
            return None
        digits = text.strip()
        if not digits.isdigit() or len(digits) > 20 or int(digits) not in _VERSIONS:
            raise UnsupportedFormatError(
                f"version {text[:20].decode('latin-1').strip()!r}, known are {_VERSIONS[0]} to {_VERSIONS[-1]}",
                version=text[:20],
                hint="a newer ckptmigrate may know it",
            )
        return int(digits)

    def byteorder(self) -> str:
        text = self.record("byteorder")
        if text is None:
            return "little"
        name = text[:20].decode("latin-1").strip()
        if name not in ("little", "big"):
            raise UnsupportedFormatError(f"byte order {name!r}, expected 'little' or 'big'", byteorder=name)
        return name

    def notes(self) -> dict[str, Any]:
        text = self.record(_NOTES)
        if text is None:
            return {}
        return parsed(text, f"{self.prefix}{_NOTES}", self.limits)

    def storage(self, claim: Claim, *, big_endian: bool) -> Storage | Inert:
        name = f"{self.prefix}{self.folder}{claim.key}"
        entry = self.members.get(name)
        claimed = f"storage {claim.key[:80]!r} has {claim.numel} elements of {claim.dtype}, {claim.nbytes} bytes"
        if entry is None:
            return fault(claim.path, f"{claimed}, but there is no member {name[:200]!r}")
        if entry.size != claim.nbytes:
            return fault(claim.path, f"{claimed}, but member {name!r} has {entry.size}")
        return Storage(claim.key, entry.range(self.source, self.limits), claim.dtype, claim.numel, big_endian)


SUFFIXES = (
    ".pt",
    ".pth",
    ".bin",
    ".ckpt",
    ".th",
    ".pth.tar",
    ".pt.tar",
)  # the last two are no tar files: torch's own examples

FORMAT = Format(
    "torch_zip", family="torch", speaks="tree", standard="plain", suffixes=SUFFIXES, current=True,
    sniff=sniff, read=read, lay_out=lay_out, stamp=stamp, about="torch.save since 1.6",
)  # fmt: skip
