"""Multiply a weight norm out: `weight = direction * magnitude / norm(direction)`, what `remove_weight_norm` leaves.

The norm is taken over all axes but the one along which the magnitude has more than one element; over all, where it has one element
(`dim=None`). Both spellings are read, `weight_g` and `weight_v` as well as the parametrization; a `weight_v` without its `weight_g` is
a spectral norm's and stays. Moments of magnitude and direction are none of the weight's: they are dropped. There is no way down: a product does not tell its factors.
Source: torch/nn/utils/weight_norm.py of 1.0 and 2.13, aten/src/ATen/native/WeightNorm.cpp; formats/torch.md 10.2.
"""

from typing import Any

from ckptmigrate import Apply, Either, Migrator, Present


def folded(magnitude: Any, direction: Any) -> Any:
    """Give the weight of which these are magnitude and direction."""
    import numpy as np  # noqa: PLC0415 - only when something is folded

    own = [n for n in magnitude.shape if n != 1]
    if magnitude.ndim not in {0, direction.ndim} or len(own) > 1:
        raise ValueError(f"{list(magnitude.shape)} is no magnitude of {list(direction.shape)}")
    wide = direction.astype(np.result_type(direction.dtype, np.float32))
    axes = tuple(axis for axis in range(wide.ndim) if magnitude.ndim == 0 or magnitude.shape[axis] == 1)
    norm = np.sqrt(np.square(wide).sum(axis=axes, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # a direction of zeros is NaN, as it is in torch
        return (wide * (magnitude.astype(wide.dtype) / norm)).astype(direction.dtype)


MODULE = r"((?:.*\.)?)"
WEIGHT = r"(\w*weight\w*)"  # a parameter that somebody calls w_v beside another, w_g, is none
MAGNITUDE, DIRECTION = rf"{MODULE}{WEIGHT}_g", rf"{MODULE}{WEIGHT}_v"
PARAMETRIZED = rf"{MODULE}parametrizations\.(\w+)\.original"

MIGRATOR = Migrator(
    chain="torch.fold_weight_norm",
    version="1.0",
    marks=[Either([Present(MAGNITUDE, where=r"\1\2_v"), Present(rf"{PARAMETRIZED}0")])],
    operations=[
        Apply(
            [MAGNITUDE, DIRECTION], {r"\1\2": {"like": 1}}, folded, slots="drop", optional=True,
            where={MAGNITUDE: r"\1\2_v", DIRECTION: r"\1\2_g"},
        ),
        Apply([rf"{PARAMETRIZED}0", rf"{PARAMETRIZED}1"], {r"\1\2": {"like": 1}}, folded, slots="drop", optional=True),
    ],
)  # fmt: skip
