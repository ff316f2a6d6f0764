"""What one training step left behind, in memory: names, dtypes, shapes and promises of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .values import Tree

if TYPE_CHECKING:
    from .files import Disk
    from .tensor import Tensor

Counts = Literal["finished", "last", "next"]


@dataclass(frozen=True, slots=True)
class Applied:
    """One migrator of the past: its chain, the version it led to, the digest of its operations, and the numbers it was given."""

    chain: str
    version: str
    digest: str
    parameters: tuple[tuple[str, Any], ...] = ()
    direction: Literal["up", "down"] = "up"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a checkpoint says of itself: its version in each chain, and the steps that led there."""

    versions: dict[str, str] = field(default_factory=dict)
    history: tuple[Applied, ...] = ()


@dataclass(slots=True)
class Slot:
    """One optimizer value of one parameter."""

    value: Tree


@dataclass(slots=True)
class Param:
    """One entry of an optimizer, at its position in the optimizer's own order.

    ``name``: the model's name, None where it is not certain. ``by``: why it is: "file" (names or ids in it), "order", "like".
    ``key``: how the file calls it (index, address, id). ``slots`` None: the optimizer has no state for it yet.
    """

    name: str | None
    by: Literal["file", "order", "like"] | None
    key: Any
    group: int
    slots: dict[str, Slot] | None = None


@dataclass(slots=True)
class Optimizer:
    """An optimizer's state: ``kind`` where the file tells it, params in the optimizer's order, one dict of hyperparameters a group."""

    kind: str | None = None
    params: list[Param] = field(default_factory=list)
    groups: list[dict[str, Tree]] = field(default_factory=list)
    shared: dict[str, Tree] = field(default_factory=dict)  # state of no parameter (LBFGS), and what else the file's dict has


@dataclass(slots=True)
class Progress:
    """Where training stood. ``counts`` says what ``epoch`` means: the epoch finished, the last one (from 0), the next one."""

    epoch: int | None = None
    counts: Counts | None = None
    step: int | None = None
    best: Tree = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a section lay: ``file`` within a folder ("" for a file alone), then the keys inside it."""

    file: str
    path: tuple[Any, ...] = ()


@dataclass(slots=True)
class Origin:
    """Where a checkpoint came from: format and layout by name, the place of each section, top-level order, facts per file.

    Sections in ``places``: "model", "twins.NAME", "optimizers.N", "schedulers.N", "values.NAME", "progress.FIELD".
    """

    format: str | None = None
    layout: str | None = None
    places: dict[str, Place] = field(default_factory=dict)
    order: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Fate:
    """What became of one source item: "kept", "renamed", "derived", "moved", "dropped" or "left out", with the reason."""

    source: str
    what: Literal["kept", "renamed", "derived", "moved", "dropped", "left out"]
    targets: tuple[str, ...] = ()
    reason: str | None = None


class Ledger:
    """Accounts for every tensor, slot and value between source and target. An *item* is "model/fc.weight",
    "twins/ema/fc.weight", "optimizers/0/3/exp_avg" (by position), "optimizers/0/groups/1", "schedulers/0", "values/extra/…".

    sources: counted from the parts, before gather: each tensor and value leaf of the file by its path.
    """

    def __init__(self) -> None:
        self.sources: dict[str, str | None] = {}  # source path -> item it became, None: not yet explained
        self.fates: dict[str, Fate] = {}
        self.notes: list[str] = []  # said in the report: assumptions, suggestions, ties
        self.warnings: list[str] = []


@dataclass(slots=True)
class Checkpoint:
    """What one training step left behind. A context manager: it owns the files its promises point into."""

    family: str = "torch"
    model: dict[str, Tensor] = field(default_factory=dict)
    twins: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Tree] = field(default_factory=list)
    values: dict[str, Tree] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    stamp: Stamp = field(default_factory=Stamp)
    origin: Origin = field(default_factory=Origin)
    companions: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    disk: Disk | None = None
