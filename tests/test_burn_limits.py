"""What of Burn's old records cannot be resumed exactly is said in the report: proved by names and versions, or counted in the values."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ckptmigrate.families import _burn_caveats

from .burn_records import FIXTURES, MUSEUM, ident, numbers, optimizer_leaves, records, unpacked
from .command_line import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = str(Path(__file__).parent.parent / "migrations")
ZOOS = sorted(path for era in ("0.[6-9].*", "0.[12]?.*") for path in FIXTURES.glob(f"{era}/zoo*"))
OPTIMIZERS = records("optim", "-half.mpk", "-half.mpk.gz", "-full.mpk", "-full.mpk.gz", "-full.json")
BEFORE_LAYER_NORM = {"0.6.0", "0.7.0", "0.8.0", "0.9.0", "0.11.1", "0.13.2"}
BEFORE_GROUP_NORM = {"0.11.1", "0.13.2", "0.14.0", "0.15.0"}  # it came with 0.11
UNDIVIDED = {"0.7.0", "0.8.0"}
BEFORE_GRU = BEFORE_LAYER_NORM - {"0.6.0", "0.7.0"} | {"0.14.0", "0.15.0"}  # it came with 0.8


def warnings(path: Path, out: Path, *words: str | Path) -> list[str]:
    ran = Ran("migrate", path, out, "--migrations", STEPS, "--json", *words)
    assert ran.code == 0, ran.err
    found: list[str] = ran.json()["warnings"]
    return found


def about(what: str, said: list[str]) -> list[str]:
    return [text for text in said if what in text]


def moments(path: Path) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Give both moments of each parameter as the slow reader finds them."""
    record = unpacked(path)
    leaves = dict(optimizer_leaves(record["item"]))
    floats = record["metadata"]["float"]
    seconds = [name for name in leaves if name.endswith(".momentum.moment_2")]
    return [
        (numbers(leaves[f"{name[:-1]}1"], floats), numbers(leaves[name], floats)) for name in seconds
    ]  # moment_1 beside moment_2


# ---------------------------------------------------------------- what names and versions prove


@pytest.mark.parametrize("path", ZOOS, ids=map(ident, ZOOS))
def test_modules_whose_formula_changed_are_named_for_the_releases_before_it(path: Path, tmp_path: Path) -> None:
    schema: list[str | Path] = ["--schema", path.parent / "schema-zoo.json"] if ".bin" in path.name else []
    said = warnings(path, tmp_path / "out.bpk", "--dry-run", *schema)
    release = path.parent.name

    norms, grus, groups = (about(f"{kind} (", said) for kind in ("LayerNorm", "Gru", "GroupNorm"))
    assert len(norms) == (release in BEFORE_LAYER_NORM)
    assert len(grus) == (release in BEFORE_GRU)
    assert len(groups) == (release in BEFORE_GROUP_NORM)
    assert len(about("Conv (conv1d): 0.7 and 0.8", said)) == (release in UNDIVIDED)
    for text in groups:
        assert re.search(r"[ (]group_norm[,)]", text)
        assert "batch_norm" not in text
    for text in norms:
        assert "encoder.layers.0.norm_1" in text
        assert not any(other in text for other in ("batch_norm", "group_norm", "instance_norm", "rms_norm"))
    for text in grus:
        assert "Gru (gru)" in text


def test_batch_norm_of_0_5_is_told_by_its_ids_from_that_of_0_6(tmp_path: Path) -> None:
    """No file of 0.5 is in the museum: one of 0.6, which differs from it in its ids alone, is given ids as 0.5 wrote them."""
    (source, *_) = sorted(
        p for p in (FIXTURES / "0.6.0").glob("*.json.gz") if p.name in {"net.json.gz", "net-f64.json.gz"}
    )
    text = gzip.decompress(source.read_bytes()).decode()
    uuid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    older = re.sub(uuid, lambda found: found[0].replace("-", "")[:21], text)
    (tmp_path / "older.json.gz").write_bytes(gzip.compress(older.encode()))

    assert older != text
    assert about("BatchNorm (", warnings(source, tmp_path / "out.bpk", "--dry-run")) == []
    (said,) = about("BatchNorm (", warnings(tmp_path / "older.json.gz", tmp_path / "out.bpk", "--dry-run"))
    assert said.startswith("BatchNorm (norm): 0.5 divided by")


def test_what_has_been_migrated_is_not_warned_of_again(tmp_path: Path) -> None:
    assert warnings(MUSEUM / "0.13.2" / "zoo-full.mpk", tmp_path / "one.bpk")
    assert warnings(tmp_path / "one.bpk", tmp_path / "two.bpk") == []


