"""What Python files declare of chains and steps: run under private names, whatever is wrong with them told by file and line.

A file of a folder runs as ``ckptmigrate._loaded.at_<hash>.<folder>.<file>``, never as a top-level module, so that siblings may
import each other and nothing else can meet them by chance. Nothing is written beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError, MigratorError
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Chain, Migrator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

PRIVATE = "ckptmigrate._loaded"


@dataclass(frozen=True, slots=True)
class Offer:
    """A Chain or a Migrator, where it was found in words, and the file that it stands in, links followed."""

    value: Chain | Migrator
    where: str
    file: str | None = None

    @property
    def chain(self) -> str:
        """Give the name of the chain that it is or is of."""
        return self.value.name if isinstance(self.value, Chain) else self.value.chain

    @property
    def stem(self) -> str:
        """Give the name of the file or module, without folders and suffix."""
        return self.where.removesuffix(".py").replace("/", ".").rpartition(".")[2]


def is_step(file: str) -> bool:
    """Say whether a file of a folder is a step: Python, and neither shared nor hidden (an editor's lock, a copy's shadow)."""
    return file.endswith(".py") and not file.startswith(("_", "."))


def of_folder(package: str, folder: str, files: Sequence[str]) -> Iterator[Offer]:
    """Run a folder's files as modules of a package: its ``__init__.py`` for the Chain, then its steps. MigratorError names the file."""
    sys.modules[package] = _package(package, folder)
    if "__init__.py" in files:
        where = f"{folder}/__init__.py"
        with _telling(where):
            yield from _chain(_run(package, where, folder), where)
    for file in filter(is_step, files):
        where = f"{folder}/{file}"
        with _telling(where):
            yield _step(_run(f"{package}.{file[:-3]}", where), where)


def of_package(dotted: str) -> Iterator[Offer]:
    """Import a package and the steps in it, by their dotted names. MigratorError names the module."""
    with _telling(dotted):
        package = importlib.import_module(dotted)
        yield from _chain(package, dotted)
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            where = f"{dotted}.{info.name}"
            with _telling(where):
                yield _step(importlib.import_module(where), where)


def of_point(point: importlib.metadata.EntryPoint) -> list[Offer]:
    """Import what an entry point names: a Chain, a Migrator, a module with them, or a package whose modules are scanned."""
    whose = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
    with _telling(whose):
        found = [Offer(o.value, f"{o.where} ({whose})", o.file) for o in _offered(point.load(), point.value)]
        if not found:
            raise MigratorError(f"{point.value} has no CHAIN and no MIGRATOR")
    for offer in found:
        if offer.chain != point.name:
            raise MigratorError(f"is of chain {offer.chain!r}, and its entry point of {point.name!r}", path=offer.where)
    return found


def private_package(folder: str) -> str:
    """Give the dotted name under which a folder's files run, and forget what ran there before."""
    name = f"{PRIVATE}.at_{hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:16]}"
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.modules.setdefault(PRIVATE, _package(PRIVATE))
    if not any(isinstance(finder, _Siblings) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Siblings())
    sys.modules[name] = _package(name, folder)
    return name


@contextmanager
def _telling(where: str) -> Iterator[None]:
    """Turn whatever a file raises, an exit too, into a MigratorError that names it, and the line where there is one."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, MigratorError) and error.path is not None:
            raise
        told = error.message if isinstance(error, CkptError) else f"{type(error).__name__}: {error}"
        raise MigratorError(_line(where, error) + told, path=where) from error


def _line(where: str, error: BaseException) -> str:
    """Give "line 7: " where the traceback passes through the file that was run, else file and line of its last foreign frame."""
    own = str(Path(__file__).parent.parent)
    last = ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.endswith(where):
            return f"line {frame.lineno}: "
        foreign = not frame.filename.startswith((own, "<")) and "/importlib/" not in frame.filename
        last = last or (f"{frame.filename}, line {frame.lineno}: " if foreign else "")
    return "" if where.endswith(".py") else last


def _chain(module: ModuleType, where: str) -> Iterator[Offer]:
    value = getattr(module, "CHAIN", None)
    if isinstance(value, Chain):
        yield Offer(value, where, _file(module))
    elif value is not None:
        raise MigratorError(f"CHAIN is {_a(value)}, expected a Chain")


def _step(module: ModuleType, where: str) -> Offer:
    value = getattr(module, "MIGRATOR", None)
    if isinstance(value, Migrator):
        return Offer(value, where, _file(module))
    found = "declares no MIGRATOR" if value is None else f"MIGRATOR is {_a(value)}, expected a Migrator"
    raise MigratorError(f"{found}; the name of a file that is no step begins with an underscore")


def _offered(target: object, where: str) -> Iterator[Offer]:
    if isinstance(target, Chain | Migrator):
        yield Offer(target, where)
        return
    if not isinstance(target, ModuleType):
        raise MigratorError(f"gives {_a(target)}, expected a module, a Chain or a Migrator")
    yield from _chain(target, target.__name__)
    if hasattr(target, "MIGRATOR"):
        yield _step(target, target.__name__)
    for info in pkgutil.iter_modules(getattr(target, "__path__", ())):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{target.__name__}.{info.name}")
            with _telling(module.__name__):
                yield _step(module, module.__name__)


def _file(module: ModuleType) -> str | None:
    return None if module.__file__ is None else str(Path(module.__file__).resolve())


def _a(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _package(name: str, folder: str | None = None) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = [] if folder is None else [folder]
    return package


def _run(name: str, path: str, folder: str | None = None) -> ModuleType:
    spec = _spec(name, path, folder)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there, and siblings import each other by it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _spec(name: str, path: str, folder: str | None) -> ModuleSpec:
    inner = None if folder is None else [folder]
    spec = importlib.util.spec_from_file_location(name, path, loader=_Text(path), submodule_search_locations=inner)
    if spec is None:
        raise MigratorError("is no Python file")
    return spec


class _Text(SourceLoader):
    """Runs a file from its text. Python's own loader would leave a ``__pycache__`` in a folder that is somebody's source."""

    def __init__(self, path: str) -> None:
        self._path = path

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002 - a loader has this face
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        with Disk() as disk:
            source = disk.open(str(path))
            return source.read(0, source.size)


class _Siblings(MetaPathFinder):
    """Finds what the files of a folder import of each other, and nothing else."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - a finder has this face
    ) -> ModuleSpec | None:
        leaf = fullname.rpartition(".")[2]
        for folder in (path or ()) if fullname.startswith(f"{PRIVATE}.") else ():
            for file, inner in ((f"{folder}/{leaf}/__init__.py", f"{folder}/{leaf}"), (f"{folder}/{leaf}.py", None)):
                if Path(file).is_file():
                    return _spec(fullname, file, inner)
        return None
