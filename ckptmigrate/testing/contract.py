"""The contract that every format keeps, as plain functions; ``testing`` offers them to plugin authors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptmigrate.errors import CkptError
from ckptmigrate.format import Parts, ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor
from ckptmigrate.values import difference, walk

from .memory import Memory, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Clock = Callable[[], float]

    from ckptmigrate.format import Format

HEADS = 1 << 17  # bytes: two blocks of 64 KiB, head and tail, as a reader takes them before it knows anything
SECONDS = 5.0  # a refusal takes less
EVERY = 4096  # lengths up to here are tried one by one


def check_sniffs_own(form: Format, data: bytes, name: str = "example") -> None:
    """Check that a format claims its own file whatever it is called, from its head and tail only.

    A file that it only recognises is refused by name when it is read all the same.
    """
    source = Memory(data, name)
    match = form.sniff(source)
    assert match is not None, f"{form.name} does not claim its own file"
    assert match.format is form
    assert source.taken[0] <= max(len(data) // 2, HEADS), f"{form.name} read {source.taken[0]} bytes to claim a file"
    if match.refuse is not None:
        assert _refusal(form, source) is not None, f"{form.name} reads what it says it refuses"


def check_refuses_others(form: Format, data: bytes, name: str = "example") -> None:
    """Check that a format does not claim the file of another."""
    assert form.sniff(Memory(data, name)) is None, f"{form.name} claims a file of another format"


def check_reads_lazily(form: Format, data: bytes, options: ReadOptions | None = None) -> None:
    """Check that reading draws no tensor and takes no more than the bytes around them: names, shapes, directories."""
    source = Memory(data, drawable=False)
    parts = form.read(source, options or ReadOptions())
    held = sum({(r.offset, r.nbytes): r.nbytes for _, t in _tensors(parts) for r in t.promise.sources()}.values())
    budget = 2 * max(0, len(data) - held) + (
        1 << 17
    )  # names may be met twice (directory and member); heads are read in blocks
    assert source.taken[0] <= budget, (
        f"{form.name} read {source.taken[0]} of {len(data)} bytes, {held} of which are tensors"
    )


def check_truncation(
    form: Format,
    data: bytes,
    boundaries: Iterable[int] = (),
    options: ReadOptions | None = None,
    clock: Clock | None = None,
) -> None:
    """Check that a file cut anywhere is refused by an error of the tree, or says the same; each within SECONDS by ``clock`` (time.monotonic).

    Lengths tried: each up to 4 kB; then ``boundaries``, the ends of every tensor, one byte either side of both, and 64 others.
    """
    whole = _attempt(form, data, options, clock, "whole") or Parts()
    ends = {end for _, t in _tensors(whole) for r in t.promise.sources() for end in (r.offset, r.offset + r.nbytes)}
    ends |= {*boundaries, len(data), *range(0, len(data), max(1, len(data) // 64))}
    lengths = {*range(min(EVERY, len(data))), *(at + by for at in ends for by in (-1, 0, 1))}
    for length in sorted(n for n in lengths if 0 <= n < len(data)):
        found = _attempt(form, data[:length], options, clock, f"cut to {length} of {len(data)} bytes")
        if found is not None:
            differs = _difference(whole, found)
            assert differs is None, (
                f"{form.name} cut to {length} of {len(data)} bytes is read, and says other things: {differs}"
            )


def check_flips(
    form: Format, data: bytes, most: int = 1500, options: ReadOptions | None = None, clock: Clock | None = None
) -> None:
    """Check that a flipped bit gives a result or an error of the tree, never another exception; ``clock`` as above."""
    third = most // 3
    step = max(1, len(data) // third)
    places = {*range(min(third, len(data))), *range(max(0, len(data) - third), len(data)), *range(0, len(data), step)}
    for place in sorted(places):
        bit = place % 8
        flipped = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        _attempt(form, flipped, options, clock, f"bit {bit} of byte {place} flipped")


def check_same_bytes_twice(form: Format, parts: Parts, options: WriteOptions | None = None, name: str = "out") -> None:
    """Check that the same parts give the same bytes, also when they were read anew from these."""
    assert form.lay_out is not None
    options = options or WriteOptions()
    first = written(form.lay_out(parts, options, name))
    assert written(form.lay_out(parts, options, name)) == first
    if list(first) == [name] and not options.bare:
        again = form.read(Memory(first[name], name), ReadOptions())
        assert written(form.lay_out(again, options, name)) == first, f"{form.name} writes what it wrote in another way"


def check_round_trip(form: Format, parts: Parts, name: str = "out") -> None:
    """Check that what was laid out is read back: names in order, dtypes, shapes, elements, ties, numbers, notes."""
    assert form.lay_out is not None
    files = written(form.lay_out(parts, WriteOptions(), name))
    assert list(files) == [name], f"{form.name} laid out {list(files)}, expected one file"
    again = form.read(Memory(files[name], name), ReadOptions())
    differs = _difference(parts, again)
    assert differs is None, f"{form.name}: {differs}"
    assert ties(dict(_tensors(parts))) == ties(dict(_tensors(again)))


def _refusal(form: Format, source: Memory) -> CkptError | None:
    try:
        form.read(source, ReadOptions())
    except CkptError as error:
        return error
    return None


def _attempt(form: Format, data: bytes, options: ReadOptions | None, clock: Clock | None, what: str) -> Parts | None:
    """Sniff, read and draw; None where it is refused by an error of the tree."""
    started = clock() if clock else 0.0
    source = Memory(data)
    try:
        match = form.sniff(source)
        if match is None or match.refuse is not None:
            return None
        parts = form.read(source, options or ReadOptions())
        for _, tensor in _tensors(parts):
            tensor.promise.read(0, min(tensor.promise.numel, 1 << 16))
    except CkptError:
        return None
    except Exception as error:
        error.add_note(f"{form.name}, {what}: expected a result or a CkptError")
        raise
    finally:
        took = (clock() if clock else 0.0) - started
        assert took < SECONDS, f"{form.name}, {what}: took {took:.1f} s"
    return parts


def _tensors(parts: Parts) -> Iterator[tuple[Any, Tensor]]:
    yield from ((path, node) for path, node in walk([parts.tensors, parts.tree]) if isinstance(node, Tensor))


def _difference(a: Parts, b: Parts) -> str | None:
    try:
        return difference([a.tensors, a.tree, a.notes], [b.tensors, b.tree, b.notes], "values")
    except CkptError:
        return None  # a stream that is decoded when it is drawn is refused then


def ties(tensors: Mapping[Any, Tensor]) -> list[list[Any]]:
    """Give the names that share a promise with others and hold elements, set by set, in order."""
    groups: dict[Any, list[Any]] = {}
    for name, tensor in tensors.items():
        if tensor.promise.numel:
            groups.setdefault(tensor.promise, []).append(name)
    return [names for names in groups.values() if len(names) > 1]
