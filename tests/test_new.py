"""``new``: what is proposed from two checkpoints of one pair maps another pair of the same architectures, with other values, bit by bit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ckptmigrate
from ckptmigrate import chains
from ckptmigrate.errors import ExistsError, UsageError, VersionError

from .command_line import ROOT, Ran

if TYPE_CHECKING:
    from ckptmigrate.propose import Written

State = dict[str, torch.Tensor]
CHAIN = "acme.net"


def linears(*names: str, width: int = 8, bias: bool = True) -> nn.ModuleDict:
    return nn.ModuleDict({name: nn.Linear(width, width, bias=bias) for name in names})


def layers(count: int, make: Callable[[], nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"h": nn.ModuleList(make() for _ in range(count))})


def prefix_and_rename(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        return nn.ModuleDict({"ln_1": nn.LayerNorm(8), "fc": nn.Linear(8, 16), "conv": nn.Conv2d(3, 4, 3)})

    def upgrade(old: State) -> State:
        return {"model." + name.replace("ln_1", "norm").replace("fc", "up"): t for name, t in old.items()}

    return layers(layer_count, block), upgrade


def transposed_linear(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        return {n: t.T.contiguous() if ".fc.weight" in n else t for n, t in old.items()}

    return layers(layer_count, lambda: nn.ModuleDict({"fc": nn.Linear(8, 16), "out": nn.Linear(16, 8)})), upgrade


def split_qkv(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if "qkv" not in n}
        for name, tensor in ((n, t) for n, t in old.items() if "qkv" in n):
            sizes = [8, 4, 4]  # grouped queries: fewer keys and values than queries
            for part, piece in zip("qkv", tensor.split(sizes), strict=True):
                new[name.replace("qkv", f"{part}_proj")] = piece.clone()
        return new

    return layers(layer_count, lambda: nn.ModuleDict({"qkv": nn.Linear(8, 16), "out": nn.Linear(8, 8)})), upgrade


def split_columns(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """GPT-2 keeps its linears transposed: q, k and v are columns there."""

    def block() -> nn.Module:
        module = nn.Module()
        module.attn = nn.Module()
        module.attn.register_parameter("weight", nn.Parameter(torch.randn(8, 24)))
        module.attn.register_parameter("bias", nn.Parameter(torch.randn(24)))
        return module

    def upgrade(old: State) -> State:
        new: State = {}
        for name, tensor in old.items():
            for part, piece in zip("qkv", tensor.split(8, -1), strict=True):
                new[name.replace("attn", f"attn.{part}")] = (piece.T if piece.ndim == 2 else piece).contiguous()
        return new

    return layers(layer_count, block), upgrade


def fused_qkv(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if not re.search(r"\.[qkv]\.", n)}
        for name in (n for n in old if ".q." in n):
            new[name.replace(".q.", ".qkv.")] = torch.cat([old[name.replace(".q.", f".{part}.")] for part in "qkv"])
        return new

    return layers(layer_count, lambda: linears("q", "k", "v", "o")), upgrade


def stacked_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        experts = nn.ModuleList(nn.ModuleDict({"w1": nn.Linear(8, 6, bias=False)}) for _ in range(4))
        return nn.ModuleDict({"gate": nn.Linear(8, 4), "experts": experts})

    def upgrade(old: State) -> State:
        new = {n: t for n, t in old.items() if "experts" not in n}
        for name in (n for n in old if ".experts.0." in n):
            rows = [old[name.replace(".0.w1", f".{e}.w1")].T for e in range(4)]
            new[name.replace(".0.w1.weight", ".w1")] = torch.stack(rows)
        return new

    return layers(layer_count, block), upgrade


def fused_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """Gate and up of all experts in one tensor, each transposed."""

    def block() -> nn.Module:
        members = (nn.ModuleDict({w: nn.Linear(8, 6, bias=False) for w in ("w1", "w3")}) for _ in range(4))
        return nn.ModuleDict({"experts": nn.ModuleList(members)})

    def upgrade(old: State) -> State:
        new: State = {}
        for name in (n for n in old if ".experts.0.w1" in n):
            rows = [torch.cat([old[name.replace(".0.w1", f".{e}.{w}")].T for w in ("w1", "w3")], 1) for e in range(4)]
            new[name.replace(".0.w1.weight", ".gate_up")] = torch.stack(rows)
        return new

    return layers(layer_count, block), upgrade


def parted_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        module = nn.Module()
        module.register_parameter("gate_up", nn.Parameter(torch.randn(4, 12, 8)))
        return module

    def upgrade(old: State) -> State:
        halves = {
            (n, w, e): half
            for n, t in old.items()
            for e in range(4)
            for w, half in zip(("w1", "w3"), t[e].chunk(2), strict=True)
        }
        return {n.replace("gate_up", f"experts.{e}.{w}.weight"): half.clone() for (n, w, e), half in halves.items()}

    return layers(layer_count, block), upgrade


def unstacked_experts(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def block() -> nn.Module:
        module = nn.Module()
        module.register_parameter("w1", nn.Parameter(torch.randn(4, 6, 8)))
        return module

    def upgrade(old: State) -> State:
        return {n.replace("w1", f"experts.{e}.w1.weight"): t[e].clone() for n, t in old.items() for e in range(4)}

    return layers(layer_count, block), upgrade


def permuted_gates(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # i f g o, as torch has them, to i f o g, as others do
        return {n: torch.cat([t.chunk(4)[i] for i in (0, 1, 3, 2)]) for n, t in old.items()}

    return nn.LSTM(8, 6, num_layers=layer_count, bidirectional=True), upgrade


def rotary(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # 6 heads of 8: pairs side by side, to halves
        turned = (t.view(6, 4, 2, -1).transpose(1, 2).reshape(t.shape) if ".q." in n else t for n, t in old.items())
        return dict(zip(old, turned, strict=True))

    return layers(layer_count, lambda: linears("q", "o", width=48)), upgrade


def interleaved_heads(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:  # q, k and v of each head side by side, to all q, all k, all v
        new: State = {}
        for name, tensor in old.items():
            parts = tensor.view(6, 3, 8, *tensor.shape[1:])
            for i, part in enumerate("qkv"):
                new[name.replace("qkv", part)] = parts[:, i].reshape(48, *tensor.shape[1:]).clone()
        return new

    return layers(layer_count, lambda: nn.ModuleDict({"qkv": nn.Linear(48, 144)})), upgrade


def cast(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    def upgrade(old: State) -> State:
        return {"net." + n: t.bfloat16() if t.is_floating_point() else t for n, t in old.items()}

    return layers(layer_count, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))), upgrade


def raised(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    module = layers(layer_count, lambda: linears("q", "o")).half()
    return module, lambda old: {n: t.float() for n, t in old.items()}


def flat_convolutions(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """1 x 1 convolutions become linears; their widths differ from layer to layer."""

    def upgrade(old: State) -> State:
        return {n.replace("conv", "proj"): t[:, :, 0, 0].clone() if t.ndim == 4 else t for n, t in old.items()}

    blocks = (nn.ModuleDict({"conv": nn.Conv2d(3 + i % 3, 4 + i % 2, 1)}) for i in range(layer_count))
    return nn.ModuleDict({"h": nn.ModuleList(blocks)}), upgrade


def batch_norm(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """As torch itself wrote it before 0.4.1: no counter."""

    def upgrade(old: State) -> State:
        new = {n.replace("h.", "stages."): t for n, t in old.items()}
        counters = {n.replace("running_mean", "num_batches_tracked"): torch.tensor(0) for n in new if "_mean" in n}
        return {**new, **counters}

    module = layers(layer_count, lambda: nn.ModuleDict({"c": nn.Conv2d(3, 4, 3), "bn": nn.BatchNorm2d(4)}))
    for name in [n for n, _ in module.named_modules() if n.endswith("bn")]:
        del module.get_submodule(name)._buffers["num_batches_tracked"]
    return module, upgrade


def closed_gaps(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """A Sequential that lost its activations: 0, 2, 4 became 0, 1, 2."""
    members = [each for _ in range(layer_count + 1) for each in (nn.Linear(8, 8), nn.ReLU())]

    def upgrade(old: State) -> State:
        return {re.sub(r"\d+", lambda found: str(int(found[0]) // 2), n, count=1): t for n, t in old.items()}

    return nn.ModuleDict({"net": nn.Sequential(*members)}), upgrade


def shifted(layer_count: int) -> tuple[nn.Module, Callable[[State], State]]:
    """Layers that count from one, under another name."""

    def upgrade(old: State) -> State:
        return {re.sub(r"h\.(\d+)\.q", lambda found: f"layers.{int(found[1]) + 1}.query", n): t for n, t in old.items()}

    return layers(layer_count, lambda: linears("q")), upgrade


ARCHITECTURES = [
    prefix_and_rename, transposed_linear, split_qkv, split_columns, fused_qkv, stacked_experts, unstacked_experts, fused_experts, parted_experts, permuted_gates,
    rotary, interleaved_heads, cast, raised, flat_convolutions, batch_norm, closed_gaps, shifted,
]  # fmt: skip

UNMARKED = {permuted_gates, rotary}  # the same names, shapes and dtypes: nothing in a file tells them apart


def pair(architecture: Callable[[int], tuple[nn.Module, Any]], seed: int, layer_count: int = 2) -> tuple[State, State]:
    """Give a state dict of the old architecture, whose every parameter was trained, and the new one's of the same values."""
    torch.manual_seed(seed)
    module, upgrade = architecture(layer_count)
    old = module.state_dict()
    return old, upgrade(old)


