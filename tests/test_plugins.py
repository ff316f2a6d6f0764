"""What others install: formats, layouts, families and chains through entry points; a broken one poisons its own name alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.torch
import torch

import ckptmigrate
from ckptmigrate import chains, registry
from ckptmigrate.errors import CkptError, UnknownFormatError, UsageError

from .acme import laid, trained
from .command_line import Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = Path(__file__).parent / "plugins"
WHOLE, BROKEN = str(PLUGINS), str(PLUGINS / "broken")


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    sys.path[:0] = [WHOLE, BROKEN]
    registry.forget()
    yield
    sys.path.remove(WHOLE)
    sys.path.remove(BROKEN)
    registry.forget()


def command(*words: str | Path) -> Any:
    """Run the command line as a process of its own, as it is where packages are installed."""
    paths = os.pathsep.join([WHOLE, BROKEN, str(PLUGINS.parent.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "ckptmigrate", *map(str, words), "--json"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_an_installed_chain_is_listed_with_its_distribution_and_a_broken_one_with_its_reason() -> None:
    rows = {row["name"]: row for row in command("chains")}

    assert rows["acme.net"]["versions"] == ["1.0", "2.0"]
    assert rows["acme.net"]["where"] == [
        "acme_plugin.acme_net.v1_0_head (acme-plugin 1.0)",
        "acme_plugin.acme_net.v2_0_turned (acme-plugin 1.0)",
    ]
    assert (rows["acme.net"]["family"], rows["acme.net"]["about"]) == ("acme", "Acme's network")
    assert rows["acme.torn"]["versions"] == []
    assert "RuntimeError: the moon is full" in rows["acme.torn"]["error"]
    assert rows["burn"]["error"] is None


@pytest.mark.parametrize(("verb", "name"), [("formats", "acme_record"), ("layouts", "acme_epoch")])
def test_installed_formats_and_layouts_are_listed_and_broken_ones_with_their_reason(verb: str, name: str) -> None:
    rows = {row["name"]: row for row in command(verb)}

    assert "acme-plugin 1.0" in rows[name]["where"]
    assert "acme_that_nobody_has" in rows["acme_torn"]["error"]
    assert all(row["error"] is None for row in rows.values() if row["name"] != "acme_torn")


def test_a_plugins_format_layout_family_and_chain_make_one_road(tmp_path: Path) -> None:
    checkpoint = trained()
    laid(checkpoint, tmp_path / "old")
    options = {"chains": {"acme.net": None}}
    (told,) = ckptmigrate.plan(tmp_path / "old", tmp_path / "new", **options)
    ckptmigrate.migrate(tmp_path / "old", tmp_path / "new", **options)

    assert [row.after for row in told.table] == ["head.columns", "head.bias", "mean"]
    with ckptmigrate.open(tmp_path / "new") as found:
        assert found.stamp.versions == {"acme.net": "2.0"}
        weight = checkpoint.model["fc.weight"].numpy()
        assert np.array_equal(found.model["head.columns"].numpy(), weight.T)
        moments = {param.name: (param.slots or {})["moment"].value.numpy() for param in found.optimizers[0].params}
        slots = checkpoint.optimizers[0].params[1].slots or {}
        assert np.array_equal(moments["head.columns"], slots["moment"].value.numpy().T)
    assert Ran("check", tmp_path / "new").code == 0
    assert Ran("check", tmp_path / "old", "--chain", "acme.net").code == 1


def test_it_leads_back_down(tmp_path: Path) -> None:
    laid(trained(), tmp_path / "old")
    ckptmigrate.migrate(tmp_path / "old", tmp_path / "new", chains={"acme.net": None})
    ckptmigrate.migrate(tmp_path / "new", tmp_path / "again", chains={"acme.net": "0"})

    with ckptmigrate.open(tmp_path / "old") as old, ckptmigrate.open(tmp_path / "again") as again:
        assert list(old.model) == list(again.model)
        assert all(np.array_equal(t.numpy(), again.model[name].numpy()) for name, t in old.model.items())
        assert (again.stamp.versions, again.stamp.history) == ({"acme.net": "0"}, ())


def test_a_broken_chain_is_refused_where_it_is_named_and_harms_nobody_else(tmp_path: Path) -> None:
    path, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    refused = Ran("migrate", path, out, "--chain", "acme.torn")

    assert refused.code == 3
    assert "chain acme.torn does not load: acme-torn 0.1: " in refused.err
    assert "the moon is full" in refused.err
    assert Ran("migrate", path, out).code == 0


def test_an_installed_chain_that_nobody_named_is_not_imported() -> None:
    code = "import sys, ckptmigrate; from ckptmigrate.chains import Catalog; Catalog.find().loaded(); print('acme_torn' in sys.modules)"
    paths = os.pathsep.join([WHOLE, BROKEN, str(PLUGINS.parent.parent)])
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths}
    )

    assert shown.stdout.strip() == "False"


def test_a_file_that_nobody_knows_lists_the_plugins_that_might(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0\1\2\3" * 99)

    with pytest.raises(UnknownFormatError) as caught:
        ckptmigrate.inspect(tmp_path / "x")
    assert any("acme_torn" in hint and "acme_that_nobody_has" in hint for hint in caught.value.hints)


@pytest.mark.parametrize("ask", [registry.format, registry.layout, registry.family])
def test_a_broken_plugin_says_why_where_its_name_is_asked_for(ask: Any) -> None:
    with pytest.raises(CkptError, match="acme_that_nobody_has"):
        ask("acme_torn")


def test_a_chain_of_another_family_is_not_for_this_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"fc.weight": torch.ones(1, 1)}, path)
    (told,) = ckptmigrate.plan(path, chains={"acme.net": None})

    assert told.problems == ("chain acme.net is for family acme, and the checkpoint is of torch",)


def test_a_name_that_is_nearly_an_installed_one_is_asked_for() -> None:
    with pytest.raises(UsageError) as caught:
        chains.Catalog.find().chain("acme.nte")

    assert caught.value.hints == ["did you mean acme.net?"]


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give what lays a distribution of one module and its entry points down, as pip would."""

    def lay(name: str, points: str, code: str) -> None:
        site = tmp_path / f"site_{name}"
        (site / f"{name}-1.0.dist-info").mkdir(parents=True)
        (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (site / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(points)
        (site / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))
        registry.forget()

    return lay


def model(path: Path) -> Path:
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    return path


def test_a_name_that_two_distributions_offer_is_neithers(tmp_path: Path, distribution: Any) -> None:
    points = "[ckptmigrate.formats]\nacme_twice = {}\n"
    for name in ("acme_one", "acme_two"):
        distribution(name, points.format(name), "")

    with pytest.raises(CkptError, match=r"offered by acme_one 1\.0 and acme_two 1\.0"):
        registry.format("acme_twice")
    assert Ran("inspect", model(tmp_path / "m.safetensors")).code == 0


def test_a_plugin_that_ends_the_process_as_it_is_imported_is_broken_as_any_other(distribution: Any) -> None:
    distribution("acme_quits", "[ckptmigrate.formats]\nacme_quits = acme_quits\n", "raise SystemExit(4)")

    with pytest.raises(CkptError, match=r"acme_quits 1\.0\) does not load: SystemExit: 4"):
        registry.format("acme_quits")


def test_what_is_broken_under_the_name_of_an_automatic_chain_is_a_warning_to_all_who_did_not_name_it(
    tmp_path: Path, distribution: Any
) -> None:
    distribution("acme_rival", "[ckptmigrate.migrators]\ntorch = acme_rival.nowhere\n", "")
    path = model(tmp_path / "m.safetensors")
    said = Ran("plan", path)

    assert said.code == 0
    assert "warning: chain torch does not load: acme_rival 1.0: " in said.out
    assert Ran("plan", path, "--chain", "torch").code == 3


def test_the_target_of_a_call_may_be_an_installed_format_and_one_that_cannot_is_told_why(tmp_path: Path) -> None:
    path = model(tmp_path / "m.safetensors")
    broken = Ran("migrate", path, tmp_path / "out", "--to", "acme_torn")
    readable = Ran("migrate", path, tmp_path / "out", "--to", "acme_old")
    laid(trained(), tmp_path / "old")
    written = Ran("migrate", tmp_path / "old", tmp_path / "new", "--to", "acme_record")
    by_suffix = Ran("migrate", path, tmp_path / "out.old")

    assert (broken.code, readable.code, written.code) == (3, 2, 0)
    assert "acme_that_nobody_has" in broken.err
    assert "acme_old is read only" in readable.err
    assert (by_suffix.code, by_suffix.err) == (2, readable.err)
