"""Small evil files, by name: every claim too large, every bomb, every call that nobody should make; each is made when asked for."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

# ---------------------------------------------------------------- pickles by hand

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MARK = b"("


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    if 0 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def numbers(values: tuple[int, ...]) -> bytes:
    return MARK + b"".join(map(number, values)) + b"t"


def storage(key: str = "0", count: int = 4, kind: str = "FloatStorage") -> bytes:
    return MARK + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(count) + b"tQ"


def tensor(size: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, count: int = 4) -> bytes:
    call = b"ctorch._utils\n_rebuild_tensor_v2\n" + MARK + storage(count=count) + number(offset)
    return call + numbers(size) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"


def state_dict(value: bytes) -> bytes:
    """Give a pickle of {"w": value}."""
    return b"\x80\x02}" + text("w") + value + b"s."


def hand_zip(pickled: bytes, data: bytes = bytes(16), *, deflated: bool = False) -> bytes:
    members = {"a/data.pkl": pickled, "a/byteorder": b"little", "a/data/0": data, "a/version": b"3\n"}
    return zipped(members, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def hand_legacy(pickled: bytes, keys: object = ("0",), tail: bytes = struct.pack("<q", 4) + bytes(16)) -> bytes:
    info = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    heads = b"".join(pickle.dumps(value, 2) for value in (MAGIC, PROTOCOL, info))
    return heads + pickled + pickle.dumps(list(keys) if isinstance(keys, tuple) else keys, 2) + tail


def hand_safetensors(header: bytes, data: bytes = b"", claimed: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + data


def named(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


def saved(value: object, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


# ---------------------------------------------------------------- evil files

COLLIDING = (1 << 61) - 1  # Python hashes its multiples to 0


def evil_pickles() -> Iterator[tuple[str, bytes]]:
    """Give object pickles; each goes into a zip and into a legacy stream."""
    yield "lists in lists, a million deep", state_dict(b"]" * 1_000_000 + b"a" * 999_999)
    yield "tuples in tuples, a million deep", state_dict(b")" + b"\x85" * 1_000_000)
    yield "marks, a million", b"\x80\x02" + MARK * 1_000_001 + b"."
    yield "dups, ten million", b"\x80\x02N" + b"2" * 10_000_000 + b"."
    yield "a memo index of two billion", b"\x80\x02}r\xff\xff\xff\x7f."
    yield "a memo of six million", b"\x80\x02}" + b"".join(b"r" + struct.pack("<I", i) for i in range(6_000_000)) + b"."
    yield "a memo as text of many digits", b"\x80\x02}p" + b"9" * 5000 + b"\n."
    yield "doubling lists", state_dict(b"]" + b"".join(b"q%c0]h%cah%ca" % (i, i, i) for i in range(60)))
    yield "doubling tuples", state_dict(b")" + b"2\x86" * 60)
    yield "a list that holds itself", state_dict(b"]q\x01h\x01a")
    yield "a dict that holds itself", state_dict(b"}q\x01" + text("x") + b"h\x01s")
    yield "text that claims 4 GB", b"\x80\x02}X\xff\xff\xff\xff."
    yield "text that claims 2^63 bytes", b"\x80\x04}\x8d" + b"\xff" * 7 + b"\x7f."
    yield "bytes that claim 2^63 bytes", b"\x80\x04}\x8e" + b"\xff" * 7 + b"\x7f."
    yield "a bytearray that claims 2^64 bytes", b"\x80\x05}\x96" + b"\xff" * 8 + b"."
    yield "an integer that claims 2 GB", b"\x80\x02\x8b\xff\xff\xff\x7f."
    yield "an integer of minus 2 GB", b"\x80\x02\x8b\x00\x00\x00\x80."
    yield "an integer of a megabyte", state_dict(b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20))
    yield "an integer of a million digits", state_dict(b"L" + b"9" * 1_000_000 + b"L\n")
    yield "a frame that claims 2^64 bytes", b"\x80\x04\x95" + b"\xff" * 8 + b"}."
    yield "protocol 200", b"\x80\xc8}."
    yield "an empty pickle", b""
    yield "a pop of nothing", b"\x80\x020."
    yield "a stop of nothing", b"\x80\x02."
    yield "a pickle without an end", b"\x80\x02}"
    yield (
        "keys that collide",
        b"\x80\x02}" + MARK + b"".join(number(COLLIDING * i) + b"N" for i in range(1, 40_000)) + b"u.",
    )
    yield (
        "a set of colliding numbers",
        state_dict(b"cbuiltins\nset\n]" + MARK + b"".join(number(COLLIDING * i) for i in range(1, 40_000)) + b"e\x85R"),
    )
    yield "a list as a key", b"\x80\x02}]Ns."
    yield "os.system", state_dict(b"cos\nsystem\n" + text("touch marker") + b"\x85R")
    yield (
        "os.system of protocol 4",
        state_dict(text("posix") + text("system") + b"\x93" + text("touch marker") + b"\x85R"),
    )
    yield "builtins.eval", state_dict(b"cbuiltins\neval\n" + text("open('marker', 'w')") + b"\x85R")
    yield (
        "builtins.getattr",
        state_dict(
            b"cbuiltins\ngetattr\ncos\nsystem\n" + text("__call__") + b"\x86R" + text("touch marker") + b"\x85R"
        ),
    )
    yield (
        "an instance with a state that is called",
        state_dict(b"(iposix\nsystem\n" + MARK + text("touch marker") + b"tR"),
    )
    yield (
        "subprocess.Popen as an object",
        state_dict(
            b"csubprocess\nPopen\n"
            + text("touch marker")
            + b"\x85\x81}bcos\nsystem\n"
            + text("touch marker")
            + b"\x85R"
        ),
    )
    yield "an extension code", b"\x80\x02\x82\x01."
    yield "torch.load of a file within", state_dict(b"ctorch\nload\n" + text("marker") + b"\x85R")
    yield "a name of a megabyte", state_dict(b"c" + b"a" * 1_000_000 + b"\nb\n)R")
    yield "a thousand calls", state_dict(b"]" + MARK + b"cos\nsystem\n)R" * 1000 + b"e")
    for what, made in evil_tensors():
        yield what, state_dict(made)


def evil_tensors() -> Iterator[tuple[str, bytes]]:
    """Give calls that rebuild tensors on a storage of four floats."""
    yield "a stride of 0 over 2^40", tensor((1 << 40,), (0,))
    yield "strides of 0 over 2^62", tensor((1 << 31, 1 << 31), (0, 0))
    yield "strides of 0 over 2^120", tensor((1 << 60, 1 << 60), (0, 0))
    yield "a negative stride", tensor((2,), (-1,), 3)
    yield "a negative size", tensor((-2, 2), (1, 1))
    yield "a negative offset", tensor((2,), (1,), -1)
    yield "a huge offset", tensor((2,), (1,), 1 << 62)
    yield "a size beyond the storage", tensor((5,), (1,))
    yield "a size of 2^63", tensor((1 << 63,), (1,))
    yield "a storage that claims 2^60 elements", tensor((2,), (1,), count=1 << 60)
    yield "a storage of minus one", tensor((2,), (1,), count=-1)
    yield "a hundred thousand dimensions", tensor((1,) * 100_000, (1,) * 100_000)
    yield "fewer strides than sizes", tensor((2, 2), (1,))
    yield (
        "a size that is text",
        b"ctorch._utils\n_rebuild_tensor_v2\n" + MARK + storage() + number(0) + text("22") + numbers((1,)) + b"\x89NtR",
    )
    yield (
        "a storage that is a number",
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        + MARK
        + number(3)
        + number(0)
        + numbers((1,))
        + numbers((1,))
        + b"\x89NtR",
    )
    yield (
        "a storage that is not there",
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        + MARK
        + storage("../../etc/passwd")
        + number(0)
        + numbers((1,))
        + numbers((1,))
        + b"\x89NtR",
    )
    yield (
        "a storage of a kind that is none",
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        + MARK
        + storage(kind="EvilStorage")
        + number(0)
        + numbers((1,))
        + numbers((1,))
        + b"\x89NtR",
    )
    yield (
        "a sparse tensor of 2^60 elements",
        b"ctorch._utils\n_rebuild_sparse_tensor\n"
        + MARK
        + b"ctorch.serialization\n_get_layout\n"
        + text("torch.sparse_coo")
        + b"\x85R"
        + MARK
        + tensor((2, 1), (1, 1))
        + tensor((1,), (1,))
        + numbers((1 << 30, 1 << 30))
        + b"\x89ttR",
    )
    yield (
        "a numpy array that claims 2^40 bytes",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        + MARK
        + b"K\x01"
        + numbers((1 << 40,))
        + b"cnumpy\ndtype\n"
        + text("u1")
        + b"K\x00K\x01\x87R"
        + MARK
        + b"K\x03"
        + text("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89C\x04abcdtb",
    )
    yield (
        "a numpy array of objects",
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        + MARK
        + b"K\x01"
        + numbers((1,))
        + b"cnumpy\ndtype\n"
        + text("O8")
        + b"K\x00K\x01\x87R"
        + MARK
        + b"K\x03"
        + text("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]cos\nsystem\natb",
    )


def evil_zips() -> Iterator[tuple[str, bytes]]:
    good = saved({"w": torch.ones(4), "v": torch.zeros(4)})
    members = {"a/data.pkl": state_dict(tensor((4,), (1,))), "a/data/0": bytes(16), "a/version": b"3\n"}
    plain = zipped(members)
    yield "a pickle of a gigabyte, deflated", deflate_bomb("a/data.pkl", 1 << 30)
    yield "a pickle of 200 MB of nothing, deflated", deflate_bomb("a/data.pkl", 200 << 20, b"N0", b"\x80\x02", b"}.")
    yield "a pickle of 200 MB of lists, deflated", deflate_bomb("a/data.pkl", 200 << 20, b"]", b"\x80\x02", b".")
    yield (
        "a pickle of 200 MB of marks and pops, deflated",
        deflate_bomb("a/data.pkl", 200 << 20, b"(1", b"\x80\x02", b"}."),
    )
    yield "a version of a gigabyte, deflated", deflate_bomb("a/version", 1 << 30)
    yield (
        "a storage that decodes to more than it claims",
        lying_size(hand_zip(state_dict(tensor((4,), (1,))), bytes(1 << 20), deflated=True), "a/data/0", 16),
    )
    yield (
        "a storage that claims 60 GB",
        lying_size(hand_zip(state_dict(tensor((4,), (1,))), bytes(1 << 20), deflated=True), "a/data/0", 0xEFFFFFFF),
    )
    yield "members that overlap (a quine)", overlapping()
    yield "one member for all names", same_member(50_000)
    yield "a member named twice", twice()
    yield "twenty thousand empty members", by_hand([(f"a/data/{i}", b"", 0, 0, 0) for i in range(20_000)])
    yield "names that climb out", zipped({f"../{name}": data for name, data in members.items()})
    yield "absolute names", zipped({f"/{name}": data for name, data in members.items()})
    yield (
        "a storage named with ..",
        zipped({"a/data.pkl": state_dict(tensor((4,), (1,))), "a/data/../data/0": bytes(16)}),
    )
    yield "no storage", zipped({"a/data.pkl": state_dict(tensor((4,), (1,)))})
    yield "no pickle", zipped({"a/data/0": bytes(16), "a/version": b"3\n"})
    yield "a version that is none", zipped({**members, "a/version": b"9" * 5000})
    yield "a byteorder that is none", zipped({**members, "a/byteorder": b"middle"})
    yield "only an end record", b"PK\5\6" + bytes(18)
    for name, field in {"entries": 10, "entries on this disk": 8, "directory size": 12, "directory offset": 16}.items():
        wide = 4 if field > 10 else 2
        end = plain.rindex(b"PK\5\6")
        for value in (b"\xff" * wide, b"\xfe" * wide, b"\x00" * wide):
            yield f"{name} is {value.hex()}", patched(plain, end + field, value)
    for directory in (plain.index(b"PK\1\2"),):
        for name, field in {"packed": 20, "size": 24, "header": 42}.items():
            for value in (b"\xff\xff\xff\xff", b"\xfe\xff\xff\xff", b"\xff\xff\xff\x7f"):
                yield f"a member's {name} is {value.hex()}", patched(plain, directory + field, value)
        for name, field in {"name length": 28, "extra length": 30, "comment length": 32}.items():
            yield f"a member's {name} is ffff", patched(plain, directory + field, b"\xff\xff")
    yield "an encrypted member", patched(plain, plain.index(b"PK\1\2") + 8, b"\x01\x00")
    yield "a method that is none", patched(plain, plain.index(b"PK\1\2") + 10, b"\x63\x00")
    yield "a zip within a zip within a comment", good + good[-22:-2] + b"\xff\xff" + good


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def deflate_bomb(name: str, nbytes: int, unit: bytes = b"\0", head: bytes = b"", tail: bytes = b"") -> bytes:
    """Give a zip whose one large member decodes to ``nbytes`` bytes and more: one block of deflate, again and again; no CRC."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = unit * ((1 << 20) // len(unit))
    packed = stream.compress(head) + stream.flush(zlib.Z_FULL_FLUSH)
    packed += (stream.compress(block) + stream.flush(zlib.Z_FULL_FLUSH)) * (nbytes >> 20)
    packed += stream.compress(tail) + stream.flush()
    others = {"a/version": b"3\n", "a/data.pkl": state_dict(b"N")}
    members = [(name, packed, 0, len(head) + nbytes + len(tail), 8)]
    members += [(n, d, zlib.crc32(d), len(d), 0) for n, d in others.items() if n != name]
    return by_hand(members)


