"""Every fixture that real torch wrote goes through the whole pipeline, and torch itself reads what comes out."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open

import ckptmigrate
from ckptmigrate import errors
from ckptmigrate.dtypes import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

MUSEUM = Path(__file__).parent / "fixtures" / "torch"
RELEASES = ["1.0.0-py27", "1.0.0-py36", "1.4.0-py38", "1.6.0-py38", "1.10.2-py38", "2.13.0-py311"]
SCRIPTED = {"traced.pt", "script.pt"}
NEEDS = {"quant.pt": ckptmigrate.ReadOptions(dequantize=True), "sparse.pt": ckptmigrate.ReadOptions(densify=True)}
HAS_NO_DATA = {"special.pt"}  # holds a meta tensor

Fact = tuple[str, tuple[int, ...], str]


def expected(release: str) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((MUSEUM / release / "expected.json").read_text())["files"]
    return files


def cases() -> list[tuple[str, str]]:
    return [(r, name) for r in RELEASES for name in sorted(expected(r)) if name not in SCRIPTED]


def facts_of(tensor: torch.Tensor) -> Fact:
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    nbytes = dense.numel() * dense.element_size()
    raw = ctypes.string_at(dense.data_ptr(), nbytes) if nbytes else b""
    return str(dense.dtype).removeprefix("torch."), tuple(dense.shape), hashlib.sha256(raw).hexdigest()


def tensors_in(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Give every tensor with its keys joined by "/", as the script that made the fixtures spelled them."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors_in(value, f"{path}/{key}" if path else str(key))


def told(entry: dict[str, Any]) -> Fact:
    return entry["dtype"], tuple(entry["shape"]), entry["sha256"]


@pytest.mark.parametrize(("release", "name"), cases())
def test_torch_loads_the_converted_fixture_with_the_values_it_was_saved_with(
    release: str, name: str, tmp_path: Path
) -> None:
    entries = expected(release)[name]["tensors"]
    if name in HAS_NO_DATA:
        with pytest.raises(errors.CkptError, match="meta"):
            ckptmigrate.migrate(
                MUSEUM / release / name, tmp_path / "out.pt", read=ckptmigrate.ReadOptions(densify=True)
            )
        return
    read = NEEDS.get(name, ckptmigrate.ReadOptions())
    ckptmigrate.migrate(MUSEUM / release / name, tmp_path / "out.pt", read=read)

    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    torch.load(tmp_path / "out.pt", weights_only=True, mmap=True)
    found = dict(tensors_in(loaded))
    if name in NEEDS:
        assert_dense(name, found)
    elif name == "storage.pt":
        assert [t.tolist() for t in found.values()] == [[1.0, 2.0, 3.0]]
    else:
        renamed = current_keys(MUSEUM / release / name) if name == "checkpoint.pt" else {}
        wanted = {renamed.get(path, path): told(entry) for path, entry in entries.items()}
        assert {path: facts_of(found[path]) for path in wanted} == wanted


def current_keys(source: Path) -> dict[str, str]:
    """Up to 1.5 an optimizer's keys were addresses; ours are what torch writes since, positions in the groups' lists."""
    saved = _load_original(source)
    renamed: dict[str, str] = {}
    for key in ("optimizer", "adam"):
        params = [p for group in saved[key]["param_groups"] for p in group["params"]]
        for param, slots in saved[key]["state"].items():
            renamed |= {f"{key}/state/{param}/{s}": f"{key}/state/{params.index(param)}/{s}" for s in slots}
    return renamed


def assert_dense(name: str, found: dict[str, torch.Tensor]) -> None:
    """Compare with the numbers that the script put into the tensors before it quantised them or made them sparse."""
    if name == "sparse.pt":
        assert found["s"].tolist() == [[0.0, 0.0, 3.0], [4.0, 0.0, 5.0]]
    else:
        assert torch.allclose(found["q"], torch.tensor([-1.0, 0.0, 1.0, 2.0]), atol=0.05)
        assert torch.allclose(found["qc"], torch.tensor([[-1.0, 0.0], [1.0, 1.27]]), atol=0.05)


@pytest.mark.parametrize(("release", "name"), cases())
def test_safetensors_opens_the_converted_fixture_with_the_values_it_was_saved_with(
    release: str, name: str, tmp_path: Path
) -> None:
    entries = expected(release)[name]["tensors"]
    if name in HAS_NO_DATA:
        return
    read = NEEDS.get(name, ckptmigrate.ReadOptions())
    source = MUSEUM / release / name
    if any(e["dtype"] == "complex128" for e in entries.values()):
        with pytest.raises(errors.PlanError, match="complex128"):
            ckptmigrate.migrate(source, tmp_path / "out", read=read, to="safetensors")
        return
    ckptmigrate.migrate(source, tmp_path / "out", read=read, to="safetensors")

    files = [tmp_path / "out"] if (tmp_path / "out").is_file() else sorted((tmp_path / "out").glob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - the handle is no mapping
                opened.get_tensor(key)
    if name in NEEDS or name == "storage.pt":
        return
    shown = ckptmigrate.inspect(tmp_path / "out", digests=True)
    found = Counter(_tensors_shown(shown["sections"]))
    assert not Counter(map(told, entries.values())) - found


def _tensors_shown(tree: Any) -> Iterator[Fact]:
    if isinstance(tree, dict):
        if "sha256" in tree:
            yield str(BY_NAME[tree["dtype"]].torch), tuple(tree["shape"]), tree["sha256"]
        else:
            for value in tree.values():
                yield from _tensors_shown(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _tensors_shown(value)


@pytest.mark.parametrize("release", RELEASES)
def test_a_state_dict_keeps_its_names_order_and_ties(release: str, tmp_path: Path) -> None:
    ckptmigrate.migrate(MUSEUM / release / "state_dict.pt", tmp_path / "out.pt")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)

    # expected.json sorts its keys; the order is the one in which modules were declared.
    assert list(loaded) == [
        "conv.weight", "conv.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked",
        "fc.weight", "fc.bias", "emb.weight", "dec.weight",
    ]  # fmt: skip
    assert loaded["emb.weight"].data_ptr() == loaded["dec.weight"].data_ptr()
    assert loaded._metadata["bn"] == {"version": 2}


@pytest.mark.parametrize(
    ("release", "name"), [(r, n) for r in RELEASES for n in sorted(SCRIPTED) if (MUSEUM / r / n).exists()]
)
def test_a_torchscript_archive_is_recognised_and_refused_by_name(release: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedFormatError, match="TorchScript archive"):
        ckptmigrate.migrate(MUSEUM / release / name, tmp_path / "out.pt")

    assert not list(tmp_path.iterdir())


CONTAINERS = json.loads((MUSEUM / "2.13.0-containers" / "expected.json").read_text())["files"]
HANDMADE = json.loads((MUSEUM / "legacy-handmade" / "expected.json").read_text())["files"]


@pytest.mark.parametrize(
    ("folder", "name"), [("2.13.0-containers", n) for n in CONTAINERS] + [("legacy-handmade", n) for n in HANDMADE]
)
def test_every_container_variant_converts_or_is_refused_as_told(folder: str, name: str, tmp_path: Path) -> None:
    entry = (CONTAINERS if folder == "2.13.0-containers" else HANDMADE)[name]
    if "expect" in entry:
        with pytest.raises(errors.CkptError):
            ckptmigrate.migrate(MUSEUM / folder / name, tmp_path / "out.pt")
        assert not list(tmp_path.iterdir())
        return
    ckptmigrate.migrate(MUSEUM / folder / name, tmp_path / "out.pt")

    found = {key: facts_of(value) for key, value in torch.load(tmp_path / "out.pt", weights_only=True).items()}
    if entry["tensors"] is not None:
        assert {key: told(value) for key, value in entry["tensors"].items()} == found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("target", ["out.pt", "out"])
def test_torch_takes_the_same_training_step_from_the_converted_checkpoint_as_from_the_original(
    release: str, target: str, tmp_path: Path
) -> None:
    source = MUSEUM / release / "checkpoint.pt"
    if target == "out":  # through our own folder and back, so that both writers are in the road
        ckptmigrate.migrate(source, tmp_path / "folder", to="safetensors")
        ckptmigrate.migrate(tmp_path / "folder", tmp_path / "out.pt", layout="standard")
        converted = torch.load(tmp_path / "out.pt", weights_only=True)
        model, optimizer = converted["model_state_dict"], converted["optimizer_state_dict"]
        optimizer = optimizer[0] if isinstance(optimizer, list) else optimizer
    else:
        ckptmigrate.migrate(source, tmp_path / "out.pt")
        converted = torch.load(tmp_path / "out.pt", weights_only=True)
        model, optimizer = converted["state_dict"], converted["optimizer"]
    original = _load_original(source)

    assert _one_step(model, optimizer) == _one_step(original["state_dict"], original["optimizer"])


def _load_original(source: Path) -> Any:
    return torch.load(source, weights_only=False, encoding="latin1")


class Net(torch.nn.Module):  # type: ignore[misc] # the referee is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.bn = torch.nn.BatchNorm2d(2)
        self.fc = torch.nn.Linear(8, 3)
        self.emb = torch.nn.Embedding(5, 8)
        self.dec = torch.nn.Linear(8, 5, bias=False)
        self.dec.weight = self.emb.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(self.bn(self.conv(x)).view(-1, 8)).sum() + self.emb.weight.sum()
        return out


def _one_step(model: Any, optimizer: Any) -> dict[str, Fact]:
    net = Net()
    net.load_state_dict(model, strict=True)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.1)
    sgd.load_state_dict(optimizer)
    net(torch.arange(16.0).reshape(1, 1, 4, 4) / 16).backward()
    sgd.step()
    return {name: facts_of(value) for name, value in net.state_dict().items()}
