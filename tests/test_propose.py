"""What elements prove, and the patterns that say it: each match is found by content, each pattern matches what it should and nothing else."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptmigrate
from ckptmigrate import engine, registry
from ckptmigrate.checkpoint import Checkpoint
from ckptmigrate.dtypes import BF16, F16
from ckptmigrate.limits import MiB
from ckptmigrate.propose import evidence, propose
from ckptmigrate.propose.derivation import Derivation, operation
from ckptmigrate.propose.evidence import holdings, trace
from ckptmigrate.propose.generalise import Pair, Rule, rules
from ckptmigrate.propose.lines import Table
from ckptmigrate.propose.matching import by_content
from ckptmigrate.propose.spelling import covering
from ckptmigrate.tensor import Tensor, array, cast

Array = np.ndarray[Any, Any]
DTYPES = ["f4", "f2", "f8", "i8", "u1", "c16", ml_dtypes.bfloat16]


def numbers(*shape: int, seed: int = 0) -> Array:
    made: Array = np.random.default_rng((seed, *shape)).standard_normal(shape).astype("f4")
    return made


def tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: Tensor(array(np.ascontiguousarray(values))) for name, values in arrays.items()}


def matched(old: dict[str, Array], new: dict[str, Array]) -> list[Derivation]:
    mine, theirs = tensors(old), tensors(new)
    found, _ = by_content(holdings(mine, {t.dtype for t in theirs.values()}), holdings(theirs))
    return found


def replay(derivation: Derivation, old: dict[str, Array]) -> list[Array]:
    """Do what a derivation says with the operations themselves."""
    made = [Tensor(array(np.ascontiguousarray(old[name]))) for name in derivation.sources]
    for index, changes in enumerate(derivation.before):
        for each in changes:
            (made[index],) = operation(each).tensors((made[index],))
    if derivation.joint is not None:
        made = list(operation(derivation.joint, len(made), len(derivation.targets)).tensors(tuple(made)))
    for each in derivation.after:
        (made[0],) = operation(each).tensors((made[0],))
    return [tensor.numpy() for tensor in made]


# ── evidence ──


@given(
    st.lists(st.integers(1, 9), min_size=0, max_size=4), st.sampled_from(DTYPES), st.integers(1, 40), st.randoms(use_true_random=False)
)  # fmt: skip
def test_lines_are_sums_over_slices_whatever_the_windows(
    shape: list[int], dtype: Any, window: int, random: Any
) -> None:
    values = np.array([random.randrange(100) for _ in range(int(np.prod(shape)))], "f8").reshape(shape).astype(dtype)
    whole = trace(array(values))
    before, evidence.WINDOW = evidence.WINDOW, window
    try:
        cut = trace(array(values))
    finally:
        evidence.WINDOW = before

    assert (whole.digest, whole.bag, whole.constant) == (cut.digest, cut.bag, cut.constant)
    assert all(np.array_equal(a, b) for a, b in zip(whole.lines, cut.lines, strict=True))
    for axis, lines in enumerate(whole.lines):
        for index, bag in enumerate(lines):
            assert trace(array(np.ascontiguousarray(values.take(index, axis)))).bag == int(bag)


def test_a_bag_is_blind_to_order_and_to_nothing_else() -> None:
    values = numbers(12, 10)
    other = values.copy()
    other[0, 0] += 1

    assert trace(array(values)).bag == trace(array(np.ascontiguousarray(values.T))).bag
    assert trace(array(values)).bag != trace(array(other)).bag


@pytest.mark.parametrize(
    "values", [np.zeros((3, 4), "f4"), np.full((2,), 7, "i8"), np.zeros((0, 4), "f4"), np.array(3.0, "f4")]
)
def test_constant_empty_and_single_elements_are_no_evidence(values: Array) -> None:
    (found,) = holdings(tensors({"a": values}))

    assert not found.evident


def test_the_same_content_twice_is_no_evidence_and_a_tie_is_one_tensor() -> None:
    one = Tensor(array(numbers(4, 4)))
    copy = Tensor(array(numbers(4, 4)))

    assert [(h.names, h.evident) for h in holdings({"a": one, "b": one})] == [(("a", "b"), True)]
    assert [(h.names, h.evident) for h in holdings({"a": one, "b": copy})] == [(("a",), False), (("b",), False)]


def test_a_cast_is_traced_as_torch_casts() -> None:
    tensor = Tensor(array(numbers(7, 5)))
    (found,) = holdings({"a": tensor}, {F16, BF16, tensor.dtype})

    assert set(found.casts) == {"F16", "BF16"}
    assert found.casts["BF16"].digest == trace(cast(tensor.promise, BF16)).digest


def test_a_trace_takes_a_window_of_memory_whatever_the_size(tmp_path: Path) -> None:
    peaks = []
    for rows in (2_000, 20_000):
        save_file({"w": numbers(rows, 500)}, tmp_path / "w.safetensors")
        with ckptmigrate.open(tmp_path / "w.safetensors") as checkpoint:
            promise = checkpoint.model["w"].promise
            tracemalloc.start()
            try:
                found = trace(promise)
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        assert len(found.lines[0]) == rows

    assert max(peaks) < 12 * MiB
    assert peaks[1] - peaks[0] < MiB


# ── matching ──

Q, K, V = numbers(6, 6), numbers(6, 6, seed=1), numbers(4, 6, seed=2)
EXPERTS = [numbers(5, 7, seed=seed) for seed in range(4)]
HEADS = numbers(6 * 3 * 8, 5).reshape(6, 3, 8, 5)
TWO_ROWS = np.concatenate([Q, Q])

MATCHES: dict[str, tuple[dict[str, Array], dict[str, Array], str]] = {
    "renamed": ({"a": Q}, {"b": Q}, ""),
    "transposed": ({"a": V}, {"a": V.T}, "Transpose"),
    "axes permuted": ({"a": numbers(5, 3, 2, 4)}, {"a": numbers(5, 3, 2, 4).transpose(2, 3, 1, 0)}, "Transpose"),
    "reshaped": ({"a": numbers(6, 10)}, {"a": numbers(6, 10).reshape(3, 20)}, "Reshape"),
    "squeezed": ({"a": numbers(5, 3)[..., None, None]}, {"a": numbers(5, 3)}, "Reshape"),
    "squeezed and transposed": ({"a": numbers(5, 3)[..., None]}, {"a": numbers(5, 3).T}, "Reshape Transpose"),
    "cast": ({"a": Q}, {"a": Q.astype("f2")}, "Cast"),
    "cast and transposed": ({"a": V}, {"b": V.T.astype(ml_dtypes.bfloat16)}, "Cast Transpose"),
    "joined, unequal": ({"q": Q, "k": K, "v": V}, {"qkv": np.concatenate([Q, K, V])}, "Concat"),
    "joined, in another order": ({"q": Q, "k": K, "v": V}, {"vqk": np.concatenate([V, Q, K])}, "Concat"),
    "joined and transposed": ({"q": Q, "k": K}, {"qk": np.concatenate([Q, K]).T}, "Transpose Transpose Concat"),
    "vectors joined": ({"q": Q[0], "k": K[0]}, {"qk": np.concatenate([Q[0], K[0]])}, "Concat"),
    "split, unequal": ({"qkv": np.concatenate([Q, K, V])}, {"q": Q, "k": K, "v": V}, "Split"),
    "split off columns": ({"qk": np.concatenate([Q, K]).T}, {"q": Q, "k": K}, "Transpose Split"),
    "cast and split": ({"qk": np.concatenate([Q, K])}, {"q": Q.astype("f2"), "k": K.astype("f2")}, "Cast Split"),
    "stacked": ({f"e{i}": e for i, e in enumerate(EXPERTS)}, {"e": np.stack(EXPERTS)}, "Stack"),
    "stacked along another axis": ({f"e{i}": e for i, e in enumerate(EXPERTS)}, {"e": np.stack(EXPERTS, 1)}, "Stack"),
    "unstacked": ({"e": np.stack(EXPERTS)}, {f"e{i}": e for i, e in enumerate(EXPERTS)}, "Unstack"),
    "unstacked and transposed": ({"e": np.stack([e.T for e in EXPERTS])}, {f"e{i}": e for i, e in enumerate(EXPERTS)}, "Transpose Unstack"),
    "gates": ({"w": numbers(20, 7)}, {"w": numbers(20, 7).reshape(4, 5, 7)[[0, 2, 1, 3]].reshape(20, 7)}, "Reorder"),
    "gates, transposed": ({"w": numbers(20, 7)}, {"w": numbers(20, 7).reshape(4, 5, 7)[[3, 1, 0, 2]].reshape(20, 7).T}, "Reorder Transpose"),
    "halves to pairs": ({"w": HEADS.reshape(144, 5)}, {"w": HEADS.reshape(18, 2, 4, 5).swapaxes(1, 2).reshape(144, 5)}, "Reorder"),
    "heads taken apart": ({"w": HEADS.reshape(144, 5)}, {n: HEADS[:, i].reshape(48, 5) for i, n in enumerate("qkv")}, "Reorder Split"),
    "heads put together": ({n: HEADS[:, i].reshape(48, 5) for i, n in enumerate("qkv")}, {"w": HEADS.reshape(144, 5)}, "Concat Reorder"),
    "a row put before": ({"cls": numbers(1, 1, 6), "pos": numbers(1, 9, 6)}, {"p": np.concatenate([numbers(1, 1, 6), numbers(1, 9, 6)], 1)}, "Concat"),
}  # fmt: skip


@pytest.mark.parametrize("name", MATCHES)
def test_what_was_done_to_tensors_is_found_by_their_elements_alone(name: str) -> None:
    old, new, how = MATCHES[name]
    (found,) = matched(old, new)
    steps = [each.operation for changes in found.before for each in changes]
    steps += [each.operation for each in (*([found.joint] if found.joint else []), *found.after)]

    assert " ".join(steps) == how
    assert sorted(found.sources) == sorted(old)
    for target, made in zip(found.targets, replay(found, old), strict=True):
        assert made.tobytes() == np.ascontiguousarray(new[target]).tobytes()
        assert (made.shape, made.dtype) == (new[target].shape, new[target].dtype)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": Q}, {"b": K}),
        ({"a": TWO_ROWS}, {"b": Q}),
        ({"a": np.concatenate([Q, K])}, {"q": Q}),
        ({"a": Q, "b": Q.copy()}, {"c": Q}),
        ({"q": Q}, {"x": np.concatenate([Q, V])}),
    ],
    ids=["other values", "a row twice", "a part that is gone", "held twice", "a part that is new"],
)
def test_nothing_is_proven_of_what_could_be_otherwise(old: dict[str, Array], new: dict[str, Array]) -> None:
    assert matched(old, new) == []


def test_lines_of_several_that_no_operation_says_are_told() -> None:
    mine = tensors({"a": np.concatenate([Q, K]), "b": np.concatenate([V, V * 2])})
    theirs = tensors({"x": np.concatenate([Q, V]), "y": np.concatenate([K, V * 2])})
    found, unsaid = by_content(holdings(mine), holdings(theirs))

    assert found == []
    assert {name: sorted(sources) for name, sources in unsaid.items()} == {"x": ["a", "b"], "y": ["a", "b"]}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_a_cover_is_the_lines_themselves_even_where_lines_repeat(values: list[int], data: st.DataObject) -> None:
    own = np.array(values, np.uint64)
    wanted = np.array(data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=60)), np.uint64)
    runs = Table([("a", 0, own)]).cover(wanted)

    assert runs is not None
    assert np.array_equal(np.concatenate([own[r.start : r.start + r.length] for r in runs]), wanted)


# ── patterns ──

WORDS = st.sampled_from(["a", "b", "attn", "c_attn", "w1", "w-2", "layer1", "h", "0", "1", "weight", "bias", "x+y", ""])
NAMES = st.lists(WORDS, min_size=1, max_size=5).map(".".join).filter(bool)


def assert_says(found: list[Rule], pairs: list[Pair], present: list[str]) -> None:
    """Every pair is said once: its patterns match its sources and nothing else, and become its targets."""
    assert sorted(p.sources + p.targets for rule in found for p in rule.pairs) == sorted(
        p.sources + p.targets for p in pairs
    )
    for rule in found:
        for place, pattern in enumerate(rule.sources):
            due = {p.sources[place]: p.targets for p in rule.pairs}
            hits = {n: m for n in {*present, *due} if (m := re.fullmatch(pattern, n))}

            assert set(hits) == set(due)
            assert all(tuple(map(m.expand, rule.targets)) == due[n] for n, m in hits.items())


@settings(max_examples=300)
@given(st.lists(NAMES, min_size=1, max_size=12, unique=True), st.lists(NAMES, max_size=8), st.data())
def test_rules_match_just_the_names_they_should(sources: list[str], others: list[str], data: st.DataObject) -> None:
    targets = data.draw(st.lists(NAMES, min_size=len(sources), max_size=len(sources), unique=True))
    pairs = [Pair((s,), (t,)) for s, t in zip(sources, targets, strict=True)]
    present = [*sources, *others]
    found = rules(pairs, present, targets)

    assert_says(found, pairs, present)
    for rule in found:
        if rule.back is not None:
            back = {t: re.fullmatch(rule.back[0], t) for t in targets}
            due = {p.targets[0]: p.sources[0] for p in rule.pairs}
            assert {t: m.expand(rule.back[1]) for t, m in back.items() if m} == due


LAYERS = st.sets(st.integers(0, 30), min_size=2, max_size=6)
MOVES = st.sampled_from([
    ("h.{}.q.{}", "layers.{}.self.q.{}"), ("h.{}.{}", "h.{}.0.{}"), ("h.{}.{}", "h.0.{}.{}"), ("l{}.{}", "blocks.{}.{}"),
    ("a.h.{}.w1.{}", "a.h.{}.gate.{}"), ("module.h.{}.{}", "h.{}.{}"), ("h.{}.{}", "h.{}._orig.{}"), ("e.{}_x.{}", "e.x_{}.{}"),
])  # fmt: skip


@given(
    LAYERS, st.sets(st.sampled_from(["weight", "bias", "scale", "norm.w", "norm.b"]), min_size=1), MOVES, st.booleans()
)
def test_layers_and_leaves_are_one_rule_and_it_is_exact(
    layers: set[int], leaves: set[str], move: tuple[str, str], beside: bool
) -> None:
    pairs = [Pair((move[0].format(n, x),), (move[1].format(n, x),)) for n in sorted(layers) for x in sorted(leaves)]
    present = [p.sources[0] for p in pairs] + (["h.99.other.weight", "fc.weight"] if beside else [])
    found = rules(pairs, present)

    assert len(found) == 1
    assert_says(found, pairs, present)


@given(LAYERS, st.sets(st.sampled_from(["weight", "bias"]), min_size=1))
def test_names_that_are_joined_or_parted_are_one_rule_too(layers: set[int], leaves: set[str]) -> None:
    parts = {(n, x): tuple(f"h.{n}.attn.{part}.{x}" for part in "qkv") for n in sorted(layers) for x in sorted(leaves)}
    whole = {key: (f"h.{key[0]}.attn.qkv.{key[1]}",) for key in parts}
    for pairs in ([Pair(parts[k], whole[k]) for k in parts], [Pair(whole[k], parts[k]) for k in parts]):
        present = [name for pair in pairs for name in pair.sources]
        found = rules(pairs, present)

        assert len(found) == 1
        assert_says(found, pairs, present)


def test_layers_that_stay_are_not_touched() -> None:
    pairs = [Pair((f"h.{n}.w",), (f"h.{n}.v",)) for n in range(3)]
    (found,) = rules(pairs, ["h.0.w", "h.1.w", "h.2.w", "h.3.w"])

    assert_says([found], pairs, ["h.3.w"])


def test_one_name_alone_is_spelled_literally() -> None:
    (found,) = rules([Pair(("net.0.weight",), ("fc.weight",))], ["net.0.weight", "net.1.weight"])

    assert (found.sources, found.targets) == ((r"net\.0\.weight",), ("fc.weight",))


@settings(max_examples=300)
@given(st.lists(NAMES, min_size=1, max_size=12, unique=True), st.lists(NAMES, max_size=12))
def test_a_covering_pattern_matches_its_names_and_no_other(names: list[str], others: list[str]) -> None:
    pattern = covering(names, [*names, *others])

    assert {n for n in {*names, *others} if re.fullmatch(pattern, n)} == set(names)


# ── the whole, on random architectures ──

Members = dict[str, Array]


def kept(name: str, values: Array) -> Members:
    return {name: values}


def moved(name: str, values: Array) -> Members:
    return {name.replace("old", "new"): values}


def turned(name: str, values: Array) -> Members:
    return {f"{name}_t": values.T}


def parted(name: str, values: Array) -> Members:
    return {f"{name}.{part}": piece for part, piece in zip("qkv", np.split(values, [8, 12]), strict=True)}


def gated(name: str, values: Array) -> Members:
    return {name: values.reshape(4, 4, 6)[[1, 0, 3, 2]].reshape(16, 6)}


def narrowed(name: str, values: Array) -> Members:
    return {f"half.{name}": values.astype("f2")}


CHANGES = st.tuples(st.sampled_from([kept, moved, turned, parted, gated, narrowed]), st.booleans())
BLOCKS = st.dictionaries(st.sampled_from(["old.a", "old.b.c", "d", "e.f", "old.w1", "old.w2"]), CHANGES, min_size=1)


def built(block: dict[str, Any], layers: int, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Give the tensors of layers before and after; a change that is turned round leads from what it makes to what it takes."""
    sides: tuple[dict[str, Array], dict[str, Array]] = ({}, {})
    for n in range(layers):
        for i, (name, (change, back)) in enumerate(block.items()):
            one = {f"h.{n}.{name}": numbers(16, 6, seed=seed + 7 * n + 1000 * i)}
            other = change(*next(iter(one.items())))
            for side, members in zip(
                sides, (other, one) if back and change is not narrowed else (one, other), strict=True
            ):
                side |= {f"{target}.weight": values for target, values in members.items()}
    return sides


@settings(max_examples=60, deadline=None)
@given(BLOCKS, st.integers(1, 3))
def test_what_is_proposed_for_a_random_architecture_maps_other_values_of_it(block: dict[str, Any], layers: int) -> None:
    old, new = built(block, layers, 0)
    found = propose(Checkpoint("torch", tensors(old)), Checkpoint("torch", tensors(new)))
    assert found.proof.problems == ()
    again, wanted = built(block, layers, 500_000)
    second = Checkpoint("torch", tensors(again))
    problems = engine.apply(second, found.migrator("acme.net", "1"), registry.family("torch"))

    assert problems == []
    assert set(second.model) == set(wanted)
    for name, values in wanted.items():
        assert second.model[name].numpy().tobytes() == np.ascontiguousarray(values).tobytes()


@settings(max_examples=20, deadline=None)
@given(BLOCKS)
def test_the_number_of_operations_does_not_grow_with_the_layers(block: dict[str, Any]) -> None:
    found = []
    for layers in (2, 12):
        old, new = built(block, layers, 0)
        proposal = propose(Checkpoint("torch", tensors(old)), Checkpoint("torch", tensors(new)))
        found.append(sorted(spec.operation for spec in proposal.operations))

    assert found[0] == found[1]
