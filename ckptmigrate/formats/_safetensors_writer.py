"""The safetensors file of a set of tensors, laid out from lengths; `safetensors` draws and explains the bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ckptmigrate.format import Blueprint, Parts, WriteOptions
from ckptmigrate.notes import MARK, spelled
from ckptmigrate.values import NOTHING, Scalar, brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckptmigrate.tensor import Promise, Tensor

METADATA, STAMP, KIND = "__metadata__", MARK, "format"
KINDS = {
    "torch": "pt"
}  # the text under "format" that tells whose names these are, by family; the other texts tell no family of ours
PREFIX = 8  # bytes of the header's length
HEADER_MAX = 100_000_000  # the reference reader opens no file with a longer one
TEXTS = 100_000  # under __metadata__; real files hold a handful, ours one more for each tied name


def lay_out(parts: Parts, options: WriteOptions, name: str) -> Blueprint:
    """Give the blueprint of one file: header, then each promise once, in the order of ``parts.tensors``.

    Tied names are kept as text unless ``options`` duplicates them; a bare file has neither our object nor ties.
    """
    blueprint = Blueprint(last=name)
    if parts.tree is not NOTHING:
        blueprint.problems.append(f"{brief(parts.tree)} is a tree, and safetensors holds tensors by name")
    tensors = dict(_writable(parts.tensors or {}, blueprint.problems))
    keep = options.ties == "keep" and not options.bare
    ties = _ties(tensors)
    for alias, kept in ties.items():
        nbytes = tensors[alias].nbytes
        how = "written once, tied" if keep else f"{nbytes} bytes written twice"
        blueprint.notes.append(f"{alias} is {kept}: {how}")
    if not keep:
        ties = {}
    metadata = _metadata(parts, options, list(tensors), ties, blueprint)
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    end = 0
    for key, promise in tensors.items():
        if key not in ties:
            begin, end = end, end + promise.nbytes
            shape = promise.dtype.spelled_shape(promise.shape)
            header[key] = {"dtype": promise.dtype.safetensors, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")
    text += b" " * (-len(text) % PREFIX)
    if len(text) > HEADER_MAX:
        blueprint.problems.append(f"header takes {len(text)} bytes, safetensors reads no more than {HEADER_MAX}")
    start = PREFIX + len(text)
    blueprint.files[name] = [
        (0, len(text).to_bytes(PREFIX, "little") + text),
        *((start + header[key]["data_offsets"][0], promise) for key, promise in tensors.items() if key not in ties),
    ]
    blueprint.sizes[name] = start + end
    return blueprint


def _writable(tensors: Mapping[str, Tensor | Scalar], problems: list[str]) -> Iterator[tuple[str, Promise]]:
    """Give the promises that the format can hold, and say of all others why it cannot."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Scalar):
            problems.append(f'"{name}" is a number, and safetensors holds tensors only')
            continue
        promise, dtype = tensor.promise, tensor.promise.dtype
        if tensor.quant is not None or dtype.kind == "quantised":
            problems.append(
                f'tensor "{name}" is quantised ({dtype}), which safetensors cannot hold; --dequantize makes it F32'
            )
        elif dtype.safetensors is None:
            problems.append(
                f'tensor "{name}" is {dtype} ({dtype.torch}), which safetensors cannot hold; a Cast or --exclude settles it'
            )
        elif dtype.packed > 1 and not promise.shape:
            problems.append(
                f'tensor "{name}" is {dtype} without dimensions, and safetensors counts its elements in the last one'
            )
        elif name == METADATA:
            problems.append(
                f'tensor "{name}" bears the name that safetensors keeps for its metadata; --rename settles it'
            )
        elif not _is_text(name):
            problems.append(f"tensor {name!a} has a name that is no Unicode text; --rename settles it")
        else:
            yield name, promise


def _ties(tensors: Mapping[str, Promise]) -> dict[str, str]:
    """Give for each name whose promise an earlier one has, the earliest; tensors of zero bytes share nothing."""
    first: dict[Promise, str] = {}
    kept = {name: first.setdefault(promise, name) for name, promise in tensors.items() if promise.nbytes}
    return {name: other for name, other in kept.items() if name != other}


def _metadata(
    parts: Parts, options: WriteOptions, names: list[str], ties: Mapping[str, str], blueprint: Blueprint
) -> dict[str, str]:
    """Give the file's texts: the caller's, the ties, the family's, and last our own object."""
    metadata: dict[str, str] = {}
    present = set(names)
    doubtful = False
    for key, value in parts.facts.get("metadata", {}).items():
        if key == STAMP:
            blueprint.left_out.append((f"metadata/{key}", "the name is kept for the stamp"))
        elif not isinstance(value, str) or not _is_text(key) or not _is_text(value):
            blueprint.problems.append(f"metadata {key!a} is no Unicode text, and safetensors holds texts only")
        elif value in present and key not in present and key != KIND and options.bare:
            blueprint.left_out.append((f"metadata/{key}", f'a reader would take {key} for a tensor tied to "{value}"'))
        else:
            metadata[key] = value
            doubtful |= value in present and key not in present
    for name, kept in ties.items():
        if name in metadata or name in {STAMP, KIND}:
            blueprint.problems.append(
                f'tensor "{name}" is tied to "{kept}", and its name is taken among the metadata; --ties duplicate settles it'
            )
        else:
            metadata[name] = kept
    if parts.family in KINDS:
        metadata.setdefault(KIND, KINDS[parts.family])
    if len(metadata) >= TEXTS:
        blueprint.problems.append(
            f"{len(metadata)} texts beside the tensors, {TEXTS - 1} are read; --ties duplicate settles those of ties"
        )
    if options.bare:
        return metadata
    notes = dict(parts.notes)
    if doubtful or (ties and list(ties) != names[-len(ties) :]):
        notes["ties"] = {name: at for at, name in enumerate(names) if name in ties}
    if notes:
        metadata[STAMP] = spelled(notes, blueprint)
    return metadata


def _is_text(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
