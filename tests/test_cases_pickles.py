"""Public failure reports, part C: what pickles hold, and what they must not do (CASES C01-C18, B07, E15, G17, H03-H10)."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ckptmigrate
from ckptmigrate import errors

if TYPE_CHECKING:
    from .conftest import Refuse


def save(path: Path, obj: Any, **options: Any) -> Path:
    torch.save(obj, path, **options)
    return path


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def rezip(path: Path, change: dict[str, bytes | None]) -> None:
    """Rewrite a torch zip, members by the end of their names: other bytes, or None to leave out."""
    with zipfile.ZipFile(path) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            other = next((other for end, other in change.items() if name.endswith(end)), data)
            if other is not None:
                archive.writestr(name, other)


def test_c01_a_numpy_scalar_in_extra_state_is_the_number_and_comes_back(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", {"w": torch.ones(2, 2), "_extra_state": {"lr": np.float64(0.1)}})
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    back = load(tmp_path / "out.pt")
    assert back["_extra_state"] == {"lr": 0.1}
    assert torch.equal(back["w"], torch.ones(2, 2))


@pytest.mark.parametrize("spelling", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_c03_arrays_of_either_numpy_are_the_same_tensor(spelling: bytes, tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", {"a": np.arange(3, dtype=np.float32)})
    with zipfile.ZipFile(source) as archive:
        data = archive.read("in/data.pkl")
    rezip(source, {"data.pkl": data.replace(b"numpy._core.multiarray", spelling)})
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert load(tmp_path / "out.pt")["a"].tolist() == [0.0, 1.0, 2.0]


def test_c03_a_protocol_5_array_is_the_same_tensor(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", {"a": np.arange(3, dtype=np.float32)}, pickle_protocol=5)
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert load(tmp_path / "out.pt")["a"].tolist() == [0.0, 1.0, 2.0]


def test_c05_a_plain_pickle_is_refused_by_that_name_and_never_called_corrupt(tmp_path: Path, refuse: Refuse) -> None:
    source = tmp_path / "in.pt"
    source.write_bytes(pickle.dumps({"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}, protocol=4))

    error = refuse(source, "plain pickle, not written by torch.save")
    assert "corrupt" not in str(error)


class Exploit:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({str(self.marker)!r}, 'w').close()",))


GETATTR = b"cbuiltins\ngetattr\n(cbuiltins\nint\nX\x08\x00\x00\x00__name__tR"
SPAWN = b"cmultiprocessing.util\nspawnv_passfds\n(X\x09\x00\x00\x00/bin/trueNNtR"


@pytest.mark.parametrize(
    ("payload", "name"), [(GETATTR, r"builtins\.getattr"), (SPAWN, r"multiprocessing\.util\.spawnv_passfds")]
)
def test_c09_a_foreign_call_is_refused_with_its_name_and_place(
    payload: bytes, name: str, tmp_path: Path, refuse: Refuse
) -> None:
    source = save(tmp_path / "in.pt", {"w": torch.ones(2, 2)})
    with zipfile.ZipFile(source) as archive:
        data = archive.read("in/data.pkl")
    # {"w": tensor} becomes {"w": tensor, "x": call}: one more pair before STOP.
    rezip(source, {"data.pkl": data.removesuffix(b".") + b"X\x01\x00\x00\x00x" + payload + b"s."})

    refuse(source, name, r"\bx\b", "--inert-calls")
    done = ckptmigrate.migrate(source, tmp_path / "out.pt", read=ckptmigrate.ReadOptions(inert_calls=True))
    assert list(load(tmp_path / "out.pt")) == ["w"]
    assert any(path == "x" for path, _ in done.left_out)


def test_c09_a_payload_is_never_run(tmp_path: Path, refuse: Refuse) -> None:
    marker = tmp_path / "marker"
    source = save(tmp_path / "in.pt", {"w": torch.ones(2, 2), "x": Exploit(marker)})

    refuse(source, r"builtins\.exec")
    ckptmigrate.migrate(source, tmp_path / "out.pt", read=ckptmigrate.ReadOptions(inert_calls=True))
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
@pytest.mark.parametrize("zipped", [True, False])
def test_c11_a_whole_module_of_a_lost_class_is_read_by_walking_its_state(zipped: bool, tmp_path: Path) -> None:
    module = types.ModuleType("gonepkg.net")
    cls = type("Net", (torch.nn.Sequential,), {"__module__": "gonepkg.net"})
    module.__file__ = "gone.py"  # a class without a file is "built-in" to inspect, which torch asks for the source
    module.Net = cls  # type: ignore[attr-defined] # made on the spot
    sys.modules["gonepkg"], sys.modules["gonepkg.net"] = types.ModuleType("gonepkg"), module
    net = cls(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    try:
        save(tmp_path / "in.pt", {"model": net, "epoch": 3}, _use_new_zipfile_serialization=zipped)
    finally:
        del sys.modules["gonepkg"], sys.modules["gonepkg.net"]
    done = ckptmigrate.migrate(tmp_path / "in.pt", tmp_path / "out.pt")

    assert "gonepkg" not in sys.modules
    back = load(tmp_path / "out.pt")
    assert back["epoch"] == 3
    assert list(back["model"]) == list(net.state_dict())
    for name, value in net.state_dict().items():
        assert torch.equal(back["model"][name], value)
    said = " ".join([*done.notes, *done.warnings])
    assert "gonepkg.net.Net" in said
    assert "must change" in said


def test_c13_a_lightning_file_needs_no_lightning(tmp_path: Path) -> None:
    parsing = types.ModuleType("pytorch_lightning.utilities.parsing")
    cls = type("AttributeDict", (dict,), {"__module__": parsing.__name__})
    parsing.AttributeDict = cls  # type: ignore[attr-defined] # made on the spot
    names = ["pytorch_lightning", "pytorch_lightning.utilities"]
    sys.modules.update({**{n: types.ModuleType(n) for n in names}, parsing.__name__: parsing})
    try:
        save(
            tmp_path / "in.ckpt",
            {
                "state_dict": {"net.w": torch.ones(2)},
                "hyper_parameters": cls(lr=0.5, layers=[1, 2]),
                "pytorch-lightning_version": "1.0.3",
                "epoch": 4,
            },
        )
    finally:
        for name in [*names, parsing.__name__]:
            del sys.modules[name]

    shown = ckptmigrate.inspect(tmp_path / "in.ckpt")
    assert shown["layout"] == "lightning"
    assert [t["name"] for t in shown["sections"]["model"]["tensors"]] == ["net.w"]
    assert shown["sections"]["progress"]["epoch"] == 4
    assert "1.0.3" in str(shown)
    ckptmigrate.migrate(tmp_path / "in.ckpt", tmp_path / "out.pt")
    assert load(tmp_path / "out.pt")["hyper_parameters"] == {"lr": 0.5, "layers": [1, 2]}


def test_c16_an_attribute_of_a_parameter_is_reported_and_its_values_convert(tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.tag = "x"
    done = ckptmigrate.migrate(save(tmp_path / "in.pt", {"p": p}), tmp_path / "out.pt")

    assert load(tmp_path / "out.pt")["p"].tolist() == [1.0, 1.0]
    assert "tag" in " ".join([*done.notes, *done.warnings, *(reason for _, reason in done.left_out)])


def quantised() -> Any:
    return torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 3, torch.quint8)


def test_c18_a_quantised_tensor_is_refused_by_name(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"q": quantised(), "w": torch.ones(2)})

    refuse(source, r"\bq\b", "quantised", "--dequantize", out="out.safetensors")


def test_c18_dequantize_gives_the_numbers(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", {"q": quantised(), "w": torch.ones(2)})
    ckptmigrate.migrate(source, tmp_path / "out.pt", read=ckptmigrate.ReadOptions(dequantize=True))

    assert load(tmp_path / "out.pt")["q"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_b07_the_one_state_dict_is_chosen_wherever_it_lies_and_a_wrong_key_is_refused(
    tmp_path: Path, refuse: Refuse
) -> None:
    source = save(tmp_path / "in.pt", {"my_model": {"fc.weight": torch.ones(2)}, "my_config": {"n_head": 2}})
    shown = ckptmigrate.inspect(source)

    assert [t["name"] for t in shown["sections"]["model"]["tensors"]] == ["fc.weight"]
    refuse(source, "my_model", "my_config", gather=ckptmigrate.GatherOptions(sections={"model": ("net",)}))


def training() -> dict[Any, Any]:
    return {
        "epoch": 3,
        "global_step": 9,
        "state_dict": {"w": torch.ones(2), "n": 5},
        "lr": [0.1, 0.2],
        0: torch.zeros(1),
    }


def test_e15_a_training_checkpoint_is_refused_for_one_safetensors_file_naming_the_sections(
    tmp_path: Path, refuse: Refuse
) -> None:
    source = save(tmp_path / "in.pt", training())

    refuse(source, "values", "--sections model", out="out.safetensors")


def test_e15_what_is_no_tensor_is_carried_to_the_folder_and_back(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", training())
    ckptmigrate.migrate(source, tmp_path / "folder", to="safetensors")
    ckptmigrate.migrate(tmp_path / "folder", tmp_path / "back.pt")
    back = load(tmp_path / "back.pt")

    assert back["model_state_dict"]["n"] == 5
    assert back["epoch"] == 3
    assert back["global_step"] == 9
    assert back["extra"]["lr"] == [0.1, 0.2]
    assert torch.equal(back["extra"][0], torch.zeros(1))


def test_e15_sections_model_takes_the_model_and_reports_the_rest(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", training())
    done = ckptmigrate.migrate(source, tmp_path / "out.safetensors", gather=ckptmigrate.GatherOptions(only=("model",)))

    assert {f.source for f in done.fates if f.what == "dropped"} >= {"epoch", "global_step", "lr/0", "lr/1", "0"}


SIX = {"w": torch.ones(2, 2), "b": torch.zeros(2)}


@pytest.mark.parametrize(
    "form",
    [SIX, {"model": SIX}, {"state_dict": SIX}, {"net": SIX}, {"weight": SIX}],
    ids=["bare", "model", "state_dict", "net", "weight"],
)
def test_g17_every_name_of_the_container_is_found_without_an_option(form: Any, tmp_path: Path) -> None:
    shown = ckptmigrate.inspect(save(tmp_path / "in.pt", form))

    assert [t["name"] for t in shown["sections"]["model"]["tensors"]] == ["w", "b"]


def test_g17_a_second_set_under_the_models_names_is_a_twin(tmp_path: Path) -> None:
    shown = ckptmigrate.inspect(save(tmp_path / "in.pt", {"model": SIX, "ema": {k: v + 1 for k, v in SIX.items()}}))

    assert [t["name"] for t in shown["sections"]["twins"]["ema"]["tensors"]] == ["w", "b"]


def test_g17_a_second_set_under_other_names_is_ambiguous_with_both_named(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"first": SIX, "second": {"other": torch.ones(3)}})
    refuse(source, "first", "second", "2 tensors", "1 tensor", "--section model=")

    chosen = ckptmigrate.inspect(source, gather=ckptmigrate.GatherOptions(sections={"model": ("second",)}))
    assert [t["name"] for t in chosen["sections"]["model"]["tensors"]] == ["other"]


def test_h03_moments_without_step_are_refused_naming_parameter_and_field(tmp_path: Path, refuse: Refuse) -> None:
    state = {0: {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}}
    source = save(
        tmp_path / "in.pt",
        {"model": {"w": torch.ones(2)}, "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}},
    )

    refuse(source, r"\b0\b", "step")


@pytest.mark.parametrize(("with_state", "said"), [(0, "0 of 2"), (1, "1 of 2")])
def test_h03_missing_state_is_legal_kept_and_noted(with_state: int, said: str, tmp_path: Path) -> None:
    state = {
        i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
        for i in range(with_state)
    }
    model = {"w": torch.ones(2), "b": torch.ones(2)}
    source = save(
        tmp_path / "in.pt",
        {"model": model, "optimizer": {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}},
    )
    done = ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert set(load(tmp_path / "out.pt")["optimizer"]["state"]) == set(state)
    assert said in " ".join(done.notes)


def by_name() -> dict[str, Any]:
    slots = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    return {
        "model": {"a.weight": torch.ones(2), "a.bias": torch.ones(2)},
        "optimizer": {
            "state": {"a.weight": slots, "a.bias": slots},
            "param_groups": [{"lr": 0.1, "params": ["a.weight", "a.bias"]}],
        },
    }


def test_h05_state_keyed_by_name_stays_so_where_it_was_and_is_numbered_in_the_standard_file(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", by_name())
    ckptmigrate.migrate(source, tmp_path / "keep.pt")
    ckptmigrate.migrate(source, tmp_path / "standard.pt", layout="standard")

    assert list(load(tmp_path / "keep.pt")["optimizer"]["state"]) == ["a.weight", "a.bias"]
    assert list(load(tmp_path / "standard.pt")["optimizer_state_dict"]["state"]) == [0, 1]
    named = ckptmigrate.inspect(tmp_path / "standard.pt")["sections"]["optimizers"][0]["params"]
    assert [p["name"] for p in named] == ["a.weight", "a.bias"]


def test_h05_a_name_that_the_model_lacks_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    saved = by_name()
    saved["model"] = {"a.weight": torch.ones(2), "other": torch.ones(2)}

    refuse(save(tmp_path / "in.pt", saved), r"a\.bias")


def test_h10_rng_state_is_never_cast_and_comes_back_bit_equal(tmp_path: Path) -> None:
    rng = torch.get_rng_state()
    saved = {"model": {"w": torch.ones(2)}, "rng_state": rng, "cuda_rng": [rng[:16].clone()]}
    source = save(tmp_path / "in.pt", saved)
    ckptmigrate.migrate(source, tmp_path / "folder", to="safetensors", dtype="f16")
    ckptmigrate.migrate(tmp_path / "folder", tmp_path / "back.pt")
    back = load(tmp_path / "back.pt")

    assert back["model_state_dict"]["w"].dtype == torch.float16
    assert torch.equal(back["rng_state"], rng)
    assert torch.equal(back["extra"]["cuda_rng"][0], rng[:16])


def test_h07_a_cuda_tag_converts_on_a_machine_without_one(tmp_path: Path) -> None:
    source = save(tmp_path / "in.pt", OrderedDict(w=torch.arange(3.0)))
    with zipfile.ZipFile(source) as archive:
        data = archive.read("in/data.pkl")
    rezip(source, {"data.pkl": data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:7")})
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    assert torch.load(tmp_path / "out.pt", weights_only=True)["w"].tolist() == [0.0, 1.0, 2.0]
    assert b"cuda" not in (tmp_path / "out.pt").read_bytes()


def test_h11_a_version_above_the_known_ones_is_refused_with_the_number(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"w": torch.ones(2)})
    rezip(source, {"/version": b"99\n"})

    refuse(source, "99")


def test_c07_a_byte_string_that_is_no_text_never_stops_the_conversion(tmp_path: Path) -> None:
    # A legacy stream as Python 2 wrote it: keys are SHORT_BINSTRING, the note a BINSTRING with the bytes C5 BC and FF.
    head = io.BytesIO()
    torch.save({"w": torch.arange(6.0).reshape(2, 3)}, head, _use_new_zipfile_serialization=False)
    data = head.getvalue()
    key, value = b"X\x01\x00\x00\x00w", b"U\x01w"
    at = data.index(key)
    end = data.index(b".\x80\x02]", at)  # the object's STOP, before the list of storage keys
    note = b"U\x04noteT\x03\x00\x00\x00\xc5\xbc\xffs"
    source = tmp_path / "in.pt"
    source.write_bytes(data[:at] + value + data[at + len(key) : end] + note + data[end:])
    ckptmigrate.migrate(source, tmp_path / "out.pt")

    back = load(tmp_path / "out.pt")
    assert back["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert back["note"] == b"\xc5\xbc\xff"


def test_an_unknown_object_that_is_needed_as_a_tensor_is_an_error(tmp_path: Path, refuse: Refuse) -> None:
    source = save(tmp_path / "in.pt", {"epoch": 3})

    error = refuse(source, "no tensors")
    assert isinstance(error, errors.CheckpointError)
