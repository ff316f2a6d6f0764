"""Which chains there are: folders, packages, entry points, and what a maintainer reads for each mistake."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ckptmigrate import chains
from ckptmigrate.chains.catalog import Catalog
from ckptmigrate.checkpoint import Stamp
from ckptmigrate.errors import MigratorError, UsageError
from ckptmigrate.migrator import Migrator
from ckptmigrate.operations import Rename

from .command_line import Ran
from .lines import HERE, catalog, model, planned, upgraded, versions


def test_a_folder_of_chains_is_a_registry() -> None:
    found = catalog("right")

    assert found.names() == ["acme.right"]
    assert found.chain("acme.right").about == "what a chain looks like"
    assert [(s.migrator.version, Path(s.where).name) for s in found.steps("acme.right")] == [
        ("1.0", "v1_0_body.py"),
        ("2.0", "v2_0_head.py"),
    ]


def test_a_right_chain_goes_all_the_way_up_and_down() -> None:
    found = catalog("right")
    checkpoint = upgraded(model("trunk.fc", "trunk.conv"), found, named={"acme.right": None})
    assert list(checkpoint.model) == ["head", "body.conv"]

    upgraded(checkpoint, found, named={"acme.right": "0"})
    assert list(checkpoint.model) == ["trunk.fc", "trunk.conv"]
    assert checkpoint.stamp == Stamp({"acme.right": "0"})


def test_files_never_become_top_level_modules() -> None:
    catalog("right", "blind")

    assert not {"acme_right", "v1_0_body", "v1_0_first_blind"} & set(sys.modules)


def test_two_migrators_of_one_version_are_an_error_that_names_both_files() -> None:
    with pytest.raises(MigratorError, match=r"v1_0_that\.py and .*v1_0_this\.py both lead to 1\.0"):
        catalog("conflict").steps("acme.conflict")


@pytest.mark.parametrize(
    ("folder", "chain", "message"),
    [
        ("misnamed_step", "acme.step", r"leads to 1\.2, so its name is v1_2_SLUG\.py, not v1_1_slip\.py"),
        (
            "misnamed_folder",
            "acme.other",
            r"is of chain 'acme\.folder', whose folder is 'acme_folder', not 'acme_other'",
        ),
    ],
)
def test_a_name_that_does_not_mirror_the_step_is_an_error(folder: str, chain: str, message: str) -> None:
    with pytest.raises(MigratorError, match=message):
        catalog(folder).steps(chain)


def test_a_broken_step_poisons_its_own_chain_and_no_other() -> None:
    found = catalog("broken")

    assert "RuntimeError: the moon is full" in planned(model("old"), found, named={"acme.broken": None}).problems[0]
    plan = planned(model("old"), found, named={"acme.whole": None})
    assert (versions(plan), plan.problems) == (["1.0"], ())
    assert "the moon is full" in plan.warnings[0]
    assert [(row.name, row.error is None) for row in found.rows()] == [("acme.broken", False), ("acme.whole", True)]


def test_a_file_that_declares_no_step_beside_others_is_refused_by_its_name() -> None:
    with pytest.raises(MigratorError, match=r"v1_0_without\.py: declares no MIGRATOR"):
        catalog("broken_beside")


def test_steps_may_lie_directly_in_a_folder() -> None:
    assert [s.migrator.version for s in catalog("blind").steps("acme.blind")] == ["1.0", "1.5"]


def test_a_folder_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError):
        Catalog().add_folder(HERE / "blind" / "v1_0_first_blind.py")


def test_a_chain_in_a_package_is_imported_by_its_dotted_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "right"))
    monkeypatch.syspath_prepend(str(HERE / "broken"))
    found = Catalog()
    for name in ("acme_right", "acme_broken"):
        found.add_package(name)

    assert [s.migrator.version for s in found.steps("acme.right")] == ["1.0", "2.0"]
    assert re.search(r"acme_broken\.v1_0_raises: .*line 5: RuntimeError: the moon is full", found.broken["acme.broken"])
    for module in [m for m in sys.modules if m.startswith(("acme_right", "acme_broken"))]:
        monkeypatch.delitem(sys.modules, module)


def test_the_catalog_works_whatever_is_installed() -> None:
    assert isinstance(Catalog.find().names(), list)


def installed(module: str, name: str) -> Catalog:
    found = Catalog()
    found.add_entry_point(EntryPoint(name, module, "ckptmigrate.migrators"))
    return found


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_installed_chain_loads_when_its_name_is_needed_and_not_before(plugin: Path) -> None:
    (plugin / "plug_one").mkdir()
    (plugin / "plug_one" / "__init__.py").write_text(
        "from ckptmigrate import Chain\nCHAIN = Chain('plug.one', about='x')\n"
    )
    (plugin / "plug_one" / "first.py").write_text(
        "from ckptmigrate import Migrator, Rename\nMIGRATOR = Migrator('plug.one', '1.0', [Rename('a', 'b')])\n"
    )
    found = installed("plug_one", "plug.one")
    planned(model("a"), found)
    assert "plug_one" not in sys.modules

    assert versions(planned(model("a"), found, said={"plug.one": "0"})) == ["1.0"]
    assert found.chain("plug.one").about == "x"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("x = 1", "has no CHAIN and no MIGRATOR"),
        ("from ckptmigrate import Migrator\nMIGRATOR = Migrator('plug.else', '1.0')", "is of chain 'plug.else'"),
    ],
)
def test_a_broken_plugin_poisons_its_own_name(plugin: Path, text: str, reason: str) -> None:
    name = f"plug_{abs(hash(text))}"
    (plugin / f"{name}.py").write_text(text)
    found = installed(name, "plug.two")

    assert planned(model("a"), found).problems == ()
    assert reason in planned(model("a"), found, named={"plug.two": None}).problems[0]


def test_a_projects_folders_and_chains_stand_in_its_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.ckptmigrate]\nmigrations = ["migrations", "/abs"]\nchains = ["acme.vit"]\n')

    assert chains.project(path) == chains.Project((f"{tmp_path}/migrations", "/abs"), ("acme.vit",))


def test_a_pyproject_that_says_nothing_of_us_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\nname = 'x'\n")

    assert chains.project(path) == chains.Project()


@pytest.mark.parametrize(
    "text",
    [
        "[tool.ckptmigrate]\nmigrations = 'x'\n",
        "[tool.ckptmigrate]\nother = ['x']\n",
        "[tool\n",
        "[tool]\nckptmigrate = 1\n",
    ],
)
def test_a_pyproject_that_says_it_wrongly_is_wrong_usage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)

    with pytest.raises(UsageError):
        chains.project(path)


@pytest.mark.parametrize("text", ["", "one", "1.0+local"])
def test_a_step_whose_version_nothing_could_compare_is_refused(text: str) -> None:
    with pytest.raises(MigratorError):
        Migrator("line", text)


# What a maintainer reads.

MISTAKES = {
    "x = 1\ny = nope": r"v1_0_x\.py: line 3: NameError: name 'nope' is not defined",
    "def (:": r"v1_0_x\.py: SyntaxError: invalid syntax \(v1_0_x\.py, line 2\)",
    "import sys\nsys.exit(3)": r"v1_0_x\.py: line 3: SystemExit: 3",
    "from ._names import HEAD": r"v1_0_x\.py: line 2: ModuleNotFoundError: No module named",
    "MIGRATOR = Migrator('acme.odd', '1.0', [\n    Rename('a', 'b'),\n    Rename('(a', 'b'),\n])": (
        r"v1_0_x\.py: line 4: pattern '\(a' with template 'b': missing \)"
    ),
    "migrator = Migrator('acme.odd', '1.0')": r"v1_0_x\.py: declares no MIGRATOR; the name of a file that is no step begins with",
    "MIGRATOR = {'chain': 'acme.odd'}": r"v1_0_x\.py: MIGRATOR is a dict, expected a Migrator",
    "MIGRATOR = Migrator": r"v1_0_x\.py: MIGRATOR is the class Migrator, expected a Migrator",
    "MIGRATOR = Migrator('acme.odd', 1.0)": r"line 2: chain acme\.odd: version 1\.0 is no text; write version='1\.0'",
    "MIGRATOR = Migrator('acme.odd', '1.0', Rename('a', 'b'))": r"acme\.odd 1\.0: operations is a Rename, expected a list",
    "MIGRATOR = Migrator('acme.odd', '1.0', [Rename])": r"acme\.odd 1\.0: <class .*Rename'> stands among its operations",
    "MIGRATOR = Migrator('acme.odd', '1.0', marks=Present('a'))": r"acme\.odd 1\.0: marks is a Present, expected a list",
    "MIGRATOR = Migrator('acme.odd', '1.0', needs=['heads'])": r"acme\.odd 1\.0: needs maps the name of a number to the path",
    "MIGRATOR = Migrator('acme=odd', '1.0')": r"'acme=odd' is no name of a chain",
    "MIGRATOR = Migrator('acme.odd', '1.1')": r"leads to 1\.1, so its name is v1_1_SLUG\.py, not v1_0_x\.py",
    "MIGRATOR = Migrator('acme.other', '1.0')": r"is of chain 'acme\.other', whose folder is 'acme_other', not 'acme_odd'",
    "MIGRATOR = Migrator('acme_odd', '1.0')": r"is of chain 'acme_odd', and .*__init__\.py of 'acme\.odd'",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "acme_odd"
    folder.mkdir()
    (folder / "__init__.py").write_text("from ckptmigrate import Chain\nCHAIN = Chain('acme.odd')\n")
    (folder / "v1_0_x.py").write_text(f"from ckptmigrate import Migrator, Present, Rename\n{text}\n")
    found = Catalog()
    found.add_folder(tmp_path)

    with pytest.raises(MigratorError, match=f"chain acme\\.odd does not load: .*{message}"):
        found.steps("acme.odd")


def write_step(folder: Path, name: str, chain: str, version: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(f"from ckptmigrate import Migrator\nMIGRATOR = Migrator({chain!r}, {version!r})\n")
    return path


def test_a_step_that_is_no_utf8_a_folder_or_a_link_to_nothing_poisons_its_chain_alone(tmp_path: Path) -> None:
    write_step(tmp_path / "acme_whole", "v1_0_x.py", "acme.whole", "1.0")
    (tmp_path / "acme_bytes").mkdir()
    (tmp_path / "acme_bytes" / "v1_0_x.py").write_bytes(b"x = '\xff'")
    (tmp_path / "acme_folder" / "v1_0_x.py").mkdir(parents=True)
    (tmp_path / "acme_link").mkdir()
    (tmp_path / "acme_link" / "v1_0_x.py").symlink_to("nowhere.py")
    (tmp_path / "acme_lost").symlink_to("nowhere")
    found = Catalog()
    found.add_folder(tmp_path)

    assert [(row.name, row.error is None) for row in found.rows()] == [
        ("acme.bytes", False),
        ("acme.folder", False),
        ("acme.link", False),
        ("acme.lost", False),
        ("acme.whole", True),
    ]


def test_hidden_files_are_no_steps(tmp_path: Path) -> None:
    """Emacs locks what it edits with a link to nothing, and macOS copies lay a shadow beside each file."""
    write_step(tmp_path / "acme_vit", "v1_0_x.py", "acme.vit", "1.0")
    (tmp_path / "acme_vit" / ".#v1_0_x.py").symlink_to("me@here.4711")
    (tmp_path / "acme_vit" / "._v1_0_x.py").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".#v1_0_x.py").symlink_to("me@here.4711")
    found = Catalog()
    found.add_folder(tmp_path)

    assert found.rows()[0].versions == ("1.0",)


def test_a_chains_folder_and_its_steps_may_be_links(tmp_path: Path) -> None:
    write_step(tmp_path / "elsewhere", "_real.py", "acme.vit", "1.0")
    (tmp_path / "elsewhere" / "v1_0_x.py").symlink_to("_real.py")
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "acme_vit").symlink_to(tmp_path / "elsewhere")
    found = Catalog()
    found.add_folder(tmp_path / "migrations")

    assert [step.migrator.version for step in found.steps("acme.vit")] == ["1.0"]


def test_a_folder_found_twice_by_any_way_is_one_chain(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A maintainer's checkout: the folder is named in pyproject.toml, and installed in place as an entry point."""
    write_step(plugin / "plug_twice", "v1_0_x.py", "plug.twice", "1.0")
    (plugin / "plug_twice" / "__init__.py").write_text("")
    (plugin / "again").symlink_to(plugin)
    monkeypatch.chdir(plugin)
    found = installed("plug_twice", "plug.twice")
    for folder in (tmp_path, ".", tmp_path / "again", tmp_path):
        found.add_folder(folder)

    assert [step.migrator.version for step in found.steps("plug.twice")] == ["1.0"]


