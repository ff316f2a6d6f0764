"""What Burn says, word for word, of a file that it is given to open; asked by `doctor`, never by a reader.

    `packed`      today's, of a burnpack: what it says on opening (_burnpack_opening), else what it takes in silence
    `recorded`    today's, of an older record; then what 0.7 to 0.21 say of one of another release, a cut one, one that is none

What comes in ``parts.facts``: "source", the file; "refused", the error that our reader raised (then there are no tensors).
Remedies hold {path}, {stem} (the path without its suffix) and {folder}, which the doctor fills in.
Sources: burn-pack/src/{base,reader}.rs 0.22.1; formats/burn.md 7.2, 7.3, 8.2, 8.3; every text was seen in a run of the real thing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from ckptmigrate.dtypes import F16
from ckptmigrate.errors import CkptError, UnsupportedFormatError
from ckptmigrate.format import Symptom
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Tensor

from ._burnpack_opening import DECODING, SHORT, opening
from ._burnpack_table import MAGIC, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.files import Source
    from ckptmigrate.format import Parts

REWRITE = "ckptmigrate migrate {path} {stem}.new.bpk"
CONVERT = "ckptmigrate migrate {path} {stem}.bpk"
DEQUANTIZE = "--dequantize"
BURNPACK = "burnpack"  # the format of what these texts are about
PIECE = 1 << 18  # elements compared at a time

_CAUSES = (
    ("I/O error: Is a directory", "a folder stands where the file should"),
    (SHORT, "the file is empty, or ends before its table does: what was saved is not in it"),
    ("Invalid magic number", "it does not begin as a burnpack does: a record of an older release, or another file, under that name"),
    ("Unsupported version", "it claims a version of burnpack that no release has written"),
    ("Validation error: Metadata size", "the length of its table is damaged"),
    ("Validation error: File truncated", "its end is missing: the copy or the write was cut"),
    ("Validation error: Tensor", "the table of its tensors is damaged"),
    ("Validation error: tensor", "the bytes of a tensor do not fit its shape and dtype"),
    (DECODING, "its table is damaged, or spells something that today's Burn does not read"),
)  # fmt: skip


def packed(parts: Parts, _: Checkpoint | None) -> list[Symptom]:
    """Give what today's Burn says of a burnpack, or takes in silence."""
    source, refused = parts.facts.get("source"), parts.facts.get("refused")
    if source is None:
        return []
    said = opening(source)
    if said is not None:
        cause, remedy = _cause(said, parts, refused), _remedy(refused)
        if refused is not None or parts.facts.get("content") != BURNPACK:
            return [Symptom(said, cause, False, remedy)]
        return [Symptom(said, f"{cause}{_tuples(source)}", False, remedy), *_indexless(source)]
    if refused is not None:
        return [Symptom(refused.message, f"Burn opens it without a word; {refused.message}", True, "")]
    return [*_shifted(source), *_indexless(source), *_unclaimed(parts), *halves(parts)]


def _cause(said: str, parts: Parts, refused: CkptError | None) -> str:
    cause = next(cause for start, cause in _CAUSES if said.startswith(start))
    if refused is not None:
        return f"{cause}. ckptmigrate reads: {refused.message}"
    if said.startswith("Validation error: File truncated"):
        return "Burn 0.19 to 0.20.0-pre.4 wrote it, without padding before the tensors: nothing is cut"
    if said.startswith(DECODING):
        return "a release up to 0.21.0-pre.2 wrote it, which spelled truth values otherwise: one such tensor makes the whole file unreadable"
    return f"{cause}; ckptmigrate reads it as {parts.facts.get('content', 'what it is')}"


def _remedy(refused: CkptError | None) -> str:
    return f"{REWRITE}{_allowing(refused)}" if refused is None or _allowing(refused) else ""


def _allowing(refused: CkptError | None) -> str:
    """Give the option with which a file that is refused is read; "" where none is."""
    return f" {DEQUANTIZE}" if refused is not None and any(DEQUANTIZE in hint for hint in refused.hints) else ""


