from __future__ import annotations

from ckptmigrate.checkpoint import Ledger


def test_renames_at_once_can_swap() -> None:
    ledger = Ledger()
    ledger.became("x", "model/a")
    ledger.became("y", "model/b")
    ledger.rename_all({"model/a": (("model/b",), "renamed"), "model/b": (("model/a",), "renamed")})

    assert [(row.source, row.targets) for row in ledger.rows()] == [("x", ("model/b",)), ("y", ("model/a",))]
    assert ledger.came_from() == {"model/b": ("model/a",), "model/a": ("model/b",)}


def test_fates_follow_an_item_through_many_steps_and_keep_the_heaviest_word() -> None:
    ledger = Ledger()
    for name in "qkv":
        ledger.became(name, f"model/{name}")
    ledger.rename("model/q", ["model/query"])
    ledger.rename_all({f"model/{n}": (("model/qkv",), "derived") for n in ("query", "k", "v")})
    ledger.rename("model/qkv", ["model/x", "model/y"])
    ledger.drop("model/y", "not wanted")

    assert [(row.what, row.targets) for row in ledger.rows()] == [("derived", ("model/x",))] * 3
    ledger.drop("model/x", "nor this")
    assert [(row.what, row.targets, row.reason) for row in ledger.rows()] == [("dropped", (), "nor this")] * 3


def test_a_leaf_that_nobody_explained_is_told() -> None:
    ledger = Ledger()
    ledger.source("a")
    ledger.source("b")
    ledger.left_out("b", "an object of class x.Y")

    assert ledger.unexplained() == ["a"]


def test_an_added_item_has_no_source_and_can_be_renamed() -> None:
    ledger = Ledger()
    ledger.add("model/new", "acme 2.0: Add")
    ledger.rename("model/new", ["model/newer"])

    assert ledger.added == {"model/newer": "acme 2.0: Add"}
    assert ledger.came_from() == {"model/newer": ()}


def test_an_item_keeps_its_name_when_it_is_cast() -> None:
    ledger = Ledger()
    ledger.became("w", "model/w")
    ledger.derive("model/w", "cast from F32 to F16")

    assert [(row.what, row.targets) for row in ledger.rows()] == [("derived", ("model/w",))]
