"""What is no checkpoint of torch.save, or not read yet, is recognised by its content and refused by its name, and nothing else is."""

from __future__ import annotations

import io
import pickle
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate.errors import UnsupportedFormatError
from ckptmigrate.files import Disk
from ckptmigrate.format import ReadOptions
from ckptmigrate.formats import (
    plain_pickle,
    torch_export,
    torch_legacy,
    torch_package,
    torch_script,
    torch_tar,
    torch_zip,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

MUSEUM = Path(__file__).parent / "fixtures" / "torch"
FORMATS = (torch_zip, torch_legacy, torch_script, torch_export, torch_package, torch_tar, plain_pickle)


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


def claims(path: Path, disk: Disk) -> list[str]:
    source = disk.open(path)
    return [module.FORMAT.name for module in FORMATS if module.sniff(source) is not None]


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def save(path: Path, obj: Any, **options: Any) -> Path:
    torch.save(obj, path, **options)
    return path


def script(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    return path


def package(path: Path) -> Path:
    from torch.package import PackageExporter

    with PackageExporter(str(path)) as exporter:
        exporter.save_pickle("net", "data.pkl", {"w": torch.ones(2)})
    return path


def tar(path: Path, names: tuple[str, ...], form: int) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes(700)))
    return path


def zipped(path: Path, names: tuple[str, ...]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return path


def refused(module: ModuleType, path: Path, disk: Disk) -> str:
    source = disk.open(path)
    match = module.sniff(source)

    assert match is not None
    assert claims(path, disk) == [match.format.name]
    with pytest.raises(UnsupportedFormatError) as caught:
        module.read(source, ReadOptions())
    assert caught.value.message == match.refuse
    assert caught.value.path == str(path)
    return str(match.refuse)


def test_torchscript_is_refused_with_the_advice_to_export_a_state_dict(disk: Disk, tmp_path: Path) -> None:
    text = refused(torch_script, script(tmp_path / "a.pt"), disk)

    assert "TorchScript archive" in text
    assert "torch.jit.load(path).state_dict()" in text


@pytest.mark.parametrize(
    "name", ["1.0.0-py36/traced.pt", "1.4.0-py38/script.pt", "1.10.2-py38/script.pt", "2.13.0-py311/traced.pt"]
)
def test_torchscript_of_every_era_is_refused(name: str, disk: Disk) -> None:
    assert "TorchScript archive" in refused(torch_script, MUSEUM / name, disk)


def test_a_mobile_flatbuffer_is_refused(disk: Disk, tmp_path: Path) -> None:
    assert "mobile" in refused(torch_script, written(tmp_path / "a.ptl", b"\x18\0\0\0PTMF" + bytes(40)), disk)


@pytest.mark.parametrize(
    "names", [("m/archive_format", "m/models/model.json"), ("serialized_exported_program.json", "version")]
)
def test_exported_programs_of_both_eras_are_refused(names: tuple[str, ...], disk: Disk, tmp_path: Path) -> None:
    assert "torch.export" in refused(torch_export, zipped(tmp_path / "a.pt2", names), disk)


def test_an_exported_program_of_the_museum_is_refused(disk: Disk) -> None:
    (path,) = (MUSEUM / "2.13.0-export").glob("*.pt2")

    assert "torch.export" in refused(torch_export, path, disk)


@pytest.mark.filterwarnings("ignore")
def test_a_package_is_refused_even_where_a_resource_is_called_data_pkl(disk: Disk, tmp_path: Path) -> None:
    assert "torch.package" in refused(torch_package, package(tmp_path / "a.pt"), disk)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("names", [("sys_info", "pickle", "tensors", "storages"), ("./storages", "./pickle")])
def test_a_tar_of_torch_is_refused_by_name(form: int, names: tuple[str, ...], disk: Disk, tmp_path: Path) -> None:
    assert "tar checkpoint of torch 0.1" in refused(torch_tar, tar(tmp_path / "a.pth.tar", names, form), disk)


def test_a_tar_of_the_museum_is_refused_by_name(disk: Disk) -> None:
    refused(torch_tar, MUSEUM / "0.1.x-tar-synthetic" / "state_dict.tar.pt", disk)


def test_another_tar_is_not_claimed(disk: Disk, tmp_path: Path) -> None:
    assert claims(tar(tmp_path / "a.tar", ("readme", "pickle"), tarfile.PAX_FORMAT), disk) == []


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["tensors", "list", "arrays"])
def test_a_plain_pickle_of_any_protocol_is_refused_by_that_name(
    protocol: int, kind: str, disk: Disk, tmp_path: Path
) -> None:
    values = {"tensors": {"w": torch.ones(2)}, "list": [1, "a", {}, 2.5], "arrays": {"w": np.ones(3), "b": 1}}
    text = refused(plain_pickle, written(tmp_path / "a.pkl", pickle.dumps(values[kind], protocol)), disk)

    assert "plain pickle, not written by torch.save" in text
    assert "corrupt" not in text


@pytest.mark.parametrize(
    "data",
    [
        b"", b"a", b"PK\3", b"hello world.", b"(c) 2020 Somebody. All rights reserved.", b"<!DOCTYPE html>", b'{"a": 1}', b"NRUB\1\0", b"\x89PNG\r\n\x1a\n",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", b'\x80\2\0\0\0\0\0\0{"a"', b"\x80\x2a\0\0\0\0\0\0{", b"I am.", b"\0" * 600,
    ],
)  # fmt: skip
def test_what_is_nothing_of_torch_is_claimed_by_nobody(data: bytes, disk: Disk, tmp_path: Path) -> None:
    assert claims(written(tmp_path / "a.pt", data), disk) == []


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saved_is_claimed_by_its_own_format_alone(zipped: bool, disk: Disk, tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", {"w": torch.ones(2)}, _use_new_zipfile_serialization=zipped)

    assert claims(path, disk) == ["torch_zip" if zipped else "torch_legacy"]


def test_a_folder_is_claimed_by_nobody(disk: Disk, tmp_path: Path) -> None:
    assert claims(tmp_path, disk) == []