def _shifted(source: Source) -> Iterator[Symptom]:
    """Give a file whose tensors today's Burn reads from the wrong place, or by the wrong scales."""
    found = table(source, LIMITS)
    if found.start != found.aligned and found.entries:
        cause = (
            f"its tensors begin at {found.start}, as Burn 0.19 wrote them, and today's Burn reads from {found.aligned}; the bytes"
            " behind the last tensor hide that from its check: every weight is garbage"
        )
        yield Symptom("loads without a word, and every weight is wrong", cause, True, REWRITE)
    old = [entry for entry in found.entries if not entry.kind.current and 0 not in entry.shape]
    if old and found.start == found.aligned:
        cause = f"{old[0].name} is quantised as releases up to 0.21 spelled it: today's Burn skips the words that it does not know"
        yield Symptom(
            "loads without a word, and takes the scales of blocks for one", cause, True, f"{REWRITE} {DEQUANTIZE}"
        )


def _tuples(source: Source) -> str:
    """Give what is to be said of an unaligned file besides: nothing in it tells whether its model has tuples."""
    found = table(source, LIMITS)
    if found.start == found.aligned or not found.entries:
        return ""
    example = r"--rename 'pair\.(weight|bias)=pair.0.\1'"
    return (
        '. That release wrote the elements of a tuple without their index, and today\'s Burn then says "Missing tensors" of what was'
        f" mended: where the model has a tuple `pair`, {example} puts it back"
    )


def _indexless(source: Source) -> Iterator[Symptom]:
    """Give a file that lost elements of a tuple: they are in it, and have no name."""
    nameless = table(source, LIMITS).nameless
    if nameless:
        cause = (
            f"{nameless} bytes of its tensors have no name: Burn up to 0.20.0-pre.6 wrote the elements of a tuple under one name each,"
            " and kept the last. Today's looks for each by its index, and the others are nowhere: save the model again with the release"
            " that wrote it, as a record (.mpk), which has them all"
        )
        yield Symptom('Failed to load record: Validation("Missing tensors: […]")', cause, False, "")


def _unclaimed(parts: Parts) -> Iterator[Symptom]:
    for warning in parts.warnings:
        if "behind the last tensor" in warning:
            yield Symptom("loads without a word", f"{warning}; Burn ignores that", True, REWRITE)


def halves(parts: Parts) -> Iterator[Symptom]:
    """Give second moments that are zero because half precision could not hold them, beside first moments that are not."""
    tensors = parts.tensors or {}
    lost = total = 0
    for name, second in tensors.items():
        first = tensors.get(name.removesuffix("moment_2") + "moment_1")
        if not name.endswith(".moment_2") or not isinstance(second, Tensor) or not isinstance(first, Tensor):
            continue
        if second.promise.dtype == F16 and first.promise.numel == second.promise.numel:
            total += second.promise.numel
            lost += _underflowed(first, second)
    if lost:
        cause = (
            f"{lost} of {total} second moments were stored as 0 in half precision: the first resumed steps divide by epsilon alone and"
            " are large, as they are in the release that wrote it; the numbers are gone. Without the optimizer's state the weights stay"
        )
        remedy = "ckptmigrate migrate {folder} {folder}.new --drop optimizers"
        yield Symptom("resumes without a word, and the weights jump", cause, True, remedy)


def _underflowed(first: Tensor, second: Tensor) -> int:
    import numpy as np  # noqa: PLC0415 - only an optimizer in half precision needs numbers

    count = 0
    for start in range(0, second.promise.numel, PIECE):
        stop = min(start + PIECE, second.promise.numel)
        ones = np.frombuffer(first.promise.read(start, stop), f"<u{first.promise.dtype.itemsize}")
        twos = np.frombuffer(second.promise.read(start, stop), "<u2")
        count += int(np.count_nonzero((twos << 1 == 0) & (ones << 1 != 0)))  # without the sign: -0.0 is 0
    return count


_TOLD = re.compile(rb"version.(\d{1,2}\.\d{1,3}\.\d{1,3}[a-z0-9.\-]*)", re.DOTALL)
_B, _BYTES = Version("0.12.0"), Version("0.14.0")
_LAST = b"\xa2_b"  # the name before the last byte of a record


