"""Joining what several files hold into one checkpoint, and their accounts: the files of a folder, and files named by a caller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CheckpointError
from ckptmigrate.values import Ordered
from ckptmigrate.values.tree import spell_step

from .state_dicts import FOLLOWS, NESTED, SHAPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptmigrate.checkpoint import Checkpoint

_ASKED = ("model", "optimizers", "schedulers")
_FIELDS = ("epoch", "step", "best")


def join(checkpoint: Checkpoint, part: Checkpoint, file: str, wanted: Sequence[str]) -> None:
    """Add what a file holds. ``wanted``: only these of model, optimizers and schedulers are taken; () is all of them.

    Everything else comes too; what the checkpoint has already is carried beside it, under the file's name.
    """
    account = _Account(checkpoint, part, file)
    for section in _ASKED:
        if wanted and section not in wanted:
            account.leave(section, f"not asked for: --part {section}={file} takes it")
    if part.model and account.takes("model"):
        if checkpoint.model:
            raise CheckpointError(
                f"{file} holds a model, and there is one already", hint="--drop model, or leave --part out"
            )
        checkpoint.model, checkpoint.modules = part.model, part.modules
    elif part.modules and not account.takes("model"):
        account.leave("modules", "its model is not taken")
    for kind, mine, theirs in (
        ("optimizers", checkpoint.optimizers, part.optimizers),
        ("schedulers", checkpoint.schedulers, part.schedulers),
    ):
        if account.takes(kind):
            for number, value in enumerate(theirs):
                account.move(f"{kind}/{number}", f"{kind}/{len(mine)}")
                _place(checkpoint, part, f"{kind}.{number}", f"{kind}.{len(mine)}", file)
                mine.append(value)
    _join_twins(checkpoint, part, account)
    _join_progress(checkpoint, part, account)
    for name, tree in part.values.items():
        _join_values(checkpoint, name, tree, account)
    for section in part.origin.places:
        if section.partition(".")[0] not in {"optimizers", "schedulers"} and account.takes(
            section.replace(".", "/", 1)
        ):
            _place(checkpoint, part, section, section, file)
    for fact in (FOLLOWS, NESTED, SHAPE):
        checkpoint.origin.facts.setdefault(fact, {}).update(part.origin.facts.get(fact, {}))
    account.settle()


def _place(checkpoint: Checkpoint, part: Checkpoint, section: str, into: str, file: str) -> None:
    place = part.origin.places.get(section)
    if place is not None:
        checkpoint.origin.places[into] = replace(place, file=file)


def _join_twins(checkpoint: Checkpoint, part: Checkpoint, account: _Account) -> None:
    for name, twin in part.twins.items():
        if name in checkpoint.twins:
            account.leave(f"twins/{name}", "there is a twin of this name already")
        else:
            checkpoint.twins[name] = twin


def _join_progress(checkpoint: Checkpoint, part: Checkpoint, account: _Account) -> None:
    mine, theirs = checkpoint.progress, part.progress
    for field in _FIELDS:
        value = getattr(theirs, field)
        if value is None:
            continue
        if getattr(mine, field) is not None:
            account.leave(f"progress/{field}", f"there is {getattr(mine, field)!r} already")
            continue
        setattr(mine, field, value)
        if field == "epoch":
            mine.counts = theirs.counts


def _join_values(checkpoint: Checkpoint, name: str, tree: Any, account: _Account) -> None:
    values = checkpoint.values
    if name not in values:
        values[name] = tree
        return
    mine = values[name]
    if not (isinstance(mine, dict) and isinstance(tree, dict)):
        _aside(checkpoint, name, tree, account, f"values/{name}", f"values/extra/{account.file}/{name}")
        return
    joined: dict[Any, Any] = Ordered(mine) if isinstance(mine, Ordered) else dict(mine)
    if isinstance(joined, Ordered) and isinstance(mine, Ordered):
        joined.attributes = mine.attributes
    values[name] = joined
    for key, value in tree.items():
        if key not in joined:
            joined[key] = value
        else:
            step = spell_step(key)
            before, after = f"values/{name}/{step}", f"values/extra/{account.file}/{name}/{step}"
            _aside(checkpoint, name, {key: value}, account, before, after)


def _aside(checkpoint: Checkpoint, name: str, tree: Any, account: _Account, before: str, after: str) -> None:
    """Carry what has no room under its own name below the file's name."""
    extra = checkpoint.values.setdefault("extra", {})
    if not isinstance(extra, dict):
        account.leave(before, f"there is another {name} already")
        return
    extra = checkpoint.values["extra"] = dict(extra)
    beside = dict(extra.get(account.file, {}))
    beside[name] = {**beside.get(name, {}), **tree} if isinstance(tree, dict) else tree
    extra[account.file] = beside
    account.move(before, after)


class _Account:
    """Where the items of a part go in the account of the whole."""

    def __init__(self, checkpoint: Checkpoint, part: Checkpoint, file: str) -> None:
        self.checkpoint, self.part, self.file = checkpoint, part, file
        self.moves: dict[str, str] = {}
        self.left: dict[str, str] = {}

    def leave(self, prefix: str, reason: str) -> None:
        self.left[prefix] = reason

    def takes(self, prefix: str) -> bool:
        return not any(at in self.left for at in _prefixes(prefix))

    def move(self, before: str, after: str) -> None:
        self.moves[before] = after

    def settle(self) -> None:
        """Enter every leaf of the part."""
        ledger, theirs = self.checkpoint.ledger, self.part.ledger
        for path, item in theirs.sources.items():
            text = f"{self.file}/{path}"
            reason = theirs.omitted.get(path, "not explained") if item is None else None
            if item is not None:
                reason = next((self.left[at] for at in _prefixes(item) if at in self.left), None)
            if item is None or reason is not None:
                ledger.left_out(text, str(reason))
                continue
            before = next((at for at in _prefixes(item) if at in self.moves), None)
            ledger.became(text, item if before is None else self.moves[before] + item[len(before) :])
        ledger.notes += theirs.notes
        ledger.warnings += theirs.warnings


def _prefixes(item: str) -> list[str]:
    """Give an item and everything that it lies under, the longest first."""
    pieces = item.split("/")
    return ["/".join(pieces[:n]) for n in range(len(pieces), 0, -1)]
