"""Sabotage from end to end: whatever goes wrong between source and target is caught, or leaves nothing under the final name."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckptmigrate
from ckptmigrate import convert, store
from ckptmigrate.errors import ChangedError, OutputError, SpaceError, VerificationError
from ckptmigrate.files import Late

from .sabotaged import LARGE, TARGETS, Target, every_target, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.format import Blueprint, Parts

CHAINS = Path(__file__).parent / "chains" / "right"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


class Room:
    """A folder with a copy of the source, and what a conversion that fails must leave: the source, as it was."""

    def __init__(self, made: Path, folder: Path) -> None:
        self.made, self.folder = made, folder

    def migrate(self, target: Target, progress: Callable[[int, int], None] | None = None, **options: Any) -> None:
        shutil.copy(self.made / target.source, self.folder)
        convert.migrate(self.folder / target.source, self.folder / target.out, convert.Options(**options), progress)

    def holds_only_the_source(self, target: Target, *, changed: bool = False) -> bool:
        same = (self.folder / target.source).read_bytes() == (self.made / target.source).read_bytes()
        return [p.name for p in self.folder.iterdir()] == [target.source] and same is not changed


@pytest.fixture
def room(made: Path, tmp_path: Path) -> Room:
    return Room(made, tmp_path)


# ---------------------------------------------------------------- bytes


def flip_after(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> list[int]:
    """Flip one bit of the output right after the ``number``-th call; give the count of calls."""
    real, seen = getattr(os, call), [0]

    def flipping(*arguments: Any) -> int:
        done: int = real(*arguments)
        seen[0] += 1
        if seen[0] == number:
            descriptor, offset = (arguments[1], arguments[4]) if call == "copy_file_range" else arguments[::2]
            byte = os.pread(descriptor, 1, offset + done // 2)
            written(descriptor, bytes([byte[0] ^ 4]), offset + done // 2)
        return done

    written = os.pwrite
    monkeypatch.setattr(os, call, flipping)
    return seen


@every_target
@pytest.mark.parametrize("call", ["copy_file_range", "pwrite"])
def test_a_byte_flipped_between_draw_and_read_back_is_caught_wherever_it_lies(
    room: Room, target: Target, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = flip_after(patch, call, 0)
        room.migrate(target)
    shutil.rmtree(room.folder / target.out, ignore_errors=True)
    (room.folder / target.out).unlink(missing_ok=True)
    assert calls[0] > 0

    for number in range(1, calls[0] + 1):
        with monkeypatch.context() as patch:
            flip_after(patch, call, number)
            with pytest.raises(VerificationError) as caught:
                room.migrate(target)

        assert target.out in str(caught.value)
        assert room.holds_only_the_source(target)


@every_target
def test_without_verification_a_flipped_byte_passes_and_the_report_says_so(
    room: Room, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_after(monkeypatch, "copy_file_range", 1)
    shutil.copy(room.made / target.source, room.folder)
    report = ckptmigrate.migrate(room.folder / target.source, room.folder / target.out, verify=False)

    assert not report.verified
    assert any("--no-verify" in warning for warning in report.warnings)


# ---------------------------------------------------------------- the source


def change_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def put_another_in_its_place(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    other.replace(path)


def cut_it(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@every_target
@pytest.mark.parametrize("change", [change_a_byte, put_another_in_its_place, cut_it])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_source_that_changes_while_it_is_converted_fails_the_conversion(
    room: Room, target: Target, change: Callable[[Path], None], at_the_end: bool
) -> None:
    changed: list[bool] = []

    def progress(done: int, total: int) -> None:
        if not changed and (done == total or not at_the_end):
            change(room.folder / target.source)
            changed.append(True)

    with pytest.raises(ChangedError) as caught:
        room.migrate(target, progress)

    assert target.source in str(caught.value)
    assert changed
    assert room.holds_only_the_source(target, changed=True)


# ---------------------------------------------------------------- a writer that errs


def swap_two(blueprint: Blueprint) -> None:
    """Put two promises of one dtype and shape each at the other's place."""
    for pieces in blueprint.files.values():
        seen: dict[Any, int] = {}
        for number, (offset, piece) in enumerate(pieces):
            if isinstance(piece, bytes | Late):
                continue
            first = seen.setdefault((piece.dtype, tuple(piece.shape)), number)
            if piece.shape == LARGE and first != number:
                pieces[first], pieces[number] = (pieces[first][0], piece), (offset, pieces[first][1])
                return
    raise AssertionError("no two tensors of one shape")


