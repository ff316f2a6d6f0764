"""Ids of Burn's parameters: in every spelling the number that Burn makes of it."""

from __future__ import annotations

import json

import pytest

from .burn_family import identify
from .burn_records import FIXTURES


def real_ids() -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for path in FIXTURES.glob("0.*/expected.json"):
        expected = json.loads(path.read_text())
        for entry in [e for section in ("net", "zoo") for e in expected.get(section) or ()]:
            if isinstance(entry, dict) and entry.get("id_u64") is not None:
                found[entry["id"]] = int(entry["id_u64"])
        found.update((entry["text"], int(entry["u64"])) for entry in expected.get("ids", ()) if "u64" in entry)
    return sorted(found.items())


def test_every_id_is_the_number_that_burn_makes_of_it() -> None:
    wrong = {text: (identify(text), number) for text, number in real_ids() if identify(text) != number}

    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5800000000000", 42), ("83h0200000000", 123456), ("vvvvvvvvvvvvu", (1 << 64) - 1), ("VVVVVVVVVVVVU", (1 << 64) - 1),
        ("5kmiqb9d5k", 0x2D2D2D2D2D2D), ("3uu5e6vv7c", 65966861433887), ("", 0), ("00", 0),
        ("6e8bc430-9c3a-11d9-9669-0800200c9a66", 5535594764737385160), ("00000000-0000-0000-0000-000000000000", 9963963603434378466),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", 2905257854522272510), (0, 0), ((1 << 64) - 1, (1 << 64) - 1),
    ],
)  # fmt: skip
def test_ids_of_the_description(text: int | str, number: int) -> None:
    if text == "5kmiqb9d5k":
        number = int.from_bytes(b"\x2d" * 6, "little")

    assert identify(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "V1StGXR8_Z5jdHi6B-myT", "layer one/weight", "30b82c23788d4d63a743ada258d5f13c", "0000000000000000", "5800000000001", "ü", "a" * 100_000,
        "\ud800",
    ],
)  # fmt: skip
def test_a_text_that_burn_cannot_read_has_an_id_all_the_same(text: str) -> None:
    """Nanoids, free text, base32 of more than 8 bytes (Burn panics), unused bits that are set."""
    assert 0 <= identify(text) < 1 << 64
    assert identify(text) == identify(text) != identify(text + "x")
