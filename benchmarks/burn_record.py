"""Burn's msgpack records of 1 GB to burnpack, beside cp, gzip, and msgpack.unpackb with numpy; prints ratios of one run.

    python benchmarks/burn_record.py [FOLDER] [--rounds 3] [--gigabytes 1.0] [--eras bytes ...]

Sources of one size of output: the payload era of 0.14 and later (`bytes`), the one before with f32 lists, and with f16 lists (bit
patterns as integers of one to three bytes, raised to f32); and both kinds of lists in gzip. Each contender is a process of its own,
and "the call" `ckptmigrate.migrate` timed inside one. The yardstick of a round is `cp` of the output and sync, for gzip `gzip -dc`
into a file and sync; the order of the contenders turns round with every round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from big_zip import CALL, run

if TYPE_CHECKING:
    from typing import Any, BinaryIO

TENSORS = 16
ERAS = ("bytes", "f32 list", "f16 list", "f32 list, gzip", "f16 list, gzip")
PLAIN = """
import gzip, sys, msgpack, numpy as np
opening = gzip.open if sys.argv[1].endswith(".gz") else open
item = msgpack.unpackb(opening(sys.argv[1], "rb").read(), strict_map_key=False)["item"]
for name, layer in item.items():
    param = layer["weight"]["param"]
    if "bytes" in param:
        data = np.frombuffer(param["bytes"], "<f4")
    elif isinstance(param["value"][0], float):
        data = np.array(param["value"], "<f4")
    else:
        data = np.array(param["value"], "<u2").view("<f2").astype("<f4")
    with open(sys.argv[2], "ab") as out:
        data.tofile(out)
"""


def write_record(path: Path, era: str, count: int) -> None:
    """Write what the recorder of that era lays out: the envelope by msgpack, the numbers as one list or one byte string a tensor."""
    import msgpack  # noqa: PLC0415 - only where a source is made: the process that measures stays small
    import numpy as np  # noqa: PLC0415 - same

    rng = np.random.default_rng(0)
    version, precision = (
        ("0.21.0", "f32") if era == "bytes" else ("0.13.2", "half::binary16::f16" if era == "f16 list" else "f32")
    )
    pack = msgpack.Packer().pack
    with path.open("wb") as out:
        out.write(b"\x83" + pack("metadata"))
        out.write(
            pack(
                {
                    "float": precision,
                    "int": "i32",
                    "format": "burn_core::record::file::NamedMpkFileRecorder",
                    "version": version,
                    "settings": "HalfPrecisionSettings" if precision != "f32" else "FullPrecisionSettings",
                }
            )
        )
        out.write(pack("item") + struct.pack(">BH", 0xDE, TENSORS))
        for number in range(TENSORS):
            out.write(pack(f"layer{number}") + b"\x82" + pack("weight") + b"\x82" + pack("id") + pack(f"{number:013d}"))
            out.write(pack("param"))
            write_payload(out, era, rng.standard_normal(count, dtype=np.float32), pack)
            out.write(pack("bias") + b"\xc0")
        out.write(pack("_b") + b"\xc0" if era != "bytes" else pack("_b") + b"\x90")


def write_payload(out: BinaryIO, era: str, numbers: Any, pack: Any) -> None:
    import numpy as np  # noqa: PLC0415 - same

    shape = [len(numbers) // 1024, 1024]
    if era == "bytes":
        out.write(b"\x83" + pack("bytes") + struct.pack(">BI", 0xC6, numbers.nbytes))
        out.write(numbers.tobytes() + pack("shape") + pack(shape) + pack("dtype") + pack("F32"))
        return
    out.write(b"\x82" + pack("value") + struct.pack(">BI", 0xDD, len(numbers)))
    if era == "f32 list":
        items = np.empty(len(numbers), np.dtype([("marker", "u1"), ("number", ">f4")]))
        items["marker"], items["number"] = 0xCA, numbers
        out.write(items.tobytes())
    else:
        out.write(shortest(numbers.astype("<f2").view("<u2")).tobytes())
    out.write(pack("shape") + pack(shape))


def shortest(values: Any) -> Any:
    """Give 16-bit numbers as msgpack's integers of one, two and three bytes, one after the other."""
    import numpy as np  # noqa: PLC0415 - same

    widths = 1 + (values > 0x7F) + (values > 0xFF)
    ends = np.cumsum(widths)
    packed = np.empty(ends[-1], "u1")
    packed[ends - 1] = values & 0xFF
    for width, marker in ((2, 0xCC), (3, 0xCD)):
        packed[ends[widths == width] - width] = marker
    packed[ends[widths == 3] - 2] = values[widths == 3] >> 8
    return packed


