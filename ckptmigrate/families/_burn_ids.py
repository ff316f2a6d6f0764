"""The number that a parameter id is, in any of the forms that Burn has written one.

==========  ===========================================  =====================================================
0.3-0.5     nanoid, 21 characters                        xxh64 of the text: Burn itself cannot read it
0.6-0.13    UUID, `30b82c23-788d-4d63-a743-ada258d5f13c`  ahash of its 16 bytes, with ahash's fixed keys
0.14        base32 of 6 bytes, or any text a user chose  the bytes before zeros, little-endian; other text: xxh64
0.15-0.21   base32 of 8 bytes                            little-endian
burnpack    a CBOR unsigned integer                      itself
==========  ===========================================  =====================================================

Base32 is RFC 4648's hex alphabet without padding, in either case, unused bits zero. Burn tries it before UUID, so a UUID without
hyphens is base32 of 20 bytes, at which Burn panics: it is hashed. Checked against 0.15.0 to 0.18.0 (`ids` of their expected.json).
"""

from __future__ import annotations

import re

_UUID = re.compile(r"(?:urn:uuid:)?\{?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\}?", re.IGNORECASE)
_DIGITS = {symbol: value for value, symbol in enumerate("0123456789abcdefghijklmnopqrstuv")}
_LONGEST = 45  # characters of a UUID with all that may stand around it; a longer text is neither
_LENGTHS = {0, 2, 4, 5, 7}  # characters beyond whole groups of 8 that a whole number of bytes can take
_MASK = (1 << 64) - 1

# ahash 0.8 with its fixed keys (digits of pi), as burn-std calls it for 16 bytes
_K0, _K1, _K2, _K3 = 0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89
_MULTIPLE = 6364136223846793005


def identify(text: int | str) -> int:
    """Give the id as a number: of a model's tensor and of an optimizer's entry alike."""
    if isinstance(text, int):
        return text if 0 <= text <= _MASK else hashed(str(text))
    if len(text) > _LONGEST:
        return hashed(text)
    raw = _base32(text)
    if raw is not None:
        return int.from_bytes(raw, "little") if len(raw) <= 8 else hashed(text)
    uuid = _UUID.fullmatch(text)
    return hashed(text) if uuid is None else _ahash(bytes.fromhex(uuid[1].replace("-", "")))


def _base32(text: str) -> bytes | None:
    if len(text) % 8 not in _LENGTHS:
        return None
    value = 0
    for symbol in text:
        digit = _DIGITS.get(symbol.lower()) if symbol.isascii() else None
        if digit is None:
            return None
        value = value << 5 | digit
    spare = len(text) * 5 % 8
    return None if value & ((1 << spare) - 1) else (value >> spare).to_bytes(len(text) * 5 // 8, "big")


def hashed(text: str) -> int:
    """Give the id of a text that is none: xxh64, as for a tensor that never had one, of its name."""
    import xxhash  # noqa: PLC0415 - few files need a hash

    return int(xxhash.xxh64_intdigest(text.encode(errors="surrogatepass")))


def _ahash(raw: bytes) -> int:
    low, high = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
    state = (_K1 + 16) * _MULTIPLE & _MASK
    mixed = _fold(low ^ _K2, high ^ _K3)
    state = _rotate(((state + _K0) & _MASK) ^ mixed, 23)
    return _rotate(_fold(state, _K0), state % 64)


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
