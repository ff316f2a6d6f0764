"""burnpack: what is written is byte for byte what Burn writes; Burn opens it and trains on from it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptmigrate.dtypes import C64, DTYPES, F32, I32, U8
from ckptmigrate.files import Range
from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.formats._burnpack_table import ALIGNMENT, HEADER, TENSORS_MAX
from ckptmigrate.formats._burnpack_writer import lay_out as _lay_out
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.testing import (
    Memory,
    check_flips,
    check_reads_lazily,
    check_round_trip,
    check_same_bytes_twice,
    check_sniffs_own,
    check_truncation,
    written,
)
from ckptmigrate.values import Scalar

from .burnpack_desk import (
    BARE,
    FILES,
    FORM,
    GOLDEN,
    MUSEUM,
    OURS,
    STUMPS,
    elements,
    lay_out,
    read,
    referee,
    table_of,
    tensor,
    tensors,
    without_ids,
    write,
)

# --- what Burn opens


OTHERS = {"0.22.1/zoo.bpk": "zoo", "0.22.1/coupled.bpk": "coupled", "0.22.1/optim-lbfgs-model.bpk": "lean"}


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(
    ("name", "model"),
    [(n, "net") for n in FILES if n.endswith("net.bpk")] + [(n, m) for n, m in OTHERS.items() if n in FILES],
)  # fmt: skip
def test_burn_loads_strictly_what_is_written(name: str, model: str, bare: bool, tmp_path: Path) -> None:
    parts = read(FILES[name])
    parts.notes["stamp"] = {"versions": {"acme": "1.0"}}
    path = tmp_path / "model.bpk"
    path.write_bytes(write(parts, WriteOptions(bare=bare)))

    told = referee("load", path, model)

    assert told["ok"], told
    wanted = referee("load", FILES[name] if parts.facts["current"] else MUSEUM / "0.22.1" / "net.bpk", model)
    assert without_ids(told["params"]) == without_ids(wanted["params"])


@pytest.mark.parametrize(
    "name", [n for n in GOLDEN if n.endswith("3.bpk") and n.startswith(("0.7.0", "0.13.2", "0.21.0"))]
)
def test_burn_reads_what_is_written_with_a_stamp(name: str, tmp_path: Path) -> None:
    parts = read(FILES[name])
    parts.notes["stamp"] = {"versions": {"acme": "1.0"}}
    path = tmp_path / "part.bpk"
    path.write_bytes(write(parts, WriteOptions()))

    told, wanted = referee("read", path), referee("read", FILES[name])

    assert told["metadata"].pop("ckptmigrate")
    assert told == wanted


def test_burn_resumes_from_what_is_written_with_a_stamp(tmp_path: Path) -> None:
    run = MUSEUM / "0.21.0" / "golden" / "run-adam"
    for path in (run / "checkpoint").glob("*.bpk"):
        parts = read(path)
        parts.notes["stamp"] = {"versions": {"acme": "1.0"}}
        (tmp_path / "checkpoint").mkdir(exist_ok=True)
        (tmp_path / "checkpoint" / path.name).write_bytes(write(parts, WriteOptions()))
    proof = json.loads((run / "proof.json").read_text())
    call = ("3", proof["optimizer"], proof["scheduler"], json.dumps(proof["scheduler_config"]))

    told, wanted = referee("resume", tmp_path, *call), referee("resume", run, *call)

    assert told["ok"]
    assert without_ids(told) == without_ids(wanted)
    assert told["optim_unclaimed"] == told["scheduler_unclaimed"] == []


# --- the examples of the specification


def test_the_smallest_file_is_as_the_real_program_writes_it() -> None:
    table = (
        "A1 67 74656E736F7273 A1 61 77 A4 65 6474797065 63 463332 65 7368617065 81 01 6C 646174615F6F666673657473 82 00 04"
        " 68 706172616D5F6964 18 2A"
    )

    found = write(Parts(tensors={"w": tensor([1], 42)}))

    assert found == (bytes.fromhex("4E525542 0100 3A000000" + table) + bytes(188) + bytes.fromhex("0000803F"))


def test_a_scheduler_is_as_the_real_program_writes_it() -> None:
    table = "A2 67 74656E736F7273 A0 67 7363616C617273 A1 6E 302E63757272656E745F69746572 A1 64 55496E74 03"

    found = write(Parts(tensors={"0.current_iter": Scalar("uint", 3)}))

    assert found == bytes.fromhex("4E525542 0100 29000000" + table) + bytes(205)


def test_an_optimizer_is_as_the_real_program_writes_it() -> None:
    members: dict[str, Any] = {
        "42.momentum.moment_1": tensor([0.5], 42),
        "42.momentum.moment_2": tensor([0.25], 42),
        "42.momentum.time": Scalar("uint", 3),
        "42.__rank": Scalar("uint", 1),
    }

    found = write(Parts(tensors=members, facts={"metadata": {"42": "w"}}))

    assert len(found) == 516
    assert found[:HEADER] == bytes.fromhex("4E525542 0100 D5000000")
    assert (found[256:260], found[512:516]) == (bytes.fromhex("0000003F"), bytes.fromhex("0000803E"))
    table = table_of(found)
    assert list(table) == ["tensors", "metadata", "scalars"]
    assert list(table["scalars"].items()) == [("42.__rank", {"UInt": 1}), ("42.momentum.time", {"UInt": 3})]


def test_names_are_sorted_by_bytes_and_data_lies_in_the_order_given() -> None:
    names = ["9", "10", "é", "z", "layers.9", "layers.10", "\U0001f600", "\uffff", "r#type.weight"]
    members = {name: tensor([i]) for i, name in enumerate(names)}

    found = write(Parts(tensors=dict(members)))

    assert list(table_of(found)["tensors"]) == sorted(names, key=lambda name: name.encode())
    assert list(tensors(read(found))) == names
    assert [e["data_offsets"][0] for e in table_of(found)["tensors"].values() if e] == [
        256 * names.index(name) for name in sorted(names, key=lambda name: name.encode())
    ]


def test_empty_tensors_start_on_a_boundary_and_hold_nothing() -> None:
    members = {"a": tensor([1]), "b": tensor(np.zeros((0, 3), "f4")), "c": tensor([2]), "d": tensor(np.zeros(0, "f4"))}  # fmt: skip

    found = write(Parts(tensors=dict(members)))

    assert {n: e["data_offsets"] for n, e in table_of(found)["tensors"].items()} == {
        "a": [0, 4], "b": [256, 256], "c": [256, 260], "d": [512, 512],
    }  # fmt: skip
    assert len(found) % ALIGNMENT == 0
    assert list(tensors(read(found))) == list("abcd")
    assert tensors(read(found))["b"].shape == (0, 3)
    assert write(read(found)) == found


# --- what cannot be written


def test_what_burn_lacks_is_a_problem_that_names_tensor_and_dtype() -> None:
    shapes = {d.name: View.rows(Memory(bytes(64)).range(0, 2 * d.itemsize), d, (2,)) for d in DTYPES}
    told = {name: lay_out({"fc.weight": Tensor(view)}).problems for name, view in shapes.items()}

    assert [name for name, problems in told.items() if not problems] == [
        "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL",
    ]  # fmt: skip
    assert told["C64"] == [
        f'tensor "fc.weight" is {C64}, a dtype that Burn does not have; a Cast or --exclude settles it'
    ]
    assert all('tensor "fc.weight" is' in problem for problems in told.values() for problem in problems)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"w": tensor([1], "nanoid")}, "id 'nanoid'"),
        ({"w": tensor([1], 1 << 64)}, "64 bits"),
        ({"w": tensor([1], -1)}, "64 bits"),
        ({"\ud800": tensor([1])}, "no Unicode text"),
        ({"\ud800": Scalar("uint", 1)}, "ud800"),
        ({"s": Scalar("uint", -1)}, "scalar 's' is -1 of kind uint"),
        ({"s": Scalar("int", 1 << 63)}, "kind int"),
        ({"s": Scalar("uint", True)}, "True of kind uint"),
        ({"s": Scalar("bool", 1)}, "1 of kind bool"),
        ({"s": Scalar("uint", 1.5)}, "1.5 of kind uint"),
    ],
)
def test_ids_names_and_scalars_without_a_place_are_problems(members: dict[str, Any], problem: str) -> None:
    (told,) = lay_out(members).problems

    assert problem in told


def test_a_tree_and_odd_metadata_are_problems_and_the_stamps_key_is_kept() -> None:
    assert "is a tree" in lay_out({}, tree={"a": 1}).problems[0]
    assert "no Unicode text" in lay_out({}, facts={"metadata": {"a": 1}}).problems[0]
    assert lay_out({}, facts={"metadata": {"ckptmigrate": "{}"}}).left_out == [
        ("metadata/ckptmigrate", "the name is kept for the stamp")
    ]


class Huge(Memory):
    """A file that says it is large and holds nothing."""

    @property
    def size(self) -> int:
        return 1 << 50


def test_what_burn_would_not_open_is_a_problem() -> None:
    place = Range(Huge(b"")._file, 0, 11 << 30)
    giant = Tensor(View.rows(place, U8, (11 << 30,)))
    large = Tensor(View.rows(place, U8, (9 << 30,)))

    assert "Burn reads no more than 10737418240" in lay_out({"w": giant}).problems[0]
    assert "bytes in all" in lay_out({f"w{i}": large for i in range(12)}).problems[0]
    assert "tensors, Burn reads no more than 100000" in lay_out({f"{i}": tensor(np.zeros(0, "f4")) for i in range(TENSORS_MAX + 1)}).problems[0]  # fmt: skip


def test_tied_names_are_written_twice_and_come_back_tied() -> None:
    data = np.arange(6, dtype="f4")
    view = View.rows(Memory(data.tobytes()).range(0, 24), F32, (2, 3))
    members: dict[str, Any] = {"embed": Tensor(view, id=1), "x": tensor([1], 2, "i4"), "head": Tensor(view, id=3)}

    blueprint = _lay_out(Parts(tensors=members), WriteOptions(), "m")
    kept, bare = written(blueprint)["m"], write(Parts(tensors=members))
    apart = write(Parts(tensors=members), WriteOptions(ties="duplicate"))

    assert blueprint.notes == ["head is embed: 24 bytes written twice, Burn has no ties"]
    assert json.loads(table_of(kept)["metadata"]["ckptmigrate"]) == {"ties": {"head": "embed"}}
    assert bare == apart
    assert table_of(kept)["tensors"] == table_of(bare)["tensors"]
    back, single = tensors(read(kept)), tensors(read(bare))
    assert (list(back), back["head"].id) == (["embed", "x", "head"], 3)
    assert back["head"].promise == back["embed"].promise
    assert single["head"].promise != single["embed"].promise
    assert elements(single["head"]) == elements(single["embed"]) == data.tobytes()
    assert read(kept).notes == {}


# --- the contract

SMALL = [
    n for n in (
        "0.19.1/twin.bpk", "0.19.1/trailing-empty.bpk", "0.19.1/nothing.bpk", "0.19.1/dtypes.bpk", "0.19.1/broken-quant-q8s-odd.bpk",
        "0.20.1/quant-q8s-block2.bpk", "0.22.1/scheduler-composed.bpk", "0.22.1/quant-q8s-twolevel-block2.bpk", "0.22.1/net.bpk",
    ) if n in FILES
]  # fmt: skip
OPTIONS = ReadOptions(dequantize=True)


@pytest.mark.parametrize("name", SMALL)
def test_the_contract_holds_for_files_of_burn(name: str) -> None:
    data = FILES[name].read_bytes()

    check_sniffs_own(FORM, data)
    if name not in STUMPS:
        check_reads_lazily(FORM, data, OPTIONS)
    check_truncation(FORM, data, options=None if "/quant-q8s-two" in name else OPTIONS, clock=time.monotonic)
    check_flips(FORM, data, options=OPTIONS, clock=time.monotonic)


def test_the_contract_holds_for_what_is_written() -> None:
    view = View.rows(Memory(bytes(range(200))).range(4, 24), F32, (2, 3))
    members: dict[str, Any] = {
        "fc.weight": Tensor(view, id=7), "fc.turned": Tensor(view.transpose((1, 0))), "tied": Tensor(view),
        "empty": tensor(np.zeros((0, 3), "f4")), "rank": tensor(3, dtype="i4"), "time": Scalar("uint", 1 << 63),
    }  # fmt: skip
    parts = Parts(
        family="burn", tensors=members, notes={"versions": {"acme": "1.0"}}, facts={"metadata": {"7": "fc.weight"}}
    )

    check_round_trip(FORM, parts)
    check_same_bytes_twice(FORM, parts)
    check_same_bytes_twice(FORM, parts, BARE)
    data = written(_lay_out(parts, WriteOptions(), "m"))["m"]
    check_truncation(FORM, data, clock=time.monotonic)
    check_flips(FORM, data, clock=time.monotonic)
    assert tensors(read(data))["rank"].dtype == I32


def test_a_copy_of_the_museum_stands_beside_these_tests() -> None:
    if MUSEUM == OURS:
        pytest.skip("the museum is not beside this checkout: shared/fixtures/burn")
    for path in OURS.rglob("*.bpk"):
        assert path.read_bytes() == (MUSEUM / path.relative_to(OURS)).read_bytes()
