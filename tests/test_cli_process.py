"""The command line as a process among others: terminals, pipes, signals, and what a file's own words may do to a screen."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
BARE = ROOT / "tests" / "fixtures" / "torch" / "1.6.0-py38" / "state_dict.pt"
TENSORS, EACH = 40, 8 << 20


def start(*arguments: str | Path, stderr: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ckptmigrate", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Give a safetensors file of 320 MiB that is one hole."""
    header: dict[str, Any] = {
        f"w{i:02}": {"dtype": "F32", "shape": [EACH // 4], "data_offsets": [i * EACH, (i + 1) * EACH]}
        for i in range(TENSORS)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + TENSORS * EACH)
    return path


def test_long_work_shows_its_rate_and_the_time_left_on_a_terminal(large: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    running = start("migrate", large, tmp_path / "out.safetensors", stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert running.stdout is not None
    out = running.stdout.read().decode()
    running.stdout.close()

    assert running.wait() == 0
    assert re.search(rb"335\.5 [MG]B", shown)
    assert re.search(rb"[kMG]?B/s", shown)
    assert re.search(rb"\d:\d\d:\d\d", shown)
    assert out.startswith("wrote ")


def test_no_bar_goes_where_no_terminal_is(large: Path, tmp_path: Path) -> None:
    _, err = start("migrate", large, tmp_path / "out.safetensors").communicate()

    assert err == b""


@pytest.mark.parametrize(("sent", "code", "said"), [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 0)])
def test_a_signal_in_the_middle_of_the_work_leaves_nothing(
    large: Path, tmp_path: Path, sent: signal.Signals, code: int, said: int
) -> None:
    running = start("migrate", large, tmp_path / "out.safetensors")
    until = time.monotonic() + 30
    while not list(tmp_path.glob(".out*")) and running.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    running.send_signal(sent)
    out, err = running.communicate()

    assert running.returncode == code, err
    assert out == b""
    assert err.decode().splitlines() == ["ckptmigrate: interrupted; nothing half-written is left"] * said
    assert list(tmp_path.iterdir()) == [large]


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    torch.save({f"w{i}": torch.zeros(1) for i in range(4000)}, tmp_path / "many.pt")
    running = start("inspect", tmp_path / "many.pt")
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.readline()
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    running.wait()

    assert err == b""


def test_what_a_file_calls_its_tensors_cannot_move_the_cursor(tmp_path: Path) -> None:
    evil = "w\x1b[2J\r\x07\u202e\nfaked: a line"
    torch.save(
        {evil: torch.ones(2), "x": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)}, tmp_path / "a.pt"
    )
    torch.save({evil: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.quint8)}, tmp_path / "b.pt")
    out, _ = start("inspect", tmp_path / "a.pt", "--dequantize").communicate()
    _, err = start("inspect", tmp_path / "b.pt").communicate()

    for shown in (out, err):
        assert rb"w\x1b[2J" in shown
        assert b"\nfaked" not in shown
        assert not {b"\x1b", b"\r", b"\x07", "\u202e".encode()} & {
            shown[i : i + n] for i in range(len(shown)) for n in (1, 3)
        }


def test_a_name_that_the_terminal_has_no_letters_for_is_spelled(tmp_path: Path) -> None:
    torch.save({"重み": torch.ones(2)}, tmp_path / "a.pt")
    shown = subprocess.run(
        [sys.executable, "-m", "ckptmigrate", "inspect", str(tmp_path / "a.pt")],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    ).stdout

    assert rb"\u91cd\u307f" in shown


def test_starting_imports_nothing_that_the_call_does_not_need() -> None:
    code = (
        "import sys; sys.argv = ['ckptmigrate', 'inspect', sys.argv[1]]\n"
        "from ckptmigrate import cli\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(BARE)], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    modules = set(shown.splitlines()[-1].split())

    assert "ckptmigrate.formats.torch_zip" in modules
    assert not {"torch", "numpy", "ml_dtypes", "hypothesis", "safetensors", "rich.progress"} & modules
