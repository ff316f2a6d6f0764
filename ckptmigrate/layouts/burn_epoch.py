"""Burn's checkpointer: three files an epoch, `checkpoint/model-3.bpk`, `optim-3.bpk`, `scheduler-3.bpk`.

0.3-0.6     model, optim                .json.gz
0.7-0.21    model, optim, scheduler     the recorder's: .mpk.gz, .mpk, .bin, .json, …
0.22        model, optim, scheduler     .bpk

Epochs count from 1, and a file is written when its epoch is finished. A resume needs all three, a constant scheduler's too.
Around them lie `config.json`, `experiment.log`, `train/` and `valid/`. Source: formats/burn.md 8.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.format import Layout

from ._burn_symptoms import diagnose

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("noam", {"warmup_steps", "model_size"}, {"init_lr", "factor"}),  # init_lr up to 0.18
    ("cosine", {"initial_lr", "min_lr", "num_iters"}, set()),
    ("linear", {"initial_lr", "final_lr", "num_iters"}, set()),
    ("exponential", {"initial_lr", "gamma"}, set()),
    ("step", {"initial_lr", "gamma", "step_size"}, set()),
)
"""The fields of a scheduler's configuration that tell its kind, and those that may stand beside them."""


def hints(companions: Mapping[str, Any]) -> dict[str, Any]:
    """Give the kind of the scheduler, {"scheduler": "cosine"}, where the files beside a run hold exactly one configuration of one."""
    found: set[str] = set()
    stack: list[Any] = list(companions.values())
    while stack:
        node = stack.pop()
        kind = _kind(node)
        if kind is not None:
            found.add(kind)
        elif isinstance(node, dict | list):
            stack.extend(node.values() if isinstance(node, dict) else node)
    return {"scheduler": found.pop()} if len(found) == 1 else {}


def _kind(node: Any) -> str | None:
    if not isinstance(node, dict):
        return None
    for kind, needed, others in _KINDS:
        if needed <= node.keys() <= needed | others:
            return kind
    members = node.get("schedulers")
    if not isinstance(members, list) or not members:
        return None
    children = [_child(member) for member in members]
    whole = "sequential" if "milestones" in node else "composed"
    return f"{whole}({','.join(map(str, children))})" if None not in children else None


def _child(member: Any) -> str | None:
    """Give the kind of a part of a composed one, {"Linear": {…}}; a constant's is a number."""
    if not isinstance(member, dict) or len(member) != 1:
        return None
    ((tag, inner),) = member.items()
    return "constant" if isinstance(inner, int | float) and str(tag).lower() == "constant" else _kind(inner)


LAYOUT = Layout(
    "burn_epoch",
    family="burn",
    recognised_by=("checkpoint/model-{epoch}",),
    files={
        "model": "checkpoint/model-{epoch}",
        "optimizers": "checkpoint/optim-{epoch}",
        "schedulers": "checkpoint/scheduler-{epoch}",
    },
    last="checkpoint/model-{epoch}",
    epoch_counts="finished",
    about="Burn's own checkpointer: model, optimizer and scheduler of each epoch",
    diagnose=diagnose,
    hints=hints,
)
