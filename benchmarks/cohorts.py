"""Rounds of 10 to 10,000 clients, and a federation as large as Stack Overflow's: time and memory.

The first table trains a small perceptron (60-256-10, 18,186 parameters, 73 kB) over 10,000 synthetic clients of 20
examples, one device, lanes fixed, a fresh process for every size of cohort. 10,000 copies of the model would take
727 MB: the memory shows that there are only as many as lanes. The second opens 342,477 clients of 128 sentences of
21 words (1.8 GB, a file with nothing written in it, so no disk is waited for) and brings cohorts to the device.

    python benchmarks/cohorts.py [--lanes 4] [--rounds 3]
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

COHORTS = (10, 100, 1_000, 10_000)
EXAMPLES, FEATURES, HIDDEN, CLASSES = 20, 60, 256, 10
USERS, SENTENCES, WORDS = 342_477, 128, 21


def peak_mb() -> float:
    """The most memory of the first device so far; of the process, where that is a CPU."""
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return stats.get("peak_bytes_in_use", 1024 * kilobytes) / 1e6


def own_mb() -> float:
    """Memory of this process that is not a view of a file, now; Linux only."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) / 1000


def rounds_of(cohort: int, lanes: int, rounds: int) -> dict[str, float]:
    """Train for some rounds after a first that compiles: seconds of each, and memory."""
    import jax
    import optax

    import fathom
    from fathom.tasks.layers import dense, weights

    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return [weights(first, FEATURES, HIDDEN), weights(second, HIDDEN, CLASSES)]

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(dense(params[0], batch["x"]))
        return optax.softmax_cross_entropy_with_integer_labels(dense(params[1], hidden), batch["y"])

    clients, rng = COHORTS[-1], np.random.default_rng(0)
    x = rng.standard_normal((clients * EXAMPLES, FEATURES), np.float32)
    y = rng.integers(0, CLASSES, clients * EXAMPLES, np.int32)
    sizes = np.full(clients, EXAMPLES)
    federation = fathom.Federation(tuple(map(str, range(clients))), np.cumsum(sizes) - sizes, sizes, {"x": x, "y": y})
    algorithm = fathom.federated(
        fathom.Task(init, loss, metrics=lambda params, batch: {}),
        tuner=fathom.tuners.fixed(),
        hparams=fathom.HParams(lr=0.05, epochs=1.0, batch=10.0),
    )
    run = fathom.train(
        algorithm,
        federation,
        key=jax.random.key(0),
        rounds=1 + rounds,
        cohort=cohort,
        lanes=lanes,
        devices=jax.devices()[:1],
    )
    times = [record.seconds for record in run]
    return {"seconds": statistics.median(np.diff(times)), "mb": peak_mb()}


def large_federation() -> dict[str, float]:
    """Open a data set of Stack Overflow's size and bring cohorts of 50 and of 1,000 to the device."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from fathom.core.feed import feed, sampler
    from fathom.data import disk

    where = SingleDeviceSharding(jax.devices()[0])
    with tempfile.TemporaryDirectory() as home:
        os.environ["FATHOM_DATA"] = home
        split = Path(home) / "large" / "train"
        split.mkdir(parents=True)
        shape = (USERS * SENTENCES, WORDS)
        np.lib.format.open_memmap(split / "x.npy", mode="w+", dtype=np.uint16, shape=shape)  # a hole, no data
        np.save(split / "offsets.npy", SENTENCES * np.arange(USERS + 1, dtype=np.int64))
        (split / "clients.json").write_text(json.dumps([f"{user:08d}" for user in range(USERS)]))
        (split.parent / "meta.json").write_text(json.dumps({"splits": {"train": {}}}))
        out = {"before_mb": own_mb()}
        began = time.perf_counter()
        federation = disk.open_set("large").splits["train"]
        out["open_s"] = time.perf_counter() - began
        for cohort in (50, 1_000):
            sample, size = sampler(federation, cohort, 21)
            supplies = feed(federation, sample, [[0, 0]], 21, size, where, where)
            jax.block_until_ready(next(supplies).cohorts.examples)
            began = time.perf_counter()
            for supply in supplies:
                jax.block_until_ready(supply.cohorts.examples)
            out[f"round_of_{cohort}_s"] = (time.perf_counter() - began) / 20
        out["after_mb"] = own_mb()
        out["peak_mb"] = peak_mb()
    return out


def alone(*arguments: str) -> dict[str, float]:
    """This file with these arguments in a process of its own, so that its memory is its own."""
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of 10 to 10,000 clients: time and memory.")
    parser.add_argument("--lanes", type=int, default=4, help="copies of the model")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds")
    parser.add_argument("--cohort", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cohort:
        return print(json.dumps(rounds_of(args.cohort, args.lanes, args.rounds)))
    if args.large:
        return print(json.dumps(large_federation()))
    print("| clients a round | seconds a round | ms per client | peak memory, MB |\n|---|---|---|---|")
    for cohort in COHORTS:
        got = alone("--cohort", str(cohort), "--lanes", str(args.lanes), "--rounds", str(args.rounds))
        print(
            f"| {cohort:,} | {got['seconds']:.3f} | {1000 * got['seconds'] / cohort:.2f} | {got['mb']:.0f} |",
            flush=True,
        )
    large = alone("--large")
    print(f"\n{USERS:,} clients: opened in {large['open_s']:.2f} s;", end=" ")
    print(f"a round's rows {1000 * large['round_of_50_s']:.1f} ms for 50 clients,", end=" ")
    print(f"{1000 * large['round_of_1000_s']:.1f} ms for 1,000;", end=" ")
    print(f"memory {large['before_mb']:.0f} MB before, {large['after_mb']:.0f} MB after", end=" ")
    print(f"(at most {large['peak_mb']:.0f} MB with the file's pages that the system keeps)")
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    print(
        f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores; {args.lanes} lanes, median of", end=" "
    )
    print(f"{args.rounds} rounds; Python {platform.python_version()}; {datetime.date.today().isoformat()}")


if __name__ == "__main__":
    main()