def by_hand(members: list[tuple[str, bytes, int, int, int]]) -> bytes:
    """Give a zip of members (name, packed bytes, CRC, size, method)."""
    body, directory = b"", b""
    for name, packed, crc, size, method in members:
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0, crc, len(packed), size, len(name), 0)
        directory += (
            b"PK\1\2" + struct.pack("<H", 20) + fields + bytes(10) + struct.pack("<I", len(body)) + name.encode()
        )
        body += b"PK\3\4" + fields + name.encode() + packed
    count = len(members)
    return body + directory + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)


def lying_size(data: bytes, name: str, size: int) -> bytes:
    at = data.rindex(b"PK\1\2", 0, data.rindex(name.encode()))
    return patched(data, at + 24, struct.pack("<I", size))


def overlapping() -> bytes:
    """Give a zip one of whose members lies within another."""
    inner = zipped({"a/data/1": bytes(16)})
    data = bytearray(zipped({"a/data.pkl": state_dict(tensor((4,), (1,))), "a/data/0": inner, "a/data/1": bytes(16)}))
    last = data.rindex(b"PK\1\2")
    data[last + 42 : last + 46] = struct.pack("<I", data.index(b"PK\3\4", data.index(inner)))
    return bytes(data)


def same_member(count: int) -> bytes:
    """Give a zip in whose directory many names lead to one member."""
    body = by_hand([("a/data/0", bytes(16), zlib.crc32(bytes(16)), 16, 0)])
    at, end = body.index(b"PK\1\2"), body.rindex(b"PK\5\6")
    entry = body[at:end]
    directory = b"".join(entry[:-1] + bytes([48 + i % 10]) for i in range(count))
    return body[:at] + directory + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0)


