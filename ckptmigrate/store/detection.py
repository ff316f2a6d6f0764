"""Which format a file is of: content decides, the name is only a hint; and what a file is that is none.

Built-in formats are asked first, plugins where none of them claims. A format that only recognises a file in order to refuse it
gives way to one that reads it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptmigrate import registry
from ckptmigrate.errors import AmbiguousError, UnknownFormatError, UnsupportedFormatError
from ckptmigrate.files import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptmigrate.files import Source
    from ckptmigrate.format import Format, Match

HEAD = 1024  # bytes that a diagnosis looks at
LFS = b"version https://git-lfs.github.com/spec/"
UNKNOWN = "not a known checkpoint format"

_SIGNATURES = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x1f\x8b", "a gzip stream that holds no checkpoint known here"),
    (b"BZh", "a bzip2 stream"),
    (b"\xfd7zXZ\0", "an xz stream"),
    (b"\x28\xb5\x2f\xfd", "a zstd stream"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"PK\x03\x04", "a zip archive that holds no checkpoint known here"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x89HDF", "an HDF5 file (Keras, old TensorFlow)"),
    (b"GGUF", "a GGUF file"),
    (b"\x93NUMPY", "a numpy array"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
)


def detect(source: Source) -> Match:
    """Give the one format that claims a source.

    UnknownFormatError says what the file is instead; UnsupportedFormatError is raised for one that is recognised and refused by
    name; AmbiguousError where two formats that read claim it.
    """
    if not source.is_folder() and source.size == 0:
        raise UnknownFormatError(
            "file is empty", path=source.name, hint="the download or the copy was cut: get it again"
        )
    if source.name.endswith(SIDECAR):
        stamped = source.name.removesuffix(SIDECAR)
        raise UnknownFormatError(
            "the stamp of another file, no checkpoint", path=source.name, hint=f"name the file itself: {stamped}"
        )
    claims = _claims(source, registry.formats())
    broken: dict[str, str] = {}
    if not claims:
        plugged = registry.plugin_formats()
        broken = dict(plugged.broken)
        claims = _claims(source, plugged.loaded.values())
    claims = [c for c in claims if c.refuse is None] or claims
    if not claims:
        what, hint = ("a folder that no format claims", None) if source.is_folder() else diagnose(source)
        error = UnknownFormatError(what, path=source.name, hint=hint)
        for reason in broken.values():
            error.add_note(reason)
        raise error
    readers = [claim for claim in claims if claim.refuse is None]
    if not readers:
        raise UnsupportedFormatError(str(claims[0].refuse), path=source.name, format=claims[0].format.name)
    if len(readers) > 1:
        names = sorted(claim.format.name for claim in readers)
        raise AmbiguousError(f"formats {' and '.join(names)} claim it alike", path=source.name, candidates=names)
    return readers[0]


def misnamed(match: Match, name: str) -> str | None:
    """Say so where the suffix belongs to other formats than the one that the content is of."""
    lower = name.lower()
    if lower.endswith(match.format.suffixes):
        return None
    others = sorted(f.name for f in registry.formats() if f.suffixes and lower.endswith(f.suffixes))
    if not others:
        return None
    return f"the name {name.rpartition('/')[2]!r} is that of {' or '.join(others)}; read as {match.format.name} by its content"


def diagnose(source: Source) -> tuple[str, str | None]:
    """Say what a file is that no format claims, and what to do."""
    head = source.read(0, min(HEAD, source.size))
    if head.startswith(LFS):
        size = re.search(rb"^size (\d{1,20})$", head, re.MULTILINE)
        pointed = f" to a file of {int(size[1])} bytes" if size else ""
        return f"a Git LFS pointer{pointed}, not the file itself", "git lfs pull fetches the file"
    for signature, what in _SIGNATURES:
        if head.startswith(signature):
            return f"{UNKNOWN}: {what}", None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return f"{UNKNOWN}: a WebP image", None
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = text[:64].lower()
    if lower.startswith((b"<!doctype html", b"<html")):
        return f"{UNKNOWN}: a web page (HTML)", "the download gave an error or log-in page: get the file itself"
    if lower.startswith(b"<?xml"):
        return f"{UNKNOWN}: XML", "the download gave an error message: get the file itself"
    if text[:1] in {b"{", b"["} and _is_text(head):
        return f"{UNKNOWN}: JSON text", None
    if _is_text(head):
        return f"{UNKNOWN}: text, beginning {head[:40].decode(errors='replace')!r}", None
    return f"{UNKNOWN}: begins with {head[:8].hex(' ')}", None


def _is_text(head: bytes) -> bool:
    control = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    try:
        head[:-4].decode() if len(head) > 4 else head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 8:
            return False
    return not control and len(head) > 8


def _claims(source: Source, formats: Iterable[Format]) -> list[Match]:
    return [match for match in (f.sniff(source) for f in formats) if match is not None]
