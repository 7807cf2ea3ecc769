"""One round of FedAvg with the EMNIST CNN on this machine's CPU: fathom beside FedJAX 0.0.17.

Ten clients of 200 examples, batches of 20, one epoch, client SGD at 0.1, server SGD at 1.0, the CNN of
"Adaptive Federated Optimization" with dropout (1,206,590 parameters), random images. Each library runs as its
users run it: fathom with one device per core, FedJAX with its stock model and its jit backend. A worker
process per library compiles and warms up; then they take turns, one round each, so that both meet the same
machine and neither runs beside the other.

Run from fathom's environment; FedJAX gets one of its own, in the user's cache directory, on the first run:

    python benchmarks/fedjax_round.py [--rounds 5] [--json out.json]
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

CLIENTS, EXAMPLES, BATCH, LR, CLASSES = 10, 200, 20, 0.1, 62
WARM_UP = 2  # rounds: one compiles, one more settles allocators and caches
# FedJAX calls jax.tree_map, which left jax in 0.6. 0.5.3 came last before that, and is faster than 0.4.38.
PINS = ["fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3", "dm-haiku==0.0.17"]
PINS += ["optax==0.2.8", "numpy==2.4.6", "scipy==1.17.1"]


def clients() -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS, EXAMPLES, 28, 28, 1), np.uint8)
    y = rng.integers(0, CLASSES, (CLIENTS, EXAMPLES), np.int32)
    return {str(client): {"x": x[client], "y": y[client]} for client in range(CLIENTS)}


def fathom_rounds(rounds: int) -> Iterator[Any]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    import fathom
    from fathom.tasks.layers import conv, dense, max_pool, weights

    def init(key: jax.Array) -> dict[str, Any]:
        shapes = {"c1": (3, 3, 1, 32), "c2": (3, 3, 32, 64), "d1": (9216, 128), "d2": (128, CLASSES)}
        keys = jax.random.split(key, len(shapes))
        return {name: weights(k, *shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def dropout(key: jax.Array, rate: float, x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0.0)

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        x = jax.nn.relu(conv(params["c1"], batch["x"].astype(jnp.float32) / 255))
        x = dropout(first, 0.25, max_pool(jax.nn.relu(conv(params["c2"], x))))
        x = dropout(second, 0.5, jax.nn.relu(dense(params["d1"], x.reshape(len(x), -1))))
        logs = jax.nn.log_softmax(dense(params["d2"], x))
        return -jnp.take_along_axis(logs, batch["y"][:, None], 1)[:, 0]

    task = fathom.Task(init, loss, metrics=lambda params, batch: {})
    hparams = fathom.HParams(lr=LR, epochs=1.0, batch=float(BATCH))
    fedavg = fathom.federated(task, tuner=fathom.tuners.fixed(), hparams=hparams)
    data = fathom.Federation.from_arrays(clients())
    # A record holds numbers of the finished round, on the host: whoever has one has waited for all of it.
    return fathom.train(fedavg, data, key=jax.random.key(0), rounds=rounds, cohort=CLIENTS)


def fedjax_rounds(rounds: int) -> Iterator[Any]:
    import fedjax
    import jax

    model = fedjax.models.emnist.create_conv_model(only_digits=False)
    sgd, batching = fedjax.optimizers.sgd, fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1)
    fed_avg = fedjax.algorithms.fed_avg.federated_averaging
    algorithm = fed_avg(fedjax.model_grad(model), sgd(LR), sgd(1.0), batching)
    data = {  # as floats from the start: the stock model takes pixels as they are
        client: fedjax.ClientDataset({**features, "x": features["x"].astype(np.float32) / 255})
        for client, features in clients().items()
    }
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    for number in range(rounds):
        keys = jax.random.split(jax.random.PRNGKey(number), CLIENTS)
        state, diagnostics = algorithm.apply(state, list(zip(data, data.values(), keys, strict=True)))
        yield jax.block_until_ready((state.params, diagnostics))


WORKERS = {"fathom": fathom_rounds, "fedjax": fedjax_rounds}


def work(name: str, rounds: int) -> None:
    """Warm up, say which versions these are, then time one round for every line on stdin."""
    steps = WORKERS[name](WARM_UP + rounds)
    for _ in range(WARM_UP):
        next(steps)
    print(json.dumps({package: version(package) for package in (name, "jax", "jaxlib")}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        next(steps)
        print(json.dumps(time.perf_counter() - began), flush=True)


def fedjax_python() -> Path:
    """The interpreter of FedJAX's environment, made on the first call."""
    from platformdirs import user_cache_path

    home = user_cache_path("fathom") / "peers" / "fedjax-0.0.17"
    python, installed = home / ("Scripts" if os.name == "nt" else "bin") / "python", home / "pins.txt"
    if not installed.exists() or installed.read_text().split() != PINS:
        print(f"Installing FedJAX into {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS], check=True)
        installed.write_text("\n".join(PINS))
    return python


def compare(rounds: int) -> dict[str, Any]:
    """Start the workers one after the other, let them take turns, and sum up."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    pythons = {"fathom": [sys.executable], "fedjax": [fedjax_python(), "-I"]}  # -I: nothing from PYTHONPATH
    workers, versions, seconds = {}, {}, {name: [] for name in pythons}
    for name, python in pythons.items():
        command = [*python, __file__, "--worker", name, "--rounds", str(rounds)]
        workers[name] = subprocess.Popen(command, **pipes)
        versions[name] = json.loads(workers[name].stdout.readline())  # printed once it is warm
    for _ in range(rounds):
        for name, worker in workers.items():
            print(file=worker.stdin, flush=True)
            seconds[name].append(json.loads(worker.stdout.readline()))
    for worker in workers.values():
        worker.communicate()  # closes its stdin, at which it ends
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    machine = f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores"
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "seconds": seconds,
        "median": medians,
        "ms_per_example": {name: 1000 * median / (CLIENTS * EXAMPLES) for name, median in medians.items()},
        "ratio": medians["fathom"] / medians["fedjax"],
        "versions": versions,
        "machine": f"{machine}; Python {platform.python_version()}; {datetime.date.today().isoformat()}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A round of FedAvg on this CPU: fathom beside FedJAX.")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each library")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker, args.rounds)
    result = compare(args.rounds)
    print(f"{'':8}{'s / round':>10}{'fastest':>10}{'slowest':>10}{'ms / example':>14}")
    for name, times in result["seconds"].items():
        row = f"{result['median'][name]:10.2f}{min(times):10.2f}{max(times):10.2f}"
        versions = ", ".join(f"{package} {number}" for package, number in result["versions"][name].items())
        print(f"{name:8}{row}{result['ms_per_example'][name]:14.2f}  {versions}")
    print(f"fathom / fedjax: {result['ratio']:.2f}, of the medians of {args.rounds} rounds each, taken in turn")
    print(result["machine"])
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
