"""What is installed is whole: every module and every chain, from a wheel and from an editable install, and nothing beside them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ckptmigrate", "migrations")
MODULES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CHAINS = {
    folder.name: sorted(step.stem for step in folder.glob("v*.py"))
    for folder in (ROOT / "migrations").iterdir()
    if (folder / "__init__.py").exists()
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources alone, without what a build leaves."""
    folder = tmp_path_factory.mktemp("wheel") / "tree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """A wheel, built without a network."""
    said = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tree.parent / "dist", tree)
    assert "Deprecat" not in said
    (built,) = (tree.parent / "dist").glob("*.whl")
    return built


def run(*words: str | Path) -> str:
    """Run a command where no checkout is at hand."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, cwd=sys.prefix, env=clean
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def listed(folder: Path, *install: str | Path) -> tuple[Path, list[Any]]:
    """Install into a new environment that borrows the dependencies of this one; give where the package lies, and its chains."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    lent = [path for path in sys.path if path.endswith("-packages")]
    (Path(paths["purelib"]) / "borrowed.pth").write_text("\n".join(lent) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--ignore-installed", "--no-build-isolation", *install)
    package = run(python, "-c", "import ckptmigrate; print(ckptmigrate.__file__)").strip()
    return Path(package).parent, json.loads(run(folder / "bin" / "ckptmigrate", "chains", "--json"))


def steps(rows: list[Any]) -> dict[str, list[str]]:
    """Give the modules of each chain that is ours by its folder."""
    names = [where.split(".") for row in rows for where in row["where"] if where.startswith("ckptmigrate.migrations.")]
    return {folder: sorted(name[3] for name in names if name[2] == folder) for folder in {name[2] for name in names}}


def test_a_wheel_has_every_module_and_no_package_beside_its_own(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    wanted = [f"ckptmigrate/{name}" if name.startswith("migrations/") else name for name in MODULES]

    assert sorted(name for name in names if name.endswith(".py")) == sorted(wanted)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"ckptmigrate"}
    assert "ckptmigrate/py.typed" in names


def test_the_shipped_chains_are_found_where_a_wheel_was_installed(tmp_path: Path, wheel: Path) -> None:
    package, rows = listed(tmp_path / "env", wheel)

    assert package.is_relative_to(tmp_path / "env")
    assert steps(rows) == CHAINS
    assert [row["name"] for row in rows if row["error"]] == []
    assert {row["name"]: row["automatic"] for row in rows}["burn"]


def test_the_shipped_chains_are_found_where_the_checkout_was_installed_editable(tmp_path: Path, tree: Path) -> None:
    package, rows = listed(tmp_path / "env", "--editable", tree)

    assert package == tree / "ckptmigrate"
    assert steps(rows) == CHAINS
