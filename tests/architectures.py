"""Models before and after a change of their architecture, and what it does to a state dict."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

State = dict[str, torch.Tensor]


def linears(*names: str, width: int = 8, bias: bool = True) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(width, width, bias=bias) for name in names})


def layers(count: int, make: Callable[[], nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"h": nn.ModuleList(make() for _ in range(count))})


def prefix_and_rename(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        return nn.ModuleDict({"ln_1": nn.LayerNorm(8), "fc": nn.Linear(8, 16), "conv": nn.Conv2d(3, 4, 3)})

    def upgrade(old: State) -> State:
        return {"model." + name.replace("ln_1", "norm").replace("fc", "up"): t for name, t in old.items()}

    return layers(layer_count, block), upgrade


def transposed_linear(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        return {n: t.T.contiguous() if ".fc.weight" in n else t for n, t in old.items()}

    return layers(layer_count, lambda: nn.ModuleDict({"fc": nn.Linear(8, 16), "out": nn.Linear(16, 8)})), upgrade


def split_qkv(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if "qkv" not in n}
        for name, tensor in ((n, t) for n, t in old.items() if "qkv" in n):
            sizes = [8, 4, 4]  # grouped queries: fewer keys and values than queries
            for part, piece in zip("qkv", tensor.split(sizes), strict=True):
                new[name.replace("qkv", f"{part}_proj")] = piece.clone()
        return new

    return layers(layer_count, lambda: nn.ModuleDict({"qkv": nn.Linear(8, 16), "out": nn.Linear(8, 8)})), upgrade


def split_columns(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """GPT-2 keeps its linears transposed: q, k and v are columns there."""

    def block() -> nn.Module:
        module = nn.Module()
        module.attn = nn.Module()
        module.attn.register_parameter("weight", nn.Parameter(torch.randn(8, 24)))
        module.attn.register_parameter("bias", nn.Parameter(torch.randn(24)))
        return module

    def upgrade(old: State) -> State:
        new: State = {}
        for name, tensor in old.items():
            for part, piece in zip("qkv", tensor.split(8, -1), strict=True):
                new[name.replace("attn", f"attn.{part}")] = (piece.T if piece.ndim == 2 else piece).contiguous()
        return new

    return layers(layer_count, block), upgrade


def fused_qkv(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if not re.search(r"\.[qkv]\.", n)}
        for name in (n for n in old if ".q." in n):
            new[name.replace(".q.", ".qkv.")] = torch.cat([old[name.replace(".q.", f".{part}.")] for part in "qkv"])
        return new

    return layers(layer_count, lambda: linears("q", "k", "v", "o")), upgrade


def stacked_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        experts = nn.ModuleList(nn.ModuleDict({"w1": nn.Linear(8, 6, bias=False)}) for _ in range(4))
        return nn.ModuleDict({"gate": nn.Linear(8, 4), "experts": experts})

    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if "experts" not in n}
        for name in (n for n in old if ".experts.0." in n):
            rows = [old[name.replace(".0.w1", f".{e}.w1")].T for e in range(4)]
            new[name.replace(".0.w1.weight", ".w1")] = torch.stack(rows)
        return new

    return layers(layer_count, block), upgrade


def fused_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """Gate and up of all experts in one tensor, each transposed."""

    def block() -> nn.Module:
        members = (nn.ModuleDict({w: nn.Linear(8, 6, bias=False) for w in ("w1", "w3")}) for _ in range(4))
        return nn.ModuleDict({"experts": nn.ModuleList(members)})

    def upgrade(old: State) -> State:
        new: State = {}
        for name in (n for n in old if ".experts.0.w1" in n):
            rows = [torch.cat([old[name.replace(".0.w1", f".{e}.{w}")].T for w in ("w1", "w3")], 1) for e in range(4)]
            new[name.replace(".0.w1.weight", ".gate_up")] = torch.stack(rows)
        return new

    return layers(layer_count, block), upgrade


def parted_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        module = nn.Module()
        module.register_parameter("gate_up", nn.Parameter(torch.randn(4, 12, 8)))
        return module

    def upgrade(old: State) -> State:
        halves = {
            (n, w, e): half
            for n, t in old.items()
            for e in range(4)
            for w, half in zip(("w1", "w3"), t[e].chunk(2), strict=True)
        }
        return {n.replace("gate_up", f"experts.{e}.{w}.weight"): half.clone() for (n, w, e), half in halves.items()}

    return layers(layer_count, block), upgrade


def unstacked_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        module = nn.Module()
        module.register_parameter("w1", nn.Parameter(torch.randn(4, 6, 8)))
        return module

    def upgrade(old: State) -> State:
        return {n.replace("w1", f"experts.{e}.w1.weight"): t[e].clone() for n, t in old.items() for e in range(4)}

    return layers(layer_count, block), upgrade


def permuted_gates(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # i f g o, as torch has them, to i f o g, as others do
        return {n: torch.cat([t.chunk(4)[i] for i in (0, 1, 3, 2)]) for n, t in old.items()}

    return nn.LSTM(8, 6, num_layers=layer_count, bidirectional=True), upgrade


def rotary(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # 6 heads of 8: pairs side by side, to halves
        turned = (t.view(6, 4, 2, -1).transpose(1, 2).reshape(t.shape) if ".q." in n else t for n, t in old.items())
        return dict(zip(old, turned, strict=True))

    return layers(layer_count, lambda: linears("q", "o", width=48)), upgrade


def interleaved_heads(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # q, k and v of each head side by side, to all q, all k, all v
        new: State = {}
        for name, tensor in old.items():
            parts = tensor.view(6, 3, 8, *tensor.shape[1:])
            for i, part in enumerate("qkv"):
                new[name.replace("qkv", part)] = parts[:, i].reshape(48, *tensor.shape[1:]).clone()
        return new

    return layers(layer_count, lambda: nn.ModuleDict({"qkv": nn.Linear(48, 144)})), upgrade


def cast(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        return {"net." + n: t.bfloat16() if t.is_floating_point() else t for n, t in old.items()}

    return layers(layer_count, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), upgrade


def raised(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    module = layers(layer_count, lambda: linears("q", "o")).half()
    return module, lambda old: {n: t.float() for n, t in old.items()}


def flat_convolutions(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """1 x 1 convolutions become linears; their widths differ from layer to layer."""

    def upgrade(old: State) -> State:
        return {n.replace("conv", "proj"): t[:, :, 0, 0].clone() if t.ndim == 4 else t for n, t in old.items()}

    blocks = (nn.ModuleDict({"conv": nn.Conv2d(3 + i % 3, 4 + i % 2, 1)}) for i in range(layer_count))
    return nn.ModuleDict({"h": nn.ModuleList(blocks)}), upgrade


def batch_norm(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """As torch itself wrote it before 0.4.1: no counter."""

    def upgrade(old: State) -> State:
        new = {n.replace("h.", "stages."): t for n, t in old.items()}
        counters = {n.replace("running_mean", "num_batches_tracked"): torch.tensor(0) for n in new if "_mean" in n}
        return {**new, **counters}

    module = layers(layer_count, lambda: nn.ModuleDict({"c": nn.Conv2d(3, 4, 3), "bn": nn.BatchNorm2d(4)}))
    for name in [n for n, _ in module.named_modules() if n.endswith("bn")]:
        del module.get_submodule(name)._buffers["num_batches_tracked"]
    return module, upgrade


def closed_gaps(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """A Sequential that lost its activations: 0, 2, 4 became 0, 1, 2."""
    members = [each for _ in range(layer_count + 1) for each in (nn.Linear(8, 8), nn.ReLU())]

    def upgrade(old: State) -> State:
        return {re.sub(r"\d+", lambda found: str(int(found[0]) // 2), n, count=1): t for n, t in old.items()}

    return nn.ModuleDict({"net": nn.Sequential(*members)}), upgrade


def shifted(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """Layers that count from one, under another name."""

    def upgrade(old: State) -> State:
        return {re.sub(r"h\.(\d+)\.q", lambda found: f"layers.{int(found[1]) + 1}.query", n): t for n, t in old.items()}

    return layers(layer_count, lambda: linears("q")), upgrade


ARCHITECTURES = [
    prefix_and_rename, transposed_linear, split_qkv, split_columns, fused_qkv, stacked_experts, unstacked_experts, fused_experts, parted_experts, permuted_gates,
    rotary, interleaved_heads, cast, raised, flat_convolutions, batch_norm, closed_gaps, shifted,
]  # fmt: skip

UNMARKED = {permuted_gates, rotary}  # the same names, shapes and dtypes: nothing in a file tells them apart


def pair(architecture: Callable[[int], tuple[nn.Module, Any]], seed: int, layer_count: int = 2) -> tuple[State, State]:
    """Give a state dict of the old architecture, whose every parameter was trained, and the new one's of the same values."""
    torch.manual_seed(seed)
    module, upgrade = architecture(layer_count)
    old = module.state_dict()
    return old, upgrade(old)
