"""The calls that torch's pickles make, and what each means here: torch.md 4.1, 4.2 and 4.6 as a table.

    _rebuild_tensor      (storage, offset, size, stride)                                        to 0.3
    _rebuild_tensor_v2   (storage, offset, size, stride, requires_grad, hooks[, metadata])      since 0.4
    _rebuild_tensor_v3   (storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])   since 2.2
    _rebuild_parameter   (tensor, requires_grad, hooks), _with_state: (…, state)                since 1.0, 2.0
    FloatTensor(), then BUILD (storage, offset, size, stride); Variable(tensor), Parameter(tensor[, requires_grad])   0.1 to 0.4

A call gives a Tensor, which is a look into the file, or a node with its fault: nothing is read here, and no name is imported.
``hooks`` may be functions in old files and is not looked at. Python attributes of a tensor have no place in a checkpoint: they are
noted, and the walk over the finished tree reports them by key path.
Sources: torch/_utils.py, torch/_tensor.py, torch/nn/parameter.py of torch 0.1 to 2.13, and files that those wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import BY_TORCH, DType
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known
from ckptmigrate.wire.names import Meaning

from ._torch_layouts import conjugated, dequantised, recast
from ._torch_sparse import densified
from ._torch_storages import ALIASES, CLASSES, UNTYPED, Storage, dtype_of, fault, sizes, strided

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptmigrate.format import ReadOptions

_SHELLS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
_SCHEMES = tuple(f"per_{name}_{kind}" for name in ("tensor", "channel") for kind in ("affine", "symmetric"))
_NAMES = (*BY_TORCH, *ALIASES, *_SHELLS, *_SCHEMES, "per_channel_affine_float_qparams")
_OLD_TENSORS = tuple(name for name in CLASSES if name not in UNTYPED)
_UTILS = "torch._utils"
_NJT = "torch.nested._internal.nested_tensor._rebuild_njt"
_REBUILDS = (f"{_UTILS}._rebuild_", _NJT)  # what _rebuild_from_type may call: not itself, which could nest without end


@dataclass(slots=True)
class Calls:
    """The calls of one file: what its reader may do, and what it noted on the way.

    ``empty_scalars``: a size of ``()`` on an empty storage is an empty tensor, as torch up to 0.3 wrote them.
    ``attributes``: by identity, the tensors that carried Python attributes, with the attributes' names.
    ``nested``: reads the bytes that a storage without torch.save was pickled as.
    """

    options: ReadOptions
    empty_scalars: bool = False
    nested: Callable[[bytes], Any] | None = None
    attributes: dict[int, tuple[Tensor, list[str]]] = field(default_factory=dict)

    def meanings(self, others: Mapping[str, Meaning]) -> dict[str, Meaning]:
        """Give the table for the pickle machine: ``others``, and over them torch's own."""
        table = dict(others)
        table |= {f"torch.{name}": Meaning(name=Known(f"torch.{name}")) for name in _NAMES}
        table |= {f"{_UTILS}.{name}": Meaning(call=call) for name, call in self._rebuilds().items()}
        for cuda in ("", "cuda."):
            for name in _OLD_TENSORS:
                path = f"torch.{cuda}{name}Tensor"
                table[path] = Meaning(call=_old_tensor(path), build=self._set_old)
        for module in ("torch.tensor", "torch._tensor"):
            table[f"{module}._rebuild_from_type"] = Meaning(call=lambda args: self._from_type(table, *args))
            table[f"{module}._rebuild_from_type_v2"] = Meaning(call=lambda args: self._from_type(table, *args))
        table |= {
            "torch.Size": Meaning(call=_size),
            "torch.device": Meaning(call=lambda args: Known("torch.device", args)),
            "torch.serialization._get_layout": Meaning(
                call=lambda args: Known("torch.serialization._get_layout", args)
            ),
            "torch.Tensor": Meaning(call=_old_tensor("torch.Tensor"), build=self._set_old),
            "torch.autograd.variable.Variable": Meaning(call=_variable, build=_set_variable),
            "torch.nn.parameter.Parameter": Meaning(call=self._old_parameter, build=self._set_parameter),
            "torch.nn.parameter.Buffer": Meaning(
                call=lambda args: _with_role(args[0], "buffer"), build=self._set_parameter
            ),
            "torch.nn.parameter.UninitializedParameter": Meaning(call=_uninitialised),
            "torch.nn.parameter.UninitializedBuffer": Meaning(call=_uninitialised),
            "torch.storage._load_from_bytes": Meaning(call=self._load_from_bytes),
            _NJT: Meaning(call=_nested),
        }
        return table

    def _rebuilds(self) -> dict[str, Callable[[tuple[Any, ...]], Any]]:
        return {
            "_rebuild_tensor": lambda args: self._strided("_rebuild_tensor", *args[:4]),
            "_rebuild_tensor_v2": self._tensor_v2,
            "_rebuild_tensor_v3": self._tensor_v3,
            "_rebuild_parameter": lambda args: _with_role(args[0], "parameter"),
            "_rebuild_parameter_with_state": lambda args: self._note(_with_role(args[0], "parameter"), args[3]),
            "_rebuild_qtensor": self._quantised,
            "_rebuild_sparse_tensor": lambda args: self._sparse(*args[:2]),
            "_rebuild_sparse_csr_tensor": lambda args: self._sparse(*args[:2]),
            "_rebuild_meta_tensor_no_storage": lambda _: fault(f"{_UTILS}._rebuild_meta_tensor_no_storage", "a meta tensor, which has no data"),
            "_rebuild_nested_tensor": _nested,
            "_rebuild_wrapper_subclass": _wrapper,
            "_rebuild_xla_tensor": lambda args: _recast(*args[:2]),
            "_rebuild_mlc_tensor": lambda args: _recast(*args[:2]),
            "_rebuild_device_tensor_from_numpy": lambda args: _recast(*args[:2]),
            "_rebuild_device_tensor_from_cpu_tensor": lambda args: _recast(*args[:2]),
        }  # fmt: skip

    def _strided(self, name: str, storage: Any, offset: Any, size: Any, stride: Any, dtype: DType | None = None) -> Any:
        empty = isinstance(storage, Storage) and not storage.numel
        if self.empty_scalars and empty and offset == 0 and sizes(size, self.options.limits) == ():
            size, stride = (0,), (1,)
        limits = self.options.limits
        return strided(storage, offset, size, stride, path=f"{_UTILS}.{name}", limits=limits, dtype=dtype)

    def _tensor_v2(self, args: tuple[Any, ...]) -> Any:
        return conjugated(self._strided("_rebuild_tensor_v2", *args[:4]), args[6] if len(args) > 6 else None)

    def _tensor_v3(self, args: tuple[Any, ...]) -> Any:
        name = "_rebuild_tensor_v3"
        dtype = dtype_of(args[6])
        if dtype is None:
            found = args[6].path if isinstance(args[6], (Known, Inert)) else type(args[6]).__name__
            return fault(f"{_UTILS}.{name}", f"a tensor of dtype {found}, which cannot be held")
        return conjugated(
            self._strided(name, args[0], args[1], args[2], args[3], dtype), args[7] if len(args) > 7 else None
        )

    def _quantised(self, args: tuple[Any, ...]) -> Any:
        tensor = self._strided("_rebuild_qtensor", *args[:4])
        return dequantised(tensor, args[4], wanted=self.options.dequantize)

    def _sparse(self, layout: Any, data: Any) -> Any:
        kind = layout.args[0] if isinstance(layout, Known) and layout.args else getattr(layout, "path", layout)
        kind = str(kind).removeprefix("torch.")
        return densified(kind, data, wanted=self.options.densify, limits=self.options.limits)

    def _from_type(self, table: Mapping[str, Meaning], function: Any, kind: Any, args: Any, state: Any) -> Any:
        """Give the tensor that ``function(*args)`` means; ``kind`` is its class, ``state`` what else it carried."""
        path = str(getattr(kind, "path", ""))
        name = str(getattr(function, "path", ""))
        if path.endswith(".DTensor"):
            return fault(
                path,
                "a distributed tensor: this file holds one rank's part of it",
                "save it whole: on all ranks tensor.full_tensor(), or torch.distributed.checkpoint.state_dict's full_state_dict=True",
            )
        meaning = table.get(name)
        if meaning is None or meaning.call is None or not name.startswith(_REBUILDS):
            return Inert("call", name or "torch._tensor._rebuild_from_type_v2", (function, kind, args, state))
        tensor = meaning.call(args)
        if isinstance(tensor, Inert):
            return tensor
        if path in ("torch.nn.parameter.Buffer", "torch.nn.Buffer", "torch.nn.parameter.Parameter"):
            tensor = _with_role(tensor, "buffer" if path.endswith("Buffer") else "parameter")
        return self._note(tensor, state)

    def _set_old(self, value: Any, state: Any) -> Any:
        """Give the tensor of an old class, whose BUILD holds (storage, offset, size, stride)."""
        if type(state) is not tuple or len(state) not in (4, 5):
            return fault(value.path, "a tensor whose state is not (storage, offset, size, stride)")
        return self._strided("_rebuild_tensor", *state[:4])

    def _old_parameter(self, args: tuple[Any, ...]) -> Any:
        return (
            _with_role(args[0], "parameter")
            if args
            else fault("torch.nn.parameter.Parameter", "a parameter without data")
        )

    def _set_parameter(self, value: Any, state: Any) -> Any:
        """Keep the parameter: up to 0.3 its state is (requires_grad, volatile, hooks), later a dictionary of attributes."""
        if isinstance(value, Tensor) and isinstance(state, dict):
            return self._note(replace(value), state)
        return value

    def _load_from_bytes(self, args: tuple[Any, ...]) -> Any:
        if self.nested is None or len(args) != 1 or type(args[0]) is not bytes:
            return fault("torch.storage._load_from_bytes", "a storage that was pickled without torch.save")
        return self.nested(args[0])

    def _note(self, tensor: Any, state: Any) -> Any:
        """Note the names of Python attributes; ``state`` is a dictionary, or a pair of it and the slots'."""
        if not isinstance(tensor, Tensor):
            return tensor
        parts = state if type(state) is tuple else (state,)
        found = {str(name): value for part in parts if isinstance(part, dict) for name, value in part.items()}
        if found.pop("_is_buffer", False) is True:  # all that tells an nn.Buffer, which is a plain tensor otherwise
            found.pop("persistent", None)
            tensor = replace(tensor, role="buffer")
        if found:
            self.attributes[id(tensor)] = (tensor, list(found))
        return tensor


