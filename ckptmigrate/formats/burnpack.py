r"""burnpack (`.bpk`): a CBOR table of tensors and scalars, and the tensors' bytes. All that Burn writes since 0.22, models since 0.19.

    0        4e 52 55 42   "NRUB"
    4        01 00         version, one number for both layouts below
    6        u32           M, length of the table, little-endian; at most 100 MiB
    10       M bytes       table, CBOR as ciborium writes it: shortest heads, lengths given
    S        data          one tensor after the other, row-major, little-endian, in the order in which the model declares them

    table    {"tensors":  {NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END], "param_id": u64}},    id optional
              "metadata": {text: text},                                                           left out when empty
              "scalars":  {NAME: {"UInt" | "Int" | "Float" | "Bool": value}}}                     since 0.22, left out when empty

The three maps are sorted by the bytes of their keys; BEGIN and END count from S. 0.19.0 to 0.20.0-pre.4 wrote the data right
behind the table, without gaps: S = 10 + M. All later ones put S and each BEGIN on the next multiple of 256 (a GPU may map the file),
zeros between, nothing behind the last tensor; a file without tensors ends at S. Today's Burn opens only the second kind, and
neither `"Bool"` (it writes `{"Bool": "Native"}`, see _burn_dtypes) nor the quantisations of its past (_burn_quant). `_start` in
_burnpack_table tells the layouts apart. Names keep Rust's raw identifiers: `r#type.weight`.

Burn takes in silence what is refused or said here: overlapping ranges, a key twice, bytes that belong to no name. Limits are burn-pack's own.
Burn's store writes who it is into the metadata (`format`, `producer`, `version`); that is a fact of the file and is not carried.
What is ours is one JSON object under "ckptmigrate" in the metadata, which Burn ignores; `ties` in it says which names share bytes that
are written twice, because Burn has no ties.

Sources: burn-store/src/burnpack 0.19 to 0.21, burn-pack/src 0.22.1; formats/burn.md 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError, CorruptError, TensorError, reading
from ckptmigrate.format import Format, Match, Parts, ReadOptions
from ckptmigrate.notes import MARK, parsed
from ckptmigrate.tensor import Tensor

from ._burn_dtypes import Spelling
from ._burn_quant import MINIFLOATS, Scheme, can_copy, held, numbers
from ._burn_symptoms import packed
from ._burnpack_table import ALIGNMENT, HEADER, MAGIC, PRODUCER, Table, table
from ._burnpack_writer import TIES, lay_out

if TYPE_CHECKING:
    from ckptmigrate.files import Source
    from ckptmigrate.limits import Limits
    from ckptmigrate.values import Scalar

    from ._burnpack_table import Entry

LOOK = 1 << 17  # bytes of a table that are read to claim a file, where it is not small beside the data


def sniff(source: Source) -> Match | None:
    """Claim a file that begins with "NRUB"; ``current`` is False where today's Burn does not open it as it is."""
    if source.is_folder() or source.size < len(MAGIC) or source.read(0, len(MAGIC)) != MAGIC:
        return None
    if source.size >= HEADER:
        length = int.from_bytes(source.read(6, 4), "little")
        if length + HEADER + 2 * ALIGNMENT <= max(source.size // 2, LOOK):
            try:
                return Match(FORMAT, {} if table(source, ReadOptions().limits).current else {"current": False})
            except CkptError:
                pass  # read says what is wrong with it
    return Match(FORMAT)


def read(source: Source, options: ReadOptions) -> Parts:
    """Give the tensors in the order of their data, then the scalars by name.

    Quantised tensors keep their integers where today's Burn writes the same (``Tensor.quant``), else they are refused unless
    ``options.dequantize``. TruncatedError, CorruptError, LimitError or TensorError name the tensor and both numbers.
    """
    with reading(source.name):
        found = table(source, options.limits)
        warnings = list(found.warnings)
        tensors: dict[str, Tensor | Scalar] = {
            entry.name: _tensor(entry, source, found, options, warnings) for entry in found.entries
        }
        tensors.update(sorted(found.scalars.items()))
        notes = _notes(found, options.limits)
        _tie(tensors, notes.pop(TIES, {}))
        metadata = {key: text for key, text in found.metadata.items() if key != MARK}
        facts: dict[str, Any] = {"metadata": metadata, "current": found.current}
        if (version := found.version) is not None:
            facts["versions"] = {"burn": version}
            facts["metadata"] = {key: text for key, text in metadata.items() if key not in {*PRODUCER, "version"}}
        return Parts(family="burn", tensors=tensors, facts=facts, notes=notes, warnings=warnings, doubts=found.doubts)


def _tensor(entry: Entry, source: Source, found: Table, options: ReadOptions, warnings: list[str]) -> Tensor:
    place = source.range(found.start + entry.begin, entry.end - entry.begin)
    if isinstance(entry.kind, Spelling):
        return Tensor(entry.kind.promise(place, entry.shape), id=entry.ident)
    kind = entry.kind
    if (needed := kind.needs(entry.shape)) != place.nbytes:
        raise CorruptError(
            f"tensor '{entry.name}' declares {place.nbytes} bytes but its shape {list(entry.shape)} and dtype {kind.text} need"
            f" {needed}",
            tensor=entry.name,
        )
    if options.dequantize:
        if kind.value in MINIFLOATS and not kind.word_bytes:
            warnings.append(
                f"{entry.name} is {kind.value} in bytes of its own: read as the integers that Burn 0.22 writes; 0.23.0-pre.1 wrote"
                " codes of small floats under the same word, and nothing in the file tells which"
            )
        return Tensor(numbers(place, kind, entry.shape), id=entry.ident)
    if not can_copy(kind):
        raise _quantised(entry, kind)
    tensor = held(place, kind, entry.shape)
    return Tensor(tensor.promise, id=entry.ident, quant=tensor.quant)


def _quantised(entry: Entry, kind: Scheme) -> TensorError:
    return TensorError(
        f'tensor "{entry.name}" is quantised in a way that today\'s Burn does not write: {kind.text}',
        tensor=entry.name, dtype=kind.text, hint="--dequantize turns quantised tensors into F32",
    )  # fmt: skip


def _notes(found: Table, limits: Limits) -> dict[str, Any]:
    """Give our own JSON object."""
    text = found.metadata.get(MARK)
    return {} if text is None else parsed(text, f'metadata "{MARK}"', limits)


def _tie(tensors: dict[str, Tensor | Scalar], ties: Any) -> None:
    """Give each tied name the bytes of the name that it shares them with; CorruptError where they could not be the same."""
    if not isinstance(ties, dict):
        raise CorruptError(f'metadata "{MARK}" has {TIES} that are no names by name')
    for alias, kept in ties.items():
        one, other = tensors.get(alias), tensors.get(kept) if isinstance(kept, str) else None
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            raise CorruptError(f'metadata "{MARK}" ties "{alias}" to "{kept}", and one of them is not there')
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise CorruptError(f'metadata "{MARK}" ties "{alias}" to "{kept}", which has another shape or dtype')
        tensors[alias] = Tensor(other.promise, one.role, one.id, other.quant)


FORMAT = Format(
    "burnpack",
    sniff=sniff,
    read=read,
    lay_out=lay_out,
    family="burn",
    speaks="tensors",
    standard="burn_epoch",
    suffixes=(".bpk",),
    current=True,
    widens=True,
    diagnose=packed,
    about="Burn's own files since 0.22, of models since 0.19; the default target of Burn files",
)