@pytest.mark.parametrize("path", OPTIMIZERS, ids=map(ident, OPTIMIZERS))
def test_the_memory_of_weight_decay_is_told_where_the_record_has_one(path: Path, tmp_path: Path) -> None:
    leaves = dict(optimizer_leaves(unpacked(path)["item"]))
    count = sum(name.endswith("grad_last_step") for name in leaves if not isinstance(leaves[name], str))
    said = about("weight decay", warnings(path, tmp_path / "out.bpk", "--dry-run"))

    assert len(said) == bool(count)
    assert all(f"of {count} parameters" in text for text in said)


def test_releases_without_a_version_are_told_by_the_names(tmp_path: Path) -> None:
    said = warnings(MUSEUM / "0.6.0" / "optim-adam-wd.json.gz", tmp_path / "out.bpk", "--dry-run")

    assert len(about("weight decay", said)) == 1


# ---------------------------------------------------------------- what only the values tell


@pytest.mark.parametrize("path", OPTIMIZERS, ids=map(ident, OPTIMIZERS))
def test_second_moments_that_half_precision_lost_or_that_are_nan_are_counted(path: Path, tmp_path: Path) -> None:
    pairs = moments(path)
    total = sum(second.size for _, second in pairs)
    lost = sum(int(((second == 0) & (first != 0)).sum()) for first, second in pairs)
    bad = sum(int(np.isnan(second).sum()) for _, second in pairs)
    said = warnings(path, tmp_path / "out.bpk")

    zeros = [f"{lost} of {total} second moments were stored as 0"] if lost and "-half" in path.name else []
    nans = [f"{bad} of {total} second moments are NaN"] if bad else []
    assert [text.partition(" in half")[0] for text in about("stored as 0", said)] == zeros
    assert [text.partition(":")[0] for text in about("moments are NaN", said)] == nans


def test_the_fixtures_have_both() -> None:
    pairs = {path: moments(path) for path in OPTIMIZERS}
    bad = [p for p, found in pairs.items() if any(np.isnan(second).any() for _, second in found)]
    lost = [p for p, found in pairs.items() if any(((second == 0) & (first != 0)).any() for first, second in found)]

    assert {(p.parent.name, p.name.split("-")[1]) for p in bad} == {("0.9.0", "adamw")}
    assert len([p for p in lost if "-half" in p.name]) > (5 if FIXTURES != MUSEUM else 0)


def test_a_dry_run_draws_nothing_and_says_what_would_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _half_run(tmp_path)

    def drawn(*_: Any) -> None:
        raise AssertionError("values were drawn")

    monkeypatch.setattr("ckptmigrate.families._burn_caveats._drawn", drawn)
    said = about("half precision", warnings(run, tmp_path / "out", "--epoch", "3", "--dry-run"))
    assert len(said) == 1
    assert "counted" in said[0]
    with pytest.raises(AssertionError, match="drawn"):
        warnings(run, tmp_path / "out", "--epoch", "3")


def test_a_run_of_half_precision_says_it_once_and_no_model_alone_says_it(tmp_path: Path) -> None:
    run = _half_run(tmp_path)
    pairs = moments(run / "checkpoint" / "optim-3.mpk")
    lost = sum(int(((second == 0) & (first != 0)).sum()) for first, second in pairs)
    said = about("half precision", warnings(run, tmp_path / "out", "--epoch", "3"))

    assert [int(text.partition(" ")[0].replace(",", "")) for text in said] == [lost]
    alone = warnings(run, tmp_path / "model", "--epoch", "3", "--sections", "model")
    assert about("half precision", alone) == []


def test_values_are_looked_at_window_by_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sizes, drawn = _half_run(tmp_path), list[int](), _burn_caveats._drawn
    whole = about("half precision", warnings(run, tmp_path / "whole", "--epoch", "3"))

    def watched(pairs: Any) -> Iterator[Any]:
        small = [tuple(Narrow(promise) for promise in pair) for pair in pairs]
        for first, second in drawn(small):  # type: ignore[arg-type]
            sizes.append(first.size)
            yield first, second

    monkeypatch.setattr(_burn_caveats, "_drawn", watched)
    assert about("half precision", warnings(run, tmp_path / "narrow", "--epoch", "3")) == whole
    assert max(sizes) == Narrow.window
    assert sum(sizes) == sum(second.size for _, second in moments(run / "checkpoint" / "optim-3.mpk"))


class Narrow:
    """A promise that asks to be drawn in windows of few elements."""

    window = 4

    def __init__(self, promise: Any) -> None:
        self.numel, self.dtype, self.read = promise.numel, promise.dtype, promise.read


def _half_run(folder: Path) -> Path:
    return Path(shutil.copytree(MUSEUM / "0.13.2" / "run-adam", folder / "run"))
