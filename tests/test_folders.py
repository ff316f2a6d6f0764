"""Folders of files, each of which is one section, in a family, formats and a layout that somebody else delivers.

The plugin of these tests lies under plugins/, as an installed distribution would: this code knows nothing of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptmigrate
from ckptmigrate import registry, store, values
from ckptmigrate.checkpoint import Checkpoint, Optimizer, Param, Progress
from ckptmigrate.errors import AmbiguousError, CheckpointError, OptimizerError, SectionError, UsageError
from ckptmigrate.format import GatherOptions, Parts, WriteOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.testing import assert_same_checkpoint, written
from ckptmigrate.values import Scalar

from .acme import full, installed, laid, opened, scattered, slots, tensor, trained

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.usefixtures("installed")


def older(folder: Path) -> None:
    """Turn every file of a folder into what Acme wrote yesterday."""
    for path in (folder / "checkpoint").iterdir():
        path.with_suffix(".old.gz").write_bytes(b"ACME1\0" + path.read_bytes()[6:])
        path.unlink()


def state(optimizer: Optimizer) -> dict[str, Any]:
    return {
        str(p.name): {name: s.value.numpy().tolist() if isinstance(s.value, Tensor) else s.value for name, s in (p.slots or {}).items()}
        for p in optimizer.params
    }  # fmt: skip


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("which", [".", "checkpoint"])
@pytest.mark.parametrize("yesterday", [False, True])
def test_the_files_of_an_epoch_are_one_checkpoint(tmp_path: Path, which: str, yesterday: bool) -> None:
    laid(trained(), tmp_path, bare=True)
    if yesterday:
        older(tmp_path)
    checkpoint = opened(tmp_path / which)

    assert (checkpoint.family, checkpoint.origin.layout) == ("acme", "acme_epoch")
    assert checkpoint.origin.format == ("acme_old" if yesterday else "acme_record")
    assert store.is_current(checkpoint) is not yesterday
    assert {n: t.id for n, t in checkpoint.model.items()} == {"fc.weight": 71, "fc.bias": 72, "mean": None}
    assert state(checkpoint.optimizers[0]) == state(trained().optimizers[0])
    assert {(p.by, p.key) for p in checkpoint.optimizers[0].params} == {("file", "72"), ("file", "71")}
    assert checkpoint.schedulers == [{"step": 7}]
    assert checkpoint.progress == Progress(3, "finished")


def test_every_tensor_and_number_of_every_file_has_its_line(tmp_path: Path) -> None:
    laid(trained(), tmp_path, bare=True)
    rows = {row.source: row.targets for row in opened(tmp_path).ledger.rows()}

    assert rows == {
        "checkpoint/model-3.acme/fc.weight": ("model/fc.weight",),
        "checkpoint/model-3.acme/fc.bias": ("model/fc.bias",),
        "checkpoint/model-3.acme/mean": ("model/mean",),
        "checkpoint/optim-3.acme/72.moment": ("optimizers/0/0/moment",),
        "checkpoint/optim-3.acme/72.time": ("optimizers/0/0/time",),
        "checkpoint/optim-3.acme/71.moment": ("optimizers/0/1/moment",),
        "checkpoint/optim-3.acme/71.time": ("optimizers/0/1/time",),
        "checkpoint/scheduler-3.acme/scheduler.step": ("schedulers/0",),
    }


def test_of_several_epochs_the_caller_takes_one(tmp_path: Path) -> None:
    for epoch in (1, 2, 10):
        checkpoint = trained()
        checkpoint.progress, checkpoint.schedulers = Progress(epoch, "finished"), [{"step": epoch}]
        laid(checkpoint, tmp_path, bare=True)
    with pytest.raises(AmbiguousError, match="holds epochs 1, 2, 10") as caught:
        opened(tmp_path)
    assert caught.value.hints == ["--epoch 10 takes the last one"]
    with pytest.raises(CheckpointError, match="has no epoch 4; it has: 1, 2, 10"):
        opened(tmp_path, epoch=4)
    for epoch in (1, 2, 10):
        assert opened(tmp_path, epoch=epoch).schedulers == [{"step": epoch}]
        assert opened(tmp_path, epoch=epoch).progress.epoch == epoch


def test_of_several_files_of_one_section_the_one_in_a_current_format_counts(tmp_path: Path) -> None:
    laid(trained(), tmp_path, bare=True)
    model = tmp_path / "checkpoint" / "model-3.acme"
    (tmp_path / "checkpoint" / "model-3.old").write_bytes(b"ACME1\0" + model.read_bytes()[6:])
    (tmp_path / "checkpoint" / "notes.txt").write_text("by hand")
    checkpoint = opened(tmp_path)

    assert checkpoint.origin.places["model"].file == "checkpoint/model-3.acme"
    assert any("checkpoint/model-3.old" in note and "notes.txt" in note for note in checkpoint.ledger.notes)


def test_an_id_that_is_text_is_turned_by_one_function_for_model_and_optimizer() -> None:
    model = Parts("acme", tensors={"w": tensor(2, id="five!"), "v": tensor(2, start=4, id="longer")})
    optim = Parts("acme", tensors={"longer.moment": tensor(2, start=8), "five!.moment": tensor(2, start=6)})
    files = {"m": "model", "o": "optimizers.0"}
    layout = registry.layout("acme_epoch")
    checkpoint = store.gather({"m": model, "o": optim}, GatherOptions(), container="x", layout=layout, files=files)

    assert {name: t.id for name, t in checkpoint.model.items()} == {"w": 5, "v": 6}
    assert [p.name for p in checkpoint.optimizers[0].params] == ["v", "w"]


def test_a_parameter_that_was_written_twice_has_one_id_and_state_of_one_of_two_shapes_is_refused() -> None:
    layout, files = registry.layout("acme_epoch"), {"m": "model", "o": "optimizers.0"}
    optim = Parts("acme", tensors={"abc.moment": tensor(2, start=8)})
    model = Parts("acme", tensors={"w": tensor(2, id="abc"), "v": tensor(2, start=4, id="abc")})
    found = store.gather({"m": model, "o": optim}, GatherOptions(), container="x", layout=layout, files=files)

    assert [p.name for p in found.optimizers[0].params] == ["w"]
    model = Parts("acme", tensors={"w": tensor(2, id="abc"), "v": tensor(3, start=4, id="xyz")})
    with pytest.raises(CheckpointError, match=r"w and v have one id, 3, and are F32 \[2\] and F32 \[3\]") as caught:
        store.gather({"m": model, "o": optim}, GatherOptions(), container="x", layout=layout, files=files)
    assert caught.value.data["candidates"] == ["w", "v"]


def test_an_id_of_two_shapes_that_no_state_is_of_is_kept_and_said() -> None:
    layout, files = registry.layout("acme_epoch"), {"m": "model", "o": "optimizers.0"}
    optim = Parts("acme", tensors={"other.moment": tensor(4, start=8)})
    tensors = {"w": tensor(2, id="abc"), "v": tensor(3, start=4, id="xyz"), "u": tensor(4, id="other")}
    model = Parts("acme", tensors=dict(tensors))
    found = store.gather({"m": model, "o": optim}, GatherOptions(), container="x", layout=layout, files=files)

    assert [found.model[name].id for name in tensors] == [3, 3, 5]
    assert [p.name for p in found.optimizers[0].params] == ["u"]
    assert [text.partition(":")[0] for text in found.ledger.warnings if "id" in text] == ["w and v have one id, 3"]


def test_state_of_an_id_that_the_model_has_not_is_left_out_and_said() -> None:
    parts = {name: p for name, (_, p) in scattered(trained(), bare=True).items()}
    model = next(name for name in parts if "model" in name)
    parts[model] = Parts("acme", tensors={"fc.weight": tensor(2, 3, id="71")})
    files = {name: "model" if "model" in name else "optimizers.0" for name in parts if "scheduler" not in name}
    parts = {name: parts[name] for name in files}
    layout = registry.layout("acme_epoch")
    found = store.gather(parts, GatherOptions(), container="x", layout=layout, files=files)

    assert [p.name for p in found.optimizers[0].params] == ["fc.weight"]
    assert any("1 of 2 parameters are none of the model's" in warning for warning in found.ledger.warnings)
    left = {row.source.rpartition("/")[2] for row in found.ledger.rows() if row.what == "left out"}
    assert left == {"72.moment", "72.time"}
    parts[model] = Parts("acme", tensors={"fc.weight": tensor(2, 3, id="5")})
    with pytest.raises(OptimizerError, match="none of the optimizer's 2 ids is one of the model's: 72, 71"):
        store.gather(parts, GatherOptions(), container="x", layout=layout, files=files)


def test_a_file_alone_is_the_section_that_its_family_says(tmp_path: Path) -> None:
    laid(trained(), tmp_path, bare=True)
    found = {name: opened(tmp_path / "checkpoint" / f"{name}-3.acme") for name in ("model", "optim", "scheduler")}

    assert list(found["model"].model) == ["fc.weight", "fc.bias", "mean"]
    assert [p.name for p in found["optim"].optimizers[0].params] == [None, None]
    assert found["scheduler"].schedulers == [{"step": 7}]


def test_a_file_alone_goes_back_into_a_file_alone(tmp_path: Path) -> None:
    laid(trained(), tmp_path, bare=True)
    checkpoint = opened(tmp_path / "checkpoint" / "scheduler-3.acme")
    form = registry.format("acme_record")

    assert store.fits_one_file(checkpoint, form, None) == []
    ((_, parts),) = store.scatter(checkpoint, form, None, WriteOptions(), "s.acme").values()
    assert parts.tensors == {"scheduler.step": Scalar("uint", 7)}


def test_a_file_that_its_family_knows_no_section_of_is_refused() -> None:
    with pytest.raises(CheckpointError, match="neither a model nor an optimizer nor a scheduler of family acme"):
        store.gather({"": Parts("acme", tensors={})}, GatherOptions(), container="x")


def test_files_of_two_families_are_no_checkpoint() -> None:
    parts = {"m": Parts("acme", tensors={"w": tensor(1)}), "o": Parts("torch", tensors={"v": tensor(1)})}
    with pytest.raises(CheckpointError, match="m is of family acme, o of torch"):
        store.gather(parts, GatherOptions(), container="x", layout=registry.layout("acme_epoch"), files={})


# ---------------------------------------------------------------- writing


def test_bare_files_are_just_what_the_framework_writes() -> None:
    files = scattered(trained(), bare=True)

    assert sorted(files) == ["checkpoint/model-3.acme", "checkpoint/optim-3.acme", "checkpoint/scheduler-3.acme"]
    assert [parts.notes for _, parts in files.values()] == [{}, {}, {}]


def test_the_file_without_which_nobody_takes_the_set_for_whole_is_the_model() -> None:
    assert store.lay_out(scattered(full()), WriteOptions()).last == "checkpoint/model-4.acme"


@pytest.mark.parametrize(("counts", "name"), [("finished", "3"), ("last", "4"), ("next", "3"), (None, "3")])
def test_the_epoch_in_a_name_counts_as_its_framework_does(counts: Any, name: str) -> None:
    checkpoint = trained()
    checkpoint.progress.counts = counts

    assert f"checkpoint/model-{name}.acme" in scattered(checkpoint)


def test_every_field_comes_back_from_files_that_a_family_packs(tmp_path: Path) -> None:
    again = opened(laid(full(), tmp_path))

    assert_same_checkpoint(full(), again)
    assert again.ledger.unexplained() == []
    assert scattered(again).keys() == scattered(full()).keys()
    assert written(store.lay_out(scattered(again), WriteOptions())) == written(
        store.lay_out(scattered(full()), WriteOptions())
    )


def test_a_set_that_lost_files_is_read_and_what_is_lost_is_said(tmp_path: Path) -> None:
    laid(full(), tmp_path)
    for name in ("state-4", "ema-4", "optim-4-1"):
        (tmp_path / "checkpoint" / f"{name}.acme").unlink()
    checkpoint = opened(tmp_path)
    (lost,) = [w for w in checkpoint.ledger.warnings if "whose files are not there" in w]

    for section in ("values.rng", "progress.best", "twins.ema", "optimizers.1"):
        assert section in lost
    assert checkpoint.values == {"config": {"x": (1, None)}, "model": {"fc._extra": 1}}
    alone = opened(tmp_path / "checkpoint" / "model-4.acme")
    assert list(alone.model) == list(full().model)
    assert (alone.progress.epoch, alone.progress.step) == (3, 900)


def test_a_file_that_only_looks_like_one_of_ours_is_no_part_of_the_checkpoint(tmp_path: Path) -> None:
    laid(trained(), tmp_path)
    base = tmp_path / "checkpoint"
    for name in ("other-3", "state-3"):
        (base / f"{name}.acme").write_bytes((base / "model-3.acme").read_bytes())
    (base / "state-3.acme").write_bytes((base / "scheduler-3.acme").read_bytes())
    checkpoint = opened(tmp_path)

    assert checkpoint.twins == {}
    assert any("other-3.acme" in note for note in checkpoint.ledger.notes)


def test_without_our_record_what_has_no_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"layout acme_epoch has no file for twins\.ema, values\.rng, values\.config"):
        scattered(full(), bare=True)


def test_the_number_in_the_names_tells_more_than_the_record_inside(tmp_path: Path) -> None:
    laid(trained(), tmp_path)
    for path in (tmp_path / "checkpoint").iterdir():
        path.rename(path.with_name(path.name.replace("-3", "-8")))
    checkpoint = opened(tmp_path)

    assert checkpoint.progress == Progress(8, "finished")
    assert any("named after epoch 8, and the record in them says 3" in w for w in checkpoint.ledger.warnings)


def test_the_whole_road_leads_from_yesterday_s_files_to_today_s(tmp_path: Path) -> None:
    source = laid(trained(), tmp_path / "run", bare=True)
    older(source)
    report = ckptmigrate.migrate(source, tmp_path / "out")
    again = opened(tmp_path / "out")

    assert report.written
    assert report.verified
    assert sorted(report.files) == ["checkpoint/model-3.acme", "checkpoint/optim-3.acme", "checkpoint/scheduler-3.acme"]
    assert_same_checkpoint(opened(source), again)


NAMES = st.lists(st.sampled_from(["a.w", "a.b", "b.w", "c"]), unique=True, min_size=1)


@settings(max_examples=60)
@given(data=st.data())
def test_generated_optimizers_come_back_in_their_own_order(data: st.DataObject) -> None:
    model = {name: tensor(2, start=i, id=100 + i) for i, name in enumerate(data.draw(NAMES))}
    order = data.draw(st.permutations(list(model)))
    params = [
        Param(n, data.draw(st.sampled_from(["file", "like"])), str(model[n].id), 0, slots(2, start=i) if data.draw(st.booleans()) else None)
        for i, n in enumerate(order)
    ]  # fmt: skip
    checkpoint = Checkpoint("acme", model=model, optimizers=[Optimizer("acme", params, [{"lr": 1}])])
    files = scattered(checkpoint)
    sections = {name: "model" if "model" in name else "optimizers.0" for name in files}
    parts = {name: p for name, (_, p) in files.items()}
    again = store.gather(parts, GatherOptions(), container="x", layout=registry.layout("acme_epoch"), files=sections)

    assert [(p.name, p.by, p.group) for p in again.optimizers[0].params] == [(p.name, p.by, p.group) for p in params]
    for ours, theirs in zip(params, again.optimizers[0].params, strict=True):
        assert (ours.slots is None) == (theirs.slots is None)
        assert (
            values.difference(
                {n: s.value for n, s in (ours.slots or {}).items()},
                {n: s.value for n, s in (theirs.slots or {}).items()},
            )
            is None
        )
    items = {f"optimizers/0/{i}/{slot}" for i, p in enumerate(params) for slot in p.slots or {}}
    assert items <= set(again.ledger.came_from())


# ---------------------------------------------------------------- further files


def test_a_section_in_a_file_of_its_own_is_joined(tmp_path: Path) -> None:
    laid(trained(), tmp_path, bare=True)
    base = tmp_path / "checkpoint"
    parts = {"optimizers": str(base / "optim-3.acme"), "scheduler": str(base / "scheduler-3.acme")}
    checkpoint = opened(base / "model-3.acme", parts=parts)

    assert [p.name for p in checkpoint.optimizers[0].params] == ["fc.bias", "fc.weight"]
    assert checkpoint.schedulers == [{"step": 7}]
    with pytest.raises(SectionError, match=r"optim-3\.acme has no schedulers; it has: optimizers"):
        opened(base / "model-3.acme", parts={"schedulers": str(base / "optim-3.acme")})


def test_a_nameless_optimizer_of_a_family_with_ids_stays_so_in_our_folder() -> None:
    model = {"w": tensor(2, id=0), "b": tensor(3, id=1)}
    optimizer = Optimizer("acme", [Param(None, None, 1, 0, slots(2, start=1)), Param(None, None, 5, 0)], [{}])
    ours, form = registry.layout("ckptmigrate"), registry.format("safetensors")
    files = store.scatter(Checkpoint("acme", model=model, optimizers=[optimizer]), form, ours, WriteOptions())
    parts = {name: p for name, (_, p) in files.items()}
    again = store.gather(parts, GatherOptions(), container="safetensors", layout=ours)

    assert [p.name for p in again.optimizers[0].params] == [None, None]
