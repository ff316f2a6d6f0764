"""The rules of the house, read from the syntax tree: who may import, open, print and name what."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ckptmigrate"
OPEN_FOLDERS = ("formats", "layouts", "families")

# Rooms: a module at the root, or a package. Imports point from below to above, and from right to left within a row.
ORDER = [
    ["errors", "limits"],
    ["dtypes", "files"],
    ["tensor"],
    ["values"],
    ["wire"],
    ["checkpoint"],
    ["format"],
    ["naming", "notes", "operations", "verify"],
    ["marks", "migrator", "engine"],
    ["registry", "formats", "layouts", "families"],
    ["chains"],
    ["store"],
    ["like"],
    ["casts", "inspection", "target", "space", "runs", "convert", "planning", "checking", "stamping", "upgrading"],
    ["doctor", "batch", "propose"],
    ["torch", "testing", "report", "__init__", "cli", "__main__"],
]
RANK = {name: (row, column) for row, names in enumerate(ORDER) for column, name in enumerate(names)}

FRAMEWORKS = re.compile(
    r"\b(torch|pytorch|burn|safetensors|lightning|deepspeed|megatron|timm|huggingface|transformers|accelerate|burnpack)\b",
    re.IGNORECASE,
)
MAY_NAME_FRAMEWORKS = {"dtypes", "torch", "testing"}


class Module(NamedTuple):
    name: str  # dotted below the package: "files", "formats.torch_zip", "" for the root
    path: Path
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.split(".")[0] or "__init__"


def modules() -> list[Module]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        dotted = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        name = dotted.removesuffix("__init__").rstrip(".") if dotted != "__init__" else ""
        found.append(Module(name, path, ast.parse(path.read_text())))
    return found


MODULES = modules()
CORE = [m for m in MODULES if m.room not in OPEN_FOLDERS]
IDS = [m.name or "__init__" for m in MODULES]
CORE_IDS = [m.name or "__init__" for m in CORE]


def imports(module: Module) -> Iterator[str]:
    """Give the dotted name of everything imported, wherever the statement stands."""
    package = ["ckptmigrate", *module.name.split(".")]
    if module.path.name != "__init__.py":
        package = package[:-1]
    package = [part for part in package if part]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                target = f"{stem}.{alias.name}"
                inside = target.removeprefix("ckptmigrate.").replace(".", "/")
                is_module = (PACKAGE / f"{inside}.py").exists() or (PACKAGE / inside).is_dir()
                yield target if stem.startswith("ckptmigrate") and is_module else stem


def own_imports(module: Module) -> Iterator[str]:
    for name in imports(module):
        if name == "ckptmigrate" or name.startswith("ckptmigrate."):
            yield name.removeprefix("ckptmigrate").lstrip(".")


def is_documentation(tree: ast.AST) -> set[int]:
    """Give the ids of docstring nodes and of bare strings under attributes."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_every_module_has_a_place_in_the_import_order(module: Module) -> None:
    assert module.room in RANK


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_imports_point_one_way(module: Module) -> None:
    for name in own_imports(module):
        target = name.split(".")[0] or "__init__"
        if target == module.room:
            continue  # within a room: test_no_module_imports_itself_through_others
        if (module.room, target) == ("format", "checkpoint"):
            continue
        assert RANK[target] < RANK[module.room], f"{module.path.name} imports {name}"


def test_no_module_imports_itself_through_others() -> None:
    names = {m.name for m in MODULES}
    arrows = {m.name: {n for n in own_imports(m) if n in names and n != m.name} for m in MODULES}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way, name])
        if name not in done:
            for target in arrows[name] - {"checkpoint"} if name == "format" else arrows[name]:
                visit(target, (*way, name))
            done.add(name)

    for name in arrows:
        visit(name, ())


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_nothing_imports_a_module_of_an_open_folder_by_name(module: Module) -> None:
    for name in own_imports(module):
        parts = name.split(".")
        if parts[0] in {*OPEN_FOLDERS, "migrations"} and len(parts) > 1:
            sibling = parts[0] == module.room and parts[1].startswith("_")
            assert sibling, f"{module.path.name} imports {name}"


