"""The burnpack of a set of tensors and scalars, laid out from lengths; `burnpack` draws and explains the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import TensorError
from ckptmigrate.format import Blueprint, Parts, WriteOptions
from ckptmigrate.limits import GiB
from ckptmigrate.notes import MARK, spelled
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Scalar, brief
from ckptmigrate.wire.cbor import dumps, encoded

from ._burn_dtypes import QUANTISED, spelling
from ._burn_quant import copied
from ._burnpack_table import ALIGNMENT, HEADER, MAGIC, METADATA_MAX, TENSOR_MAX, TENSORS_MAX, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.tensor import Promise, Shape

FILE_MAX = 100 * GiB  # what Burn up to 0.22.1 opens
IDS = 1 << 64
VARIANTS = {"uint": "UInt", "int": "Int", "float": "Float", "bool": "Bool"}
RANGES = {"uint": (0, 1 << 64), "int": (-(1 << 63), 1 << 63)}
TIES = "ties"  # in our object: {name: the name whose bytes it shares}, since Burn has no word for it


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor as it is written: the word for its dtype, and its bytes, scales behind values."""

    name: str
    word: Any
    shape: Shape
    ident: int | None
    promises: tuple[Promise, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return sum(promise.nbytes for promise in self.promises)


def lay_out(parts: Parts, options: WriteOptions, name: str) -> Blueprint:
    """Give the blueprint of one file: head and table, then each tensor in the order of ``parts.tensors``, on the next 256.

    Burn has no ties: a tied name is written again, and our object says whose bytes it has, unless the file is bare or
    ``options`` duplicates.
    """
    blueprint = Blueprint(last=name)
    if parts.tree is not NOTHING and parts.tree is not None:
        blueprint.problems.append(f"{brief(parts.tree)} is a tree, and a burnpack holds tensors and scalars by name")
    members = parts.tensors or {}
    pieces = list(_pieces(members, blueprint.problems))
    ties = _ties(pieces, blueprint)
    entries: dict[str, Any] = {}
    places: list[tuple[int, Promise]] = []
    end = 0
    for piece in pieces:
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + piece.nbytes
        entry = {"dtype": piece.word, "shape": list(piece.shape), "data_offsets": [begin, end]}
        entries[piece.name] = entry if piece.ident is None else entry | {"param_id": piece.ident}
        for promise in piece.promises:
            if promise.nbytes:
                places.append((begin, promise))
                begin += promise.nbytes
    table = {"tensors": _sorted(entries)}
    if metadata := _metadata(parts, options, ties, blueprint):
        table["metadata"] = _sorted(metadata)
    if scalars := dict(_scalars(members, blueprint.problems)):
        table["scalars"] = _sorted(scalars)
    text = dumps(table)
    start = -(-(HEADER + len(text)) // ALIGNMENT) * ALIGNMENT
    _check_limits(len(text), len(entries), start + end, blueprint.problems)
    head = MAGIC + VERSION.to_bytes(2, "little") + (len(text) & 0xFFFFFFFF).to_bytes(4, "little")
    drawn = places[-1][0] + places[-1][1].nbytes if places else 0
    blueprint.files[name] = [
        (0, (head + text).ljust(start, b"\0")),
        *((start + offset, promise) for offset, promise in places),
        *(
            [(start + drawn, bytes(end - drawn))] if end > drawn else []
        ),  # an empty tensor at the end starts on the next 256
    ]
    blueprint.sizes[name] = start + end
    return blueprint


def _sorted(members: Mapping[str, Any]) -> dict[str, Any]:
    """Give a map in the order of a Rust `BTreeMap<String, _>`: by the bytes of the keys."""
    return dict(sorted(members.items(), key=lambda pair: pair[0].encode()))


def _pieces(members: Mapping[str, Tensor | Scalar], problems: list[str]) -> Iterator[Piece]:
    """Give the tensors that the format can hold, and say of all others why it cannot."""
    for name, tensor in members.items():
        if not isinstance(tensor, Tensor):
            continue
        promise, dtype = tensor.promise, tensor.promise.dtype
        word: Any = spelling(dtype)
        promises: tuple[Promise, ...] = (promise,)
        if tensor.quant is not None or dtype.kind == "quantised":
            copy = copied(tensor)
            if copy is None:
                problems.append(
                    f'tensor "{name}" is quantised ({dtype}) in another way than today\'s Burn writes, or was changed since it'
                    " was read; --dequantize makes it F32"
                )
                continue
            word, promises = {QUANTISED: copy[0]}, (promise, copy[1])
        if word is None:
            problems.append(
                f'tensor "{name}" is {dtype}, a dtype that Burn does not have; a Cast or --exclude settles it'
            )
        elif not _is_text(name):
            problems.append(f"tensor {name!a} has a name that is no Unicode text; --rename settles it")
        elif isinstance(tensor.id, str) or not 0 <= (tensor.id or 0) < IDS:
            problems.append(f'tensor "{name}" has the id {tensor.id!r}, and Burn\'s are numbers of 64 bits')
        else:
            piece = Piece(name, word, promise.shape, tensor.id, promises)
            if piece.nbytes > TENSOR_MAX:
                problems.append(f'tensor "{name}" takes {piece.nbytes} bytes, Burn reads no more than {TENSOR_MAX}')
            yield piece


def _ties(pieces: list[Piece], blueprint: Blueprint) -> dict[str, str]:
    """Give for each name whose bytes an earlier one has, the earliest; tensors of zero bytes share nothing."""
    first: dict[tuple[Promise, ...], str] = {}
    ties: dict[str, str] = {}
    for piece in pieces:
        if piece.nbytes and (kept := first.setdefault(piece.promises, piece.name)) != piece.name:
            ties[piece.name] = kept
            blueprint.notes.append(f"{piece.name} is {kept}: {piece.nbytes} bytes written twice, Burn has no ties")
    return ties


def _scalars(members: Mapping[str, Tensor | Scalar], problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Give the scalars, each a map of one: its kind, and its value in that kind's range."""
    for name, scalar in members.items():
        if not isinstance(scalar, Scalar):
            continue
        value = scalar.value
        right = isinstance(value, bool) == (scalar.kind == "bool")
        if scalar.kind in RANGES:
            low, past = RANGES[scalar.kind]
            right = right and isinstance(value, int) and low <= value < past
        if not right or not _is_text(name):
            problems.append(f"scalar {name!a} is {value!r} of kind {scalar.kind}, which no burnpack holds")
        else:
            yield name, {VARIANTS[scalar.kind]: float(value) if scalar.kind == "float" else value}


def _metadata(parts: Parts, options: WriteOptions, ties: Mapping[str, str], blueprint: Blueprint) -> dict[str, str]:
    """Give the file's texts: the caller's, and last our own object."""
    metadata: dict[str, str] = {}
    for key, value in parts.facts.get("metadata", {}).items():
        if key == MARK:
            blueprint.left_out.append((f"metadata/{key}", "the name is kept for the stamp"))
        elif not isinstance(value, str) or not _is_text(key) or not _is_text(value):
            blueprint.problems.append(f"metadata {key!a} is no Unicode text, and a burnpack holds texts only")
        else:
            metadata[key] = value
    if options.bare:
        return metadata
    notes = dict(parts.notes)
    if ties and options.ties == "keep":
        notes[TIES] = dict(ties)
    if notes:
        metadata[MARK] = spelled(notes, blueprint)
    return metadata


def _check_limits(table: int, count: int, size: int, problems: list[str]) -> None:
    for what, found, most in (
        ("bytes of names and shapes", table, METADATA_MAX), ("tensors", count, TENSORS_MAX), ("bytes in all", size, FILE_MAX),
    ):  # fmt: skip
        if found > most:
            problems.append(f"the file would hold {found} {what}, Burn reads no more than {most}")


def _is_text(text: str) -> bool:
    try:
        encoded(text)
    except TensorError:
        return False
    return True
