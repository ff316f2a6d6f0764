"""How Burn spells element types, 0.14 to 0.23: the same words in MessagePack, JSON and CBOR.

    "F64" "F32" "Flex32" "F16" "BF16" "I64" "I32" "I16" "I8" "U64" "U32" "U16" "U8"
    "Bool"                                  up to 0.21.0-pre.2, one byte each
    {"Bool": "Native" | "U8" | "U32"}       since 0.21.0-pre.3: 1, 1 or 4 bytes each; neither side reads the other's spelling
    {"QFloat": scheme}                      quantised, see _burn_quant

Flex32 lies in the file as f32. Source: burn-std/src/tensor/dtype.rs, releases 0.14.0 to 0.23.0-pre.1; formats/burn.md 4.3.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BOOL, DTYPES, F32, U32, DType
from ckptmigrate.errors import TensorError
from ckptmigrate.tensor import View, cast, normalise

if TYPE_CHECKING:
    from ckptmigrate.files import Range
    from ckptmigrate.tensor import Promise, Shape

PLAIN = {d.burn: d for d in DTYPES if d.burn is not None} | {"Flex32": F32}
BOOLS = {"Native": BOOL, "U8": BOOL, "U32": U32}  # what each holds an element in
QUANTISED = "QFloat"
VARIANTS = (
    "F64",
    "F32",
    "Flex32",
    "F16",
    "BF16",
    "I64",
    "I32",
    "I16",
    "I8",
    "U64",
    "U32",
    "U16",
    "U8",
    "Bool",
    QUANTISED,
)
"""Burn's ``DType`` in the order in which it declares its variants: bincode counts them, and its errors list them."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """An element type as a file spells it: what it is here, what an element lies in, and whether today's Burn reads the word."""

    text: str
    dtype: DType
    stored: DType
    current: bool = True

    def needs(self, shape: Shape) -> int:
        """Give the bytes of a tensor."""
        return prod(shape) * self.stored.itemsize

    def promise(self, place: Range, shape: Shape) -> Promise:
        """Give the elements that lie in a range of exactly ``needs(shape)`` bytes; booleans that Burn does not call native become 0 and 1."""
        view = View.rows(place, self.stored, shape)
        if self.dtype != BOOL or self.text in {"Bool", "Bool(Native)"}:
            return view
        return cast(view, BOOL) if self.stored != BOOL else normalise(view)


def spelled(word: Any) -> Spelling:
    """Give what a word for an element type means, one for quantised numbers apart; TensorError lists the known ones."""
    if isinstance(word, str) and word in PLAIN:
        dtype = PLAIN[word]
        return Spelling(word, dtype, dtype, current=dtype != BOOL)
    store = word.get("Bool") if isinstance(word, dict) and len(word) == 1 else None
    if isinstance(store, str) and store in BOOLS:
        return Spelling(f"Bool({store})", BOOL, BOOLS[store])
    raise TensorError(
        f"dtype {as_text(word)}, known are {', '.join(PLAIN)}, Bool({' | '.join(BOOLS)}) and {QUANTISED}", dtype=word
    )


def spelling(dtype: DType) -> Any | None:
    """Give today's word for a dtype, or None where Burn has none."""
    return {"Bool": "Native"} if dtype == BOOL else dtype.burn


def as_text(word: Any) -> str:
    """Give a word as messages show it."""
    return json.dumps(word, default=repr)[:120]
