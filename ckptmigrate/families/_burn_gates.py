"""The forget gate of an LSTM whose input gate stands for it (`input_forget`, since 0.20).

0.20 and 0.21 made and saved it, and never used it; 0.22 has none and refuses it. Its names are those of every other LSTM. The step
`burn.coupled_lstm` 0.22 has the pattern once more: what a step does is frozen with it. Source: formats/burn.md 3.4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckptmigrate.checkpoint import Checkpoint

_FORGET = re.compile(r"((?:.*\.)?)forget_gate\.((?:input|hidden)_transform\.(?:weight|bias))")
_UNCOUPLED = tuple(f"0.{minor}." for minor in range(20))


def input_gate(name: str) -> str | None:
    """Give the input gate's name beside a forget gate's; None for any other name."""
    found = _FORGET.fullmatch(name)
    return None if found is None else f"{found[1]}input_gate.{found[2]}"


def spares(name: str, wanted: Collection[str], checkpoint: Checkpoint) -> str | None:
    """Tell why a name may go that the wanted model lacks: the forget gate of an LSTM that has the gates beside it and none of that.

    0.20 was the first release that could couple the two gates, so an older record's forget gate was used.
    """
    beside = input_gate(name)
    if beside is None or beside not in wanted:
        return None
    module = beside.rpartition("input_gate.")[0]
    if any(each.startswith(f"{module}forget_gate.") for each in wanted):
        return None
    versions = checkpoint.origin.facts.get("versions", {})
    if str(versions.get("burn", "")).startswith(_UNCOUPLED):
        return None
    return "a coupled LSTM has no forget gate: it was never used and never trained"
