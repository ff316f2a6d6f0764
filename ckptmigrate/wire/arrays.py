r"""What numpy's names in pickles mean: dtypes, scalars, arrays. numpy itself is not asked.

    dtype     numpy.dtype("f8", False, True), BUILD (3, "<", subdtype, names, fields, -1, -1, 0[, units])
    scalar    numpy._core.multiarray.scalar(dtype, 8 bytes); of dtype "O" the object itself
    array     numpy._core.multiarray._reconstruct(numpy.ndarray, (0,), b"b"), BUILD (1, shape, dtype, is_fortran, bytes or list)
              numpy._core.numeric._frombuffer(bytes, dtype, shape, "C" or "F") at protocol 5

A scalar becomes Python's own number, exactly (dates: ISO 8601 text). An array of numbers becomes a tensor, one of objects, text
or dates nested lists; structured and long double types stay inert. numpy 1's `numpy.core` is the same under an older name.
A Python 2 payload was a string, so it may have been taken for text. Source: numpy's ``arraydescr_reduce``, ``array_reduce``.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BY_NUMPY
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Inert, Known

from .names import Meaning, harmless, show

if TYPE_CHECKING:
    from ckptmigrate.dtypes import DType

_NUMPY = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16", "u4": "uint32",
    "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip
_CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f2": "e", "f4": "f",
    "f8": "d",
}  # fmt: skip
_SECONDS = {"W": 604800, "D": 86400, "h": 3600, "m": 60, "s": 1}
_FRACTIONS = {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
_NAT = -(2**63)
_NDARRAYS = frozenset({"numpy.ndarray", "numpy.memmap", "numpy._core.memmap.memmap"})


def octets(value: Any, nbytes: int | None = None) -> bytes:
    """Give the bytes of a payload, which Python 2 wrote as a string that may have been taken for text."""
    if type(value) is Known and value.path == "builtins.bytearray" and value.args:
        value = value.args[0]
    if type(value) is str:
        data = value.encode("utf-8", "surrogatepass")
        value = data if nbytes in (None, len(data)) else value.encode("latin-1")
    if type(value) is not bytes:
        raise TypeError(f"a {type(value).__name__} where bytes should be")
    if nbytes is not None and len(value) != nbytes:
        raise ValueError(f"{len(value)} bytes, expected {nbytes}")
    return bytes(value)


# dtypes: Known("numpy.dtype", ("<f8",)), and of ml_dtypes ("bfloat16",)


def _dtype(args: tuple[Any, ...]) -> Any:
    code = args[0]
    if type(code) is Inert and code.kind == "name":
        name = code.path.rpartition(".")[2]
        return Known("numpy.dtype", (name,)) if name in BY_NUMPY else Inert("object", "numpy.dtype", args)
    if type(code) is not str or not code or len(code) > 32:
        raise TypeError(f"a dtype named by {show(code)}")
    return Known("numpy.dtype", (code,))


def _build_dtype(value: Any, state: Any) -> Any:
    if type(value) is Inert:
        value.state = state
        return value
    order, subdtype, names = state[1], state[2], state[3]
    if subdtype is not None or names is not None:
        return Inert("object", "numpy.dtype", value.args, state)
    code = value.args[0]
    if code in BY_NUMPY:
        return value
    if code[0] in "Mm" and len(state) > 8 and type(state[8]) is tuple:
        unit, count = state[8][-1][:2]
        code += f"[{count if count != 1 else ''}{unit if type(unit) is str else unit.decode('ascii')}]"
    elif code in ("S", "U", "V"):
        code += str(state[5] // (4 if code == "U" else 1))
    value.args = ((order if order in ("<", ">") else "|") + code,)
    return value


def _spelling(dtype: Any) -> tuple[str, bool] | None:
    """Give a dtype's code without its byte order, and whether it is big-endian; None for what no code spells."""
    if type(dtype) is not Known or dtype.path != "numpy.dtype" or not dtype.args:
        return None
    code = dtype.args[0]
    return code.lstrip("<>|="), code[0] == ">"


def _itemsize(code: str) -> int | None:
    if code in BY_NUMPY:
        return BY_NUMPY[code].itemsize
    digits = code[1:].partition("[")[0]
    if not digits.isdigit() or code[0] not in "biufcSUMm":
        return None
    return int(digits) * (4 if code[0] == "U" else 1)


def _numeric(code: str) -> DType | None:
    return BY_NUMPY.get(_NUMPY.get(code, code))


# scalars and elements


