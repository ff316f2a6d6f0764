"""The dtypes of a wanted model: floats are rounded as a cast does, every other change must lose nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ckptmigrate.errors import TensorError
from ckptmigrate.tensor import Made, cast

if TYPE_CHECKING:
    import numpy as np

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.dtypes import DType
    from ckptmigrate.format import Like
    from ckptmigrate.tensor import Promise

_NUMBERS = {"float", "int", "uint", "bool"}


@dataclass(frozen=True, slots=True)
class Exact:
    """The same numbers as another dtype; one that it does not hold is refused as it is drawn."""

    dtype: DType
    elementwise: ClassVar[Literal[True]] = True

    def apply(self, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Give the one array with other elements."""
        import numpy as np  # noqa: PLC0415 - numbers are needed only when they are drawn

        (array,) = arrays
        with np.errstate(all="ignore"):
            made = array.astype(self.dtype.numpy_dtype())
            # Back again, and of one sign: 2**63 as I64 comes back as it was.
            kept = (made.astype(array.dtype) == array) & ((made < 0) == (array < 0))
        if not kept.all():
            raise TensorError(f"--like: {array[~kept][0]} cannot become {self.dtype}", dtype=self.dtype.name)
        return made


def take_over(checkpoint: Checkpoint, like: Like, said: str | None) -> list[str]:
    """Give the model the dtypes of the wanted one, and every twin that had the model's; give what cannot be.

    ``said``: what the call says of floats, which then counts: "f16", or "keep", which changes nothing at all.
    """
    made: Counter[str] = Counter()
    left: Counter[str] = Counter()
    problems = _torn(checkpoint, like)
    for name, wanted in like.tensors.items():
        before = checkpoint.model[name].dtype
        if before == wanted.dtype:
            continue
        change = f"{before} to {wanted.dtype}"
        if said == "keep" or (said is not None and before.kind == wanted.dtype.kind == "float"):
            left[change] += 1
            continue
        try:
            _cast(checkpoint, name, before, wanted.dtype, like.name)
            made[change] += 1
        except TensorError as error:
            problems.append(f"--like {like.name}: {name} is {before}, expected {wanted.dtype}: {error.message}")
    notes = checkpoint.ledger.notes
    notes += [f"{_tensors(count)} cast from {change}, as {like.name} has it" for change, count in made.items()]
    notes += [
        f"{_tensors(count)} not cast from {change}, as {like.name} has it, because of --dtype {said}"
        for change, count in left.items()
    ]
    return problems


def _torn(checkpoint: Checkpoint, like: Like) -> list[str]:
    """Give the names that are one tensor here, and would be two of different dtypes."""
    first: dict[Promise, str] = {}
    pairs = [(first.setdefault(t.promise, name), name) for name, t in checkpoint.model.items() if t.nbytes]
    return [
        f"--like {like.name}: {one} and {name} are tied, expected {like.tensors[one].dtype} and {like.tensors[name].dtype}"
        for one, name in pairs
        if like.tensors[one].dtype != like.tensors[name].dtype
    ]


def _tensors(count: int) -> str:
    return "1 tensor of the model is" if count == 1 else f"{count} tensors of the model are"


def _cast(checkpoint: Checkpoint, name: str, before: DType, dtype: DType, whose: str) -> None:
    for item, members in (("model", checkpoint.model), *((f"twins/{n}", t) for n, t in checkpoint.twins.items())):
        if name in members and members[name].dtype == before:  # a twin of another dtype is one on purpose: masters
            members[name] = replace(members[name], promise=_as(members[name].promise, dtype))
            checkpoint.ledger.derive(f"{item}/{name}", f"cast from {before} to {dtype}, as {whose} has it")


def _as(promise: Promise, dtype: DType) -> Promise:
    before = promise.dtype
    if before.kind == dtype.kind and before.kind in {"float", "complex"}:
        return cast(promise, dtype)
    if not {before.kind, dtype.kind} <= _NUMBERS:
        raise TensorError("no number crosses", dtype=before.name)
    return Made((promise,), Exact(dtype))