def twice() -> bytes:
    pickled = state_dict(tensor((4,), (1,)))
    rows = [("a/data.pkl", pickled), ("a/data/0", bytes(16)), ("a/data/0", b"\x01" * 16)]
    return by_hand([(name, data, zlib.crc32(data), len(data), 0) for name, data in rows])


def evil_legacies() -> Iterator[tuple[str, bytes]]:
    fine = state_dict(tensor((4,), (1,)))
    yield "a storage that claims 2^62 elements", hand_legacy(fine, tail=struct.pack("<q", 1 << 62) + bytes(16))
    yield "a storage that claims minus one", hand_legacy(fine, tail=struct.pack("<q", -1) + bytes(16))
    yield "storage keys, two hundred thousand", hand_legacy(fine, tuple(map(str, range(200_000))))
    yield "storage keys that are no list", hand_legacy(fine, {"a": 1})
    yield "storage keys that are tensors", hand_legacy(fine, (("0",), 3))
    yield "a key twice", hand_legacy(fine, ("0", "0"), (struct.pack("<q", 4) + bytes(16)) * 2)
    yield "no keys", hand_legacy(fine, ())
    yield "bytes behind the last storage", hand_legacy(fine, tail=struct.pack("<q", 4) + bytes(16) + b"more")
    yield "cut in a storage", hand_legacy(fine)[:-5]
    yield "a magic number of another kind", pickle.dumps(MAGIC + 1, 2) + hand_legacy(fine)[14:]
    yield "a protocol of another kind", hand_legacy(fine).replace(pickle.dumps(PROTOCOL, 2), pickle.dumps(2002, 2))