def test_a_chain_folder_whose_name_has_a_dot_is_told_what_it_should_be(tmp_path: Path) -> None:
    write_step(tmp_path / "acme.vit", "v1_0_x.py", "acme.vit", "1.0")
    found = Catalog()
    found.add_folder(tmp_path)

    with pytest.raises(MigratorError, match=r"is of chain 'acme\.vit', whose folder is 'acme_vit', not 'acme\.vit'"):
        found.steps("acme.vit")


def test_a_broken_chain_is_known_by_its_name_though_its_folder_alone_cannot_tell_it(tmp_path: Path) -> None:
    folder = write_step(tmp_path / "acme_my_vit", "v1_0_x.py", "acme.my_vit", "1.0").parent
    (folder / "v1_0_x.py").write_text("raise ValueError('no')")
    found = Catalog()
    found.add_folder(tmp_path)
    plan = planned(model("a", stamp={"acme.my_vit": "0.5"}), found)

    assert "chain acme.my_vit does not load" in plan.problems[0]
    assert "ValueError: no" in plan.problems[0]


def test_a_name_that_nearly_is_one_is_asked_for() -> None:
    with pytest.raises(UsageError) as caught:
        catalog("right").steps("acme.rihgt")

    assert caught.value.hints == ["did you mean acme.right?"]


