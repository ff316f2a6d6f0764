"""Apply: what no other operation can say, as a Python function over tensors. The marked way out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, get_args

from ckptmigrate.dtypes import BY_NAME, U8, DType
from ckptmigrate.errors import CkptError, TensorError, UsageError
from ckptmigrate.tensor import Made, Tensor, View, array
from ckptmigrate.tensor.promise import spilled

from .axes import TENSORS
from .contract import Group, On, Operation, Reason, Slots, Traits
from .elements import check_dtype
from .patterns import beside, check_patterns, check_place, many_to_many, matches, several
from .spelling import declared, spelled
from .subjects import Length, check_shape, shaped, tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from ckptmigrate.tensor import Promise, Shape
    from ckptmigrate.values import Tree

VALUES = ("slots", "values", "items")
Wants = Literal["numpy", "torch", "values"]  # house: what the author's function takes; no branch on a framework


class Written(TypedDict, total=False):
    """What an output is: ``like`` the source of that number (0), with another ``shape`` (``"*"``: its axes), another ``dtype``."""

    like: int
    shape: Sequence[Length]
    dtype: str


@dataclass(frozen=True, slots=True)
class Apply:
    r"""Make tensors of tensors by a function of the migrator's own, which holds what it reads and writes in memory.

        def fold(gain, direction):
            return direction * gain / numpy.linalg.norm(direction, axis=1, keepdims=True)

        Apply([r"(.*)\.weight_g", r"(.*)\.weight_v"], {r"\1.weight": {"like": 1}}, fold, slots="drop", back=Apply(…))

    ``reads``: patterns, grouped by the names that they give; their tensors are the arguments, whole, in this order.
    ``writes``: each name and what it is, in the order in which ``fn`` returns them; a name alone is like the first source.
    ``slots``: what becomes of state that has the parameter's axes: refused, dropped, kept, or put through the function too.
    ``revision``: raise it when ``fn`` changes, because a checkpoint's history knows only name and revision. ``numbers``: the
    names of numbers that shapes mention and ``fn`` takes as keywords. ``where``: take only names for which the name that this
    template expands to is there too (one template, or one a pattern). ``wants``: numpy arrays, or tensors of torch; or "values",
    whatever lies there (dicts, lists, numbers), at once and not when it is drawn, of which ``fn`` gives new ones.
    ``back``: the operation of the way down.
    """

    reads: Sequence[str]
    writes: Mapping[str, Written] | Sequence[str]
    fn: Callable[..., Any]
    slots: Slots = "refuse"
    revision: int = 1
    back: Operation | None = None
    wants: Wants = "numpy"
    numbers: Mapping[str, Any] | Sequence[str] = ()
    optional: bool = False
    on: On = "model"
    where: str | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", several(self.reads))
        if not isinstance(self.writes, Mapping):
            object.__setattr__(self, "writes", several(self.writes))
        if not isinstance(self.numbers, Mapping):
            object.__setattr__(self, "numbers", {name: name for name in several(self.numbers)} or ())
        writes = self.specs
        check_patterns(*((pattern, template) for pattern in self.reads for template in writes))
        check_patterns(*beside(self.where, self.reads).items())
        check_place(self.on, VALUES if self.wants == "values" else TENSORS)
        if not self.reads or not writes:
            raise UsageError("Apply that reads or writes nothing")
        if self.wants == "values" and any(writes.values()):
            raise UsageError("Apply of values: what it writes has no shape and no dtype")
        if not callable(self.fn):
            raise UsageError(f"Apply: {self.fn!r} is no function")
        if self.slots not in get_args(Slots) or self.wants not in get_args(Wants):
            raise UsageError(
                f"Apply: slots={self.slots!r}, wants={self.wants!r}: expected {get_args(Slots)}, {get_args(Wants)}"
            )
        for name, spec in writes.items():
            if unknown := set(spec) - {"like", "shape", "dtype"}:
                raise UsageError(f"Apply: {name!r} has {', '.join(sorted(unknown))}, expected like, shape, dtype")
            if "dtype" in spec:
                check_dtype(spec["dtype"])
            shape = spec.get("shape", ())
            check_shape("shape", shape, rest=False)
            unsaid = [e for e in shape if isinstance(e, str) and not e.startswith("*") and e not in self.given]
            if unsaid:
                raise UsageError(f"Apply: the shape of {name!r} names {', '.join(unsaid)}, which numbers= does not")

    @property
    def specs(self) -> dict[str, Written]:
        """Give what each output is, by its template."""
        return dict(self.writes) if isinstance(self.writes, Mapping) else {name: Written() for name in self.writes}

    @property
    def given(self) -> dict[str, Any]:
        """Give the numbers by name; each is its own name until a checkpoint is at hand."""
        return dict(self.numbers) if isinstance(self.numbers, Mapping) else {name: name for name in self.numbers}

    @property
    def traits(self) -> Traits:
        """Give what the engine must know."""
        return Traits(slots=self.slots, numbers=("numbers",))

    def match(self, names: Mapping[str, Tree]) -> list[Group]:
        """Give one group a set of targets."""
        conditions = beside(self.where, self.reads)
        alone = {
            name
            for name, pattern, found in (matches(names, self.reads) if conditions else ())
            if pattern in conditions and found.expand(conditions[pattern]) not in names
        }
        return many_to_many((name for name in names if name not in alone), self.reads, tuple(self.writes))

    def tensors(self, sources: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Give what the function will return, as declared; it runs when the first of it is drawn, at once for tensors in memory."""
        if self.wants == "values":
            made = _called(self.fn, sources, self.given, "values")
            return _counted(made, len(self.specs), _name(self.fn))
        given = [tensor(source) for source in sources]
        outputs = [self._output(name, spec, given) for name, spec in self.specs.items()]
        whats = tuple((dtype, shape) for _, dtype, shape in outputs)
        called = Called(self.fn, self.wants, tuple(self.given.items()), whats)
        promises = _apart(tuple(each.promise for each in given), called)
        return tuple(like.with_promise(promise) for (like, _, _), promise in zip(outputs, promises, strict=True))

    def _output(self, name: str, spec: Written, given: Sequence[Tensor]) -> tuple[Tensor, DType, Shape]:
        """Give the source that an output is like, and the output's dtype and shape."""
        like = spec.get("like", 0)
        if like >= len(given):
            raise TensorError(f"{name!r} is like source {like}, and there are {len(given)}")
        numbers = self.given
        shape = [numbers.get(e, e) if isinstance(e, str) else e for e in spec.get("shape", given[like].shape)]
        dtype = BY_NAME[spec["dtype"]] if "dtype" in spec else given[like].dtype
        return given[like], dtype, shaped(shape, given[like].shape)

    def inverse(self) -> Operation | Reason:
        """Give ``back``."""
        return self.back or Reason(f"a function cannot be turned round, and no back= undoes {_name(self.fn)}")

    def as_dict(self) -> dict[str, Any]:
        """Give what was declared, the function by its name."""
        return declared(self)

    def describe(self) -> str:
        """Give one line, as an author would write it."""
        return spelled(self)


