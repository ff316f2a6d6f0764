"""burnpack: every file that Burn wrote is read, in either layout and spelling, and all else is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import BOOL
from ckptmigrate.errors import CkptError, CorruptError, LimitError, TruncatedError, UnsupportedFormatError
from ckptmigrate.format import Parts, WriteOptions
from ckptmigrate.formats import burnpack
from ckptmigrate.formats._burnpack_table import ALIGNMENT, HEADER, TENSORS_MAX
from ckptmigrate.limits import Limits
from ckptmigrate.testing import (
    Memory,
)
from ckptmigrate.values import Scalar
from ckptmigrate.wire.cbor import dumps

from .burnpack_desk import (
    FILES,
    GOLDEN,
    MUSEUM,
    OLD_QUANTISED,
    STUMPS,
    WHOLE,
    WORD,
    elements,
    entry,
    expected,
    file,
    read,
    referee,
    scalars,
    table_of,
    tensors,
    write,
)

# --- what Burn wrote


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_of_burn_is_read_and_written_again_byte_for_byte(name: str) -> None:
    data = FILES[name].read_bytes()
    parts = read(data)

    again = write(parts)

    assert parts.family == "burn"
    if parts.facts["current"] and not parts.facts.get("versions") and not name.endswith("nothing.bpk"):
        assert again == data
    else:  # of an old layout or word, or with a store's own metadata: the same but for that
        other = read(again)
        assert {n: (t.dtype, t.shape, t.id, elements(t)) for n, t in tensors(other).items()} == {
            n: (t.dtype, t.shape, t.id, elements(t)) for n, t in tensors(parts).items()
        }
        assert other.facts == {"metadata": parts.facts["metadata"], "current": True}


@pytest.mark.parametrize("name", GOLDEN)
def test_with_a_stamp_only_its_key_and_the_offsets_it_moves_differ(name: str) -> None:
    golden = FILES[name].read_bytes()
    parts = read(golden)
    parts.notes["stamp"] = {"versions": {"acme": "1.0"}}

    stamped = write(parts, WriteOptions())

    table = table_of(stamped)
    assert json.loads(table["metadata"].pop("ckptmigrate")) == parts.notes
    if not table["metadata"]:
        del table["metadata"]
    assert table == table_of(golden)
    assert read(stamped).notes == parts.notes
    assert write(read(stamped)) == golden


@pytest.mark.parametrize("release", ["0.19.1", "0.20.1", "0.21.0"])
def test_every_element_type_has_its_name_shape_id_and_bytes(release: str) -> None:
    parts = read(MUSEUM / release / "dtypes.bpk")

    wanted = expected(release)["dtypes"]
    assert list(tensors(parts)) == [w["name"] for w in wanted]
    for want, found in zip(wanted, tensors(parts).values(), strict=True):
        assert (str(found.dtype), list(found.shape)) == (want["dtype"].upper().partition("(")[0], want["shape"])
        assert (found.id, elements(found).hex()) == (int(want["id_u64"]), want["bytes_hex"])
    assert parts.facts["current"] is (release == "0.21.0")
    assert parts.facts["metadata"] == {"k": "v"}


@pytest.mark.parametrize(
    "name", [n for n in FILES if n.count("/") == 1 and n.split("/")[1].startswith(("net.", "zoo."))]
)
def test_models_have_the_names_ids_and_values_that_burn_held(name: str) -> None:
    release, _, stem = name.removesuffix(".bpk").partition("/")
    parts = read(FILES[name])

    wanted = expected(release)[stem]
    assert [w.get("bpk_name", w["name"]) for w in wanted] == list(tensors(parts))
    for want, found in zip(wanted, tensors(parts).values(), strict=True):
        assert (list(found.shape), found.id) == (want.get("saved_shape", want["shape"]), int(want["id_u64"]))
        assert found.numpy().reshape(-1).tolist() == want.get("saved_values", want["values"])


def test_the_producer_is_a_fact_and_no_metadata() -> None:
    parts = read(MUSEUM / "0.19.1" / "net-metadata.bpk")

    assert parts.facts["versions"] == {"burn": "0.19.1"}
    assert len(parts.facts["metadata"]) == 3
    assert not {"format", "producer", "version"} & set(parts.facts["metadata"])
    assert read(MUSEUM / "0.19.1" / "net-nometadata.bpk").facts == {"metadata": {}, "current": False}


def test_a_name_that_lost_its_tensor_is_told() -> None:
    parts = read(MUSEUM / "0.19.1" / "twin.bpk")

    assert list(tensors(parts)) == ["twin.weight", "twin.bias"]
    (said,), (layout,) = parts.warnings, parts.doubts
    assert said.startswith("12 bytes at 205 belong to no name")
    assert layout.startswith("an unaligned file")


def test_scalars_keep_their_kind() -> None:
    assert scalars(read(MUSEUM / "0.22.1" / "scheduler-composed.bpk")) == {
        "0.0.remaining_iters": Scalar("uint", 8),
        "0.1.step": Scalar("float", 3.0),
    }
    assert scalars(read(MUSEUM / "0.22.1" / "scheduler-step-fresh.bpk")) == {"0.iter_idx": Scalar("int", -1)}
    assert (read(MUSEUM / "0.22.1" / "scheduler-constant.bpk").tensors, write(Parts(tree=None, tensors={}))) == (
        {},
        (MUSEUM / "0.22.1" / "scheduler-constant.bpk").read_bytes(),
    )


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("0.22.1/") and "/quant-" not in n])
def test_burn_itself_reads_the_same(name: str) -> None:
    told = referee("read", FILES[name])
    parts = read(FILES[name])

    assert told["ok"]
    assert {t["name"]: (t["shape"], t["param_id"]) for t in told["tensors"]} == {
        n: (list(t.shape), None if t.id is None else str(t.id)) for n, t in tensors(parts).items()
    }
    kinds = {"uint": "UInt", "int": "Int", "float": "Float", "bool": "Bool"}
    assert told["scalars"] == {n: {kinds[s.kind]: s.value} for n, s in scalars(parts).items()}
    assert {k: v for k, v in told["metadata"].items() if k not in {"format", "producer", "version"}} == parts.facts[
        "metadata"
    ]


# --- which layout it is


def three(lengths: tuple[int, ...], *, aligned: bool, metadata: dict[str, str] | None = None, fill: int = 1) -> bytes:
    """Give a file of either layout as its writer laid it."""
    at, entries, data = 0, {}, bytearray()
    for number, length in enumerate(lengths):
        at = -(-at // ALIGNMENT) * ALIGNMENT if aligned else at
        data += bytes(at - len(data)) + bytes([fill]) * length
        entries[f"t{number}"] = entry(at, at + length)
        at += length
    table = {"tensors": entries} | ({"metadata": metadata} if metadata else {})
    return file(table, bytes(data), aligned=aligned)


@given(lengths=st.lists(st.sampled_from([0, 1, 4, 255, 256, 257, 512]), max_size=4), aligned=st.booleans())
def test_the_two_layouts_are_told_apart(lengths: list[int], aligned: bool) -> None:
    parts = read(three(tuple(lengths), aligned=aligned))

    assert {n: elements(t) for n, t in tensors(parts).items()} == {f"t{i}": b"\x01" * n for i, n in enumerate(lengths)}
    if any(lengths):
        assert parts.facts["current"] is aligned
    assert [w.split(",")[0] for w in parts.doubts] == ["an unaligned file"] * (any(lengths) and not aligned)


OLD = {"format": "burnpack", "producer": "burn", "version": "0.19.0"}


@pytest.mark.parametrize("lengths", [(4,), (256, 4), (300,), (1024,), (256, 256)])
def test_an_aligned_file_that_lost_its_padding_is_not_taken_for_the_old_layout(lengths: tuple[int, ...]) -> None:
    whole = three(lengths, aligned=True)
    padding = -(HEADER + int.from_bytes(whole[6:10], "little")) % ALIGNMENT

    with pytest.raises(TruncatedError, match=rf"expected at least {len(whole)} bytes, got {len(whole) - padding}"):
        read(whole[:-padding])


def test_zeros_in_front_are_data_where_the_file_names_its_release() -> None:
    data = three((256, 4), aligned=False, metadata=OLD, fill=0)

    assert {n: len(elements(t)) for n, t in tensors(read(data)).items()} == {"t0": 256, "t1": 4}


@pytest.mark.parametrize("aligned", [True, False])
def test_bytes_behind_the_last_tensor_are_told_and_left_out(aligned: bool) -> None:
    parts = read(three((4, 300), aligned=aligned) + b"x" * 5)

    assert [len(elements(t)) for t in tensors(parts).values()] == [4, 300]
    assert parts.warnings == ["5 bytes behind the last tensor belong to no name and are left out"]
    assert len(parts.doubts) == (not aligned)


def test_sniffing_says_what_todays_burn_does_not_open() -> None:
    told = {
        name: burnpack.sniff(Memory(path.read_bytes())).current  # type: ignore[union-attr]
        for name, path in FILES.items()
    }

    assert [n for n, current in told.items() if current is False and n not in OLD_QUANTISED + STUMPS] == [
        n for n in WHOLE if n.startswith("0.19.1/") and "/golden/" not in n and not n.endswith("/nothing.bpk")
    ] + [n for n in WHOLE if n in {"0.20.1/dtypes.bpk", "0.20.1/zoo.bpk"}]
    assert burnpack.sniff(Memory(b"NRUB")) is not None
    assert burnpack.sniff(Memory(b"NRU")) is None
    assert burnpack.sniff(Memory(file({"tensors": 3}))) is not None


@pytest.mark.parametrize("name", STUMPS)
def test_a_stump_is_called_one_in_burns_own_words(name: str) -> None:
    scheme = name.partition("broken-quant-")[2].removesuffix(".bpk")
    odd = (9, 13) if name.startswith("0.19") else (16, 13)  # later releases declared whole groups of four
    declared, got = odd if scheme == "q8s-odd" else (32, 64 if "block" in scheme else 36)
    words = rf"tensor '0\.weight' has inconsistent length \(expected {declared}, got {got}\)"

    with pytest.raises(TruncatedError, match=words) as caught:
        read(FILES[name], dequantize=True)

    assert "save the model again" in caught.value.hints[0]


# --- spellings


@pytest.mark.parametrize(
    ("word", "raw", "values", "current"),
    [
        ("Bool", "0001", [False, True], False),
        ({"Bool": "Native"}, "0001", [False, True], True),
        ({"Bool": "U8"}, "0002", [False, True], True),
        ({"Bool": "U32"}, "0000000000010000", [False, True], True),
        ("Flex32", "0000803f00000040", [1.0, 2.0], True),
        ("I16", "0100ffff", [1, -1], True),
    ],
)
def test_words_for_one_type_are_read_and_written_in_todays_spelling(
    word: Any, raw: str, values: Any, current: bool
) -> None:
    parts = read(file({"tensors": {"w": entry(0, len(raw) // 2, word, [2])}}, bytes.fromhex(raw)))

    found = tensors(parts)["w"]
    assert (found.numpy().tolist(), parts.facts["current"]) == (values, current)
    again = table_of(write(parts))["tensors"]["w"]["dtype"]
    assert again == ({"Bool": "Native"} if found.dtype == BOOL else "F32" if word == "Flex32" else word)


@pytest.mark.parametrize(
    "word", ["F8", "bool", {"Bool": "U16"}, {"Bool": "Native", "x": 1}, 7, ["F32"], {"QFloat": 1, "x": 2}, None]
)
def test_other_words_are_refused_by_name(word: Any) -> None:
    with pytest.raises(CkptError, match='tensor "w" has'):
        read(file({"tensors": {"w": entry(0, 4, word, [1])}}, bytes(4)))


# --- what is refused


def big(text: bytes, count: int) -> bytes:
    return b"\xbb" + count.to_bytes(8, "big") + text


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"NRUB\x01\x00\x00\x00\x00", TruncatedError, r"9 bytes, the header takes 10 \(Burn: Invalid header"),
        (b"NRUC" + bytes(20), CorruptError, r"Invalid magic number"),
        (b"NRUB\x02\x00" + bytes(20), UnsupportedFormatError, r"version 2, known is 1"),
        (b"NRUB\x01\x00\xff\xff\xff\xff" + bytes(20), LimitError, r"claims 4294967295 bytes, Burn reads 104857600"),
        (b"NRUB\x01\x00\xff\xff\x00\x00" + bytes(20), TruncatedError, r"a table of 65535 bytes, the file has 20"),
        (file({}), CorruptError, r"missing field `tensors`"),
        (file({"tensors": {}, 3: 4}), CorruptError, r"expected a key"),
        (file([1]), CorruptError, r"an array at byte 10, expected the map of all"),
        (file(cbor2.dumps({"tensors": {}}) + b"\x00"), CorruptError, r"ends at byte 20, and claims to end at 21"),
        (file(b"\xa1\x67tensors" + big(b"", 1 << 40)), CorruptError, r"2199023255552 items"),
        (file(b"\xa1\x67tensors\xa2\x61w" + cbor2.dumps(entry(0, 1)) + b"\x61w" + cbor2.dumps(entry(0, 1)), b"x"), CorruptError, r'the key "w" twice'),
        (file(b"\xa2\x67tensors\xa0\x67tensors\xa0"), CorruptError, r'the key "tensors" twice'),
        (file({"tensors": {"w": {"dtype": "U8", "shape": [1]}}}), CorruptError, r'"w" has no data_offsets'),
        (file({"tensors": {"w": {"dtype": "U8"}}}), CorruptError, r"no shape and no data_offsets"),
        (file({"tensors": {"w": entry(0, 1, shape=[-1])}}), CorruptError, r"an integer at byte \d+, expected a length"),
        (file({"tensors": {"w": entry(0, 1, shape=3)}}), CorruptError, r"expected the shape"),
        (file({"tensors": {"w": entry(0, 1, shape=[1] * 65)}}), LimitError, r"65 dimensions, limit is 64"),
        (file({"tensors": {"w": entry(0, 1) | {"data_offsets": [0, 1, 2]}}}), CorruptError, r"3 data_offsets, expected 2"),
        (file({"tensors": {"w": entry(4, 1, shape=[1])}}), CorruptError, r"begins at 4, after its end at 1"),
        (file({"tensors": {"w": entry(0, 1 << 40)}}), LimitError, r"claims 1099511627776 bytes, Burn reads 10737418240"),
        (file({"tensors": {"w": entry(0, 4, "F32", [2])}}, bytes(4)), CorruptError, r"tensor 'w' declares 4 bytes but its shape \[2\] and dtype F32 need 8"),
        (file({"tensors": {"w": entry(0, 8, "F32", [1 << 62, 1 << 62])}}, bytes(8)), CorruptError, r"need \d{30}"),
        (file({"tensors": {"w": entry(0, 4), "x": entry(2, 6)}}, bytes(6)), CorruptError, r'"x" begins at 2, overlaps "w", which ends at 4'),
        (file({"tensors": {"w": entry(0, 400)}}, bytes(399)), TruncatedError, r'File truncated: expected at least 656 bytes, got 655; "w"'),
        (file({"tensors": {"w": entry(1 << 63, (1 << 63) + 1)}}, bytes(399)), TruncatedError, r"File truncated"),
        (file({"tensors": {"w": entry(0, 1, param_id=-1)}}, b"x"), CorruptError, r"expected an id"),
        (file({"tensors": {"w": entry(0, 1, param_id=True)}}, b"x"), CorruptError, r"param_id that is no integer"),
        (file({"tensors": {"w": entry(0, 12, {"QFloat": WORD}, [9])}}, bytes(12)), CorruptError, r"declares 12 bytes but its shape \[9\].* need 13"),
        (file({"tensors": {}, "metadata": {"a": 1}}), CorruptError, r"expected metadata"),
        (file({"tensors": {}, "metadata": {"ckptmigrate": "["}}), CorruptError, r"ckptmigrate"),
        (file({"tensors": {}, "metadata": {"ckptmigrate": '{"ties":3}'}}), CorruptError, r"ties"),
        (file({"tensors": {}, "metadata": {"ckptmigrate": '{"ties":{"a":"b"}}'}}), CorruptError, r'ties "a" to "b", and one of them is not there'),
        (file({"tensors": {"a": entry(0, 1), "b": entry(256, 258)}, "metadata": {"ckptmigrate": '{"ties":{"b":"a"}}'}}, bytes(258)), CorruptError, r"another shape"),
        (file({"tensors": {}, "metadata": {"ckptmigrate": '{"ckptmigrate":2}'}}), UnsupportedFormatError, r"this release reads 1"),
        (file({"tensors": {}, "scalars": {"a": 1}}), CorruptError, r'expected scalar "a"'),
        (file({"tensors": {}, "scalars": {"a": {}}}), CorruptError, r"an empty map"),
        (file({"tensors": {}, "scalars": {"a": {"UInt": 1, "Int": 2}}}), CorruptError, r"variant"),
        (file({"tensors": {}, "scalars": {"a": {"Text": 1}}}), CorruptError, r"unknown variant, expected one of `Int`, `UInt`, `Float`, `Bool`"),
        (file({"tensors": {}, "scalars": {"a": {"UInt": -1}}}), CorruptError, r'expected scalar "a"'),
        (file({"tensors": {}, "scalars": {"a": {"Int": 1 << 63}}}), CorruptError, r"holds 9223372036854775808"),
        (file({"tensors": {}, "scalars": {"a": {"Float": True}}}), CorruptError, r"kind Float holds True"),
        (file({"tensors": {}, "scalars": {"a": {"Bool": 0.0}}}), CorruptError, r"kind Bool holds 0.0"),
        (file({"tensors": {"a": entry(0, 1)}, "scalars": {"a": {"UInt": 1}}}, b"x"), CorruptError, r"a tensor and a scalar"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_with_name_and_numbers(data: bytes, error: type[CkptError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read(data, dequantize=True)

    assert caught.value.path == "example"


def test_what_burn_takes_as_well_is_read() -> None:
    table = {
        "later": [1, {"x": [None, 2.5]}, cbor2.CBORTag(3, b"raw")],
        "tensors": {"b": entry(256, 257, more={"x": 1}, param_id=None), "a": entry(0, 1, param_id=(1 << 64) - 1)},
    }

    parts = read(file(table, b"x" + bytes(255) + b"y"))

    assert {n: (t.id, elements(t)) for n, t in tensors(parts).items()} == {
        "a": ((1 << 64) - 1, b"x"),
        "b": (None, b"y"),
    }


@pytest.mark.parametrize(
    ("table", "limits"),
    [
        (b"\xa1\x61x\x9a" + (8 << 20).to_bytes(4, "big") + b"\x80" * (8 << 20), Limits()),
        (b"\xa1\x61x" + b"\x81" * (8 << 20), Limits()),
        (b"\xa1\x61x" + b"\xd8\x20" * (4 << 20), Limits()),
        (dumps({"tensors": {"w": {"dtype": [[["x"] * 30] * 30]}}}), Limits()),
        (dumps({"tensors": {"w": {"dtype": json.loads("[" * 100 + "]" * 100)}}}), Limits()),
        (dumps({"tensors": {f"{i}": entry(0, 0) for i in range(11)}}), Limits(tensors=10)),
        (dumps({"tensors": {f"{i}": entry(0, 0) for i in range(TENSORS_MAX + 1)}}), Limits()),
        (dumps({"tensors": {}, "metadata": {f"{i}": "" for i in range(400_001)}}), Limits()),
        (dumps({"tensors": {}, "scalars": {f"{i}": {"UInt": 1} for i in range(11)}}), Limits(tensors=10)),
        (dumps({"tensors": {"n" * 65_537: entry(0, 0)}}), Limits()),
    ],
    ids=["many", "deep", "tags", "word", "deep word", "tensors", "most tensors", "metadata", "scalars", "name"],
)  # fmt: skip
def test_bombs_are_refused_in_seconds(table: bytes, limits: Limits) -> None:
    start = time.monotonic()
    with pytest.raises(LimitError):
        read(file(table), limits=limits)

    assert time.monotonic() - start < 8
