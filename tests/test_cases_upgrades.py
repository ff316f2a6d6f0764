"""Public failure reports, part G: names and architectures of older models, told to the command line as their users would (G01-G17)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from .command_line import Ran
from .told import load, refused, saved, upgraded

if TYPE_CHECKING:
    from pathlib import Path

WRAPPERS = ("--chain", "torch.wrappers")
SUGGESTED = "chain {0} looks needed"


def of(*names: str) -> dict[str, torch.Tensor]:
    """Give tensors under these names, each of other numbers."""
    return {name: torch.arange(4.0).reshape(2, 2) + 10 * i for i, name in enumerate(names)}


def fates(report: Any) -> Counter[str]:
    return Counter(row["fate"] for row in report["ledger"])


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return list(found) == list(wanted) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found.values(), wanted.values(), strict=True)
    )


# G01, G03, G05: what a model was wrapped into.


def test_g01_the_prefix_of_torch_compile_goes_and_the_report_counts_two(tmp_path: Path) -> None:
    held = of("_orig_mod.a.weight", "_orig_mod.a.bias")
    found, report = upgraded(held, tmp_path, *WRAPPERS)

    assert same(found, dict(zip(("a.weight", "a.bias"), held.values(), strict=True)))
    assert fates(report) == {"renamed": 2}
    assert report["warnings"] == []


@pytest.mark.parametrize(
    ("chain", "names"),
    [
        ("torch.wrappers", ("_orig_mod.a.weight", "_orig_mod.a.bias")),
        ("torch.wrappers", ("module.conv.weight", "module.bn.weight")),
        ("bert", ("bert.encoder.layer.0.output.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.beta")),
        ("torchvision", ("features.denseblock1.denselayer1.norm.1.weight",)),
        ("torch.weight_norm", ("conv.weight_g", "conv.weight_v")),
        ("torch.batch_norm", ("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")),
    ],
    ids=["G01", "G03", "G09", "G11", "G07", "G13"],
)
def test_without_its_name_a_chain_is_suggested_by_migrate_and_plan_and_nothing_is_renamed(
    chain: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    found, report = upgraded(of(*names), tmp_path)
    planned = Ran("plan", tmp_path / "in.pt")

    assert same(found, of(*names))
    assert any(SUGGESTED.format(chain) in note for note in report["notes"])
    assert planned.code == 0
    assert f"{SUGGESTED.format(chain)} " in planned.out
    assert f"--chain {chain}" in planned.out


def test_g03_the_prefix_of_data_parallel_goes(tmp_path: Path) -> None:
    held = of("module.conv.weight", "module.bn.weight")
    found, report = upgraded(held, tmp_path, *WRAPPERS)

    assert same(found, dict(zip(("conv.weight", "bn.weight"), held.values(), strict=True)))
    assert (fates(report), report["warnings"]) == ({"renamed": 2}, [])


def test_g03_where_only_some_names_have_the_prefix_a_warning_counts_those_without(tmp_path: Path) -> None:
    found, report = upgraded(of("module.conv.weight", "bn.weight", "bn.bias"), tmp_path, *WRAPPERS)

    assert list(found) == ["conv.weight", "bn.weight", "bn.bias"]
    (warning,) = report["warnings"]
    assert warning.endswith("2 of 3 names do not have it: bn.weight, bn.bias")


def test_g03_two_names_that_would_become_one_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.pt", of("module.a.weight", "a.weight"))
    said = refused(tmp_path, source, tmp_path / "out.pt", *WRAPPERS)

    assert "module.a.weight: a.weight exists already" in said


def test_g05_a_prefix_goes_only_where_it_stands_whole(tmp_path: Path) -> None:
    held = of("model.model.decoder.embed.weight", "_forward_module.head.weight")
    found, report = upgraded(held, tmp_path, *WRAPPERS)

    assert same(found, dict(zip(("model.model.decoder.embed.weight", "head.weight"), held.values(), strict=True)))
    assert "1 of 2 names do not have it: model.model.decoder.embed.weight" in report["warnings"][0]


# G07: weight norm.


def normed() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"conv.weight_g": torch.rand(2, 1) + 1, "conv.weight_v": torch.randn(2, 3), "conv.bias": torch.ones(2)}


def test_g07_a_weight_norm_becomes_the_parametrization_loads_strictly_and_comes_back(tmp_path: Path) -> None:
    held = normed()
    found, _ = upgraded(held, tmp_path, "--chain", "torch.weight_norm")
    net = torch.nn.Sequential()
    net.add_module("conv", torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2)))
    net.load_state_dict(found)
    ran = Ran("migrate", tmp_path / "out.pt", tmp_path / "back.pt", "--chain", "torch.weight_norm=0")

    names = ("conv.parametrizations.weight.original0", "conv.parametrizations.weight.original1", "conv.bias")
    assert same(found, dict(zip(names, held.values(), strict=True)))
    assert ran.code == 0
    assert same(load(tmp_path / "back.pt"), held)


def test_g07_a_folded_weight_norm_is_the_product_and_is_refused_on_the_way_down_with_the_reason(tmp_path: Path) -> None:
    held = normed()
    found, _ = upgraded(held, tmp_path, "--chain", "torch.fold_weight_norm")
    g, v, bias = held.values()
    said = refused(tmp_path, tmp_path / "out.pt", tmp_path / "back.pt", "--chain", "torch.fold_weight_norm=0")

    assert set(found) == {"conv.weight", "conv.bias"}
    torch.testing.assert_close(found["conv.weight"], g * v / v.norm(dim=1, keepdim=True), rtol=0, atol=1e-6)
    assert torch.equal(found["conv.bias"], bias)
    assert "no way back: a function cannot be turned round" in said


# G09, G11: names that a library changed.


def test_g09_a_layer_norm_of_tensorflow_s_names_has_torch_s_and_no_prefix(tmp_path: Path) -> None:
    norm = "encoder.layer.0.output.LayerNorm"
    held = {f"bert.{norm}.gamma": torch.ones(4), f"bert.{norm}.beta": torch.zeros(4), "gamma": torch.ones(1)}
    found, report = upgraded(held, tmp_path, "--chain", "bert")

    assert same(found, dict(zip((f"{norm}.weight", f"{norm}.bias", "gamma"), held.values(), strict=True)))
    assert [step.split(" (")[0] for step in report["steps"]] == ["bert to 0.4", "bert to 0.5"]


def test_g11_only_below_a_dense_layer_do_names_lose_their_dot(tmp_path: Path) -> None:
    layer = "features.denseblock1.denselayer1"
    held = of(
        *(f"module.{name}" for name in (f"{layer}.norm.1.weight", f"{layer}.conv.2.weight", "features.conv0.weight")),
        "module.features.norm5.bias", "module.classifier.norm.1.weight",
    )  # fmt: skip
    found, _ = upgraded(held, tmp_path, *WRAPPERS, "--chain", "torchvision")

    assert list(found) == [
        f"{layer}.norm1.weight",
        f"{layer}.conv2.weight",
        "features.conv0.weight",
        "features.norm5.bias",
        "classifier.norm.1.weight",
    ]
    assert all(torch.equal(a, b) for a, b in zip(found.values(), held.values(), strict=True))


# G13: the counter of a batch norm.


def batch_norm(prefix: str) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{name}": torch.full((2,), i + 0.5)
        for i, name in enumerate(("weight", "bias", "running_mean", "running_var"))
    }


def with_counter(held: dict[str, torch.Tensor], folder: Path, how: str) -> Any:
    if how == "chain":
        return upgraded(held, folder, "--chain", "torch.batch_norm")
    wanted = {f"{n.split('.')[0]}.num_batches_tracked": torch.tensor(0) for n in held if n.endswith("running_var")}
    return upgraded(held, folder, "--like", str(saved(folder / "like.pt", {**held, **wanted})))


@pytest.mark.parametrize("how", ["chain", "like"])
def test_g13_a_batch_norm_without_its_counter_gets_it_and_loads_strictly(how: str, tmp_path: Path) -> None:
    found, _ = with_counter(batch_norm("0"), tmp_path, how)
    counter = found["0.num_batches_tracked"]
    bare = {name: value for name, value in found.items() if name != "0.num_batches_tracked"}
    torch.nn.Sequential(torch.nn.BatchNorm1d(2)).load_state_dict(found)

    assert (counter.dtype, counter.shape, int(counter)) == (torch.int64, (), 0)
    assert same(dict(sorted(bare.items())), dict(sorted(batch_norm("0").items())))


@pytest.mark.parametrize("how", ["chain", "like"])
def test_g13_what_has_no_running_statistics_gets_nothing(how: str, tmp_path: Path) -> None:
    held = of("norm.weight", "norm.bias")
    found, _ = with_counter(held, tmp_path, how)

    assert same(found, held)


@pytest.mark.parametrize("how", ["chain", "like"])
def test_g13_a_counter_that_is_there_is_never_overwritten(how: str, tmp_path: Path) -> None:
    held = {**batch_norm("0"), **batch_norm("1"), "1.num_batches_tracked": torch.tensor(41)}
    found, _ = with_counter(held, tmp_path, how)

    assert (int(found["0.num_batches_tracked"]), int(found["1.num_batches_tracked"])) == (0, 41)


# G15: a 1x1 convolution is a linear layer.

STEP = '''"""Make linear layers of the 1x1 convolutions at the entrance. Since 2.0."""

from ckptmigrate import Migrator, Reshape, Shape

MIGRATOR = Migrator(
    chain="acme.sd",
    version="2.0",
    marks=[Shape(r"proj_in\\.weight", ("*", "*", "*", "*"))],
    operations=[Reshape(r"proj_in\\.weight", ("*", "*"), old=("*", "*", 1, 1))],
)
'''


@pytest.fixture
def steps(tmp_path: Path) -> tuple[str, ...]:
    folder = tmp_path / "migrations" / "acme_sd"
    folder.mkdir(parents=True)
    (folder / "v2_0_linear.py").write_text(STEP)
    return ("--migrations", str(tmp_path / "migrations"))


def test_g15_a_1x1_convolution_becomes_a_linear_layer_and_comes_back(steps: tuple[str, ...], tmp_path: Path) -> None:
    held = {"proj_in.weight": torch.arange(6.0).reshape(2, 3, 1, 1), "to_k.weight": torch.ones(2, 3)}
    found, _ = upgraded(held, tmp_path, *steps, "--chain", "acme.sd")
    ran = Ran("migrate", tmp_path / "out.pt", tmp_path / "back.pt", *steps, "--chain", "acme.sd=0")

    assert same(found, {"proj_in.weight": torch.tensor([[0.0, 1, 2], [3, 4, 5]]), "to_k.weight": torch.ones(2, 3)})
    assert ran.code == 0
    assert same(load(tmp_path / "back.pt"), held)


def test_g15_a_3x3_kernel_is_refused_by_key_and_shape(steps: tuple[str, ...], tmp_path: Path) -> None:
    source = saved(tmp_path / "in.pt", {"proj_in.weight": torch.zeros(2, 3, 3, 3)})
    said = refused(tmp_path, source, tmp_path / "out.pt", *steps, "--chain", "acme.sd")

    assert "proj_in.weight: has the shape [2, 3, 3, 3], expected ['*', '*', 1, 1]" in said


# G17: every project names the container differently.


@pytest.mark.parametrize("key", [None, "model", "state_dict", "net", "weight"])
def test_g17_every_name_of_the_container_converts_without_an_option(key: str | None, tmp_path: Path) -> None:
    held = of("a.weight", "a.bias")
    found, _ = upgraded(held if key is None else {key: held}, tmp_path)

    assert same(found if key is None else found[key], held)


def test_g17_a_module_object_converts_without_an_option(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = torch.nn.Linear(2, 2)
    found, _ = upgraded({"model": net}, tmp_path)

    assert same(dict(found["model"]), dict(net.state_dict()))


def test_g17_every_operation_acts_on_the_twin_too(tmp_path: Path) -> None:
    held = {"model": of("module.a"), "ema": {name: value + 1 for name, value in of("module.a").items()}}
    found, _ = upgraded(held, tmp_path, *WRAPPERS)

    assert same(found["model"], {"a": held["model"]["module.a"]})
    assert same(found["ema"], {"a": held["ema"]["module.a"]})


def test_g17_two_sets_of_different_names_are_refused_with_both_counts_and_one_is_chosen(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.pt", {"first": of("w", "b"), "second": of("other")})
    said = refused(tmp_path, source, tmp_path / "out.pt")
    ran = Ran("migrate", source, tmp_path / "out.pt", "--section", "model=second", "--json")

    assert all(words in said for words in ("first", "second", "2 tensors", "1 tensor", "--section model="))
    assert (ran.code, ran.json()["tensors"]) == (0, 1)
