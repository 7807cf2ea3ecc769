"""`fathom bench`: how fast this machine trains."""

import json
import os
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fathom.cli_errors import fail


def bench(
    task: Annotated[str, typer.Option(help="femnist, stackoverflow, glyphs or synthetic; on random data.")] = "femnist",
    cohort: Annotated[int, typer.Option(help="Clients a round, of 100 to 351 examples.")] = 10,
    lanes: Annotated[int | None, typer.Option(help="Clients side by side on a device.")] = None,
    batch: Annotated[float | None, typer.Option(help="Local batch size; by default the task's.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to time, after those that compile; at most 40 s of them.")] = 10,
    moving: Annotated[bool, typer.Option("--moving", help="Change the batch size every round.")] = False,
    trials: Annotated[int, typer.Option(help="Trials in one program, as with `fathom run --trials`.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a table.")] = False,
) -> None:
    """Measure how fast this machine trains, in about a minute; nothing is downloaded."""
    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", max(1, min(os.cpu_count() or 1, cohort * trials)))

    from fathom.experiment import bench as benches

    try:
        with Console(stderr=True).status(f"measuring rounds of {task} ..."):
            found = benches.measure(task, cohort, lanes, batch, rounds, moving, trials)
    except ValueError as error:
        fail(str(error))
    if as_json:
        print(json.dumps(found))
        return
    host, memory, kinds = found["host_fraction"], found["memory_bytes"], found["environment"]["devices"]
    batches = ", ".join(f"{size:g}" for size in found["batch"])
    clients = f"{cohort} clients a round" + (f" in each of {trials} trials" if trials > 1 else "")
    title = f"{task}: {clients}, batch {batches}, lanes {found['lanes']}, on {len(kinds)} x {kinds[0]}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    peak = f"{found['mflop_per_example']:.1f} MFLOP an example; peak {found['peak_gflop_per_second']:,.0f} GFLOP/s"
    rows = (
        ("rounds a second", f"{found['rounds_per_second']:.3g}", f"{found['rounds']} timed"),
        ("examples a second", f"{found['examples_per_second']:,.0f}", ""),
        ("of the matmul peak", f"{found['fraction_of_peak']:.1%}", peak),
        (
            "compiling",
            f"{found['compile_seconds']:.1f} s",
            f"{found['programs']} program" + "s" * (found["programs"] > 1),
        ),
        ("waiting for Python", "-" if host is None else f"{host:.1%}", "share of a round; 0 where noise hides it"),
        ("peak memory", "-" if memory is None else f"{memory / 2**20:,.0f} MiB", f"of the {found['memory_of']}"),
    )
    for name, value, note in rows:
        table.add_row(name, f"[bold]{value}[/bold]", f"[dim]{note}[/dim]")
    Console().print(table)
