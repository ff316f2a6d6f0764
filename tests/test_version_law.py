"""The law "Versions" as a table: every sentence, a checkpoint, and the steps or the problem that it leads to."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from packaging.version import Version

from ckptmigrate import chains
from ckptmigrate.chains import Catalog
from ckptmigrate.chains.catalog import Step
from ckptmigrate.errors import MigratorError
from ckptmigrate.marks import Present
from ckptmigrate.migrator import Chain, Migrator
from ckptmigrate.operations import Rename

from .lines import FAMILY, STEPS, Line, model, planned, step, versions

BLIND = step("2.0", Rename("n1", "n2"))  # without marks
OPTIONAL = step("2.0", Rename("n1", "n2", optional=True), marks=[Present("n1")])
AUTOMATIC = Chain("line", automatic=True)


class Row(NamedTuple):
    law: str
    name: str  # the one tensor of the checkpoint; "n2" is what the step 2.0 of STEPS leaves
    stamp: str | None
    expected: list[str] | str  # the steps, in order, or a piece of the only problem
    target: str | None = None  # --chain line=TARGET
    said: str | None = None  # --from line=SAID
    own: str | None = None  # what the file itself says of the chain
    found: Catalog = Line(*STEPS)


COMPARED = "PEP 440, compared by their public part."
PLACE = "A checkpoint's place in a chain is the version of the last step that holds; 0 is before the first."
PLAN = "A plan is the steps with place < version ≤ target."
THERE = "A stamp between two steps or above the newest is simply there (nothing pending)"
DOWN = "going down from above the newest is refused"
TEXT = 'text that is no version is "unknown", never a crash.'
EARLIEST = "when every step has marks, the place is the version of the step before the earliest one whose marks match in the file"
HEAD = "or the head if none does"
ASK = "a step without marks above that point means *ask*"
AGAIN = "a step's marks are read again on the names as its predecessors left them"
NOT_NEEDED = 'in an automatic chain no match means "not needed".'
BELOW = "the marks of a step at or below the stamped place that match in the file contradict the stamp"
PENDING = "and so does a pending step whose marks do not match unless all its operations are optional"
UNREAD = "On the way down no marks are read."
PRE = "A stamp that is a pre-release of a step's own version is settled by that step's marks."
KEY = "Where a layout's `version_at` names a key and our stamp is absent, the place is read there"
DISAGREE = "key and stamp that disagree are an error."

LAW = [
    Row(COMPARED, "n2", "2.0+cu121", ["3.0"]),
    Row(COMPARED, "n2", "2", ["3.0"]),
    Row(COMPARED, "n2", "v2.0.0", ["3.0"]),
    Row(COMPARED, "n3", "1!0", []),
    Row(PLACE, "n0", "0", ["1.0", "2.0", "3.0"]),
    Row(PLACE, "n0", "0.9", ["1.0", "2.0", "3.0"]),
    Row(PLAN, "n1", "1.0", ["2.0", "3.0"]),
    Row(PLAN, "n1", "1.0", ["2.0"], target="2.0"),
    Row(PLAN, "n1", "1.0", ["2.0"], target="2.9"),
    Row(PLAN, "n1", "1.0", [], target="1.0"),
    Row(PLAN, "n1", "1.0", ["2.0", "3.0"], target="99"),
    Row(PLAN, "n3", "3.0", ["3.0", "2.0"], target="1.0"),
    Row(THERE, "n2", "2.5", ["3.0"]),
    Row(THERE, "n3", "4.0", []),
    Row(THERE, "n3", "3.0.post1", []),
    Row(DOWN, "n3", "4.0", "it stands at 4.0, above the newest step (3.0), and cannot go down", target="1.0"),
    Row(DOWN, "n3", "4.0", "above the newest step", target="3.5"),
    Row(TEXT, "n1", "latest", "its stamp says 'latest', which is no version"),
    Row(TEXT, "n1", "", "its stamp says '', which is no version"),
    Row(TEXT, "n1", "1" * 5000, "which is no version"),  # more digits than Python reads
    Row(TEXT, "n1", "1.0", "--from says 'one', which is no version", said="one"),
    Row(TEXT, "n1", "1.0", "'head' is no version", target="head"),
    Row(TEXT, "n1", "latest", ["2.0", "3.0"], said="1.0"),
    Row(EARLIEST, "n0", None, ["1.0", "2.0", "3.0"]),
    Row(EARLIEST, "n2", None, ["3.0"]),
    Row(HEAD, "n3", None, []),
    Row(
        ASK,
        "n0",
        None,
        "step 2.0 has no marks to tell by; say where it stands with --from",
        found=Line(STEPS[0], BLIND),
    ),
    Row(ASK, "n1", None, "step 2.0 has no marks to tell by", found=Line(STEPS[0], BLIND)),
    Row(ASK, "n1", None, ["2.0"], said="1.0", found=Line(STEPS[0], BLIND)),
    Row(ASK, "n2", None, ["3.0"], found=Line(STEPS[0], BLIND, STEPS[2])),
    Row(AGAIN, "n0", "0", ["1.0", "2.0", "3.0"]),
    Row(NOT_NEEDED, "n3", "0", [], found=Line(*STEPS, chain=AUTOMATIC)),
    Row(NOT_NEEDED, "n1", "0", ["2.0", "3.0"], found=Line(*STEPS, chain=AUTOMATIC)),
    Row(BELOW, "n0", "2.0", "its stamp says 2.0, and the marks of step 1.0 (v1.0.py) say that it is still needed"),
    Row(BELOW, "n1", "2.0", "its stamp says 2.0, and the marks of step 2.0 (v2.0.py) say that it is still needed"),
    Row(BELOW, "n1", None, "--from says 2.0, and the marks of step 2.0", said="2.0"),
    Row(PENDING, "n3", "1.0", "its stamp says 1.0, and the marks of step 2.0 (v2.0.py) do not match"),
    Row(PENDING, "n9", "1.0", ["2.0"], found=Line(STEPS[0], OPTIONAL)),
    Row(UNREAD, "n3", "3.0", ["3.0"], target="2.0"),  # its marks do not match what 3.0 left
    Row(PRE, "n1", "2.0rc1", ["2.0", "3.0"]),
    Row(PRE, "n1", "2.0.dev3+g1234", ["2.0", "3.0"]),
    Row(PRE, "n2", "2.0rc1", ["3.0"]),
    Row(PRE, "n2", "2.0a1", ["3.0"], found=Line(*STEPS)),
    Row(
        PRE, "n1", "2.0.post1.dev1", "the marks of step 2.0 (v2.0.py) say that it is still needed"
    ),  # it comes after 2.0
    Row(KEY, "n2", None, ["3.0"], own="2.0"),
    Row(KEY, "n2", "2.0", ["3.0"], own="2.0.0"),
    Row(DISAGREE, "n2", "2.0", "its stamp says 2.0, the file's own version says 1.0", own="1.0"),
    Row(DISAGREE, "n2", None, "the file's own version says 1.0, --from says 2.0", own="1.0", said="2.0"),
]


@pytest.mark.parametrize("row", LAW, ids=[f"{row.law[:24]}-{number}" for number, row in enumerate(LAW)])
def test_each_sentence_of_the_law(row: Row) -> None:
    checkpoint = model(
        row.name,
        stamp=None if row.stamp is None else {"line": row.stamp},
        own=None if row.own is None else {"line": row.own},
    )
    said = {} if row.said is None else {"line": row.said}
    plan = planned(checkpoint, row.found, named={"line": row.target}, said=said)

    if isinstance(row.expected, str):
        assert len(plan.problems) == 1
        assert row.expected in plan.problems[0]
    else:
        assert (versions(plan), plan.problems) == (row.expected, ())


def test_place_is_the_version_of_the_step_before_the_earliest_one_whose_marks_match() -> None:
    assert chains.locate(model("n2"), Chain("line"), STEPS).version == Version("2.0")
    assert chains.locate(model("n0"), Chain("line"), STEPS).version == Version("0")


@pytest.mark.parametrize(
    ("stamp", "name", "kept"), [("2.5", "n2", "3.0"), ("3.0.post1", "n3", "3.0.post1"), ("9", "n3", "9")]
)
def test_a_stamp_is_what_was_applied_or_stays_as_it_was_written(stamp: str, name: str, kept: str) -> None:
    assert planned(model(name, stamp={"line": stamp})).stamps == {"line": kept}


def test_a_prerelease_that_its_marks_settle_is_stamped_as_the_release() -> None:
    assert planned(model("n3", stamp={"line": "3.0rc1"})).stamps == {"line": "3.0"}


@pytest.mark.parametrize("version", ["0", "0.0", "0.dev1"])
def test_no_step_leads_to_the_place_before_the_first(version: str) -> None:
    with pytest.raises(MigratorError, match="is not above 0"):
        Migrator("line", version)


def test_marks_are_not_blamed_for_what_a_step_before_them_could_not_do() -> None:
    found = Line(step("1.0", Rename("gone", "n1"), marks=[Present("n0")]), *STEPS[1:])
    plan = planned(model("n0"), found, named={"line": None})

    assert plan.problems == (
        "line 1.0: Rename('gone', 'n1'): nothing matches 'gone'",
        "line 2.0: Rename('n1', 'n2'): nothing matches 'n1'",
        "line 3.0: Rename('n2', 'n3'): nothing matches 'n2'",
    )


def test_chains_that_the_call_names_are_applied_in_the_order_in_which_it_names_them() -> None:
    found = Line(step("1.0", Rename("a", "b"), marks=[Present("a")]))
    found.add_chain(Chain("other"), "there")
    found.add_step(Step(Migrator("other", "1.0", [Rename(r"w\.(.*)", r"\1")], [Present(r"w\..*")]), "o.py"))
    checkpoint = model("w.a", stamp={"line": "0"})
    plan = planned(checkpoint, found, named={"other": None, "line": None})

    assert [each.migrator.name for each in plan.steps] == ["other 1.0", "line 1.0"]
    assert plan.apply(checkpoint, FAMILY) == []
    assert list(checkpoint.model) == ["b"]


def test_saying_where_a_checkpoint_of_another_family_stands_is_a_problem_and_not_ignored() -> None:
    found = Line(*STEPS, chain=Chain("line", family="other"))

    assert planned(model("n0"), found, said={"line": "1.0"}).problems == (
        "chain line is for family other, and the checkpoint is of toy",
    )


def test_saying_where_a_checkpoint_stands_in_a_chain_that_is_not_here_is_refused() -> None:
    """A machine that lacks the chain must not pass for one on which nothing was pending; ``stamp`` writes a place down unasked."""
    plan = planned(model("n0"), Catalog(), said={"acme.vit": "1.0"})

    assert plan.problems == (
        "no chain is called acme.vit; there are: none; install the package that has it, or name its folder with --migrations",
    )
    assert plan.stamps == {}


def test_a_number_that_no_step_needs_is_a_warning() -> None:
    assert planned(model("n2"), named={"line": None}, parameters={"haeds": 16}).warnings == (
        "--set haeds: no step that is taken needs it",
    )
