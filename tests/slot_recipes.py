"""The rows and columns of the slot table: what each operation means in plain torch, and how each optimizer came to its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ckptmigrate.operations import (
    Add,
    Apply,
    Cast,
    Concat,
    Drop,
    Move,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Named = dict[str, Tensor]
SQUARE = (4, 4)


@dataclass(frozen=True)
class Row:
    """One operation on one kind of parameter: the parameters before and after, and what becomes of one set of tensors under their names.

    ``body`` and ``becomes`` are what the two models compute with them, where that is the same; ``moments``: what becomes of slots,
    where it is not what becomes of weights; ``fresh``: parameters without state afterwards, and whose group they join; ``tied``: second
    names, and the first.
    """

    operation: Any
    old: Mapping[str, tuple[int, ...]]
    new: Mapping[str, tuple[int, ...]]
    mapped: Callable[[Named], Named]
    body: Callable[[Named, Tensor], Tensor] | None = None
    becomes: Callable[[Named, Tensor], Tensor] | None = None
    moments: Callable[[Named], Named] | None = None
    fresh: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)


class Net(torch.nn.Module):  # type: ignore[misc] # torch tells its types to nobody here
    """A stem, what a row is about, a head, what stands behind it, and a norm's statistics, which no optimizer has."""

    def __init__(
        self,
        middle: Mapping[str, tuple[int, ...]],
        body: Callable[[Named, Tensor], Tensor] | None,
        ties: Mapping[str, str],
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        super().__init__()
        self.body, self.middle = body, [name for name in middle if not name.startswith(("early.", "tail."))]
        stem, head = {"stem.weight": (4, 3), "stem.bias": (4,)}, {"head.weight": (2, 4), "head.bias": (2,)}
        shapes = {
            **{n: s for n, s in middle.items() if n.startswith("early.")}, **stem,
            **{n: s for n, s in middle.items() if not n.startswith("early.")}, **head,
        }  # fmt: skip
        for name in sorted(shapes, key=lambda name: name.startswith("tail.")):
            if name in ties:
                self._put(name, self.get_parameter(ties[name]))
            else:
                made = (torch.randn(shapes[name]) * 0.5).to((dtypes or {}).get(name))
                self._put(name, torch.nn.Parameter(made))
        self._put("norm.running_mean", torch.randn(4))
        self._put("norm.num_batches_tracked", torch.tensor(7))

    def _put(self, name: str, value: Tensor) -> None:
        module: torch.nn.Module = self
        *path, leaf = name.split(".")
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(leaf, value)
        else:
            module.register_buffer(leaf, value)

    def forward(self, x: Tensor) -> Tensor:
        own = dict(self.named_parameters(remove_duplicate=False))
        h = x @ own["stem.weight"].T + own["stem.bias"] + self.get_buffer("norm.running_mean")
        if self.body is not None:
            h = self.body(own, h)
        else:
            for i, name in enumerate(self.middle):
                h = h + h * (own[name].float().sum() + i)
        return torch.tanh(h) @ own["head.weight"].T + own["head.bias"]


def renamed(**names: str) -> Callable[[Named], Named]:
    """Give what calls tensors otherwise; ``__`` is a dot."""
    table = {old.replace("__", "."): new.replace("__", ".") for old, new in names.items()}
    return lambda named: {table.get(name, name): value for name, value in named.items()}


def each(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Named], Named]:
    """Give what changes one tensor."""
    return lambda named: {n: change(v) if n == name else v for n, v in named.items()}


def parted(name: str, parts: Sequence[str], cut: Callable[[Tensor], Sequence[Tensor]]) -> Callable[[Named], Named]:
    """Give what makes several of one, at its place."""

    def change(named: Named) -> Named:
        made: Named = {}
        for n, value in named.items():
            made.update(zip(parts, cut(value), strict=True) if n == name else [(n, value)])
        return made

    return change


