"""``stamp``: said once where an unstamped checkpoint stands; inside it, or in a file beside it that is of no other bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate.errors import CheckpointError, CkptError, UsageError, VersionError
from ckptmigrate.files import Disk
from ckptmigrate.store.stamps import measured

from .command_line import CHECKPOINT, MUSEUM, OLD, Ran
from .lines import HERE

BESIDE = ".ckptmigrate.json"
RIGHT = ("--migrations", HERE / "right")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of torch 1.0, of a format that carries no stamp."""
    return Path(shutil.copy(OLD, tmp_path / "old.pt"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return Path(shutil.copy(CHECKPOINT, tmp_path / "new.pt"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"trunk.fc": torch.ones(2)}, path, metadata={"author": "me"})
    return path


def versions(path: Path) -> Any:
    return ckptmigrate.inspect(path)["versions"]


def test_a_file_that_carries_a_stamp_gets_it_inside_and_keeps_a_backup(model: Path) -> None:
    before = model.read_bytes()
    ran = Ran("stamp", model, "acme.vit=1.0", "acme.head=2.1rc1")
    backup = model.with_name("model.safetensors.ckptmigrate-backup")

    assert ran.code == 0
    assert versions(model) == {"acme.vit": "1.0", "acme.head": "2.1rc1"}
    assert backup.read_bytes() == before
    assert sorted(path.name for path in model.parent.iterdir()) == [model.name, backup.name]
    assert ckptmigrate.verify(backup, model) == []


def test_a_stamp_in_safetensors_stands_among_its_metadata_and_overwrites_none(model: Path) -> None:
    ckptmigrate.stamp(model, {"acme.vit": "1.0"})
    with safetensors.safe_open(model, "pt") as file:
        metadata = file.metadata()

    assert metadata["author"] == "me"
    assert json.loads(metadata["ckptmigrate"])["stamp"] == {"versions": {"acme.vit": "1.0"}}


def test_a_file_that_carries_none_is_left_alone_and_stamped_beside_with_size_and_digest(old: Path) -> None:
    before = old.read_bytes()
    shown = Ran("stamp", old, "acme.vit=1.0", "--json").json()
    said = json.loads((old.parent / f"old.pt{BESIDE}").read_text())

    assert shown["files"] == [f"{old}{BESIDE}"]
    assert shown["reasons"] == ["a file of this kind carries no stamp (torch_legacy)"]
    assert old.read_bytes() == before
    assert said["of"] == {"size": len(before), "sha256": hashlib.sha256(before).hexdigest()}
    assert versions(old) == {"acme.vit": "1.0"}


def test_beside_leaves_any_file_as_it_is(model: Path) -> None:
    before = model.read_bytes()

    assert Ran("stamp", model, "acme.vit=1.0", "--beside").code == 0
    assert model.read_bytes() == before
    assert versions(model) == {"acme.vit": "1.0"}


def test_a_link_is_stamped_beside_and_not_replaced(model: Path) -> None:
    link = model.with_name("link.safetensors")
    link.symlink_to(model.name)
    done = ckptmigrate.stamp(link, {"acme.vit": "1.0"})

    assert done.files == (f"{link}{BESIDE}",)
    assert link.is_symlink()
    assert versions(link) == {"acme.vit": "1.0"}
    assert versions(model) == {}


def test_a_torch_file_gets_a_record_and_every_byte_before_it_stays(new: Path) -> None:
    """Written anew it would hold a plain dictionary where its author put a Namespace."""
    before = new.read_bytes()
    with zipfile.ZipFile(new) as archive:
        members = {info.filename: (info.header_offset, info.CRC) for info in archive.infolist()}
        start = archive.start_dir
    done = ckptmigrate.stamp(new, {"acme.vit": "1.0"})
    with zipfile.ZipFile(new) as archive:
        found = {info.filename: (info.header_offset, info.CRC) for info in archive.infolist()}
        assert archive.testzip() is None

    assert done.backup == f"{new}.ckptmigrate-backup"
    assert Path(done.backup).read_bytes() == before
    assert new.read_bytes()[:start] == before[:start]
    assert {name: place for name, place in found.items() if not name.endswith("ckptmigrate.json")} == members
    assert versions(new) == {"acme.vit": "1.0"}


def test_torch_opens_a_stamped_file_as_before_also_mapped(new: Path) -> None:
    ckptmigrate.stamp(new, {"acme.vit": "1.0"})
    backup = new.with_name("new.pt.ckptmigrate-backup")
    for options in ({}, {"mmap": True}):
        one, two = (torch.load(path, weights_only=False, **options) for path in (new, backup))

        assert str(one) == str(two)
        assert type(one["args"]) is type(two["args"])


def test_a_record_is_replaced_and_not_doubled(new: Path) -> None:
    for version in ({"acme.vit": "1.0"}, {"acme.head": "2.0"}, {"acme.neck": "3.0"}):
        ckptmigrate.stamp(new, version)
    with zipfile.ZipFile(new) as archive:
        records = [name for name in archive.namelist() if name.endswith("ckptmigrate.json")]

    assert len(records) == 1
    assert versions(new) == {"acme.vit": "1.0", "acme.head": "2.0", "acme.neck": "3.0"}
    assert ckptmigrate.verify(new, new.with_name("new.pt.ckptmigrate-backup")) == []


def test_what_our_record_of_a_torch_file_says_else_is_kept(old: Path) -> None:
    out = old.with_name("out.pt")
    ckptmigrate.migrate(old, out, layout="standard")
    before = ckptmigrate.inspect(out)
    ckptmigrate.stamp(out, {"acme.vit": "1.0"})
    after = ckptmigrate.inspect(out)

    assert {key: value for key, value in after.items() if key not in {"versions", "notes"}} == {
        key: value for key, value in before.items() if key not in {"versions", "notes"}
    }


@pytest.mark.parametrize("release", sorted(path.parent.name for path in MUSEUM.glob("*/state_dict.pt")))
def test_every_current_torch_file_of_the_museum_is_stamped_inside_and_every_older_one_beside(
    tmp_path: Path, release: str
) -> None:
    path = Path(shutil.copy(MUSEUM / release / "state_dict.pt", tmp_path / "m.pt"))
    with ckptmigrate.open(path) as checkpoint:
        current = bool(checkpoint.origin.facts["current"])
    done = ckptmigrate.stamp(path, {"acme.vit": "1.0"})

    assert done.inside is current
    assert versions(path) == {"acme.vit": "1.0"}


@pytest.mark.parametrize("change", ["size", "digest"])
def test_a_stamp_of_other_bytes_is_an_error_that_says_so(old: Path, change: str) -> None:
    ckptmigrate.stamp(old, {"acme.vit": "1.0"})
    raw = bytearray(old.read_bytes())
    raw[-1] ^= 1
    old.write_bytes(bytes(raw) + (b"x" if change == "size" else b""))
    expected = f"stamps a file of {len(raw):,} bytes" if change == "size" else "stamps a file of sha256"
    ran = Ran("check", old)

    with pytest.raises(CheckpointError, match=expected):
        ckptmigrate.inspect(old)
    assert ran.code == 1
    assert "it was changed or replaced since" in ran.out


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"of": {"size": 1}}', '{"ckptmigrate": 2}', '{"of": 3, "stamp": {}}']
)
def test_a_damaged_file_beside_is_refused(old: Path, text: str) -> None:
    (old.parent / f"old.pt{BESIDE}").write_text(text)

    with pytest.raises(CkptError) as caught:
        ckptmigrate.inspect(old)
    assert caught.value.path == f"{old}{BESIDE}"


