"""The table at the head of a burnpack: what the CBOR says of each tensor, and where the data begins; `burnpack` draws the bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CorruptError, LimitError, TensorError, TruncatedError, UnsupportedFormatError
from ckptmigrate.values import Scalar
from ckptmigrate.wire.cbor import SIMPLE, Reader

from ._burn_dtypes import QUANTISED, Spelling, spelled
from ._burn_quant import Scheme, scheme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits
    from ckptmigrate.tensor import Shape

MAGIC, VERSION, HEADER, ALIGNMENT = b"NRUB", 1, 10, 256
METADATA_MAX = 100 << 20  # bytes of CBOR; this and the next two are burn-pack's own bounds: it opens nothing beyond
TENSORS_MAX = 100_000
TENSOR_MAX = 10 << 30
NAMES_MAX = 400_000  # scalars, and texts: an optimizer of 100,000 parameters has two scalars and one text for each
WORD_ITEMS = 64  # values in one word for an element type: the longest scheme has some twenty

# burn's own store says who wrote a file; these releases wrote no padding
_UNALIGNED = re.compile(r"0\.19\.\d+.*|0\.20\.0-pre\.[1-4]")
PRODUCER = {"format": "burnpack", "producer": "burn"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as the table has it; ``begin`` and ``end`` count from the start of the data."""

    name: str
    kind: Spelling | Scheme
    shape: Shape
    begin: int
    end: int
    ident: int | None


