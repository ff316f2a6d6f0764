"""A 2.7 GB torch zip to safetensors, beside what a user would run instead; prints ratios of one run.

    python benchmarks/big_zip.py [FOLDER] [--rounds 5] [--gigabytes 2.7]

Each round runs every contender once, in turn, as a process of its own: wall time from start to exit, the disk synced, and the
peak resident memory the kernel reports. The rows that end in "the call" time ``ckptmigrate.migrate`` inside its process: the
same work without the start of Python and the command line. The source is read once before, so that all contenders meet the same
page cache, and bytecode is cached, as it is in an installed package.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKE = """
import sys, torch
torch.manual_seed(0)
n = int(float(sys.argv[2]) * 1e9 / 4 / 90)
torch.save({f"layers.{i}.weight": torch.randn(n // 1024, 1024) for i in range(90)}, sys.argv[1])
"""

TORCH = """
import sys, torch
from safetensors.torch import save_file
save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])
"""


CALL = """
import os, sys, time, ckptmigrate
start = time.monotonic()
ckptmigrate.migrate(sys.argv[1], sys.argv[2], verify=sys.argv[3] == "verify")
os.sync()
print(time.monotonic() - start)
"""


def contenders(source: Path, out: Path) -> dict[str, list[str]]:
    ours = [sys.executable, "-m", "ckptmigrate", "migrate", str(source), str(out)]
    return {
        "cp": ["cp", "--reflink=never", str(source), str(out)],
        "ckptmigrate": ours,
        "ckptmigrate --no-verify": [*ours, "--no-verify"],
        "verified, the call": [sys.executable, "-c", CALL, str(source), str(out), "verify"],
        "unverified, the call": [sys.executable, "-c", CALL, str(source), str(out), "no"],
        "torch.load + save_file": [sys.executable, "-c", TORCH, str(source), str(out)],
    }


def run(command: list[str]) -> tuple[float, int]:
    """Give wall seconds, the disk synced, and peak resident memory in MB."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        os.sync()
        took = time.monotonic() - start
        if status:
            raise SystemExit(f"failed: {command}")
        said.seek(0)
        if CALL in command:
            took = float(said.read())
    return took, usage.ru_maxrss // 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.7)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    try:
        source, out = folder / "in.pt", folder / "out.safetensors"
        subprocess.run([sys.executable, "-c", MAKE, str(source), str(asked.gigabytes)], check=True)
        subprocess.run(
            ["cat", str(source)], check=True, stdout=subprocess.DEVNULL
        )  # not here: a child reports its parent's peak
        os.sync()
        times: dict[str, list[float]] = {}
        memory: dict[str, int] = {}
        for _ in range(asked.rounds):
            for name, command in contenders(source, out).items():
                out.unlink(missing_ok=True)
                os.sync()
                took, peak = run(command)
                times.setdefault(name, []).append(took)
                memory[name] = max(memory.get(name, 0), peak)
        base = statistics.median(times["cp"])
        print(
            f"| {source.stat().st_size / 1e9:.1f} GB zip | median s | ratio to cp + sync | peak RSS MB |\n|---|---|---|---|"
        )
        for name, taken in times.items():
            ratio = statistics.median(t / c for t, c in zip(taken, times["cp"], strict=True))
            print(f"| {name} | {statistics.median(taken):.2f} | {ratio:.2f} | {memory[name]} |")
        print(f"\ncp + sync, median: {base:.2f} s; {asked.rounds} rounds; ratios are medians of round-by-round ratios")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
