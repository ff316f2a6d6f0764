"""The command line as tests call it, and the files that they call it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ckptmigrate.cli import app

ROOT = Path(__file__).parent.parent
MUSEUM = ROOT / "tests" / "fixtures" / "torch"
OLD = MUSEUM / "1.0.0-py36" / "checkpoint.pt"
BARE = MUSEUM / "1.6.0-py38" / "state_dict.pt"
CHECKPOINT = MUSEUM / "2.13.0-py311" / "checkpoint.pt"


class Ran:
    def __init__(self, *arguments: str | Path) -> None:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception

    def json(self) -> Any:
        return json.loads(self.out)