def joint(parts: Sequence[str], name: str, join: Callable[[list[Tensor]], Tensor]) -> Callable[[Named], Named]:
    """Give what makes one of several, at the place of the first."""

    def change(named: Named) -> Named:
        made = {n: v for n, v in named.items() if n not in parts[1:]}
        return {
            (name if n == parts[0] else n): join([named[p] for p in parts]) if n == parts[0] else v
            for n, v in made.items()
        }

    return change


def both(first: Callable[[Named], Named], second: Callable[[Named], Named]) -> Callable[[Named], Named]:
    """Give what does the one and then the other."""
    return lambda named: second(first(named))


def without(name: str) -> Callable[[Named], Named]:
    """Give what leaves one out."""
    return lambda named: {n: v for n, v in named.items() if n != name}


def beside(near: str, name: str) -> Callable[[Named], Named]:
    """Give what puts zeros of the same shape behind one."""

    def change(named: Named) -> Named:
        made: Named = {}
        for n, value in named.items():
            made[n] = value
            if n == near:
                made[name] = torch.zeros_like(value)
        return made

    return change


def sharing(first: str, second: str) -> Callable[[Named], Named]:
    """Give what puts the first under the second's name too."""
    return lambda named: {n: named[first] if n == second else v for n, v in named.items()}


def ordered(*names: str) -> Callable[[Named], Named]:
    """Give what puts these into this order, at their places."""

    def change(named: Named) -> Named:
        line = iter(names)
        return {n: named[n] for n in (next(line) if n in names else n for n in named)}

    return change


def same(named: Named) -> Named:
    """Give all as they are."""
    return dict(named)


def flipped(weight: Any) -> Any:
    """Give the rows from the last to the first: the function of the table's Apply."""
    return weight[::-1].copy()


def times(name: str, *, turned: bool = False) -> Callable[[Named, Tensor], Tensor]:
    """Give a linear layer of one weight, which may lie on its side or have two more axes."""

    def body(p: Named, h: Tensor) -> Tensor:
        weight = p[name].reshape(4, 4).to(h.dtype)
        return h @ (weight if turned else weight.T)

    return body


def _gated(order: tuple[int, int]) -> Callable[[Named, Tensor], Tensor]:
    def body(p: Named, h: Tensor) -> Tensor:
        parts = (h @ p["a.weight"].T).chunk(2, dim=-1)
        return torch.tanh(parts[order[0]]) * parts[order[1]]

    return body


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(q) * torch.sigmoid(k) + v


def _fused(p: Named, h: Tensor) -> Tensor:
    return _attended(*(h @ p["qkv.weight"].T).chunk(3, dim=-1))


def _apart(p: Named, h: Tensor) -> Tensor:
    return _attended(*(h @ p[f"{n}.weight"].T for n in "qkv"))


def _fused_with_bias(p: Named, h: Tensor) -> Tensor:
    return _attended(*(h @ p["qkv.weight"].T + p["qkv.bias"]).chunk(3, dim=-1))


def _apart_with_bias(p: Named, h: Tensor) -> Tensor:
    return _attended(*(h @ p[f"{n}.weight"].T + p[f"{n}.bias"] for n in "qkv"))


def _stacked_with_bias(p: Named, h: Tensor) -> Tensor:
    one, two = (h @ w.T + b for w, b in zip(p["experts.w"], p["experts.b"], strict=True))
    return torch.tanh(one) + two


def _experts_with_bias(p: Named, h: Tensor) -> Tensor:
    one, two = (h @ p[f"experts.{n}.w"].T + p[f"experts.{n}.b"] for n in "01")
    return torch.tanh(one) + two


def _experts(p: Named, h: Tensor) -> Tensor:
    return torch.tanh(h @ p["experts.0.w"].T) + h @ p["experts.1.w"].T


def _stacked(p: Named, h: Tensor) -> Tensor:
    both = torch.stack([h @ w.T for w in p["experts.w"]])
    return torch.tanh(both[0]) + both[1]


def _two(first: str, second: str) -> Callable[[Named, Tensor], Tensor]:
    return lambda p, h: torch.tanh(h @ p[first].T) @ p[second].T


