"""What torch.save writes as a zip is read as torch reads it, tensor by tensor and value by value."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ckptmigrate import store
from ckptmigrate.errors import CkptError, TensorError
from ckptmigrate.files import Disk
from ckptmigrate.format import Parts, ReadOptions
from ckptmigrate.formats import torch_legacy, torch_zip
from ckptmigrate.tensor import View
from ckptmigrate.values import Known, Ordered

from .torch_reading import faults, reader, rezipped, saved, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MUSEUM = Path(__file__).parent / "fixtures" / "torch"
RELEASES = ("1.4.0-py38", "1.6.0-py38", "1.10.2-py38", "2.13.0-py311", "2.13.0-containers")


@pytest.fixture
def disk() -> Iterator[Disk]:
    with Disk() as opened:
        yield opened


@pytest.fixture
def read(disk: Disk, tmp_path: Path) -> Callable[..., Parts]:
    return reader(disk, tmp_path, torch_zip)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def exhibits(releases: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for release in releases:
        files = json.loads((MUSEUM / release / "expected.json").read_text())["files"]
        found += [(release, name) for name in files if (MUSEUM / release / name).is_file()]
    return [one for one in found if (MUSEUM / one[0] / one[1]).read_bytes()[:4] == b"PK\3\4"]


@pytest.mark.parametrize(("release", "name"), exhibits(RELEASES))
def test_a_file_of_the_museum_has_the_names_dtypes_shapes_and_elements_that_its_torch_wrote(
    release: str, name: str, disk: Disk
) -> None:
    source = disk.open(MUSEUM / release / name)
    if torch_zip.sniff(source) is None:
        assert name in ("script.pt", "traced.pt")
        return
    parts = torch_zip.read(source, ReadOptions())
    found = tensors(parts.tree)
    expected = json.loads((MUSEUM / release / "expected.json").read_text())["files"][name].get("tensors") or {}
    refused = {path.partition("#")[0] for path in expected if path.partition("#")[0] in faults(parts.tree)}

    assert refused <= {"q", "qc", "s", "csr", "meta"}
    for path, told in expected.items():
        if path.partition("#")[0] in refused:
            continue
        tensor = found[path]
        assert (tensor.dtype.torch, list(tensor.shape)) == (told["dtype"], told["shape"])
        assert hashlib.sha256(tensor.numpy().tobytes()).hexdigest() == told["sha256"]


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128, torch.complex32, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_every_dtype_has_the_elements_that_torch_saved(
    dtype: torch.dtype, read: Callable[..., Parts]
) -> None:
    pattern = (torch.arange(6 * 16) % 2 if dtype == torch.bool else torch.arange(6 * 16)).to(torch.uint8)
    tensor = pattern[: 6 * dtype.itemsize].view(dtype).reshape(2, 3)
    found = read(saved({"t": tensor})).tree["t"]

    assert f"torch.{found.dtype.torch}" == str(dtype)
    assert found.shape == (2, 3)
    assert found.numpy().tobytes() == raw(tensor.view(torch.uint8))


def looks() -> dict[str, torch.Tensor]:
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    return {
        "base": base, "same": base, "transposed": base.transpose(1, 3), "slice": base[1:, :, 1:3, ::2], "row": base[0, 1],
        "channels_last": base.clone().to(memory_format=torch.channels_last), "expanded": base[0, 0, 0, :1].expand(7, 3),
        "overlapping": base.view(-1).as_strided((4, 6), (2, 3), 5), "scalar": base[1, 2, 3, 4], "empty": base[:0],
        "empty_inside": base[:, :, :, 5:], "t": torch.arange(6).reshape(2, 3).t(), "one": torch.ones(1, 1, 1).as_strided((1, 1), (9, 9)),
    }  # fmt: skip


def test_every_look_into_a_storage_has_torchs_elements(read: Callable[..., Parts]) -> None:
    for name, tensor in read(saved(looks())).tree.items():
        assert (name, tensor.shape) == (name, tuple(looks()[name].shape))
        assert np.array_equal(tensor.numpy(), looks()[name].numpy()), name


def test_tied_tensors_are_equal_promises_and_other_looks_are_not(read: Callable[..., Parts]) -> None:
    tree = read(saved(looks())).tree

    assert tree["base"].promise == tree["same"].promise
    assert tree["base"].promise != tree["row"].promise


def test_a_look_into_a_deflated_storage_is_tied_too(read: Callable[..., Parts]) -> None:
    data = rezipped(saved({"a": torch.arange(900.0), "w": torch.zeros(900)}), {}, zipfile.ZIP_DEFLATED)
    base = torch.arange(900.0)
    tree = read(rezipped(saved({"a": base, "b": base, "c": base[7:20]}), {}, zipfile.ZIP_DEFLATED)).tree

    assert tree["a"].promise == tree["b"].promise
    assert tree["c"].numpy().tolist() == list(range(7, 20))
    assert read(data).tree["a"].numpy().tolist() == list(range(900))


def test_a_storage_range_carries_the_crc_of_its_member(read: Callable[..., Parts]) -> None:
    data = saved({"w": torch.arange(6.0)})
    promise = read(data).tree["w"].promise

    assert isinstance(promise, View)
    assert promise.range.member is not None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert promise.range.member.crc == archive.getinfo("archive/data/0").CRC


def test_plain_values_come_back_as_they_were(read: Callable[..., Parts]) -> None:
    values = {
        "none": None, "true": True, "int": -7, "big": 1 << 200, "float": 0.1, "inf": float("-inf"), "text": "žluťoučký \ud800",
        "bytes": bytes(range(256)), "list": [1, [2, (3,)]], "tuple": (1, "a"), 5: "int key", (1, 2): "tuple key",
    }  # fmt: skip

    assert read(saved(values)).tree == values


def test_the_names_of_torch_stay_names(read: Callable[..., Parts]) -> None:
    tree = read(
        saved([torch.float16, torch.Size((2, 3)), torch.device("cuda", 1), torch.per_tensor_affine, torch.sparse_coo])
    ).tree

    assert [(node.path, node.args) for node in tree] == [
        ("torch.float16", None), ("torch.Size", ((2, 3),)), ("torch.device", ("cuda", 1)), ("torch.per_tensor_affine", None),
        ("torch.serialization._get_layout", ("torch.sparse_coo",)),
    ]  # fmt: skip
    assert all(isinstance(node, Known) for node in tree)


def test_a_state_dict_keeps_its_order_and_its_metadata(read: Callable[..., Parts]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    tree = read(saved(model.state_dict())).tree

    assert isinstance(tree, Ordered)
    assert list(tree) == list(model.state_dict())
    assert {k: dict(v) for k, v in tree.attributes["_metadata"].items()} == model.state_dict()._metadata


def test_parameters_and_buffers_have_their_roles_and_attributes_are_reported(read: Callable[..., Parts]) -> None:
    tagged = torch.nn.Parameter(torch.ones(2))
    tagged.tag = "x"
    plain = torch.ones(3)
    plain.note = 1
    parts = read(
        saved({"p": tagged, "q": torch.nn.Parameter(torch.ones(1)), "b": torch.nn.Buffer(torch.ones(2)), "t": plain})
    )

    assert {name: tensor.role for name, tensor in parts.tree.items()} == {
        "p": "parameter",
        "q": "parameter",
        "b": "buffer",
        "t": None,
    }
    assert "p: attribute tag left out" in parts.warnings
    assert "t: attribute note left out" in parts.warnings


def test_lazy_conjugates_and_negations_are_resolved(read: Callable[..., Parts]) -> None:
    base = torch.tensor([1 + 2j, -3 - 0j])
    tree = {**read(saved({"conj": base.conj()})).tree, **read(saved({"neg": base.conj().imag})).tree}

    assert tree["conj"].numpy().tolist() == base.conj().resolve_conj().tolist()
    assert tree["neg"].numpy().tolist() == base.conj().imag.resolve_neg().tolist()


def test_a_bare_storage_is_a_tensor_of_one_dimension(read: Callable[..., Parts]) -> None:
    tree = read(saved([torch.arange(4.0).storage(), torch.arange(2).untyped_storage()])).tree

    assert [(node.dtype.name, node.shape) for node in tree] == [("F32", (4,)), ("U8", (16,))]
    assert tree[0].numpy().tolist() == [0, 1, 2, 3]


def quantised() -> dict[str, torch.Tensor]:
    values = torch.linspace(-2, 2, 24).reshape(4, 6)
    scales, points = torch.tensor([0.1, 0.2, 0.05, 0.5]), torch.tensor([0, 3, -4, 9])
    return {
        "q": torch.quantize_per_tensor(values, 0.5, 3, torch.quint8),
        "c": torch.quantize_per_channel(values, scales, points, 0, torch.qint8),
        "i": torch.quantize_per_tensor(values, 0.01, 0, torch.qint32),
    }


def test_quantised_tensors_are_faults_that_name_the_option(read: Callable[..., Parts]) -> None:
    found = faults(read(saved(quantised())).tree)

    assert set(found) == {"q", "c", "i"}
    assert all("quantised" in text and "--dequantize" in text for text in found.values())


def test_dequantised_tensors_have_torchs_numbers(read: Callable[..., Parts]) -> None:
    tree = read(saved(quantised()), dequantize=True).tree

    for name, tensor in quantised().items():
        assert np.array_equal(tree[name].numpy(), tensor.dequantize().numpy()), name


@pytest.mark.parametrize("release", ["1.4.0-py38", "1.6.0-py38", "1.10.2-py38", "2.13.0-py311"])
def test_quantised_tensors_of_every_release_have_torchs_numbers(release: str, disk: Disk) -> None:
    source = disk.open(MUSEUM / release / "quant.pt")
    module = torch_zip if torch_zip.sniff(source) else torch_legacy
    tree = module.read(source, ReadOptions(dequantize=True)).tree

    for name, tensor in torch.load(MUSEUM / release / "quant.pt", weights_only=False).items():
        assert np.array_equal(tree[name].numpy(), tensor.dequantize().numpy()), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("release", ["1.4.0-py38", "1.6.0-py38", "1.10.2-py38", "2.13.0-py311"])
def test_sparse_tensors_of_every_release_have_torchs_elements(release: str, disk: Disk) -> None:
    source = disk.open(MUSEUM / release / "sparse.pt")
    module = torch_zip if torch_zip.sniff(source) else torch_legacy
    tree = module.read(source, ReadOptions(densify=True)).tree

    for name, tensor in torch.load(MUSEUM / release / "sparse.pt", weights_only=False).items():
        assert np.array_equal(tree[name].numpy(), tensor.to_dense().numpy()), name


def sparse() -> dict[str, torch.Tensor]:
    dense = torch.tensor([[0, 1.5, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, -4, 5]])
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 1, 0], [2, 3, 2]]), torch.tensor([1.0, 2.0, 4.0]), (2, 5))
    hybrid = torch.sparse_coo_tensor(torch.tensor([[1, 0]]), torch.arange(6.0).reshape(2, 3), (4, 3))
    return {
        "coo": dense.to_sparse(), "twice": twice, "hybrid": hybrid, "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((2, 2)), "bsc": dense.to_sparse_bsc((2, 1)), "none": torch.zeros(3, 2).to_sparse(),
        "bool": (dense != 0).to_sparse(), "int": dense.long().to_sparse(),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_faults_that_name_the_option(read: Callable[..., Parts]) -> None:
    found = faults(read(saved(sparse())).tree)

    assert set(found) == set(sparse())
    assert all("sparse" in text and "--densify" in text for text in found.values())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_densified_tensors_have_torchs_elements(read: Callable[..., Parts]) -> None:
    tree = read(saved(sparse()), densify=True).tree

    for name, tensor in sparse().items():
        assert np.array_equal(tree[name].numpy(), tensor.to_dense().numpy()), name


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_tensors_without_data_are_faults_that_say_so(read: Callable[..., Parts]) -> None:
    found = faults(
        read(
            saved({
                "meta": torch.ones(2, 3, device="meta"),
                "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                "lazy": torch.nn.UninitializedParameter(),
            })
        ).tree
    )  # fmt: skip

    assert "meta tensor, which has no data" in found["meta"]
    assert "nested tensor" in found["nested"]
    assert "uninitialised" in found["lazy"]


def test_a_jagged_tensor_is_a_nested_one(read: Callable[..., Parts]) -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], layout=torch.jagged)

    assert "a nested tensor" in faults(read(saved({"n": jagged})).tree)["n"]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_s_part_of_a_distributed_tensor_is_refused_with_what_to_do(rank: int, disk: Disk) -> None:
    path = MUSEUM.parent.parent.parent.parent / "shared/fixtures/torch/2.13.0-distributed" / f"dtensor_rank{rank}.pt"
    if not path.exists():
        pytest.skip("the fixtures of several ranks are not beside this checkout")
    with pytest.raises(
        TensorError, match=r"0\.weight: a distributed tensor: this file holds one rank's part"
    ) as refusal:
        store.read(disk.open(path), ReadOptions())

    assert "full_tensor()" in refusal.value.hints[0]


def test_a_tensor_class_without_data_is_a_fault(read: Callable[..., Parts]) -> None:
    bare = b"\x80\2}X\1\0\0\0wctorch\nTensor\n)Rs."

    assert faults(read(rezipped(saved({}), {"data.pkl": bare})).tree) == {"w": "a tensor without data"}


def test_rebuilding_calls_within_each_other_are_not_followed(read: Callable[..., Parts]) -> None:
    again = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    evil = b"\x80\2" + (again + b"(" + again + b"ctorch\nTensor\n") * 2000 + b"N" + b"NtR" * 2000 + b"."

    with pytest.raises(CkptError):
        read(rezipped(saved({}), {"data.pkl": evil}))
