"""How operations are declared: what is refused where it is written, and what digests and reports say of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptmigrate
from ckptmigrate import engine, operations
from ckptmigrate.chains import Catalog
from ckptmigrate.errors import UsageError
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import (
    Add,
    Apply,
    Cast,
    Concat,
    Drop,
    Move,
    Operation,
    Order,
    Reindex,
    Rename,
    Reorder,
    Reshape,
    Split,
    Stack,
    Tie,
    Transpose,
    Unstack,
    Untie,
)

from .toys import FAMILY, make

STEPS = str(Path(__file__).parent.parent / "migrations")
WRONG: list[Any] = [
    lambda: Transpose("("),
    lambda: Transpose("a", (0, 0)),
    lambda: Transpose("a", (1, 2)),
    lambda: Transpose("a", ("x",)),  # type: ignore[arg-type] # what a maintainer may write
    lambda: Transpose("a", on="items"),
    lambda: Reorder("a"),
    lambda: Reorder("a", (0, 2)),
    lambda: Reorder("a", (1, 0), fold=(2, 2), axes=(1, 0)),
    lambda: Reorder("a", fold=(2, 2)),
    lambda: Reorder("a", fold=(-1, -1), axes=(1, 0)),
    lambda: Reorder("a", fold=(2, -1), axes=(1, 0), within=2),
    lambda: Reorder("a", (1, 0), within=0),
    lambda: Reorder("a", (1, 0), axis="0"),  # type: ignore[arg-type] # same
    lambda: Reshape("a", (-1, -1)),
    lambda: Reshape("a", (-2,)),
    lambda: Reshape("a", ("*x",)),
    lambda: Reshape("a", (2.0,)),  # type: ignore[arg-type] # same
    lambda: Reshape("a", (2,), old=(-1,)),
    lambda: Split("a", []),
    lambda: Split("a", [r"\1"]),
    lambda: Split("a", ["b", "c"], sizes=(1,)),
    lambda: Split("a", ["b", "c"], sizes=(1, 2), shares=(1, 2)),
    lambda: Split("a", ["b", "c"], shares=(0, 1)),
    lambda: Split("a", ["b", "c"], shares=(-1, 1)),
    lambda: Split("a", ["b", "c"], sizes=(-1, -1)),
    lambda: Concat([], "a"),
    lambda: Concat(["a", "b"], r"\1"),
    lambda: Concat(["a", "b"], "c", sizes=(1, 2, 3)),
    lambda: Stack([], "a"),
    lambda: Stack(["a"], "b", count=0),
    lambda: Unstack("a", "b"),
    lambda: Unstack("a", [r"\2"]),
    lambda: Add("a"),
    lambda: Add("a", shape=["*"], dtype="F32"),
    lambda: Add("a", near="b", dtype="float32"),
    lambda: Add("a", near="b", dtype="QINT8"),
    lambda: Add("a", near="b", fill=0.5, dtype="I64"),
    lambda: Add("a", near="b", fill=256, dtype="U8"),
    lambda: Add("a", near="b", fill="x", dtype="F32"),
    lambda: Add("a", near="b", shape=[-1]),
    lambda: Add("a", near="b", role="weight"),  # type: ignore[arg-type] # same
    lambda: Add(r"\1", near="b"),
    lambda: Cast("a", "int"),
    lambda: Cast("a", "float32"),
    lambda: Cast("a", "F32", old="F"),
    lambda: Cast("a", "F32", slots="drop"),
    lambda: Tie("(", "a"),
    lambda: Tie("a", r"\1"),
    lambda: Untie("a", of=r"\1"),
    lambda: Move("a", r"\1"),
    lambda: Move("a", "b", back=("(", "a")),
    lambda: Order([]),
    lambda: Order(["("]),
    lambda: Reindex("a"),
    lambda: Reindex(r"(.*)\.(\d+)"),
    lambda: Reindex(r"(\d+)", map={0: 1, 2: 1}),
]


@pytest.mark.parametrize("make_it", WRONG)
def test_a_wrong_declaration_is_refused_where_it_is_written(make_it: Any) -> None:
    with pytest.raises(UsageError):
        make_it()


DIGEST = "b6278145270e76cfe56a36eee2fae606c3ab61099ca12d06e5c5af355850a2a7"
RIGHT: list[Operation] = [
    Transpose("a"), Transpose("a", [2, 0, 1], optional=True), Reorder("a", [1, 0], axis=-1, within="heads"),
    Reorder("a", fold=["heads", -1, 2], axes=[0, 2, 1]), Reshape("a", ["*", "n", -1], old=["*", 1]),
    Split("a", ["b", "c"], shares=["q", 1]), Concat(["a", "b"], "c", 1, sizes=[1, -1]), Stack(r"a\.(\d+)", "b", count="n"),
    Unstack("a", "b.{}"), Unstack("a", ["b", "c"], 1), Add("a", near="b", shape=[], dtype="I64", role="buffer", lacking=True),
    Add("a", fill=1.5, shape=[1], dtype="F32"), Cast("a", "F32", old="BF16", slots="keep"), Tie("a", "b", adds=True), Untie("a", of="b"),
    Move("a", "b"), Order(["a", "b"], back=["b", "a"]), Reindex(r"a\.(\d+)", map={0: 1}), Drop("a", "gone"), Rename("a", "b"),
]  # fmt: skip


@pytest.mark.parametrize("operation", RIGHT, ids=lambda operation: operation.describe())
def test_what_is_described_is_what_an_author_would_write(operation: Any) -> None:
    assert eval(operation.describe(), dict(vars(operations))) == operation


@pytest.mark.parametrize("operation", RIGHT, ids=lambda operation: operation.describe())
def test_plain_values_hold_the_declaration_and_nothing_that_changes_from_run_to_run(operation: Any) -> None:
    said = operation.as_dict()

    assert json.loads(json.dumps(said)) == said
    assert said["operation"] == type(operation).__name__
    assert list(said.values()).count(False) == 0


def test_a_list_and_a_tuple_say_the_same() -> None:
    assert Split("a", ["b", "c"], sizes=[1, 2]) == Split("a", ("b", "c"), sizes=(1, 2))
    assert Stack("a", "b") == Stack(["a"], "b")


def test_a_digest_says_the_same_of_a_step_as_when_it_was_first_shipped() -> None:
    shipped = {
        ("burn", "0.9"): "2faf8718b55df02aad921ba8b39101db8e1c6bbce5969ba542330465a388b48f",
        ("burn", "0.14"): "2b31b2e2ee86547a2c40e6c38eed023debaed58a7704f8b012164951e4be602b",
        ("burn.coupled_lstm", "0.22"): "60734989fc258ad15daf66b25cd7d221aba58f123c54b84940845d513ffb55ff",
    }
    catalog = Catalog.find((STEPS,))
    found = {
        (chain, step.migrator.version): step.migrator.digest
        for chain in ("burn", "burn.coupled_lstm")
        for step in catalog.steps(chain)
    }

    assert {key: found[key] for key in shipped} == shipped


def test_the_digests_of_every_operation_stay_as_they_are() -> None:
    """A stamp of a release must mean the same to all later ones; a new field has a default and changes nothing."""
    assert Migrator("a", "1", RIGHT).digest == DIGEST


def test_a_number_that_an_operation_has_no_use_for_is_a_problem_and_no_crash() -> None:
    step = Migrator("toy", "1.0", [Split("a", ["b", "c"], shares=["q", 1])])

    assert engine.apply(make({"a": (4,)}), step, FAMILY, parameters={"q": 0}) == [
        "toy 1.0: Split('a', ('b', 'c'), shares=('q', 1)): shares 0: expected a number from 1 or the name of one"
    ]
    assert engine.apply(make({"a": (4,)}), step, FAMILY, parameters={"q": 0.5})[0].endswith(
        "shares 0.5: expected a number from 1 or the name of one"
    )
    assert engine.apply(make({"a": (4,)}), step, FAMILY, parameters={"q": 3.0}) == []  # as configurations have it


def test_the_way_down_asks_for_its_own_numbers() -> None:
    step = Migrator("toy", "1.0", [Reshape("a", (-1,), old=("n", "*"))])
    checkpoint = make({"a": (2, 3)})

    assert engine.apply(checkpoint, step, FAMILY, parameters={"n": 2}) == []
    assert engine.apply(checkpoint, step, FAMILY, direction="down") == [
        "toy 1.0: Reshape('a', (-1,), old=('n', '*')): nothing says what 'n' is; set it with --set n=VALUE"
    ]
    assert engine.apply(checkpoint, step, FAMILY, direction="down", parameters={"n": 2}) == []
    assert checkpoint.model["a"].shape == (2, 3)


def test_declaring_every_operation_imports_no_numpy() -> None:
    text = ", ".join(operation.describe() for operation in RIGHT)
    code = f"import sys; from ckptmigrate.operations import *; made = [{text}]; print('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "False"


def test_every_operation_is_a_public_name() -> None:
    names = {type(operation).__name__ for operation in RIGHT} | {"Apply"}

    assert len(names) == 17
    assert names <= set(ckptmigrate.__all__)


def test_the_page_about_operations_shows_every_one() -> None:
    page = (Path(STEPS).parent / "docs" / "operations.md").read_text()
    (block,) = re.findall(r"```python\n# every_operation.py\n(.*?)```", page, re.DOTALL)
    session: dict[str, Any] = {}
    exec(block, session)

    assert {type(operation) for operation in session["OPERATIONS"]} == {*map(type, RIGHT), Apply}