@pytest.mark.parametrize("module", CORE, ids=CORE_IDS)
def test_no_framework_is_named_outside_the_open_folders(module: Module) -> None:
    if module.room in MAY_NAME_FRAMEWORKS:
        return
    docs = is_documentation(module.tree)
    for node in ast.walk(module.tree):
        text = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            text = node.id if isinstance(node, ast.Name) else node.attr
        if text is not None and FRAMEWORKS.search(text):
            line = module.path.read_text().splitlines()[node.lineno - 1]  # type: ignore[attr-defined] # every node here has a line
            assert "house: " in line, f"{module.path.name}:{node.lineno} names {text!r}"  # type: ignore[attr-defined] # same


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_no_code_branches_on_the_name_of_a_format_layout_family_or_chain(module: Module) -> None:
    names = {p.stem for folder in OPEN_FOLDERS for p in (PACKAGE / folder).glob("[a-z]*.py")}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Compare):
            for side in [node.left, *node.comparators]:
                literals = [n.value for n in ast.walk(side) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                attribute = any(
                    isinstance(n, ast.Attribute) and n.attr in {"name", "family", "format", "layout", "chain"}
                    for n in [node.left, *node.comparators]
                )
                assert not (attribute and names.intersection(literals)), f"{module.path.name}:{node.lineno}"


DISK = {"open", "io.open"}
DISK_MODULES = {"os", "shutil", "tempfile", "pathlib", "mmap", "io", "glob"}
MAY_TOUCH_DISK = {"files"}


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_only_files_touches_the_disk(module: Module) -> None:
    if module.room in MAY_TOUCH_DISK:
        return
    own = {n.name for n in module.tree.body if isinstance(n, ast.FunctionDef)}  # ckptmigrate.open is ours
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in DISK - own, f"{module.path.name}:{node.lineno} opens a file"
    allowed = {
        "chains": {"pathlib"},
        "convert": {"pathlib"},
        "stamping": {"pathlib"},
        "store": {"pathlib"},
        "gather": {"pathlib"},
        "cli": {"pathlib", "os"},
        "report": {"pathlib"},
    }
    for name in imports(module):
        top = name.split(".")[0]
        if top in DISK_MODULES - allowed.get(module.room, set()):
            line = next(
                line for line in module.path.read_text().splitlines() if re.search(rf"import {top}|from {top}", line)
            )
            assert "house: " in line or _only_for_types(module, top), f"{module.path.name} imports {top}"


def _only_for_types(module: Module, top: str) -> bool:
    """Say whether every import of ``top`` stands under TYPE_CHECKING."""
    guarded = [n for n in ast.walk(module.tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    inside = {id(n) for g in guarded for n in ast.walk(g)}
    for node in ast.walk(module.tree):
        names = (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if any(n.split(".")[0] == top for n in names) and id(node) not in inside:
            return False
    return True


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_only_the_command_line_prints_reads_the_environment_or_asks_the_clock(module: Module) -> None:
    if module.room in {"cli", "report"}:
        return
    text = {ast.unparse(n.func) for n in ast.walk(module.tree) if isinstance(n, ast.Call)}
    attributes = {ast.unparse(n) for n in ast.walk(module.tree) if isinstance(n, ast.Attribute)}

    assert not {"print", "sys.exit", "exit", "input"} & text
    assert not {"os.environ", "sys.stdout", "sys.stderr", "sys.argv"} & attributes
    assert not {"time", "logging", "random"} & {n.split(".")[0] for n in imports(module)}
    assert not {"now", "today", "utcnow"} & {name.rpartition(".")[2] for name in text}


FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile", "pickle.load", "pickle.loads", "torch.load"}


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_nothing_can_execute_what_a_file_says(module: Module) -> None:
    calls = {ast.unparse(n.func) for n in ast.walk(module.tree) if isinstance(n, ast.Call)}

    assert not FORBIDDEN_CALLS & calls
    assert not {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"} & {
        n.split(".")[0] for n in imports(module)
    }


MAY_RUN_OTHERS = {
    "chains": "migrator files and installed plugins",
    "registry": "the open folders and installed plugins",
    "like": "the module:callable that somebody typed behind --like",
}


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_only_rooms_with_a_reason_import_by_a_name_that_is_data(module: Module) -> None:
    if module.room in MAY_RUN_OTHERS:
        return
    lines = module.path.read_text().splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "run_module", "run_path")):
            named = bool(node.args) and isinstance(node.args[0], ast.Constant)
            assert named, f"{module.path.name}:{node.lineno} imports {lines[node.lineno - 1].strip()}"


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_only_the_torch_room_imports_torch(module: Module) -> None:
    if module.name != "torch":
        assert not {"torch", "torchvision"} & {n.split(".")[0] for n in imports(module)}


@pytest.mark.parametrize("module", MODULES, ids=IDS)
def test_heavy_libraries_are_imported_late(module: Module) -> None:
    if module.room in {"testing", "torch"}:
        return
    allowed = {"cli": {"typer"}}.get(module.room, set())  # nothing but the entry point imports the command line
    heavy = {"numpy", "ml_dtypes", "typer", "rich", "safetensors", "hypothesis"}
    for node in module.tree.body:
        names = (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )

        assert not (heavy - allowed) & {n.split(".")[0] for n in names}, f"{module.path.name}:{node.lineno}"


@pytest.mark.parametrize("folder", OPEN_FOLDERS)
def test_a_plugin_is_called_what_its_file_is_called(folder: str) -> None:
    kind = {"formats": "FORMAT", "layouts": "LAYOUT", "families": "FAMILY"}[folder]
    stems = [p.stem for p in (PACKAGE / folder).glob("[a-z]*.py")]
    assert stems
    for stem in stems:
        value = getattr(importlib.import_module(f"ckptmigrate.{folder}.{stem}"), kind)

        assert value.name == stem


def test_every_error_reaches_the_root_and_is_drawn() -> None:
    from ckptmigrate import errors

    classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, BaseException)]
    assert len(classes) > 10
    for cls in classes:
        assert issubclass(cls, errors.CkptError)
        assert cls.__name__ in (errors.__doc__ or "")
        assert cls.__doc__


