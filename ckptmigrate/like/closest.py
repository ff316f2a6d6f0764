"""Which names could be meant by one that does not fit: those that share most of its parts, of its own shape first."""

from __future__ import annotations

from collections import Counter, defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckptmigrate.tensor import Shape

ASKED = 500  # names that share a part, rarest parts first: "weight" stands in half of all names and tells nothing
TRIED = 12  # names that are compared letter by letter, which costs a millisecond each on a model of a thousand
SHOWN = 2
LIKE = 0.5  # of 1: below it a name of another shape has nothing to do with the one that is looked for


class Pool:
    """Names that nothing else matches, found again by their parts."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = shapes
        self.with_part: defaultdict[str, list[str]] = defaultdict(list)
        self.with_shape: dict[Shape, list[str]] = defaultdict(list)
        for name, shape in shapes.items():
            self.with_shape[shape].append(name)
            for part in set(name.split(".")):
                self.with_part[part].append(name)

    def closest(self, name: str, shape: Shape, *, alike: bool = True) -> str:
        """Give a text that names the closest, and which of them has the same shape; "" where nothing is close.

        ``alike`` False: names of another shape are of no use, however close they are.
        """
        shared: Counter[str] = Counter()
        for members in sorted((self.with_part[part] for part in set(name.split("."))), key=len):
            if shared.total() and shared.total() + len(members) > ASKED:
                break
            shared.update(members)
        shared.update(self.with_shape[shape][:TRIED])
        tried = sorted(shared, key=lambda other: (self.shapes[other] != shape, -shared[other]))[:TRIED]
        scored = sorted(((self._score(name, shape, other), other) for other in tried), reverse=True)
        found = [other for (same, score), other in scored if same or (alike and score >= LIKE)][:SHOWN]
        if not found:
            return ""
        return f"; closest of the unmatched: {' and '.join(self._told(other, shape) for other in found)}"

    def _score(self, name: str, shape: Shape, other: str) -> tuple[bool, float]:
        parts = SequenceMatcher(None, name.split("."), other.split(".")).ratio()
        letters = SequenceMatcher(None, name, other).ratio()
        return self.shapes[other] == shape, (parts + letters) / 2

    def _told(self, other: str, shape: Shape) -> str:
        own = self.shapes[other]
        return f"{other} (same shape)" if own == shape else f"{other} {list(own)}"
