"""What the doctor says of a file of today's Burn alone: Burn's own words on opening it, of damage to any item of its table."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ckptmigrate
from ckptmigrate.files import Disk
from ckptmigrate.formats._burnpack_opening import opening

from .burnpack_desk import FILES, file, referee
from .damaged_runs import MODEL, OPTIM, RUN, SCHEDULER, parts_of


@pytest.mark.parametrize("name", FILES)
def test_what_today_s_burn_says_on_opening_a_file_is_what_the_referee_says(name: str) -> None:
    told = referee("read", FILES[name])
    with Disk() as disk:
        assert opening(disk.open(FILES[name])) == (None if told["ok"] else told["error"]["display"])


@pytest.mark.parametrize("what", [MODEL, OPTIM, SCHEDULER])
def test_so_it_is_of_damaged_tables(tmp_path: Path, what: str) -> None:
    """An item of the table is of another kind, length or value: what the doctor calls loud the referee refuses, in words that begin alike."""
    random = Random(what)
    data = (RUN / "checkpoint" / f"{what}-3.bpk").read_bytes()
    path, refused = tmp_path / "damaged.bpk", 0
    for _ in range(40):
        at = random.randrange(6, 10 + int.from_bytes(data[6:10], "little"))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
        with Disk() as disk:
            said = opening(disk.open(path))
        told = referee("read", path)

        assert (said is None) is told["ok"], (at, said, told)
        if said is not None:
            refused += 1
            assert told["error"]["display"].startswith(re.split("…|Syntax", said)[0])
    assert refused


VALUES: dict[str, Any] = {
    "a count": 9, "a negative": -10, "beyond i64": 1 << 63, "the largest": (1 << 64) - 1, "below i64": -(1 << 63) - 1,
    "a fraction": 1.5, "NaN": float("nan"), "nothing": None, "a truth": True, "text": "a", "a list": [1], "a map": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["UInt", "Int", "Float", "Bool"])
@pytest.mark.parametrize("value", VALUES)
def test_so_it_is_of_a_scalar_that_holds_something_else(tmp_path: Path, kind: str, value: str) -> None:
    path = tmp_path / "scalars.bpk"
    path.write_bytes(file({"tensors": {}, "scalars": {"s": {kind: VALUES[value]}}}, b""))
    told = referee("read", path)
    with Disk() as disk:
        said = opening(disk.open(path))

    assert (said is None) is told["ok"]
    if said is not None:
        assert told["error"]["display"].startswith(said.partition("…")[0])


@pytest.mark.parametrize("length", [0, 1, 3, 18, 23])
def test_so_it_is_of_offsets_that_claim_to_be_more_or_fewer(tmp_path: Path, length: int) -> None:
    """Burn takes two of them, and what follows for the next field, whatever the length says."""
    path = tmp_path / "model-3.bpk"
    data = (RUN / "checkpoint" / "model-3.bpk").read_bytes()
    name = b"data_offsets"
    for at in [found.end() for found in re.finditer(name, data)]:
        path.write_bytes(data[:at] + bytes([0x80 + length]) + data[at + 1 :])
        told = referee("read", path)
        found = ckptmigrate.doctor(path)

        assert told["ok"] is (length > 2)
        assert [finding.silent for finding in found] == [told["ok"]]
        assert f"has {length} data_offsets, expected 2" in found[0].cause


SCHEMES = [name for name in FILES if re.search(r"0\.22\.1/quant-.*\.bpk", name)]


@pytest.mark.parametrize("name", SCHEMES)
def test_so_it_is_of_damaged_words_for_a_quantisation(tmp_path: Path, name: str) -> None:
    """A letter of the word is another: what is none of a field's variants is told, and so is the field that is missing then."""
    data, path = FILES[name].read_bytes(), tmp_path / "damaged.bpk"
    begin = data.index(b"QFloat") + 7
    for at in [*range(begin, begin + 40, 3)]:
        path.write_bytes(data[:at] + b"x" + data[at + 1 :])
        told = referee("read", path)
        with Disk() as disk:
            said = opening(disk.open(path))

        assert (said is None) is told["ok"], (at, said, told)
        if said is not None:
            assert told["error"]["display"].startswith(said.partition("…")[0]), (at, said, told)


def in_bytes(node: Any, key: str) -> Any:
    """Give a table in which the maps that have a key have it as bytes."""
    if not isinstance(node, dict):
        return node
    return {name.encode() if name == key else name: in_bytes(below, key) for name, below in node.items()}


@pytest.mark.parametrize(
    "field", ["tensors", "metadata", "scalars", "dtype", "shape", "data_offsets", "param_id", "UInt"]
)
def test_the_name_of_a_field_may_be_bytes_for_burn_and_for_us(tmp_path: Path, field: str) -> None:
    path = tmp_path / "optim-3.bpk"
    table, data = parts_of(RUN / "checkpoint" / "optim-3.bpk")
    path.write_bytes(file(in_bytes(table, field), data))

    assert file(table, data) != path.read_bytes()
    assert referee("read", path)["ok"]
    assert ckptmigrate.doctor(path) == []
    assert ckptmigrate.verify(path, RUN / "checkpoint" / "optim-3.bpk") == []


def test_the_name_of_a_tensor_may_not(tmp_path: Path) -> None:
    path = tmp_path / "model-3.bpk"
    table, data = parts_of(RUN / "checkpoint" / "model-3.bpk")
    path.write_bytes(file(in_bytes(table, "head.weight"), data))
    (finding,) = ckptmigrate.doctor(path)

    assert not finding.silent
    assert referee("read", path)["error"]["display"].startswith(finding.message.rstrip("…"))


@pytest.mark.parametrize("cut", [0, 3, 9, 10, 200, 900])
def test_so_it_is_of_a_cut_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.bpk"
    path.write_bytes((RUN / "checkpoint" / "model-3.bpk").read_bytes()[:cut])
    told = referee("read", path)
    (finding,) = ckptmigrate.doctor(path)

    assert (finding.message, finding.silent) == (told["error"]["display"], False)
