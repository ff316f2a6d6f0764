"""Publishing: the output is whole or absent under its name, and nothing that stood there is lost."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckptmigrate.errors import ExistsError, OutputError, SpaceError
from ckptmigrate.files import Disk, Source
from ckptmigrate.files.sink import Sink, free_space
from ckptmigrate.limits import MiB

from .draws import DATA, Bytes, convert, listing, make_target, open_data, promise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.files.out import Out


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    with open_data(tmp_path) as source:
        yield source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target(tmp_path)


def put(sink: Sink, source: Source, *names: str) -> list[Out]:
    outs = [sink.open(name) for name in names]
    for i, out in enumerate(outs):
        out.put(Bytes(source.range(i, 1000)))
    return outs


def test_leaving_without_publishing_leaves_nothing(source: Source, target: Path) -> None:
    for folder in (False, True):
        with Sink(target, folder=folder) as sink:
            put(sink, source, "a")
            sink.finish()
            assert sink.path.exists()
        assert list(target.parent.iterdir()) == []


@dataclass(frozen=True)
class Interrupting(Bytes):
    """A promise in the middle of which somebody presses Ctrl-C."""

    def read(self, start: int, stop: int) -> memoryview:
        if start:
            raise KeyboardInterrupt
        return super().read(start, stop)


@pytest.mark.parametrize("folder", [True, False])
def test_an_interruption_in_the_middle_of_a_put_leaves_nothing_and_no_thread(
    source: Source, target: Path, folder: bool
) -> None:
    def interrupted() -> None:
        with Sink(target, folder=folder) as sink:
            out = sink.open("a")
            out.put(Bytes(source.range(0, 4 * MiB)))
            assert [t.name for t in threading.enumerate() if "ckptmigrate" in t.name] == ["ckptmigrate-compare"]
            out.put(Interrupting(source.range(0, 4 * MiB), streamed=MiB))

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(target.parent.iterdir()) == []
    assert not [t for t in threading.enumerate() if "ckptmigrate" in t.name]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_second_interruption_while_the_thread_ends_leaves_nothing_either(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        with Sink(target, folder=False) as sink:
            put(sink, source, "")
            end = sink._background.close

            def impatient() -> None:
                end()
                raise KeyboardInterrupt

            monkeypatch.setattr(sink._background, "close", impatient)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("linked", ["model", "checkpoint"])
def test_nothing_is_written_through_or_over_a_link_in_a_folder(source: Source, target: Path, linked: str) -> None:
    """A snapshot of a model hub is a folder of links: output beside or in place of them would be lost on both."""
    blobs = target.parent / "blobs"
    blobs.mkdir()
    (blobs / "model").write_bytes(b"old")
    target.mkdir()
    (target / linked).symlink_to("../blobs/model" if linked == "model" else "../blobs")
    with Sink(target, folder=True, force=True) as sink, pytest.raises(OutputError, match="a symlink") as caught:
        put(sink, source, "model" if linked == "model" else "checkpoint/model")

    assert caught.value.path == str(target / linked)
    assert (blobs / "model").read_bytes() == b"old"
    assert sorted(p.name for p in target.parent.iterdir()) == ["blobs", "out.bin"]
    assert [p.name for p in target.iterdir()] == [linked]


def test_the_scratch_lies_beside_the_target_hidden_and_is_in_no_listing(source: Source, target: Path) -> None:
    with Sink(target, folder=False) as sink, Disk() as disk:
        put(sink, source, "")
        sink.finish()

        assert sink.path.parent == target.parent
        assert sink.path.name.startswith(".out.bin.ckptmigrate-")
        assert disk.open(target.parent).children() == []
        assert disk.open(sink.path).read(0, 1000) == DATA[:1000]


def test_a_name_as_long_as_names_may_be_still_works(source: Source, tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        sink.publish()

    assert target.read_bytes() == DATA[:1000]


@pytest.mark.parametrize("folder", [True, False])
def test_what_exists_is_refused_before_any_work(source: Source, target: Path, folder: bool) -> None:
    target.mkdir() if folder else target.write_bytes(b"old")

    with pytest.raises(ExistsError) as caught:
        Sink(target, folder=folder)
    assert "--force" in caught.value.hints[0]
    assert len(list(target.parent.iterdir())) == 1


@pytest.mark.parametrize("folder", [True, False])
def test_what_appears_meanwhile_is_not_overwritten(source: Source, target: Path, folder: bool) -> None:
    with Sink(target, folder=folder) as sink:
        put(sink, source, "a")
        theirs = target / "theirs" if folder else target
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_bytes(b"theirs")

        with pytest.raises(ExistsError):
            sink.publish()

    assert theirs.read_bytes() == b"theirs"
    assert len(listing(target.parent)) == 1


def test_a_file_that_appears_in_the_very_moment_is_not_overwritten(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        check = sink._check_target

        def then_appear() -> None:
            check()
            target.write_bytes(b"theirs")

        monkeypatch.setattr(sink, "_check_target", then_appear)
        with pytest.raises(ExistsError, match="meanwhile"):
            sink.publish()

    assert target.read_bytes() == b"theirs"
    assert listing(target.parent) == ["out.bin"]


def test_a_file_and_a_folder_do_not_replace_each_other(target: Path) -> None:
    target.mkdir()
    with pytest.raises(ExistsError, match="no file"):
        Sink(target, folder=False, force=True)
    target.rmdir()
    target.write_bytes(b"old")
    with pytest.raises(ExistsError, match="no folder"):
        Sink(target, folder=True, force=True)


@pytest.mark.parametrize("name", ["the same", "a hard link", "a file in the folder"])
def test_what_is_being_read_is_not_replaced_even_by_force(tmp_path: Path, name: str) -> None:
    folder = name == "a file in the folder"
    original, target = tmp_path / "out" / "model", tmp_path / "out" if folder else tmp_path / "out" / "model"
    original.parent.mkdir()
    original.write_bytes(DATA[:1000])
    if name == "a hard link":
        target = tmp_path / "other"
        os.link(original, target)
    with Disk() as disk:
        disk.open(original)
        with pytest.raises(ExistsError, match="is what is being read") as caught:
            Sink(target, folder=folder, force=True, original=disk.reads).open("model" if folder else "")
        (tmp_path / "third").write_bytes(b"old")
        Sink(tmp_path / "third", folder=False, force=True, original=disk.reads)

    assert "--in-place" in caught.value.hints[0]
    assert original.read_bytes() == DATA[:1000]


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symlink_is_never_replaced(target: Path, dangling: bool) -> None:
    if not dangling:
        (target.parent / "real").write_bytes(b"real")
    target.symlink_to("real")

    with pytest.raises(OutputError, match="symlink") as caught:
        Sink(target, folder=False, force=True)
    assert str(target.parent / "real") in caught.value.hints[0]


def test_a_missing_parent_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist") as caught:
        Sink(tmp_path / "a" / "b", folder=False)
    assert f"mkdir -p {tmp_path / 'a'}" in caught.value.hints[0]


def test_force_replaces_a_file_and_keeps_its_mode(source: Source, target: Path) -> None:
    target.write_bytes(b"old")
    target.chmod(0o640)
    with Sink(target, folder=False, force=True) as sink:
        put(sink, source, "")
        assert target.read_bytes() == b"old"
        assert sink.publish() is None

    assert target.read_bytes() == DATA[:1000]
    assert target.stat().st_mode & 0o777 == 0o640
    assert listing(target.parent) == ["out.bin"]


def test_a_new_file_has_the_mode_that_the_umask_gives(source: Source, target: Path) -> None:
    old = os.umask(0o027)
    try:
        with Sink(target, folder=False) as sink:
            put(sink, source, "")
            sink.publish()
    finally:
        os.umask(old)

    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("links", [True, False])
def test_backups_are_numbered_and_never_overwritten(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def unable(*_: object) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", unable)
    kept = []
    for i in range(3):
        target.write_bytes(b"old %d" % i)
        with Sink(target, folder=False, force=True) as sink:
            put(sink, source, "")
            kept.append(sink.publish(backup=True))

    assert [path and path.name for path in kept] == [f"out.bin{n}.ckptmigrate-backup" for n in ("", ".1", ".2")]
    assert [path and path.read_bytes() for path in kept] == [b"old 0", b"old 1", b"old 2"]
    assert target.read_bytes() == DATA[:1000]


def test_a_file_system_without_links_still_gets_the_file(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", unable)
    with Sink(target, folder=False) as sink:
        put(sink, source, "")
        sink.publish()

    assert listing(target.parent) == ["out.bin"]


def test_a_new_folder_appears_whole(source: Source, target: Path) -> None:
    with Sink(target, folder=True) as sink:
        put(sink, source, "model", "checkpoint/optim", "state.json")
        assert set(sink.outs) == {"model", "checkpoint/optim", "state.json"}
        assert not target.exists()
        sink.publish(last="state.json")

    assert listing(target.parent) == ["out.bin/checkpoint/optim", "out.bin/model", "out.bin/state.json"]


@pytest.mark.parametrize("backup", [True, False])
def test_into_a_folder_that_is_there_files_go_and_others_stay(source: Source, target: Path, backup: bool) -> None:
    target.mkdir()
    for name in ("model", "state.json", "theirs"):
        (target / name).write_bytes(b"old")
    with Sink(target, folder=True, force=True) as sink:
        put(sink, source, "state.json", "model", "checkpoint/optim")
        sink.publish(last="state.json", backup=backup)

    extra = ["model.ckptmigrate-backup", "state.json.ckptmigrate-backup"] if backup else []
    assert listing(target) == sorted(["checkpoint/optim", "model", "state.json", "theirs", *extra])
    assert (target / "model").read_bytes() == DATA[1:1001]
    assert (target / "theirs").read_bytes() == b"old"
    assert all((target / name).read_bytes() == b"old" for name in extra)
    assert [path.name for path in target.parent.iterdir()] == ["out.bin"]


@pytest.mark.parametrize("name", ["", "..", "../x", "/x", "a//b", "a/../b", "a\0b"])
def test_a_file_within_a_folder_has_a_plain_name(target: Path, name: str) -> None:
    with Sink(target, folder=True) as sink, pytest.raises(OutputError, match="no name"):
        sink.open(name)


def test_one_file_is_opened_once(target: Path) -> None:
    with Sink(target, folder=False) as sink:
        sink.open("a")
        with pytest.raises(OutputError, match="twice"):
            sink.open("b")


@pytest.mark.parametrize(("call", "kind"), [("copy_file_range", "copied"), ("pwrite", "small"), ("fsync", "small")])
def test_a_full_disk_is_said_and_leaves_nothing(
    source: Source, target: Path, monkeypatch: pytest.MonkeyPatch, call: str, kind: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(SpaceError) as caught:
        convert(target, promise(source, kind))

    assert caught.value.path == str(target)
    assert listing(target.parent) == []


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    assert free_space(tmp_path / "not" / "there" / "yet") > 0
    assert abs(free_space(tmp_path) - os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize) < 4096 * MiB