def contenders(source: Path, folder: Path) -> dict[str, list[str]]:
    """Give the command of each, the yardstick first; what it writes begins with "new"."""
    new = folder / "new.bpk"
    yardstick = ["cp", "--reflink=never", str(folder / "out.bpk"), str(folder / "new.copy")]
    if source.suffix == ".gz":
        yardstick = ["sh", "-c", 'gzip -dc "$0" > "$1"', str(source), str(folder / "new.copy")]
    return {
        "gzip -dc" if source.suffix == ".gz" else "cp": yardstick,
        "ckptmigrate": [sys.executable, "-m", "ckptmigrate", "migrate", str(source), str(new)],
        "ckptmigrate, the call": [sys.executable, "-c", CALL, str(source), str(new), "verify"],
        "msgpack + numpy": [sys.executable, "-c", PLAIN, str(source), str(folder / "new.plain")],
    }


def clear(folder: Path) -> None:
    """Remove what the last contender wrote, and let the disk come to rest."""
    for path in folder.glob("new.*"):
        path.unlink()
    subprocess.run(["sync"], check=True)


def measure(folder: Path, era: str, count: int, rounds: int) -> None:
    """Make the source of an era, run every contender once a round, and print a line for each."""
    source = folder / "model.mpk"
    # In a process of its own: what a child reports as its peak begins with its parent's.
    subprocess.run([sys.executable, __file__, "--make", str(source), era.partition(",")[0], str(count)], check=True)
    if era.endswith("gzip"):
        subprocess.run(["gzip", str(source)], check=True)
        source = source.with_name("model.mpk.gz")
    run([sys.executable, "-m", "ckptmigrate", "migrate", str(source), str(folder / "out.bpk")])
    times: dict[str, list[tuple[float, int]]] = {}
    for number in range(rounds):
        commands = list(contenders(source, folder).items())
        for name, command in commands if number % 2 == 0 else reversed(commands):
            clear(folder)
            times.setdefault(name, []).append(run(command))
    yardstick = times[next(iter(contenders(source, folder)))]
    for name, taken in times.items():
        ratio = statistics.median(t / y for (t, _), (y, _) in zip(taken, yardstick, strict=True))
        seconds, peak = statistics.median(t for t, _ in taken), max(m for _, m in taken)
        print(f"| {era} | {name} | {seconds:.2f} | {ratio:.2f} | {peak} |", flush=True)
    for path in folder.iterdir():
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--make", nargs=3, metavar=("PATH", "ERA", "COUNT"), help="write a source and do no more")
    parser.add_argument("--eras", nargs="+", choices=ERAS, default=ERAS)
    asked = parser.parse_args()
    if asked.make:
        write_record(Path(asked.make[0]), asked.make[1], int(asked.make[2]))
        return
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    count = int(asked.gigabytes * 1e9 / 4 / TENSORS) // 1024 * 1024
    try:
        print("| record | contender | median s | ratio to the yardstick | peak RSS MB |\n|---|---|---|---|---|")
        for era in asked.eras:
            measure(folder, era, count, asked.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    subprocess.run(["sync"], check=True)
    main()