def test_every_exception_class_stands_in_errors() -> None:
    for module in MODULES:
        if module.name == "errors":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(b) for b in node.bases}
                assert not any(b.endswith(("Error", "Exception")) for b in bases), f"{module.path.name}:{node.lineno}"


def test_the_public_names_are_sorted_and_importable() -> None:
    import ckptmigrate

    assert ckptmigrate.__all__ == sorted(ckptmigrate.__all__)
    for name in ckptmigrate.__all__:
        assert getattr(ckptmigrate, name) is not None


def test_importing_the_package_imports_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, ckptmigrate; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'typer', 'rich', 'click', 'safetensors', 'ml_dtypes'}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout

    assert shown.strip() == "[]"


def test_no_room_is_called_utils() -> None:
    names = {p.stem for p in PACKAGE.rglob("*.py")} | {p.name for p in PACKAGE.rglob("*") if p.is_dir()}

    assert not {"utils", "helpers", "common", "misc"} & names


def test_no_path_of_a_workplace_is_committed() -> None:
    import subprocess

    listed = (
        subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    )
    pattern = re.compile(rb"/" + rb"work/|farm" + rb"-|\.library" + rb"/")
    for name in filter(None, listed):
        path = ROOT / name
        if path.is_file():
            assert not pattern.search(path.read_bytes()), name


def test_the_museum_is_as_it_was_delivered() -> None:
    import hashlib

    museum = ROOT / "tests" / "fixtures"
    lines = (line.split("  ", 1) for line in (museum / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    files = {f"./{p.relative_to(museum)}": p for p in museum.rglob("*") if p.is_file() and p.name != "SHA256SUMS"}

    assert set(sums) == set(files)
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == sums[name], name
