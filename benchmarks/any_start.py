"""Rounds to a target, from any start: for `plumb`, which has none, `fathom` from 18, and FedAvg's grid of 24.

A cell is a start (learning rate, epochs, batch size) with some trials.
Every run is appended to a file of JSON lines as soon as it has arrived, or has had its rounds, so the work can be split
over many calls and goes on where it was stopped; `--table` prints what is there.

    python benchmarks/any_start.py glyphs --out any-start.jsonl                    # both tuners and the grid
    python benchmarks/any_start.py femnist --methods plumb --cohort 100 --trials 2 --out any-start.jsonl
    python benchmarks/any_start.py --table --out any-start.jsonl

`femnist`, `digits`, `letters`, `small`, `characters`, `writers`, `stackexchange` and `words` need imported data
(docs/tasks.md): writers with at least 20 images, and users with at least 10 sentences. `digits` is logistic regression
on the writers' digits, `letters` a network with 128 hidden units on their capitals, `small` one with 64 on their small
letters, `characters` one with 200 on all three; `writers` is all three with the convolutional network of `glyphs`, to a
target that takes hundreds of rounds. `words` is the LSTM of `docstrings` on what the users wrote, of which it knows
2,000 words (`fathom data import stackexchange ... --name stackexchange-2000 --set vocabulary=2000`).
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RATES = (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0)
BATCHES = (4.0, 20.0, 256.0)
GRID = (0.3, 1.0, 3.0, 10.0)  # times the task's usual learning rate; with 1, 2 and 4 epochs, and batches of 4 and 20
# Of each task: target, the most rounds, the middle of the grid's learning rates. Set before any cell was run, but for
# `digits`: its first target, 0.90, is more than logistic regression reaches from any start. That of `letters` is 95 %
# of what FedAvg has after 300 rounds from learning rate 0.1, one epoch, batches of 20 (seed 0: 0.750, by
# `letters --methods grid --batches 20 --trials 1 --target 0.99`), those of `small` and `characters` the same
# (0.670 and 0.695), that of `words` too, from learning rate 0.3 (0.0885). That of `writers` is about what FedAvg comes
# to in 300 rounds with batches of 4; it was set when single runs with other seeds had been seen.
TASKS = {
    "glyphs": (0.60, 300, 0.1),
    "synthetic": (0.55, 300, 0.01),
    "docstrings": (0.15, 300, 0.3),
    "digits": (0.85, 500, 0.1),
    "letters": (0.71, 300, 0.1),
    "small": (0.64, 300, 0.1),
    "characters": (0.66, 300, 0.1),
    "writers": (0.83, 600, 0.1),
    "femnist": (0.84, 1000, 0.1),
    "stackexchange": (0.11, 500, 0.32),
    "words": (0.084, 300, 0.3),
}


def characters(first: int, last: int, hidden: int) -> tuple[Any, Any, Any]:
    """The labels from `first` to `last` of FEMNIST's writers: logistic regression, or a network with a hidden layer."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import fathom
    from fathom.tasks.layers import dense, weights

    def chosen(images: Any) -> dict[str, Any]:
        y = np.asarray(images["y"]).astype(np.int32)
        own = (y >= first) & (y <= last)
        return {"x": np.asarray(images["x"])[own], "y": y[own] - first}

    _, writers, tests = fathom.tasks.load("femnist", least=20)
    clients = {}
    for client, start, size in zip(writers.ids, writers.starts, writers.sizes, strict=True):
        own = chosen({name: feature[start : start + size] for name, feature in writers.examples.items()})
        if len(own["y"]) >= 5:
            clients[client] = own

    def scores(params: Any, batch: Any) -> Any:
        x = 1 - batch["x"].reshape(-1, 784) / 255.0
        return dense(params["out"], jax.nn.relu(dense(params["hidden"], x)) if hidden else x)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(scores(params, batch), batch["y"])

    def metrics(params: Any, batch: Any) -> dict[str, Any]:
        return {"accuracy": jnp.argmax(scores(params, batch), -1) == batch["y"]}

    def init(key: Any) -> Any:
        classes = last - first + 1
        if not hidden:
            return {"out": {"w": jnp.zeros((784, classes)), "b": jnp.zeros(classes)}}
        keys = jax.random.split(key)
        return {"hidden": weights(keys[0], 784, hidden), "out": weights(keys[1], hidden, classes)}

    return fathom.Task(init, loss, metrics), fathom.Federation.from_arrays(clients), chosen(tests["test"])


