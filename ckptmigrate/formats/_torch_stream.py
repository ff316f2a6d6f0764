"""The pickle stream of torch 0.1.10 to 1.5 (and of a flag ever since), read at any offset of anything that has bytes.

    pickle  magic number                      0x1950A86A20F9469CFC6C
    pickle  protocol version                  1001
    pickle  system information                {"protocol_version": …, "little_endian": …, "type_sizes": …}
    pickle  the object                        storages are persistent ids: ("storage", class, key, location, numel, view)
    pickle  the storages' keys                a list, sorted as strings
    per key    int64 element count │ elements, little-endian, no padding

A storage lies behind pickles whose length nobody wrote down, so the object is read twice: once for what it claims and where it
ends, with no meaning given to anything, then with every storage at its place. The price is the pickle's own time again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ckptmigrate.errors import CorruptError, TruncatedError, UnsupportedFormatError
from ckptmigrate.files import Range
from ckptmigrate.values import Inert
from ckptmigrate.wire import pickles
from ckptmigrate.wire.names import Meaning

from ._torch_pickles import Storages
from ._torch_storages import Claim, Storage, fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.files.source import Spills
    from ckptmigrate.limits import Limits

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001


class Stream(Protocol):
    """What a stream is read from: ``files.Source`` is one."""

    @property
    def size(self) -> int: ...
    def read(self, offset: int, nbytes: int, /) -> bytes: ...
    def range(self, offset: int, nbytes: int, /) -> Range: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything of one stream lies: the object pickle at ``offset``, the storages by key, the ``end``.

    ``missing``: bytes that the file would have to be longer, and from which storage on.
    """

    offset: int
    little_endian: Any
    storages: Mapping[str, Storage | Inert]
    end: int
    missing: int = 0
    short: Inert | None = None


@dataclass(frozen=True, slots=True)
class Octets:
    """Bytes in memory as a stream; its ranges lie in scratch, where they go when somebody draws them."""

    data: bytes
    disk: Spills

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.data)

    def read(self, offset: int, nbytes: int, /) -> bytes:
        """Give bytes."""
        return self.data[offset : offset + nbytes]

    def range(self, offset: int, nbytes: int, /) -> Range:
        """Give a range of scratch that will hold these bytes."""
        piece = self.data[offset : offset + nbytes]
        return Range(
            self.disk.spill("a storage within a pickle", len(piece), lambda write: write(piece)), 0, len(piece)
        )


def plan(stream: Stream, limits: Limits) -> Plan:
    """Find out where everything lies. TruncatedError within the pickles, CorruptError where counts disagree."""
    magic, at = _value(stream, 0, limits, "the magic number")
    if magic != MAGIC or type(magic) is not int:
        raise CorruptError("does not begin with torch's magic number")
    protocol, at = _value(stream, at, limits, "the protocol version")
    if protocol != PROTOCOL or type(protocol) is not int:
        raise UnsupportedFormatError(f"a torch stream of protocol {protocol!r:.80}, only {PROTOCOL} is known")
    system, offset = _value(stream, at, limits, "the system information")
    claims: dict[str, Claim] = {}
    _, at = _value(stream, offset, limits, "the object pickle", _collector(claims))
    keys, at = _value(stream, at, limits, "the list of storage keys")
    if type(keys) is not list or not all(type(key) in (str, int) for key in keys):
        raise CorruptError("the list of storage keys is no list of keys")
    little = system.get("little_endian") if isinstance(system, dict) else None
    return _place(stream, offset, little, claims, [str(key) for key in keys], at)


def _collector(claims: dict[str, Claim]) -> Storages:
    return Storages(lambda claim: Inert("name", claim.key), claims)


_UNMEANT = {
    f"torch._utils.{name}": Meaning(call=lambda _: None)
    for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")
}
"""The commonest calls, by which the first reading would fill its memory with nodes that nobody looks at."""


def _value(stream: Stream, at: int, limits: Limits, what: str, storages: Storages | None = None) -> tuple[Any, int]:
    try:
        loaded = pickles.load(stream, at, limits=limits, meanings=_UNMEANT, persistent=storages)
    except TruncatedError as error:
        raise TruncatedError(f"truncated in {what}: {error.message}", **error.data) from error
    return loaded.value, loaded.end


def _place(stream: Stream, offset: int, little: Any, claims: dict[str, Claim], keys: list[str], at: int) -> Plan:
    storages: dict[str, Storage | Inert] = {}
    short: Inert | None = None
    size = stream.size
    for key in keys:
        claim = claims.get(key)
        if claim is None or key in storages:
            why = "which no tensor refers to" if claim is None else "a second time"
            raise CorruptError(f"the list of storage keys has {key[:80]!r}, {why}", key=key)
        stop = at + 8 + claim.nbytes
        if at + 8 <= size:
            _check_count(stream.read(at, 8), claim)
        if stop > size:
            present = max(0, size - at - 8)
            broken = fault(claim.path, f"storage {key!r} needs {claim.nbytes} bytes at {at + 8}, {present} are there")
            storages[key], short = broken, short or broken
        else:
            storages[key] = Storage(key, stream.range(at + 8, claim.nbytes), claim.dtype, claim.numel)
        at = stop
    for key, claim in claims.items():
        if key not in storages:
            storages[key] = fault(claim.path, f"storage {key[:80]!r} is not in the file's list of storages")
    return Plan(offset, little, storages, min(at, size), max(0, at - size), short)


def _check_count(field: bytes, claim: Claim) -> None:
    """Compare the count in the file with the pickle's; releases of the TH era wrote it in their machine's order."""
    count = int.from_bytes(field, "little", signed=True)
    if claim.numel not in (count, int.from_bytes(field, "big", signed=True)):
        raise CorruptError(
            f"storage {claim.key!r} is declared with {claim.numel} elements and stored with {count}",
            key=claim.key, declared=claim.numel, stored=count,
        )  # fmt: skip


def nested(data: bytes, disk: Spills | None, limits: Limits) -> Any:
    """Give the one storage in the stream that a storage without torch.save was pickled as, or the fault that it has."""
    path = "torch.storage._load_from_bytes"
    if disk is None:
        return fault(path, "a storage within a pickle, and no scratch to put it into")
    stream = Octets(data, disk)
    found = plan(stream, limits)
    if found.short is not None:
        return found.short
    storages = Storages(lambda claim: found.storages[claim.key])
    value = pickles.load(stream, found.offset, limits=limits, meanings={}, persistent=storages).value
    return value if isinstance(value, Storage) else fault(path, "a stream within a pickle that is not one storage")
