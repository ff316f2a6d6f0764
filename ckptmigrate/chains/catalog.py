"""The chains that can be found, and the steps of each.

    ckptmigrate/migrations/acme_vit/__init__.py       CHAIN = Chain("acme.vit", …)       may be absent
                                    v2_0_split_qkv.py MIGRATOR = Migrator("acme.vit", "2.0", …)
                                    _shared.py        not a step

The names of a chain and a version are those inside; folder and file mirror them (dots as underscores) and a mismatch is an error.
Other folders hold chain folders or steps directly; installed packages offer the same values through entry points of the group
``ckptmigrate.migrators``, named after their chain and imported only when that name is needed. Whatever does not load poisons its
own chain and no other. Files run as Python under a private name, never as a top-level module.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
import tomllib
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from ckptmigrate.errors import CkptError, MigratorError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Chain, Migrator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

GROUP = "ckptmigrate.migrators"
PRIVATE = "ckptmigrate._loaded"


@dataclass(frozen=True, slots=True)
class Step:
    """A migrator and where it was found."""

    migrator: Migrator
    where: str


@dataclass(frozen=True, slots=True)
class Row:
    """One chain as ``ckptmigrate chains`` shows it: its versions in order, where they lie, or why it does not load."""

    name: str
    versions: tuple[str, ...]
    where: tuple[str, ...]
    automatic: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Project:
    """What a project says of itself: ``[tool.ckptmigrate]`` of a ``pyproject.toml``; folders are absolute."""

    migrations: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()


def project(path: Path | str) -> Project:
    """Read ``[tool.ckptmigrate]`` of a ``pyproject.toml``; UsageError where it is not what it should be."""
    with Disk() as disk:
        source = disk.open(path)
        text = source.read(0, source.size)
        folder = source.name.rpartition("/")[0]
    try:
        said = tomllib.loads(text.decode()).get("tool", {}).get("ckptmigrate", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"is no TOML: {error}", path=str(path)) from error
    lists = {}
    for key, value in said.items() if isinstance(said, dict) else [("tool.ckptmigrate", said)]:
        if (
            key not in {"migrations", "chains"}
            or not isinstance(value, list)
            or not all(isinstance(v, str) for v in value)
        ):
            raise UsageError(
                f"[tool.ckptmigrate] {key}: expected migrations = [folders] and chains = [names]", path=str(path)
            )
        lists[key] = tuple(value)
    folders = tuple(
        each if each.startswith("/") or not folder else f"{folder}/{each}" for each in lists.get("migrations", ())
    )
    return Project(folders, lists.get("chains", ()))


class Catalog:
    """Chains and steps by name. What is broken is known with its reason; an entry point is imported when it is asked for."""

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}
        self._chains: dict[str, Chain] = {}
        self._declared: dict[str, str] = {}  # chain -> where its Chain was declared
        self._steps: dict[str, list[Step]] = {}
        self._points: dict[str, list[importlib.metadata.EntryPoint]] = {}

    @classmethod
    def find(cls, folders: Iterable[Path | str] = ()) -> Catalog:
        """Give everything there is: the shipped chains, installed ones by name, and those of the given folders."""
        catalog = cls()
        catalog.add_own()
        for point in importlib.metadata.entry_points(group=GROUP):
            catalog.add_entry_point(point)
        for folder in folders:
            catalog.add_folder(folder)
        return catalog

    def add_own(self) -> None:
        """Take the chains that lie in this package; none where it was built without them."""
        name = "ckptmigrate.migrations"
        try:
            package = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return
        for folder in pkgutil.iter_modules(package.__path__):
            if folder.ispkg:
                self._take_package(f"{name}.{folder.name}", folder.name)

    def add_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        """Remember what an installed package offers under a chain's name, without importing it."""
        self._points.setdefault(point.name, []).append(point)

    def add_folder(self, folder: Path | str) -> None:
        """Take the chain folders and the steps that lie directly in a folder; MigratorError for a step that does not load."""
        with Disk() as disk:
            source = disk.open(folder)
            if not source.is_folder():
                raise UsageError("is no folder of migrations", path=str(folder))
            root = source.name
            names = source.children()
            inner = {name: source.child(name).children() for name in names if source.child(name).is_folder()}
        package = _private_package(root)
        direct = [name for name in names if name not in inner]
        if "__init__.py" in direct or any(_is_step(name) for name in direct):
            self._take_files(package, root, direct, None)
        for name, files in inner.items():
            if "__init__.py" in files or any(_is_step(file) for file in files):
                self._take_files(f"{package}.{name}", f"{root}/{name}", files, name)

    def names(self) -> list[str]:
        """Give the names of all chains, loaded or not."""
        return sorted({*self._chains, *self._steps, *self._points, *self.broken})

    def loaded(self) -> list[Chain]:
        """Give the chains that are loaded and whole, by name; installed ones only after they were asked for."""
        return [self.chain(name) for name in sorted({*self._chains, *self._steps} - {*self.broken})]

    def chain(self, name: str) -> Chain:
        """Give a chain; MigratorError says why it does not load, UsageError what there is instead."""
        self._need(name)
        return self._chains.get(name) or Chain(name)

    def steps(self, name: str) -> tuple[Step, ...]:
        """Give a chain's steps in the order of their versions; errors as ``chain``."""
        self._need(name)
        return tuple(sorted(self._steps.get(name, ()), key=lambda step: step.migrator.release))

    def rows(self) -> list[Row]:
        """Give a row for every chain, each installed one imported to see whether it loads."""
        rows = []
        for name in self.names():
            try:
                steps, chain = self.steps(name), self.chain(name)
            except CkptError as error:
                rows.append(Row(name, (), (), automatic=False, error=error.message))
            else:
                versions = tuple(step.migrator.version for step in steps)
                rows.append(Row(name, versions, tuple(dict.fromkeys(step.where for step in steps)), chain.automatic))
        return rows

    def _need(self, name: str) -> None:
        for point in self._points.pop(name, ()):
            self._take_entry_point(point)
        if name in self.broken:
            raise MigratorError(f"chain {name} does not load: {self.broken[name]}", chain=name)
        if name not in self._chains and name not in self._steps:
            known = self.names()
            raise UsageError(f"no chain is called {name}; there are: {', '.join(known) or 'none'}", present=known)

    def _poison(self, name: str, reason: str) -> None:
        self.broken.setdefault(name, reason)

    def _take_package(self, dotted: str, folder: str) -> None:
        """Import a chain's package and the steps in it, by their dotted names."""
        where = dotted
        try:
            package = importlib.import_module(dotted)
            self._take_chain(package, dotted, folder)
            for info in pkgutil.iter_modules(package.__path__):
                where = f"{dotted}.{info.name}"
                if not info.name.startswith("_"):
                    self._take_step(importlib.import_module(where), info.name, folder)
        except Exception as error:  # noqa: BLE001 - whatever a chain's file raises is that chain's trouble alone
            self._poison(self._called(folder), f"{where}: {_told(error)}")

    def _take_files(self, package: str, root: str, files: Sequence[str], folder: str | None) -> None:
        """Run the files of one folder under private names: its ``__init__.py`` for the chain, then its steps."""
        sys.modules[package] = _package(package, root)
        where = root
        try:
            if "__init__.py" in files:
                where = f"{root}/__init__.py"
                self._take_chain(_run(package, where, root), where, folder)
            for file in filter(_is_step, files):
                where = f"{root}/{file}"
                self._take_step(_run(f"{package}.{file[:-3]}", where), file[:-3], folder)
        except Exception as error:
            reason = f"{where}: {_told(error)}"
            if folder is None:  # steps beside each other: nothing but the broken file itself would tell their chain
                raise MigratorError(_told(error), path=where) from error
            self._poison(self._called(folder), reason)

    def _called(self, folder: str) -> str:
        """Give the name of the chain of a folder: the one declared there, else the folder's with dots."""
        known = (name for name in (*self._chains, *self._steps) if _folder(name) == folder)
        return next(known, folder.replace("_", "."))

    def _take_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        whose = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            found = list(_offered(point.load()))
            for where, value in found:
                name = value.name if isinstance(value, Chain) else value.chain
                if name != point.name:
                    raise MigratorError(f"{where} is of chain {name!r}")  # noqa: TRY301 - one place says what is wrong
                if isinstance(value, Chain):
                    self._add_chain(value, where)
                else:
                    self._add_step(value, f"{where} ({whose})")
            if not found:
                raise MigratorError(f"{point.value} has no CHAIN and no MIGRATOR")  # noqa: TRY301 - same
        except Exception as error:  # noqa: BLE001 - whatever another's import raises is that plugin's trouble alone
            self._poison(point.name, f"{whose}: {_told(error)}")

    def _take_chain(self, module: ModuleType, where: str, folder: str | None) -> None:
        chain = getattr(module, "CHAIN", None)
        if chain is None:
            return
        if not isinstance(chain, Chain):
            raise MigratorError(f"CHAIN is a {type(chain).__name__}, expected a Chain")
        if folder is not None and folder != _folder(chain.name):
            raise MigratorError(f"holds chain {chain.name!r}, whose folder is {_folder(chain.name)!r}, not {folder!r}")
        self._add_chain(chain, where)

    def _take_step(self, module: ModuleType, stem: str, folder: str | None) -> None:
        where = module.__file__ or module.__name__
        migrator = _migrator(module)
        if folder is not None and folder != _folder(migrator.chain):
            raise MigratorError(
                f"is of chain {migrator.chain!r}, whose folder is {_folder(migrator.chain)!r}, not {folder!r}"
            )
        mirrored = "v" + re.sub(r"[^0-9A-Za-z]", "_", migrator.version)
        if not re.fullmatch(rf"{mirrored}(_[A-Za-z_]\w*)?", stem):
            raise MigratorError(f"leads to {migrator.version}, so its name is {mirrored}_SLUG.py, not {stem}.py")
        self._add_step(migrator, where)

    def _add_chain(self, chain: Chain, where: str) -> None:
        if chain.name in self._chains and self._chains[chain.name] != chain:
            self._poison(chain.name, f"{self._declared[chain.name]} and {where} declare it, and differ")
            return
        self._chains[chain.name], self._declared[chain.name] = chain, where

    def _add_step(self, migrator: Migrator, where: str) -> None:
        for other in self._steps.setdefault(migrator.chain, []):
            if other.migrator.release == migrator.release:
                if other.where != where:
                    self._poison(migrator.chain, f"{other.where} and {where} both lead to {migrator.version}")
                return
        self._steps[migrator.chain].append(Step(migrator, where))


