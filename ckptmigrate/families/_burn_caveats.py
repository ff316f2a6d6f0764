"""What of an old record cannot be resumed exactly: the tensors are carried faithfully, and training goes on along other numbers.

    names and versions prove   weight decay's memory (0.3-0.8), LayerNorm (before 0.14), GroupNorm and InstanceNorm, Gru (before 0.17)
    so do the ids              BatchNorm of 0.5, which wrote no version
    nothing proves             groups of convolutions (0.7, 0.8)
    only the values tell       second moments that half precision stored as 0; the moments of AdamW of 0.9.0, which are NaN

The values are looked at window by window, when somebody asks. Sources: formats/burn.md 3.4, 5.2 and 5.4; nn/norm/group.rs of 0.11 to
0.17.
"""

from __future__ import annotations

import re
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from ckptmigrate.format import Caveat
from ckptmigrate.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.tensor import Promise

    Pair = tuple[Promise, Promise]

MEMORY = "weight_decay.grad_last_step"
MOMENTS = ("momentum.moment_1", "momentum.moment_2")
BROKEN = "0.9.0"  # its AdamW counts from 0 and divides by 0 in the first step
LAYER_NORM = {"gamma", "beta", "epsilon"}  # all of its fields, in every release before the fix
GROUP_NORMS = (  # and of these, of which the second computes as the first
    {"num_groups", "num_channels", "gamma", "beta", "epsilon", "affine"},
    {"num_channels", "gamma", "beta", "epsilon", "affine"},
)
GRU = {"update_gate", "reset_gate", "new_gate"}
CONVOLUTION = {"weight", "bias", "stride", "dilation", "groups"}
NORM_FIXED, GROUPS_DIVIDED, GROUP_NORM_FIXED, GRU_FIXED = (0, 14), (0, 9), (0, 17), (0, 17)
SHOWN = 5
REMEDY = "to avoid it restart the optimizer (--sections model keeps the weights) or warm the learning rate up"


def caveats(checkpoint: Checkpoint) -> list[Caveat]:
    """Give what the new release will compute differently, as the checkpoint stands when it has been gathered."""
    return [*_weight_decay(checkpoint), *_modules(checkpoint), *_moments(checkpoint)]


def _weight_decay(checkpoint: Checkpoint) -> Iterator[Caveat]:
    count = sum(MEMORY in (p.slots or {}) for o in checkpoint.optimizers for p in o.params)
    if count:
        yield Caveat(
            f"the optimizer remembers the last gradient of {count} parameters for its weight decay, as Burn did up to 0.8; since 0.9"
            " it decays the weights themselves and has no place for it: training does not go on along the same numbers"
        )


def _modules(checkpoint: Checkpoint) -> Iterator[Caveat]:
    found: dict[str, set[str]] = {kind: set() for kind in _CHANGED}
    for said in _files(checkpoint):
        version = _version(said)
        if version is None:
            if said.get("section") == "model" and "metadata" not in said:  # the releases that wrote no version
                found["LayerNorm"] |= set(_unversioned(checkpoint, running=False))
                found["BatchNorm"] |= set(_unversioned(checkpoint, running=True)) if "nanoids" in said else set()
            continue
        for module, names in said.get("fields", {}).items():
            kind = _kind(checkpoint, module, set(names), version)
            if kind is not None:
                found[kind].add(module)
    for kind, why in _CHANGED.items():
        if found[kind]:
            yield Caveat(f"{kind} ({_some(found[kind])}): {why}")


def _kind(checkpoint: Checkpoint, module: str, names: set[str], version: tuple[int, int]) -> str | None:
    """Give what of ``_CHANGED`` a module is, by all of its fields; None where nothing of it changed after the release that wrote it."""
    if version < NORM_FIXED and names == LAYER_NORM and _has(checkpoint, module, "gamma"):
        return "LayerNorm"
    if version < GROUP_NORM_FIXED and names in GROUP_NORMS:
        return "GroupNorm"
    if version < GRU_FIXED and names >= GRU and _has(checkpoint, module, "new_gate.input_transform.weight"):
        return "Gru"
    if version < GROUPS_DIVIDED and names >= CONVOLUTION and _has(checkpoint, module, "weight"):
        shape = checkpoint.model[f"{module}.weight" if module else "weight"].shape
        return "Conv" if len(shape) > 2 and gcd(shape[0], shape[1]) > 1 else None  # groups divide both
    return None