def _biased(p: Named, h: Tensor) -> Tensor:
    return h @ p["a.weight"].T + p["a.extra"].sum(0)


def _flipping(p: Named, h: Tensor) -> Tensor:
    return (h @ p["a.weight"].T).flip(-1)


A = r"a\.weight"
QKV = ("q.weight", "k.weight", "v.weight")
EXPERTS = ("experts.0.w", "experts.1.w")
BIASES = ("q.bias", "k.bias", "v.bias")
OFFSETS = ("experts.0.b", "experts.1.b")
FLIP = each("a.weight", lambda w: w.flip(0))

MATRICES = {
    "Rename": Row(Rename(A, "b.weight"), {"a.weight": SQUARE}, {"b.weight": SQUARE}, renamed(a__weight="b.weight"), times("a.weight"), times("b.weight")),
    "Drop": Row(Drop(A, reason="retired"), {"a.weight": SQUARE}, {}, without("a.weight"), times("a.weight")),
    "Add": Row(
        Add("a.extra", near=A), {"a.weight": SQUARE}, {"a.weight": SQUARE, "a.extra": SQUARE}, beside("a.weight", "a.extra"),
        times("a.weight"), _biased, fresh={"a.extra": "a.weight"},
    ),
    "Reshape": Row(
        Reshape(A, ("*", "*"), old=("*", "*", 1, 1)), {"a.weight": (4, 4, 1, 1)}, {"a.weight": SQUARE},
        each("a.weight", lambda w: w[:, :, 0, 0]), times("a.weight"), times("a.weight"),
    ),
    "Transpose": Row(Transpose(A), {"a.weight": SQUARE}, {"a.weight": SQUARE}, each("a.weight", lambda w: w.T), times("a.weight"), times("a.weight", turned=True)),
    "Reorder": Row(
        Reorder(A, (1, 0)), {"a.weight": (8, 4)}, {"a.weight": (8, 4)}, each("a.weight", lambda w: torch.cat([w[4:], w[:4]])), _gated((0, 1)), _gated((1, 0))
    ),
    "Split": Row(
        Split(r"qkv\.(weight)", [r"q.\1", r"k.\1", r"v.\1"]), {"qkv.weight": (12, 4)}, dict.fromkeys(QKV, SQUARE),
        parted("qkv.weight", QKV, lambda w: w.chunk(3)), _fused, _apart,
    ),
    "Concat": Row(
        Concat([r"q\.(weight)", r"k\.(weight)", r"v\.(weight)"], r"qkv.\1"), dict.fromkeys(QKV, SQUARE), {"qkv.weight": (12, 4)},
        joint(QKV, "qkv.weight", torch.cat), _apart, _fused,
    ),
    "Stack": Row(
        Stack(r"experts\.(\d+)\.w", "experts.w"), dict.fromkeys(EXPERTS, SQUARE), {"experts.w": (2, 4, 4)}, joint(EXPERTS, "experts.w", torch.stack), _experts, _stacked
    ),
    "Unstack": Row(
        Unstack(r"experts\.w", "experts.{}.w"), {"experts.w": (2, 4, 4)}, dict.fromkeys(EXPERTS, SQUARE), parted("experts.w", EXPERTS, lambda w: w.unbind(0)), _stacked, _experts
    ),
    "Split-layer": Row(
        Split(r"qkv\.(weight|bias)", [r"q.\1", r"k.\1", r"v.\1"]), {"qkv.weight": (12, 4), "qkv.bias": (12,)},
        {f"{n}.{w}": s for n in "qkv" for w, s in (("weight", SQUARE), ("bias", (4,)))},
        both(parted("qkv.weight", QKV, lambda w: w.chunk(3)), parted("qkv.bias", BIASES, lambda w: w.chunk(3))), _fused_with_bias, _apart_with_bias,
    ),
    "Unstack-layers": Row(
        Unstack(r"experts\.(w|b)", r"experts.{}.\1"), {"experts.w": (2, 4, 4), "experts.b": (2, 4)},
        {f"experts.{n}.{w}": s for n in "01" for w, s in (("w", SQUARE), ("b", (4,)))},
        both(parted("experts.w", EXPERTS, lambda w: w.unbind(0)), parted("experts.b", OFFSETS, lambda w: w.unbind(0))), _stacked_with_bias, _experts_with_bias,
    ),
    "Cast": Row(
        Cast(A, "BF16"), {"a.weight": SQUARE}, {"a.weight": SQUARE}, each("a.weight", lambda w: w.bfloat16()), times("a.weight"), times("a.weight"),
    ),
    "Tie": Row(
        Tie(A, "b.weight"), {"a.weight": SQUARE, "b.weight": SQUARE}, {"a.weight": SQUARE, "b.weight": SQUARE}, sharing("a.weight", "b.weight"),
        _two("a.weight", "b.weight"), _two("a.weight", "b.weight"),
    ),
    "Untie": Row(
        Untie(r"tail\.out"), {"a.weight": SQUARE, "tail.out": SQUARE}, {"a.weight": SQUARE, "tail.out": SQUARE}, same,
        _two("a.weight", "tail.out"), _two("a.weight", "tail.out"), fresh={"tail.out": "a.weight"}, tied={"tail.out": "a.weight"},
    ),
    "Reindex": Row(
        Reindex(r"layers\.(\d+)\.weight"), {"layers.1.weight": SQUARE, "layers.10.weight": SQUARE}, {"layers.0.weight": SQUARE, "layers.1.weight": SQUARE},
        renamed(layers__1__weight="layers.0.weight", layers__10__weight="layers.1.weight"),
        _two("layers.1.weight", "layers.10.weight"), _two("layers.0.weight", "layers.1.weight"),
    ),
    "Move": Row(Move(r"model/a\.weight", "model/b.weight"), {"a.weight": SQUARE}, {"b.weight": SQUARE}, renamed(a__weight="b.weight"), times("a.weight"), times("b.weight")),
    "Order": Row(
        Order([r"b\.weight", A]), {"a.weight": SQUARE, "b.weight": SQUARE}, {"b.weight": SQUARE, "a.weight": SQUARE}, ordered("b.weight", "a.weight"),
        _two("a.weight", "b.weight"), _two("a.weight", "b.weight"),
    ),
    "Apply-follow": Row(Apply([A], ["a.weight"], flipped, slots="follow"), {"a.weight": SQUARE}, {"a.weight": SQUARE}, FLIP, times("a.weight"), _flipping),
    "Apply-refuse": Row(Apply([A], ["a.weight"], flipped), {"a.weight": SQUARE}, {"a.weight": SQUARE}, FLIP, times("a.weight"), _flipping, fresh={"a.weight": "a.weight"}),
    "Apply-drop": Row(
        Apply([A], ["a.weight"], flipped, slots="drop"), {"a.weight": SQUARE}, {"a.weight": SQUARE}, FLIP, times("a.weight"), _flipping, fresh={"a.weight": "a.weight"}
    ),
    "Apply-keep": Row(Apply([A], ["a.weight"], flipped, slots="keep"), {"a.weight": SQUARE}, {"a.weight": SQUARE}, FLIP, times("a.weight"), _flipping, moments=same),
}  # fmt: skip


