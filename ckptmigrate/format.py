"""Format, Layout, Family: the frozen values that the open folders offer, and the Parts and Blueprint they speak in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .limits import LIMITS, Limits
from .values import NOTHING, Scalar, Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .checkpoint import Checkpoint, Counts, Optimizer
    from .dtypes import DType
    from .files import Late, Source
    from .tensor import Promise, Tensor


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a caller lets a reader do."""

    dequantize: bool = False  # quantised tensors become F32; else they are refused by name
    densify: bool = False  # sparse tensors become dense; else they are refused by name
    inert_calls: bool = False  # calls that nobody knows are left out by name; else the file is refused
    schema: Tree = None  # names and types for encodings without them (bincode)
    limits: Limits = LIMITS


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a tensor of a model must be; ``tied`` is the first name of those that are one tensor, its own where it is alone."""

    shape: tuple[int, ...]
    dtype: DType
    role: Literal["parameter", "buffer"] | None
    tied: str


@dataclass(frozen=True, slots=True)
class Like:
    """The model that a result must fit: its tensors in its order, and what its optimizers call their entries.

    ``others``: names in its state that are no tensors, None where what told of it could not say. ``optimizers``: names for each group
    of each, () for one without. ``declared``: the order is the model's own, and not one that a container made.
    """

    name: str
    tensors: Mapping[str, Wanted]
    others: frozenset[str] | None = None
    optimizers: tuple[tuple[tuple[str, ...], ...], ...] = ()
    declared: bool = True


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """What a caller says about a checkpoint that its files do not say."""

    layout: str | None = None
    sections: Mapping[str, tuple[Any, ...] | str] = field(
        default_factory=dict
    )  # section -> path of keys ("model" -> ("net", "g")), or as it is typed: "net.g"
    parts: Mapping[str, str] = field(
        default_factory=dict
    )  # "model" | "optimizers" | "schedulers" -> a further file that holds it
    only: tuple[str, ...] = ()  # sections to take; () is all
    drop: tuple[str, ...] = ()  # sections to leave out, each noted in the ledger
    names: bool = True  # assume that optimizer groups were given in model order; False refuses to assume
    params: tuple[tuple[str, ...], ...] | None = None  # one list of names per group of the optimizer
    like: Like | None = (
        None  # the model that the result must fit: it may name an optimizer's parameters, and know buffers
    )
    epoch: int | None = None
    epoch_means: Literal["finished", "last", "next"] | None = None
    scheduler: str | None = (
        None  # of what kind it is, where its record does not tell: "noam", "composed(linear,cosine)"
    )
    steps: int | None = None  # how many an optimizer has made, where its record does not tell


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a caller wants of a writer."""

    bare: bool = False  # no stamp and no notes: just what the framework itself would write
    ties: Literal["keep", "duplicate"] = "keep"


@dataclass(frozen=True, slots=True)
class Match:
    """A format's claim on a source. ``facts`` may lower ``current``; ``refuse`` names a format that is only recognised."""

    format: Format
    facts: Mapping[str, Any] = field(default_factory=dict)
    refuse: str | None = None  # the message of UnsupportedFormatError: recognised by content, refused by name

    @property
    def current(self) -> bool:
        """Whether today's framework opens the file as it is."""
        return bool(self.facts.get("current", self.format.current))


@dataclass(slots=True)
class Parts:
    """What one file says. A tree (a pickle) or tensors by name; never both."""

    family: str | None = None  # None: a neutral container; its notes may tell
    tree: Tree = NOTHING
    tensors: dict[str, Tensor | Scalar] | None = None
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # "metadata": the file's own text map; "versions": {chain: version}; "half"
    notes: dict[str, Any] = field(default_factory=dict)  # our own JSON object, as it lies in the file
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # warnings about names, void once a model is there that they fit


