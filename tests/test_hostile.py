"""A folder of small evil files against the command line, each in a process of its own.

"Refused, quickly, in little memory, nothing executed": exit status 3, one message that names the file, no traceback, nothing
written, no marker file, under five seconds and 200 MB above what `inspect` of a tiny good file takes.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import torch

from .evil_files import evil, evil_pickles, hand_zip, patched, saved

ROOT = Path(__file__).parent.parent
MUSEUM = ROOT / "tests" / "fixtures" / "torch"
KINDS = (MUSEUM / "1.0.0-py36" / "checkpoint.pt", MUSEUM / "2.13.0-py311" / "checkpoint.pt")
SECONDS, MEGABYTES = 5.0, 200.0

# The batch: imports once, then forks per command line, so that each has the peak memory of a process of its own.
BATCH = """
import contextlib, gc, io, json, os, signal, sys, tempfile
sys.path.insert(0, sys.argv[1])
from ckptmigrate import cli

for good in sys.argv[2:]:  # imports whatever a command line imports
    sys.argv = ["ckptmigrate", "migrate", good, good + "-out.pt", "--dry-run"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        cli.main()
gc.freeze()
for line in sys.stdin:
    arguments = json.loads(line)
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = os.fork()
    if not child:
        signal.alarm(20)  # far beyond what is allowed, so that nothing hangs
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["ckptmigrate", *arguments]
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        code = 70
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status, used = os.wait4(child, 0)
    out.seek(0), err.seek(0)
    print(json.dumps({
        "code": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1000,
        "out": out.read().decode(), "err": err.read().decode(),
    }), flush=True)
"""


class Ran(NamedTuple):
    code: int
    seconds: float  # of computing: the machine may be busy with other tests
    megabytes: float
    out: str
    err: str


def run(commands: list[list[str]], cwd: Path) -> list[Ran]:
    """Run command lines, each in a process of its own; give what each did and took."""
    lines = "".join(json.dumps(command) + "\n" for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", BATCH, str(ROOT), *map(str, KINDS)],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    return [Ran(**json.loads(line)) for line in done.stdout.splitlines()]


def migrate_all(
    folder: Path, files: dict[str, bytes], suffix: str, *options: str
) -> dict[str, tuple[Ran, bytes | None]]:
    """Convert every file, and check what holds for each whatever becomes of it; give the run and the output, if there is one."""
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    good = folder / "good.pt"
    torch.save({"w": torch.ones(2)}, good)
    names = list(files)
    for number, name in enumerate(names):
        (folder / "in" / f"{number}.pt").write_bytes(files[name])
    commands = [["migrate", f"in/{number}.pt", f"out/{number}{suffix}", *options] for number in range(len(names))]
    tiny, *ran = run([["inspect", "good.pt"], *commands], folder)
    assert tiny.code == 0, tiny.err
    results = {}
    for number, (name, one) in enumerate(zip(names, ran, strict=True)):
        assert "Traceback" not in one.err, f"{name}: {one.err}"
        assert one.code in {0, 3}, f"{name}: exit {one.code}: {one.err}"
        assert one.seconds < SECONDS, f"{name}: {one.seconds:.1f} s: {one.err}"
        assert one.megabytes - tiny.megabytes < MEGABYTES, f"{name}: {one.megabytes - tiny.megabytes:.0f} MB: {one.err}"
        out = folder / "out" / f"{number}{suffix}"
        assert out.is_file() is (one.code == 0), name
        if one.code == 3:
            messages = [line for line in one.err.splitlines() if line.startswith("ckptmigrate: ")]
            assert len(messages) == 1, f"{name}: {one.err}"
            assert f"in/{number}.pt" in messages[0], f"{name}: {one.err}"
            assert len(one.err) < 4000, f"{name}: {len(one.err)} characters"
            assert one.out == ""
        assert (folder / "in" / f"{number}.pt").read_bytes() == files[name], name
        results[name] = (one, out.read_bytes() if out.is_file() else None)
    assert sorted(p.name for p in folder.iterdir()) == ["good.pt", "in", "out"], "something was written elsewhere"
    written = {f"{n}{suffix}" for n, (_, data) in enumerate(results.values()) if data is not None}
    assert {p.name for p in (folder / "out").iterdir()} == written
    return results


HARMLESS = {  # torch reads them too, and what they hold is whole
    "zip: a zip within a zip within a comment",
    "legacy: bytes behind the last storage",
}


def test_every_evil_file_is_refused_quickly_in_little_memory_and_nothing_runs(tmp_path: Path) -> None:
    results = migrate_all(tmp_path, evil(), ".safetensors")

    assert {name: one.out for name, (one, _) in results.items() if one.code == 0 and name not in HARMLESS} == {}


def test_with_every_permission_given_an_evil_file_does_no_more_harm(tmp_path: Path) -> None:
    pickles = {f"zip: {what}": hand_zip(pickled) for what, pickled in evil_pickles() if len(pickled) < 1_000_000}
    migrate_all(tmp_path, pickles, ".pt", "--inert-calls", "--densify", "--dequantize", "--no-verify")


# ---------------------------------------------------------------- cuts and flipped bits


def floats(nbytes: int) -> bytes:
    """Give the bytes of floats that occur nowhere else."""
    return b"".join(struct.pack("<f", nbytes + i / 7) for i in range(nbytes // 4))


def kinds() -> dict[str, bytes]:
    """Give a good file of each kind, larger than 4 kB, by the real frameworks: two tensors, a view, a short one."""
    w, v, b = (torch.frombuffer(bytearray(floats(n)), dtype=torch.float32) for n in (4800, 2400, 24))
    value = {"w": w.view(40, 30), "v": v.view(30, 20).t(), "b": b}
    flat = {**value, "v": v.view(30, 20)}
    return {"zip": saved(value), "legacy": saved(value, legacy=True), "safetensors": safetensors.torch.save(flat)}


def boundaries(data: bytes) -> list[int]:
    """Give the places above 4 kB where a structure begins: found by its signature, or by where the tensors lie."""
    marks = (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\x08")
    found = [match.start() for mark in marks for match in re.finditer(re.escape(mark), data)]
    found += [len(data) - 24, len(data) - 8, len(data) - 24 - 2400, len(data) - 24 - 2400 - 4800, 4096, len(data) // 2]
    return sorted({at + by for at in found for by in (-1, 0, 1) if 4096 <= at + by < len(data)} | {len(data) - 1})


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_file_cut_at_a_structural_boundary_is_refused(tmp_path: Path, kind: str) -> None:
    data = kinds()[kind]
    assert len(data) > 4096
    cuts = {f"{kind} cut to {length} of {len(data)}": data[:length] for length in boundaries(data)}
    results = migrate_all(tmp_path, cuts, ".safetensors")

    assert [name for name, (one, _) in results.items() if one.code == 0] == []
    assert all(re.search(r"truncat|cut|has to end|ends", one.err) for one, _ in results.values())


def flips(data: bytes) -> dict[str, bytes]:
    """Flip one bit in each of some 90 bytes: before the first tensor, between tensors, behind the last, and a few within."""
    tensors = [(at, at + n) for n in (4800, 2400, 24) for at in [data.rfind(floats(n))] if at >= 0]
    outside = [at for at in range(len(data)) if not any(start <= at < stop for start, stop in tensors)]
    places = {*outside[:: max(1, len(outside) // 90)], *(start + 2 for start, _ in tensors)}
    return {f"bit {at % 8} of byte {at}": patched(data, at, bytes([data[at] ^ 1 << at % 8])) for at in sorted(places)}


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_flipped_bit_in_any_region_is_refused_or_gives_a_whole_output(tmp_path: Path, kind: str) -> None:
    data = kinds()[kind]
    results = migrate_all(tmp_path, {"whole": data} | flips(data), ".safetensors")
    (_, whole), *others = results.values()
    assert whole is not None
    assert len(others) > 80

    assert sum(one.code == 3 for one, _ in others) > 30
    for name, (one, out) in zip(list(results)[1:], others, strict=True):
        if out is not None:
            safetensors.torch.load(out)
            if kind == "zip":  # its checksums cover everything that is read
                assert out == whole, f"{name}: {one.out}"
