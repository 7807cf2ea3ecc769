"""`fathom doctor`: what a bug report should say of this machine."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of text.")] = False,
) -> None:
    """Show what this machine has, and try it out in some seconds; paste it into a bug report.

    It names your home folder as ~, and prints no secret.
    """
    from fathom.experiment import doctor as doctors
    from fathom.experiment import run as runs

    runs.keep_programs()
    with Console(stderr=True).status("trying the devices out ..."):
        found = doctors.examine()
    print(json.dumps(found) if as_json else "\n".join(_lines(found)))
    if found["trouble"] or not all(test["ok"] for test in found["self_test"]):
        raise typer.Exit(1)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    versions = dict(found["versions"])
    yield f"fathom {versions.pop('fathom')}"
    yield "  " + ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"  {found['platform']}, {found['cores']} cores, memory {_bytes(found['memory'])}"
    yield "devices"
    if found["trouble"]:
        yield f"  none: {found['trouble']}"
    for device in found["devices"]:
        memory = "of the machine" if device["memory"] is None else _bytes(device["memory"])
        yield f"  {device['name']:<10} {device['kind']} ({device['platform']}), memory {memory}"
    yield "self-test (three rounds of FATHOM beside numpy, with the time to compile)"
    for test in found["self_test"]:
        yield f"  {test['device']:<10} {'ok' if test['ok'] else 'FAILED: ' + test['told']}, {test['seconds']:.1f} s"
    yield "extras"
    for name, extra in found["extras"].items():
        state = f"missing {', '.join(extra['missing'])}" if extra["missing"] else "installed"
        yield f"  {name:<12} {extra['for']:<30} {state}"
    yield "folders"
    for name, place in found["folders"].items():
        yield f"  {name:<18} {_bytes(place['bytes']):>10} in {place['files']:,} files, {place['path']}"
    yield "environment"
    for name, value in found["environment"].items():
        yield f"  {name}={value}"
    if not found["environment"]:
        yield "  no JAX_*, XLA_* or FATHOM_* is set"


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    power = min(max(count.bit_length() - 1, 0) // 10, 3)
    return f"{count / 1024**power:,.{min(power, 1)}f} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
