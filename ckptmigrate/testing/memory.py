"""Files in memory: sources without a disk, and the bytes of a blueprint without a sink, for the contract suite."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ckptmigrate.errors import CorruptError, LimitError, TruncatedError
from ckptmigrate.files import File, Late, Range, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptmigrate.files import Member
    from ckptmigrate.files.inflate import Codec
    from ckptmigrate.files.scratch import Fill
    from ckptmigrate.format import Blueprint


class _Held(File):
    """Bytes in memory; ``drawable`` False refuses to give them to a promise."""

    def __init__(self, name: str, data: bytes, *, drawable: bool = True) -> None:
        self.name, self.data, self.drawable = name, data, drawable
        self.disk = _Scratch()

    @property
    def size(self) -> int:
        return len(self.data)

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        assert self.drawable, (
            f"{self.name}: bytes {offset} to {offset + len(buffer)} of a tensor were drawn while reading"
        )
        _check_inside(self.name, offset, len(buffer), self.size)
        buffer[:] = self.data[offset : offset + len(buffer)]

    def descriptor(self) -> tuple[int, int]:
        raise NotImplementedError


class _Scratch:
    """What a Disk is to its files: where bytes lie that are made when they are first read."""

    def __init__(self) -> None:
        self._files: dict[object, File] = {}

    def spill(
        self, name: str, nbytes: int | None, fill: Fill, *, key: object = None, origins: Iterable[Range] = ()
    ) -> File:
        """Give a File of what ``fill`` writes; equal keys give one File."""
        made = _Spilled(name, nbytes, fill, tuple(origins))
        return made if key is None else self._files.setdefault(key, made)


class _Spilled(_Held):
    """Bytes that ``fill`` makes when they are first read."""

    def __init__(self, name: str, nbytes: int | None, fill: Fill, origins: tuple[Range, ...]) -> None:
        super().__init__(name, b"", drawable=all(getattr(r.file, "drawable", True) for r in origins))
        self._nbytes, self._fill, self.origins = nbytes, fill, origins

    @property
    def size(self) -> int:
        return len(self._drawn()) if self._nbytes is None else self._nbytes

    def _drawn(self) -> bytes:
        if not self.data:
            made = bytearray()
            self._fill(made.extend)
            if self._nbytes not in {None, len(made)}:
                raise CorruptError(f"{len(made)} bytes were made, expected {self._nbytes}", path=self.name)
            self.data = bytes(made)
        return self.data

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        if self.drawable:
            self._drawn()
        super().pread_into(offset, buffer)


class Memory(Source):
    """A source in memory. ``taken`` counts the bytes that were read, of parts and decoded streams too."""

    def __init__(self, data: bytes, name: str = "example", *, drawable: bool = True) -> None:
        self.name = name
        self.taken = [0]
        self._file, self._base, self._size = _Held(name, data, drawable=drawable), 0, len(data)
        self._member: Member | None = None
        self._stream = False  # of a size that nobody claimed: a read gives up to n bytes

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self._size

    @property
    def identity(self) -> tuple[object, ...]:
        """The object that holds the bytes, and where in it."""
        return id(self._file), self._base, self._size

    def read(self, offset: int, nbytes: int) -> bytes:
        """Give the bytes, and count them."""
        if self._stream:
            nbytes = max(0, min(nbytes, self._size - offset))
        _check_inside(self.name, offset, nbytes, self._size)
        self.taken[0] += nbytes
        return self._file.data[self._base + offset : self._base + offset + nbytes]

    def range(self, offset: int, nbytes: int, member: Member | None = None) -> Range:
        """Give the range, checked to lie inside."""
        _check_inside(self.name, offset, nbytes, self._size)
        return Range(self._file, self._base + offset, nbytes, member or self._member)

    def part(self, offset: int, nbytes: int, name: str, member: Member | None = None) -> Memory:
        """Give a window."""
        _check_inside(self.name, offset, nbytes, self._size)
        made = Memory(b"", f"{self.name}!{name}")
        made.taken, made._file, made._member = self.taken, self._file, member or self._member
        made._base, made._size = self._base + offset, nbytes
        return made

    def decoded(self, codec: Codec, size: int | None, limit: int, crc: int | None = None) -> Memory:
        """Give the decoded stream, decoded at once: examples are small."""
        stream = zlib.decompressobj(-15 if codec == "deflate" else 31)
        try:
            data = stream.decompress(self.read(0, self._size), limit + 1)
        except zlib.error as error:
            raise CorruptError(f"{error}", path=self.name) from error
        if len(data) > limit:
            raise LimitError("decodes to more than its limit", path=self.name, limit=limit, claimed=len(data))
        if not stream.eof:
            raise TruncatedError("the stream ends early", path=self.name, needed=size, present=len(data))
        if (size is not None and len(data) != size) or (crc is not None and zlib.crc32(data) != crc):
            raise CorruptError("decodes to other bytes than claimed", path=self.name)
        made = Memory(data, self.name, drawable=self._file.drawable)
        made.taken, made._stream = self.taken, size is None
        return made


def _check_inside(name: str, offset: int, nbytes: int, size: int) -> None:
    if offset < 0 or nbytes < 0:
        raise CorruptError(f"bytes at {offset}, {nbytes} long: neither can be negative", path=name)
    if offset + nbytes > size:
        raise TruncatedError(
            f"bytes {offset} to {offset + nbytes} of {size}", path=name, needed=offset + nbytes, present=size
        )


def written(blueprint: Blueprint) -> dict[str, bytes]:
    """Give the bytes of every file of a blueprint, drawn in memory: what any writer must produce."""
    assert not blueprint.problems, blueprint.problems
    files = {}
    for name, pieces in blueprint.files.items():
        data, crcs = bytearray(), list[int]()
        for offset, piece in pieces:
            assert offset >= len(data), (
                f"{name}: a piece at {offset} overlaps the one before, which ends at {len(data)}"
            )
            data += bytes(offset - len(data))
            if isinstance(piece, bytes):
                data += piece
            elif isinstance(piece, Late):
                made = piece.make(crcs)
                assert len(made) == piece.nbytes, f"{name}: {len(made)} late bytes, {piece.nbytes} promised"
                data += made
            else:
                drawn = bytes(piece.read(0, piece.numel))
                crcs.append(zlib.crc32(drawn))
                data += drawn
        assert len(data) == blueprint.sizes[name], f"{name}: {len(data)} bytes, {blueprint.sizes[name]} laid out"
        files[name] = bytes(data)
    return files