def recorded(parts: Parts, _: Checkpoint | None) -> list[Symptom]:
    """Give what today's Burn says of a record of 0.7 to 0.21, then what other releases of that time say of it."""
    source, refused = parts.facts.get("source"), parts.facts.get("refused")
    if source is None:
        return []
    unknown = refused is not None and not parts.facts.get("content")
    remedy = _conversion(source, refused) if refused is None or parts.facts.get("content") else ""
    why = (
        refused.message
        if refused is not None
        else "a record of an older release: Burn 0.22 has no recorders, and opens burnpacks only"
    )
    found = [Symptom(said, why, False, remedy)] if (said := opening(source)) is not None else []
    if refused is not None:
        return found + [
            Symptom(text, cause, False, remedy) for text, cause in _broken(source, refused, unknown=unknown)
        ]
    version = _version(parts.facts.get("versions", {}).get("burn"))
    if version is not None and parts.tensors and any(isinstance(t, Tensor) for t in parts.tensors.values()):
        found += [Symptom(text, f"{cause}: it is of Burn {version}", False, remedy) for text, cause in _abroad(version)]
    return [*found, *halves(parts)]


def _conversion(source: Source, refused: CkptError | None) -> str:
    convert = REWRITE if source.name.endswith(".bpk") else CONVERT  # a record under that name is not its own target
    if isinstance(refused, UnsupportedFormatError):
        return f"{convert} --schema schema.json"
    return f"{convert}{_allowing(refused)}" if refused is None or _allowing(refused) else ""


def _abroad(version: Version) -> Iterator[tuple[str, str]]:
    """Give what releases of another era say of a record with tensors."""
    if version < _B:
        yield "missing field `_b`", "Burn 0.12 and 0.13 want a field that older releases did not write"
    if version < _BYTES:
        yield "missing field `bytes`", "Burn 0.14 to 0.21 hold tensors as bytes, older releases as lists of numbers"
    else:
        yield "missing field `value`", "Burn 0.7 to 0.13 hold tensors as lists of numbers, newer releases as bytes"


def _broken(source: Source, refused: CkptError, *, unknown: bool) -> Iterator[tuple[str, str]]:
    """Give what the recorders' releases say of a record that is cut, or is none."""
    if source.is_folder():
        return
    head = source.read(0, min(512, source.size))
    zipped = source.name.lower().endswith(".gz")
    if ".mpk" not in source.name.lower():
        return
    if not head:
        end = "unexpected end of file" if zipped else "failed to fill whole buffer"
        yield f"IO error while reading marker: {end}", "the file is empty"
    elif zipped and head[:2] != b"\x1f\x8b":
        yield "IO error while reading marker: invalid gzip header", "it bears the name of a gzip stream, and is none"
    elif (unknown or head[:1] in {MAGIC[:1], b"\x1f"}) and not zipped:
        yield f"invalid type: integer `{head[0]}`, expected struct BurnRecord", "it is no MessagePack record"
    elif isinstance(refused, EOFError) and zipped:
        yield "IO error while reading data: incomplete deflate stream", "the gzip stream is cut"
    elif isinstance(refused, EOFError):
        yield _cut(source, head)


def _cut(source: Source, head: bytes) -> tuple[str, str]:
    """Give what a release says of its own plain record that is cut: within a value, or right before one."""
    told = _TOLD.search(head)
    version = _version(told[1].decode() if told else None)
    before = "IO error while reading marker: failed to fill whole buffer"
    if version is None or source.read(source.size - len(_LAST), len(_LAST)) == _LAST:
        return before, "the file is cut right before a value"
    within = (
        "InvalidDataRead(Kind(UnexpectedEof))"
        if version >= _BYTES
        else "IO error while reading data: unexpected end of file"
    )
    blame = ", and blames the format of 0.14 for it" if version >= _BYTES else ""
    return within, f"Burn {version} says so of a file that is cut within a value{blame}; right before one: {before}"


def _version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        return None
