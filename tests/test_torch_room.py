"""Tensors as torch objects: every dtype that torch has, bit for bit; refused by name where torch cannot hold them."""

from __future__ import annotations

import sys
import tracemalloc
import zipfile
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate.dtypes import BOOL, BY_NAME, DTYPES, F32, DType
from ckptmigrate.errors import CkptError, PluginError, TensorError
from ckptmigrate.files import Disk
from ckptmigrate.limits import MiB
from ckptmigrate.tensor import Tensor, View, array

if TYPE_CHECKING:
    from pathlib import Path

HELD = [d for d in DTYPES if d.kind != "quantised" and hasattr(torch, d.torch or "-")]
REFUSED = [d for d in DTYPES if d not in HELD]


def content(dtype: DType, count: int) -> bytes:
    raw = np.random.default_rng(3).integers(0, 256, count * dtype.itemsize, np.uint8)
    return (raw % 2 if dtype == BOOL else raw).tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (3, 1, 4), (0,), (0, 3), (4, 0)], ids=str)
@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_every_dtype_and_shape_comes_out_bit_for_bit(dtype: DType, shape: tuple[int, ...]) -> None:
    raw = content(dtype, prod(shape))

    made = Tensor(array(raw, dtype, shape)).torch(device="cpu")

    assert made.dtype == getattr(torch, dtype.torch or "")
    assert tuple(made.shape) == shape
    assert made.is_contiguous()
    assert made.reshape(-1).view(torch.uint8).numpy().tobytes() == raw


def test_the_dtypes_that_torch_holds_are_those_of_its_own_list() -> None:
    held = {getattr(torch, d.torch or "") for d in HELD}
    theirs = {getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}

    small = [f"{sign}int{n}" for sign in ("", "u") for n in range(1, 8)]  # placeholders that no tensor is made of
    quantised = ["quint8", "qint8", "qint32", "quint4x2", "quint2x4"]
    assert theirs - held == {getattr(torch, name) for name in (*small, *quantised)}


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_what_torch_cannot_hold_is_refused_by_name(dtype: DType) -> None:
    with pytest.raises(TensorError, match=dtype.name) as caught:
        Tensor(array(bytes(6 * dtype.itemsize), dtype, (6,))).torch()

    assert caught.value.data["dtype"] == dtype.name
    assert dtype.kind != "quantised" or "--dequantize" in caught.value.hints[0]


def test_a_strided_big_endian_view_comes_out_in_order(tmp_path: Path) -> None:
    values = np.arange(24, dtype=">f4").reshape(4, 6)
    (tmp_path / "x").write_bytes(values.tobytes())
    with Disk() as disk:
        view = View.rows(disk.open(tmp_path / "x").range(0, 96), F32, (4, 6), big_endian=True).transpose((1, 0))

        assert torch.equal(torch.arange(24.0).reshape(4, 6).t(), Tensor(view).torch())


def test_a_drawn_tensor_is_the_callers_own(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "x.pt")
    with ckptmigrate.open(tmp_path / "x.pt") as checkpoint:
        drawn = checkpoint.model["w"].torch()
        drawn += 1

        assert checkpoint.model["w"].torch().tolist() == [0, 0, 0]
    assert drawn.tolist() == [1, 1, 1]


def test_drawing_takes_the_tensor_and_a_window_of_memory(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(64 * MiB)
    with Disk() as disk:
        tensor = Tensor(View.rows(disk.open(tmp_path / "x").range(0, 64 * MiB), F32, (16 * MiB,)))
        tensor.torch()  # whatever is imported late
        tracemalloc.start()
        tensor.torch()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert peak < 4 * MiB  # torch's own memory is not traced


def test_a_device_that_is_not_there_is_an_error_of_the_tree() -> None:
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(TensorError, match=device):
            Tensor(array(np.zeros(2, "f4"))).torch(device=device)


def test_without_torch_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(PluginError, match="torch is not installed") as caught:
        Tensor(array(np.zeros(2, "f4"))).torch()
    assert caught.value.hints == ["pip install 'ckptmigrate[torch]'"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("drawn_before", [True, False])
def test_a_tensor_drawn_after_its_checkpoint_was_left_says_so(
    tmp_path: Path, compression: int, drawn_before: bool
) -> None:
    torch.save({"w": torch.arange(6.0).reshape(2, 3).t()}, tmp_path / "plain.pt")
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(path, "w", compression) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with ckptmigrate.open(path) as checkpoint:
        tensors = [checkpoint.model["w"]]
        tensors += [tensors[0].with_promise(tensors[0].promise.reshape((6,)))]
        if drawn_before:
            assert [t.numpy().tolist() for t in tensors] == [[[0, 3], [1, 4], [2, 5]], [0, 3, 1, 4, 2, 5]]

    for tensor in tensors:
        for draw in (tensor.numpy, tensor.torch):
            with pytest.raises(CkptError, match="its checkpoint was left") as caught:
                draw()
            assert caught.value.path is not None
            assert "x.pt" in caught.value.path


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_booleans_of_other_bytes_are_carried_as_torch_itself_carries_them(tmp_path: Path, suffix: str) -> None:
    """torch.load, torch.save and safetensors keep such bytes, and every operation takes all but 0 for True: so do we."""
    odd = torch.tensor([0, 1, 2, 255] * 40_000, dtype=torch.uint8)
    torch.save({"mask": odd.view(torch.bool)}, tmp_path / "x.pt")
    original = torch.load(tmp_path / "x.pt", weights_only=True)["mask"]
    out = tmp_path / f"out.{suffix}"
    ckptmigrate.migrate(tmp_path / "x.pt", out)

    if suffix == "pt":
        loaded = torch.load(out, weights_only=True)["mask"]
    else:
        from safetensors.torch import load_file

        loaded = load_file(out)["mask"]
    assert torch.equal(odd, original.view(torch.uint8))
    assert torch.equal(odd, loaded.view(torch.uint8))
    assert torch.equal(odd != 0, loaded)
    assert torch.equal((odd != 0).float(), loaded.float())
    with ckptmigrate.open(out) as checkpoint:
        assert torch.equal(odd != 0, checkpoint.model["mask"].torch())
        assert np.array_equal((odd != 0).numpy(), checkpoint.model["mask"].numpy())
        assert BY_NAME["BOOL"] == checkpoint.model["mask"].dtype
