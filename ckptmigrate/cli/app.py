"""The application that every verb registers itself with, and how a verb takes options that others take too.

A verb's parameter may be a dataclass whose fields are options; the command line sees its fields::

    @verb
    def verify(a: Path, b: Path, *, reading: Reading) -> None      ckptmigrate verify A B [--dequantize] [--schema FILE] …
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import signal
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import ckptmigrate

if TYPE_CHECKING:
    from collections.abc import Callable

DONE, DIFFERENT, USAGE, REFUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 128 + signal.SIGINT, 128 + signal.SIGTERM

app = typer.Typer(
    name="ckptmigrate",
    help="Reads old checkpoints, upgrades them and writes current ones. Never runs code from a file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"ckptmigrate {ckptmigrate.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(asked=value), is_eager=True)
    ] = False,
) -> None:
    """Read, upgrade and write checkpoints."""


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Register a function as a verb of its own name; fields of a dataclass among its parameters are options of the verb."""
    hints = get_type_hints(function, include_extras=True)
    bundles = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in bundles:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        annotated = get_type_hints(bundles[name], include_extras=True)
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=annotated[f.name])
            for f in dataclasses.fields(bundles[name])
        ]

    @functools.wraps(function)
    def called(**given: Any) -> None:
        for name, kind in bundles.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in dataclasses.fields(kind)})  # type: ignore[operator] # a dataclass
        function(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what inspect asks first
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return app.command()(called)
