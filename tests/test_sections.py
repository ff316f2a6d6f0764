"""Which key is which section, where it takes more than a table: said, nested, in files of their own, of odd types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate import registry, store, values
from ckptmigrate.errors import CheckpointError, OptimizerError, SectionError
from ckptmigrate.format import GatherOptions, Parts, WriteOptions
from ckptmigrate.operations import Rename
from ckptmigrate.tensor import Tensor, array
from ckptmigrate.values import Ordered

from .test_layouts import kept, net, opened

if TYPE_CHECKING:
    from pathlib import Path

    from ckptmigrate.checkpoint import Checkpoint


def tensor(*shape: int, start: int = 0) -> Tensor:
    return Tensor(array(np.arange(start, start + int(np.prod(shape)), dtype="f4").reshape(shape)))


def gathered(tree: Any, **options: Any) -> Checkpoint:
    return store.gather({"": Parts("torch", tree)}, GatherOptions(**options), container="torch_zip")


def back(checkpoint: Checkpoint) -> Any:
    """Give the tree with every section where it lay."""
    form = registry.format("torch_zip")
    return store.scatter(checkpoint, form, None, WriteOptions(), "x.pt")["x.pt"][1].tree


def plain(tree: Any) -> Any:
    """Give a tree without the classes of its containers, which no loader looks at; a state dict keeps its versions."""
    if isinstance(tree, dict):
        versions = tree.attributes if isinstance(tree, Ordered) else {}
        return {key: plain(value) for key, value in tree.items()} | {
            ("@", key): plain(v) for key, v in versions.items()
        }
    return [plain(item) for item in tree] if isinstance(tree, list | tuple) else tree


def adam(*shapes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """Give Adam's state of parameters of these shapes, as torch 1.x writes it."""
    state = {
        i: {"step": 5, "exp_avg": tensor(*shape, start=10 * i), "exp_avg_sq": tensor(*shape, start=10 * i + 5)}
        for i, shape in enumerate(shapes)
    }
    return {
        "state": state,
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(range(len(shapes)))}],
        **more,
    }


MODEL = {"w": (2, 3), "b": (3,)}


def model(start: int = 0) -> dict[str, Tensor]:
    return {name: tensor(*shape, start=start + 100 * i) for i, (name, shape) in enumerate(MODEL.items())}


# ---------------------------------------------------------------- what a twin holds beside tensors


def test_what_stands_among_a_twin_s_tensors_comes_back_where_it_stood() -> None:
    ema = {"updates": 7, "w": tensor(2, 3), "fc._extra_state": {"scale": tensor(1)}, "b": tensor(3), "note": None}
    tree = {"model": {**model(), "n": 5}, "ema": ema}
    checkpoint = gathered(tree)

    assert checkpoint.values["twins"]["ema"] == {k: v for k, v in ema.items() if k not in MODEL}
    assert list(back(checkpoint)["ema"]) == list(ema)
    assert values.difference(plain(tree), plain(back(checkpoint))) is None
    rows = {row.source: row.targets for row in checkpoint.ledger.rows()}
    assert rows["ema/updates"] == ("values/twins/ema/updates",)
    assert rows["ema/fc._extra_state/scale"] == ("values/twins/ema/fc._extra_state/scale",)


def test_what_stands_among_a_twin_s_tensors_comes_back_from_every_target() -> None:
    tree = {"model": model(), "ema": {**model(7), "updates": 7}}
    for target, layout in (("safetensors", "ckptmigrate"), ("torch_zip", "plain")):
        form, checkpoint = registry.format(target), gathered(tree)
        files = store.scatter(checkpoint, form, registry.layout(layout), WriteOptions())
        parts = {name: p for name, (_, p) in files.items()}
        if target == "torch_zip":
            again = store.gather({"": next(iter(parts.values()))}, GatherOptions(), container=target)
        else:
            again = store.gather(parts, GatherOptions(), container=target, layout=registry.layout(layout))

        assert again.values["twins"] == {"ema": {"updates": 7}}


def versioned(tensors: dict[str, Any], **versions: int) -> Ordered:
    state = Ordered(tensors)
    state.attributes["_metadata"] = Ordered({name: {"version": v} for name, v in versions.items()})
    return state


