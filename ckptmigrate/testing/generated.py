"""Checkpoints as hypothesis draws them: every field filled, in the shapes that a family's own state has."""

from __future__ import annotations

from hashlib import shake_128
from typing import TYPE_CHECKING, Any

from ckptmigrate.checkpoint import Applied, Checkpoint, Optimizer, Param, Progress, Slot, Stamp
from ckptmigrate.files import Disk, Range
from ckptmigrate.tensor import Tensor, View
from ckptmigrate.values import Known, Ordered, Scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from ckptmigrate.dtypes import DType


RECORDS = {"burn"}
"""Families whose state is a record by parameter id: every tensor has an id of its own, every entry its moments and a time."""


class Drawing:
    """One checkpoint as it is drawn."""

    def __init__(self, st: Any, draw: DrawFn, family: str, dtypes: Sequence[DType], *, tree: bool) -> None:
        self.st, self.draw, self.only_tree, self.family, self.dtypes = st, draw, tree, family, dtypes
        noise = shake_128(bytes([draw(st.integers(0, 255))])).digest(17 << 10)
        data = bytes(byte & 1 for byte in noise[: 1 << 10]) + noise[1 << 10 :]  # elements of BOOL are 0 or 1
        self.disk = Disk()
        self.file = self.disk.spill("generated", len(data), lambda write: write(data))

    def pick(self, *options: Any) -> Any:
        """Draw one of the options."""
        return self.draw(self.st.sampled_from(options))

    def some(self, most: int, least: int = 0) -> range:
        """Draw how many."""
        return range(self.draw(self.st.integers(least, most)))

    def tensor(self, role: Any = None, ident: int | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        """Draw a tensor: rows of the noise, or a transposed look at them."""
        dtype = self.draw(self.st.sampled_from([d for d in self.dtypes if d.packed == 1 or shape is None]))
        if shape is None:
            shape = tuple(self.pick(0, 1, 2, 3, 3) for _ in self.some(3, 1 if dtype.packed > 1 else 0))
        nbytes = dtype.itemsize
        for length in shape:
            nbytes *= length
        offset = self.draw(self.st.integers(0, 500)) + (0 if dtype.kind == "bool" else 1 << 10)
        turned = dtype.packed == 1 and self.pick(True, False)
        view = View.rows(Range(self.file, offset, nbytes), dtype, shape[::-1] if turned else shape)
        if turned:
            view = view.transpose(tuple(range(len(shape)))[::-1])
        return Tensor(view, role, ident)

    def number(self) -> Any:
        """Draw a number that JSON alone could not hold, among others."""
        st = self.st
        return self.draw(st.integers() | st.floats() | st.booleans() | st.sampled_from([float("inf"), -0.0, 1 << 60]))

    def tree(self, depth: int = 2) -> Any:
        """Draw a value of any kind that both a pickle and the codec hold, or what only one of them has."""
        own = ("known", "ordered") if self.only_tree else ("known", "ordered", "scalar")
        leaves = ("none", "number", "text", "bytes", "tensor")
        kind = self.pick(*leaves, *((*own, "list", "tuple", "dict", "keys") if depth else ()))
        below = (
            [self.tree(depth - 1) for _ in self.some(2)] if kind in {"ordered", "list", "tuple", "dict", "keys"} else []
        )
        match kind:
            case "number":
                return self.number()
            case "text":
                return self.pick("", "cosine", "@tuple", "ünï", "\n")
            case "bytes":
                return self.pick(b"", b"\x00\xff\x80")
            case "tensor":
                return self.tensor()
            case "known":
                return self.pick(
                    Known("torch.Size", ((2, 3),)), Known("torch.float16"), Known("builtins.set", ([1, 2],))
                )
            case "scalar":
                return self.pick(Scalar("uint", 1 << 63), Scalar("float", 0.5), Scalar("bool", True))
            case "ordered":
                made = Ordered({f"k{i}": node for i, node in enumerate(below)})
                made.attributes["note"] = 1
                return made
            case "list" | "tuple":
                return below if kind == "list" else tuple(below)
            case "dict":
                return {f"k{i}": node for i, node in enumerate(below)}
            case "keys":
                return dict(zip([1, (0, "x"), 2.5, None], below, strict=False))
        return None

    def model(self) -> dict[str, Tensor]:
        """Draw names in any order, some tied."""
        names = [
            "fc.weight",
            "fc.bias",
            "norm.running_mean",
            "layers.0.weight",
            "layers.10.weight",
            "a/b.weight",
            "ünï code",
            "0",
            "x",
        ]
        model: dict[str, Tensor] = {}
        for number, name in enumerate(self.draw(self.st.permutations(names))[: 1 + len(self.some(6))]):
            if self.family in RECORDS:
                shape = tuple(self.pick(1, 2, 3) for _ in self.some(3, 1))
                model[name] = self.tensor(None, (1 << 62) + number, shape)
            elif model and self.pick(True, False, False):
                model[name] = self.draw(self.st.sampled_from(list(model.values())))
            else:
                model[name] = self.tensor(
                    self.pick(None, "parameter", "buffer"), self.pick(None, number, (1 << 63) + number)
                )
        return model

    def optimizer(self, model: dict[str, Tensor]) -> Optimizer:
        """Draw the state of an optimizer over the model's floating parameters."""
        names = [
            name for name, tensor in model.items() if tensor.role != "buffer" and tensor.promise.dtype.kind == "float"
        ]
        if self.family in RECORDS:
            return self._record(model, names)
        by = self.pick(None, "file", "order", "like")
        optimizer = Optimizer(kind=self.pick(None, "adam", "sgd"), groups=[self.group() for _ in self.some(3, 1)])
        places = sorted(self.draw(self.st.integers(0, len(optimizer.groups) - 1)) for _ in names)
        lonely = self.pick(True, False, False)  # LBFGS: one state for all, none of a parameter's own
        for key, (name, group) in enumerate(zip(names, places, strict=True)):
            slots = None if lonely or self.pick(True, False, False) else self.slots(model[name].promise.shape)
            optimizer.params.append(Param(name if by else None, by, key, group, slots))
        if lonely and names:
            optimizer.shared = {"func_evals": 3, "d": self.tensor(), "old_dirs": [self.tensor()], "prev_loss": 0.5}
        elif self.pick(True, False):
            optimizer.shared = {"note": self.tree()}
        return optimizer

    def _record(self, model: dict[str, Tensor], names: list[str]) -> Optimizer:
        """Draw an Adam by parameter id: two moments of the parameter's shape and dtype, and the steps taken."""
        optimizer = Optimizer(kind="adam", groups=[{}])
        for name in names:
            tensor = model[name]
            moments = {f"momentum.moment_{n}": Slot(self.like(tensor)) for n in (1, 2)}
            time = Slot(Scalar("uint", self.draw(self.st.integers(1, 1 << 40))))
            optimizer.params.append(Param(name, "file", tensor.id, 0, {**moments, "momentum.time": time}))
        return optimizer

    def like(self, tensor: Tensor) -> Tensor:
        """Draw other elements of the same dtype, shape and id."""
        offset = self.draw(self.st.integers(0, 500)) + (1 << 10)
        return Tensor(View.rows(Range(self.file, offset, tensor.nbytes), tensor.dtype, tensor.shape), None, tensor.id)

    def group(self) -> dict[str, Any]:
        """Draw a group's hyperparameters."""
        return {
            "lr": self.pick(0.1, float("inf"), 1), "betas": (0.9, 0.999), "foreach": None, "fused": self.pick(True, False),
            "extra": self.tree(1), "initial_lr": self.tensor() if self.pick(True, False, False) else 0.1,
        }  # fmt: skip

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Draw the slots of one parameter."""
        numbers = (5, 5.0, None, True) if self.only_tree else (5, None, Scalar("uint", 1 << 40), Scalar("int", -1))
        found = {"step": Slot(self.tensor(shape=()) if self.pick(True, False) else self.pick(*numbers))}
        for name in self.pick((), ("exp_avg",), ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)):
            found[name] = Slot(self.tensor(shape=shape) if self.pick(True, True, False) else None)
        if self.pick(True, False):
            found["row_var"] = Slot(self.tensor())  # of a shape of its own
        return found

    def scheduler(self) -> Any:
        """Draw a scheduler's state."""
        if self.family in RECORDS:
            return self.pick({}, {"current_iter": Scalar("uint", self.draw(self.st.integers(0, 1 << 40)))})
        if self.only_tree or self.pick(True, False):
            return {
                "last_epoch": self.draw(self.st.integers(-1, 90)),
                "_last_lr": [0.1],
                "milestones": {3: 1},
                "T": self.number(),
            }
        return self.pick(None, {"current_iter": 7}, (1, 2.5), {"tree": self.tree()})

    def checkpoint(self) -> Checkpoint:
        """Draw it whole."""
        model = self.model()
        modules = (
            {"": {"version": 1}, "fc": {"version": 2}, "norm": {}}
            if self.only_tree
            else {"fc": {"fields": ["weight", "bias"]}}
        )
        values = {
            "rng": {"torch": self.tensor(), "python": (3, (1, 2), None)},
            "scaler": {"scale": 65536.0, "growth": self.number()},
        }
        values |= {name: {"a": self.tree(), "b": self.tree()} for name in ("config", "extra") if self.pick(True, False)}
        if self.pick(True, False):
            values["model"] = {"fc._extra_state": {"scale": self.number(), "blob": b"\x01"}}
        epoch = self.pick(None, 0, 7)
        history = [Applied("acme.vit", "2.0", "ab" * 16, (("heads", 16), ("name", "x"))) for _ in self.some(2)]
        return Checkpoint(
            family=self.family,
            model=model,
            twins={
                twin: {
                    name: self.like(tensor) if self.family in RECORDS else self.tensor(tensor.role)
                    for name, tensor in model.items()
                }
                for twin in ("ema", "swa")[: len(self.some(2))]
            },
            modules=modules if self.pick(True, True, False) else {},
            optimizers=[self.optimizer(model) for _ in self.some(1 if self.family in RECORDS else 2)],
            schedulers=[self.scheduler() for _ in self.some(1 if self.family in RECORDS else 2)],
            values=values if self.pick(True, True, False) else {},
            progress=Progress(
                epoch,
                None if epoch is None else self.pick(None, "finished", "last", "next"),
                self.pick(None, 0, 900),
                self.pick(None, 0.5, float("inf")),
            ),
            stamp=self.pick(Stamp(), Stamp({"acme.vit": "2.0", "other": "1.0rc1"}, tuple(history))),
            disk=self.disk,
        )
