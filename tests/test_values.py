"""Values survive: trees go through JSON and tensors and come back as they were."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.dtypes import F32
from ckptmigrate.errors import CheckpointError, CkptError, CorruptError, LimitError, SectionError, TensorError
from ckptmigrate.files import File, Range
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Quantisation, Tensor, View
from ckptmigrate.values import (
    Inert,
    Known,
    Ordered,
    Scalar,
    decode,
    difference,
    dumps,
    encode,
    get,
    loads,
    prune,
    put,
    same,
    spell,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Zeros(File):
    """A file of zeros, which stands where no byte matters."""

    name = "zeros"

    @property
    def size(self) -> int:
        return 1 << 20

    def pread_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = bytes(len(buffer))

    def descriptor(self) -> tuple[int, int]:
        raise NotImplementedError


ZEROS = Zeros()


def tensor(offset: int = 0, shape: tuple[int, ...] = (2,), **said: Any) -> Tensor:
    nbytes = 4 * math.prod(shape)
    strides = tuple(4 * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Tensor(View(Range(ZEROS, offset, nbytes), F32, shape, strides), **said)


TEXTS = st.text(max_size=6) | st.sampled_from(
    ["@", "@.x", "@ordered", "@tuple", "\ud83d\ude00", "\udc00", "", "a/b", "~1"]
)
INTEGERS = st.integers() | st.sampled_from([1 << 53, -(1 << 53), (1 << 53) + 1, 1 << 4000])
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS | st.binary(max_size=8)
TENSORS = st.builds(
    tensor,
    st.sampled_from([0, 4, 8]),
    role=st.sampled_from([None, "parameter", "buffer"]),
    id=st.none() | INTEGERS | TEXTS,
)
SCALARS = (
    st.builds(Scalar, st.sampled_from(["uint", "int"]), INTEGERS)
    | st.builds(Scalar, st.just("float"), st.floats())
    | st.builds(Scalar, st.just("bool"), st.booleans())
)
NAMES = st.builds(lambda path: Inert("name", path), TEXTS)
FLAT_KEYS = LEAVES | st.tuples(LEAVES, st.tuples(LEAVES))


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> Any:
    """Draw a tree of every kind of node; recursion by hand, as the repr of a recursive strategy of this size takes seconds."""

    def below(most: int = 3) -> list[Any]:
        return [draw(trees(depth - 1)) for _ in range(draw(st.integers(0, most)))]

    def dictionary() -> dict[Any, Any]:
        keys = draw(st.lists(FLAT_KEYS | NAMES, max_size=3)) + [
            Known("a.b", tuple(below(1))) for _ in range(draw(st.integers(0, 1)))
        ]
        keys = [key for key in keys if key == key]  # noqa: PLR0124 - a NaN within a tuple is a key of its own each time
        return {key: draw(trees(depth - 1)) for key in keys}

    kind = draw(st.integers(0, 9)) if depth else 0
    match kind:
        case 1:
            return draw(TENSORS)
        case 2:
            return draw(SCALARS | NAMES)
        case 3:
            return below()
        case 4:
            return tuple(below())
        case 5:
            return Known(draw(TEXTS), draw(st.sampled_from([None, tuple(below(2))])))
        case 6:
            return quantised(draw(TENSORS), draw(trees(depth - 1)))
        case 7:
            return ordered(dictionary(), {draw(TEXTS): node for node in below(2)})
        case 8:
            return dictionary()
        case 9:
            return {str(index): node for index, node in enumerate(below())}
        case _:
            return draw(LEAVES)


def ordered(items: dict[Any, Any], attributes: dict[str, Any]) -> Ordered:
    made = Ordered(items)
    made.attributes.update(attributes)
    return made


def quantised(plain: Tensor, scale: Any) -> Tensor:
    return replace(plain, quant=Quantisation("per_channel", scale, 3, 0))


# ---------------------------------------------------------------- the codec


@given(trees())
def test_every_tree_comes_back_from_json_text_and_tensors(tree: Any) -> None:
    value, tensors = encode(tree, "extra")

    assert difference(tree, decode(loads(dumps(value)), tensors)) is None


@given(trees())
def test_text_is_json_that_a_strict_reader_takes(tree: Any) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    text = dumps(encode(tree, "extra")[0])

    json.loads(text, parse_constant=refuse)
    assert text.isascii()


@given(trees())
def test_a_reader_of_float64_numbers_loses_nothing(tree: Any) -> None:
    value, tensors = encode(tree, "extra")
    through = json.loads(dumps(value), parse_int=lambda digits: int(float(digits)))

    assert same(tree, decode(through, tensors))


@given(trees())
def test_the_same_tree_gives_the_same_text_and_names(tree: Any) -> None:
    value, tensors = encode(tree, "extra")
    again, names = encode(decode(value, tensors), "extra")

    assert (dumps(value), list(tensors)) == (dumps(again), list(names))


@given(trees())
def test_each_tensor_has_a_name_of_its_own_in_utf8(tree: Any) -> None:
    _, tensors = encode(tree, "extra")

    assert all(name.startswith("extra") and name.encode("utf-8") for name in tensors)
    assert len(tensors) >= sum(isinstance(node, Tensor) for _, node in walk(tree))


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"lr": 0.1, "betas": (0.9, 0.999)}, '{"lr":0.1,"betas":["@tuple",0.9,0.999]}'),
        ({0: "a", None: 1, (1, 2): True}, '{"@0":"a","@null":1,"@[\\"@tuple\\",1,2]":true}'),
        ([math.inf, -math.inf, math.nan, -0.0], '[["@float","inf"],["@float","-inf"],["@float","nan"],-0.0]'),
        (["@tuple", 1], '["@list","@tuple",1]'),
        ({"@": 1, "@.x": 2}, '{"@\\"@\\"":1,"@\\"@.x\\"":2}'),
        (2**53 + 1, '["@int","0x20000000000001"]'),
        (b"\x00\x01", '["@bytes","AAE="]'),
        (
            ordered({"fc.weight": 1}, {"_metadata": {"": {"version": 1}}}),
            '{"@":"ordered","@._metadata":{"":{"version":1}},"fc.weight":1}',
        ),
        (Known("torch.Size", ((1, 2),)), '["@call","torch.Size",["@tuple",1,2]]'),
        (Known("torch.float16"), '["@known","torch.float16"]'),
        (Scalar("uint", 7), '["@scalar","uint",7]'),
        ({Known("a.B"): 1}, '["@dict",["@known","a.B"],1]'),
    ],
)
def test_the_text_of_each_kind_is_what_the_specification_draws(tree: Any, text: str) -> None:
    assert dumps(encode(tree, "")[0]) == text


def test_tensors_are_named_after_their_path() -> None:
    tree = {"rng": {"cuda": [tensor(0), tensor(4)], "a/b": tensor(8)}, 0: tensor(12), "0": tensor(16)}

    assert list(encode(tree, "values")[1]) == [
        "values/rng/cuda/0",
        "values/rng/cuda/1",
        "values/rng/a~1b",
        "values/0",
        "values/0~2",
    ]


def test_tensors_keep_role_and_id() -> None:
    value, tensors = encode([tensor(role="buffer", id=1 << 63), tensor(id="x")], "v")
    bare = {name: Tensor(held.promise) for name, held in tensors.items()}  # a file holds no role

    assert [(t.role, t.id) for t in decode(value, bare)] == [("buffer", 1 << 63), (None, "x")]


def test_a_tensor_at_two_places_is_two_names_of_equal_promises() -> None:
    one = tensor()
    _, tensors = encode({"a": one, "b": one}, "v")

    assert tensors["v/a"].promise == tensors["v/b"].promise


def test_a_tree_as_deep_as_the_limit_can_be_written_and_read() -> None:
    tree: Any = ()
    for _ in range(LIMITS.nesting - 40):
        tree = (ordered({"x": tree}, {"m": 1})) if isinstance(tree, tuple) else (tree,)
    value, tensors = encode(tree, "v")

    back = decode(loads(dumps({"record": value}))["record"], tensors)

    assert same(tree, back)


@pytest.mark.parametrize("kind", ["object", "call", "fault"])
def test_an_inert_node_is_refused_with_its_path(kind: Any) -> None:
    with pytest.raises(TensorError, match=r"callbacks/0/x: .*acme\.Callback"):
        encode({"callbacks": [{"x": Inert(kind, "acme.Callback")}]}, "v")


def test_a_type_that_no_tree_has_is_refused_with_its_path() -> None:
    with pytest.raises(TensorError, match="a/0: a value of type object"):
        encode({"a": [object()]}, "v")


def test_a_container_that_holds_itself_is_refused_with_its_path() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})

    with pytest.raises(CheckpointError, match="x/1/again: a container that holds itself"):
        encode({"x": loop}, "v")


def test_sharing_that_multiplies_is_bounded() -> None:
    tree: Any = []
    for _ in range(60):
        tree = [tree, tree]

    with pytest.raises(LimitError):
        next(path for path, _ in walk(tree, replace(LIMITS, nodes=1000)) if len(path) > 100)
    with pytest.raises(LimitError):
        loads("[" + "[],[]," * 10 + "1]", replace(LIMITS, nodes=10))


@pytest.mark.parametrize(
    "value",
    [
        ["@nobody", 1],
        ["@float", "1"],
        ["@int", "12"],
        ["@int", "0xzz"],
        ["@int"],
        ["@bytes", "A"],
        ["@bytes", 1],
        ["@str", "/w=="],
        ["@scalar", "int", 1.0],
        ["@scalar", "int"],
        ["@scalar", [], 1],
        ["@call"],
        ["@call", 1],
        ["@tensor", "absent"],
        ["@tensor", "here", "weight"],
        ["@tensor", "here", None, 1.5],
        ["@tensor", ["here"]],
        ["@tensor"],
        ["@quantised", "here", None, None],
        ["@quantised", "here", None, None, 1, 1, 1, 1],
        ["@dict", 1],
        ["@dict", [], 1],
        ["@dict", 1, 2, 1.0, 2],
        ["@ordered", 5, 1, 2],
        ["@ordered"],
        ["@ordered", 1, 1, 2],
        {"@": "other"},
        {"@.x": 1},
        {"@1": 1, "@1.0": 2},
        {"@[]": 1},
        {"@nobody": 1},
    ],
)
def test_what_no_encoding_gives_is_refused(value: Any) -> None:
    with pytest.raises(CorruptError):
        decode(value, {"here": tensor()})


@given(st.recursive(st.none() | st.integers() | st.text() | st.just("here"), lambda below: (
    st.lists(below) | st.builds(lambda tag, items: [tag, *items], st.sampled_from(
        ["@tuple", "@list", "@float", "@int", "@str", "@bytes", "@scalar", "@call", "@known", "@name", "@tensor", "@quantised", "@dict", "@ordered"]
    ), st.lists(below, max_size=5)) | st.dictionaries(st.text() | st.sampled_from(["@", "@.a", "@1", "@[]"]), below)), max_leaves=10))  # fmt: skip
def test_any_json_decodes_or_is_refused_by_an_error_of_the_tree(value: Any) -> None:
    with suppress(CkptError):
        decode(value, {"here": tensor()})


# ---------------------------------------------------------------- the text of JSON


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":1,"b":2,"a":3}', "'a' twice"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "Infinity"),
        ("[1e999]", "beyond float64"),
        ("[1,]", "no JSON"),
        ("", "no JSON"),
        ("{} {}", "extra data at character 3"),
        ("\ufeff{}", "no JSON"),
        ('["\x01"]', "no JSON"),
        (b'["\xff"]', "no UTF-8 at byte 2"),
        (b"\xff\xfe[\x00]\x00", "no UTF-8"),
    ],
)
def test_text_that_two_readers_could_read_differently_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(CorruptError, match=says):
        loads(text)


@pytest.mark.parametrize(
    "text", ["[" * 600 + "]" * 600, '{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 1_000_000, "1" * 5000]
)
def test_text_beyond_a_limit_is_refused(text: str) -> None:
    with pytest.raises((LimitError, CorruptError)):
        loads(text)


def test_numbers_are_given_as_they_stand() -> None:
    assert loads("[18446744073709551615,1E5,-0.0,0.1]") == [18446744073709551615, 1e5, -0.0, 0.1]


def test_lone_surrogates_survive_as_escapes() -> None:
    assert dumps(["\ud800"]) == '["\\ud800"]'
    assert loads(dumps(["\ud800"])) == ["\ud800"]


@pytest.mark.parametrize("value", [math.nan, {1, 2}, {"a": math.inf}])
def test_what_json_cannot_hold_is_refused_when_written(value: Any) -> None:
    with pytest.raises(TensorError, match="JSON cannot hold"):
        dumps(value)


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
