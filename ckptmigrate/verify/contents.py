"""What tensors hold, whatever they are called: which are equal, and which of them prove where a tensor went.

A constant, an empty tensor, and elements that several tensors hold prove nothing: two zeroed biases are not one bias. Tied
names are one tensor. Names are never asked for likeness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptmigrate.tensor import Tensor

from .elements import Fingerprint, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.tensor import Promise, Quantisation, Shape


@dataclass(frozen=True, slots=True)
class Content:
    """What one tensor holds: dtype, shape, elements, and what turns them into numbers; equal for equal tensors and no others."""

    dtype: str
    shape: Shape
    elements: Fingerprint
    quant: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What many tensors hold: by name, and the names by what they hold; ``proofs``: what is enough to know a tensor by."""

    of: Mapping[str, Content]
    names: Mapping[Content, tuple[str, ...]]
    proofs: frozenset[Content]


def contents(tensors: Mapping[str, Tensor]) -> Contents:
    """Draw each tensor once (tied names together) and give what they hold."""
    drawn: dict[Promise, Fingerprint] = {}
    of: dict[str, Content] = {}
    names: dict[Content, list[str]] = {}
    for name, tensor in tensors.items():
        elements = drawn.get(tensor.promise)
        if elements is None:
            elements = drawn[tensor.promise] = fingerprint(tensor.promise)
        of[name] = Content(tensor.dtype.name, tensor.shape, elements, quantisation(tensor.quant))
        names.setdefault(of[name], []).append(name)
    proofs = (
        content
        for content, held in names.items()
        if not content.elements.constant and len({tensors[name].promise for name in held}) == 1
    )
    return Contents(of, {content: tuple(held) for content, held in names.items()}, frozenset(proofs))


def quantisation(quant: Quantisation | None) -> tuple[Any, ...] | None:
    """Give what turns integers into numbers as a value that can be compared: tensors by their elements."""
    if quant is None:
        return None
    numbers = (
        (n.dtype.name, n.shape, fingerprint(n.promise).value) if isinstance(n, Tensor) else (type(n).__name__, n)
        for n in (quant.scale, quant.zero_point)
    )
    return (quant.scheme, quant.axis, *numbers)


def renames(old: Contents, new: Contents) -> dict[str, str]:
    """Give the name in ``new`` of each tensor that is not under its own there, where its content proves it.

    Names of one tied set are paired in their order.
    """
    found: dict[str, str] = {}
    for content in old.names:
        if content in old.proofs and content in new.proofs:
            gone = [name for name in old.names[content] if new.of.get(name) != content]
            come = [name for name in new.names[content] if old.of.get(name) != content]
            found.update(zip(gone, come, strict=False))
    return found
