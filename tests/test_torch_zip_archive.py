"""The torch zip writer's container: the same bytes as torch's, which zipfile finds right too."""

from __future__ import annotations

import io
import json
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ckptmigrate.files import Disk, Late
from ckptmigrate.format import Parts, WriteOptions
from ckptmigrate.formats._torch_zip_archive import archive as lay_out_archive
from ckptmigrate.formats._torch_zip_writer import lay_out
from ckptmigrate.tensor import View
from ckptmigrate.values import Ordered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


from .torch_zip_desk import DEFAULT, Desk, draw, saved


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with Disk() as disk:
        yield Desk(tmp_path, disk)


def test_the_container_is_byte_for_byte_torch_s() -> None:
    state = OrderedDict((str(n), torch.arange(n, dtype=torch.uint8)) for n in (1, 0, 63, 64, 65, 2, 0, 500))
    theirs = saved(state)
    archive = zipfile.ZipFile(io.BytesIO(theirs))
    pieces, size = lay_out_archive((info.filename, archive.read(info)) for info in archive.infolist())

    assert draw_pieces(pieces) == theirs
    assert size == len(theirs)


def test_the_pickle_is_byte_for_byte_torch_s(desk: Desk) -> None:
    model = torch.nn.ModuleDict(
        {"conv": torch.nn.Conv2d(3, 4, 2), "bn": torch.nn.BatchNorm2d(4)}
    )  # no name is a storage's key
    state: Any = model.state_dict()
    values = {"u": torch.ones(2, dtype=torch.uint16), "e": torch.zeros(2, 0), "lr": 0.1, "n": 3, "betas": (0.9, 0.999)}
    theirs = zipfile.ZipFile(io.BytesIO(saved({"model": state, **values}))).read("archive/data.pkl")
    tree: dict[str, Any] = {"model": Ordered({name: desk.tensor(value) for name, value in state.items()})}
    tree["model"].attributes["_metadata"] = Ordered(state._metadata)
    tree |= {key: desk.tensor(value) if isinstance(value, torch.Tensor) else value for key, value in values.items()}

    assert zipfile.ZipFile(desk.write(tree)).read("archive/data.pkl") == theirs


def draw_pieces(pieces: list[Any]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece.make([]) for _, piece in pieces)


class Huge:
    """A promise as large as it says, of which nothing is drawn."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.parametrize(
    "sizes",
    [
        (4_400_000_000, 12, 0, 4),
        (0xFFFFFFFF, 5),
        (0xFFFFFFFE, 5),
        (10, 0xFFFFFFFF - 2000, 0, 300, 1),
        (5_000_000_000, 4_300_000_000, 0),
    ],
)
def test_zip64_fields_stand_where_torch_puts_them(desk: Desk, sizes: tuple[int, ...]) -> None:
    path = desk.folder / "archive"
    with torch.serialization.skip_data():  # headers only: the data are holes
        torch.save([torch.empty(size, dtype=torch.uint8) for size in sizes], path)
    archive = zipfile.ZipFile(path)
    drawn = (Huge(info.file_size) if "/data/" in info.filename else archive.read(info) for info in archive.infolist())
    members: Any = zip(archive.namelist(), drawn, strict=True)
    laid: Any = lay_out_archive(members)
    pieces, size = laid

    assert size == path.stat().st_size

    with path.open("rb") as stream:
        for offset, piece in pieces:
            if not isinstance(piece, Huge):
                ours = piece.make([0] * len(sizes)) if isinstance(piece, Late) else piece
                stream.seek(offset)

                assert stream.read(len(ours)) == ours


def test_python_s_zipfile_finds_every_crc_right(desk: Desk) -> None:
    path = desk.write([desk.tensor(torch.arange(n, dtype=torch.uint8)) for n in (1, 0, 1000)], notes={"a": 1})

    assert zipfile.ZipFile(path).testzip() is None


def test_every_member_starts_on_the_alignment(desk: Desk) -> None:
    tree = [desk.tensor(torch.arange(n, dtype=torch.uint8)) for n in range(130)]
    blueprint = lay_out(Parts(tree=tree), DEFAULT, "m.pt")
    offsets = [offset for offset, piece in blueprint.files["m.pt"] if isinstance(piece, View)]

    assert len(offsets) == 130
    assert {offset % 64 for offset in offsets} == {0}


def test_the_same_tree_gives_the_same_bytes_whatever_the_name(desk: Desk) -> None:
    tree = {"a": desk.tensor(torch.arange(3.0)), "b": [1, {"c": None}]}

    assert draw(lay_out(Parts(tree=tree), DEFAULT, "x.pt")) == draw(lay_out(Parts(tree=tree), DEFAULT, "y.pt"))


def test_notes_are_a_member_of_their_own_and_absent_from_a_bare_file(desk: Desk) -> None:
    tree = {"a": desk.tensor(torch.arange(3.0))}
    archive = zipfile.ZipFile(desk.write(tree, notes={"versions": {"é": "1"}}))

    assert json.loads(archive.read("archive/.data/ckptmigrate.json")) == {"versions": {"é": "1"}}

    bare = zipfile.ZipFile(desk.write(tree, WriteOptions(bare=True), notes={"versions": {}}))

    assert bare.namelist() == [
        "archive/data.pkl", "archive/.format_version", "archive/.storage_alignment", "archive/byteorder",
        "archive/data/0", "archive/version",
    ]  # fmt: skip


def test_h11_the_version_is_3_and_the_pickle_protocol_2(desk: Desk) -> None:
    archive = zipfile.ZipFile(desk.write({"w": desk.tensor(torch.ones(1))}))

    assert archive.read("archive/version") == b"3\n"
    assert archive.read("archive/data.pkl")[:2] == b"\x80\x02"
    assert b"_rebuild_tensor_v2" in archive.read("archive/data.pkl")
    assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
