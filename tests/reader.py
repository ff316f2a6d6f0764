"""Somebody who types what a page shows: block after block, in one folder and one Python session."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import site
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from typer.testing import CliRunner

from ckptmigrate.cli import app

ROOT = Path(__file__).parent.parent
SETUP = {"pip", "make"}  # commands that set a machine up: .ci/run runs them

ALONE = ("--no-deps", "--no-build-isolation", "--no-index")  # nothing is fetched: the environment has all of it


def blocks(text: str) -> list[tuple[str, str]]:
    """Give the blocks of a page in order: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def section(page: Path, heading: str) -> tuple[str, str]:
    """Give a section of a page, and the page without it."""
    text = page.read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(?:.|\n)*?(?=^## |\Z)", text, flags=re.MULTILINE)
    assert found is not None, f"{page.name} has no {heading}"
    return found[0], text.replace(found[0], "")


class Reader:
    """Reads into the working directory; ``made``: what stood in a file that a block is about to write, by its name."""

    def __init__(self, text: str, *, installs: bool = False) -> None:
        self.text, self.installs, self.commands = text, installs, 0
        self.session: dict[str, Any] = {"__name__": "__main__"}
        self.made: dict[str, str] = {}
        self.missed: list[str] = []  # lines that the page shows and that no command before it said
        self.folder = f"{Path.cwd()}/"
        self._said = ""

    def read(self) -> None:
        for language, text in blocks(self.text):
            named = re.match(r"# (\S+\.(?:py|toml))\b.*\n", text)  # the file that the block is
            if language in {"python", "toml"} and named:
                path = Path(named[1])
                if path.exists():
                    self.made[named[1]] = path.read_text()
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text[named.end() :])
            elif language == "python":
                exec(compile(text, f"block: {text[:40]!r}", "exec"), self.session)
            elif language == "bash":
                self._said = "".join(map(self.type, text.splitlines()))
            else:
                assert language in {"text", "toml"}
                self.missed += [line for line in text.splitlines() if language == "text" and line not in self._said]

    def type(self, line: str) -> str:
        """Type one line; give what it said. A command succeeds, or exits with the code that its comment names."""
        shown, _, comment = line.partition("#")
        expected = int((re.search(r"exit code (\d)", comment) or ["", "0"])[1])
        return "".join(self._run(command, expected) for command in filter(str.strip, shown.split("&&")))

    def _run(self, command: str, expected: int) -> str:
        program, *arguments = shlex.split(command)
        self.forget()
        if program == "ckptmigrate":
            ran = CliRunner().invoke(app, arguments)
            assert ran.exit_code == expected, f"{command}: {ran.output}"
            self.commands += 1
            return ran.output
        if program == "python":
            said = io.StringIO()
            sys.path.insert(0, "")
            try:
                with contextlib.redirect_stdout(said):
                    code = Path(arguments[0]).read_text()
                    exec(compile(code, arguments[0], "exec"), {"__name__": "__main__"})
            finally:
                sys.path.remove("")
            return said.getvalue()
        if program == "pytest":
            return _process("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
        assert program in SETUP, f"nobody runs {program}"
        if program == "pip" and self.installs:
            place = str(Path("site").resolve())
            said_here = _process("-m", "pip", *arguments, "--target", place, *ALONE)
            site.addsitedir(place)
            return said_here
        return ""

    def forget(self) -> None:
        """Forget the modules of the folder, as a new process would: the page may have written them anew."""
        for name in [
            name for name, module in sys.modules.items() if type(module) is ModuleType and self._wrote(module)
        ]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def _wrote(self, module: ModuleType) -> bool:
        lies = [str(getattr(module, "__file__", None)), *map(str, getattr(module, "__path__", ()))]
        return "_loaded" not in module.__name__ and any(place.startswith(self.folder) for place in lies)


def _process(*words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PIP_"))}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=clean | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