@dataclass(frozen=True, slots=True)
class Called:
    """The rule of an Apply: the bytes of all its outputs, one after the other."""

    fn: Callable[..., Any]
    wants: Wants
    numbers: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[DType, Shape], ...]
    dtype: ClassVar[DType] = U8
    elementwise: ClassVar[Literal[False]] = False

    @property
    def shape(self) -> Shape:
        """The bytes of all outputs."""
        return (sum(map(_nbytes, self.outputs)),)

    def pieces(self, inputs: tuple[Promise, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """Run the function; TensorError for what it raises, and for outputs that are not as declared."""
        given = [Tensor(promise) for promise in inputs]
        drawn = Tensor.numpy if self.wants == "numpy" else Tensor.torch  # house: what the author asked for
        arguments = [drawn(each) for each in given]
        name = _name(self.fn)
        made = _called(self.fn, arguments, dict(self.numbers), _said(given))
        results = _counted(made, len(self.outputs), name)
        for index, (result, (dtype, shape)) in enumerate(zip(results, self.outputs, strict=True)):
            promise = _promised(result, name)
            if (promise.dtype, promise.shape) != (dtype, shape):
                raise TensorError(
                    f"{name} gave {promise.dtype} {list(promise.shape)} as output {index}, expected {dtype} {list(shape)}"
                )
            yield Tensor(promise).numpy().reshape(-1).view("u1")


def _apart(inputs: tuple[Promise, ...], called: Called) -> list[Promise]:
    """Give a promise for each output: a look at what the function left in scratch, where it runs once for all of them.

    Where all inputs are in memory there is no scratch, and it runs at once.
    """
    whole = spilled(Made(inputs, called))
    found: list[Promise] = []
    start = 0
    for dtype, shape in called.outputs:
        part = whole.slice(0, start, start := start + _nbytes((dtype, shape)))
        plain = part.plain()
        if plain is not None:
            found.append(View.rows(plain, dtype, shape))
        else:
            found.append(array(bytes(part.read(0, part.numel)), dtype, shape))
    return found


def _called(fn: Callable[..., Any], arguments: Sequence[Any], numbers: Mapping[str, Any], of: str) -> Any:
    """Call somebody's function; TensorError for whatever it raises, because what it was given is what failed."""
    try:
        return fn(*arguments, **numbers)
    except CkptError:
        raise
    except (Exception, SystemExit) as error:  # the function is not ours
        raise TensorError(f"{_name(fn)} of {of}: {type(error).__name__}: {error}") from error


def _counted(made: Any, count: int, name: str) -> tuple[Any, ...]:
    """Give what a function returned, one for each output; one alone may stand for itself."""
    results = (made,) if count == 1 and not isinstance(made, tuple) else tuple(made)
    if len(results) != count:
        raise TensorError(f"{name} gave {len(results)} outputs, expected {count}")
    return results


def _nbytes(output: tuple[DType, Shape]) -> int:
    dtype, shape = output
    return prod(shape) * dtype.itemsize


def _promised(result: Any, name: str) -> Promise:
    """Give what a function returned as a tensor in memory: an array, a number, or a tensor of torch."""
    import numpy as np  # noqa: PLC0415 - a function was run

    if hasattr(result, "detach"):
        room = importlib.import_module("ckptmigrate.torch")  # house: the one way to it
        return room.promise(result)  # type: ignore[no-any-return]
    if not isinstance(result, np.ndarray | np.generic):
        raise TensorError(f"{name} gave a {type(result).__name__}, expected an array")
    return array(np.asarray(result))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _said(given: Sequence[Tensor]) -> str:
    return ", ".join(f"{each.dtype} {list(each.shape)}" for each in given)
