"""The numbers that every reader obeys, each with its reason.

A claim in a file is compared with these before memory is taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one reading; all sizes in bytes."""

    header: int = 100_000_000  # safetensors' own bound of its header
    index: int = 64 * MiB  # a zip directory of half a million members
    pickle: int = (
        256 * MiB
    )  # the largest object pickles seen hold some 10 MiB of names; values without tensors may add more
    memo: int = 2_700_000  # entries; 100,000 tensors need 2 million, and Python's dictionary doubles to 170 MB at 2.8
    nodes: int = (
        5_000_000  # objects made by one pickle; 100,000 parameters with Adam's state make 3 million, more take 5 s
    )
    stack: int = 1_000_000  # items on a machine's stack
    nesting: int = 512  # containers within containers; real files stay under 30, Python's recursion under 1,000
    integer: int = KiB  # bytes of one integer; Python refuses str() above 4300 digits, 1785 bytes
    tensors: int = 1_000_000  # names in one file
    name: int = 64 * KiB  # bytes of one name
    dimensions: int = 64  # numpy's own bound
    text: int = 16 * MiB  # a JSON side file
    inflated: int = 64 * GiB  # one decoded stream
    ratio: int = 1032  # deflate cannot do better, so a larger claim is a lie
    expanded: int = 64 * GiB  # a tensor's bytes beyond what its storage holds (stride 0)
    expansion: int = 1024  # times its storage, above `small`
    small: int = 64 * MiB  # expansions up to here are harmless whatever their ratio
    files: int = 100_000  # in one folder


LIMITS = Limits()