def _folder(chain: str) -> str:
    return chain.replace(".", "_")


def _is_step(file: str) -> bool:
    return file.endswith(".py") and not file.startswith("_")


def _told(error: BaseException) -> str:
    return error.message if isinstance(error, CkptError) else f"{type(error).__name__}: {error}"


def _migrator(module: ModuleType) -> Migrator:
    value = getattr(module, "MIGRATOR", None)
    if not isinstance(value, Migrator):
        raise MigratorError("has no MIGRATOR that is a Migrator")
    return value


def _offered(target: object, where: str | None = None) -> Iterator[tuple[str, Chain | Migrator]]:
    """Give what an entry point's value offers: a value itself, a module's, or those of a package's modules."""
    if isinstance(target, Chain | Migrator):
        yield where or "its value", target
        return
    if not isinstance(target, ModuleType):
        raise MigratorError(f"gives a {type(target).__name__}, expected a module, a Chain or a Migrator")
    if hasattr(target, "CHAIN"):
        yield from _offered(target.CHAIN, target.__name__)
    if hasattr(target, "MIGRATOR"):
        yield from _offered(target.MIGRATOR, target.__name__)
    for info in pkgutil.iter_modules(getattr(target, "__path__", ())):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{target.__name__}.{info.name}")
            yield module.__name__, _migrator(module)


def _private_package(root: str) -> str:
    """Give the dotted name under which a folder's files run, and forget what ran there before."""
    name = f"{PRIVATE}.at_{hashlib.sha256(root.encode()).hexdigest()[:16]}"
    for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.modules.setdefault(PRIVATE, _package(PRIVATE))
    sys.modules[name] = _package(name, root)
    return name


def _package(name: str, root: str | None = None) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = [] if root is None else [root]
    return package


def _run(name: str, path: str, root: str | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=None if root is None else [root]
    )
    if spec is None or spec.loader is None:
        raise MigratorError("is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there, and siblings import each other by it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def versions_of(steps: Iterable[Step]) -> Mapping[str, Step]:
    """Give the steps by the text of their version."""
    return {step.migrator.version: step for step in steps}
