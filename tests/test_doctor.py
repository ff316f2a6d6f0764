"""What the doctor says: each word of Burn's against real Burn, its learner's own messages and its files; each remedy typed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import typer

import ckptmigrate
from ckptmigrate.cli import app
from ckptmigrate.files import Disk
from ckptmigrate.formats._burnpack_opening import opening
from ckptmigrate.formats._burnpack_table import ALIGNMENT

from .burnpack_desk import FILES, MUSEUM, OURS, file, referee, table_of
from .command_line import CHECKPOINT, Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptmigrate.doctor import Finding

RUN = OURS / "0.13.2" / "golden" / "run-adam"  # today's Burn wrote it: Adam, without a doubt
LEARNER = MUSEUM / "learner"
MODEL, OPTIM, SCHEDULER = "model", "optim", "scheduler"


def parse(command: str) -> None:
    """Parse a command line as the program does, and run nothing."""
    program, verb, *words = shlex.split(command)
    assert program == "ckptmigrate"
    group = typer.main.get_command(app)
    found = group.commands[verb]  # type: ignore[attr-defined] # a group of verbs
    found.make_context(verb, words)


# ---------------------------------------------------------------- damage


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
    "model re-written unchanged": edit(MODEL, lambda _: None),
    "optim re-written unchanged": edit(OPTIM, lambda _: None),
    "scheduler re-written unchanged": edit(SCHEDULER, lambda _: None),
    "optim without __rank": edit(OPTIM, scalars(".__rank", None)),
    "optim without metadata": edit(OPTIM, lambda table: table.pop("metadata")),
}


def symptoms(run: Path, damage: Callable[[Path, int], None], epoch: int) -> list[Finding]:
    """Damage one epoch of a run and give what the doctor says of it."""
    damage(run / "checkpoint", epoch)
    found = [finding for finding in ckptmigrate.doctor(run) if finding.epoch == epoch]
    for finding in found:
        assert finding.cause
        if finding.remedy:
            parse(finding.remedy)
    return found


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


def test_runs_that_today_s_burn_wrote_have_no_symptom(run: Path) -> None:
    assert ckptmigrate.doctor(run) == []
    assert Ran("doctor", run).code == 0


@pytest.mark.parametrize("fault", LOUD)
def test_what_a_damaged_run_makes_burn_say_is_said(run: Path, fault: str) -> None:
    damage, words = LOUD[fault]
    found = symptoms(run, damage, 3)

    assert [f.message for f in found if not f.silent and re.search(words, f.message)], found


@pytest.mark.parametrize("fault", [*LOUD, *SCALARS_OF_EXP])
def test_a_loud_symptom_is_word_for_word_what_the_learner_printed(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = {**LOUD, **SCALARS_OF_EXP}[fault]
    found = symptoms(run, damage, 5)
    printed = said[fault]["stderr"].replace("DIR/", f"{run}/")

    loud = [f.message for f in found if not f.silent and re.search(words, f.message)]
    sizes = re.compile(r"got \d+ bytes") if fault == "model unaligned" else None  # the test's CBOR is another writer's
    clean = (lambda text: sizes.sub("", text)) if sizes else (lambda text: text)
    assert said[fault]["exit"] == 101
    assert loud
    assert clean(loud[0]).partition("…")[0] in clean(printed)


@pytest.mark.parametrize("fault", SILENT)
def test_what_burn_takes_in_silence_is_said(run: Path, fault: str) -> None:
    damage, words = SILENT[fault]
    found = symptoms(run, damage, 3)

    assert [f for f in found if f.silent and f.message.endswith(words)], found
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", [*SILENT, *SILENT_OF_EXP])
def test_what_is_said_to_be_silent_the_learner_did_accept(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = {**SILENT, **SILENT_OF_EXP}[fault]
    found = symptoms(run, damage, 5)

    assert said[fault]["exit"] == 0
    assert said[fault]["epochs_trained"]
    assert [f for f in found if f.silent and f.message.endswith(words)], found
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", FIRST_STEP)
def test_what_loads_and_panics_in_the_first_step_is_silent_and_in_the_panic_s_words(
    learned: tuple[Path, dict[str, dict[str, Any]]], fault: str
) -> None:
    run, said = learned
    damage, words = FIRST_STEP[fault]
    found = symptoms(run, damage, 5)

    assert [f.message for f in found if f.silent] == [words]
    assert words in said[fault]["stderr"]
    assert [f for f in found if not f.silent] == []


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_changes_nothing_is_no_symptom(run: Path, fault: str) -> None:
    assert symptoms(run, HARMLESS[fault], 3) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (copied(MODEL, OPTIM), RESTARTS),
        (copied(SCHEDULER, OPTIM), RESTARTS),
        (copied(MODEL, SCHEDULER), RATE),
        (copied(OPTIM, SCHEDULER), RATE),
    ],
    ids=["a model as the optimizer", "a scheduler as the optimizer", "a model as the scheduler", "an optimizer as the scheduler"],
)  # fmt: skip
def test_a_file_in_another_s_place_is_said_and_the_referee_takes_it(
    run: Path, damage: Callable[[Path, int], None], words: str
) -> None:
    found = symptoms(run, damage, 3)
    assert [f.message for f in found if f.silent and f.message == words]
    assert [f for f in found if not f.silent] == []
    proof = json.loads((RUN / "proof.json").read_text())
    told = referee("resume", run, "3", "adam", proof["scheduler"], json.dumps(proof["scheduler_config"]))
    assert told["ok"] is True, told


# ---------------------------------------------------------------- files alone


@pytest.mark.parametrize("name", FILES)
def test_what_today_s_burn_says_on_opening_a_file_is_what_the_referee_says(name: str) -> None:
    told = referee("read", FILES[name])
    with Disk() as disk:
        assert opening(disk.open(FILES[name])) == (None if told["ok"] else told["error"]["display"])


@pytest.mark.parametrize("what", [MODEL, OPTIM, SCHEDULER])
def test_so_it_is_of_damaged_tables(tmp_path: Path, what: str) -> None:
    """An item of the table has another length or value: what the doctor calls loud the referee refuses, in words that begin alike.

    Its kind stays: that Burn takes bytes for the name of a field, and we text alone, is no damage that anybody meets.
    """
    random = Random(what)
    data = (RUN / "checkpoint" / f"{what}-3.bpk").read_bytes()
    path, refused = tmp_path / "damaged.bpk", 0
    for _ in range(25):
        at = random.randrange(6, 10 + int.from_bytes(data[6:10], "little"))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(5)]) + data[at + 1 :])
        with Disk() as disk:
            said = opening(disk.open(path))
        told = referee("read", path)

        assert (said is None) is told["ok"], (at, said, told)
        if said is not None:
            refused += 1
            assert told["error"]["display"].startswith(re.split("…|Syntax", said)[0])
    assert refused


@pytest.mark.parametrize("cut", [0, 3, 9, 10, 200, 900])
def test_so_it_is_of_a_cut_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.bpk"
    path.write_bytes((RUN / "checkpoint" / "model-3.bpk").read_bytes()[:cut])
    told = referee("read", path)
    (finding,) = ckptmigrate.doctor(path)

    assert (finding.message, finding.silent) == (told["error"]["display"], False)


def test_a_record_of_each_era_says_what_today_s_burn_and_the_others_say() -> None:
    for name, words in {
        "0.11.1/net-full.mpk": ["Invalid magic number", "missing field `_b`", "missing field `bytes`"],
        "0.13.2/net-half.mpk": ["Invalid magic number", "missing field `bytes`"],
        "0.21.0/net-full.mpk": ["Invalid magic number", "missing field `value`"],
        "0.21.0/net-full.bin": ["Invalid magic number"],
        "0.19.1/net.bpk": ["Validation error: File truncated: expected at least 1748 bytes, got 1553 bytes"],
    }.items():
        found = ckptmigrate.doctor(OURS / name)

        assert [f.message for f in found] == words
        for finding in found:
            parse(finding.remedy)


@pytest.mark.parametrize(
    ("reader", "writer"), [("0.13.2", "0.11.1"), ("0.18.0", "0.13.2"), ("0.21.0", "0.11.1"), ("0.13.2", "0.21.0")]
)
def test_what_other_releases_are_said_to_say_they_said(reader: str, writer: str) -> None:
    source = MUSEUM / writer / "run-adam" / "checkpoint"
    if not source.exists() or not (LEARNER / "messages.json").exists():
        pytest.skip("the museum is not beside this checkout: shared/fixtures/burn")
    path = next(p for p in source.iterdir() if p.name.startswith("model-3."))
    said = json.loads((LEARNER / "messages.json").read_text())
    printed = next(one for one in said if one["burn"] == reader and one["fault"] == f"model of burn {writer}")["stderr"]

    assert any(f.message in printed for f in ckptmigrate.doctor(path) if f.message.startswith("missing field"))


@pytest.mark.parametrize("reader", ["0.13.2", "0.18.0", "0.21.0"])
@pytest.mark.parametrize("fault", ["model half", "model last-byte", "model empty", "model magic", "model zeros"])
def test_what_a_broken_record_makes_the_release_say_that_wrote_it(tmp_path: Path, reader: str, fault: str) -> None:
    source = LEARNER / reader / "keep2" / "checkpoint" / "model-5.mpk"
    if not source.exists():
        pytest.skip("the learner's runs are not beside this checkout: shared/fixtures/burn/learner")
    data = source.read_bytes()
    broken = {
        "half": data[: len(data) // 2],
        "last-byte": data[:-1],
        "empty": b"",
        "magic": b"XXXX" + data[4:],
        "zeros": bytes(len(data)),
    }
    (tmp_path / "model-5.mpk").write_bytes(broken[fault.split()[1]])
    said = json.loads((LEARNER / "messages.json").read_text())
    printed = next(one for one in said if one["burn"] == reader and one["fault"] == fault)["stderr"]
    found = [f.message for f in ckptmigrate.doctor(tmp_path / "model-5.mpk")]

    assert len(found) == 2
    assert found[1] in printed


def test_second_moments_that_half_precision_lost_are_counted() -> None:
    found = ckptmigrate.doctor(OURS / "0.11.1" / "optim-adam-half.mpk.gz")
    (lost,) = [f for f in found if f.silent]

    assert re.search(r"\d+ of 177 second moments were stored as 0 in half precision", lost.cause)
    parse(lost.remedy)


def test_a_file_is_looked_at_as_what_its_name_says_it_is(tmp_path: Path) -> None:
    shutil.copy(RUN / "checkpoint" / "model-3.bpk", tmp_path / "optim-3.bpk")
    shutil.copy(RUN / "checkpoint" / "optim-3.bpk", tmp_path / "model-3.bpk")
    (one,) = ckptmigrate.doctor(tmp_path / "optim-3.bpk")
    (other,) = ckptmigrate.doctor(tmp_path / "model-3.bpk")

    assert (one.message, one.silent) == (RESTARTS, True)
    assert (other.message, other.silent) == ('Failed to load record: Validation("Missing tensors: […]")', False)


def test_the_remedies_of_old_files_mend_them(tmp_path: Path) -> None:
    for name in ("0.19.1/net.bpk", "0.21.0/net-full.mpk", "0.22.1/net-f16-store.bpk"):
        path = tmp_path / Path(name).name
        shutil.copy(OURS / name, path)
        remedy = ckptmigrate.doctor(path)[0].remedy
        ran = Ran(*shlex.split(remedy)[1:])
        assert ran.code == 0, ran.err

        assert ckptmigrate.doctor(shlex.split(remedy)[3]) == [], name


def test_an_old_run_is_told_file_by_file_in_the_loader_s_words_and_its_remedy_mends_it(tmp_path: Path) -> None:
    shutil.copytree(OURS / "0.21.0" / "run-sgd-momentum", tmp_path / "run")
    found = ckptmigrate.doctor(tmp_path / "run")
    last = [f for f in found if f.epoch == max(g.epoch or 0 for g in found) and "Can load" in f.message]
    assert [f.message.partition(".:")[0] for f in last] == [
        "Can load model checkpoint", "Can load optimizer checkpoint", "Can load learning rate scheduler checkpoint",
    ]  # fmt: skip
    assert all("No such file or directory (os error 2)" in f.message for f in last)

    for remedy in {f.remedy for f in found}:
        parse(remedy)


# ---------------------------------------------------------------- the verb


def test_other_files_get_what_their_reader_found(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt"
    cut.write_bytes(CHECKPOINT.read_bytes()[:-40])
    ran = Ran("doctor", cut, "--json")
    assert ran.code == 1
    (symptom,) = ran.json()["symptoms"]
    assert set(symptom) == {"file", "epoch", "message", "cause", "silent", "remedy"}
    assert symptom["message"]
    assert Ran("doctor", CHECKPOINT).code == 0


def test_never_3_whatever_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "page.bpk").write_text("<!DOCTYPE html><html>not found</html>")
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    for path in [tmp_path / "empty", tmp_path / "page.bpk", tmp_path / "run", tmp_path / "nobody", Path("/dev/null")]:
        assert Ran("doctor", path).code == 1, path


def test_the_terminal_shows_file_words_cause_and_command(tmp_path: Path) -> None:
    shutil.copy(OURS / "0.19.1" / "net.bpk", tmp_path / "net.bpk")
    out = Ran("doctor", tmp_path / "net.bpk").out

    assert re.fullmatch(
        r"\S+net.bpk:\n  loud: .*File truncated.*\n    why: .*\n    mend: ckptmigrate migrate .*\n", out
    )