def _with_role(tensor: Any, role: Any) -> Any:
    if isinstance(tensor, Tensor):
        return replace(tensor, role=role)
    if isinstance(tensor, Inert) and tensor.kind == "fault":
        return tensor
    return fault("torch.nn.parameter.Parameter", f"a {role} whose data is no tensor")


def _old_tensor(path: str) -> Callable[[tuple[Any, ...]], Any]:
    """Give the node that stands for an old tensor until its BUILD; one without is an empty tensor that nothing tells of."""
    return lambda _: fault(path, "a tensor without data")


def _variable(args: tuple[Any, ...]) -> Any:
    if args and isinstance(args[0], Tensor):
        return replace(args[0])
    broken = args and isinstance(args[0], Inert)
    return args[0] if broken else fault("torch.autograd.variable.Variable", "a variable without data")


def _set_variable(value: Any, state: Any) -> Any:
    """Take the data of the oldest state, (data, grad, hooks, requires_grad, volatile); later ones hold no data."""
    if type(state) is tuple and state and isinstance(state[0], (Tensor, Inert)):
        return state[0]
    return value


def _size(args: tuple[Any, ...]) -> Known:
    (size,) = args or ((),)
    if type(size) not in (tuple, list) or not all(type(n) is int for n in size):
        raise ValueError("not a tuple of integers")
    return Known("torch.Size", (tuple(size),))


def _recast(data: Any, dtype: Any) -> Any:
    wanted = dtype_of(dtype)
    if isinstance(data, Inert):
        return data
    if not isinstance(data, Tensor) or wanted is None:
        return fault(f"{_UTILS}._rebuild_device_tensor_from_numpy", "a tensor of another device whose data is no array")
    return recast(data, wanted)


def _uninitialised(_: tuple[Any, ...]) -> Inert:
    return fault(
        "torch.nn.parameter.UninitializedParameter",
        "an uninitialised parameter, which has no data",
        "run one batch through the model and save it again",
    )


def _nested(_: tuple[Any, ...]) -> Inert:
    return fault(
        f"{_UTILS}._rebuild_nested_tensor",
        "a nested tensor, which has no single shape",
        "save its parts (tensor.unbind()) instead",
    )


def _wrapper(args: tuple[Any, ...]) -> Inert:
    path = str(getattr(args[0], "path", f"{_UTILS}._rebuild_wrapper_subclass")) if args else _UTILS
    return fault(path, f"a tensor of class {path}, whose data only that class understands")