@pytest.mark.parametrize("twin", [{"fc": 1}, {"fc": 2}, {"fc": 1, "more": 3}, {}])
def test_a_twin_keeps_its_own_module_versions(twin: dict[str, int]) -> None:
    tensors = {"fc.w": tensor(2), "fc.b": tensor(1)}
    tree = {"model": versioned(tensors, fc=1), "ema": versioned(tensors, **twin) if twin else dict(tensors)}
    checkpoint = gathered(tree)
    written = back(checkpoint)

    assert dict(written["model"].attributes["_metadata"]) == {"fc": {"version": 1}}
    assert {k: e["version"] for k, e in written["ema"].attributes.get("_metadata", {}).items()} == twin
    assert checkpoint.ledger.unexplained() == []
    assert not [row for row in checkpoint.ledger.rows() if row.what == "left out"]


def test_what_stands_in_a_twin_follows_a_renamed_module() -> None:
    tensors = {"fc.w": tensor(2), "fc.b": tensor(1)}
    ema = versioned({**tensors, "fc._extra_state": 4, "fc.updates": 3}, fc=2)
    checkpoint = gathered({"model": versioned(tensors, fc=1), "ema": ema})
    problems = store_engine(checkpoint, Rename({r"fc\.(.*)": r"head.\1"}))
    written = back(checkpoint)["ema"]

    assert problems == []
    assert set(written) == {"head.w", "head.b", "head._extra_state", "head.updates"}
    assert dict(written.attributes["_metadata"]) == {"head": {"version": 2}}
    rows = {row.source: (row.what, row.targets) for row in checkpoint.ledger.rows()}
    assert rows["ema/fc._extra_state"] == ("renamed", ("values/twins/ema/head._extra_state",))
    assert rows["ema/@_metadata/fc/version"] == ("renamed", ("values/twins/ema/@_metadata/head/version",))


def store_engine(checkpoint: Checkpoint, *operations: Any) -> list[str]:
    from ckptmigrate import engine

    return engine.apply_operations(checkpoint, operations, registry.family("torch"), origin="test")


def test_a_dropped_twin_and_a_dropped_model_take_what_stood_among_their_tensors() -> None:
    tree = {"model": {**model(), "n": 5}, "ema": {**model(7), "updates": 7}, "epoch": 1}
    assert "twins" not in gathered(tree, drop=("twins.ema",)).values
    assert "twins" not in gathered(tree, only=("model",)).values
    assert gathered(tree, only=("model", "twins")).values["twins"] == {"ema": {"updates": 7}}
    assert "model" not in gathered(tree, drop=("model",)).values


# ---------------------------------------------------------------- optimizers, wherever they lie


@pytest.mark.parametrize(
    ("tree", "places"),
    [
        ({"trainer": {"inner": {"opt": adam((2, 3), (3,))}}}, [("trainer", "inner", "opt")]),
        ({"opts": {"a": [adam((2, 3)), adam((3,))]}}, [("opts", "a", 0), ("opts", "a", 1)]),
        ({"stuff": [adam((2, 3)), {"x": 1}, None]}, [("stuff", 0)]),
        ({"optimizers": (None, adam((2, 3)))}, [("optimizers", 1)]),
        ({"optimizer": {"g": adam((2, 3)), "lr": 3}}, [("optimizer", "g")]),
        ({0: {(1, 2): adam((2, 3))}}, [(0, (1, 2))]),
    ],
)
def test_every_value_that_is_an_optimizer_is_one_wherever_it_lies(tree: Any, places: list[Any]) -> None:
    tree = {"model": model(), **tree}
    checkpoint = gathered(tree, names=False)

    assert [checkpoint.origin.places[f"optimizers.{n}"].path for n in range(len(checkpoint.optimizers))] == places
    assert values.difference(plain(tree), plain(back(checkpoint))) is None


def test_a_shared_or_cyclic_tree_is_searched_in_no_time() -> None:
    node: Any = {"leaf": 1}
    for _ in range(60):
        node = {"a": node, "b": node}
    cycle: list[Any] = []
    cycle.append(cycle)

    assert gathered({"model": model(), "deep": node["a"]}).optimizers == []
    with pytest.raises(CheckpointError):
        gathered({"deep": cycle})


def test_an_optimizer_of_another_model_is_refused_with_what_it_is_and_the_way_on() -> None:
    tree = {"netG": model(), "optG": adam((2, 3), (3,)), "optD": adam((7, 7))}
    with pytest.raises(
        OptimizerError, match=r"optimizer 1 \(optD\): none .* it has \[7, 7\], the model \[2, 3\], \[3\]"
    ) as caught:
        gathered(tree)
    assert "--drop optimizers.1 goes on without its state" in caught.value.hints
    checkpoint = gathered(tree, drop=("optimizers.1",))

    assert [p.name for p in checkpoint.optimizers[0].params] == ["w", "b"]
    for only in (("model",), ("model", "optimizers.0")):
        assert gathered(tree, only=only).model.keys() == MODEL.keys()


