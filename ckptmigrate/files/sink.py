"""The door to the disk, on the way out: scratch beside the target, and the renames that publish it.

OUT                              what stands there is the old file, nothing, or the whole new one
.OUT.ckptmigrate-3f9a1c7e        scratch, a file or a folder; removed unless published, a leftover only after a crash
OUT.ckptmigrate-backup           what stood there, in place only; further ones are OUT.1.ckptmigrate-backup, OUT.2.…
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from contextlib import suppress
from errno import EMLINK, ENAMETOOLONG, ENOENT, ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ckptmigrate.errors import ExistsError, OutputError
from ckptmigrate.files import LEFTOVER, SIDECAR

from .background import Background
from .out import Out, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

BACKUP = f"{LEFTOVER}backup"
LONGEST = 200  # characters of the target's name within the scratch's: file systems allow 255 bytes
NO_LINKS = {EPERM, EOPNOTSUPP, ENOTSUP, ENOSYS, EMLINK}  # FAT, some network file systems


class Sink:
    """An output being made beside its final place: one file, or a folder of files. A context manager.

    Leaving it without ``publish`` removes the scratch. ``force``: what stands at the target may be replaced; else ExistsError,
    now or when something has appeared there meanwhile; what is an ``original`` that is being read may not be replaced all the same.
    The target's parent must exist; a symlink is never replaced.
    """

    def __init__(
        self,
        target: Path | str,
        *,
        folder: bool,
        verify: bool = True,
        force: bool = False,
        original: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        self.target = _named(Path(target))
        self._is_original = original
        self.folder, self.verify, self.force = folder, verify, force
        self.outs: dict[str, Out] = {}  # by the name they were opened with
        self.backups: list[Path] = []
        self._check_target()
        self.path = self.target.with_name(f".{self.target.name[:LONGEST]}{LEFTOVER}{secrets.token_hex(4)}")
        self._background = Background()
        self._checked: set[object] = set()
        self._published = False
        if folder:
            with writing(str(self.target)):
                self.path.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._background.close()
        finally:  # a second Ctrl-C while the thread ends must not leave scratch behind
            for out in self.outs.values():
                out.abandon()
            if not self._published:
                self._remove_scratch()

    def open(self, name: str = "", *, crc: bool = False) -> Out:
        """Begin a file: ``name`` within the folder ("checkpoint/model.bin"), or the one file. ``crc``: its CRCs will be asked for."""
        if name in self.outs or (self.outs and not self.folder):
            raise OutputError(f"{name!r} is opened twice", path=str(self.target))
        path, shown = self.path, self.target
        if self.folder:
            pieces = name.split("/")
            if any(piece in {"", ".", ".."} or "\0" in piece for piece in pieces):
                raise OutputError(f"{name!r} is no name within a folder", path=str(self.target))
            path, shown = self.path.joinpath(*pieces), self.target.joinpath(*pieces)
            self._check_links(pieces)
            self._check_original(shown)
            with writing(str(shown)):
                path.parent.mkdir(parents=True, exist_ok=True)
        checked, verify = self._checked, self.verify
        out = Out(path, name=str(shown), background=self._background, checked=checked, verify=verify, crc=crc)
        self.outs[name] = out
        return out

    def finish(self) -> None:
        """Write and compare all that is outstanding and have the disk hold it; then ``path`` may be read."""
        for out in self.outs.values():
            out.close()
        self._background.settle()
        if self.folder:
            with writing(str(self.target)):
                for place, _, _ in os.walk(self.path):
                    _sync(Path(place))

    def publish(self, *, last: str | None = None, backup: bool = False) -> Path | None:
        """Rename the scratch to the target. ``last``: the file without which nobody takes the set for whole.

        A file takes its place in one rename, a new folder too. Into a folder that is there files go one by one: the old ``last``
        is taken away first and the new one comes at the end, so that no mixture is ever taken for whole.
        ``backup``: what is replaced stays under a backup's name. Gives the first backup; all are in ``backups``.
        """
        self.finish()
        with writing(str(self.target)):
            self._check_target()
            if not self.folder:
                self._place(self.path, self.target, backup=backup)
            elif self.target.is_dir():
                self._merge(last, backup=backup)
            else:
                self.path.rename(self.target)
            for place in [self.target / name for name in self.outs] if self.folder else [self.target]:
                _move_stamp(place, self.backups)
            _sync(self.target.parent)
        self._published = True
        return self.backups[0] if self.backups else None

    def _check_target(self) -> None:
        shown = str(self.target)
        if not self.target.parent.is_dir():
            parent = self.target.parent
            raise OutputError(
                f"the folder {str(parent)!r} does not exist", path=shown, hint=f"make it first: mkdir -p {parent}"
            )
        try:
            mode = self.target.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            _refuse_link(self.target)
        if not self.force:
            raise ExistsError("is there already", path=shown, hint="--force replaces it")
        if not (stat.S_ISDIR(mode) if self.folder else stat.S_ISREG(mode)):
            wanted = "folder" if self.folder else "file"
            raise ExistsError(f"is there already and no {wanted}, which the output is", path=shown)
        if not self.folder:
            self._check_original(self.target)

    def _check_original(self, place: Path) -> None:
        if self._is_original(place):
            hint = "name another OUT, or say --in-place, which keeps a backup"
            raise ExistsError("is what is being read, and would be lost", path=str(place), hint=hint)

    def _check_links(self, pieces: list[str]) -> None:
        """Refuse a name in a folder that is there which is a link, or lies behind one: nothing is written through it."""
        place = self.target
        for piece in pieces:
            place /= piece
            if place.is_symlink():
                _refuse_link(place)

    def _place(self, made: Path, target: Path, *, backup: bool) -> None:
        """Give one file its name: replacing what is there if that is allowed, and else only if nothing is there."""
        if self.force:
            with suppress(FileNotFoundError):
                made.chmod(stat.S_IMODE(target.lstat().st_mode))
                if backup:
                    self.backups.append(_keep(target))
            made.replace(target)
            return
        try:
            os.link(made, target)  # unlike a rename it fails if something has appeared there
        except FileExistsError as error:
            raise ExistsError("has appeared meanwhile", path=str(target), hint="--force replaces it") from error
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            made.rename(target)  # nothing was there a moment ago; this file system offers no more
            return
        made.unlink()

    def _merge(self, last: str | None, *, backup: bool) -> None:
        """Move the files into a folder that is there, the last one last."""
        names = sorted(self.outs, key=lambda name: name == last)
        replaced = [name for name in names if self.target.joinpath(name).exists()]
        if backup:
            self.backups += [_keep(self.target / name) for name in replaced]
            _sync_all(self.target / name for name in replaced)
        if last in replaced and len(names) > 1:
            (self.target / last).unlink()
            _sync((self.target / last).parent)
        for name in names:
            place = self.target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if name == last:
                _sync_all(self.target / other for other in names)
            self._place(self.path / name, place, backup=False)
        _sync_all(self.target / name for name in names)
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self.folder:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def _move_stamp(place: Path, backups: Iterable[Path]) -> None:
    """Take away what stamped the file that stood there: it goes with that file's backup, and would be of no other bytes."""
    beside = place.with_name(f"{place.name}{SIDECAR}")
    kept = next((backup for backup in backups if backup.parent == place.parent and _is_backup_of(backup, place)), None)
    try:
        if kept is None:
            beside.unlink()
        else:
            beside.replace(kept.with_name(f"{kept.name}{SIDECAR}"))
    except OSError as error:
        if error.errno not in {ENOENT, ENAMETOOLONG}:  # there is none, and a name as long as names may be can have none
            raise