def writers() -> tuple[Any, Any, Any]:
    """All images of FEMNIST's writers, for the network of `glyphs`, which is for ink on nothing."""
    import fathom
    from fathom.tasks import glyphs

    def ink(batch: Any) -> Any:
        return {**batch, "x": 255 - batch["x"]}

    _, federation, test = fathom.tasks.load("femnist", least=20)
    task = fathom.Task(
        glyphs.init,
        lambda params, batch, key: glyphs.loss(params, ink(batch), key),
        lambda params, batch: glyphs.metrics(params, ink(batch)),
    )
    return task, federation, test


def load(name: str) -> tuple[Any, Any, Any]:
    import fathom

    if name == "writers":
        return writers()
    if name == "digits":
        return characters(0, 9, hidden=0)
    if name == "letters":
        return characters(10, 35, hidden=128)
    if name == "small":
        return characters(36, 61, hidden=64)
    if name == "characters":
        return characters(0, 61, hidden=200)
    if name == "femnist":
        return fathom.tasks.load("femnist", least=20)
    if name == "stackexchange":
        options = {"least": 10, "test_examples": 5000, "precision": "bfloat16"}
        return fathom.tasks.load("stackoverflow", data="stackexchange", **options)
    if name == "words":
        options = {"least": 10, "test_examples": 5000, "embedding": 48, "hidden": 96}
        return fathom.tasks.load("stackoverflow", data="stackexchange-2000", **options)
    return fathom.tasks.load(name)


def starts(method: str, middle: float, batches: list[float] | None) -> list[list[tuple[float, float, float]]]:
    """The (learning rate, epochs, batch size) of a method's cells, by the programs that they are run in.

    One for all whose batches come to be alike, and one for each batch size that stays what it is.
    """
    import fathom

    if method == "grid":
        each = [
            [(middle * times, epochs, batch) for times in GRID for epochs in (1.0, 2.0, 4.0)] for batch in (4.0, 20.0)
        ]
    elif method == "plumb":
        return [[tuple(fathom.tuners.FIRST["plumb"])]]
    else:
        each = [[(lr, 1.0, batch) for batch in BATCHES for lr in RATES]]
    kept = ([cell for cell in cells if batches is None or cell[2] in batches] for cells in each)
    return [cells for cells in kept if cells]