@pytest.mark.parametrize("word", ["optimizer", "optimizers", "optimizers.0", "optimizer.0"])
def test_state_that_is_refused_can_be_dropped_in_any_of_its_words(word: str) -> None:
    stripped = adam((2, 3), (3,))
    del stripped["state"][0]["step"]
    tree = {"model": model(), "optimizer": stripped}
    with pytest.raises(OptimizerError, match="no step"):
        gathered(tree)
    checkpoint = gathered(tree, drop=(word,))

    assert checkpoint.optimizers == []
    assert {row.what for row in checkpoint.ledger.rows() if row.source.startswith("optimizer")} == {"dropped"}


def test_an_optimizer_with_more_parameters_than_the_model_is_said_to_be_of_another() -> None:
    checkpoint = gathered({"model": model(), "optimizer": adam((3,), (3,), (3,))})

    assert [p.name for p in checkpoint.optimizers[0].params] == [None, None, None]
    assert "optimizer 0: has 3 parameters, and the model 2: it is of another model" in checkpoint.ledger.warnings
    assert any("no names: steps that only rename pass" in note for note in checkpoint.ledger.notes)


@pytest.mark.parametrize(
    ("target", "layout"), [("safetensors", "ckptmigrate"), ("torch_zip", "plain"), ("torch_zip", None)]
)
def test_an_optimizer_that_our_record_says_is_nameless_stays_so(target: str, layout: str | None) -> None:
    checkpoint = gathered({"model": model(), "optimizer": adam((2, 3), (3,))}, names=False)
    files = store.scatter(
        checkpoint, registry.format(target), registry.layout(layout) if layout else None, WriteOptions()
    )
    parts = {name if target == "safetensors" else "": p for name, (_, p) in files.items()}
    folder = registry.layout("ckptmigrate") if target == "safetensors" else None
    again = store.gather(parts, GatherOptions(), container=target, layout=folder)
    named = store.gather(parts, GatherOptions(params=(("w", "b"),)), container=target, layout=folder)

    assert [(p.name, p.by) for p in again.optimizers[0].params] == [(None, None), (None, None)]
    assert [(p.name, p.by) for p in named.optimizers[0].params] == [("w", "file"), ("b", "file")]


# ---------------------------------------------------------------- two models


def test_two_models_are_refused_with_counts_and_a_way_for_each() -> None:
    tree = {"netG": model(), "netD": {"x": tensor(1)}}
    with pytest.raises(CheckpointError, match=r"netG \(2 tensors\); netD \(1 tensors\)") as caught:
        gathered(tree)

    assert [h.split()[1] for h in caught.value.hints] == ["model=netG", "model=netD"]
    for hint in caught.value.hints:
        said = hint.split()[1].partition("=")[2]
        checkpoint = gathered(tree, sections={"model": said})
        assert list(checkpoint.model) == list(tree[said])
        assert values.difference(plain(tree), plain(back(checkpoint))) is None


def test_two_keys_that_say_one_twin_s_name_are_two_twins() -> None:
    tree = {"model": model(), "ema": model(1), "model_ema": model(2), "state_dict_ema": model(3), "ema_model": model(4)}
    checkpoint = gathered(tree)

    assert len(checkpoint.twins) == 4
    assert values.difference(plain(tree), plain(back(checkpoint))) is None


# ---------------------------------------------------------------- --section


@pytest.mark.parametrize(
    ("tree", "said", "path"),
    [
        ({"a": {"b": model()}}, "a.b", ("a", "b")),
        ({"a": {"b": model()}}, "a/b", ("a", "b")),
        ({"a.b": model(), "a": {"b": {"x": tensor(1)}}}, "a.b", ("a.b",)),
        ({"a": {"b.c": model(), "b": {"d": 1}}}, "a.b.c", ("a", "b.c")),
        ({"a.b": {"x": 1}, "a": {"b.c": model()}}, "a.b.c", ("a", "b.c")),
        ({"nets": [model(), {"x": tensor(1)}]}, "nets.0", ("nets", 0)),
        ({"nets": {3: model(), "x": 1}}, "nets.3", ("nets", 3)),
        ({"enc": {"w": tensor(1)}}, "", ()),
    ],
)
def test_a_typed_path_finds_keys_with_dots_and_numbers(tree: Any, said: str, path: tuple[Any, ...]) -> None:
    checkpoint = gathered(tree, sections={"model": said})

    assert checkpoint.origin.places["model"].path == path


