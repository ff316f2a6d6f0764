"""From what a caller names to a Like: a checkpoint's file, a callable of a module, or what such a callable gives.

A callable may give a module (``state_dict``, ``named_parameters``, ``named_buffers``), a module with its optimizers, a state dict,
or any mapping of names to things with a shape and a dtype. They are asked for names and sizes only: a model without memory
(torch's meta device) does, and nothing here imports the framework that it is made with.
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ckptmigrate import store
from ckptmigrate.dtypes import BY_NAME, BY_NUMPY, BY_TORCH
from ckptmigrate.errors import CheckpointError, CkptError, PluginError, UsageError, reading
from ckptmigrate.files import is_there
from ckptmigrate.format import GatherOptions, Like, ReadOptions, Wanted
from ckptmigrate.store.owners import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptmigrate.checkpoint import Optimizer
    from ckptmigrate.dtypes import DType

_CALLABLE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_TAKES = "--like takes the FILE of a checkpoint, or module:callable that gives a module, a state dict, or names with shape and dtype"


def load(said: Any, read: ReadOptions | None = None) -> Like:
    """Give the model that ``said`` names, or is: a path, ``module:callable``, a module, a mapping, a Like.

    UsageError where there is no such file, module or name; PluginError where the callable raises; CheckpointError where what is
    there is no model.
    """
    if isinstance(said, Like):
        return said
    if not (isinstance(said, str) or hasattr(said, "__fspath__")):
        return _of_object(said, f"a {type(said).__name__}")
    text = str(said)
    named = _CALLABLE.fullmatch(text)
    if named is None or is_there(text):
        return _of_file(text, read or ReadOptions())
    with reading(f"--like {text}"):
        return _of_object(_called(named[1], named[2]), text)


def _of_file(path: str, read: ReadOptions) -> Like:
    """Give what a checkpoint tells; optimizer entries that only their order could name say nothing."""
    try:
        checkpoint = store.open_checkpoint(path, read, GatherOptions(names=False))
    except CkptError as error:
        error.add_note(_TAKES)
        raise
    with checkpoint:
        if not checkpoint.model:
            raise CheckpointError("holds no model to fit", path=path, hint=_TAKES)
        first: dict[Any, str] = {}
        tied = {n: first.setdefault(t.promise, n) for n, t in checkpoint.model.items() if t.nbytes}
        tensors = {
            name: Wanted(tuple(tensor.shape), tensor.dtype, tensor.role, tied.get(name, name))
            for name, tensor in checkpoint.model.items()
        }
        declared = bool(checkpoint.origin.facts.get(DECLARED))
        return Like(path, tensors, None, tuple(map(_names, checkpoint.optimizers)), declared)


def _names(optimizer: Optimizer) -> tuple[tuple[str, ...], ...]:
    """Give the names that an optimizer has of its entries, group by group; () where it has not all, or somebody assumed them."""
    if any(param.name is None or param.by == "order" for param in optimizer.params):
        return ()
    return tuple(
        tuple(str(param.name) for param in optimizer.params if param.group == number)
        for number in range(len(optimizer.groups))
    )


# ---------------------------------------------------------------- what a callable gives


def _called(module: str, name: str) -> Any:
    """Import a module as ``python -m`` would find it, from the working directory first, and call a name in it."""
    sys.path.insert(0, "")
    try:
        with _telling(module):
            value = importlib.import_module(module)
            for part in name.split("."):
                if not hasattr(value, part):
                    raise UsageError(f"{module} has no {name}", hint=_TAKES)
                value = getattr(value, part)
            made = _is_module(value) or isinstance(value, Mapping)  # a module can be called too, and computes then
            return value if made or not callable(value) else value()
    finally:
        if "" in sys.path:
            sys.path.remove("")


@contextmanager
def _telling(module: str) -> Iterator[None]:
    """Turn what other people's code raises, an exit too, into an error that says so, with its line."""
    try:
        yield
    except CkptError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"there is no module {error.name}, and no such file", hint=_TAKES) from error
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"raised {type(error).__name__}: {error} ({where.filename}, line {where.lineno})",
            hint="this is an error of what --like names, not of the checkpoint",
        ) from error


def _of_object(value: Any, name: str) -> Like:
    with _telling(""):
        if isinstance(value, Sequence) and not isinstance(value, str) and value and _is_module(value[0]):
            return _of_module(value[0], value[1:], name)
        if _is_module(value):
            return _of_module(value, (), name)
        if isinstance(value, Mapping) and any(map(_is_tensor, value.values())):
            tensors = {str(key): _wanted(each, str(key)) for key, each in value.items() if _is_tensor(each)}
            others = frozenset(str(key) for key, each in value.items() if not _is_tensor(each))
            return Like(name, tensors, others)
    raise CheckpointError(f"is a {type(value).__name__} without tensors", hint=_TAKES)


def _is_module(value: Any) -> bool:
    methods = (getattr(value, name, None) for name in ("state_dict", "named_parameters", "named_buffers"))
    return not isinstance(value, type) and all(map(callable, methods))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _of_module(module: Any, optimizers: Sequence[Any], name: str) -> Like:
    """Give what a module's state dict must be. One object under two names is a tie, whatever memory it has."""
    members = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    first: dict[int, str] = {}
    tied = {key: first.setdefault(id(value), key) for key, value in {**members, **buffers}.items()}
    tensors: dict[str, Wanted] = {}
    others = set()
    for key, value in module.state_dict().items():
        if not _is_tensor(value):
            others.add(key)
            continue
        role: Any = "parameter" if key in members else "buffer" if key in buffers else None
        tensors[key] = _wanted(value, key, role, tied.get(key, key))
    named = tuple(
        tuple(tuple(first.get(id(param), "") for param in group["params"]) for group in optimizer.param_groups)
        for optimizer in optimizers
    )
    return Like(name, tensors, frozenset(others), named)


def _wanted(value: Any, name: str, role: Any = None, tied: str | None = None) -> Wanted:
    return Wanted(tuple(int(length) for length in value.shape), _dtype(value.dtype, name), role, tied or name)


def _dtype(value: Any, name: str) -> DType:
    """Give the dtype that a text means: ``torch.float32``, numpy's ``float32`` or ``<class 'numpy.float32'>``, our own ``F32``."""
    text = str(value).rpartition(".")[2].removesuffix("'>")
    found = BY_TORCH.get(text) or BY_NUMPY.get(text) or BY_NAME.get(text)
    if found is None:
        raise CheckpointError(f"{name} is of dtype {value}, which nobody here knows", tensor=name)
    return found
