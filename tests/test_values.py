"""Values survive: trees go through JSON and tensors and come back as they were."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmigrate.errors import CheckpointError, CkptError, CorruptError, LimitError, TensorError
from ckptmigrate.limits import LIMITS
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import Inert, Known, Scalar, decode, difference, dumps, encode, loads, same, walk

from .trees import ordered, tensor, trees

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