def _elements(code: str, big_endian: bool, data: bytes, count: int) -> list[Any] | None:
    """Give elements as plain values; None for types that have none."""
    order, kind, size = ">" if big_endian else "<", code[0], _itemsize(code)
    if code in _CODES:
        return list(struct.unpack(f"{order}{count}{_CODES[code]}", data))
    if code in ("c8", "c16"):
        parts = struct.unpack(f"{order}{2 * count}{'f' if code == 'c8' else 'd'}", data)
        return [Known("builtins.complex", pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    if kind not in "SUMm" or size is None or code in BY_NUMPY:
        return None
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [b""] * count
    if kind == "S":
        return [piece.rstrip(b"\0") for piece in pieces]
    if kind == "U":
        text = "utf-32-be" if big_endian else "utf-32-le"
        return [piece.decode(text, "surrogatepass").rstrip("\0") for piece in pieces]
    step = code.partition("[")[2].rstrip("]")
    unit = step.lstrip("0123456789")
    factor = int(step.removesuffix(unit) or 1)
    numbers = struct.unpack(f"{order}{count}q", data)
    return [_instant(n, n * factor, unit) if kind == "M" else _duration(n, n * factor, unit) for n in numbers]


def _instant(number: int, steps: int, unit: str) -> Any:
    """Give a date as numpy prints it."""
    if number == _NAT:
        return "NaT"
    if unit == "Y":
        return f"{1970 + steps:04}"
    if unit == "M":
        return f"{1970 + steps // 12:04}-{steps % 12 + 1:02}"
    digits = _FRACTIONS.get(unit, 0)
    seconds, fraction = divmod(steps, 10**digits) if digits else (steps * _SECONDS.get(unit, 0), 0)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return Inert("object", "numpy.datetime64", (number, unit))
    if unit in ("W", "D"):
        return date(moment.year, moment.month, moment.day).isoformat()
    if unit == "h":
        return moment.strftime("%Y-%m-%dT%H")
    if unit == "m":
        return moment.strftime("%Y-%m-%dT%H:%M")
    text = moment.replace(tzinfo=None).isoformat()
    return f"{text}.{fraction:0{digits}}" if digits else text


def _duration(number: int, steps: int, unit: str) -> Any:
    """Give seconds; years and months, which have none, and bare numbers as they are."""
    if number == _NAT:
        return "NaT"
    if unit in _SECONDS:
        return float(steps * _SECONDS[unit])
    return steps / 10 ** _FRACTIONS[unit] if unit in _FRACTIONS else steps


def _scalar(args: tuple[Any, ...]) -> Any:
    spelled = _spelling(args[0])
    inert = Inert("object", "numpy._core.multiarray.scalar", args)
    if spelled is None:
        return inert
    code, big_endian = spelled
    if code[0] == "O":
        return args[1]
    size = _itemsize(code)
    if size is None:
        return inert
    found = _elements(code, big_endian, octets(args[1], size), 1)
    return inert if found is None else found[0]


# arrays


def _build_array(value: Inert, state: Any) -> Any:
    subtype = value.args[0]
    if type(subtype) is not Inert or subtype.path not in _NDARRAYS:
        value.state = state
        return value
    shape, dtype, fortran, payload = state[-4:]
    return _array(shape, dtype, bool(fortran), payload, Inert("object", "numpy.ndarray", value.args, state))


def _frombuffer(args: tuple[Any, ...]) -> Any:
    payload, dtype, shape, order = args
    return _array(shape, dtype, order == "F", payload, Inert("object", "numpy.ndarray", args))


def _array(shape: Any, dtype: Any, fortran: bool, payload: Any, inert: Inert) -> Any:
    """Give a tensor, nested lists, a fault where payload and shape disagree, or the inert node given."""
    if type(shape) is not tuple or len(shape) > LIMITS.dimensions or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"a shape that is {show(shape)}")
    spelled = _spelling(dtype)
    if spelled is None:
        return inert
    code, big_endian = spelled
    count = prod(shape)
    if code[0] == "O":
        if type(payload) is not list or len(payload) != count:
            return _fault(
                shape, f"{count} objects", f"{len(payload)}" if type(payload) is list else type(payload).__name__
            )
        return _nested(payload, shape, fortran=False)  # whatever the flag says: numpy lists objects row by row
    size, numeric = _itemsize(code), _numeric(code)
    if size is None:
        return inert
    data = octets(payload) if type(payload) is not str else octets(payload, count * size)
    if len(data) != count * size:
        return _fault(shape, f"{count * size} bytes", f"{len(data)}")
    if numeric is not None:
        return _tensor(data, numeric, shape, fortran, big_endian)
    found = _elements(code, big_endian, data, count)
    return inert if found is None else _nested(found, shape, fortran)


def _fault(shape: tuple[int, ...], needed: str, present: str) -> Inert:
    return Inert(
        "fault", "numpy.ndarray", (f"an array of shape {list(shape)} needs {needed}, its pickle has {present}",)
    )


def _nested(values: list[Any], shape: tuple[int, ...], fortran: bool) -> Any:
    """Give values as lists within lists, of the shape given; no values give one empty list, whatever the shape."""
    if not shape or not values:
        return values[0] if values else []
    if fortran:
        steps = [prod(shape[:axis]) for axis in range(len(shape))]
        values = [values[sum(map(int.__mul__, index, steps))] for index in product(*map(range, shape))]
    for length in reversed(shape[1:]):
        values = [values[at : at + length] for at in range(0, len(values), length)]
    return values


def _tensor(data: bytes, dtype: DType, shape: tuple[int, ...], fortran: bool, big_endian: bool) -> Tensor:
    if big_endian:
        data = _little(data, dtype.swap)
    if fortran and len(shape) > 1:
        return Tensor(array(data, dtype, shape[::-1]).transpose(tuple(range(len(shape)))[::-1]))
    return Tensor(array(data, dtype, shape))


def _little(data: bytes, swap: int) -> bytes:
    swapped = bytearray(len(data))
    for at in range(swap):
        swapped[at::swap] = data[swap - 1 - at :: swap]
    return bytes(swapped)


ARRAYS: dict[str, Meaning] = {
    "numpy.dtype": Meaning(_dtype, _build_dtype),
    "numpy._core.multiarray.scalar": Meaning(_scalar),
    "numpy._core.multiarray._reconstruct": Meaning(lambda args: Inert("object", "numpy.ndarray", args), _build_array),
    "numpy._core.numeric._frombuffer": Meaning(_frombuffer),
    **{
        path: harmless(path)
        for path in (
            "numpy.random._pickle.__randomstate_ctor",
            "numpy.random._pickle.__generator_ctor",
            "numpy.random._pickle.__bit_generator_ctor",
            "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
            "numpy.random.__RandomState_ctor",  # numpy before 1.17
            "numpy.ma.core._mareconstruct",
        )
    },
}
