"""The contract that every format keeps, as plain functions; and generated checkpoints with every field filled.

A plugin's author calls the checks from a test of their own, with a file that the real framework wrote::

    from ckptmigrate.testing import check_flips, check_reads_lazily, check_sniffs_own, check_truncation

    def test_contract(path):
        data = path.read_bytes()
        check_sniffs_own(FORMAT, data)
        check_reads_lazily(FORMAT, data)
        check_truncation(FORMAT, data, clock=time.monotonic)
        check_flips(FORMAT, data, clock=time.monotonic)

and from the test of a step, with what a checkpoint was before and is after it::

    check_migrator("migrations/acme_net/v2_0_backbone.py", before, after)

Nothing touches the disk: a file is a ``Memory``. Generated checkpoints need hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.dtypes import DTYPES, DType
from ckptmigrate.errors import PluginError
from ckptmigrate.values import difference

from .contract import (
    check_flips,
    check_reads_lazily,
    check_refuses_others,
    check_round_trip,
    check_same_bytes_twice,
    check_sniffs_own,
    check_truncation,
    ties,
)
from .generated import Drawing
from .memory import Memory, written
from .migrators import check_migrator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from ckptmigrate.checkpoint import Checkpoint, Optimizer

__all__ = [
    "EVERYWHERE",
    "Memory",
    "assert_same_checkpoint",
    "check_flips",
    "check_migrator",
    "check_reads_lazily",
    "check_refuses_others",
    "check_round_trip",
    "check_same_bytes_twice",
    "check_sniffs_own",
    "check_truncation",
    "checkpoints",
    "written",
]

EVERYWHERE = tuple(dtype for dtype in DTYPES if dtype.safetensors and dtype.torch)
"""The dtypes that every current format can hold."""


def assert_same_checkpoint(a: Checkpoint, b: Checkpoint) -> None:
    """Assert that two checkpoints say the same: everything but ``origin``, ``ledger``, ``companions``, ``disk``, ``Param.key``.

    Tensors are compared by dtype, shape, elements, role and id; names that share a promise in one must share it in the other.
    The message names the first place that differs.
    """
    differs = difference(_spoken(a), _spoken(b), "values")
    assert differs is None, differs
    for section, ours, theirs in [
        ("model", a.model, b.model),
        *((f"twins/{n}", t, b.twins[n]) for n, t in a.twins.items()),
    ]:
        assert ties(ours) == ties(theirs), f"{section}: tied are {ties(ours)}, not {ties(theirs)}"


def _spoken(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "family": checkpoint.family,
        "model": dict(checkpoint.model),
        "twins": {name: dict(twin) for name, twin in checkpoint.twins.items()},
        "modules": {name: dict(module) for name, module in checkpoint.modules.items()},
        "optimizers": [_spoken_optimizer(optimizer) for optimizer in checkpoint.optimizers],
        "schedulers": checkpoint.schedulers,
        "values": dict(sorted(checkpoint.values.items())),  # sections; the file's order of keys is its layout's
        "progress": {name: getattr(checkpoint.progress, name) for name in ("epoch", "counts", "step", "best")},
        "stamp": [
            checkpoint.stamp.versions,
            [[a.chain, a.version, a.digest, a.parameters] for a in checkpoint.stamp.history],
        ],
    }


def _spoken_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    return {
        "kind": optimizer.kind,
        "groups": optimizer.groups,
        "shared": optimizer.shared,
        "params": [
            [p.name, p.by, p.group, None if p.slots is None else {name: slot.value for name, slot in p.slots.items()}]
            for p in optimizer.params
        ],
    }


def checkpoints(
    family: str = "torch", dtypes: Sequence[DType] = EVERYWHERE, *, tree: bool = True
) -> SearchStrategy[Checkpoint]:
    """Give a hypothesis strategy of checkpoints with every field filled, tensors of ``dtypes``; each owns its bytes.

    ``tree``: only what a pickle can hold; else also what only a record has (Scalar, schedulers and values of any shape).
    Open what was written with ``GatherOptions(names=False)``: nameless optimizers are among them, and are to stay so.
    PluginError where hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st  # noqa: PLC0415 - only those who test have it
    except ImportError as error:
        raise PluginError(
            "hypothesis is not installed, and generated checkpoints need it", hint="pip install hypothesis"
        ) from error

    @st.composite
    def checkpoint(draw: DrawFn) -> Checkpoint:
        return Drawing(st, draw, family, dtypes, tree=tree).checkpoint()

    return checkpoint()
