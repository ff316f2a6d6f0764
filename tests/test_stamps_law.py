"""The law "Stamps", sentence by sentence, on files: what each carrier says, and what is read of it again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate.errors import CheckpointError, PlanError

from .command_line import OLD, Ran
from .lines import HERE

RIGHT = str(HERE / "right")
BURN = OLD.parents[2] / "burn"
HALF = {"v1_0_x.py": ("a", "b"), "v2_0_x.py": ("b", "c")}


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """A chain of two steps, without marks."""
    folder = tmp_path / "steps" / "acme_net"
    folder.mkdir(parents=True)
    for name, (old, new) in HALF.items():
        version = name[1:4].replace("_", ".")
        (folder / name).write_text(
            f"from ckptmigrate import Migrator, Rename\nMIGRATOR = Migrator('acme.net', '{version}', [Rename('{old}', '{new}')])\n"
        )
    return folder.parent


def tensors(path: Path, *names: str) -> Path:
    safetensors.torch.save_file({name: torch.ones(2) for name in names}, path)
    return path


def migrate(path: Path, out: Path, steps: Path, **options: Any) -> ckptmigrate.Report:
    done = ckptmigrate.migrate(path, out, migrations=(str(steps),), **options)
    assert isinstance(done, ckptmigrate.Report)
    return done


def stamp(path: Path) -> ckptmigrate.Stamp:
    with ckptmigrate.open(path) as checkpoint:
        return checkpoint.stamp


def test_safetensors_has_it_among_its_metadata(tmp_path: Path, steps: Path) -> None:
    migrate(tensors(tmp_path / "a", "a"), tmp_path / "out.safetensors", steps, said={"acme.net": "0"})
    with safetensors.safe_open(tmp_path / "out.safetensors", "pt") as file:
        said = json.loads(file.metadata()["ckptmigrate"])["stamp"]

    assert said["versions"] == {"acme.net": "2.0"}
    assert [(one["chain"], one["version"], len(one["digest"])) for one in said["history"]] == [
        ("acme.net", "1.0", 64),
        ("acme.net", "2.0", 64),
    ]


def test_every_file_of_our_folder_has_it(tmp_path: Path, steps: Path) -> None:
    model = torch.nn.Linear(1, 1)
    torch.save({"model": {"a": model.weight.detach()}, "rng": torch.ones(2), "epoch": 1}, tmp_path / "a.pt")
    migrate(
        tmp_path / "a.pt", tmp_path / "out", steps, said={"acme.net": "1.0"}, exclude=(), chains={"acme.net": "1.0"}
    )
    files = sorted(path.name for path in (tmp_path / "out").iterdir())

    assert files == ["model.safetensors", "state.safetensors", "training_state.json"]
    for name in files[:2]:
        with safetensors.safe_open(tmp_path / "out" / name, "pt") as file:
            assert json.loads(file.metadata()["ckptmigrate"])["stamp"]["versions"] == {"acme.net": "1.0"}
    assert json.loads((tmp_path / "out" / files[2]).read_text())["stamp"]["versions"] == {"acme.net": "1.0"}


def test_a_torch_zip_has_it_in_a_record_of_its_own_and_the_object_is_as_it_was(tmp_path: Path, steps: Path) -> None:
    torch.save({"model": {"a": torch.ones(1)}, "epoch": 1}, tmp_path / "a.pt")
    migrate(tmp_path / "a.pt", tmp_path / "out.pt", steps, said={"acme.net": "0"})
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".data/ckptmigrate.json"))
        said = json.loads(archive.read(name))["stamp"]

    assert said["versions"] == {"acme.net": "2.0"}
    assert torch.load(tmp_path / "out.pt", weights_only=True) == {"model": {"c": torch.ones(1)}, "epoch": 1}


def test_a_burnpack_has_it_among_its_metadata(tmp_path: Path) -> None:
    ckptmigrate.migrate(BURN / "0.13.2" / "zoo-full.mpk", tmp_path / "zoo.bpk")

    assert stamp(tmp_path / "zoo.bpk").versions["burn"] == "0.14"
    assert b"ckptmigrate" in (tmp_path / "zoo.bpk").read_bytes()[:65536]


def test_files_of_one_checkpoint_that_disagree_are_an_error_that_names_both(tmp_path: Path, steps: Path) -> None:
    torch.save({"model": {"a": torch.ones(1)}, "rng": torch.ones(2)}, tmp_path / "a.pt")
    for name, version in (("one", "1.0"), ("two", "2.0")):
        migrate(tmp_path / "a.pt", tmp_path / name, steps, said={"acme.net": "0"}, chains={"acme.net": version})
    (tmp_path / "two" / "model.safetensors").replace(tmp_path / "one" / "model.safetensors")

    with pytest.raises(CheckpointError, match=r"model\.safetensors and .* bear stamps that disagree"):
        ckptmigrate.inspect(tmp_path / "one")


def test_what_was_applied_or_said_is_stamped_and_what_marks_alone_place_is_not(tmp_path: Path, steps: Path) -> None:
    said, placed = tmp_path / "said.safetensors", tmp_path / "placed.safetensors"
    migrate(tensors(tmp_path / "a", "c"), said, steps, said={"acme.net": "2.0"})
    ckptmigrate.migrate(tensors(tmp_path / "b", "head"), placed, migrations=(RIGHT,), chains={"acme.right": None})

    assert stamp(said).versions == {"acme.net": "2.0"}
    assert stamp(placed).versions == {}


def test_a_chain_that_is_not_installed_is_carried_and_said_to_be_not_checked(tmp_path: Path, steps: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    migrate(tensors(tmp_path / "a", "a"), first, steps, said={"acme.net": "0"})
    ran = Ran("migrate", first, second)

    assert "note: chain acme.net: not installed here, not checked" in ran.out
    assert stamp(second) == stamp(first)


def test_a_step_that_has_changed_since_it_was_applied_is_a_warning(tmp_path: Path, steps: Path) -> None:
    first = tmp_path / "first.safetensors"
    migrate(tensors(tmp_path / "a", "a"), first, steps, said={"acme.net": "0"})
    file = steps / "acme_net" / "v2_0_x.py"
    file.write_text(file.read_text().replace("Rename('b', 'c')", "Rename('b', 'd')"))
    ran = Ran("check", first, "--migrations", steps)

    assert ran.code == 0
    assert f"warning: acme.net 2.0 was applied, and has changed since ({file})" in ran.out


def test_up_appends_and_down_removes(tmp_path: Path, steps: Path) -> None:
    up, down, again = (tmp_path / f"{name}.safetensors" for name in ("up", "down", "again"))
    migrate(tensors(tmp_path / "a", "a"), up, steps, said={"acme.net": "0"})
    migrate(up, down, steps, chains={"acme.net": "1.0"})
    migrate(down, again, steps)

    assert [one.version for one in stamp(up).history] == ["1.0", "2.0"]
    assert [one.version for one in stamp(down).history] == ["1.0"]
    assert stamp(down).versions == {"acme.net": "1.0"}
    assert stamp(again) == stamp(up)
    assert list(safetensors.torch.load_file(down)) == ["b"]


def test_a_digest_is_of_chain_version_and_operations_and_is_the_same_wherever_the_step_lies(
    tmp_path: Path, steps: Path
) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    migrate(tensors(tmp_path / "a", "a"), one, steps, said={"acme.net": "0"})
    steps.rename(tmp_path / "moved")
    migrate(tmp_path / "a", two, tmp_path / "moved", said={"acme.net": "0"})

    assert one.read_bytes() == two.read_bytes()


def test_a_callers_metadata_never_becomes_a_stamp(tmp_path: Path) -> None:
    """What a training script put among the metadata of its file stays there, beside the stamp."""
    path, out = tmp_path / "a.safetensors", tmp_path / "out.safetensors"
    safetensors.torch.save_file({"trunk.fc": torch.ones(1)}, path, metadata={"stamp": "mine", "versions": "9"})
    ckptmigrate.migrate(path, out, migrations=(RIGHT,), chains={"acme.right": None}, said={"acme.right": "0"})
    with safetensors.safe_open(out, "pt") as file:
        metadata = file.metadata()

    assert (metadata["stamp"], metadata["versions"]) == ("mine", "9")
    assert stamp(out).versions == {"acme.right": "2.0"}


def test_bare_output_has_none(tmp_path: Path, steps: Path) -> None:
    out = tmp_path / "out.safetensors"
    migrate(tensors(tmp_path / "a", "a"), out, steps, said={"acme.net": "0"}, write=ckptmigrate.WriteOptions(bare=True))

    assert stamp(out) == ckptmigrate.Stamp()


def test_a_stamp_is_what_the_next_call_goes_on_from(tmp_path: Path, steps: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    migrate(tensors(tmp_path / "a", "a"), first, steps, said={"acme.net": "0"}, chains={"acme.net": "1.0"})
    done = migrate(first, second, steps)

    assert [step.partition(" (")[0] for step in done.steps] == ["acme.net to 2.0"]
    with pytest.raises(PlanError, match=r"its stamp says 1\.0, --from says 0"):
        migrate(first, tmp_path / "third.safetensors", steps, said={"acme.net": "0"})