@every_target
def test_two_equal_shaped_tensors_swapped_by_a_writer_are_caught(
    room: Room, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.lay_out

    def swapped(*arguments: Any) -> Blueprint:
        blueprint = real(*arguments)
        swap_two(blueprint)
        return blueprint

    monkeypatch.setattr(store, "lay_out", swapped)
    with pytest.raises(VerificationError, match="its bytes were laid at"):
        room.migrate(target)

    assert room.holds_only_the_source(target)


def edited(tensors: dict[Any, Any], how: str) -> dict[Any, Any]:
    """Give a state dict as a writer that errs would have it."""
    weight = tensors["second.weight"]
    if how == "loses a tensor":
        return type(tensors)((k, v) for k, v in tensors.items() if k != "second.weight")
    if how == "loses a tied name":
        return type(tensors)((k, v) for k, v in tensors.items() if k != "tied.weight")
    if how == "ties two that are none":
        return type(tensors)((k, weight if k == "first.weight" else v) for k, v in tensors.items())
    if how == "gives another shape":
        turned = replace(weight, promise=weight.promise.reshape((LARGE[0] // 2, LARGE[1] * 2)))
        return type(tensors)((k, turned if k == "second.weight" else v) for k, v in tensors.items())
    assert how == "gives another name"
    return type(tensors)(("third.weight" if k == "second.weight" else k, v) for k, v in tensors.items())


def sabotaged(parts: Parts, how: str) -> Parts:
    if how == "loses the stamp":
        return replace(parts, notes={k: v for k, v in parts.notes.items() if k not in {"stamp", "versions"}})
    if parts.tensors is not None:
        if "second.weight" not in parts.tensors:
            return parts
        return replace(parts, tensors=edited(parts.tensors, how))
    if not isinstance(parts.tree, dict):
        return parts
    tree = type(parts.tree)(parts.tree)
    tree["model_state_dict"] = edited(tree["model_state_dict"], how)
    return replace(parts, tree=tree)


@every_target
@pytest.mark.parametrize(
    "how",
    [
        "loses a tensor",
        "gives another name",
        "gives another shape",
        "loses a tied name",
        "ties two that are none",
        "loses the stamp",
    ],
)
def test_a_writer_that_loses_or_changes_something_is_caught(
    room: Room, target: Target, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store.lay_out

    def erring(scattered: dict[str, tuple[Any, Parts]], options: Any) -> Blueprint:
        return real({name: (form, sabotaged(parts, how)) for name, (form, parts) in scattered.items()}, options)

    monkeypatch.setattr(store, "lay_out", erring)
    with pytest.raises(VerificationError) as caught:
        room.migrate(target, said={"acme.right": "2.0"}, migrations=(str(CHAINS),))

    assert caught.value.data["differences"]
    assert room.holds_only_the_source(target)


@every_target
def test_a_tie_that_a_writer_takes_apart_is_caught(room: Room, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.lay_out

    def erring(scattered: Any, options: Any) -> Blueprint:
        return real(scattered, replace(options, ties="duplicate"))

    monkeypatch.setattr(store, "lay_out", erring)
    with pytest.raises(VerificationError, match="tied"):
        room.migrate(target)

    assert room.holds_only_the_source(target)


def test_a_writer_whose_output_its_reader_refuses_is_caught(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS["one safetensors file"]
    real = store.lay_out

    def torn(*arguments: Any) -> Blueprint:
        blueprint = real(*arguments)
        blueprint.files = {name: pieces[1:] for name, pieces in blueprint.files.items()}
        return blueprint

    monkeypatch.setattr(store, "lay_out", torn)
    with pytest.raises(VerificationError, match="does not open again"):
        room.migrate(target)

    assert room.holds_only_the_source(target)


# ---------------------------------------------------------------- a full disk


@every_target
@pytest.mark.parametrize("call", ["copy_file_range", "pwrite", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_or_fails_at_any_call_leaves_nothing(
    room: Room, target: Target, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    number = 0
    while True:
        calls = [0]

        def failing(*arguments: Any, calls: list[int] = calls, number: int = number) -> Any:
            calls[0] += 1
            if calls[0] == number + 1:
                raise OSError(code, os.strerror(code))
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            error = refused(room, target)
        if error is None:
            break
        number += 1

        assert isinstance(error, SpaceError) is (code != errno.EIO)
        assert error.path
        assert room.holds_only_the_source(target) or published(room, target)
    assert number > 0


def refused(room: Room, target: Target) -> OutputError | None:
    try:
        room.migrate(target)
    except OutputError as error:
        return error
    return None


def published(room: Room, target: Target) -> bool:
    """Say whether the whole output stands there (the last fsync, of the folder, comes after the rename); take it away."""
    out = room.folder / target.out
    if not out.exists():
        return False
    assert ckptmigrate.verify(room.folder / target.source, out) == []
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    return True
