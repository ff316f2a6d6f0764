"""Death at every file event of a whole conversion: nothing or the whole output, the source as it was, a backup that is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptmigrate

from .sabotaged import Target, every_target, make


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


DYING = """
import itertools, json, os, shutil, sys
from pathlib import Path
import ckptmigrate

EVENTS = ["open", "copy_file_range", "pwrite", "fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir", "chmod"]
base, made, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
source, out = options.pop("source"), options.pop("out")
options = {name: tuple(map(tuple, value)) if name == "rename" else value for name, value in options.items()}
copy = shutil.copytree if (made / source).is_dir() else shutil.copy

def die_at(name, count, seen):  # of one kind: two threads make them, and of all kinds together none has a number of its own
    real = getattr(os, name)
    def call(*arguments, **named):
        count[0] -= 1
        if count[0] < 0:
            os.write(seen, name.encode())
            os._exit(9)
        return real(*arguments, **named)
    setattr(os, name, call)

def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

place = base / "run"

def prepared():
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    copy(made / source, place / source)
    return files(place)

def died(name, number):
    old = prepared()
    reading, seen = os.pipe()
    child = os.fork()
    if not child:
        die_at(name, [number], seen)
        ckptmigrate.migrate(place / source, out and place / out, **options)
        os._exit(0)
    os.close(seen)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    event = os.read(reading, 100).decode()
    os.close(reading)
    return status, event, old, {name: data for name, data in files(place).items() if not name.startswith(".")}

prepared()
ckptmigrate.migrate(place / source, out and place / out, **options)  # once in this process, so that no child has to import anything
states = []
for name in EVENTS:
    for number in itertools.count():
        last = died(name, number)
        if last[0] == 0:
            break
        states.append(last)
        if last[0] != 9:
            break
states.append(last)
new = states[-1][3]
say = lambda name, data, old: "old" if data == old.get(name.replace(".ckptmigrate-backup", "")) else "new" if data == new[name] else "torn"
print(json.dumps([[status, event, {name: say(name, data, old) for name, data in found.items()}] for status, event, old, found in states]))
"""


def deaths(made: Path, tmp_path: Path, **options: Any) -> list[dict[str, str]]:
    """Give what stands after dying at each file event of a conversion: file -> "old", "new" or "torn"; the last went through."""
    arguments = [sys.executable, "-c", DYING, str(tmp_path), str(made), json.dumps({"out": None, **options})]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=Path(ckptmigrate.__file__).parent.parent
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results[-1][0] == 0, done.stderr
    assert all(status == 9 for status, _, _ in results[:-1]), done.stderr
    assert {"open", "copy_file_range", "pwrite", "fsync"} <= {event for _, event, _ in results}
    return [state for _, _, state in results]


@every_target
@pytest.mark.parametrize("verify", [True, False])
def test_death_at_any_file_event_leaves_nothing_or_the_whole_output_and_the_source(
    made: Path, tmp_path: Path, target: Target, verify: bool
) -> None:
    states = deaths(made, tmp_path, source=target.source, out=target.out, verify=verify)
    source = {target.source: "old"}

    assert len(states) > 10
    assert all(state in (source, states[-1]) for state in states)
    assert set(states[-1].values()) == {"old", "new"}


def test_death_at_any_file_event_in_place_leaves_the_old_file_or_the_new_and_a_whole_backup(
    made: Path, tmp_path: Path
) -> None:
    states = deaths(made, tmp_path, source="training.pt", in_place=True, rename=[["first.weight", "front.weight"]])
    kept = {"training.pt.ckptmigrate-backup": "old"}

    assert all(
        state in ({"training.pt": "old"}, {"training.pt": "old"} | kept, {"training.pt": "new"} | kept)
        for state in states
    )
    assert states[-1] == {"training.pt": "new"} | kept


def test_death_at_any_file_event_in_place_never_leaves_a_folder_that_mixes_old_and_new_and_looks_whole(
    made: Path, tmp_path: Path
) -> None:
    ckptmigrate.migrate(made / "training.pt", tmp_path / "training")
    states = deaths(tmp_path, tmp_path, source="training", in_place=True, rename=[["first.weight", "front.weight"]])
    last = "training/training_state.json"
    names = [name for name in states[-1] if not name.endswith("-backup")]
    assert len(names) == 3

    for state in states:
        assert "torn" not in state.values()
        if last in state:
            assert len({state.get(name) for name in names if name != "training/optimizer.safetensors"}) == 1
        assert all("old" in (state.get(name), state.get(f"{name}.ckptmigrate-backup")) for name in names)
    assert any(last not in state for state in states)
