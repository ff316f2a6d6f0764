r"""The zip file that torch 2.13 writes, laid out from lengths.

    archive/data.pkl             the pickle, protocol 2
    archive/.format_version      "1"    storages lie in order of first use
    archive/.storage_alignment   "64"   what every member's data starts on; a reader may map it and use it in place
    archive/byteorder            "little"
    archive/data/0, 1, 2, …      one storage each: just one tensor's elements, row-major
    archive/version              "3\n"  the version of 1.6 and of every release since
    archive/.data/ckptmigrate.json      ours: the stamp and what the pickle has no key for; torch looks up members by name only

The prefix is "archive", as torch has it for file objects: the same input gives the same bytes,
whatever the name of the output. There is no serialization_id: it is torch's own hash, and no reader asks for it.
Sources: caffe2/serialize/inline_container.cc, torch/serialization.py, third_party/miniz of torch 2.13, and files it wrote.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BY_TORCH
from ckptmigrate.format import Blueprint, Parts, WriteOptions
from ckptmigrate.notes import spelled
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import NOTHING, Inert, Known, Ordered, Path, Scalar, Tree, fold, reason, spell, walk
from ckptmigrate.wire.pickle_writer import Persistent, dump

from ._torch_storages import CLASSES, UNTYPED
from ._torch_zip_archive import ALIGNMENT, archive

if TYPE_CHECKING:
    from ckptmigrate.tensor import Promise, Shape

PREFIX = "archive"

_STORAGES = {
    dtype.name: f"{name}Storage" for name, dtype in CLASSES.items() if dtype.kind != "quantised" and name not in UNTYPED
}
"""The storage classes of torch; a dtype without one takes ``_rebuild_tensor_v3`` and bytes."""

_FIRST = {
    "F8_E4M3": (2, 2), "F8_E5M2": (2, 2), "BITS8": (2, 2), "BITS1X8": (2, 2), "BITS2X4": (2, 2), "BITS4X2": (2, 2),
    "BITS16": (2, 2), "F8_E4M3FNUZ": (2, 3), "F8_E5M2FNUZ": (2, 3), "C32": (2, 3), "U16": (2, 6), "U32": (2, 6),
    "U64": (2, 6), "F8_E8M0": (2, 7), "F4": (2, 8), "BC32": (2, 14),
}  # fmt: skip
"""The first torch release that loads a dtype through ``_rebuild_tensor_v3``."""

_CALLS = frozenset({
    "builtins.bytearray", "builtins.complex", "builtins.set", "collections.Counter", "torch.Size", "torch.device",
    "torch.serialization._get_layout",
})  # fmt: skip
_NAMES = frozenset(f"torch.{name}" for name in BY_TORCH) | frozenset(
    f"torch.per_{name}_affine{suffix}" for name in ("tensor", "channel") for suffix in ("", "_float_qparams")
)
"""The calls and bare names that ``torch.load(weights_only=True)`` takes, of those that a tree can hold."""

_PLAIN = frozenset({type(None), bool, float, str, bytes, dict, Ordered, list, tuple})
_LONGEST_INTEGER = 8 * 255 - 1  # bits; LONG4 is no opcode of torch's restricted unpickler


def lay_out(parts: Parts, options: WriteOptions, name: str) -> Blueprint:
    """Give the blueprint of one file that ``torch.load(weights_only=True)`` reads, also with ``mmap=True``.

    Each tensor becomes its own storage, row-major, without gradient; equal promises share one unless ``options`` duplicates.
    Values that the restricted unpickler refuses are left out and listed; tensors that torch cannot hold are problems.
    """
    blueprint = Blueprint(last=name)
    if parts.tree is NOTHING:
        blueprint.problems.append("a torch file holds one tree, and there is none")
        return blueprint
    storages = _Storages(blueprint, share=options.ties == "keep")
    pickle = dump(_prepared(parts.tree, storages, blueprint), reduce=storages.reduce)
    members: list[tuple[str, bytes | Promise]] = [
        ("data.pkl", pickle),
        (".format_version", b"1"),
        (".storage_alignment", str(ALIGNMENT).encode()),
        ("byteorder", b"little"),
        *((f"data/{key}", promise) for key, promise in enumerate(storages.promises)),
        ("version", b"3\n"),
    ]
    if parts.notes and not options.bare:
        members.append((".data/ckptmigrate.json", spelled(parts.notes, blueprint).encode()))
    blueprint.files[name], blueprint.sizes[name] = archive((f"{PREFIX}/{member}", data) for member, data in members)
    return blueprint


class _Storages:
    """The storages of one file, numbered in order of first use, and the calls that rebuild tensors from them."""

    def __init__(self, blueprint: Blueprint, *, share: bool) -> None:
        self.promises: list[Promise] = []
        self._blueprint = blueprint
        self._share = share
        self._first: dict[Promise, tuple[int, str]] = {}
        self._key: dict[int, int] = {}  # id of a Tensor made here -> its storage
        self._made: list[Tensor] = []  # keeps those ids from being given away again
        self._new: set[str] = set()  # dtypes for which the note has been written

    def add(self, tensor: Tensor, path: str) -> Tensor | None:
        """Give a stand-in for the tensor at ``path`` that ``reduce`` knows, or None where torch cannot hold it."""
        promise, dtype = tensor.promise, tensor.promise.dtype
        if tensor.quant is not None or dtype.kind == "quantised":
            self._blueprint.problems.append(f'tensor "{path}" is quantised ({dtype}); --dequantize makes it F32')
            return None
        if dtype.torch is None:
            self._blueprint.problems.append(f'tensor "{path}" is {dtype}, a dtype that torch does not have')
            return None
        if dtype.name not in _STORAGES and dtype.name not in self._new:
            self._new.add(dtype.name)
            major, minor = _FIRST[dtype.name]
            self._blueprint.notes.append(f"{path} is {dtype}: torch {major}.{minor} or newer loads the file")
        key = len(self.promises)
        if promise.nbytes:
            key, first = self._first.setdefault(promise, (key, path))
            if first != path:
                how = "written once, tied" if self._share else f"{promise.nbytes} bytes written twice"
                self._blueprint.notes.append(f"{path} is {first}: {how}")
                key = key if self._share else len(self.promises)
        if key == len(self.promises):
            self.promises.append(promise)
        made = replace(tensor)
        self._made.append(made)
        self._key[id(made)] = key
        return made

    def reduce(self, tensor: Tensor) -> tuple[str, tuple[Any, ...]]:
        """Give the call that rebuilds a tensor which ``add`` gave: the function's path and its arguments."""
        promise, key = tensor.promise, str(self._key[id(tensor)])
        dtype, shape = promise.dtype, promise.shape
        storage = _STORAGES.get(dtype.name)
        where = ("storage", Known(f"torch.{storage}"), key, "cpu", promise.numel)
        if storage is None:
            where = ("storage", Known("torch.storage.UntypedStorage"), key, "cpu", promise.nbytes)
        args = (Persistent(where), 0, shape, _strides(shape), False, Ordered())
        if storage is None:
            return "torch._utils._rebuild_tensor_v3", (*args, Known(f"torch.{dtype.torch}"))
        return "torch._utils._rebuild_tensor_v2", args


