"""Nothing vanishes: every leaf of a file has a line, every item a source, and what was kept comes back as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmigrate import registry, store, values
from ckptmigrate.errors import CkptError
from ckptmigrate.format import GatherOptions, Parts, WriteOptions
from ckptmigrate.store.accounting import items_of
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Inert, Ordered

from .test_sections import adam, gathered, model, plain, tensor, versioned

if TYPE_CHECKING:
    from ckptmigrate.checkpoint import Checkpoint


def with_versions(tensors: dict[str, Tensor]) -> Ordered:
    state = Ordered(tensors)
    state.attributes["_metadata"] = Ordered({"": {"version": 1}})
    return state


KEYS = st.sampled_from(
    ["model", "state_dict", "ema", "model_ema", "optimizer", "optimizer_states", "scheduler", "lr_schedulers", "epoch", "global_step",
     "best_acc1", "rng_state", "scaler", "args", "extra", "meta", "w", "a/b", "x", 0, 1, "0", (1, 2), "version", "arch",
     "pytorch-lightning_version", "value"]
)  # fmt: skip
TENSORS = st.sampled_from([(), (2,), (0,), (2, 3)]).map(lambda shape: Tensor(array(np.ones(shape, "f4"))))
STATE_DICTS = st.dictionaries(st.sampled_from(["w", "b", "fc.w", "n"]), TENSORS, min_size=1).map(with_versions)
STATES = st.dictionaries(
    st.integers(0, 3), st.dictionaries(st.sampled_from(["step", "exp_avg", "momentum_buffer"]), TENSORS | st.none())
).map(lambda state: dict(sorted(state.items())))
ADAMS = st.builds(
    lambda state, count: {"state": state, "param_groups": [{"lr": 0.1, "params": list(range(count))}]},
    STATES,
    st.integers(0, 3),
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=3) | TENSORS
    | STATE_DICTS | ADAMS | st.just({"last_epoch": 1, "base_lrs": [0.1]})
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=3) | st.lists(below, max_size=3).map(tuple) | st.dictionaries(KEYS, below, max_size=5)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(TREES | st.dictionaries(KEYS, TREES, max_size=8))
def test_whatever_a_tree_holds_it_comes_back_as_it_was_or_is_refused(tree: Any) -> None:
    try:
        checkpoint = store.gather({"": Parts("torch", tree)}, GatherOptions(), container="torch_zip")
    except CkptError:
        return
    scattered = store.scatter(checkpoint, registry.format("torch_zip"), None, WriteOptions(), "x.pt")
    orphaned = any("left out" in warning for warning in checkpoint.ledger.warnings)

    assert checkpoint.ledger.unexplained() == []
    assert orphaned or values.difference(plain(tree), plain(scattered["x.pt"][1].tree)) is None


def items(checkpoint: Checkpoint) -> list[str]:
    """Give every item that a checkpoint has, but Inert values, which are left out when they are written."""
    named = [f"model/{name}" for name in checkpoint.model]
    named += [f"twins/{twin}/{name}" for twin, members in checkpoint.twins.items() for name in members]
    paths = [place.path[:n] for place in checkpoint.origin.places.values() for n in range(len(place.path) + 1)]
    taken = {f"values/extra/{values.spell(path)}" for path in paths}  # None in a list
    return named + [item for item, leaf in items_of(checkpoint) if not isinstance(leaf, Inert) and item not in taken]


def leaves(tree: Any) -> int:
    """Count what is no container: the oracle knows nothing of sections."""
    if isinstance(tree, dict):
        versions = leaves(tree.attributes) if isinstance(tree, Ordered) else 0
        return versions + sum(leaves(value) for value in tree.values())
    return sum(map(leaves, tree)) if isinstance(tree, list | tuple) else 1


def unshared(tree: Any) -> Any:
    """Give a tree in which no container stands twice: one that does counts where it stands first."""
    if isinstance(tree, Ordered):
        made = Ordered({key: unshared(value) for key, value in tree.items()})
        made.attributes = {key: unshared(value) for key, value in tree.attributes.items()}
        return made
    if isinstance(tree, dict):
        return {key: unshared(value) for key, value in tree.items()}
    return type(tree)(map(unshared, tree)) if isinstance(tree, list | tuple) else tree


@settings(max_examples=300)
@given(TREES)
def test_every_leaf_has_a_line_and_every_item_a_source(tree: Any) -> None:
    tree = unshared(tree)
    try:
        checkpoint = gathered(tree)
    except CkptError:
        return
    ledger = checkpoint.ledger

    assert len(ledger.sources) == leaves(tree)
    assert ledger.unexplained() == []
    assert set(items(checkpoint)) <= set(ledger.came_from())
    stand = {*items(checkpoint), *(item for item, _ in items_of(checkpoint))}
    stand |= {f"optimizers/{n}" for n in range(len(checkpoint.optimizers))}
    for row in ledger.rows():
        assert row.what != "kept" or set(row.targets) <= stand, row


@settings(max_examples=60)
@given(st.permutations(["model", "ema", "optimizer", "scheduler", "epoch", "rng_state", "args", "x"]), st.data())
def test_what_is_read_back_has_its_lines_too(keys: list[str], data: st.DataObject) -> None:
    whole = {
        "model": versioned({**model(), "n": 5}, fc=1), "ema": {**model(7), "u": 1}, "optimizer": adam((2, 3), (3,), extra=1),
        "scheduler": {"last_epoch": 1, "base_lrs": [0.1]}, "epoch": 3, "rng_state": tensor(4), "args": {"lr": 1}, "x": (1, {2: 3}),
    }  # fmt: skip
    count = data.draw(st.integers(1, len(keys)))
    tree = {key: whole[key] for key in {"model": None, **dict.fromkeys(keys[:count])}}
    form = registry.format("safetensors")
    files = store.scatter(gathered(tree), form, registry.layout("ckptmigrate"), WriteOptions())
    parts = {
        n: Parts(p.family, p.tree, p.tensors, p.facts, json.loads(json.dumps(p.notes))) for n, (_, p) in files.items()
    }
    again = store.gather(parts, GatherOptions(), container="safetensors", layout=registry.layout("ckptmigrate"))

    assert set(items(again)) <= set(again.ledger.came_from())
    assert again.ledger.unexplained() == []


def test_an_orphan_s_numbers_are_left_out_with_its_tensors() -> None:
    checkpoint = gathered({"model": model(), "optimizer": adam((9, 9), (2, 3), (3,))})
    rows = {row.source: (row.what, row.targets) for row in checkpoint.ledger.rows()}

    assert rows["optimizer/state/0/step"] == ("left out", ())
    assert rows["optimizer/state/1/step"] == ("renamed", ("optimizers/0/0/step",))
    assert rows["optimizer/param_groups/0/betas/1"] == ("kept", ("optimizers/0/groups/0/betas/1",))
