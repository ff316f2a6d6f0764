"""A module that was pickled whole is read as its state dict, without its class; nothing beside it goes unseen."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckptmigrate.errors import CkptError, ForeignCallError, LimitError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats import torch_legacy, torch_zip
from ckptmigrate.limits import LIMITS
from ckptmigrate.values import Ordered, walk

from .torch_reading import faults, reader, saved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAGIC = 0x1950A86A20F9469CFC6C


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


@pytest.fixture
def read(disk: Disk, tmp_path: Path) -> Callable[..., Parts]:
    return reader(disk, tmp_path, torch_legacy)


def _hostile(pickled: bytes) -> bytes:
    """Put another object pickle into a stream without storages."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    return b"".join(pickle.dumps(one, 2) for one in (MAGIC, 1001, system)) + pickled + pickle.dumps([], 2)


class Net(torch.nn.Module):  # type: ignore[misc] # torch's types are skipped
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(2, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = self.a
        self.register_buffer("gone", torch.ones(1), persistent=False)
        self.register_buffer("kept", torch.arange(2))
        self.register_parameter("none", None)
        self.rnn = torch.nn.LSTM(2, 3, bidirectional=True)
        self.list = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))])


def with_modules() -> Any:
    net = Net()
    return {"model": net, "parallel": torch.nn.DataParallel(torch.nn.Linear(2, 2)), "epoch": 3}


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source")
@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_is_its_state_dict_in_torchs_order_with_roles_and_ties(
    zipped: bool, disk: Disk, tmp_path: Path
) -> None:
    obj = with_modules()
    path = tmp_path / "a.pt"
    torch.save(obj, path, _use_new_zipfile_serialization=zipped)
    parts = (torch_zip if zipped else torch_legacy).read(disk.open(path), ReadOptions())
    found, expected = parts.tree["model"], obj["model"].state_dict()

    assert isinstance(found, Ordered)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name].numpy(), value.numpy()) for name, value in expected.items())
    assert {name: tensor.role for name, tensor in found.items()} == {
        name: "parameter" if name in dict(obj["model"].named_parameters(remove_duplicate=False)) else "buffer" for name in expected
    }  # fmt: skip
    assert found["a.weight"].promise == found["tied.weight"].promise
    assert list(parts.tree["parallel"]) == ["weight", "bias"]
    assert parts.tree["epoch"] == 3


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source")
def test_a_modules_class_is_told_by_key_path_and_its_source_is_nowhere(read: Callable[..., Parts]) -> None:
    data = saved({"model": Net()}, legacy=True)
    parts = read(data)
    everything = repr(list(walk(parts.tree))) + repr(parts.facts) + repr(parts.warnings)

    assert b"register_buffer" in data  # the stream holds the source text, and the author's path
    assert "register_buffer" not in everything
    assert Path(__file__).name not in everything
    assert parts.facts["modules"]["model"].endswith(".Net")
    assert parts.facts["modules"]["model/a"] == "torch.nn.modules.linear.Linear"
    assert any(
        "read as its state dict; a loader that expects the object must change" in text for text in parts.warnings
    )


MODULE = b"cgone\nNet\n)\x81}(X\13\0\0\0_parameters}X\10\0\0\0_buffers}X\10\0\0\0_modules"


def test_a_module_that_holds_itself_is_a_fault(read: Callable[..., Parts]) -> None:
    ring = b"\x80\2cgone\nNet\n)\x81q\0}(X\13\0\0\0_parameters}X\10\0\0\0_buffers}X\10\0\0\0_modules}X\1\0\0\0ah\0sub."
    tree = read(_hostile(ring)).tree

    assert "holds itself" in faults(tree)["a"]


def test_modules_that_double_at_every_level_are_refused_quickly(read: Callable[..., Parts]) -> None:
    state = torch.nn.Linear(1, 1)
    for _ in range(60):
        state = torch.nn.Sequential(state, state)

    with pytest.raises(CkptError, match=r"names|deep"):
        read(saved(state, legacy=True))


def test_a_call_within_what_a_module_holds_beside_tensors_is_refused_by_name(read: Callable[..., Parts]) -> None:
    evil = b"\x80\2" + MODULE + b"}X\4\0\0\0hookcos\nsystem\nX\4\0\0\0true\x85Rub."

    with pytest.raises(CkptError, match=r"os\.system"):
        read(_hostile(evil))
    assert any("os.system" in text for text in read(_hostile(evil), inert_calls=True).warnings)


