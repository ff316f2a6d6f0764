"""What the tests of torch's readers share: files that torch saves, packed anew by zipfile, read back as parts."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, spell, walk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from ckptmigrate.files import Disk


def reader(disk: Disk, folder: Path, module: ModuleType) -> Callable[..., Parts]:
    """Give what reads bytes with one format's own module, which must claim them without refusing."""

    def read(data: bytes, **options: Any) -> Parts:
        path = folder / f"{len(list(folder.iterdir()))}.pt"
        path.write_bytes(data)
        source = disk.open(path)
        match = module.sniff(source)

        assert match is not None
        assert match.refuse is None
        parts = module.read(source, ReadOptions(**options))
        assert isinstance(parts, Parts)
        return parts

    return read


def saved(obj: Any, *, legacy: bool = False, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer, _use_new_zipfile_serialization=not legacy, **options)
    return buffer.getvalue()


def rezipped(
    data: bytes, changed: dict[str, bytes | None], method: int = zipfile.ZIP_STORED, prefix: str = "archive/"
) -> bytes:
    """Pack the members again, by zipfile: some with other bytes, some left out, some added."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members: dict[str, bytes | None] = {
            name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()
        }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in {**members, **changed}.items():
            if content is not None:
                archive.writestr(f"{prefix}{name}", content)
    return buffer.getvalue()


def tensors(tree: Any) -> dict[str, Tensor]:
    return {spell(path): node for path, node in walk(tree) if isinstance(node, Tensor)}


def faults(tree: Any) -> dict[str, str]:
    return {
        spell(path): " ".join(map(str, node.args))
        for path, node in walk(tree)
        if isinstance(node, Inert) and node.kind == "fault"
    }