@pytest.mark.parametrize(
    ("said", "present", "words"),
    [
        ("net", ["a", "l"], "nothing at net; there are: a, l"),
        ("a.x.y", ["b.c"], "nothing at a.x.y; there are at a: b.c"),
        ("l.7", ["0"], "nothing at l.7; there are at l: 0"),
    ],
)
def test_a_typed_path_that_leads_nowhere_tells_what_is_there(said: str, present: list[str], words: str) -> None:
    with pytest.raises(SectionError, match=words) as caught:
        gathered({"a": {"b.c": model()}, "l": [model()]}, sections={"model": said})
    assert caught.value.data["present"] == present


def test_keys_that_are_prefixes_of_each_other_do_not_take_forever() -> None:
    tree: Any = {"x": 1}
    for _ in range(40):
        tree = {"a": tree, "a.a": tree}
    with pytest.raises(SectionError, match="nothing at"):
        gathered(tree, sections={"model": ".".join(["a"] * 70) + ".no"})


def test_sections_of_any_kind_can_be_said() -> None:
    tree = {
        "m": model(),
        "o": [adam((2, 3)), adam((3,))],
        "t": {"x": tensor(2)},
        "k": 4,
        "s": {"count": 1},
        "r": tensor(2),
    }
    said = {"model": "m", "twins.slow": "t", "optimizers.1": "o.0", "optimizer.0": "o.1", "progress.epoch": "k"}
    checkpoint = gathered(tree, sections={**said, "scheduler": "s", "values.rng": "r"}, names=False)

    assert list(checkpoint.twins) == ["slow"]
    assert [checkpoint.origin.places[f"optimizers.{n}"].path for n in (0, 1)] == [("o", 1), ("o", 0)]
    assert checkpoint.schedulers == [{"count": 1}]
    assert (checkpoint.progress.epoch, list(checkpoint.values)) == (4, ["rng"])
    assert values.difference(plain(tree), plain(back(checkpoint))) is None


@pytest.mark.parametrize(
    ("section", "said", "words"),
    [
        ("model", "n", "n is no set of tensors"),
        ("optimizers", "m", "m is no optimizer state; it has: w, b"),
        ("progress.epoch", "m", "m is no epoch: it is a dict"),
        ("nonsense", "m", "no section is called 'nonsense'"),
        ("twins", "m", "no section is called 'twins'"),
    ],
)
def test_a_section_that_is_none_is_refused(section: str, said: str, words: str) -> None:
    with pytest.raises(SectionError, match=words):
        gathered({"m": model(), "n": 3}, sections={section: said})


def test_the_command_line_reads_a_typed_path(tmp_path: Path) -> None:
    torch.save({"a": {"b.c": net().state_dict(), "d": {"x": torch.ones(1)}}}, tmp_path / "in.pt")
    found = ckptmigrate.inspect(tmp_path / "in.pt", gather=GatherOptions(sections={"model": "a.b.c"}))

    assert len(found["sections"]["model"]["tensors"]) == 7


# ---------------------------------------------------------------- progress of odd types


@pytest.mark.parametrize(
    ("epoch", "told"),
    [(3, 3), (True, None), (3.5, None), (torch.tensor(3), None), ("three", None), (np.int64(7), 7), (None, None)],
)
def test_an_epoch_of_an_odd_type_is_carried_and_said(tmp_path: Path, epoch: Any, told: int | None) -> None:
    tree = {"model": net().state_dict(), "epoch": epoch}
    checkpoint = opened(tmp_path, tree)
    loaded = kept(checkpoint, tmp_path)["epoch"]

    assert checkpoint.progress.epoch == told
    assert type(loaded) is type(epoch) or isinstance(epoch, np.generic)
    assert loaded == epoch
    said = [note for note in checkpoint.ledger.notes if "epoch is no whole number" in note]
    assert len(said) == (told is None and epoch is not None)
    assert opened(tmp_path, tree, epoch=9).progress.epoch == (told or 9)


@pytest.mark.parametrize("best", [0.5, 3, torch.tensor(0.5), torch.tensor([0.5]), np.float64(0.5), float("inf")])
def test_a_best_metric_of_any_numeric_type_is_one(tmp_path: Path, best: Any) -> None:
    checkpoint = opened(tmp_path, {"model": net().state_dict(), "best_acc1": best})

    assert checkpoint.progress.best is not None
    assert kept(checkpoint, tmp_path)["best_acc1"] == best
