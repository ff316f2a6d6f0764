"""What neither elements nor names decided: dropped with its reason, added where it is one value, or said to a person."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from .composing import Added, Spec, compose
from .guesses import guesses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptmigrate.checkpoint import Checkpoint
    from ckptmigrate.tensor import Tensor

    from .derivation import Derivation
    from .evidence import Holding
    from .pairing import Paired

ONLY_OLD = "it is in the old checkpoint only"
NUMBERS = {"float", "int", "uint", "bool"}  # kinds whose one value can be written down
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """Operations of which a person takes what is meant, and why they are not taken here."""

    text: str
    specs: tuple[Spec, ...]


class Remains:
    """What is left on both sides: ``dropped`` names with their reasons, ``added`` ones, ``choices``, and ``open`` questions."""

    def __init__(
        self,
        old: Checkpoint,
        new: Checkpoint,
        paired: Paired,
        unsaid: Mapping[str, list[str]],
        theirs: Mapping[str, Holding],
        differ: Callable[[str, str], bool],
        *,
        contents: bool,
    ) -> None:
        self.old, self.new, self.paired, self.theirs, self.contents = old, new, paired, theirs, contents
        self.modules: dict[str, list[str]] = defaultdict(list)  # names that are not added, by every module around them
        self.dropped: dict[str, str] = {}
        self.added: list[Added] = []
        self.choices: list[Choice] = []
        self.open: list[str] = []
        self.asked: list[str] = []
        self.left = dict.fromkeys(paired.dropped)
        self.lacking = dict.fromkeys(paired.added)
        for choice in paired.choices:
            self._say("which of these names it has now, nothing tells", choice)
        self._unsaid(unsaid)
        for text, derivations in guesses(self.left, self.lacking, old.model, new.model, paired.derivations):
            self._say(text, derivations)
            self._settle(derivations)
        self._added()
        self._dropped(differ)

    def _settle(self, derivations: Sequence[Derivation]) -> None:
        for derivation in derivations:
            for name in derivation.sources:
                self.left.pop(name, None)
            for name in derivation.targets:
                self.lacking.pop(name, None)

    def _say(self, text: str, derivations: Sequence[Derivation]) -> None:
        """Keep candidates, alike ones as one operation, each candidate of one name by itself."""
        rivals: dict[tuple[str, ...], int] = {}
        rounds: dict[int, list[Derivation]] = defaultdict(list)
        for derivation in derivations:
            number = rivals[derivation.sources] = rivals.get(derivation.sources, -1) + 1
            rounds[number].append(derivation)
        specs = [s for each in rounds.values() for s in compose(each, {}, [], self.old.model, self.new.model)]
        sources = some([name for each in derivations for name in each.sources])
        targets = some([name for each in derivations for name in each.targets])
        self.choices.append(Choice(f"{sources} to {targets}: {text}", tuple(specs)))
        self.open.append(f"{sources} to {targets}: {text}; see the candidates")

    def _unsaid(self, unsaid: Mapping[str, list[str]]) -> None:
        for name, sources in unsaid.items():
            if name in self.lacking:
                self.open.append(f"{name} is made of lines of {some(sources)}, and no single operation says how")
                del self.lacking[name]
                for source in sources:
                    self.left.pop(source, None)

    def _added(self) -> None:
        """Add second names and constants; ask for the rest, those that differ in numbers alone at once."""
        for name in self.new.model:
            module = name if name not in self.lacking else ""
            while module:
                module = module.rpartition(".")[0]
                self.modules[module].append(name)
        families: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for name in self.lacking:
            holding = self.theirs[name]
            tie = next((other for other in holding.names if other not in self.lacking), None)
            if tie is not None:
                self.added.append(Added(name, tied=tie))
            elif (
                self.contents
                and holding.own.constant
                and holding.tensor.nbytes
                and holding.tensor.dtype.kind in NUMBERS
            ):
                self.added.append(self._filled(name, holding.tensor, _value(holding.tensor)))
            else:
                families[holding.own.shape, holding.own.dtype, name.rpartition(".")[2]].append(name)
        self.asked = [name for names in families.values() for name in names]
        for (shape, dtype, _), names in families.items():
            text = (
                f"{some(names)} {dtype} {list(shape)}: in the new checkpoint only, and nothing here says what it holds"  # type: ignore[call-overload] # a shape
            )
            added = [self._filled(name, self.new.model[name], 0) for name in names]
            self.choices.append(Choice(text, tuple(compose([], {}, added, (), self.new.model))))
            self.open.append(text)

    def _dropped(self, differ: Callable[[str, str], bool]) -> None:
        """Drop what is left; a candidate only where something that is still asked for may be made of it."""
        asked: dict[int, list[str]] = defaultdict(list)
        for name in self.asked:
            asked[prod(self.new.model[name].shape)].append(name)
        asked.pop(0, None)
        kept: list[str] = []
        for name in self.left:
            count = prod(self.old.model[name].shape)
            needed = count > 0 and any(
                not all(differ(name, other) for other in others) if size == count else 0 in {size % count, count % size}
                for size, others in asked.items()
            )
            if needed:
                kept.append(name)
            else:
                self.dropped[name] = ONLY_OLD
        if kept:
            text = f"{some(kept)}: in the old checkpoint only, unless what is asked for is made of it"
            specs = compose([], dict.fromkeys(kept, ONLY_OLD), [], self.old.model, self.new.model)
            self.choices.append(Choice(text, tuple(specs)))
            self.open.append(text)

    def _filled(self, name: str, tensor: Tensor, value: float) -> Added:
        near = self._near(name, tensor)
        beside = None if near is None else self.new.model[near]
        shape = None if beside is not None and beside.shape == tensor.shape else tensor.shape
        dtype = None if beside is not None and beside.dtype == tensor.dtype else tensor.dtype.name
        return Added(name, near=near, fill=value, shape=shape, dtype=dtype, role=tensor.role)

    def _near(self, name: str, tensor: Tensor) -> str | None:
        """Give a neighbour in the nearest module that has one which is not added itself, best one of the same shape."""
        module = name
        while module:
            module = module.rpartition(".")[0]
            beside = self.modules.get(module)
            if beside:
                return next((n for n in beside if self.new.model[n].shape == tensor.shape), beside[0])
        return None


def _value(tensor: Tensor) -> float:
    """Give the first element as a number of Python's, an integer where it is whole."""
    import numpy as np  # noqa: PLC0415 - an element is read

    element = np.frombuffer(tensor.promise.read(0, 1), tensor.dtype.numpy_dtype())[0]
    if tensor.dtype.kind == "bool":
        return bool(element)
    value = float(element)
    return int(element) if tensor.dtype.kind in {"int", "uint"} or value.is_integer() else value


def some(names: Sequence[str]) -> str:
    """Give the first few names, and how many more there are."""
    different = list(dict.fromkeys(names))
    more = len(different) - SHOWN
    return ", ".join(different[:SHOWN]) + (f" and {more} more" if more > 0 else "")
