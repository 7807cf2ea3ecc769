"""Where does a round's time go? One round of FedAvg on random examples, by the names of the device's kernels.

    python benchmarks/profile_round.py [--task femnist] [--cohort 10] [--lanes 10] [--batch 20] [--top 25]

Prints the time between the first kernel and the last, the time in which any ran, and the kernels by their share. On a
CPU the names are XLA's operations, of all devices together.
"""

import argparse
import collections
import gzip
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="femnist")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--batch", type=float, default=20.0)
    parser.add_argument("--top", type=int, default=25, help="kernels to show")
    args = parser.parse_args()

    import jax

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    import numpy as np

    import fathom
    from fathom.experiment.bench import BENCHES, SIZES

    make, examples = BENCHES[args.task]
    rng = np.random.default_rng(0)
    data = {client: examples(rng, SIZES[client % len(SIZES)]) for client in range(args.cohort)}
    fedavg = fathom.federated(make(), tuner=fathom.tuners.fixed(), hparams=fathom.HParams(0.05, 1.0, args.batch))
    federation = fathom.Federation.from_arrays(data)
    # Some rounds more than are traced: on an accelerator one is started before the last is reported.
    rounds = fathom.train(fedavg, federation, key=jax.random.key(0), rounds=5, cohort=args.cohort, lanes=args.lanes)
    for _ in range(2):
        next(rounds)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            next(rounds)
        found = list(Path(folder).rglob("perfetto_trace.json.gz"))
        with gzip.open(found[0]) as file:
            trace = json.load(file)
    show(kernels(trace["traceEvents"] if isinstance(trace, dict) else trace), args.top)


def kernels(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that are work of a device: those on a GPU's streams, or on a CPU XLA's operations."""
    names = {(e["name"], e["pid"], e.get("tid")): e["args"].get("name", "") for e in events if e.get("ph") == "M"}

    def on_gpu(event: dict[str, Any]) -> bool:
        process = next((v for (k, pid, _), v in names.items() if k == "process_name" and pid == event["pid"]), "")
        return "GPU" in process and "Stream" in names.get(("thread_name", event["pid"], event["tid"]), "")

    done = [event for event in events if event.get("ph") == "X"]
    streams = {(e["pid"], e["tid"]): on_gpu(e) for e in done}
    on_stream = [e for e in done if streams[e["pid"], e["tid"]]]
    return on_stream or [e for e in done if re.fullmatch(r"[a-z][a-z0-9_.-]*", e["name"])]


def show(events: list[dict[str, Any]], top: int) -> None:
    spent, count = collections.Counter(), collections.Counter()
    for event in events:
        spent[event["name"]] += event["dur"]
        count[event["name"]] += 1
    first = min(e["ts"] for e in events)
    last = max(e["ts"] + e["dur"] for e in events)
    total = sum(spent.values())
    print(f"{(last - first) / 1e3:.2f} ms from first to last, {total / 1e3:.2f} ms in {len(events):,} kernels")
    for name, micros in spent.most_common(top):
        each = f"x{count[name]:<6} {micros / count[name]:9.1f} us"
        print(f"{micros / 1e3:9.3f} ms {micros / total:6.1%}  {each}  {name[:90]}")


if __name__ == "__main__":
    main()