def _strides(shape: Shape) -> Shape:
    """Give the row-major strides in elements, with torch's own numbers where a dimension is 0."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


_OUT = object()  # what a value becomes that the file cannot hold: a dict loses the key, a list or tuple has None there


def _prepared(tree: Tree, storages: _Storages, blueprint: Blueprint) -> Tree:
    """Copy a tree into one that torch's restricted unpickler takes: stand-ins for tensors, plain numbers, listed calls."""

    def left_out(path: Path, why: str) -> Tree:
        blueprint.left_out.append((spell(path), why))
        return _OUT

    def opened(path: Path, node: Tree) -> tuple[Any, Any]:
        if isinstance(node, Tensor):
            made = storages.add(node, spell(path))
            return None, _OUT if made is None else made
        if isinstance(node, Scalar):
            return None, node.value
        if isinstance(node, Inert):
            blueprint.problems.append(f"{spell(path)} is {reason(node)}, and should have been left out before")
            return None, _OUT
        if why := _refused(node):
            return None, left_out(path, why)
        if isinstance(node, dict):
            below = []
            for key, value in node.items():
                if type(key) is not str and (
                    why := next(filter(None, (_refused(part) for _, part in walk(key))), None)
                ):
                    left_out((*path, key), f"its key: {why}")
                else:
                    below.append((key, value))
            if isinstance(node, Ordered):
                below += [(("@", name), value) for name, value in node.attributes.items()]
            return below, lambda built: _dictionary(node, below, built)
        if isinstance(node, Known) and node.args is not None:
            return list(enumerate(node.args)), lambda built: Known(node.path, tuple(_items(built)))
        if isinstance(node, (list, tuple)):
            return list(
                enumerate(node)
            ), lambda built: _items(built) if isinstance(node, list) else tuple(_items(built))
        return None, node

    prepared = fold(tree, opened, lambda path: left_out(path, "a container that holds itself"))
    return None if prepared is _OUT else prepared


def _refused(node: Tree) -> str | None:
    """Say why ``torch.load(weights_only=True)`` takes no such node, or None where it does."""
    if isinstance(node, Known):
        if node.path not in (_NAMES if node.args is None else _CALLS):
            return f"{node.path}, which torch.load(weights_only=True) does not take"
    elif type(node) is int:
        if node.bit_length() > _LONGEST_INTEGER:
            return "an integer of more than 255 bytes"
    elif type(node) not in _PLAIN:
        return f"a {type(node).__name__}, which has no place in a torch file"
    return None


def _items(built: list[Tree]) -> list[Tree]:
    return [None if item is _OUT else item for item in built]


def _dictionary(node: dict[Any, Tree], below: list[tuple[Any, Any]], built: list[Tree]) -> dict[Any, Tree]:
    count = len(below) - len(node.attributes) if isinstance(node, Ordered) else len(below)
    pairs = [(step, made) for (step, _), made in zip(below[:count], built, strict=False) if made is not _OUT]
    if not isinstance(node, Ordered):
        return dict(pairs)
    copy = Ordered(pairs)
    copy.attributes = {
        step[1]: made for (step, _), made in zip(below[count:], built[count:], strict=True) if made is not _OUT
    }
    return copy