# what lies beside the state dict


class Odd(torch.nn.Module):  # type: ignore[misc] # torch's types are skipped
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.scratch = {"lr": [torch.ones(5)]}
        self.again = [self.fc.weight, self.fc.weight.data]
        self.act = torch.relu
        self.method = self.fc.forward
        self.register_buffer("gone", torch.ones(1), persistent=False)


def test_tensors_in_no_state_dict_are_listed_by_key_path_and_those_in_one_are_not(read: Callable[..., Parts]) -> None:
    warnings = read(saved({"model": Odd()}, legacy=True)).warnings

    assert [text for text in warnings if text.startswith("left out")] == [
        "left out, as in no state dict: model/@state/scratch/lr/0, model/@state/_buffers/gone"
    ]


def test_functions_of_torch_and_bound_methods_that_a_module_keeps_are_no_reason_to_refuse(
    read: Callable[..., Parts],
) -> None:
    assert list(read(saved(Odd(), legacy=True)).tree) == ["fc.weight", "fc.bias"]


def test_an_uninitialised_module_is_refused_for_that_and_not_for_its_hooks(read: Callable[..., Parts]) -> None:
    found = faults(read(saved(torch.nn.LazyLinear(3), legacy=True)).tree)

    assert set(found) == {"weight", "bias"}
    assert "uninitialised" in found["weight"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("option", [False, True])
def test_weights_that_a_quantised_module_has_packed_are_a_fault_and_never_lost(
    read: Callable[..., Parts], option: bool
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LSTM(4, 2))
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear, torch.nn.LSTM}, dtype=torch.qint8)
    found = faults(read(saved(quantised, legacy=True), dequantize=option).tree)

    assert set(found) == {"0._packed_params._packed_params", "1._all_weight_values.0.param"}
    assert all("packed" in text for text in found.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_whose_state_only_its_own_code_understands_is_a_fault_under_its_name(
    read: Callable[..., Parts],
) -> None:
    whole = torch.nn.Sequential(torch.nn.ReLU(), torch.ao.nn.quantized.Conv2d(1, 2, 3))
    found = faults(read(saved(whole, legacy=True)).tree)

    assert list(found) == ["1"]
    assert "Conv2d, whose state only its own code understands" in found["1"]


def test_a_parameter_that_is_no_tensor_is_a_fault(read: Callable[..., Parts]) -> None:
    odd = (
        b"\x80\2cgone\nNet\n)\x81}(X\13\0\0\0_parameters}X\1\0\0\0wcgone\nTensor\n)\x81s"
        b"X\10\0\0\0_buffers}X\1\0\0\0bK\1sX\10\0\0\0_modules}ub."
    )

    assert faults(read(_hostile(odd)).tree) == {
        "w": "a parameter of class gone.Tensor and no tensor",
        "b": "a buffer that is a int and no tensor",
    }


def test_shared_modules_are_counted_before_their_names_are_made(read: Callable[..., Parts]) -> None:
    model: torch.nn.Module = torch.nn.Linear(1, 1)
    for _ in range(10):
        model = torch.nn.Sequential(model, model)
    data = saved(model, legacy=True)

    assert len(read(data).tree) == 2048
    with pytest.raises(LimitError, match="more than 2000 names and modules"):
        read(data, limits=replace(LIMITS, tensors=2000))


def test_modules_without_tensors_that_double_at_every_level_are_refused_quickly(read: Callable[..., Parts]) -> None:
    model: torch.nn.Module = torch.nn.Identity()
    for _ in range(60):
        model = torch.nn.Sequential(model, model)

    with pytest.raises(LimitError, match="names and modules"):
        read(saved(model, legacy=True))


def test_long_keys_above_many_nodes_cost_their_length_once(read: Callable[..., Parts]) -> None:
    key = b"X" + struct.pack("<I", 1 << 20) + b"k" * (1 << 20)
    many = b"](" + b"](K\1e" * 2000 + b"e"
    evil = b"\x80\2" + MODULE + b"}X\4\0\0\0hook}" + key + many + b"sX\4\0\0\0callcos\nsystem\nX\4\0\0\0true\x85Rub."
    tracemalloc.start()
    with pytest.raises(ForeignCallError, match=r"os\.system"):
        read(_hostile(evil))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 30 << 20  # a path for each of 2,000 lists would take 2 GB
