"""Trees of values, and their one lossless encoding as strict JSON plus tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .tensor import Tensor


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a file stores with a kind of its own (a burnpack scalar, an optimizer's step in a record)."""

    kind: Literal["uint", "int", "float", "bool"]
    value: int | float | bool


@dataclass(slots=True, eq=False)
class Inert:
    """Something of a class or function that nobody imports; equal only to itself, so it can be a dictionary key.

    ``object``: an instance (class ``path``, ``args``, ``state``, ``items``: appended list items or set pairs, in file order).
    ``name``: the bare global itself. ``call``: a call nobody makes. ``fault``: what should be a value and is wrong,
    ``args[0]`` says how (a storage that does not fit, a tensor without data), ``args[1:]`` are hints.
    """

    kind: Literal["object", "name", "call", "fault"]
    path: str  # "module.qualified.Name"
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Known:
    """A listed call or name that has no plain spelling, written back as that call; ``args`` None is the bare name.

    path is canonical: "torch.Size", "torch.device", "torch.float16" (args None), "builtins.set", "builtins.frozenset",
    "builtins.complex", "builtins.bytearray", "collections.Counter", "collections.deque", "collections.defaultdict"
    (its factory kept as a name, never called), "datetime.datetime", "builtins.slice", "builtins.range", …
    Hashable by identity; ``values.same`` compares by content.
    """

    path: str
    args: tuple[Any, ...] | None = None


class Ordered(dict[Any, Any]):
    """A dict with attributes: an OrderedDict as torch pickles state dicts (attributes["_metadata"])."""

    __slots__ = ("attributes",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.attributes: dict[str, Any] = {}


class Nothing:
    """The absence of a tree, where None is a value (a constant scheduler's record)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()

Tree: TypeAlias = Any
"""None | bool | int | float | str | bytes | Scalar | Tensor | Known | Ordered | list | tuple | dict | Inert, nested."""

Path: TypeAlias = tuple[Any, ...]
"""Where a node stands in a tree: dict keys and list indices (and attribute names as ("@", name))."""
