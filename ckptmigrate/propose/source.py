"""The text of a migrator's file, laid out as ruff lays it out; each line of it is what was proven, or says that it is assumed."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .composing import Spec
    from .derivation import By
    from .marking import MarkSpec
    from .proposal import Proposal

WIDTH = 88  # what formatters take where nothing is configured; a call that is broken keeps its last comma, so wider ones leave it
RESTS: dict[By, str] = {
    "content": "proven by content",
    "pattern": "as proven of its siblings",
    "name": "assumed by name",
}


def file_name(version: str, specs: Sequence[Spec] = ()) -> str:
    """Give ``v2_0_split_qkv.py``: the version, and what the step does most of all."""
    return f"v{re.sub(r'[^0-9A-Za-z]', '_', version)}_{_slug(specs)}.py"


def skeleton(chain: str, version: str) -> str:
    """Give a file that loads and changes nothing, and says what to fill in."""
    body = [
        "        # How a checkpoint without a stamp that still needs this step is recognised:",
        '        # Present(r"features\\..*")',
    ]
    steps = [
        "        # What changed, one operation each:",
        '        # Rename(r"features\\.(.*)", r"backbone.\\1", back=(r"backbone\\.(.*)", r"features.\\1"))',
        '        # Split(r"(.*)\\.qkv\\.(weight|bias)", into=[r"\\1.q.\\2", r"\\1.k.\\2", r"\\1.v.\\2"])',
    ]
    doc = [
        f"What changed in {chain} {version}: say it here, in one sentence.",
        "",
        f"Since {version}, because: say it here. Then fill in marks and operations, and import what they use:",
        "",
        "    from ckptmigrate import Migrator, Present, Rename",
    ]
    fields = [_listed("marks", [body]), _listed("operations", [steps])]
    return _file(doc, {"Migrator"}, chain, version, fields)


def written(chain: str, version: str, proposal: Proposal, old: str, new: str) -> str:
    """Give the file of a proposal; ``old`` and ``new``: what the two checkpoints are called."""
    marks = [_indented(_call(mark, 8), 8) for mark in proposal.marks]
    steps = [[f"        # {_rests(spec)}", *_indented(_call(spec, 8), 8)] for spec in proposal.operations]
    for choice in proposal.choices:
        lines = [line for spec in choice.specs for line in _commented(spec)]
        steps.append([*_wrapped(f"{choice.text}:", "        # "), *lines])
    doc = [f"What changed between {old} and {new}: say it here, in one sentence.", "", "Proposed from the two."]
    doc += [text for line in proposal.proof.lines() for text in _wrapped(f"{line[0].upper()}{line[1:]}.")]
    if proposal.open:
        doc += ["", "Still to be said:", ""]
        doc += [text for line in proposal.open for text in _wrapped(line, "- ", "  ")]
    used = {s.operation for s in proposal.marks} | {s.operation for s in proposal.operations}
    fields = [_listed("marks", marks), _listed("operations", steps)]
    return _file(doc, {"Migrator", *used}, chain, version, fields)


def _file(doc: Sequence[str], used: Iterable[str], chain: str, version: str, fields: Iterable[list[str]]) -> str:
    names = sorted(used)
    line = f"from ckptmigrate import {', '.join(names)}"
    imported = [line] if len(line) <= WIDTH else ["from ckptmigrate import (", *(f"    {n}," for n in names), ")"]
    text = "\n".join(map(_harmless, doc)).replace("\\", "\\\\").replace('"""', "'''")
    lines = [f'"""{text}', '"""', "", *imported, "", "MIGRATOR = Migrator("]
    lines += [f"    chain={_text(chain)},", f"    version={_text(version)},"]
    lines += [line for each in fields for line in each]
    return "\n".join([*lines, ")", ""])


def _wrapped(text: str, first: str = "", then: str | None = None) -> list[str]:
    return textwrap.wrap(
        _harmless(text), WIDTH, initial_indent=first, subsequent_indent=first if then is None else then,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _harmless(text: str) -> str:
    """Give text in which a file's names cannot end the line that they stand in."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _listed(name: str, members: Sequence[Sequence[str]]) -> list[str]:
    if not members:
        return [f"    {name}=[],"]
    return [f"    {name}=[", *(line for each in members for line in each), "    ],"]


def _rests(spec: Spec) -> str:
    """Give what an operation rests on, each with its number of tensors or groups of them."""
    if spec.operation == "Reindex":
        return f"numbered anew: {len(spec.sources)}"
    if not spec.rests:
        return "only in the old checkpoint" if spec.operation == "Drop" else "only in the new checkpoint"
    counted = Counter(spec.rests)
    return "; ".join(f"{said}: {counted[by]}" for by, said in RESTS.items() if by in counted)


def _commented(spec: Spec) -> Iterator[str]:
    for line in _call(spec, 10):
        yield f"        # {line}"


def _indented(lines: Iterable[str], by: int) -> list[str]:
    made = [" " * by + line for line in lines]
    made[-1] += ","
    return made


def _call(spec: Spec | MarkSpec, indent: int) -> list[str]:
    """Give a call in as few lines as fit, each argument on its own where they do not."""
    arguments: list[tuple[str, Any]] = [("", value) for value in spec.positional]
    arguments += [(f"{name}=", value) for name, value in spec.named]
    return _broken(f"{spec.operation}(", arguments, ")", indent)


def _broken(opening: str, members: Sequence[tuple[str, Any]], closing: str, indent: int) -> list[str]:
    one = opening + ", ".join(lead + _value(value) for lead, value in members) + closing
    if indent + len(one) + 1 <= WIDTH or not members:  # a comma follows
        return [one]
    lines = [opening]
    for lead, value in members:
        inner = _parts(lead, value, indent + 4)
        inner[-1] += ","
        lines += [f"    {line}" for line in inner]
    return [*lines, closing]


def _parts(lead: str, value: Any, indent: int) -> list[str]:
    if isinstance(value, dict):
        return _broken(f"{lead}{{", [(f"{_value(k)}: ", v) for k, v in value.items()], "}", indent)
    if isinstance(value, list | tuple) and len(value) > 1:
        brackets = "[]" if isinstance(value, list) else "()"
        return _broken(lead + brackets[0], [("", each) for each in value], brackets[1], indent)
    return [lead + _value(value)]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(k)}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _text(text: str) -> str:
    """Give a literal in double quotes, raw where a backslash stands in it."""
    plain = text.isprintable() and '"' not in text
    if plain and "\\" not in text:
        return f'"{text}"'
    return f'r"{text}"' if plain and not text.endswith("\\") else repr(text)


def _slug(specs: Sequence[Spec]) -> str:
    """Give a word for the operation that tells most, and the last word of the names that it takes."""
    order = ("Split", "Concat", "Stack", "Unstack", "Reorder", "Transpose", "Reshape", "Rename", "Cast", "Drop", "Add")
    told = sorted((s for s in specs if s.operation in order), key=lambda s: order.index(s.operation))
    if not told:
        return "step"
    pattern = re.sub(r"\([^()]*\|[^()]*\)", " ", told[0].patterns[0])  # not one of several leaves
    words = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", re.sub(r"\\.|\(\?:", " ", pattern))
    plain = [word.strip("_") for word in words if word.strip("_") not in {"weight", "bias", "d", ""}]
    return "_".join([told[0].operation.lower(), *plain[-1:]])