def _small(shape: tuple[int, ...]) -> dict[str, Row]:
    """Give the rows for parameters of one element, of the shape [1] or [], before or after."""
    one, two, pair = {"a.weight": shape}, dict.fromkeys(("a.weight", "b.weight"), shape), (2, *shape)
    turned = (1,) if not shape else ()
    layer = dict.fromkeys(("a.weight", "a.bias"), (2,) if shape else ())
    layers = {f"{n}.{w}": shape for n in "xy" for w in ("weight", "bias")}
    return {
        "Rename": Row(Rename(A, "b.weight"), one, {"b.weight": shape}, renamed(a__weight="b.weight")),
        "Drop": Row(Drop(A, reason="retired"), one, {}, without("a.weight")),
        "Add": Row(Add("a.extra", near=A), one, {**one, "a.extra": shape}, beside("a.weight", "a.extra"), fresh={"a.extra": "a.weight"}),
        "Reshape": Row(Reshape(A, turned), one, {"a.weight": turned}, each("a.weight", lambda w: w.reshape(turned))),
        "Transpose": Row(Transpose(A, tuple(range(len(shape)))), one, one, same),
        "Reorder": Row(Reorder(A, (0,)), one, one, same),
        "Split": Row(Split(A, ("a.x", "a.y")), {"a.weight": (2,) if shape else ()}, dict.fromkeys(("a.x", "a.y"), shape), parted("a.weight", ("a.x", "a.y"), lambda w: w.chunk(2))),
        "Concat": Row(Concat([A, r"b\.weight"], "ab.w"), two, {"ab.w": (2,)}, joint(("a.weight", "b.weight"), "ab.w", torch.cat)),
        "Stack": Row(Stack([A, r"b\.weight"], "ab.w"), two, {"ab.w": pair}, joint(("a.weight", "b.weight"), "ab.w", torch.stack)),
        "Unstack": Row(Unstack(r"ab\.w", ["a.weight", "b.weight"]), {"ab.w": pair}, two, parted("ab.w", ("a.weight", "b.weight"), lambda w: w.unbind(0))),
        "Split-layer": Row(Split(r"a\.(weight|bias)", (r"x.\1", r"y.\1")), layer, layers, _of_both(layer, lambda w: w.chunk(2))),
        "Unstack-layers": Row(Unstack(r"a\.(weight|bias)", [r"x.\1", r"y.\1"]), dict.fromkeys(layer, pair), layers, _of_both(layer, lambda w: w.unbind(0))),
        "Cast": Row(Cast(A, "F64"), one, one, each("a.weight", lambda w: w.double())),
        "Tie": Row(Tie(A, "b.weight"), two, two, sharing("a.weight", "b.weight")),
        "Untie": Row(Untie(r"b\.weight"), two, two, same, fresh={"b.weight": "a.weight"}, tied={"b.weight": "a.weight"}),
        "Reindex": Row(Reindex(r"l\.(\d)\.w"), {"l.1.w": shape, "l.3.w": shape}, {"l.0.w": shape, "l.1.w": shape}, renamed(l__1__w="l.0.w", l__3__w="l.1.w")),
        "Move": Row(Move(r"model/a\.weight", "model/b.weight"), one, {"b.weight": shape}, renamed(a__weight="b.weight")),
        "Order": Row(Order([r"b\.weight", A]), two, dict(reversed(two.items())), ordered("b.weight", "a.weight")),
        "Apply-follow": Row(Apply([A], ["a.weight"], negated, slots="follow"), one, one, each("a.weight", negated)),
        "Apply-refuse": Row(Apply([A], ["a.weight"], negated), one, one, each("a.weight", negated), fresh={"a.weight": "a.weight"}),
        "Apply-drop": Row(Apply([A], ["a.weight"], negated, slots="drop"), one, one, each("a.weight", negated), fresh={"a.weight": "a.weight"}),
        "Apply-keep": Row(Apply([A], ["a.weight"], negated, slots="keep"), one, one, each("a.weight", negated), moments=same),
    }  # fmt: skip


def _of_both(layer: Mapping[str, Any], cut: Callable[[Tensor], Sequence[Tensor]]) -> Callable[[Named], Named]:
    weight, bias = (parted(name, [name.replace("a.", f"{n}.") for n in "xy"], cut) for name in layer)
    return both(weight, bias)


def negated(weight: Any) -> Any:
    """Give the other sign: the function of the Apply of one number."""
    return -weight


ROWS = {"matrix": MATRICES, "[1]": _small((1,)), "[]": _small(())}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.01),
    "Adam-int": lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.01),
    "AMSGrad": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=0.1),
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=2),
}