def run(
    loaded: tuple[Any, Any, Any],
    make: Callable,
    runs: list[tuple[float, float, float, int]],
    args: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """What became of runs from (learning rate, epochs, batch size, seed), in one program, each until the target."""
    import jax
    import jax.numpy as jnp

    import fathom
    from fathom.core.engine import Snapshot, Totals

    task, federation, test = loaded
    test = test.get("test", test) if isinstance(test, dict) else test

    def made(lr: float, epochs: float, batch: float) -> Any:
        tuner = make()
        start = fathom.HParams(lr, epochs, batch) if tuner.first is None else None
        return fathom.federated(task, tuner=tuner, hparams=start)

    algorithm = made(*runs[0][:3])
    keys = jnp.stack([jax.random.key(seed) for *_, seed in runs])
    begun = [made(*cell).init(jax.random.key(seed), args.cohort) for *cell, seed in runs]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *begun)
    first = Snapshot(0, states, Totals(*([0] * len(keys) for _ in Totals._fields)), 0.0)
    found: list[dict[str, Any]] = [{"undone": 0, "accuracy": 0.0, "rounds": None} for _ in keys]
    told, began = 0, time.perf_counter()
    records = fathom.train(
        algorithm,
        federation,
        key=keys,
        rounds=args.rounds,
        cohort=args.cohort,
        test=test,
        every=5,
        until=lambda metrics: metrics["accuracy"] >= args.target,
        start=first,
    )

    def row(trial: int) -> dict[str, Any]:
        lr, epochs, batch, seed = runs[trial]
        seconds = round(time.perf_counter() - began, 1)
        named = {"lr_0": lr, "epochs_0": epochs, "batch_0": batch, "seed": seed, "seconds": seconds}
        return {**named, "end": found[trial]}

    for record in finite(records):
        own = found[record.trial]
        own["undone"] += record.rolled_back
        own |= {"lr": float(record.next_hparams.lr[0]), "batch": float(record.next_hparams.batch[0])}
        own |= {"epochs": float(record.next_hparams.epochs[0])}
        if record.metrics:
            reached = record.metrics["accuracy"] >= args.target
            own |= {"accuracy": record.metrics["accuracy"], "rounds": record.round if reached else None}
            own |= {"gradients": record.gradients, "bytes": record.bytes_up + record.bytes_down}
            if reached:
                yield row(record.trial)
            if record.round % 50 == 0 and record.round > told:
                told, now = record.round, [each["accuracy"] for each in found]
                seconds = time.perf_counter() - began
                print(f"  round {told}: accuracy {min(now):.3f} to {max(now):.3f}; {seconds:.0f} s", flush=True)
    yield from (row(trial) for trial, own in enumerate(found) if own["rounds"] is None)


def finite(records: Iterator[Any]) -> Iterator[Any]:
    """The records up to the point at which nothing is left that has not diverged."""
    try:
        yield from records
    except FloatingPointError as error:
        print(error, flush=True)


def measure(args: argparse.Namespace) -> None:
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(os.cpu_count() or 1))
    import jax

    import fathom
    from fathom.experiment.run import keep_programs

    keep_programs()
    loaded = load(args.task)
    usual_target, usual_rounds, middle = TASKS[args.task]
    args.target, args.rounds = args.target or usual_target, args.rounds or usual_rounds
    bound = fathom.HParams(0.5, 10.0, 5096.0)  # as the paper's runs had it; `plumb` needs none on lr
    unbound = bound._replace(lr=fathom.tuners.SELF_BOUND["plumb"])
    makers = {
        "plumb": lambda: fathom.tuners.clamp(fathom.tuners.plumb(), high=unbound),
        "fathom": lambda: fathom.tuners.clamp(fathom.tuners.fathom(), high=bound._replace(lr=1.0)),
        "grid": fathom.tuners.fixed,
    }
    settings = {"task": args.task, "cohort": args.cohort, "target": args.target, "most": args.rounds}
    done = {identity(row) for row in read(args.out)}
    wanted = [float(rate) for rate in args.rates.split(",")] if args.rates else None
    batches = [float(batch) for batch in args.batches.split(",")] if args.batches else None
    made = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    for method in args.methods.split(","):
        head = {**settings, "method": method}
        for cells in starts(method, middle, batches):
            runs = [
                (*cell, seed)
                for cell in cells
                for seed in range(args.seed, args.seed + args.trials)
                if wanted is None or method == "plumb" or any(math.isclose(cell[0], rate) for rate in wanted)
            ]
            runs = [
                (lr, epochs, batch, seed)
                for lr, epochs, batch, seed in runs
                if identity({**head, "batch_0": batch, "lr_0": lr, "epochs_0": epochs, "seed": seed}) not in done
            ]
            if not runs:
                continue
            began, arrived = time.perf_counter(), 0
            for row in run(loaded, makers[method], runs, args):
                arrived += row["end"]["rounds"] is not None
                with args.out.open("a") as file:
                    file.write(json.dumps({**head, **row, **made}) + "\n")
            seconds = time.perf_counter() - began
            named = ", ".join(f"{batch:g}" for batch in sorted({batch for _, _, batch, _ in runs}))
            print(
                f"{args.task} {method} B_0 {named}: {arrived} of {len(runs)} runs arrived; {seconds:.0f} s", flush=True
            )