@dataclass(slots=True)
class Blueprint:
    """One file or several, laid out from lengths: nothing drawn yet.

    ``files``: per file the pieces in order of offset; a gap is padding with zeros. ``sizes``: bytes per file.
    ``last``: the file without which nobody takes the set for whole. ``problems``: what the target cannot say; ``left_out``: path, reason.
    """

    files: dict[str, list[tuple[int, bytes | Promise | Late]]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    last: str | None = None
    problems: list[str] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: dict[Promise, list[str]] = field(default_factory=dict)  # who draws a promise, for messages


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a framework says or silently does with a file: its own message, the cause, and the command that mends it."""

    message: str
    cause: str
    silent: bool
    remedy: str


@dataclass(frozen=True, slots=True)
class Caveat:
    """What cannot be resumed exactly. ``look`` draws the values that decide: what they prove, None where nothing is wrong."""

    text: str
    look: Callable[[], str | None] | None = None

    def settled(self) -> str | None:
        """Give what is certain once the values have been looked at."""
        return self.text if self.look is None else self.look()


@dataclass(frozen=True, slots=True)
class Format:
    """One way of laying bytes on disk."""

    name: str
    sniff: Callable[[Source], Match | None]
    read: Callable[[Source, ReadOptions], Parts]
    lay_out: Callable[[Parts, WriteOptions, str], Blueprint] | None = None
    family: str | None = None
    speaks: Literal["tree", "tensors"] = "tensors"
    standard: str | None = None  # the layout that its family, or we, write
    suffixes: tuple[str, ...] = ()  # the first is the one written
    current: bool = False
    widens: bool = False
    stamp: Callable[[Source, Mapping[str, Any], ReadOptions], Blueprint] | None = (
        None  # the file with other notes, and nothing else changed
    )
    about: str = ""
    diagnose: Callable[[Parts, Checkpoint | None], list[Symptom]] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of one checkpoint lie: a table, two-way. See DESIGN section 4.

    ``keys``: section -> alternatives, each a path of keys in one file's tree; the first is the one written.
    ``files``: section -> file name pattern in a folder, without suffix: "checkpoint/model-{epoch}", "{twin}"; "values" holds the
    tensors of our record, "values.NAME" is a value by itself. ``recognised_by``: keys (or file patterns) that must all be there.
    ``epoch_counts`` may ask the tree, where releases counted differently.
    """

    name: str
    family: str | None = None
    recognised_by: tuple[str, ...] = ()
    keys: Mapping[str, tuple[tuple[Any, ...], ...]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    last: str | None = None
    epoch_counts: Counts | Callable[[Tree], Counts | None] | None = None
    version_at: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[str, ...] = ()  # keys whose loss its own loader does not survive
    about: str = ""
    diagnose: Callable[[Parts, Checkpoint | None], list[Symptom]] | None = None
    hints: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


FOLLOWS, SCALAR, SHARED, FACTORED, FLAT = "follows", "scalar", "shared", "factored", "flat"
"""How a slot relates to its parameter: has its axes; one number whatever the shape; belongs to no parameter; is one of several that
sum over an axis each, so that only together they have its axes; has its axes, and stands only where there is no more than one."""


@dataclass(frozen=True, slots=True)
class Family:
    """One framework's optimizer and scheduler state, turned into ours and back; pure functions."""

    name: str
    unpack: Callable[
        [str, Parts, Any], Optimizer | Tree | None
    ]  # section, parts, options; None: not that section's value
    pack: Callable[[str, Any, Checkpoint], Parts]
    section: Callable[[Parts], str | None]  # of a file alone: "model", "optimizers", "schedulers"
    slots: Mapping[str, str] = field(default_factory=dict)
    is_buffer: Callable[[str, Tensor], bool] = lambda _name, _tensor: False
    identify: Callable[[int | str], int] | None = None
    target: str | None = None  # the format that its files go to by default
    neutral: bool = False  # what a container that names no family is read as
    about: str = ""
    diagnose: Callable[[Parts, Checkpoint | None], list[Symptom]] | None = None
    caveats: Callable[[Checkpoint], list[Caveat]] | None = None  # of a checkpoint as gathered
    # Of a wanted model: why a name that it lacks may go, None where nothing says that it may.
    spares: Callable[[str, Collection[str], Checkpoint], str | None] = lambda _name, _wanted, _checkpoint: None
    # And what a name starts as that older releases did not have: its value, and the present name that it belongs to.
    supplies: Callable[[str, Collection[str]], tuple[int, str] | None] = lambda _name, _present: None
