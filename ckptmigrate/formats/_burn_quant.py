"""Burn's quantised tensors, 0.14 to 0.23: what each release wrote under `QFloat`, and the numbers it stands for.

    0.14, 0.15     {"PerTensorAffineInt8": {"scale": f32, "offset": i8, …}} or {"PerTensorSymmetricInt8": {"scale": f32, …}}
                   values
    0.16           {"PerTensorAffine": "QInt8"} or {"PerTensorSymmetric": "QInt8"}
                   values ‖ to a multiple of 4 ‖ offset i32, affine only ‖ scale f32
    0.17           {"PerTensor": ["Symmetric", "QInt8"]}                                         as 0.16, symmetric
    0.18           {"level": "Tensor", "mode": "Symmetric", "q_type": "QInt8", "acc_precision", "propagation"}       as 0.17
    0.19 - 0.21    {"value", "param", "store", "level": "Tensor" | {"Block": {"storage", "len"}}, "mode"}
                   values ‖ one scale a tensor, or one a block: a run of consecutive elements, whatever the block's shape
    since 0.22     {"value", "store", "mode", "tensor": SCALE | null, "block": {"size": {"storage", "len"}, "dtype": SCALE} | null}
                   values ‖ the scales of a grid of blocks, row-major ‖ with both, one scale f32 for all

A value is one signed byte (store `Native`), or packed along the last axis, the lowest bits first, each line in whole words
(`PackedU32`, `PackedNative`). A number is scale * value, affine scale * (value - offset), two levels (all * block) * value, each
product rounded to f32: bit for bit what Burn makes of them. `E4M3`, `E5M2`, `E2M1` are integers in the Native bytes of 0.22 and codes
of small floats in those of 0.23.0-pre.1; nothing in the file tells which, so they are read as 0.22 reads them, and that is said.

Only what real files were seen to hold is read: other stores and values of 0.19 to 0.21, and `Lookup`, are refused by name.
Sources: formats/burn.md 4.3; burn-tensor/src/tensor/quantization of 0.14 to 0.19, cubecl-common/src/quant/scheme.rs 0.8 to 0.12.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ckptmigrate.dtypes import BF16, F16, F32, I32, QINT8, U8, DType
from ckptmigrate.errors import CorruptError, TensorError
from ckptmigrate.tensor import Made, Quantisation, Tensor, View, array, cast, expand, fill
from ckptmigrate.tensor.rules import DequantiseChannels
from ckptmigrate.values import dumps, loads

from ._burn_dtypes import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from ckptmigrate.files import Range
    from ckptmigrate.tensor import Promise, Shape

BITS = {"Q8F": 8, "Q8S": 8, "Q4F": 4, "Q4S": 4, "Q2F": 2, "Q2S": 2, "E4M3": 8, "E5M2": 8, "E2M1": 4}
MINIFLOATS = {"E4M3": (4, 3, True), "E5M2": (5, 2, False), "E2M1": (2, 1, True)}  # exponent, mantissa, top is a number
SCALES: dict[str, DType] = {"F32": F32, "F16": F16, "BF16": BF16, "UE8M0": U8, "UE4M3": U8}
WORDS = {"PackedU32": 4, "PackedNative": 1}
PIECE = 1 << 18  # elements made at once
PREFIX = "burn "  # of Quantisation.scheme, before the word as the file has it
RANK = 8  # the most axes that a Burn tensor has


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way of holding numbers in few bits."""

    word: str  # as the file has it, JSON
    value: str = "Q8S"
    word_bytes: int = 0  # of packed values; 0: a byte each
    scale: str = "F32"
    block: tuple[int, ...] = ()  # its shape, () is one scale a tensor
    runs: bool = False  # a block is a run of consecutive elements
    overall: str | None = None  # the second scale, for all
    padded: bool = False  # values fill whole groups of four, and offset and scale stand last
    offset: bool = False  # an offset i32 before the scale
    given: tuple[float, int] | None = None  # scale and offset stand in the word itself
    now: bool = False  # of today's schema
    current: bool = False  # today's Burn reads it

    @property
    def text(self) -> str:
        """The word, as messages show it."""
        return f"QFloat({self.word})"

    def grid(self, shape: Shape) -> Shape:
        """Give how many blocks there are along each axis; of runs, along one."""
        if self.runs:
            return (-(-prod(shape) // prod(self.block)),)
        return tuple(-(-length // size) for length, size in zip(shape, self.blocks(shape), strict=True))

    def blocks(self, shape: Shape) -> Shape:
        """Give the block's length along each axis."""
        if not self.block:
            return tuple(max(1, length) for length in shape)
        if len(self.block) > len(shape):
            raise CorruptError(f"blocks of {list(self.block)} in a tensor of {list(shape)}")
        return (1,) * (len(shape) - len(self.block)) + self.block

    def parts(self, shape: Shape) -> tuple[int, int, int]:
        """Give the bytes of the values, of the block scales (or offset and scale), and of the scale for all."""
        count = prod(shape)
        if self.given is not None:
            return count, 0, 0
        if self.padded:
            return -(-count // 4) * 4, 4 + 4 * self.offset, 0
        values = count
        if self.word_bytes:
            line = shape[-1] if shape else 1
            words = -(-line // (8 * self.word_bytes // BITS[self.value]))
            values = count // line * words * self.word_bytes if line else 0
        scales = prod(self.grid(shape)) if self.block else 1
        return values, scales * SCALES[self.scale].itemsize, SCALES[self.overall].itemsize if self.overall else 0

    def needs(self, shape: Shape) -> int:
        """Give the bytes of a tensor."""
        return sum(self.parts(shape))


def scheme(word: Any) -> Scheme:
    """Give what stands under `QFloat`; TensorError for what no real file was seen to hold."""
    refused = TensorError(f"the quantisation {as_text(word)}, which is not known", dtype=as_text(word))
    if not isinstance(word, dict):
        raise refused
    text = dumps(word)
    match word:
        case {"PerTensorAffineInt8": {"scale": float(scale), "offset": int(offset)}}:
            return Scheme(text, given=(scale, offset))
        case {"PerTensorSymmetricInt8": {"scale": float(scale)}}:
            return Scheme(text, given=(scale, 0))
        case {"PerTensorAffine": "QInt8"}:
            return Scheme(text, padded=True, offset=True)
        case {"PerTensorSymmetric": "QInt8"} | {"PerTensor": ["Symmetric", "QInt8"]}:
            return Scheme(text, padded=True)
        case {"level": "Tensor", "mode": "Symmetric", "q_type": "QInt8"}:
            return Scheme(text, padded=True)
        case {
            "value": "Q8F" | "Q8S" as value,
            "param": "F32",
            "store": "Native",
            "level": "Tensor",
            "mode": "Symmetric",
        }:
            return Scheme(text, value, current=True)
        case {
            "value": "Q8F" | "Q8S" as value, "param": "F32", "store": "Native", "level": {"Block": size}, "mode": "Symmetric"
        }:  # fmt: skip
            if block := _block(size):
                return Scheme(text, value, block=block, runs=True)
        case {"value": value, "store": store, "mode": "Symmetric"} if not {"param", "level"} & set(word):
            found = _today(text, value, store, word.get("tensor"), word.get("block"))
            if found is not None:
                return found
    raise refused


def _today(text: str, value: Any, store: Any, tensor: Any, block: Any) -> Scheme | None:
    if str(value) not in BITS or not (tensor is None or str(tensor) in SCALES):  # a list is no key of a dict
        return None
    found = Scheme(text, value, scale=tensor or "F32", now=True, current=store == "Native")
    if isinstance(store, dict) and len(store) == 1:
        ((name, axis),) = store.items()
        if name not in WORDS or axis != 0 or type(axis) is not int:
            return None
        found = replace(found, word_bytes=WORDS[name])
    elif store != "Native":
        return None
    if block is None:
        return found
    match block:
        case {"size": size, "dtype": str(dtype)} if dtype in SCALES and (lengths := _block(size)):
            return replace(found, scale=dtype, block=lengths, overall=tensor)
    return None


def _block(size: Any) -> tuple[int, ...]:
    match size:
        case {"storage": list(storage), "len": int(count)} if 0 < count <= len(storage) <= RANK:
            lengths = tuple(storage[:count])
            return lengths if all(type(n) is int and 0 < n < 256 for n in lengths) else ()
    return ()


def held(place: Range, found: Scheme, shape: Shape) -> Tensor:
    """Give the tensor as its integers with all that turns them into numbers: what a writer may copy byte for byte."""
    values, *rest = found.parts(shape)
    scale = Tensor(View.rows(place.part(values, sum(rest)), U8, (sum(rest),)))
    return Tensor(View.rows(place.part(0, values), QINT8, shape), quant=Quantisation(PREFIX + found.word, scale, 0))


def copied(tensor: Tensor) -> tuple[Any, Promise] | None:
    """Give the word and the scales of a tensor that ``held`` gave and nobody changed since; None for any other."""
    quant, promise = tensor.quant, tensor.promise
    if quant is None or not quant.scheme.startswith(PREFIX) or not isinstance(quant.scale, Tensor):
        return None
    word = loads(quant.scheme.removeprefix(PREFIX))
    values, scales = promise.plain(), quant.scale.promise.plain()
    found = scheme(word)
    if (
        not can_copy(found)
        or values is None
        or scales is None
        or values.nbytes + scales.nbytes != found.needs(promise.shape)
    ):
        return None
    beside = scales.file is values.file and scales.offset == values.offset + values.nbytes
    return (word, quant.scale.promise) if beside or not values.nbytes else None


def can_copy(found: Scheme) -> bool:
    """Say whether today's Burn means the same by the same bytes."""
    return found.now and found.current


def numbers(place: Range, found: Scheme, shape: Shape) -> Promise:
    """Give the F32 numbers of a tensor whose bytes are a range of exactly ``needs(shape)``; nothing is drawn."""
    values, scales, overall = found.parts(shape)
    simple = not found.block and not found.word_bytes and SCALES[found.scale] != U8
    if not simple or not prod(shape):
        rule = Unpacked(found, tuple(shape))
        return Made((View.rows(place, U8, (values + scales + overall,)),), rule)
    flat = (1,) * len(shape)
    zero: Promise = fill(0, I32, flat)
    if found.given is not None:
        import numpy as np  # noqa: PLC0415 - a number becomes an array

        scale = array(np.array(found.given[0], "<f4").reshape(flat))
        zero = fill(found.given[1], I32, flat)
    else:
        dtype = SCALES[found.scale]
        last = place.part(values + scales - dtype.itemsize, dtype.itemsize)
        scale = cast(View.rows(last, dtype, flat), F32)
        if found.offset:
            zero = View.rows(place.part(values, 4), I32, flat)
    whole = View.rows(place.part(0, prod(shape)), QINT8, shape)
    return Made((whole, expand(scale, shape), expand(zero, shape)), DequantiseChannels())


@dataclass(frozen=True, slots=True)
class Unpacked:
    """F32 numbers of packed values, or of values with a scale a block; drawn whole and once, a window at a time."""

    scheme: Scheme
    shape: Shape
    dtype: ClassVar[DType] = F32
    elementwise: ClassVar[Literal[False]] = False

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Give all numbers, row-major."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        (raw,) = inputs
        count = prod(self.shape)
        values, scales, _ = self.scheme.parts(self.shape)
        overall = None
        if self.scheme.overall:
            overall = _scales(raw.read(values + scales, raw.numel), self.scheme.overall)[0]
        with np.errstate(all="ignore"):
            for start in range(0, count, PIECE):
                index = np.arange(start, min(start + PIECE, count))
                scale = self._scale(raw, values, index)
                if overall is not None:
                    scale = overall * scale
                yield scale * self._values(raw, index)

    def _values(self, raw: Promise, index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Give the values of elements as F32."""
        import numpy as np  # noqa: PLC0415 - same

        wide, bits = self.scheme.word_bytes, BITS[self.scheme.value]
        if not wide:
            data = raw.read(int(index[0]), int(index[-1]) + 1)
            return np.frombuffer(data, "i1").astype("<f4")
        per = 8 * wide // bits
        line = self.shape[-1] if self.shape else 1
        row, column = np.divmod(index, line)
        word = row * -(-line // per) + column // per
        first = int(word[0])
        data = raw.read(first * wide, (int(word[-1]) + 1) * wide)
        words = np.frombuffer(data, f"<u{wide}")[word - first].astype("u4")
        codes = words >> (bits * (column % per)).astype("u4") & ((1 << bits) - 1)
        return _decoded(self.scheme.value, bits)[codes]  # type: ignore[no-any-return]

    def _scale(self, raw: Promise, begin: int, index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Give the block scale of each element."""
        import numpy as np  # noqa: PLC0415 - same

        found, width = self.scheme, SCALES[self.scheme.scale].itemsize
        if not found.block:
            return _scales(raw.read(begin, begin + width), found.scale)
        if found.runs:
            block = index // prod(found.block)
        else:
            block, rest = np.zeros_like(index), index
            stride = 1
            for length, size, blocks in zip(
                reversed(self.shape), reversed(found.blocks(self.shape)), reversed(found.grid(self.shape)), strict=True
            ):
                rest, at = np.divmod(rest, length)
                block += at // size * stride
                stride *= blocks
        low, high = int(block.min()), int(block.max()) + 1
        return _scales(raw.read(begin + low * width, begin + high * width), found.scale)[block - low]  # type: ignore[no-any-return]


def _scales(raw: memoryview, name: str) -> np.ndarray[Any, Any]:
    """Give scales as F32."""
    import numpy as np  # noqa: PLC0415 - same

    if name == "UE8M0":
        exponents = np.frombuffer(raw, "u1").astype("<f8") - 127
        return np.exp2(exponents).astype("<f4")  # type: ignore[no-any-return]
    if name == "UE4M3":
        return _codes(4, 3, top=True)[np.frombuffer(raw, "u1")]  # type: ignore[no-any-return]
    return np.frombuffer(raw, SCALES[name].numpy_dtype()).astype("<f4")


def _decoded(value: str, bits: int) -> np.ndarray[Any, Any]:
    """Give the number that each packed code stands for."""
    import numpy as np  # noqa: PLC0415 - same

    if value in MINIFLOATS:
        exponent, mantissa, top = MINIFLOATS[value]
        return _codes(exponent, mantissa, top=top)
    codes = np.arange(1 << bits)
    return np.where(codes >> (bits - 1), codes - (1 << bits), codes).astype("<f4")


def _codes(exponent: int, mantissa: int, *, top: bool) -> np.ndarray[Any, Any]:
    """Give the numbers of a small float's codes; ``top``: the largest exponent holds numbers too, not infinity and NaN."""
    import numpy as np  # noqa: PLC0415 - same

    codes = np.arange(1 << (1 + exponent + mantissa))
    sign = np.where(codes >> (exponent + mantissa), -1.0, 1.0)
    power, rest = codes >> mantissa & ((1 << exponent) - 1), codes & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    fraction = rest / (1 << mantissa)
    found = np.where(power == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * np.exp2(power - bias))
    if not top:
        found = np.where(power == (1 << exponent) - 1, np.where(rest == 0, np.inf, np.nan), found)
    return (sign * found).astype("<f4")