def propose(folder: Path, old: Any, new: Any, **options: Any) -> Written:
    torch.save(old, folder / "old.pt")
    torch.save(new, folder / "new.pt")
    return ckptmigrate.new(
        CHAIN, "2.0", folder / "old.pt", folder / "new.pt", into=str(folder / "migrations"), **options
    )


def assert_maps(folder: Path, old: State, new: State, *, unmarked: bool = False) -> None:
    """The file that was written, found as a user's is, makes exactly ``new`` of a file with ``old``."""
    torch.save(old, folder / "second.pt")
    where = ("--from", f"{CHAIN}=0") if unmarked else ("--chain", CHAIN)
    ran = Ran("migrate", folder / "second.pt", folder / "made.pt", "--migrations", folder / "migrations", *where)
    assert ran.code == 0, ran.err
    made = torch.load(folder / "made.pt", weights_only=True)

    assert {n: (t.dtype, t.shape) for n, t in made.items()} == {n: (t.dtype, t.shape) for n, t in new.items()}
    assert all(torch.equal(made[name], tensor) for name, tensor in new.items())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_proposal_maps_another_pair_of_the_same_architectures_bit_by_bit(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    written = propose(tmp_path, *pair(architecture, 0))

    assert written.proposal is not None
    told = [line for line in written.proposal.open if "--from says where it stands" not in line]
    assert (told, len(written.proposal.open)) == ([], architecture in UNMARKED)
    assert written.proposal.proof.equal == written.proposal.proof.tensors
    assert_maps(tmp_path, *pair(architecture, 1), unmarked=architecture in UNMARKED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_twenty_four_layers_are_as_many_operations_as_two(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    counts = []
    for count in (2, 24) if architecture is not flat_convolutions else (6, 24):
        (tmp_path / f"{count}").mkdir()
        written = propose(tmp_path / f"{count}", *pair(architecture, 0, count))
        assert written.proposal is not None
        counts.append([spec.operation for spec in written.proposal.operations])

    assert counts[0] == counts[1]
    assert_maps(tmp_path / "24", *pair(architecture, 1, 24), unmarked=architecture in UNMARKED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_proposal_goes_back_as_well_wherever_nothing_is_lost(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    propose(tmp_path, *pair(architecture, 0))
    old, new = pair(architecture, 1)
    assert_maps(tmp_path, old, new, unmarked=architecture in UNMARKED)
    back = Ran(
        "migrate", tmp_path / "made.pt", tmp_path / "back.pt", "--migrations", tmp_path / "migrations", "--chain", f"{CHAIN}=0"
    )  # fmt: skip
    assert back.code == 0, back.err
    again = torch.load(tmp_path / "back.pt", weights_only=True)

    assert set(again) == set(old)
    if architecture is not cast:  # what bf16 rounded stays rounded
        assert all(torch.equal(again[name], tensor) for name, tensor in old.items())


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each not in UNMARKED])
def test_marks_tell_the_old_architecture_from_the_new_one(
    architecture: Callable[[int], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    written = propose(tmp_path, *pair(architecture, 0))
    assert written.proposal is not None
    for seed in (0, 1):
        for kind, state in zip(("old", "new"), pair(architecture, seed), strict=True):
            torch.save(state, tmp_path / "one.pt")
            with ckptmigrate.open(tmp_path / "one.pt") as checkpoint:
                holds = all(mark.made().holds(checkpoint) for mark in written.proposal.marks)

            assert written.proposal.marks
            assert holds == (kind == "old")


def test_a_tensor_that_one_value_fills_proves_nothing_and_follows_its_neighbours(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        a, b = torch.randn(4, 4), torch.randn(4, 4)
        ones, zeros = torch.ones(4), torch.zeros(4)
        old = {"x.weight": a, "x.bias": zeros, "x.scale": ones, "y.weight": b, "y.bias": zeros.clone()}
        new = {"b.weight": b, "b.bias": zeros.clone(), "a.weight": a, "a.bias": zeros.clone(), "a.scale": ones.clone()}
        return old, new

    written = propose(tmp_path, *states(0))
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 2, "pattern": 3}
    old, new = states(1)
    old["x.bias"], old["y.bias"] = torch.full((4,), 2.0), torch.full((4,), 3.0)
    new["a.bias"], new["b.bias"] = old["x.bias"], old["y.bias"]
    assert_maps(tmp_path, old, new)


def test_what_a_checkpoint_holds_twice_is_no_evidence(tmp_path: Path) -> None:
    torch.manual_seed(0)
    twice, once = torch.randn(4, 4), torch.randn(4, 4)
    old = {"ema.weight": twice.clone(), "net.weight": twice.clone(), "other.weight": once}
    new = {"net.weight": twice.clone(), "ema.weight": twice.clone(), "last.weight": once}
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 1, "name": 2}
    assert [spec.sources for spec in written.proposal.operations] == [("other.weight",)]


def test_tied_names_are_one_tensor_and_each_keeps_a_name(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        tied, fc = torch.randn(6, 4), torch.randn(4, 4)
        return (
            {"wte.weight": tied, "fc.weight": fc, "lm_head.weight": tied},
            {"embed.weight": tied, "fc.weight": fc, "lm_head.weight": tied},
        )

    written = propose(tmp_path, *states(0))
    assert written.proposal is not None

    assert written.proposal.proof.by == {"content": 3}
    assert [spec.sources for spec in written.proposal.operations] == [("wte.weight",)]
    assert_maps(tmp_path, *states(1))
    made = torch.load(tmp_path / "made.pt", weights_only=True)
    assert made["embed.weight"].data_ptr() == made["lm_head.weight"].data_ptr()


def test_a_second_name_is_tied_and_one_that_is_gone_is_dropped(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        a, b = torch.randn(6, 4), torch.randn(4, 4)
        return {"a": a, "a2": a, "b": b}, {"a": a, "b": b, "b2": b}

    propose(tmp_path, *states(0))

    assert_maps(tmp_path, *states(1))


def test_without_equal_contents_names_are_all_there_is_and_the_file_says_so(tmp_path: Path) -> None:
    (old, _), (_, new) = pair(prefix_and_rename, 0), pair(prefix_and_rename, 1)
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert "The contents prove nothing" in written.text
    assert "proven by content" not in written.text.partition('"""\n\n')[2]
    assert_maps(tmp_path, *pair(prefix_and_rename, 2))


def test_names_that_are_alike_to_several_stay_candidates(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"left.weight": torch.randn(4, 4), "fc.weight": torch.randn(3, 3)}
    new = {"a1.weight": torch.randn(4, 4), "a2.weight": torch.randn(4, 4), "fc.weight": torch.randn(3, 3)}
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert not written.proposal.operations
    assert '# Rename(r"left\\.weight", "a1.weight")' in written.text
    assert '# Rename(r"left\\.weight", "a2.weight")' in written.text
    assert any("left.weight" in line for line in written.proposal.open)


def test_what_shapes_would_allow_is_a_candidate_and_nothing_is_dropped_for_it(tmp_path: Path) -> None:
    (old, _), (_, new) = pair(split_qkv, 0), pair(split_qkv, 1)
    written = propose(tmp_path, old, new)
    assert written.proposal is not None

    assert [spec.operation for spec in written.proposal.operations] == []
    assert "# Split(" in written.text
    assert "sizes=(8, 4, 4)" in written.text


def test_what_only_the_old_one_has_is_dropped_with_a_reason(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {"fc.weight": torch.randn(4, 4), "aux.weight": torch.randn(5, 4), "aux.bias": torch.randn(5)}
        return old, {"fc.weight": old["fc.weight"]}

    written = propose(tmp_path, *states(0))

    assert 'reason="it is in the old checkpoint only"' in written.text
    assert_maps(tmp_path, *states(1))


def test_what_is_one_value_throughout_is_added_with_it(tmp_path: Path) -> None:
    constants = {
        "fc.scale": torch.full((4,), 0.25), "fc.limit": torch.tensor(float("-inf")), "fc.half": torch.ones(3, dtype=torch.bfloat16),
        "fc.count": torch.tensor(7), "fc.on": torch.ones(2, dtype=torch.bool),
    }  # fmt: skip

    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {"fc.weight": torch.randn(4, 4)}
        return old, {**old, **constants}

    written = propose(tmp_path, *states(0))

    assert written.text.count("Add(") == 5
    assert_maps(tmp_path, *states(1))


def test_a_part_of_a_tensor_is_told_and_its_source_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"emb.weight": torch.randn(10, 4), "fc.weight": torch.randn(4, 4)}
    written = propose(tmp_path, old, {"emb2.weight": old["emb.weight"][:8].clone(), "fc.weight": old["fc.weight"]})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert any(line.startswith("emb2.weight is made of lines of emb.weight") for line in written.proposal.open)


def test_values_that_nothing_tells_are_asked_for_and_never_made_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"fc.weight": torch.randn(4, 4)}
    written = propose(tmp_path, old, {**old, "head.weight": torch.randn(7, 4)})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert any("head.weight" in line for line in written.proposal.open)
    assert '# Add("head.weight", near=r"fc\\.weight", fill=0, shape=[7, 4])' in written.text


def test_a_tensor_that_kept_its_name_and_not_its_elements_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {f"h.{n}.weight": torch.randn(4, 4) for n in range(3)}
    written = propose(tmp_path, old, {**old, "h.1.weight": torch.randn(4, 4)})
    assert written.proposal is not None

    assert written.proposal.operations == ()
    assert [line for line in written.proposal.open if line.startswith("h.1.weight: ")]


def test_two_names_can_be_swapped(tmp_path: Path) -> None:
    def states(seed: int) -> tuple[State, State]:
        torch.manual_seed(seed)
        old = {f"{name}.weight": torch.randn(4, 4) for name in "ab"}
        return old, {"a.weight": old["b.weight"], "b.weight": old["a.weight"]}

    propose(tmp_path, *states(0))

    assert_maps(tmp_path, *states(1), unmarked=True)


# ── the file ──


def test_the_file_is_laid_out_as_ruff_would_and_passes_mypy(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [
        propose(tmp_path, *pair(stacked_experts, 0)).path,
        ckptmigrate.new("acme.other", "1.0", into=str(tmp_path / "migrations")).path,
        propose(tmp_path / "other", pair(split_qkv, 0)[0], pair(split_qkv, 1)[1]).path,
    ]
    for width in ("88", "120"):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--line-length", width, *files],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I,UP,B,W", "--line-length", "120", *files],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    for file in files:
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), file],
            capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_a_skeleton_loads_and_says_what_to_fill_in(tmp_path: Path) -> None:
    ran = Ran("new", CHAIN, "1.0", "--migrations", tmp_path / "migrations")
    catalog = chains.Catalog()
    catalog.add_folder(tmp_path / "migrations")
    (step,) = catalog.steps(CHAIN)

    assert ran.code == 0
    assert (step.migrator.version, step.migrator.operations) == ("1.0", ())
    assert "fill in" in ran.out


def test_a_version_that_is_not_above_the_head_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "migrations")
    ckptmigrate.new(CHAIN, "2.0", into=folder)
    for version in ("1.9", "2.0a1"):
        with pytest.raises(VersionError, match="not above the newest step"):
            ckptmigrate.new(CHAIN, version, into=folder)

    assert [path.name for path in (tmp_path / "migrations").rglob("*.py")] == ["v2_0_step.py"]


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    path = Path(ckptmigrate.new(CHAIN, "2.0", into=str(folder)).path)
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(ExistsError, match="already"):
        ckptmigrate.new(CHAIN, "2.0", into=str(folder))

    assert path.read_text().endswith("# mine\n")
    propose(tmp_path, *pair(split_qkv, 0), force=True)
    assert "Split(" in path.read_text()  # under its old name: two steps of one version would be an error
    assert_maps(tmp_path, *pair(split_qkv, 1))


def test_one_checkpoint_alone_proposes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two"):
        ckptmigrate.new(CHAIN, "2.0", tmp_path / "old.pt", into=str(tmp_path / "migrations"))

    assert not (tmp_path / "migrations").exists()


def test_a_project_says_where_its_migrations_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.ckptmigrate]\nmigrations = ["steps"]\n')
    monkeypatch.chdir(tmp_path)
    ran = Ran("new", CHAIN, "1.0")

    assert ran.code == 0
    assert (tmp_path / "steps" / "acme_net" / "v1_0_step.py").is_file()
    assert Ran("new", CHAIN, "0.5").code == 3


def test_a_callable_stands_for_the_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_model.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    block = lambda: nn.ModuleDict({'norm': nn.LayerNorm(8), 'up': nn.Linear(8, 16), 'conv': nn.Conv2d(3, 4, 3)})\n"
        "    return nn.ModuleDict({'model': nn.ModuleDict({'h': nn.ModuleList([block(), block()])})})\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.save(pair(prefix_and_rename, 0)[0], "old.pt")
    ran = Ran("new", CHAIN, "2.0", "--from", "old.pt", "--to", "acme_model:build", "--json")
    assert ran.code == 0, ran.err
    found = ran.json()["proposal"]

    assert (found["named"], found["shaped"], found["equal"]) == (12, 12, None)
    assert set(found["by"]) == {"name"}
    assert_maps(tmp_path, *pair(prefix_and_rename, 1))


def test_a_name_in_a_checkpoint_is_never_code_of_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    evil = [
        'x"""\nraise SystemExit(1)\n"""',
        "y\nraise SystemExit(2)\n#",
        'z"\\',
        "w\rraise SystemExit(3)",
        "v\u2028\x00",
        "'" + '"',
    ]
    values = [torch.randn(3, 3) for _ in evil]
    old = {**dict(zip(evil, values, strict=True)), "left.weight": torch.randn(4, 4), "gone\n.weight": torch.randn(5, 5)}
    new = {f"{n}.new": t for n, t in zip(evil, values, strict=True)} | {
        "a\nraise.weight": torch.randn(4, 4),
        "b.weight": torch.randn(4, 4),
    }
    written = propose(tmp_path, old, new)
    catalog = chains.Catalog()
    catalog.add_folder(tmp_path / "migrations")
    (step,) = catalog.steps(CHAIN)
    assert written.proposal is not None

    assert step.migrator.digest == written.proposal.migrator(CHAIN, "2.0").digest
    assert written.proposal.proof.equal == len(evil)


def test_a_version_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    ran = Ran("new", "acme.net", "banana", "--migrations", tmp_path / "migrations")

    assert ran.code == 2
    assert "'banana' is no version" in ran.err
    assert not (tmp_path / "migrations").exists()