def evil_safetensors() -> Iterator[tuple[str, bytes]]:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    data = bytes(8)
    for claimed in (1 << 63, (1 << 64) - 1, 100_000_001, 1 << 40, 0, 1):
        yield f"a header that claims {claimed} bytes", hand_safetensors(named(w=one), data, claimed)
    yield "lists in the header, a million deep", hand_safetensors(b'{"w":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    yield "objects in the header, deep", hand_safetensors(b'{"w":' * 200_000 + b"1" + b"}" * 200_000)
    yield (
        "a number of a million digits",
        hand_safetensors(named(w=one).replace(b"[2]", b"[" + b"9" * 1_000_000 + b"]"), data),
    )
    yield "a text that does not end", hand_safetensors(b'{"' + b"a" * 1_000_000)
    yield "spaces, ten million", hand_safetensors(b"{" + b" " * 10_000_000)
    yield "a shape of 2^120", hand_safetensors(named(w={**one, "shape": [1 << 60, 1 << 60]}), data)
    yield "a shape that wraps to 8 bytes", hand_safetensors(named(w={**one, "shape": [(1 << 62) + 1, 4]}), data)
    yield "a negative shape", hand_safetensors(named(w={**one, "shape": [-2]}), data)
    yield "a shape of floats", hand_safetensors(named(w={**one, "shape": [2.0]}), data)
    yield "a shape of a million dimensions", hand_safetensors(named(w={**one, "shape": [1] * 1_000_000}), data)
    yield "a shape that is true", hand_safetensors(named(w={**one, "shape": [True, 2]}), data)
    yield "offsets that go back", hand_safetensors(named(w={**one, "data_offsets": [8, 0]}), data)
    yield (
        "offsets beyond the file",
        hand_safetensors(named(w={**one, "data_offsets": [0, 1 << 62], "shape": [1 << 60]}), data),
    )
    yield "negative offsets", hand_safetensors(named(w={**one, "data_offsets": [-8, 0]}), data)
    yield "two tensors on one place", hand_safetensors(named(w=one, v=one), data)
    yield "a hole", hand_safetensors(named(w={**one, "data_offsets": [8, 16]}), bytes(16))
    yield "bytes behind the last tensor", hand_safetensors(named(w=one), bytes(16))
    yield (
        "a name twice",
        hand_safetensors(b'{"w":' + json.dumps(one).encode() + b',"w":' + json.dumps(one).encode() + b"}", data),
    )
    yield "a field twice", hand_safetensors(named(w=one).replace(b'"shape"', b'"shape":[1],"shape"'), data)
    yield "a dtype that is none", hand_safetensors(named(w={**one, "dtype": "F33"}), data)
    yield "a header that is a list", hand_safetensors(b"[]")
    yield "a header that is no JSON", hand_safetensors(b"{'w': 1}")
    yield "a header with NaN", hand_safetensors(b'{"w":NaN}')
    yield "metadata that is no text", hand_safetensors(named(__metadata__={"a": 1}, w=one), data)
    yield "our object, not ours", hand_safetensors(named(__metadata__={"ckptmigrate": "[" * 100_000}, w=one), data)
    yield "a lone surrogate as a name", hand_safetensors(named(w=one).replace(b'"w"', b'"\\ud800"'), data)
    yield "no utf-8", hand_safetensors(named(w=one).replace(b'"w"', b'"\xff"'), data)
    yield (
        "a million and one tensors",
        hand_safetensors(
            b'{"":{"dtype":"","shape":[],"data_offsets":[]}'
            + b',"":{"dtype":"","shape":[],"data_offsets":[]}' * 1_000_000
            + b"}"
        ),
    )


def evil_others() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "one byte", b"\x80"
    yield (
        "a Git LFS pointer",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
    )
    yield (
        "a Git LFS pointer of a size with many digits",
        b"version https://git-lfs.github.com/spec/v1\nsize " + b"9" * 900 + b"\n",
    )
    yield "an error page", b"<!DOCTYPE html><html><head><title>403</title></head></html>"
    yield "a page with a mark before it", b"\xef\xbb\xbf\n <html>" + b"x" * 10_000
    yield "an S3 error", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>'
    yield "a JSON error", b'{"error": "not found"}'
    yield "zeros", bytes(1_000_000)
    yield "ones", b"\xff" * 1_000_000
    yield "noise", hashlib.shake_128(b"noise").digest(1_000_000)
    yield "a gzip bomb", gzip.compress(bytes(100 << 20), 9)
    yield "twenty thousand empty gzip members", gzip.compress(b"") * 20_000
    yield "our record, deep", b'{"ckptmigrate":1,"record":' + b"[" * 1_000_000
    yield "our record, of another kind", b'{"ckptmigrate":1,"record":[]}'
    yield "our record, of the future", b'{"ckptmigrate":999}'
    yield "our record without tensors", b'{"ckptmigrate":1,"record":{}}'
    yield "a tar that is none", b"a" * 257 + b"ustar" + bytes(1000)


def evil() -> dict[str, bytes]:
    files = {}
    for what, pickled in evil_pickles():
        files[f"zip: {what}"] = hand_zip(pickled)
        if len(pickled) < 1_000_000:  # the machine is the same
            files[f"legacy: {what}"] = hand_legacy(pickled)
            files[f"pickle: {what}"] = pickled
    for kind, made in (
        ("zip", evil_zips),
        ("legacy", evil_legacies),
        ("safetensors", evil_safetensors),
        ("", evil_others),
    ):
        files |= {f"{kind}: {what}": data for what, data in made()}
    return files