def _is_backup_of(backup: Path, place: Path) -> bool:
    number = backup.name.removeprefix(f"{place.name}").removesuffix(BACKUP)
    return backup.name.startswith(place.name) and (number == "" or number[1:].isdecimal())


def free_space(path: Path | str) -> int:
    """Give the bytes that may still be written where ``path`` lies, or would lie."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _refuse_link(place: Path) -> NoReturn:
    real = place.resolve()
    hint = f"name the file itself: {real}; or write to another OUT"
    raise OutputError(f"a symlink, to {real}, which is not replaced", path=str(place), hint=hint)


def _named(target: Path) -> Path:
    return target if target.name not in {"", ".."} else target.resolve()


def _keep(path: Path) -> Path:
    """Give the file a second name, the first backup's name that is free; copy it where links are unknown."""
    for number in count():
        backup = path.with_name(f"{path.name}.{number}{BACKUP}" if number else f"{path.name}{BACKUP}")
        try:
            os.link(path, backup)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if backup.exists():
                continue
            _copy(path, backup)
        return backup
    raise AssertionError("count never ends")


def _copy(path: Path, backup: Path) -> None:
    with path.open("rb") as source, backup.open("xb") as made:
        shutil.copyfileobj(source, made)
        made.flush()
        os.fsync(made.fileno())
    shutil.copystat(path, backup)


def _sync_all(files: Iterable[Path]) -> None:
    for folder in {file.parent for file in files}:
        _sync(folder)


def _sync(folder: Path) -> None:
    """Have the disk hold the names in a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows keeps names by itself
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