def identity(row: dict[str, Any]) -> tuple:
    """What makes a run the same as another."""
    keys = ("task", "cohort", "target", "most", "method", "batch_0", "lr_0", "epochs_0", "seed")
    return tuple(row[key] for key in keys)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shown(runs: list[dict[str, Any]]) -> str:
    """Rounds, gradients and megabytes sent: means over the trials that arrived, and how many did where some did not."""
    if not runs:
        return "not run | |"
    arrived = [run["end"] for run in runs if run["end"]["rounds"] is not None]
    if not arrived:
        return f"- (at {statistics.mean(run['end']['accuracy'] for run in runs):.1%}) | - | -"
    rounds, gradients, sent = (statistics.mean(end[key] for end in arrived) for key in ("rounds", "gradients", "bytes"))
    missing = "" if len(arrived) == len(runs) else f" ({len(arrived)} of {len(runs)})"
    return f"{rounds:.0f}{missing} | {gradients / 1000:.0f}K | {sent / 1e6:.0f}"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A table for every task, cohort and method, as Markdown."""
    keys = ("task", "cohort", "target", "most", "method")
    for which in sorted({tuple(row[key] for key in keys) for row in rows}):
        own = [row for row in rows if tuple(row[key] for key in keys) == which]
        task, cohort, target, most, method = which
        trials, device = len({row["seed"] for row in own}), ", ".join({f"{r['device']}, jax {r['jax']}" for r in own})
        name = "FedAvg" if method == "grid" else f"`{method}`"
        runs = f"{cohort} clients a round, {trials} trials of at most {most} rounds ({device})"
        yield f"\n**{task}**, {name}: rounds to {target:.0%}; {runs}\n"
        cells: dict[tuple, dict[float, list]] = {}
        for row in own:
            cells.setdefault((row["lr_0"], row["epochs_0"]), {}).setdefault(row["batch_0"], []).append(row)
        batches = sorted({row["batch_0"] for row in own})
        yield (
            "| learning rate, epochs | "
            + " | ".join(f"batches of {batch:g} | gradients | MB" for batch in batches)
            + " |"
        )
        yield "|---" * (1 + 3 * len(batches)) + "|"
        for (lr, epochs), by_batch in sorted(cells.items()):
            yield f"| {lr:g}, {epochs:g} | " + " | ".join(shown(by_batch.get(batch, [])) for batch in batches) + " |"
        ends = [[run["end"]["rounds"] for run in runs] for by_batch in cells.values() for runs in by_batch.values()]
        whole = [statistics.mean(end) for end in ends if None not in end]
        spread = f", the slowest in {max(whole) / min(whole):.2f} times the rounds of the fastest" if whole else ""
        undone = sum(row["end"]["undone"] for row in own)
        yield f"\nAll trials of {len(whole)} of {len(ends)} cells arrived{spread}; {undone} rounds were undone."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("--methods", default="plumb,fathom,grid", help="of plumb, fathom, grid")
    parser.add_argument("--batches", help="only these first batch sizes, such as 4,20")
    parser.add_argument("--rates", help="only these first learning rates, such as 0.0001,1")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float)
    parser.add_argument("--rounds", type=int, help="the most rounds")
    parser.add_argument("--out", type=Path, default=Path("any-start.jsonl"))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.task:
        measure(args)
    elif not args.table:
        parser.error(f"name a task ({', '.join(TASKS)}), or --table")
    if args.table:
        print("\n".join(table(read(args.out))))


if __name__ == "__main__":
    main()
