from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ckptmigrate import registry
from ckptmigrate.errors import PluginError, UsageError
from ckptmigrate.format import Family, Format, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    registry.forget()
    yield
    registry.forget()


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str], points: dict[str, str], kind: str = "formats"
) -> None:
    """Put modules on the path and entry points of ``kind`` in front of them, as an installed distribution would."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(folder)
    group = f"ckptmigrate.{kind}"
    made = [importlib.metadata.EntryPoint(name, value, group) for name, value in points.items()]
    real = importlib.metadata.entry_points

    def entry_points(**params: Any) -> Any:
        return made if params.get("group") == group else real(**params)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


ACME = """
from ckptmigrate.format import Format
FORMAT = Format("{name}", sniff=lambda source: None, read=lambda source, options: None, about="of acme")
"""


def test_what_lies_in_an_open_folder_exists_sorted_by_name() -> None:
    names = [layout.name for layout in registry.layouts()]

    assert names == sorted(names)
    assert {"bare", "plain", "lightning", "timm", "ckptmigrate"} <= set(names)
    assert all(isinstance(f, Format) for f in registry.formats())
    assert all(isinstance(f, Family) for f in registry.families())


def test_every_built_in_loads() -> None:
    assert [row for row in registry.installed() if row.error] == []


def test_a_name_that_does_not_exist_is_wrong_usage_and_lists_what_does() -> None:
    with pytest.raises(UsageError, match=r"no layout named 'nope'; there are: .*plain") as caught:
        registry.layout("nope")
    assert "plain" in caught.value.data["present"]


def test_a_plugin_loads_when_its_name_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"acme_a.py": ACME.format(name="acme_a")}, {"acme_a": "acme_a"})
    assert "acme_a" not in {f.name for f in registry.formats()}
    assert "acme_a" not in sys.modules

    assert registry.format("acme_a").about == "of acme"


def test_an_entry_point_may_name_a_package_whose_modules_are_scanned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {
        "acme_b/__init__.py": "",
        "acme_b/one.py": ACME.format(name="one"),
        "acme_b/_shared.py": "raise SystemError",
    }
    install(monkeypatch, tmp_path, files, {"one": "acme_b"})

    assert registry.format("one").name == "one"


def test_a_broken_plugin_poisons_its_own_name_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"acme_bad.py": "import nothing_of_that_name", "acme_c.py": ACME.format(name="acme_c")}
    install(monkeypatch, tmp_path, files, {"acme_bad": "acme_bad", "acme_c": "acme_c"})
    with pytest.raises(PluginError, match=r"'acme_bad' .* does not load: ModuleNotFoundError: .*nothing_of_that_name"):
        registry.format("acme_bad")
    found = registry.plugin_formats()

    assert set(found.loaded) == {"acme_c"}
    assert "nothing_of_that_name" in found.broken["acme_bad"]
    assert [row.name for row in registry.installed() if row.error] == ["acme_bad"]


def test_a_plugin_under_another_name_than_its_own_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"acme_d.py": ACME.format(name="other")}, {"acme_d": "acme_d"})
    with pytest.raises(PluginError, match="offers the name 'other'"):
        registry.format("acme_d")


def test_a_plugin_cannot_take_the_name_of_a_built_in_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = 'from ckptmigrate.format import Layout\nLAYOUT = Layout("plain", about="not ours")'
    install(monkeypatch, tmp_path, {"acme_e.py": text}, {"plain": "acme_e"}, "layouts")

    assert registry.layout("plain").about != "not ours"
    assert "plain" not in registry.plugin_layouts().loaded


def test_rows_say_from_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"acme_f.py": ACME.format(name="acme_f")}, {"acme_f": "acme_f"})
    rows = {(row.kind, row.name): row.where for row in registry.installed()}

    assert rows["formats", "acme_f"] == "acme_f"
    assert rows["layouts", "plain"] == "ckptmigrate.layouts.plain"
    assert isinstance(registry.layout("plain"), Layout)