_CHANGED = {
    "LayerNorm": "before 0.14 Burn divided by sqrt(variance) + epsilon, since then by sqrt(variance + epsilon): the same weights give"
    " slightly different outputs",
    "GroupNorm": "before 0.17 Burn divided by sqrt(variance) + epsilon, since then by sqrt(variance + epsilon), and 0.11 took"
    " square roots for squares: the same weights give different outputs; an InstanceNorm computes the same way",
    "Gru": "before 0.17 Burn applied the reset gate before the hidden product and did not carry the hidden state from step to step:"
    " reset_after = false gives the first back and nothing the second, so the same weights give different outputs",
    "Conv": "0.7 and 0.8 saved the weight of all input channels, whatever the groups, and nothing in the record tells these: right with"
    " one group; with more no release could use it, and --like FILE refuses its shape",
    "BatchNorm": "0.5 divided by sqrt(variance) + epsilon, and while it trained by the statistics of each sample; 0.6 and later do"
    " neither: the same weights give slightly different outputs",
}  # fmt: skip


def _moments(checkpoint: Checkpoint) -> Iterator[Caveat]:
    pairs = [pair for o in checkpoint.optimizers for p in o.params if (pair := _pair(p.slots or {})) is not None]
    half = [pair for pair in pairs if pair[1].dtype.name == "F16"]
    told = {str(said.get("versions", {}).get("burn")) for said in _files(checkpoint)}
    if pairs and BROKEN in told:
        yield Caveat(
            f"its moments may not be numbers: those that AdamW of {BROKEN} wrote are NaN, those of Adam are right, and only the"
            " values tell",
            partial(_nan, pairs),
        )
    if half:
        yield Caveat(
            "its second moments are in half precision, where those below 6e-8 are stored as 0: how many are is counted when it is"
            f" written; the first steps after them are large, as they are in the release that wrote it; {REMEDY}",
            partial(_zeros, half),
        )


def _nan(pairs: Iterable[Pair]) -> str | None:
    import numpy as np  # noqa: PLC0415 - values are asked for

    bad = total = 0
    for _, second in _drawn(pairs):
        bad, total = bad + int(np.isnan(second).sum()), total + second.size
    if not bad:
        return None
    return (
        f"{bad:,} of {total:,} second moments are NaN: AdamW of {BROKEN} divides by 0 in its first step, and made the weights NaN too;"
        " such a run cannot be resumed, go back to what was before it"
    )


def _zeros(pairs: Iterable[Pair]) -> str | None:
    lost = total = 0
    for first, second in _drawn(pairs):
        lost, total = lost + int(((second == 0) & (first != 0)).sum()), total + second.size
    if not lost:
        return None
    return (
        f"{lost:,} of {total:,} second moments were stored as 0 in half precision: the first resumed steps will be large, as they are in"
        f" the release that wrote it; {REMEDY}"
    )


def _drawn(pairs: Iterable[Pair]) -> Iterator[tuple[Any, Any]]:
    """Draw both moments of each parameter, a window at a time."""
    import numpy as np  # noqa: PLC0415 - same

    for pair in pairs:
        step = min(promise.window for promise in pair)
        for start in range(0, pair[0].numel, step):
            stop = min(start + step, pair[0].numel)
            first, second = (np.frombuffer(one.read(start, stop), one.dtype.numpy_dtype()) for one in pair)
            yield first, second


def _pair(slots: dict[str, Any]) -> Pair | None:
    first, second = (slots[leaf].value if leaf in slots else None for leaf in MOMENTS)
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.shape != second.shape:
        return None
    if first.dtype.kind != "float" or second.dtype.kind != "float":
        return None
    return first.promise, second.promise


def _files(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """Give what each file says of itself."""
    for said in checkpoint.origin.facts.values():
        if isinstance(said, dict) and ("versions" in said or "section" in said):
            yield said


def _version(said: dict[str, Any]) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", str(said.get("versions", {}).get("burn", "")))
    return None if found is None else (int(found[1]), int(found[2]))


def _unversioned(checkpoint: Checkpoint, *, running: bool) -> Iterator[str]:
    """Give the modules with a scale and a shift, with running statistics or without: before 0.7 BatchNorm or LayerNorm alone is like that."""
    for name in checkpoint.model:
        module, _, leaf = name.rpartition(".")
        if leaf == "gamma" and _has(checkpoint, module, "beta") and _has(checkpoint, module, "running_mean") is running:
            yield module


def _has(checkpoint: Checkpoint, module: str, leaf: str) -> bool:
    return (f"{module}.{leaf}" if module else leaf) in checkpoint.model


def _some(modules: set[str]) -> str:
    shown = sorted(module or "the model itself" for module in modules)
    return ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
