"""``new``: a migrator's file in a project's own migrations folder, empty or proposed from two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckptmigrate import chains, like, store
from ckptmigrate.checkpoint import Checkpoint
from ckptmigrate.errors import CheckpointError, ExistsError, MigratorError, UsageError, VersionError
from ckptmigrate.files import Disk, is_there
from ckptmigrate.files.sink import Sink
from ckptmigrate.format import GatherOptions
from ckptmigrate.migrator import Migrator
from ckptmigrate.tensor import Tensor, array

from .proposal import Proposal, propose
from .source import file_name, skeleton, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.format import Like, ReadOptions


@dataclass(frozen=True, slots=True)
class Written:
    """The file that ``new`` wrote, and what it proposes: None for one that is to be filled in."""

    path: str
    chain: str
    version: str
    text: str
    proposal: Proposal | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        found: dict[str, Any] = {"path": self.path, "chain": self.chain, "version": self.version, "proposal": None}
        if self.proposal is not None:
            proof = self.proposal.proof
            found["proposal"] = {
                "operations": [spec.made().as_dict() for spec in self.proposal.operations],
                "open": list(self.proposal.open),
                "tensors": proof.tensors,
                "named": proof.named,
                "shaped": proof.shaped,
                "equal": proof.equal,
                "by": dict(proof.by),
            }
        return found


def new(
    chain: str,
    version: str,
    old: str | None = None,
    made: str | None = None,
    *,
    into: str = "migrations",
    folders: Sequence[str] = (),
    force: bool = False,
    read: ReadOptions | None = None,
    gather: GatherOptions | None = None,
) -> Written:
    """Write the file of a step: ``into/<chain>/v<version>_<slug>.py``; give what it says.

    ``old``, ``made``: a checkpoint before the step and one after it, or ``module:callable`` that gives its model. ``folders``: where
    steps of the chain lie already. VersionError where the version is not above the newest of them, ExistsError where the file is
    there and is not to be replaced (``force``).
    """
    if (old is None) != (made is None):
        raise UsageError(
            "a migrator is proposed from two: one checkpoint was given", hint="say --from OLD and --to NEW"
        )
    into = into.rstrip("/") or "/"
    try:
        empty = Migrator(chain, version)
    except MigratorError as error:  # the call's own words, not a file's
        raise UsageError(error.message) from error
    standing = _standing(empty, into, folders, force=force)
    if old is None or made is None:
        proposal, text = None, skeleton(chain, version)
        declared = empty
    else:
        with Disk() as disk:
            proposal = _proposed(*(_opened(said, read, gather, disk) for said in (old, made)))
        declared = proposal.migrator(chain, version)
        text = written(chain, version, proposal, *(said.rpartition("/")[2] for said in (old, made)))
    folder = chain.replace(".", "_")
    name = standing or file_name(version, () if proposal is None else proposal.operations)
    path = f"{into}/{folder}/{name}"
    if not force and is_there(path):
        raise ExistsError("is there already", path=path, hint="--force replaces it")
    with Sink(into, folder=True, force=True) as sink:
        sink.open(f"{folder}/{name}").write(text.encode())
        sink.finish()
        _check(str(sink.path), declared)
        sink.publish()
    return Written(path, chain, version, text, proposal)


def _standing(step: Migrator, into: str, folders: Sequence[str], *, force: bool) -> str | None:
    """Refuse a version that is not above the newest step of its chain; give the name of the file that ``force`` replaces."""
    others = [folder for folder in dict.fromkeys((*folders, into)) if folder != into or is_there(into)]
    catalog = chains.Catalog.find(others)
    if not catalog.has(step.chain):
        return None
    steps = catalog.steps(step.chain)
    if not steps or step.release > steps[-1].migrator.release:
        return None
    newest = steps[-1]
    name = newest.where.rpartition("/")[2]
    mine = is_there(f"{into}/{step.chain.replace('.', '_')}/{name}")
    if step.release == newest.migrator.release and mine and not force:
        raise ExistsError(f"is {newest.migrator.name} already", path=newest.where, hint="--force replaces it")
    if step.release == newest.migrator.release and mine:
        return name
    raise VersionError(
        f"{step.name} is not above the newest step, {newest.migrator.version} ({newest.where})",
        chain=step.chain,
        hint="a step that was shipped is never changed; give the next one a higher version",
    )


def _opened(said: str, read: ReadOptions | None, gather: GatherOptions | None, disk: Disk) -> Checkpoint | Like:
    """Give a checkpoint, or the model that a callable gives."""
    if ":" in said and not is_there(said):
        return like.load(said, read)
    nameless = replace(gather or GatherOptions(), names=False)  # an optimizer's order proves nothing of the model
    checkpoint = store.open_checkpoint(said, read, nameless, disk)
    if not checkpoint.model:
        raise CheckpointError("holds no model", path=said)
    return checkpoint


def _proposed(old: Checkpoint | Like, made: Checkpoint | Like) -> Proposal:
    """Propose from two checkpoints, or from one and a model without contents."""
    family = next((side.family for side in (old, made) if isinstance(side, Checkpoint)), None)
    if family is None:
        raise UsageError("both are models without a file", hint="one of --from and --to is a checkpoint")
    sides = [side if isinstance(side, Checkpoint) else _shown(side, family) for side in (old, made)]
    return propose(*sides, contents=isinstance(old, Checkpoint) and isinstance(made, Checkpoint))


def _shown(model: Like, family: str) -> Checkpoint:
    """Give a model's names and shapes as a checkpoint whose tensors hold nothing; tied names are one of them."""
    import numpy as np  # noqa: PLC0415 - one number each, with strides of 0

    tensors: dict[str, Tensor] = {}
    for name, wanted in model.tensors.items():
        blank = np.broadcast_to(np.zeros((), wanted.dtype.numpy_dtype()), wanted.shape)
        tensors[name] = tensors.get(wanted.tied) or Tensor(array(blank, wanted.dtype), wanted.role)
    return Checkpoint(family, tensors)


def _check(folder: str, declared: Migrator) -> None:
    """Load the file before anybody sees it: what it declares is what was proven."""
    catalog = chains.Catalog()
    catalog.add_folder(folder)
    steps = catalog.steps(declared.chain)
    if [step.migrator.digest for step in steps] != [declared.digest]:
        raise MigratorError(f"the file of {declared.name} does not say what was proposed")
