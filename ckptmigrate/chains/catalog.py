"""The chains that can be found, and the steps of each.

    ckptmigrate/migrations/acme_vit/__init__.py       CHAIN = Chain("acme.vit", …)       may be absent
                                    v2_0_split_qkv.py MIGRATOR = Migrator("acme.vit", "2.0", …)
                                    _shared.py        not a step

The names of a chain and a version are those inside; folder and file mirror them (dots as underscores) and a mismatch is an error.
Other folders hold chain folders or steps directly; installed packages offer the same values through entry points of the group
``ckptmigrate.migrators``, named after their chain and imported only when that name is needed. Whatever does not load poisons its
own chain and no other.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import pkgutil
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptmigrate.errors import CkptError, MigratorError, UsageError
from ckptmigrate.files import Disk
from ckptmigrate.migrator import Chain, Migrator

from . import loading
from .loading import is_step

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .loading import Offer

GROUP = "ckptmigrate.migrators"


@dataclass(frozen=True, slots=True)
class Step:
    """A migrator and where it was found, in words; ``file``: the file that it stands in, links followed."""

    migrator: Migrator
    where: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One chain as ``ckptmigrate chains`` shows it: its versions in order, where they lie, or why it does not load."""

    name: str
    versions: tuple[str, ...]
    where: tuple[str, ...]
    automatic: bool
    error: str | None = None
    family: str | None = None
    about: str = ""


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
                self.add_package(f"{name}.{folder.name}")

    def add_package(self, dotted: str) -> None:
        """Take the chain of one package, which bears its folder's name."""
        self._take_folder(loading.of_package(dotted), dotted.rpartition(".")[2])

    def add_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        """Remember what an installed package offers under a chain's name, without importing it."""
        self._points.setdefault(point.name, []).append(point)

    def add_folder(self, folder: Path | str) -> None:
        """Take the chain folders of a folder and the steps that lie directly in it, of which one that does not load is a MigratorError."""
        inner: dict[str, list[str]] = {}
        with Disk() as disk:
            source = disk.open(folder)
            if not source.is_folder():
                raise UsageError("is no folder of migrations", path=str(folder))
            root, direct = source.name, []
            for name in (each for each in source.children() if not each.startswith(".")):
                try:
                    child = disk.open(
                        f"{root}/{name}"
                    )  # of its own accord: a chain's folder may be a link to elsewhere
                    if child.is_folder():
                        inner[name] = child.children()
                    else:
                        direct.append(name)
                except CkptError as error:
                    self._poison(self._called(name), str(error))
        package = loading.private_package(root)
        if "__init__.py" in direct or any(map(is_step, direct)):
            for offer in loading.of_folder(package, root, direct):
                self._take_file(offer)
        for name, files in inner.items():
            if "__init__.py" in files or any(map(is_step, files)):
                self._take_folder(loading.of_folder(f"{package}.{name}", f"{root}/{name}", files), name)

    def add_chain(self, chain: Chain, where: str) -> None:
        """Take a chain's declaration; another of its name that says something else poisons it."""
        if chain.name in self._chains and self._chains[chain.name] != chain:
            self._poison(chain.name, f"{self._declared[chain.name]} and {where} declare it, and differ")
            return
        self._chains[chain.name], self._declared[chain.name] = chain, where

    def add_step(self, step: Step) -> None:
        """Take a step; the same file found twice (in a project's folder, and installed from there) is one step."""
        migrator, steps = step.migrator, self._steps.setdefault(step.migrator.chain, [])
        for other in steps:
            if other.migrator.release == migrator.release:
                same = other.where == step.where if step.file is None else other.file == step.file
                if not same:
                    self._poison(migrator.chain, f"{other.where} and {step.where} both lead to {migrator.version}")
                return
        steps.append(step)

    def names(self) -> list[str]:
        """Give the names of all chains, loaded or not."""
        return sorted({*self._chains, *self._steps, *self._points, *self.broken})

    def has(self, name: str) -> bool:
        """Say whether a chain is here, whole or broken."""
        return name in self.names() or self._broken_as(name) is not None

    def loaded(self) -> list[Chain]:
        """Give the chains that are loaded and whole, by name; installed ones only after they were asked for."""
        for name in sorted({*self._chains, *self._steps}.intersection(self._points)):
            with suppress(
                MigratorError
            ):  # what an installed package adds to it may break it, and is known from then on
                self._need(name)
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
            except CkptError:
                rows.append(Row(name, (), (), automatic=False, error=self.broken[name]))
            else:
                versions = tuple(step.migrator.version for step in steps)
                where = tuple(dict.fromkeys(step.where for step in steps))
                rows.append(Row(name, versions, where, chain.automatic, None, chain.family, chain.about))
        return rows

    def _need(self, name: str) -> None:
        for point in self._points.pop(name, ()):
            try:
                for offer in loading.of_point(point):
                    self._take(offer)
            except MigratorError as error:
                self._poison(name, str(error))
        broken = self._broken_as(name)
        if broken is not None:
            raise MigratorError(f"chain {name} does not load: {self.broken[broken]}", chain=name)
        if name not in self._chains and name not in self._steps:
            known = self.names()
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else "install the package that has it, or name its folder with --migrations"
            )
            raise UsageError(
                f"no chain is called {name}; there are: {', '.join(known) or 'none'}", present=known, hint=hint
            )

    def _broken_as(self, name: str) -> str | None:
        """Give the name under which a chain is known to be broken: its own, or the one guessed from a folder that never told."""
        if name in self.broken:
            return name
        if name in self._chains or name in self._steps:
            return None
        return next((each for each in self.broken if _folder(each) == _folder(name)), None)

    def _poison(self, name: str, reason: str) -> None:
        self.broken.setdefault(name, reason)

    def _called(self, folder: str) -> str:
        """Give the name of the chain of a folder: the one declared there, else the folder's with dots."""
        known = (name for name in (*self._chains, *self._steps) if _folder(name) == folder)
        return next(known, folder.replace("_", "."))

    def _take_folder(self, offers: Iterable[Offer], folder: str) -> None:
        """Take the one chain of a folder; whatever is wrong in it poisons that chain alone."""
        first: list[Offer] = []
        try:
            for offer in offers:
                _check_folder(offer, folder, first)
                self._take_file(offer)
        except MigratorError as error:
            self._poison(first[0].chain if first else self._called(folder), str(error))

    def _take_file(self, offer: Offer) -> None:
        """Take what a file declares; a step's file mirrors its version."""
        if isinstance(offer.value, Migrator):
            version = offer.value.version
            mirrored = "v" + re.sub(r"[^0-9A-Za-z]", "_", version)
            if not re.fullmatch(rf"{mirrored}(_[A-Za-z_]\w*)?", offer.stem):
                named = f"its name is {mirrored}_SLUG.py, not {offer.stem}.py (a slug begins with a letter)"
                raise MigratorError(f"leads to {version}, so {named}", path=offer.where)
        self._take(offer)

    def _take(self, offer: Offer) -> None:
        if isinstance(offer.value, Chain):
            self.add_chain(offer.value, offer.where)
        else:
            self.add_step(Step(offer.value, offer.where, offer.file))


def _check_folder(offer: Offer, folder: str, first: list[Offer]) -> None:
    """Refuse what is of another chain than its folder, or than the first that was found there; that is put into ``first``."""
    if folder != _folder(offer.chain):
        mirrored = f"whose folder is {_folder(offer.chain)!r}, not {folder!r}"
        raise MigratorError(f"is of chain {offer.chain!r}, {mirrored}", path=offer.where)
    first.append(offer)
    if offer.chain != first[0].chain:
        raise MigratorError(
            f"is of chain {offer.chain!r}, and {first[0].where} of {first[0].chain!r}", path=offer.where
        )


def _folder(chain: str) -> str:
    return chain.replace(".", "_")