@dataclass(slots=True)
class Table:
    """What the head of a file says: tensors in the order of their data, which is the order in which the model declares them."""

    size: int  # of the file
    plain: int  # where head and CBOR end
    entries: list[Entry] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)
    start: int = 0  # of the data
    nameless: int = 0  # bytes before or between tensors that belong to none
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # of names

    @property
    def aligned(self) -> int:
        """Where the data of today's layout begins."""
        return -(-self.plain // ALIGNMENT) * ALIGNMENT

    @property
    def extent(self) -> int:
        """Bytes from the start of the data to the end of the last tensor."""
        return max((entry.end for entry in self.entries), default=0)

    @property
    def current(self) -> bool:
        """Whether today's Burn opens the file: it looks for data at ``aligned``, and knows neither the old Bool nor old schemes."""
        placed = self.start == self.aligned or not self.entries
        return placed and all(entry.kind.current for entry in self.entries)

    @property
    def version(self) -> str | None:
        """The release of Burn that wrote the file, where it says so."""
        ours = all(self.metadata.get(key) == text for key, text in PRODUCER.items())
        return self.metadata.get("version") if ours else None


def table(source: Source, limits: Limits) -> Table:
    """Read and check the table of a file: every range lies in the file, fits its shape, and overlaps no other."""
    plain = _plain(source)
    reader = Reader(source.read(HEADER, plain - HEADER), "the table", HEADER)
    found = Table(source.size, plain)
    parts = set()
    for key in reader.pairs("the map of all", fields=True):
        parts.add(key)
        if key == "tensors":
            entries = [_entry(reader, name, limits) for name in _counted(reader, "tensors", limits)]
            found.entries = sorted(entries, key=lambda entry: (entry.begin, entry.end))
        elif key == "metadata":
            found.metadata = {name: reader.text("metadata") for name in _counted(reader, "metadata", limits)}
        elif key == "scalars":
            found.scalars = {name: _scalar(reader, name) for name in _counted(reader, "scalars", limits)}
        else:
            reader.skip()
    reader.end()
    if "tensors" not in parts:
        raise CorruptError("the table has no tensors (Burn: missing field `tensors`)")
    for entry in found.entries:
        if entry.name in found.scalars:
            raise CorruptError(f'"{entry.name}" is a tensor and a scalar', name=entry.name)
    found.start = _start(found, source)
    _check_ranges(found)
    return found


def _plain(source: Source) -> int:
    """Check the head and give the offset at which the CBOR ends."""
    size = source.size
    if size < HEADER:
        raise TruncatedError(
            f"truncated: {size} bytes, the header takes {HEADER} (Burn: Invalid header: insufficient bytes)",
            needed=HEADER,
            present=size,
        )
    head = source.read(0, HEADER)
    if head[:4] != MAGIC:
        raise CorruptError(f"begins with {head[:4].hex(' ')}, expected {MAGIC.hex(' ')} (Burn: Invalid magic number)")
    version, length = int.from_bytes(head[4:6], "little"), int.from_bytes(head[6:10], "little")
    if version != VERSION:
        raise UnsupportedFormatError(
            f"burnpack version {version}, known is {VERSION} (Burn: Unsupported version)", version=version
        )
    if length > METADATA_MAX:
        raise LimitError(
            f"the table claims {length} bytes, Burn reads {METADATA_MAX}", limit=METADATA_MAX, claimed=length
        )
    if length > size - HEADER:
        raise TruncatedError(
            f"truncated: a table of {length} bytes, the file has {size - HEADER} behind its header"
            " (Burn: failed to fill whole buffer)",
            needed=length, present=size - HEADER,
        )  # fmt: skip
    return HEADER + length


def _counted(reader: Reader, what: str, limits: Limits) -> Iterator[str]:
    """Give the names in one of the maps, no more and no longer than allowed."""
    most = min(TENSORS_MAX if what == "tensors" else NAMES_MAX, limits.tensors)
    for count, name in enumerate(reader.pairs(f"a map of {what}"), 1):
        if count > most:
            raise LimitError(f"the table names more than {most} {what}", limit=most, claimed=count)
        if len(name) > limits.name:
            raise LimitError(
                f'the name "{name[:40]}…" has {len(name)} characters, limit is {limits.name}',
                limit=limits.name, claimed=len(name),
            )  # fmt: skip
        yield name


def _entry(reader: Reader, name: str, limits: Limits) -> Entry:
    """Give one tensor's entry; unknown keys are stepped over, as Burn does."""
    word: Any = None
    shape: list[int] | None = None
    offsets: list[int] | None = None
    ident: int | None = None
    for key in reader.pairs(f'the entry of tensor "{name}"', fields=True):
        if key == "dtype":
            word = reader.value(WORD_ITEMS)
        elif key == "shape":
            rank = reader.array(f'the shape of tensor "{name}"')
            if rank > limits.dimensions:
                raise LimitError(
                    f'tensor "{name}" has {rank} dimensions, limit is {limits.dimensions}',
                    limit=limits.dimensions, claimed=rank,
                )  # fmt: skip
            shape = [reader.uint("a length") for _ in range(rank)]
        elif key == "data_offsets":
            if (count := reader.array(f'the offsets of tensor "{name}"')) != 2:
                raise CorruptError(f'tensor "{name}" has {count} data_offsets, expected 2')
            offsets = [reader.uint("an offset"), reader.uint("an offset")]
        elif key != "param_id":
            reader.skip()
        elif reader.kind() == SIMPLE:
            if reader.simple("an id") is not None:
                raise CorruptError(f'tensor "{name}" has a param_id that is no integer')
        else:
            ident = reader.uint("an id")
    if word is None or shape is None or offsets is None:
        missing = [k for k, v in (("dtype", word), ("shape", shape), ("data_offsets", offsets)) if v is None]
        raise CorruptError(f'tensor "{name}" has no {" and no ".join(missing)}')
    return _checked(name, word, tuple(shape), (offsets[0], offsets[1]), ident)


def _checked(name: str, word: Any, shape: Shape, offsets: tuple[int, int], ident: int | None) -> Entry:
    begin, end = offsets
    if begin > end:
        raise CorruptError(f'tensor "{name}" begins at {begin}, after its end at {end}')
    if end - begin > TENSOR_MAX:
        raise LimitError(
            f'tensor "{name}" claims {end - begin} bytes, Burn reads {TENSOR_MAX}',
            limit=TENSOR_MAX,
            claimed=end - begin,
        )
    try:
        quantised = isinstance(word, dict) and len(word) == 1 and QUANTISED in word
        kind = scheme(word[QUANTISED]) if quantised else spelled(word)
    except TensorError as error:
        raise TensorError(f'tensor "{name}" has {error.message}', tensor=name, dtype=word) from error
    if isinstance(kind, Spelling) and (needed := kind.needs(shape)) != end - begin:
        raise CorruptError(
            f"tensor '{name}' declares {end - begin} bytes but its shape {list(shape)} and dtype {kind.text} need {needed}",
            tensor=name,
        )
    return Entry(name, kind, shape, begin, end, ident)


_SCALARS = {"UInt": "uint", "Int": "int", "Float": "float", "Bool": "bool"}


def _scalar(reader: Reader, name: str) -> Scalar:
    """Give one scalar, a map of its kind to its value."""
    found: Scalar | None = None
    for kind in reader.pairs(f'scalar "{name}"', fields=True):
        if found is not None or kind not in _SCALARS:
            raise CorruptError(
                f'scalar "{name}" has the variant "{kind[:40]}" (Burn: unknown variant, expected one of `Int`, `UInt`, `Float`, `Bool`)'
            )
        value: Any
        if kind in {"UInt", "Int"}:
            value = reader.uint(f'scalar "{name}"') if kind == "UInt" else reader.integer(f'scalar "{name}"')
            right = kind == "UInt" or -(1 << 63) <= value < 1 << 63
        else:
            value = reader.simple(f'scalar "{name}"')
            right = type(value) is (float if kind == "Float" else bool)
        if not right:
            raise CorruptError(f'scalar "{name}" of kind {kind} holds {value!r}')
        found = Scalar(_SCALARS[kind], value)  # type: ignore[arg-type]
    if found is None:
        raise CorruptError(f'scalar "{name}" is an empty map')
    return found


def _start(found: Table, source: Source) -> int:
    """Tell the two layouts apart, which share one version number: the data begins right behind the CBOR, or on the next 256.

    The sizes of the two differ by 1 to 255 bytes in untouched files; in others the padding tells. One that lost as many bytes as its
    padding has the size of the other layout: it is taken for that only where something else says so.
    """
    plain, aligned, size, extent = found.plain, found.aligned, found.size, found.extent
    if plain == aligned or not extent:
        return aligned if size >= aligned else plain
    if any(entry.begin % ALIGNMENT for entry in found.entries):
        return plain
    if size == aligned + extent:
        return aligned
    padding = source.read(plain, min(aligned, size) - plain)
    if size != plain + extent:
        return aligned if size >= aligned and not any(padding) else plain
    if any(padding) or (found.version is not None and _UNALIGNED.fullmatch(found.version)):
        return plain
    lacking = aligned - plain
    raise TruncatedError(
        f"File truncated: expected at least {aligned + extent} bytes, got {size}; or the data of an unaligned file of Burn 0.19"
        f" begins with {len(padding)} zeros: nothing in the file tells which",
        needed=aligned + extent, present=size, lacking=lacking,
    )  # fmt: skip


def _check_ranges(found: Table) -> None:
    """Refuse ranges outside the file and overlaps; note bytes that belong to no tensor."""
    held = found.size - found.start
    if found.extent > held and found.entries:
        raise _cut(found, held)
    step = ALIGNMENT if found.start == found.aligned else 1
    covered, before = 0, None
    for entry in found.entries:
        if entry.begin < covered and entry.end > entry.begin:
            raise CorruptError(
                f'tensor "{entry.name}" begins at {entry.begin}, overlaps "{before}", which ends at {covered}',
                tensor=entry.name,
            )
        expected = -(-covered // step) * step
        if entry.begin > expected:
            found.nameless += entry.begin - expected
            found.warnings.append(
                f"{entry.begin - expected} bytes at {found.start + expected} belong to no name: Burn up to 0.20.0-pre.6 wrote the"
                " elements of a tuple under one name each, and kept only the last"
            )
        if entry.end > covered:
            covered, before = entry.end, entry.name
    if step == 1 and found.extent:
        found.doubts.append(
            "an unaligned file, as Burn wrote up to 0.20.0-pre: elements of tuples stand in it without their index, and nothing"
            " tells which names are such; where the model has tuples, --like FILE or --rename puts it back"
        )
    rest = held - found.extent
    if rest > 0 and (found.entries or found.size > found.aligned):
        found.warnings.append(f"{rest} bytes behind the last tensor belong to no name and are left out")


def _cut(found: Table, held: int) -> TruncatedError:
    """Give the error of a file that is too short: cut, or the stump that Burn leaves when it refuses a quantised tensor."""
    first = next(entry for entry in found.entries if entry.end > held)
    needed = found.start + found.extent
    if not isinstance(first.kind, Scheme):
        return TruncatedError(
            f'File truncated: expected at least {needed} bytes, got {found.size}; "{first.name}" at {first.begin} to {first.end} is'
            " the first tensor cut",
            needed=needed, present=found.size, tensor=first.name,
        )  # fmt: skip
    got = first.kind.needs(first.shape)
    return TruncatedError(
        f"a stump: Burn refused to write tensor '{first.name}' (Data corruption: tensor '{first.name}' has inconsistent length"
        f" (expected {first.end - first.begin}, got {got})), and left a file of {found.size} of {needed} bytes",
        needed=needed, present=found.size, tensor=first.name,
        hint="the weights are not in this file: save the model again, unquantised or as a .mpk record",
    )  # fmt: skip
