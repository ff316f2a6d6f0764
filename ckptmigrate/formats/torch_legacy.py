"""The pickle stream of ``torch.save``: torch 0.1.10 to 1.5, and with ``_use_new_zipfile_serialization=False`` ever since.

    80 02  8A 0A  6C FC 9C 46 F9 20 6A A8 50 19  2E     the magic number 0x1950A86A20F9469CFC6C as a pickle (any protocol)
    80 02  4D E9 03  2E                                 1001
    80 02  7D …  2E                                     {"protocol_version": 1001, "little_endian": True, "type_sizes": {…}}
    80 02  …  2E                                        the object; persistent ids:
                                                          ("storage", class, key, location, numel, None | (key, offset, numel))
                                                          ("module", class, source file, source text)
    80 02  5D …  2E                                     the storages' keys, sorted as strings
    count as int64 │ count * itemsize bytes             one storage per key, without padding, to the end of the file

Elements are little-endian whatever ``little_endian`` says; only counts were in the writer's order in the TH era. The dtype is that of
the first class claimed for a key. Python 2 wrote byte strings: they become text where they are UTF-8 and stay bytes where not.
A size of () on an empty storage is an empty tensor (scalars came with 0.4). gzip around it is decoded; other bytes behind it are said.
Sources: torch/serialization.py of 0.1 to 2.13, torch/csrc/generic/serialization.cpp of 1.0, files of 1.0, 1.4, 1.6, 1.10, 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptmigrate.errors import TruncatedError, reading
from ckptmigrate.format import Format, Match, Parts
from ckptmigrate.values import spell, walk
from ckptmigrate.wire.pickles import first_int

from ._compressed import compressed
from ._gzip import within
from ._torch import Calls
from ._torch_pickles import Storages, finish, load
from ._torch_stream import MAGIC, PROTOCOL, Plan, nested, plan

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.format import ReadOptions

_HEAD = 64  # bytes; the magic number at any protocol, with a frame around it, takes some 30
_NAMED = 5  # tensors named in a message; one storage may carry thousands


def sniff(source: Source) -> Match | None:
    """Claim what begins with the magic number, itself or under gzip; under bzip2, to refuse it by name."""
    if source.is_folder():
        return None
    head = source.read(0, min(source.size, _HEAD))
    if first_int(head) == MAGIC:
        return Match(FORMAT, {"protocol": _protocol(head)})
    within = compressed(source)
    if within is None or first_int(within.head) != MAGIC:
        return None
    if within.codec != "gzip":
        return Match(FORMAT, refuse=f"a torch file compressed with {within.codec}; decompress it first ({within.tool})")
    return Match(FORMAT, {"protocol": _protocol(within.head), "compression": "gzip"})


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the object as a tree whose tensors are looks into the file.

    Raises TruncatedError, which names a tensor whose storage is short; CorruptError where a storage's counts disagree;
    UnsupportedFormatError for another protocol version than 1001; ForeignCallError, LimitError.
    """
    source = within(source, options.limits)
    with reading(source.name):
        found = plan(source, options.limits)
        disk = source.range(0, 0).file.disk
        calls = Calls(options, empty_scalars=True, nested=lambda data: nested(data, disk, options.limits))
        storages = Storages(lambda claim: found.storages[claim.key])
        loaded = load(source, found.offset, storages, calls)
        facts = {
            "version": PROTOCOL,
            "protocol": _protocol(source.read(found.offset, 2)),
            "little_endian": found.little_endian,
        }
        parts = Parts(family="torch", facts=facts)
        finish(parts, loaded, calls, source)
        parts.warnings += storages.warnings
        if found.short is not None:
            raise _truncated(parts, found, options)
        if trailing := source.size - found.end:
            parts.warnings.append(_after(source, found.end, trailing))
        return parts


def _truncated(parts: Parts, found: Plan, options: ReadOptions) -> TruncatedError:
    assert found.short is not None
    names: list[str] = []
    for path, node in walk(parts.tree, options.limits):
        if node is found.short and len(names) < _NAMED:
            names.append(spell(path))
    listed = ", ".join(map(repr, names)) or "a tensor"
    return TruncatedError(
        f"truncated by {found.missing} bytes: {listed} is short, {found.short.args[0]}",
        needed=found.end + found.missing, present=found.end, tensors=names,
    )  # fmt: skip


def _after(source: Source, end: int, trailing: int) -> str:
    head = source.read(end, min(trailing, _HEAD))
    what = (
        "another stream of torch.save begins there, which is not read"
        if first_int(head) == MAGIC
        else "they are not read"
    )
    return f"{trailing} bytes after the last storage, at {end}: {what}"


def _protocol(head: bytes) -> int:
    return head[1] if head[:1] == b"\x80" else 0


FORMAT = Format(
    "torch_legacy", family="torch", speaks="tree", standard="torch", suffixes=(".pt", ".pth"), sniff=sniff, read=read,
    about="torch.save to 1.5, and with its flag since",
)  # fmt: skip
