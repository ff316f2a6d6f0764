"""Places in a tree: walked, found, put, compared, pruned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from ckptmigrate.errors import SectionError
from ckptmigrate.values import Inert, Known, Ordered, Scalar, difference, encode, get, prune, put, same, spell, walk

from .trees import ordered, quantised, tensor, trees

if TYPE_CHECKING:
    from collections.abc import Iterator


# ---------------------------------------------------------------- paths


def test_walk_yields_parents_first_and_in_order() -> None:
    tree = {"a": [1, (2,)], "m": ordered({"x": 3}, {"_metadata": 4})}

    assert [(spell(path), node) for path, node in walk(tree) if isinstance(node, int)] == [
        ("a/0", 1), ("a/1/0", 2), ("m/@_metadata", 4), ("m/x", 3),
    ]  # fmt: skip


def test_walk_enters_arguments_state_items_and_inert_keys() -> None:
    calls = [Inert("call", name) for name in "abcde"]
    holder = Inert("object", "acme.Box", args=(calls[0],), state={"s": calls[1]}, items=[calls[2]])
    tree = {"known": Known("builtins.set", ([calls[3]],)), "box": holder, (1, calls[4]): None}

    found = {node.path: spell(path) for path, node in walk(tree) if isinstance(node, Inert) and node.kind == "call"}
    assert set(found) == set("abcde")
    assert found["b"] == "box/@state/s"


def test_walk_ends_where_a_container_holds_itself() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop

    assert [path for path, _ in walk(loop)] == [(), ("self",)]


@given(trees())
def test_get_finds_what_walk_found(tree: Any) -> None:
    for path, node in walk(tree):
        if not isinstance(node, Inert):
            assert get(tree, path) is node or isinstance(path[-1], float)


def test_get_names_what_is_there() -> None:
    with pytest.raises(SectionError, match=r"no 'a/c': dict of 1 has b"):
        get({"a": {"b": 1}}, ("a", "c"))


def test_put_makes_the_way_and_rebuilds_tuples() -> None:
    tree = put(None, ("optimizer", "states", 1, "x"), 5)
    assert tree == {"optimizer": {"states": [None, {"x": 5}]}}
    assert put((1, (2, 3)), (1, 0), 9) == (1, (9, 3))
    assert put({}, (), 3) == 3
    with pytest.raises(SectionError):
        put({"a": 1}, ("a", "b"), 2)


def test_put_sets_an_attribute() -> None:
    made = put(Ordered(), (("@", "_metadata"), "fc"), 1)

    assert same(made, ordered({}, {"_metadata": {"fc": 1}}))


# ---------------------------------------------------------------- comparison


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0), (1, True), (0.0, -0.0), ([1], (1,)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: 0}, {True: 0}), ({}, Ordered()),
        (ordered({}, {"m": 1}), Ordered()), ("a", b"a"), (None, False), ([1], [1, 2]), (Known("a"), Known("a", ())),
        (Scalar("int", 1), Scalar("uint", 1)), (Inert("object", "a"), Inert("call", "a")),
        (Inert("object", "a", state=1), Inert("object", "a", state=2)), (tensor(), tensor(4)), (tensor(), tensor(role="buffer")),
        (tensor(id=1), tensor(id="1")), (quantised(tensor(), 1.0), quantised(tensor(), 2.0)), (tensor(), quantised(tensor(), 1.0)),
    ],
)  # fmt: skip
def test_what_differs_is_not_the_same(a: Any, b: Any) -> None:
    assert not same(a, b)
    assert not same({"x": [a]}, {"x": [b]})


def test_every_nan_is_the_same() -> None:
    assert same({"x": float("nan"), math.nan: 1}, {"x": -math.nan, float("nan"): 1})


def test_a_difference_names_the_first_place_and_both_values() -> None:
    assert difference({"a": [1, {"lr": 0.1}]}, {"a": [1, {"lr": 0.2}]}) == "a/1/lr: float 0.1 is not float 0.2"
    assert difference({"a": 1}, {"a": 1, "b": 2}) == "the root: 1 items, not 2; 'b' is only in the second"
    assert difference({"a": 1}, {"b": 1}) == "the root: 'a' stands where the other has 'b'"


def test_trees_that_hold_themselves_can_be_compared() -> None:
    def loop(end: int) -> list[Any]:
        made: list[Any] = [end]
        made.insert(0, made)
        return made

    assert same(loop(1), loop(1))
    assert not same(loop(1), loop(2))


def test_a_pair_that_shares_twice_as_much_at_each_level_is_compared_once() -> None:
    def shared(end: int) -> Any:
        tree: Any = [end]
        for _ in range(60):
            tree = [tree, tree]
        return tree

    assert same(shared(1), shared(1))
    assert not same(shared(1), shared(2))


# ---------------------------------------------------------------- what nobody can carry


def test_prune_drops_keys_and_empties_items_and_says_why() -> None:
    box, call = Inert("object", "acme.Box", state={"deep": Inert("call", "x.y")}), Inert("call", "os.system")
    tree = {"a": box, "b": [1, call], "c": (call, 2), "d": {call: 1, "e": 2}, "f": Known("builtins.set", ([box],))}

    kept, removed = prune(tree)
    assert (
        difference(kept, {"b": [1, None], "c": (None, 2), "d": {"e": 2}, "f": Known("builtins.set", ([None],))}) is None
    )
    assert [(spell(path), why) for path, why in removed] == [
        ("a", "an object of class acme.Box"),
        ("b/1", "a call of os.system that nobody makes"),
        ("c/0", "a call of os.system that nobody makes"),
        ("d/os.system", "a key that is a call of os.system that nobody makes"),
        ("f/0/0", "an object of class acme.Box"),
    ]


def test_prune_leaves_the_given_tree_alone_and_shares_what_is_whole() -> None:
    tree: dict[str, Any] = {"a": [Inert("object", "x")], "b": ordered({"k": 1}, {"m": 2})}
    kept, _ = prune(tree)

    assert isinstance(tree["a"][0], Inert)
    assert kept["b"] is tree["b"]
    assert prune(tree["b"])[0] is tree["b"]


def test_prune_keeps_order_and_attributes() -> None:
    tree = ordered({"z": 1, "y": Inert("object", "x"), "a": 2}, {"_metadata": {"fc": 1}, "hook": Inert("name", "f")})

    assert same(prune(tree)[0], ordered({"z": 1, "a": 2}, {"_metadata": {"fc": 1}}))


def test_prune_asks_the_predicate() -> None:
    given: list[Any] = [Inert("name", "a"), Inert("object", "b")]
    kept, removed = prune(given, lambda node: node.kind != "name")

    assert kept[0].path == "a"
    assert [path for path, _ in removed] == [(1,)]


def test_prune_takes_out_a_container_that_holds_itself() -> None:
    loop: dict[str, Any] = {"x": 1}
    loop["self"] = loop

    assert prune(loop) == ({"x": 1}, [(("self",), "a container that holds itself")])


@given(trees())
def test_what_prune_leaves_can_be_encoded(tree: Any) -> None:
    def spoiled(node: Any) -> Iterator[Any]:
        yield [node, Inert("object", "x"), {"k": Inert("fault", "", ("too short",)), Inert("call", "y"): node}]

    for bad in spoiled(tree):
        kept, removed = prune(bad)
        encode(kept, "v")
        assert len(removed) >= 3
