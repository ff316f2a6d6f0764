"""Runs of Burn's, damaged in one way each: by the names that its learner's messages give the faults, and what Burn says of each."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate.formats._burnpack_table import ALIGNMENT

from .burnpack_desk import MUSEUM, OURS, file, table_of
from .command_line import Ran

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = OURS / "0.13.2" / "golden" / "run-adam"  # today's Burn wrote it: Adam, without a doubt
LEARNER = MUSEUM / "learner"
MODEL, OPTIM, SCHEDULER = "model", "optim", "scheduler"


def parts_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    start = -(-(10 + int.from_bytes(data[6:10], "little")) // ALIGNMENT) * ALIGNMENT
    return table_of(data), data[start:]


def edit(what: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, int], None]:
    """Give a damage that changes the table of one of the three files."""

    def damage(folder: Path, epoch: int) -> None:
        path = folder / f"{what}-{epoch}.bpk"
        table, data = parts_of(path)
        change(table)
        path.write_bytes(file(table, data))

    return damage


def bytes_of(what: str, change: Callable[[bytes], bytes]) -> Callable[[Path, int], None]:
    def damage(folder: Path, epoch: int) -> None:
        path = folder / f"{what}-{epoch}.bpk"
        path.write_bytes(change(path.read_bytes()))

    return damage


def gone(what: str) -> Callable[[Path, int], None]:
    return lambda folder, epoch: (folder / f"{what}-{epoch}.bpk").unlink()


def a_folder(folder: Path, epoch: int) -> None:
    (folder / f"model-{epoch}.bpk").unlink()
    (folder / f"model-{epoch}.bpk").mkdir()


def copied(source: str, target: str) -> Callable[[Path, int], None]:
    def damage(folder: Path, epoch: int) -> None:
        shutil.copy(folder / f"{source}-{epoch}.bpk", folder / f"{target}-{epoch}.bpk")

    return damage


def without_ids(every: int | None) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        for entry in list(table["tensors"].values())[:every]:
            del entry["param_id"]

    return change


def scalars(leaf: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Give a change of all numbers of one name; None takes them out."""

    def change(table: dict[str, Any]) -> None:
        for name in [name for name in table["scalars"] if name.endswith(leaf)]:
            if value is None:
                del table["scalars"][name]
            else:
                table["scalars"][name] = value

    return change


def rank_nine(table: dict[str, Any]) -> None:
    table["scalars"][next(name for name in table["scalars"] if name.endswith(".__rank"))] = {"UInt": 9}


def wrong_ranks(table: dict[str, Any]) -> None:
    for name, value in table["scalars"].items():
        if name.endswith(".__rank"):
            table["scalars"][name] = {"UInt": 2 if value == {"UInt": 1} else 1}


def other_ids(table: dict[str, Any]) -> None:
    def shifted(names: dict[str, Any]) -> dict[str, Any]:
        return {re.sub(r"^\d+", lambda found: str(int(found[0]) + 1), name): value for name, value in names.items()}

    for part in ("tensors", "scalars", "metadata"):
        table[part] = shifted(table[part])
    for entry in table["tensors"].values():
        entry["param_id"] += 1


def transposed(table: dict[str, Any]) -> None:
    entry = next(
        e for name, e in table["tensors"].items() if name.endswith("moment_1") and len(e["shape"]) == 2 and e["shape"][0] != e["shape"][1]
    )  # fmt: skip
    entry["shape"].reverse()