def test_what_was_listed_cannot_be_changed_in_a_migrator() -> None:
    operations = [Rename("a", "b")]
    migrator = Migrator("line", "1.0", operations)
    operations.append(Rename("c", "d"))

    assert migrator.operations == (Rename("a", "b"),)


def test_loading_leaves_nothing_in_a_folder_that_is_somebodys_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Siblings and a package below the folder too; Python itself would write a __pycache__ beside each."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write_step(tmp_path / "acme_vit", "v1_0_x.py", "acme.vit", "1.0")
    (tmp_path / "acme_vit" / "parts").mkdir()
    (tmp_path / "acme_vit" / "parts" / "__init__.py").write_text("")
    (tmp_path / "acme_vit" / "parts" / "names.py").write_text("HEAD = 'head'\n")
    (tmp_path / "acme_vit" / "_names.py").write_text("from .parts.names import HEAD\n")
    (tmp_path / "acme_vit" / "v2_0_x.py").write_text(
        "from ckptmigrate import Migrator, Rename\nfrom ._names import HEAD\n"
        "MIGRATOR = Migrator('acme.vit', '2.0', [Rename('fc', HEAD)])\n"
    )
    before = sorted(tmp_path.rglob("*"))
    found = Catalog()
    found.add_folder(tmp_path)

    assert found.steps("acme.vit")[1].migrator.operations == (Rename("fc", "head"),)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_step_that_is_edited_is_loaded_anew(tmp_path: Path) -> None:
    path = write_step(tmp_path / "acme_vit", "v1_0_x.py", "acme.vit", "1.0")
    digests = []
    for name in ("b", "c"):
        path.write_text(
            f"from ckptmigrate import Migrator, Rename\nMIGRATOR = Migrator('acme.vit', '1.0', [Rename('a', {name!r})])\n"
        )
        found = Catalog()
        found.add_folder(tmp_path)
        digests.append(found.steps("acme.vit")[0].migrator.digest)

    assert len(set(digests)) == 2


def test_the_verb_lists_what_is_found_and_why_the_rest_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran(
        "chains", "--migrations", HERE / "right", "--migrations", HERE / "broken", "--migrations", HERE / "automatic"
    )
    lines = ran.out.splitlines()

    assert ran.code == 0
    assert (
        lines[lines.index("acme.right: 1.0, 2.0; what a chain looks like") + 1]
        == f"  {HERE}/right/acme_right/v1_0_body.py"
    )
    assert "acme.automatic: 0.13, 0.14, automatic" in lines
    assert any(line.startswith("acme.broken: does not load: ") and "the moon is full" in line for line in lines)
    monkeypatch.chdir(HERE / "right")
    assert "acme.right" not in {row["name"] for row in Ran("chains", "--json").json()}


def test_the_verb_sees_what_the_project_of_the_working_directory_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.ckptmigrate]\nmigrations = ["{HERE / "right"}"]\n')
    monkeypatch.chdir(tmp_path)
    rows = {row["name"]: row for row in Ran("chains", "--json").json()}

    assert rows["acme.right"]["versions"] == ["1.0", "2.0"]
    assert chains.installed([HERE / "right"]) == Catalog.find([HERE / "right"]).rows()
