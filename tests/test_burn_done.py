"""Everything that Burn's releases left, swept as a user meets it: opened by its path, converted, stamped, and shown to real Burn."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptmigrate
from ckptmigrate import errors
from ckptmigrate.format import GatherOptions, ReadOptions, WriteOptions
from ckptmigrate.tensor import Tensor

from .burn_records import SHARED, bare, ident, leaves, models, numbers, truth, unpacked
from .burn_runs import GOLDEN, NAMES, RECORDS, STATE_RUNS, STEPS, proof_of, run_of
from .burnpack_desk import referee, table_of
from .command_line import Ran

STATE_ERA = ("0.3.0", "0.4.0", "0.6.0")
RELEASES = (
    *STATE_ERA, "0.7.0", "0.8.0", "0.9.0", "0.11.1", "0.13.2", "0.14.0", "0.15.0", "0.17.1", "0.18.0", "0.19.1", "0.20.1",
    "0.21.0", "0.22.1",
)  # fmt: skip
WRITTEN = (".bpk", ".mpk", ".mpk.gz", ".bin", ".bin.gz", ".json", ".json.gz")
DOCUMENTS = re.compile(r"(^|-)expected\.json$|^proof\.json$|^schema-|^cross-load|^loads-of-")
BURNPACK_RELEASES = ("0.19.1", "0.20.1", "0.21.0")
REFUSED = {
    "broken-": (errors.TruncatedError, "a stump"),
    "optim-adam-partial": (
        errors.OptimizerError,
        "no momentum.time",
    ),  # of 0.4 alone: no parameter of rank 1 has one, --steps
}
needs_all = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the fixtures are not beside this checkout: shared/fixtures/burn"
)


def files(release: str) -> list[Path]:
    """Give every record that a release left (of 0.14.1's file nobody left a schema: the tests of bincode have one)."""
    found = [p for p in sorted((SHARED / release).rglob("*")) if p.name.endswith(WRITTEN) and p.is_file()]
    return [p for p in found if not DOCUMENTS.search(p.name) and p.name != "linear-full.bin"]


def options(path: Path) -> ReadOptions:
    """Give the schema that bincode needs, and dequantise what an old release quantised."""
    old = path.relative_to(SHARED).parts[0] != "0.22.1"
    if ".bin" not in path.name:
        return ReadOptions(dequantize=old)
    stem = re.sub(r"(-bytes|-bytes-nostd)?(-full|-half|-double)\.bin(\.gz)?$", "", path.name)
    schema = path.parent / f"schema-{'quant' if stem.startswith('quant') else stem}.json"
    return ReadOptions(schema=json.loads(schema.read_text()), dequantize=old)


def refusal(path: Path) -> tuple[type[errors.CkptError], str] | None:
    found = next((REFUSED[start] for start in REFUSED if path.name.startswith(start)), None)
    if path.name.startswith("optim-") and (path.parent.name != "0.4.0" or "-model" in path.name):
        return None
    return found


def held(release: str) -> dict[Path, list[dict[str, Any]]]:
    """Give what Burn held when it wrote a model's file, for every such file of a release."""
    said = {path: wanted for path, wanted in models(*WRITTEN) if path.relative_to(SHARED).parts[0] == release}
    all_of_it, folder = truth(SHARED / release), SHARED / release
    for path in folder.glob("*.bpk"):
        stem = path.stem
        if stem in {"net-metadata", "net-nometadata", "net-store", "zoo-store"}:
            said[path] = all_of_it[stem.partition("-")[0]]
        elif stem in {"twin", "trailing-empty"} and (stem, release) != ("twin", "0.19.1"):
            said[path] = all_of_it[stem]
        elif stem == "net-trained":
            said[path] = all_of_it["trained"]["net-trained.bpk"]
        elif stem == "net-trained-flushed":
            said[path] = all_of_it["trained"]["net-trained-flushed.bpk and trained-full.mpk"]
    return said


def check(path: Path, model: dict[str, Tensor], wanted: list[dict[str, Any]]) -> None:
    named = {bare(name): tensor for name, tensor in model.items()}
    names = [bare((e.get("bpk_name") if path.suffix == ".bpk" else None) or e["name"]) for e in wanted]
    ordered = list(named) if ident_of(path) not in STATE_ERA else sorted(named)
    assert ordered == (names if ident_of(path) not in STATE_ERA else sorted(names)), path
    for name, e in zip(names, wanted, strict=True):
        tensor = named[name]
        assert list(tensor.shape) == e.get("saved_shape", e["shape"]), (path, name)
        assert "id_u64" not in e or tensor.id == int(e["id_u64"]), (path, name)
        values = (
            np.array(e["bits"], "u4").view("f4") if "bits" in e else np.array(e.get("saved_values", e.get("values")))
        )
        found, kind = tensor.numpy().reshape(-1), e.get("kind", "float")
        if kind == "bool":
            assert tensor.dtype.name.lower().startswith("bool")
        elif kind == "int" and tensor.dtype.name == "F16":  # small integers of half precision look like halves: §4.1
            found = found.view("i2")
        elif kind == "float" and tensor.dtype.name == "F16":
            with np.errstate(over="ignore"):
                values = values.astype("f2")
        elif kind == "float":
            assert tensor.dtype.name == ("F64" if "-double" in path.name else "F32"), (path, name)
        assert np.array_equal(found.astype("f8"), values.astype("f8"), equal_nan=True), (path, name)


def ident_of(path: Path) -> str:
    return path.relative_to(SHARED).parts[0]


# ---------------------------------------------------------------- everything opens


@needs_all
@pytest.mark.parametrize("release", RELEASES)
def test_every_file_opens_as_what_it_is_with_what_burn_held(release: str) -> None:
    said, compared = held(release), set()
    for path in files(release):
        refused = refusal(path)
        if refused is not None:
            with pytest.raises(refused[0], match=refused[1]):
                ckptmigrate.open(path, read=options(path))
            continue
        with ckptmigrate.open(path, read=options(path)) as checkpoint:
            sections = [bool(checkpoint.model), bool(checkpoint.optimizers), bool(checkpoint.schedulers)]
            kind = path.name.partition("-")[0] if "-model" not in path.name else "model"
            alone = {"optim": 1, "scheduler": 2, "nothing.bpk": 2}.get(kind, 0)  # no tensors: a scheduler without state
            assert sections == [index == alone for index in range(3)], path
            if path in said:
                check(path, dict(checkpoint.model), said[path])
                compared.add(path)
    assert compared == set(said)


@needs_all
@pytest.mark.parametrize("release", [r for r in RELEASES if r not in {*STATE_ERA, "0.22.1"}])
def test_every_recorder_tells_of_an_optimizer_and_a_scheduler_what_burns_text_says(release: str) -> None:
    said = truth(SHARED / release)
    swept = 0
    for name in said["optim"]:
        text = SHARED / release / f"optim-{name}-full.json"
        record = unpacked(text)
        payloads = [leaf for _, leaf in leaves(record["item"], "") if isinstance(leaf, dict)]
        wanted = sorted((leaf["shape"], numbers(leaf, record["metadata"]["float"]).tolist()) for leaf in payloads)
        for path in sorted(text.parent.glob(f"optim-{name}-full.*")):
            with ckptmigrate.open(path, read=options(path)) as checkpoint:
                (optimizer,) = checkpoint.optimizers
                slots = [slot.value for param in optimizer.params for slot in (param.slots or {}).values()]
                tensors = [*drawn(slots), *drawn(optimizer.shared)]
                found = sorted((list(t.shape), t.numpy().reshape(-1).astype("f8").tolist()) for t in tensors)
            assert [shape for shape, _ in found] == [shape for shape, _ in wanted], path
            for (_, ours), (_, theirs) in zip(found, wanted, strict=True):
                assert np.array_equal(ours, theirs, equal_nan=True), path
            swept += 1
    assert swept >= 2 * len(said["optim"])
    for name in said["schedulers"]:
        paths = sorted((SHARED / release).glob(f"scheduler-{name}-full.*"))
        trees = []
        for path in paths:
            with ckptmigrate.open(path, read=options(path)) as checkpoint:
                trees.append(checkpoint.schedulers)
        assert len(trees) >= 2
        assert all(tree == trees[0] for tree in trees), name


def drawn(node: Any) -> list[Tensor]:
    """Give every tensor of a tree."""
    if isinstance(node, Tensor):
        return [node]
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
    return [tensor for part in below for tensor in drawn(part)]


# ---------------------------------------------------------------- bare and stamped


def apart(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give a file's table without offsets, and each tensor's bytes."""
    table = table_of(data)
    start = -(-(10 + int.from_bytes(data[6:10], "little")) // 256) * 256
    held_bytes = {}
    for name, entry in table["tensors"].items():
        begin, end = entry.pop("data_offsets")
        held_bytes[name] = data[start + begin : start + end]
    return table, held_bytes


def check_stamp(plain: bytes, stamped: bytes, *, record: bool) -> None:
    table, held_bytes = apart(stamped)
    metadata = table.pop("metadata", {})
    assert metadata.pop("ckptmigrate", None) is not None or not record
    other, other_bytes = apart(plain)
    assert (metadata, table, held_bytes) == (other.pop("metadata", {}), other, other_bytes)
    assert list(table["tensors"]) == list(other["tensors"])


@needs_all
@pytest.mark.parametrize("record", [r for r in RECORDS if r.suffix != ".bin" and ".bin" not in r.name], ids=ident)
def test_a_models_stamp_is_one_key(record: Path, tmp_path: Path) -> None:
    for name, free in (("bare", True), ("stamped", False)):
        write = WriteOptions(bare=free)
        ckptmigrate.migrate(record, tmp_path / f"{name}.bpk", write=write, migrations=(STEPS,))
    check_stamp((tmp_path / "bare.bpk").read_bytes(), (tmp_path / "stamped.bpk").read_bytes(), record=True)


@needs_all
@pytest.mark.parametrize("run", [*map(run_of, GOLDEN), *STATE_RUNS], ids=ident)
def test_a_runs_stamp_is_one_key(run: Path, tmp_path: Path) -> None:
    state = run in STATE_RUNS
    kind = "constant" if state else proof_of(run.parent / "golden" / run.name)["scheduler"]
    for name, free in (("bare", True), ("stamped", False)):
        gather = GatherOptions(epoch=3, scheduler=kind)
        ckptmigrate.migrate(run, tmp_path / name, gather=gather, write=WriteOptions(bare=free), migrations=(STEPS,))
    for file in NAMES:
        plain, stamped = ((tmp_path / name / file).read_bytes() for name in ("bare", "stamped"))
        check_stamp(plain, stamped, record=file == NAMES[0])  # an optimizer's file may have one: steps of its own


# ---------------------------------------------------------------- the State era, before real Burn


@needs_all
@pytest.mark.parametrize("release", STATE_ERA)
def test_burn_reads_of_every_state_model_what_the_old_release_held(release: str, tmp_path: Path) -> None:
    """The referee's net is 0.6's; the nets of 0.3 and 0.4 and every zoo of the era are of other shapes than any of its models."""
    for index, (path, wanted) in enumerate(held(release).items()):
        out = tmp_path / f"{index}.bpk"
        ckptmigrate.migrate(path, out)
        said = referee("read", out)
        assert said["ok"], said
        assert {bare(t["name"]): t["shape"] for t in said["tensors"]} == {bare(e["name"]): e["shape"] for e in wanted}
        strict = release == "0.6.0" and "zoo" not in path.name
        target = "zoo" if "zoo" in path.name else "net" if release == "0.6.0" else "lean"
        loaded = referee("load", out, target, *([] if strict else ["--partial"]))
        assert loaded["ok"], (path, loaded)
        unfit = {m["name"] for m in loaded.get("mismatched", [])}
        assert unfit == ({"fc.0.weight"} if target == "lean" else set()), path
        found = {bare(t["name"]): t["values"] for t in said["tensors"]}
        found |= {
            bare(p["name"]): p["values"]
            for p in loaded["params"]
            if bare(p["name"]) in found and p["name"] not in unfit
        }
        for e in wanted:
            values = np.array(e["values"])
            with np.errstate(over="ignore"):
                values = values.astype("f2") if "f16" in str(path) else values
            assert np.array_equal(np.array(found[bare(e["name"])], "f8"), values.astype("f8")), (path, e["name"])


@needs_all
@pytest.mark.parametrize("run", [r for r in STATE_RUNS if r.parent.name == "0.6.0"], ids=ident)
def test_burn_resumes_the_runs_of_0_6_but_for_the_gradient_that_0_6_had_wrong(run: Path, tmp_path: Path) -> None:
    """0.6 gave a convolution's bias before a batch norm a gradient of tens where it is none; nothing but the mean follows it."""
    said = truth(run.parent)["runs"][run.name]
    ckptmigrate.migrate(run, tmp_path / "out", gather=GatherOptions(epoch=3, scheduler="constant"))
    adam, rate = "adam" in run.name, json.loads(said["config"])["learning_rate"]
    resumed = referee(
        "resume", tmp_path / "out", "3", "adam" if adam else "sgd-momentum", "constant", json.dumps({"lr": rate})
    )

    assert resumed["ok"], resumed
    assert [resumed["optim_unclaimed"], resumed["scheduler_unclaimed"]] == [[], []]
    wanted = said["resume_from_files"]
    assert np.allclose(resumed["lrs"], wanted["lrs"], rtol=0, atol=1e-12)
    allowed = 5e-6 if adam else 1.08e-3  # weight decay by the previous gradient, as in 0.7 and 0.8
    assert np.allclose(resumed["losses"], wanted["losses"], rtol=0, atol=allowed)
    final = {p["name"]: p["values"] for p in resumed["final"]}
    for parameter in wanted["model"]:
        if parameter["name"] not in {"conv.bias", "norm.running_mean"}:
            assert np.allclose(final[parameter["name"]], parameter["values"], rtol=0, atol=allowed), parameter["name"]


# ---------------------------------------------------------------- outcomes of their own


@needs_all
@pytest.mark.parametrize("suffix", [".mpk", ".mpk.gz", ".json", ".json.gz", ".bin", ".bin.gz"])
def test_the_zoo_of_0_11_with_its_counts_is_the_golden_file_from_every_recorder(suffix: str, tmp_path: Path) -> None:
    folder = SHARED / "0.11.1"
    source = next(
        p for p in (folder / f"zoo-full{end}" for end in (suffix, f"{suffix}.gz", suffix[:-3])) if p.is_file()
    )
    data = source.read_bytes()
    plain = gzip.decompress(data) if source.suffix == ".gz" else data
    (tmp_path / f"zoo{suffix}").write_bytes(gzip.compress(plain) if suffix.endswith(".gz") else plain)
    schema = ["--schema", str(folder / "schema-zoo.json")] if ".bin" in suffix else []
    ran = Ran("migrate", tmp_path / f"zoo{suffix}", tmp_path / "out.bpk", "--bare", "--int", "counts", *schema)

    assert ran.code == 0, ran.err
    assert (tmp_path / "out.bpk").read_bytes() == (folder / "golden" / "zoo.bpk").read_bytes()


@needs_all
@pytest.mark.parametrize("release", BURNPACK_RELEASES)
def test_burnpacks_that_are_no_plain_models_have_their_outcome(release: str, tmp_path: Path) -> None:
    folder = SHARED / release
    for path in sorted(folder.glob("broken-*.bpk")):
        refused = Ran("migrate", path, tmp_path / "out.bpk", "--dequantize")
        assert (refused.code, (tmp_path / "out.bpk").exists()) == (3, False), path
        assert "inconsistent length" in refused.err
    assert (
        Ran("migrate", folder / "dtypes.bpk", tmp_path / "dtypes.bpk").code == 0
    )  # the tests of what is said tell more
    for path in sorted(folder.glob("quant-*.bpk")):
        refused = Ran("migrate", path, tmp_path / "out.bpk")
        assert (refused.code, "--dequantize" in refused.err) == (3, True), path
        assert Ran("migrate", path, tmp_path / f"{path.stem}.bpk", "--dequantize").code == 0
    twin = Ran("migrate", folder / "twin.bpk", tmp_path / "twin.bpk", "--json").json()
    lost = release == "0.19.1"
    assert any("belong to no name" in warning for warning in twin["warnings"]) is lost
    names = [t["name"] for t in referee("read", tmp_path / "twin.bpk")["tensors"]]
    assert len(names) == (2 if lost else 4)
    assert ("twin.0.weight" in names) is not lost
    for stem, count in (("nothing", 0), ("trailing-empty", 2), ("net-metadata", 11), ("net-nometadata", 11)):
        assert Ran("migrate", folder / f"{stem}.bpk", tmp_path / f"{stem}.bpk").code == 0
        assert len(referee("read", tmp_path / f"{stem}.bpk")["tensors"]) == count
    assert referee("load", tmp_path / "net-metadata.bpk", "net")["ok"]


def test_an_unaligned_file_says_that_indices_of_tuples_may_be_missing() -> None:
    path = Path(__file__).parent / "fixtures" / "burn" / "0.19.1" / "net.bpk"

    assert any("index" in warning for warning in ckptmigrate.inspect(path)["warnings"])