def test_a_migrated_output_carries_the_stamp_inside(old: Path) -> None:
    ckptmigrate.stamp(old, {"acme.vit": "1.0"})
    out, folder = old.with_name("out.pt"), old.with_name("folder")
    ckptmigrate.migrate(old, out)
    ckptmigrate.migrate(old, folder)

    assert versions(out)["acme.vit"] == versions(folder)["acme.vit"] == "1.0"
    assert not out.with_name(f"out.pt{BESIDE}").exists()
    assert not any(path.name.endswith(BESIDE) for path in folder.iterdir())


def test_in_place_the_stamp_beside_goes_with_the_backup(old: Path) -> None:
    ckptmigrate.stamp(old, {"acme.vit": "1.0"})
    assert Ran("migrate", old, "--in-place").code == 0
    backup = old.with_name("old.pt.ckptmigrate-backup")

    assert versions(old)["acme.vit"] == versions(backup)["acme.vit"] == "1.0"
    assert not old.with_name(f"old.pt{BESIDE}").exists()


def test_a_file_that_is_replaced_takes_the_stamp_of_the_old_one_with_it(old: Path, new: Path) -> None:
    ckptmigrate.stamp(old, {"acme.vit": "1.0"})
    ckptmigrate.migrate(new, old, force=True)

    assert versions(old) == {}
    assert not old.with_name(f"old.pt{BESIDE}").exists()


def test_what_stamps_a_file_is_no_checkpoint_and_in_no_listing(old: Path) -> None:
    ckptmigrate.stamp(old, {"acme.vit": "1.0"})
    ran = Ran("inspect", f"{old}{BESIDE}")

    assert ran.code == 3
    assert "the stamp of another file, no checkpoint" in ran.err
    assert f"name the file itself: {old}" in ran.err


def test_the_files_of_a_run_are_stamped_one_by_one_and_what_stamps_them_is_no_file_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    source = OLD.parents[2] / "burn" / "0.13.2" / "run"
    if not source.is_dir():
        source = next(path for path in sorted((OLD.parents[2] / "burn").glob("*/*")) if (path / "checkpoint").is_dir())
    shutil.copytree(source, run)
    before = ckptmigrate.epochs(run)
    number = before[0].epochs[-1].number
    done = ckptmigrate.stamp(run, {"acme.vit": "1.0"}, gather=ckptmigrate.GatherOptions(epoch=number, scheduler=None))

    assert len(done.files) == len(before[0].epochs[-1].files)
    assert all(file.endswith(BESIDE) for file in done.files)
    assert ckptmigrate.epochs(run) == before
    found = ckptmigrate.inspect(run, gather=ckptmigrate.GatherOptions(epoch=number))
    assert found["versions"]["acme.vit"] == "1.0"


