"""Quantised tensors of Burn: every scheme that real files hold gives Burn's own numbers, bit by bit, or is carried or refused."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import F32, QINT8
from ckptmigrate.errors import CkptError, TensorError
from ckptmigrate.files import Disk, Range
from ckptmigrate.format import ReadOptions
from ckptmigrate.formats import _burn_quant as quant
from ckptmigrate.formats import burnpack
from ckptmigrate.tensor import Quantisation, Tensor

from .burnpack_desk import (
    FILES,
    MUSEUM,
    OLD_QUANTISED,
    WORD,
    entry,
    expected,
    file,
    lay_out,
    read,
    tensors,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(name="disk")
def _disk() -> Iterator[Disk]:
    with Disk() as disk:
        yield disk


# --- quantised tensors


def bits(values: Any) -> list[bytes]:
    return [struct.pack("<f", value) for value in values]


@pytest.mark.parametrize(
    ("release", "scheme"),
    [("0.22.1", n.partition("quant-")[2].removesuffix(".bpk")) for n in FILES if n.startswith("0.22.1/quant-")]
    + [(n.split("/")[0], n.partition("quant-")[2].removesuffix(".bpk")) for n in OLD_QUANTISED],
)
def test_dequantised_numbers_are_burns_bit_by_bit(release: str, scheme: str, disk: Disk) -> None:
    told = expected(release, "quant-expected.json" if release == "0.22.1" else "expected.json")["quant"][scheme]
    path = MUSEUM / release / f"quant-{scheme}.bpk"

    found = tensors(burnpack.read(disk.open(path), ReadOptions(dequantize=True)))

    assert set(found) == {want["name"] for want in told["values"]}
    for want in told["values"]:
        one = found[want["name"]]
        assert (one.dtype, list(one.shape), one.id, one.quant) == (F32, want["shape"], int(want["id_u64"]), None)
        assert bits(one.numpy().reshape(-1)) == bits(want["values"])


@pytest.mark.parametrize("release", ["0.14.0", "0.15.0", "0.17.1", "0.18.0", "0.19.1", "0.20.1", "0.21.0"])
def test_every_scheme_of_the_records_gives_burns_numbers(release: str, disk: Disk, tmp_path: Path) -> None:
    count = 0
    for name, told in expected(release)["quant"].items():
        path = MUSEUM / release / f"quant-{name}-full.json"
        if not path.exists():
            pytest.skip("the museum is not beside this checkout: shared/fixtures/burn")
        leaves = [leaf["param"] for leaf in params(json.loads(path.read_text())["item"])]
        for number, (leaf, want) in enumerate(zip(leaves, told.get("values") or told["dequantized"], strict=True)):
            if not isinstance(leaf["dtype"], dict):
                continue  # a bias that stayed as it was
            raw = tmp_path / f"{name}-{number}"
            raw.write_bytes(bytes(leaf["bytes"]))
            scheme, shape = quant.scheme(leaf["dtype"]["QFloat"]), tuple(leaf["shape"])
            found = quant.numbers(disk.open(raw).range(0, len(leaf["bytes"])), scheme, shape)

            assert scheme.needs(shape) == len(leaf["bytes"])
            assert bits(Tensor(found).numpy().reshape(-1)) == bits(want["values"])
            count += 1
    assert count >= 2


def params(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return [node] if set(node) == {"id", "param"} else [leaf for below in node.values() for leaf in params(below)]
    return [leaf for below in node for leaf in params(below)] if isinstance(node, list) else []


BITS = {"Q8S": 8, "Q4F": 4, "Q4S": 4, "Q2F": 2, "Q2S": 2, "E4M3": 8, "E5M2": 8, "E2M1": 4}


def minifloat(code: int, exponent: int, mantissa: int, top: bool) -> float:
    sign = -1.0 if code >> (exponent + mantissa) & 1 else 1.0
    e, m = code >> mantissa & ((1 << exponent) - 1), code & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    if e == 0:
        return sign * m * 2.0 ** (1 - bias - mantissa)
    if not top and e == (1 << exponent) - 1:
        return sign * (math.inf if m == 0 else math.nan)
    return sign * (1 + m / (1 << mantissa)) * 2.0 ** (e - bias)


@given(
    value=st.sampled_from(sorted(BITS)),
    store=st.sampled_from(["PackedU32", "PackedNative"]),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=2).flatmap(lambda s: st.just((*s, 7))),
    block=st.sampled_from([None, (2,), (2, 3)]),
    seed=st.integers(0, 99),
)
def test_packed_values_are_taken_apart_line_by_line(
    value: str, store: str, shape: tuple[int, ...], block: tuple[int, ...] | None, seed: int
) -> None:
    """The oracle is the slow reader beside the fixtures (check_quant_current.py), which agreed with 0.23.0-pre.1."""
    size = {"storage": [*(block or ()), 1, 1, 1][:5], "len": len(block or ())}
    word = WORD | {"value": value, "store": {store: 0}, "block": block and {"size": size, "dtype": "F32"}}
    scheme = quant.scheme(word)
    raw = np.random.default_rng(seed).integers(0, 256, scheme.needs(shape), np.uint8)
    values, scales, _ = scheme.parts(shape)
    raw[values:].view("<f4")[:] = np.random.default_rng(seed).standard_normal(scales // 4).astype("<f4")
    with Disk() as disk:
        place = Range(disk.spill("raw", len(raw), lambda put: put(raw.tobytes())), 0, len(raw))
        found = Tensor(quant.numbers(place, scheme, shape)).numpy()

    width = 4 if store == "PackedU32" else 1
    per = 8 * width // BITS[value]
    words = -(-shape[-1] // per)
    wanted = np.zeros(shape, "<f4")
    grid = scheme.grid(shape) if block else ()
    lengths = scheme.blocks(shape)
    for index in np.ndindex(shape):
        line = int(np.ravel_multi_index(index[:-1], shape[:-1]))
        at = (line * words + index[-1] // per) * width
        code = int.from_bytes(raw[at : at + width].tobytes(), "little") >> BITS[value] * (index[-1] % per)
        code &= (1 << BITS[value]) - 1
        table = {"E4M3": (4, 3, True), "E5M2": (5, 2, False), "E2M1": (2, 1, True)}.get(value)
        number = minifloat(code, *table) if table else code - (1 << BITS[value]) * (code >> BITS[value] - 1)
        which = (
            int(np.ravel_multi_index(tuple(i // b for i, b in zip(index, lengths, strict=True)), grid)) if block else 0
        )
        with np.errstate(all="ignore"):
            wanted[index] = np.float32(raw[values:].view("<f4")[which]) * np.float32(number)
    assert np.array_equal(found, wanted, equal_nan=True)


def test_large_block_tensors_are_drawn_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant, "PIECE", 5)
    shape = (4, 6)
    word = WORD | {"block": {"size": {"storage": [2, 3, 1, 1, 1], "len": 2}, "dtype": "F32"}}
    scheme = quant.scheme(word)
    values = np.arange(24, dtype="i1").reshape(shape)
    scales = np.array([[1, 10], [100, 1000]], "f4")
    with Disk() as disk:
        raw = values.tobytes() + scales.tobytes()
        place = Range(disk.spill("raw", len(raw), lambda put: put(raw)), 0, len(raw))
        found = Tensor(quant.numbers(place, scheme, shape)).numpy()

    assert np.array_equal(found, values * np.kron(scales, np.ones((2, 3))).astype("f4"))


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("0.22.1/quant-")])
def test_quantised_tensors_of_todays_schema_are_carried_as_they_are(name: str) -> None:
    parts = read(FILES[name])

    assert {t.dtype for t in tensors(parts).values()} == {QINT8}
    assert all(t.quant is not None for t in tensors(parts).values())
    assert write(parts) == FILES[name].read_bytes()


@pytest.mark.parametrize("name", OLD_QUANTISED)
def test_quantised_tensors_of_an_old_schema_are_refused_by_name(name: str) -> None:
    with pytest.raises(TensorError, match=r'tensor "\d\.weight" is quantised') as caught:
        read(FILES[name])

    assert caught.value.hints == ["--dequantize turns quantised tensors into F32"]


def test_a_quantised_tensor_that_was_changed_is_not_written() -> None:
    parts = read(MUSEUM / "0.22.1" / "quant-default.bpk")
    held = tensors(parts)["0.weight"]
    changed = [
        held.with_promise(held.promise.transpose((1, 0))),
        held.with_promise(held.promise.slice(0, 0, 2)),
        Tensor(held.promise),
        Tensor(held.promise, quant=Quantisation("per_tensor_affine", 1.0, 0)),
    ]

    for one in changed:
        (problem,) = lay_out({"0.weight": one}).problems
        assert "--dequantize makes it F32" in problem


def test_words_that_mean_two_things_are_told(disk: Disk) -> None:
    path = MUSEUM / "0.22.1" / "quant-e4m3-tensor.bpk"

    parts = burnpack.read(disk.open(path), ReadOptions(dequantize=True))

    assert len(parts.warnings) == len(tensors(parts))
    assert "0.23.0-pre.1" in parts.warnings[0]


@pytest.mark.parametrize(
    "word",
    [
        None, 3, "Q8S", {}, {"value": "Q8S"}, WORD | {"mode": "Lookup"}, WORD | {"value": "Q3S"}, WORD | {"store": "U32"},
        WORD | {"store": {"PackedU32": 1}}, WORD | {"store": {"PackedU32": False}}, WORD | {"tensor": "F64"},
        WORD | {"block": {"size": {"storage": [0], "len": 1}, "dtype": "F32"}}, WORD | {"block": {"size": {"storage": [2], "len": 2}, "dtype": "F32"}},
        WORD | {"block": {"size": {"storage": [2], "len": 1}, "dtype": "F64"}}, WORD | {"value": ["Q8S"]}, WORD | {"tensor": {}},
        {"value": "Q8S", "param": "F32", "store": {"PackedU32": 0}, "level": "Tensor", "mode": "Symmetric"},
        {"value": "Q4S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric"},
        {"PerTensorAffineInt8": {"scale": 1, "offset": 0}}, {"PerTensor": "QInt8"},
    ],
    ids=str,
)  # fmt: skip
def test_quantisations_that_nobody_saw_are_refused_by_name(word: Any) -> None:
    data = file({"tensors": {"w": entry(0, 12, {"QFloat": word}, [8])}}, bytes(12))

    with pytest.raises(CkptError, match='tensor "w" has'):
        read(data, dequantize=True)