def head(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["tensors"]["head.weight"].update(changes)


def ghost(table: dict[str, Any]) -> None:
    table["tensors"]["ghost.weight"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def whole_numbers(folder: Path, epoch: int) -> None:
    """Write a trained parameter as integers, as the learner's fault did."""
    path = folder / f"model-{epoch}.bpk"
    table, data = parts_of(path)
    entry = table["tensors"]["head.weight"]
    entry["dtype"] = "I32"
    begin, end = entry["data_offsets"]
    path.write_bytes(file(table, data[:begin] + b"".join(n.to_bytes(4, "little") for n in range(6)) + data[end:]))


def renamed(table: dict[str, Any]) -> None:
    table["tensors"]["ghost.weight"] = table["tensors"].pop("head.weight")


def headless(table: dict[str, Any]) -> None:
    del table["tensors"]["head.weight"]


def old_bool(table: dict[str, Any]) -> None:
    table["tensors"]["flags"] = {"dtype": "Bool", "shape": [2], "data_offsets": [0, 2]}


def halved(folder: Path, epoch: int) -> None:
    """Write every tensor of the model as F16."""
    path = folder / f"model-{epoch}.bpk"
    Ran("migrate", path, folder / "half.bpk", "--dtype", "f16", "--bare")
    (folder / "half.bpk").replace(path)


def unaligned(behind: int) -> Callable[[Path, int], None]:
    """Lay a model out as 0.19 did, with so many zeros behind it."""

    def damage(folder: Path, epoch: int) -> None:
        path = folder / f"model-{epoch}.bpk"
        table, data = parts_of(path)
        packed = b""
        for entry in table["tensors"].values():
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = [len(packed), len(packed) + end - begin]
            packed += data[begin:end]
        path.write_bytes(file(table, packed + bytes(behind), aligned=False))

    return damage


HALF = bytes_of(MODEL, lambda data: data[: len(data) // 2])
RESTARTS = "loads without a word, and the optimizer starts anew"
RATE = "loads without a word, and the scheduler starts anew at its initial rate"
NO_ID = "Optimizer record tensors should carry a parameter id."

LOUD: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "model file missing": (gone(MODEL), r"Can load model checkpoint\..*cannot open .*model-\d\.bpk"),
    "optim file missing": (gone(OPTIM), r"Can load optimizer checkpoint\..*cannot open .*optim-\d\.bpk"),
    "scheduler file missing": (gone(SCHEDULER), r"Can load learning rate scheduler checkpoint\..*scheduler-\d\.bpk"),
    "model empty": (bytes_of(MODEL, lambda _: b""), "failed to fill whole buffer"),
    "model half": (HALF, r"File truncated: expected at least 3864 bytes, got 1932 bytes"),
    "model last-byte": (bytes_of(MODEL, lambda data: data[:-1]), "File truncated: expected at least 3864 bytes, got 3863"),
    "model magic": (bytes_of(MODEL, lambda data: b"XXXX" + data[4:]), "Invalid magic number"),
    "model zeros": (bytes_of(MODEL, lambda data: bytes(len(data))), "Invalid magic number"),
    "optim empty": (bytes_of(OPTIM, lambda _: b""), r"Can load optimizer .*failed to fill whole buffer"),
    "optim half": (bytes_of(OPTIM, lambda data: data[: len(data) // 2]), r"Can load optimizer .*File truncated"),
    "optim last-byte": (bytes_of(OPTIM, lambda data: data[:-1]), r"Can load optimizer .*File truncated"),
    "optim magic": (bytes_of(OPTIM, lambda data: b"XXXX" + data[4:]), r"Can load optimizer .*Invalid magic"),
    "optim zeros": (bytes_of(OPTIM, lambda data: bytes(len(data))), r"Can load optimizer .*Invalid magic"),
    "scheduler empty": (bytes_of(SCHEDULER, lambda _: b""), r"Can load learning .*failed to fill"),
    "scheduler magic": (bytes_of(SCHEDULER, lambda data: b"XXXX" + data[4:]), r"Can load learning .*Invalid magic"),
    "scheduler zeros": (bytes_of(SCHEDULER, lambda data: bytes(len(data))), r"Can load learning .*Invalid magic"),
    "model is a folder": (a_folder, r"Is a directory \(os error 21\)"),
    "optim tensors without param_id": (edit(OPTIM, without_ids(None)), re.escape(NO_ID)),
    "one optim tensor without param_id": (edit(OPTIM, without_ids(1)), re.escape(NO_ID)),
    "unused tensor in the model": (edit(MODEL, ghost), r'Unused tensors: \[\\"ghost.weight\\"\]'),
    "missing tensor in the model": (edit(MODEL, headless), r'Missing tensors: \[\\"head.weight\\"\]'),
    "another shape in the model file": (edit(MODEL, head(shape=[2, 3])), r"head.weight: shape mismatch, expected"),
    "missing and unused tensor in the model": (edit(MODEL, renamed), r'Missing tensors: \[\\"head.weight\\"\]'),
    "int tensor for a float parameter": (whole_numbers, "Expected float dtype, got I32"),
    "model with metadata length 5 too small": (
        bytes_of(MODEL, lambda d: d[:6] + (int.from_bytes(d[6:10], "little") - 5).to_bytes(4, "little") + d[10:]),
        "Metadata deserialization error",
    ),
    "shape larger than the bytes": (edit(MODEL, head(shape=[3, 4])), "declares 24 bytes but its shape"),
    "dtype F16 over F32 bytes": (edit(MODEL, head(dtype="F16")), "dtype F16 need 12"),
    "unknown dtype": (edit(MODEL, head(dtype="Float32")), "unknown variant `Float32`, expected one of `F64`"),
    "old bool dtype": (edit(MODEL, old_bool), "unknown variant `shape`, expected one of `Native`"),
    "optim with rank 9": (edit(OPTIM, rank_nine), "Unsupported tensor rank for optimizer state: 9"),
    "optim with wrong ranks": (edit(OPTIM, wrong_ranks), "=== Tensor Operation Error ==="),
    "model with version 2": (bytes_of(MODEL, lambda d: d[:4] + b"\x02" + d[5:]), "Unsupported version"),
    "model with metadata length 2^31": (bytes_of(MODEL, lambda d: d[:6] + b"\0\0\0\x80" + d[10:]), "potential DoS attack"),
    "model with broken CBOR": (
        bytes_of(MODEL, lambda d: d[:10] + b"\xff" * 10 + d[20:]),
        "Metadata deserialization error",
    ),
    "model unaligned": (unaligned(0), "File truncated: expected at least"),
}  # fmt: skip
"""Faults by the names that messages.json gives them, and what stands in the doctor's words."""

SCALARS_OF_EXP: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "scheduler scalar as text": (edit(SCHEDULER, scalars("previous_lr", "abc")), "unknown variant `abc`, expected one of"),
    "scheduler scalar of unknown variant": (edit(SCHEDULER, scalars("previous_lr", {"Text": "abc"})), "unknown variant `Text`"),
    "scheduler scalar is a map": (
        edit(SCHEDULER, scalars("previous_lr", {"previous_lr": {"Float": 0.01}})), "unknown variant `previous_lr`",
    ),
}  # fmt: skip

SILENT: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "optim without time": (edit(OPTIM, scalars(".time", None)), RESTARTS),
    "optim with time as Float": (edit(OPTIM, scalars(".time", {"Float": 3.0})), RESTARTS),
    "optim of other parameter ids": (edit(OPTIM, other_ids), RESTARTS),
    "model tensors without param_id": (edit(MODEL, without_ids(None)), RESTARTS),
    "model unaligned with zeros behind": (unaligned(512), "loads without a word, and every weight is wrong"),
    "model with bytes behind": (bytes_of(MODEL, lambda data: data + bytes(64)), "loads without a word"),
    "optim with bytes behind": (bytes_of(OPTIM, lambda data: data + bytes(64)), "loads without a word"),
    "scheduler with bytes behind": (bytes_of(SCHEDULER, lambda data: data + bytes(64)), "loads without a word"),
}
SILENT_OF_EXP: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "scheduler scalar as UInt": (edit(SCHEDULER, scalars("previous_lr", {"UInt": 3})), "goes on with a wrong rate"),
    "scheduler scalar as Int": (edit(SCHEDULER, scalars("previous_lr", {"Int": -1})), "goes on with a wrong rate"),
    "scheduler scalar as Bool": (edit(SCHEDULER, scalars("previous_lr", {"Bool": True})), RATE),
    "scheduler without group prefix": (
        edit(SCHEDULER, lambda table: table.update(scalars={"previous_lr": table["scalars"]["0.previous_lr"]})), RATE,
    ),
    "scheduler without scalars": (edit(SCHEDULER, lambda table: table.pop("scalars")), RATE),
}  # fmt: skip
FIRST_STEP: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "model in F16": (halved, "storage: dtype mismatch (expected F16, got F32)"),
    "optim moment transposed": (edit(OPTIM, transposed), "=== Tensor Operation Error ==="),
}
"""Faults that load, and panic in the first step: silent, and the words are the panic's."""

HARMLESS: dict[str, Callable[[Path, int], None]] = {
    "scheduler half": bytes_of(SCHEDULER, lambda data: data[: len(data) // 2]),  # it ends behind its table
    "scheduler last-byte": bytes_of(SCHEDULER, lambda data: data[:-1]),
    "model re-written unchanged": edit(MODEL, lambda _: None),
    "optim re-written unchanged": edit(OPTIM, lambda _: None),
    "scheduler re-written unchanged": edit(SCHEDULER, lambda _: None),
    "optim without __rank": edit(OPTIM, scalars(".__rank", None)),
    "optim without metadata": edit(OPTIM, lambda table: table.pop("metadata")),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two epochs that today's Burn wrote; the model does not change its names between them."""
    folder = tmp_path / "run" / "checkpoint"
    shutil.copytree(RUN / "checkpoint", folder)
    for path in list(folder.iterdir()):
        shutil.copy(path, path.with_name(path.name.replace("-3", "-2")))
    return tmp_path / "run"


@pytest.fixture
def learned(tmp_path: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A run of Burn's own learner, epochs 4 and 5, and what the learner said of each fault of it."""
    if not (LEARNER / "messages.json").exists():
        pytest.skip("the learner's runs are not beside this checkout: shared/fixtures/burn/learner")
    shutil.copytree(LEARNER / "0.22.1" / "keep2", tmp_path / "keep2")
    said = json.loads((LEARNER / "messages.json").read_text())
    return tmp_path / "keep2", {one["fault"]: one for one in said if one["burn"] == "0.22.1"}
