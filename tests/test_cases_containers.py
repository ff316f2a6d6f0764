"""Public failure reports, part D: containers and corruption; each is refused with what was found, or converts."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

import ckptmigrate
from ckptmigrate import errors

if TYPE_CHECKING:
    from .conftest import Refuse

MUSEUM = Path(__file__).parent / "fixtures" / "torch"


def save(path: Path, obj: Any, **options: Any) -> Path:
    torch.save(obj, path, **options)
    return path


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def tensors() -> dict[str, torch.Tensor]:
    return {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


def legacy(path: Path, obj: Any) -> bytes:
    return save(path, obj, _use_new_zipfile_serialization=False).read_bytes()


@pytest.mark.parametrize("keep", [-40, 0.5, 10])
def test_d01_a_cut_zip_is_refused_as_truncated_with_its_size(keep: float, tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", tensors())
    data = source.read_bytes()
    cut = (
        data[: len(data) + int(keep)] if keep < 0 else data[: int(len(data) * keep)] if keep < 1 else data[: int(keep)]
    )
    source.write_bytes(cut)

    refuse(source, "truncated zip: no end record", str(len(cut)))


def test_d01_an_empty_file_is_refused_as_empty(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    source.write_bytes(b"")

    refuse(source, "file is empty")


def flipped(tmp_path: Path) -> Path:
    source = save(tmp_path / "in.pt", tensors())
    with zipfile.ZipFile(source) as archive:
        info = archive.getinfo("in/data/0")
    data = bytearray(source.read_bytes())
    name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
    data[info.header_offset + 30 + name + extra + 3] ^= 0x40
    source.write_bytes(data)
    return source


def test_d03_a_flipped_bit_is_refused_naming_entry_tensors_and_both_checksums(tmp_path: Path, refuse: Refuse) -> None:
    refuse(flipped(tmp_path), "in/data/0", r"\bw\b", r"[0-9a-f]{8}.*[0-9a-f]{8}")


def test_d03_without_the_damaged_tensor_the_others_convert(tmp_path: Path) -> None:
    ckptmigrate.migrate(flipped(tmp_path), tmp_path / "out.pt", exclude=("w",))

    assert list(load(tmp_path / "out.pt")) == ["b"]


def test_d05_a_short_legacy_file_names_the_tensor_and_the_bytes_that_lack(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    data = legacy(source, tensors())
    source.write_bytes(data[:-5])

    refuse(source, "truncated", r"\b5\b", r"\b[wb]\b")


def test_d05_a_cut_inside_the_object_pickle_says_so(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    data = legacy(source, tensors())
    source.write_bytes(data[: data.index(b"_rebuild_tensor_v2") + 30])

    refuse(source, "truncated in the object pickle")


def test_d05_a_wrong_storage_count_names_the_key_and_both_counts(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    data = legacy(source, {"w": torch.arange(6.0).reshape(2, 3)})
    at = len(data) - 24 - 8
    assert struct.unpack_from("<q", data, at) == (6,)
    source.write_bytes(data[:at] + struct.pack("<q", 7) + data[at + 8 :] + b"\0\0\0\0")

    refuse(source, r"\b6\b", r"\b7\b", "storage")


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.bpk"])
def test_d07_a_git_lfs_pointer_is_named_with_the_size_it_points_to(name: str, tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / name
    source.write_text(POINTER)

    refuse(source, "Git LFS pointer", "12345")


def test_d09_a_safetensors_file_named_bin_is_read_by_content_with_a_note(tmp_path: Path) -> None:
    source = tmp_path / "ip_adapter.bin"
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(0x2A80)
    source.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 2.0))
    done = ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert load(tmp_path / "out.pt")["w"].tolist() == [2.0]
    assert ".bin" in " ".join([*done.notes, *done.warnings])


@pytest.mark.parametrize("zipped", [True, False])
def test_d11_a_pth_tar_is_read_by_content(zipped: bool, tmp_path: Path) -> None:
    source = save(tmp_path / "best.pth.tar", tensors(), _use_new_zipfile_serialization=zipped)
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert torch.equal(load(tmp_path / "out.pt")["w"], tensors()["w"])


def test_d11_a_real_tar_is_recognised_and_refused_by_name(tmp_path: Path, refuse: Refuse) -> None:
    source = Path(shutil.copy(MUSEUM / "0.1.x-tar-synthetic" / "state_dict.tar.pt", tmp_path))

    assert isinstance(refuse(source, "tar"), errors.UnsupportedFormatError)


@pytest.mark.parametrize("word", [b"big", None])
def test_d13_either_byte_order_gives_the_values_and_the_output_is_little(word: bytes | None, tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", tensors())
    swap = word == b"big"
    with zipfile.ZipFile(source) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in members:
            if name.endswith("byteorder"):
                if word is not None:
                    archive.writestr(name, word)
            elif swap and "/data/" in name:
                archive.writestr(name, struct.pack(f">{len(data) // 4}f", *struct.unpack(f"<{len(data) // 4}f", data)))
            else:
                archive.writestr(name, data)
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert {k: v.tolist() for k, v in load(tmp_path / "out.pt").items()} == {
        k: v.tolist() for k, v in tensors().items()
    }


def test_d13_an_unknown_byte_order_is_refused_with_its_text(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", tensors())
    with zipfile.ZipFile(source) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in members:
            archive.writestr(name, b"middle" if name.endswith("byteorder") else data)

    refuse(source, "middle")


def test_d15_unsigned_and_float8_tensors_keep_dtype_and_bytes(tmp_path: Path) -> None:
    saved = {
        "a": torch.tensor([0, 1, 2, 3]).to(torch.uint16),
        "f": torch.tensor([0.0, 1.0, 2.0, 3.0]).to(torch.float8_e4m3fn),
    }
    ckptmigrate.migrate(save(tmp_path / "in.pt", saved), tmp_path / "out.safetensors")

    shown = {
        t["name"]: t["dtype"] for t in ckptmigrate.inspect(tmp_path / "out.safetensors")["sections"]["model"]["tensors"]
    }
    assert shown == {"a": "U16", "f": "F8_E4M3"}
    assert (tmp_path / "out.safetensors").read_bytes().endswith(bytes.fromhex("0000010002000300" + "00384044"))


def test_d17_torchscript_is_recognised_and_refused_with_advice(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), source)

    refuse(source, "TorchScript archive", "state_dict")


@pytest.mark.slow
def test_d19_storages_over_four_gigabytes_convert_and_open_everywhere(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 20 << 30:
        pytest.skip("needs 20 GB of disk")
    count = (41 << 30) // 10
    big = torch.zeros(count, dtype=torch.uint8)
    big[-1] = 7
    source = save(tmp_path / "in.pt", {"big": big, "small": torch.arange(3.0)})
    del big
    ckptmigrate.migrate(source, tmp_path / "out.pt")
    source.unlink()

    loaded = torch.load(tmp_path / "out.pt", weights_only=True, mmap=True)
    assert int(loaded["big"][-1]) == 7
    assert loaded["small"].tolist() == [0.0, 1.0, 2.0]
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert archive.read("archive/data/1") == struct.pack("<3f", 0, 1, 2)


def test_d19_zip64_fields_on_small_entries_convert(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", tensors())
    with zipfile.ZipFile(source) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in members:
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert torch.equal(load(tmp_path / "out.pt")["w"], tensors()["w"])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("in.pt", b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        ("in.pt", b"\x89PNG\r\n\x1a\n", "PNG"),
        ("in.pt", b"abc", "not a known checkpoint format"),
        ("in.safetensors", b"<html><head><title>404</title>", "web page"),
    ],
)
def test_what_is_no_checkpoint_is_told_for_what_it_is(
    name: str, data: bytes, said: str, tmp_path: Path, refuse: Refuse
) -> None:
    source = tmp_path / name
    source.write_bytes(data)

    refuse(source, said)


def with_member(path: Path, name: str, data: bytes = b"x") -> Path:
    save(path, tensors())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, data)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["in/data/0", "in/DATA/0", "../evil", "/etc/evil", "in\\data\\0"])
def test_duplicate_and_traversal_names_are_refused_by_name(name: str, tmp_path: Path, refuse: Refuse) -> None:
    refuse(with_member(tmp_path / "in.pt", name), "evil|data")


def test_a_deflate_bomb_is_refused_before_it_is_inflated(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"w": torch.zeros(10)})
    with zipfile.ZipFile(source) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, b"\0" * (600 << 20) if name.endswith("data.pkl") else data)

    refuse(source, "data.pkl")


def test_an_expanded_tensor_that_claims_the_moon_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"w": torch.zeros(1).expand(1 << 40)})

    refuse(source, r"\bw\b")


def test_every_cut_of_a_small_zip_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(2.0)}, buffer)
    _every_cut(buffer.getvalue(), tmp_path)


def test_every_cut_of_a_small_legacy_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(2.0)}, buffer, _use_new_zipfile_serialization=False)
    _every_cut(buffer.getvalue(), tmp_path)


def test_every_cut_of_a_small_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.arange(2.0)}, tmp_path / "in")
    _every_cut((tmp_path / "in").read_bytes(), tmp_path)


def _every_cut(data: bytes, folder: Path) -> None:
    source = folder / "cut.pt"
    for length in range(len(data)):
        source.write_bytes(data[:length])
        try:
            ckptmigrate.migrate(source, folder / "out.pt")
        except errors.CkptError:
            assert not (folder / "out.pt").exists()
        else:
            assert load(folder / "out.pt")["w"].tolist() == [0.0, 1.0]
            (folder / "out.pt").unlink()


def test_a_plain_pickle_of_numbers_is_no_checkpoint(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pkl"
    source.write_bytes(pickle.dumps({"a": 1}, protocol=2))

    refuse(source, "plain pickle")


def test_zips_one_after_the_other_are_never_taken_for_the_first(tmp_path: Path, refuse: Refuse) -> None:
    first, second = save(tmp_path / "a.pt", tensors()), save(tmp_path / "b.pt", {"x": torch.ones(3)})
    row = tmp_path / "__0_0.distcp"
    row.write_bytes(first.read_bytes() + second.read_bytes())

    refuse(row, "several zip archives", str(first.stat().st_size))
