"""Training folders of Burn's releases, with what their own release went on to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ckptmigrate
from ckptmigrate.tensor import Tensor

from .burn_records import FIXTURES, MUSEUM

STEPS = str(
    Path(__file__).parent.parent / "migrations"
)  # where ckptmigrate is no installed package; the same step twice is one
NAMES = [f"checkpoint/{what}-3.bpk" for what in ("model", "optim", "scheduler")]
GOLDEN = [
    path.parent
    for path in sorted(FIXTURES.glob("0.*/golden/run-*/proof.json"))
    if (path.parents[2] / path.parent.name).is_dir()
]
RECORDS = [
    record
    for golden in sorted(FIXTURES.glob("0.*/golden/*.bpk"))
    for record in sorted(golden.parents[1].glob(f"{golden.stem}-full.*"))
]
STATE_RUNS = sorted(path for era in ("0.3.0", "0.4.0", "0.6.0") for path in FIXTURES.glob(f"{era}/run-*"))
RUN = MUSEUM / "0.21.0" / "run-sgd-momentum"
HALF_RUN = MUSEUM / "0.13.2" / "run-adam"


def run_of(golden: Path) -> Path:
    return golden.parents[1] / golden.name


def proof_of(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "proof.json").read_text())
    return found


def dtypes(path: Path) -> set[str]:
    with ckptmigrate.open(path) as checkpoint:
        slots = [s.value for o in checkpoint.optimizers for p in o.params for s in (p.slots or {}).values()]
        tensors = [*checkpoint.model.values(), *slots]
        return {tensor.dtype.name for tensor in tensors if isinstance(tensor, Tensor)}
