"""Output is whole or absent under its name, at whichever file event the process dies."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ckptmigrate.files.out import SMALL
from ckptmigrate.limits import KiB

from .draws import DATA

if TYPE_CHECKING:
    from pathlib import Path


CRASH = """
import itertools, json, os, shutil, sys
from pathlib import Path
from ckptmigrate.files import Disk, Range
from ckptmigrate.files.sink import Sink

class Whole:
    itemsize = 1
    def __init__(self, range, streamed): self.range, self.streamed, self.nbytes, self.window = range, streamed, range.nbytes, 1 << 16
    def sources(self): yield self.range
    def plain(self): return None if self.streamed else self.range
    def read(self, start, stop): return memoryview(self.range.read(start, stop - start))

EVENTS = ["open", "copy_file_range", "pwrite", "fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir", "chmod", "close"]
base, folder, existing, backup = Path(sys.argv[1]), *(value == "1" for value in sys.argv[2:])
names = ["model", "optim", "state.json"] if folder else [""]
place = base / "run"

def convert():
    with Disk() as disk, Sink(place / "out", folder=folder, force=existing) as sink:
        for name in names:
            source = disk.open(base / "in")
            out = sink.open(name, crc=True)
            out.write(b"new ")
            out.put(Whole(source.range(0, source.size), streamed=False))
            out.put(Whole(source.range(0, source.size), streamed=True))
        sink.publish(last="state.json" if folder else None, backup=backup)

def die_at(name, count, seen):  # of one kind: two threads make them, and of all kinds together none has a number of its own
    real = getattr(os, name)
    def call(*args, **options):
        count[0] -= 1
        if count[0] < 0:
            os.write(seen, name.encode())
            os._exit(9)
        return real(*args, **options)
    setattr(os, name, call)

def died(name, number):
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if existing:
        for each in names:
            path = place / "out" / each if folder else place / "out"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"old")
    reading, seen = os.pipe()
    child = os.fork()
    if not child:
        die_at(name, [number], seen)
        convert()
        os._exit(0)
    os.close(seen)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    event = os.read(reading, 100).decode()
    os.close(reading)
    files = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    whole = b"new " + 2 * (base / "in").read_bytes()
    say = lambda data: "old" if data == b"old" else "new" if data == whole else "torn"
    return [status, event, {name: say(data) for name, data in files.items()}]

results = []
for name in EVENTS:
    for number in itertools.count():
        last = died(name, number)
        if last[0] == 0:
            break
        results.append(last)
        if last[0] != 9:
            break
results.append(last)
print(json.dumps(results))
"""


def deaths(tmp_path: Path, *, folder: bool, existing: bool, backup: bool) -> list[dict[str, str]]:
    """What stands after dying at each file event: name -> "old", "new" (whole) or "torn"; leftovers are taken out."""
    data = DATA[: SMALL + 10 * KiB]
    (tmp_path / "in").write_bytes(data)
    flags = [str(int(flag)) for flag in (folder, existing, backup)]
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "in").read_bytes() == data
    results = json.loads(done.stdout)
    assert results[-1][0] == 0
    assert len(results) > 12
    assert {"fsync", "copy_file_range", "pwrite"} <= {event for _, event, _ in results}
    return [
        {name: what for name, what in files.items() if not name.startswith(".out.ckptmigrate-")}
        for _, _, files in results
    ]


def test_death_at_any_event_leaves_no_new_file_or_the_whole(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=False, backup=False)

    assert all(state in ({}, {"out": "new"}) for state in states)
    assert states[-1] == {"out": "new"}


def test_death_at_any_event_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=True, backup=False)

    assert all(state in ({"out": "old"}, {"out": "new"}) for state in states)
    assert states[-1] == {"out": "new"}


def test_death_at_any_event_in_place_leaves_the_old_file_under_one_of_its_names(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=False, existing=True, backup=True)
    kept = {"out.ckptmigrate-backup": "old"}

    assert all(state in ({"out": "old"}, {"out": "old", **kept}, {"out": "new", **kept}) for state in states)
    assert states[-1] == {"out": "new", **kept}


def test_death_at_any_event_leaves_no_new_folder_or_the_whole(tmp_path: Path) -> None:
    states = deaths(tmp_path, folder=True, existing=False, backup=False)
    whole = {f"out/{name}": "new" for name in ("model", "optim", "state.json")}

    assert all(state in ({}, whole) for state in states)
    assert states[-1] == whole


@pytest.mark.parametrize("backup", [True, False])
def test_death_between_the_renames_of_a_set_never_leaves_a_mixture_that_looks_whole(
    tmp_path: Path, backup: bool
) -> None:
    states = deaths(tmp_path, folder=True, existing=True, backup=backup)
    names = [f"out/{name}" for name in ("model", "optim", "state.json")]

    for state in states:
        assert "torn" not in state.values()
        if "out/state.json" in state:
            assert len({state.get(name) for name in names}) == 1
        if backup:
            assert all("old" in (state.get(name), state.get(f"{name}.ckptmigrate-backup")) for name in names)
    assert all(states[-1][name] == "new" for name in names)
    assert any("out/state.json" not in state for state in states)