def test_a_version_that_its_own_stamp_contradicts_is_refused(new: Path) -> None:
    ckptmigrate.stamp(new, {"acme.vit": "1.0"})
    ran = Ran("stamp", new, "acme.vit=2.0")

    assert ran.code == 3
    assert "its stamp says 1.0, and 2.0 is to be written" in ran.err
    assert versions(new) == {"acme.vit": "1.0"}


def test_what_it_says_already_is_not_written_again(new: Path) -> None:
    ckptmigrate.stamp(new, {"acme.vit": "1.0"})
    before = new.stat()
    done = ckptmigrate.stamp(new, {"acme.vit": "1.0"})

    assert (done.files, done.reasons) == ((), ("it says so already",))
    assert new.stat().st_mtime_ns == before.st_mtime_ns


def test_a_further_chain_is_added_inside_and_beside(model: Path, old: Path) -> None:
    for path in (model, old):
        ckptmigrate.stamp(path, {"acme.vit": "1.0"})
        ckptmigrate.stamp(path, {"acme.head": "3.0"})

        assert versions(path) == {"acme.vit": "1.0", "acme.head": "3.0"}


def test_a_stamp_inside_and_one_beside_that_disagree_are_an_error(model: Path) -> None:
    ckptmigrate.stamp(model, {"acme.vit": "1.0"})
    raw = model.read_bytes()
    said = {"ckptmigrate": 1, "stamp": {"versions": {"acme.vit": "2.0"}}}
    of = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    model.with_name(f"{model.name}{BESIDE}").write_text(json.dumps(said | {"of": of}))

    with pytest.raises(CheckpointError, match=r"says acme\.vit 2\.0, the file's own stamp 1\.0"):
        ckptmigrate.inspect(model)


def test_marks_of_an_installed_chain_that_contradict_it_are_an_error_that_names_both(model: Path) -> None:
    with pytest.raises(VersionError, match=r"says 1\.0, and the marks of step 1\.0 .* say that it is still needed"):
        ckptmigrate.stamp(model, {"acme.right": "1.0"}, migrations=(str(HERE / "right"),))
    assert Ran("stamp", model, "acme.right=0", *RIGHT).code == 0


@pytest.mark.parametrize("said", ["acme.vit", "acme.vit=", "acme.vit=latest", "=1.0"])
def test_what_is_no_version_is_wrong_usage(new: Path, said: str) -> None:
    assert Ran("stamp", new, said).code == 2


def test_nothing_to_stamp_is_wrong_usage(new: Path) -> None:
    with pytest.raises(UsageError):
        ckptmigrate.stamp(new, {})


def test_a_stamped_checkpoint_needs_no_from(model: Path) -> None:
    ckptmigrate.stamp(model, {"acme.right": "0"})
    found = ckptmigrate.plan(model, migrations=(str(HERE / "right"),))[0]

    assert ("acme.right", "0", "stamp") in found.places
    assert [(step.chain, step.version) for step in found.steps] == [("acme.right", "1.0"), ("acme.right", "2.0")]


def test_our_folder_is_stamped_inside_every_file_with_a_backup_of_each(old: Path) -> None:
    folder = old.with_name("folder")
    ckptmigrate.migrate(old, folder)
    names = {path.name for path in folder.iterdir()}
    done = ckptmigrate.stamp(folder, {"acme.vit": "1.0"})

    assert done.inside
    assert versions(folder)["acme.vit"] == "1.0"
    assert {path.name for path in folder.iterdir()} == names | {f"{name}.ckptmigrate-backup" for name in names}


def test_a_current_run_is_stamped_inside_and_its_backups_are_no_files_of_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(OLD.parents[2] / "burn" / "0.13.2" / "golden" / "run-adam", run)
    before = ckptmigrate.epochs(run)
    done = ckptmigrate.stamp(run, {"acme.vit": "1.0"})

    assert done.inside
    assert ckptmigrate.epochs(run) == before
    assert versions(run)["acme.vit"] == "1.0"


def test_a_whole_folder_is_measured_by_the_names_and_bytes_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "f" / "a").mkdir(parents=True)
    found = []
    for name, content in (("x", b"1"), ("x", b"2"), ("a/y", b"2"), ("a/y.ckptmigrate.json", b"no part")):
        (tmp_path / "f" / name).write_bytes(content)
        with Disk() as disk:
            found.append(measured(disk.open(tmp_path / "f")))

    assert [size for size, _ in found] == [1, 1, 2, 2]
    assert len({digest for _, digest in found}) == 3
