"""What several test files ask for: a refusal with everything that the word promises, and the corpus of real files."""

from __future__ import annotations

import os
import re
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

import ckptmigrate
from ckptmigrate import errors

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent.parent.parent / "shared" / "corpus"

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("house")


class Refuse(Protocol):
    def __call__(self, path: Path, *mentions: str, out: str = "out.pt", **options: Any) -> errors.CkptError: ...


@pytest.fixture
def refuse(tmp_path: Path) -> Refuse:
    """Give a check that a conversion is refused: an error of the tree that names the file and every mention, within seconds
    and 200 MB, nothing written, the input unchanged."""

    def check(path: Path, *mentions: str, out: str = "out.pt", **options: Any) -> errors.CkptError:
        before = path.read_bytes() if path.is_file() else b""
        listing = sorted(p.name for p in tmp_path.iterdir())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.monotonic()
        with pytest.raises(errors.CkptError) as caught:
            ckptmigrate.migrate(path, tmp_path / out, **options)
        text = str(caught.value) + " " + " ".join(caught.value.hints)

        assert time.monotonic() - start < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000
        assert path.name in text
        for mention in mentions:
            assert re.search(mention, text), f"{mention!r} is not in {text!r}"
        assert sorted(p.name for p in tmp_path.iterdir()) == listing
        assert not path.is_file() or path.read_bytes() == before
        return caught.value

    return check


@pytest.fixture
def corpus() -> Callable[[str], Path]:
    """Give the path of a public file of the corpus; skip where the corpus is not at hand."""

    def find(name: str) -> Path:
        path = CORPUS / name
        if not path.exists():
            pytest.skip(f"the corpus is not beside this checkout: {os.fspath(Path('shared') / 'corpus' / name)}")
        return path

    return find
