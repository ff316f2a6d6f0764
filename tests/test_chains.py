"""Where a checkpoint stands, what is pending, stamps and history: the version law, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from ckptmigrate import chains
from ckptmigrate.chains.catalog import Step
from ckptmigrate.checkpoint import Applied, Stamp
from ckptmigrate.errors import PlanError, VersionError
from ckptmigrate.marks import Present
from ckptmigrate.migrator import Chain, Migrator
from ckptmigrate.operations import Drop, Rename

from .lines import FAMILY, LINE, STEPS, Line, catalog, model, planned, step, upgraded, versions

# Place: the version of the last step that holds; a plan is the steps with place < version <= target.


@pytest.mark.parametrize(
    ("stamp", "name", "target", "expected"),
    [
        ("0", "n0", None, ["1.0", "2.0", "3.0"]),
        ("1.0", "n1", None, ["2.0", "3.0"]),
        ("1.5", "n1", None, ["2.0", "3.0"]),  # between two steps is simply there
        ("1.0", "n1", "2.5", ["2.0"]),
        ("1.0+local.1", "n1", None, ["2.0", "3.0"]),  # compared by the public part
        ("3.0", "n3", None, []),
        ("9.9", "n9", None, []),  # above the newest: nothing pending
        ("3.0.post1", "n3", None, []),
        ("1!0", "n9", None, []),  # an epoch is above them all
    ],
)
def test_a_plan_is_the_steps_above_the_place_up_to_the_target(
    stamp: str, name: str, target: str | None, expected: list[str]
) -> None:
    plan = planned(model(name, stamp={"line": stamp}), named={"line": target})

    assert (versions(plan), plan.problems) == (expected, ())


@pytest.mark.parametrize(("name", "expected"), [("n1", ["2.0", "3.0"]), ("n2", ["3.0"])])
def test_a_prerelease_of_a_steps_own_version_is_settled_by_its_marks(name: str, expected: list[str]) -> None:
    assert versions(planned(model(name, stamp={"line": "2.0rc1"}), named={"line": None})) == expected


@pytest.mark.parametrize("text", ["", "latest", "abc1234", "2.0-", "v-1"])
def test_a_stamp_that_is_no_version_is_unknown_and_never_a_crash(text: str) -> None:
    plan = planned(model("n0", stamp={"line": text}), named={"line": None})

    assert plan.places["line"].how == "unknown"
    assert plan.steps == ()
    assert "--from line=VERSION" in plan.problems[0]


def test_what_is_said_settles_a_stamp_that_is_no_version() -> None:
    assert versions(planned(model("n2", stamp={"line": "latest"}), said={"line": "2.0"})) == ["3.0"]


# Without a stamp.


@pytest.mark.parametrize(
    ("name", "place", "expected"), [("n0", "0", ["1.0", "2.0", "3.0"]), ("n2", "2.0", ["3.0"]), ("n3", "3.0", [])]
)
def test_without_a_stamp_the_earliest_step_whose_marks_match_tells_the_place(
    name: str, place: str, expected: list[str]
) -> None:
    plan = planned(model(name), named={"line": None})

    assert plan.places["line"] == chains.Place(Version(place), "marks")
    assert versions(plan) == expected


def test_a_step_without_marks_above_that_point_means_ask() -> None:
    blind = Line(STEPS[0], step("2.0", Rename("n1", "n2")))
    plan = planned(model("n0"), blind, named={"line": None})

    assert plan.problems == (
        "chain line: it has no stamp, and step 2.0 has no marks to tell by; say where it stands with --from line=VERSION",
    )
    assert versions(planned(model("n0"), blind, said={"line": "0"})) == ["1.0", "2.0"]


def test_a_step_without_marks_below_that_point_is_held() -> None:
    found = Line(step("1.0", Rename("n0", "n1")), STEPS[1])

    assert versions(planned(model("n1"), found, named={"line": None})) == ["2.0"]


def test_a_step_without_marks_means_ask_where_no_marks_match_at_all() -> None:
    plan = planned(model("n9"), Line(step("1.0", Rename("n0", "n1")), STEPS[1]), named={"line": None})

    assert "step 1.0 has no marks" in plan.problems[0]


# Contradictions.


def test_marks_of_a_step_below_the_stamp_that_match_contradict_it() -> None:
    (problem,) = planned(model("n0", stamp={"line": "2.0"}), named={"line": None}).problems

    assert problem == "chain line: its stamp says 2.0, and the marks of step 1.0 (v1.0.py) say that it is still needed"


def test_a_pending_step_whose_marks_do_not_match_contradicts_the_stamp() -> None:
    (problem,) = planned(model("n9", stamp={"line": "2.0"}), named={"line": None}).problems

    assert problem == "chain line: its stamp says 2.0, and the marks of step 3.0 (v3.0.py) do not match"


def test_a_pending_step_of_optional_operations_alone_may_match_nothing() -> None:
    found = Line(step("1.0", Rename("a", "b", optional=True), marks=[Present("a")]))
    plan = planned(model("x", stamp={"line": "0.5"}), found)

    assert (versions(plan), plan.problems) == (["1.0"], ())


def test_marks_of_a_step_are_read_on_the_names_that_its_predecessors_leave() -> None:
    plan = planned(model("n0", stamp={"line": "0"}))

    assert plan.problems == ()
    assert versions(plan) == ["1.0", "2.0", "3.0"]


@pytest.mark.parametrize(
    ("stamp", "own", "said", "named"),
    [
        ({"line": "1.0"}, {"line": "2.0"}, {}, "its stamp says 1.0, the file's own version says 2.0"),
        ({"line": "1.0"}, {}, {"line": "2.0"}, "its stamp says 1.0, --from says 2.0"),
        ({}, {"line": "1.0"}, {"line": "2.0"}, "the file's own version says 1.0, --from says 2.0"),
    ],
)
def test_two_that_disagree_are_an_error_that_names_both(
    stamp: dict[str, str], own: dict[str, str], said: dict[str, str], named: str
) -> None:
    plan = planned(model("n1", stamp=stamp, own=own), named={"line": None}, said=said)

    assert plan.problems == (f"chain line: {named}",)


def test_two_that_agree_by_their_public_part_agree() -> None:
    assert planned(model("n3", stamp={"line": "3.0"}, own={"line": "3.0.0+cpu"}), named={"line": None}).problems == ()


def test_without_a_stamp_the_version_that_the_file_itself_tells_is_the_place() -> None:
    place = chains.locate(model("n1", own={"line": "1.2.3"}), LINE, STEPS)

    assert (place.version, place.how) == (Version("1.2.3"), "layout")


def test_the_files_own_version_is_written_with_the_stamp() -> None:
    checkpoint = upgraded(model("n1", own={"line": "1.2.3"}), named={"line": None})

    assert checkpoint.origin.facts["versions"] == {"line": "3.0"}
    assert planned(checkpoint).problems == ()


def test_a_layouts_own_key_is_written_with_the_stamp() -> None:
    from ckptmigrate import registry

    layout = next((each for each in registry.layouts() if each.version_at), None)
    if layout is None:
        pytest.skip("no layout names a version key")
    ((chain, key), *_) = layout.version_at.items()
    checkpoint = model("n1", own={chain: "1.2.3"})
    checkpoint.origin.layout, checkpoint.values = layout.name, {"extra": {key: "1.2.3"}}
    lined = Line(chain=Chain(chain))
    lined.add_step(Step(Migrator(chain, "2.0", [Rename("n1", "n2")]), "here"))
    upgraded(checkpoint, lined, named={chain: None})

    assert checkpoint.values["extra"] == {key: "2.0"}


# Automatic and named chains.


def test_an_automatic_chain_applies_unasked_and_only_where_its_marks_match() -> None:
    plan = planned(model("bn.gamma", own={"acme.automatic": "0.12"}), catalog("automatic"))

    assert (versions(plan), plan.problems) == (["0.13"], ())
    assert plan.stamps == {"acme.automatic": "0.14"}


def test_an_automatic_chain_that_finds_nothing_to_do_leaves_no_stamp() -> None:
    checkpoint = upgraded(model("bn.weight"), catalog("automatic"))

    assert checkpoint.stamp.versions == {}


def test_a_chain_that_nobody_named_is_only_suggested_where_its_marks_match() -> None:
    plan = planned(model("n0"))

    assert plan.steps == ()
    assert plan.suggestions == ("chain line looks needed (step 1.0); apply it with --chain line",)
    assert planned(model("n3")).suggestions == ()


@pytest.mark.parametrize("how", [{"named": {"line": None}}, {"said": {"line": "0"}}, {"projected": ["line"]}])
def test_command_and_project_name_a_chain(how: dict[str, Any]) -> None:
    assert versions(planned(model("n0"), **how)) == ["1.0", "2.0", "3.0"]


def test_a_stamp_names_its_chain() -> None:
    assert versions(planned(model("n2", stamp={"line": "2.0"}))) == ["3.0"]


def test_a_chain_of_another_family_is_a_problem_where_it_is_named_and_nothing_where_it_is_not() -> None:
    found = Line(*STEPS, chain=Chain("line", family="other"))

    assert planned(model("n0"), found).suggestions == ()
    assert "is for family other" in planned(model("n0"), found, named={"line": None}).problems[0]


def test_a_later_chain_is_placed_on_the_names_that_an_earlier_one_leaves() -> None:
    found = Line(*STEPS)
    found.add_step(Step(Migrator("wrap", "1.0", [Rename(r"w\.(.*)", r"\1")], [Present(r"w\..*")]), "w.py"))
    plan = planned(model("w.n1"), found, named={"wrap": None, "line": None})

    assert [each.migrator.name for each in plan.steps] == ["wrap 1.0", "line 2.0", "line 3.0"]


def test_a_chain_that_is_not_installed_is_carried_and_said_to_be_unchecked() -> None:
    checkpoint = model("n0", stamp={"elsewhere": "7"})
    plan = planned(checkpoint)

    assert plan.notes == ("chain elsewhere: not installed here, not checked",)
    assert plan.apply(checkpoint, FAMILY) == []
    assert checkpoint.stamp.versions == {"elsewhere": "7"}


def test_naming_a_chain_that_does_not_exist_is_a_problem_that_lists_those_that_do() -> None:
    assert planned(model("n0"), named={"lime": None}).problems == (
        "no chain is called lime; there are: line; did you mean line?",
    )


def test_a_target_that_is_no_version_is_a_problem() -> None:
    assert "'newest' is no version" in planned(model("n0"), named={"line": "newest"}).problems[0]


# The way down.


def test_going_down_takes_the_inverses_in_reverse_and_reads_no_marks() -> None:
    checkpoint = upgraded(model("n3", stamp={"line": "3.0"}), named={"line": "1.0"})

    assert list(checkpoint.model) == ["n1"]
    assert checkpoint.stamp.versions == {"line": "1.0"}


def test_going_down_to_before_the_first_step_is_zero() -> None:
    checkpoint = upgraded(model("n3", stamp={"line": "3.0"}), named={"line": "0"})

    assert (list(checkpoint.model), checkpoint.stamp.versions) == (["n0"], {"line": "0"})


def test_going_down_from_above_the_newest_is_refused() -> None:
    (problem,) = planned(model("n9", stamp={"line": "9.0"}), named={"line": "1.0"}).problems

    assert "above the newest step (3.0)" in problem


def test_a_step_without_an_inverse_is_refused_on_the_way_down_with_the_reason() -> None:
    found = Line(step("1.0", Drop("x", "it was never used")))
    (problem,) = planned(model("n0", stamp={"line": "1.0"}), found, named={"line": "0"}).problems

    assert (
        problem == "line 1.0: Drop('x', 'it was never used'): no way back: what was dropped is gone (it was never used)"
    )


# Stamps and history.


def test_applied_steps_are_stamped_and_written_into_the_history() -> None:
    checkpoint = upgraded(model("n1"), named={"line": "2.5"})

    assert checkpoint.stamp.versions == {"line": "2.0"}
    assert checkpoint.stamp.history == (Applied("line", "2.0", STEPS[1].migrator.digest),)


def test_going_down_removes_from_the_history_what_going_up_appended() -> None:
    other = Applied("elsewhere", "1.0", "d")
    checkpoint = model("n1", stamp={"line": "1.0"})
    checkpoint.stamp = Stamp(checkpoint.stamp.versions, (other,))
    upgraded(checkpoint)
    upgraded(checkpoint, named={"line": "2.0"})

    assert checkpoint.stamp.history == (other, Applied("line", "2.0", STEPS[1].migrator.digest))


def test_a_chain_placed_by_marks_alone_is_not_stamped() -> None:
    assert upgraded(model("n3"), named={"line": None}).stamp.versions == {}


def test_what_was_said_is_stamped_even_where_nothing_is_pending() -> None:
    assert upgraded(model("n3"), said={"line": "3.1"}).stamp.versions == {"line": "3.1"}


def test_a_step_that_has_changed_since_it_was_applied_is_a_warning() -> None:
    checkpoint = model("n3", stamp={"line": "3.0"})
    checkpoint.stamp = Stamp({"line": "3.0"}, (Applied("line", "3.0", "another"), Applied("line", "0.5", "gone")))

    assert planned(checkpoint).warnings == (
        "line 3.0 was applied, and has changed since (v3.0.py)",
        "line 0.5 was applied, and is no step of the chain any more",
    )


def test_a_digest_covers_chain_version_and_operations_and_no_marks() -> None:
    first = Migrator("a", "1.0", [Rename("x", "y")])

    assert first.digest == Migrator("a", "1.0", [Rename("x", "y")], [Present("x")], {"n": "p"}).digest
    assert (
        len(
            {first.digest, Migrator("b", "1.0", first.operations).digest, Migrator("a", "1.1", first.operations).digest}
        )
        == 3
    )
    assert first.digest != Migrator("a", "1.0", [Rename("x", "z")]).digest


def test_a_plan_changes_nothing() -> None:
    checkpoint = model("n0", stamp={"line": "0"}, own={"line": "0"})
    planned(checkpoint)

    assert list(checkpoint.model) == ["n0"]
    assert checkpoint.stamp == Stamp({"line": "0"})
    assert checkpoint.ledger.rows() == []


def test_all_problems_of_a_plan_come_at_once() -> None:
    found = Line(step("1.0", Rename("a", "b"), Rename("c", "d")), step("2.0", Rename("e", "f")))
    plan = planned(model("n0"), found, said={"line": "0"}, named={"lime": None})

    assert len(plan.problems) == 4
    with pytest.raises(PlanError, match="4 problems"):
        plan.apply(model("n0"), FAMILY)


def test_pending_is_what_keeps_a_checkpoint_from_being_current() -> None:
    assert planned(model("n3", stamp={"line": "3.0"})).pending() == ()
    assert planned(model("n2", stamp={"line": "2.0"})).pending() == ("line to 3.0 (v3.0.py)",)
    assert len(planned(model("n2", stamp={"line": "?"})).pending()) == 1


def test_locate_raises_where_two_disagree() -> None:
    with pytest.raises(VersionError, match=r"its stamp says 1\.0, --from says 2\.0"):
        chains.locate(model(stamp={"line": "1.0"}), LINE, STEPS, "2.0")
