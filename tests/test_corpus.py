"""Every public file of the corpus converts with the values that torch reads, or is refused as its manifest says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

import ckptmigrate
from ckptmigrate import errors
from ckptmigrate.format import WriteOptions

from .conftest import CORPUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Refuse

REFUSED = {
    "tracel-ai+burn/broken.pt": "not a known checkpoint format",
    "mmaitre314+picklescan/picklescan-bad_pytorch.pt": "PNG",
    "mmaitre314+picklescan/picklescan-malicious0.pkl": "plain pickle",
    "tracel-ai+burn/tar_weight_bias.tar": "tar",
}
OF_BURN = {
    "tracel-ai+burn/mnist-0.19.0-f32.model.bin",  # test_burn_bin.py: it takes a schema
    "tracel-ai+burn/mnist-2026-06.model.bpk",
}


def files() -> list[str]:
    if not CORPUS.exists():
        return []
    return [f["file"] for f in json.loads((CORPUS / "MANIFEST.json").read_text())["files"]]


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors(value)


STEPS = {"allenai+allennlp/allennlp-2021-training_state.th": [1.0] * 9}


@pytest.mark.parametrize("name", [f for f in files() if f not in REFUSED and f not in OF_BURN])
def test_a_public_file_converts_with_the_values_torch_reads(
    name: str, corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    source = corpus(name)
    if name.endswith(".safetensors"):
        expected = list(load_file(source).values())
    else:
        expected = list(tensors(torch.load(source, weights_only=True, map_location="cpu")))
    ckptmigrate.migrate(source, tmp_path / "out.pt")
    converted = list(tensors(torch.load(tmp_path / "out.pt", weights_only=True)))

    left = list(converted)
    for tensor in expected:
        position = next(
            i
            for i, t in enumerate(left)
            if t.dtype == tensor.dtype and t.shape == tensor.shape and torch.equal(t, tensor)
        )
        del left[position]
    assert [tensor.item() for tensor in left] == STEPS.get(name, [])  # integers in the file, tensors since torch 2.4


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_a_public_file_is_refused_as_told(name: str, said: str, corpus: Callable[[str], Path], refuse: Refuse) -> None:
    refuse(corpus(name), said)


def test_a_lightning_like_key_is_found_in_candles_file(corpus: Callable[[str], Path]) -> None:
    shown = ckptmigrate.inspect(corpus("huggingface+candle/candle-test_with_key.pt"))

    assert len(shown["sections"]["model"]["tensors"]) == 1


def test_weights_with_config_keeps_the_config_among_the_values(corpus: Callable[[str], Path]) -> None:
    shown = ckptmigrate.inspect(corpus("tracel-ai+burn/weights_with_config.pt"))

    names = [(t["name"], t["shape"]) for t in shown["sections"]["model"]["tensors"]]
    assert names == [("fc1.weight", [3, 2]), ("fc1.bias", [3]), ("fc2.weight", [4, 3])]
    assert "my_config" in json.dumps([shown["sections"]["values"], shown["left_out"]])


def test_allennlps_optimizer_file_is_an_optimizer_of_nine_parameters(corpus: Callable[[str], Path]) -> None:
    shown = ckptmigrate.inspect(corpus("allenai+allennlp/allennlp-2021-training_state.th"))

    assert [len(o["params"]) for o in shown["sections"]["optimizers"]] == [9]
    assert {s["name"] for p in shown["sections"]["optimizers"][0]["params"] for s in p["slots"]} == {
        "step",
        "square_avg",
        "acc_delta",
    }


def test_hostile_pickles_meet_a_reader_that_runs_nothing(corpus: Callable[[str], Path]) -> None:
    with pytest.raises(errors.CkptError):
        ckptmigrate.inspect(corpus("mmaitre314+picklescan/picklescan-malicious0.pkl"))


def test_the_burnpack_of_burn_s_own_repository_comes_back_as_it_is(
    corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """CASES A09: 18 tensors, in the padded form; the writer always emits that."""
    source = corpus("tracel-ai+burn/mnist-2026-06.model.bpk")
    with ckptmigrate.open(source) as checkpoint:
        shapes = {name: (str(tensor.dtype), list(tensor.shape)) for name, tensor in checkpoint.model.items()}
    ckptmigrate.migrate(source, tmp_path / "out.bpk", write=WriteOptions(bare=True))
    ckptmigrate.migrate(source, tmp_path / "out.safetensors")

    assert len(shapes) == 18
    assert shapes["fc1.weight"] == ("F32", [1600, 128])
    assert shapes["conv1.norm.running_var"] == ("F32", [64])
    assert shapes["fc3.bias"] == ("F32", [10])
    assert (tmp_path / "out.bpk").read_bytes() == source.read_bytes()
    assert ckptmigrate.verify(source, tmp_path / "out.safetensors") == []
    assert ckptmigrate.doctor(source) == []
