"""A round of FedAvg with the EMNIST CNN on this machine's CPU: fathom beside FedJAX, pfl-research and Flower.

Ten clients with 100 to 351 random images, one epoch, client SGD at 0.1, server SGD at 1.0, the CNN of "Adaptive
Federated Optimization" with dropout (1,206,590 parameters). Each library runs as its users run it: fathom with one
device per core, FedJAX with its stock model and its jit backend, pfl-research in one process with PyTorch's threads,
Flower with its Ray backend, one client per core at a time.

Two workloads. `fixed`: batches of 20 in every round. `moving`: another batch size in almost every round, as a tuner
makes them, twice through the same list. Batches of 20 are all that was seen before the first pass, so it shows what
compiling costs; in the second everything has been seen.

A worker process per library warms up; then they take turns, one round each, so that all meet the same machine. While
one works the others wait. Run from fathom's environment; on the first run each of the others gets one of its own in
the user's cache directory, and a log file beside it:

    python benchmarks/peers.py [--rounds 7] [--only fedjax] [--json out.json]
    python benchmarks/peers.py --model lstm

The second compares the LSTM of the same paper (4,050,748 parameters) with FedJAX's, on a quarter as many random
sentences of 20 words, with batches of 16.
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
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIZES = [100, 130, 150, 160, 170, 185, 215, 239, 280, 351]
BATCH, LR, CLASSES = 20, 0.1, 62
MOVING = [20, 17, 14, 11, 9, 8, 7, 6, 5, 5, 19, 15, 12, 10, 4]
WARM_UP = 2  # rounds: one compiles, one more settles allocators and caches

VOCABULARY, WORDS = 10_000, 20  # of the LSTM's sentences
FIRST_BATCH = {"cnn": BATCH, "lstm": 16}

Serve = Callable[[Iterator[Any]], None]  # what a worker hands its rounds to


def client(place: int) -> dict[str, np.ndarray]:
    rng, size = np.random.default_rng(place), SIZES[place]
    x = rng.integers(0, 256, (size, 28, 28), np.uint8)
    return {"x": x, "y": rng.integers(0, CLASSES, size, np.int32)}


def sentences(place: int) -> np.ndarray:
    tokens = np.random.default_rng(place).integers(3, 3 + VOCABULARY, (SIZES[place] // 4, WORDS + 1), np.int32)
    tokens[:, 0] = 1  # begins a sentence
    return tokens


def fathom_worker(batches: list[int], serve: Serve, model: str) -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    import fathom
    from fathom.tasks import femnist, nextword

    cnn = model == "cnn"
    listed = jnp.asarray([*batches, batches[0]], jnp.float32)  # the last is proposed, and not used
    fedavg = fathom.federated(
        fathom.Task(femnist.init, femnist.loss, femnist.metrics) if cnn else nextword.task(VOCABULARY),
        tuner=fathom.tuners.schedule(batch=lambda done: listed[done]),
        hparams=fathom.HParams(lr=LR, epochs=1.0, batch=float(batches[0])),
    )
    features = {str(place): client(place) if cnn else {"tokens": sentences(place)} for place in range(len(SIZES))}
    data = fathom.Federation.from_arrays(features)
    # A record holds numbers of the finished round, on the host: whoever has one has waited for all of it.
    serve(fathom.train(fedavg, data, key=jax.random.key(0), rounds=len(batches), cohort=len(SIZES)))


def fedjax_worker(batches: list[int], serve: Serve, model: str) -> None:
    import jax
    import jax.numpy as jnp

    jnp.NINF = -jnp.inf  # which its LSTM asks for, and which left jax in 0.4.34
    import fedjax

    cnn = model == "cnn"
    if cnn:
        network = fedjax.models.emnist.create_conv_model(only_digits=False)
    else:
        network = fedjax.models.stackoverflow.create_lstm_model(VOCABULARY, expected_length=13.3)
    sgd, fed_avg = fedjax.optimizers.sgd, fedjax.algorithms.fed_avg.federated_averaging
    data, algorithms = {}, {}
    for batch in batches:  # one algorithm for each batch size, kept; nothing is compiled yet
        batching = fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=1)
        algorithms[batch] = fed_avg(fedjax.model_grad(network), sgd(LR), sgd(1.0), batching)
    for place in range(len(SIZES)):  # as floats from the start: the stock model takes pixels as they are
        if cnn:
            features = client(place)
            features["x"] = features["x"][..., None].astype(np.float32) / 255
        else:
            features = {"x": sentences(place)[:, :-1], "y": sentences(place)[:, 1:]}
        data[str(place)] = fedjax.ClientDataset(features)

    def rounds() -> Iterator[Any]:
        state = algorithms[batches[0]].init(network.init(jax.random.PRNGKey(0)))
        for number, batch in enumerate(batches):
            keys = jax.random.split(jax.random.PRNGKey(number), len(SIZES))
            state, diagnostics = algorithms[batch].apply(state, list(zip(data, data.values(), keys, strict=True)))
            yield jax.block_until_ready((state.params, diagnostics))

    serve(rounds())


def torch_cnn() -> Any:
    from torch import nn

    conv = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    dense = [nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES)]
    return nn.Sequential(*conv, *dense)


def torch_loss(network: Any, x: Any, y: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(network(x[:, None].float() / 255), y.long())


def pfl_worker(batches: list[int], serve: Serve, model: str) -> None:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch_cnn()

        def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
            self.train()
            return torch_loss(self.network, x, y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    def dataset(place: int) -> Any:
        return Dataset(raw_data=list(map(torch.as_tensor, client(place).values())), user_id=place)

    def rounds() -> Iterator[Any]:
        module = Model()
        server = torch.optim.SGD(module.parameters(), lr=1.0)
        trained: Any = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
        users = get_user_sampler("minimize_reuse", list(range(len(SIZES))))
        backend, algorithm = SimulatedBackend(FederatedDataset(dataset, users), None), FederatedAveraging()
        settings = NNAlgorithmParams(
            central_num_iterations=len(batches), evaluation_frequency=0, train_cohort_size=len(SIZES), val_cohort_size=0
        )
        for number, batch in enumerate(batches):
            context = CentralContext(
                current_central_iteration=number,
                do_evaluation=False,
                cohort_size=len(SIZES),
                population=Population.TRAIN,
                model_train_params=NNTrainHyperParams(batch, local_num_epochs=1, local_learning_rate=LR),
                algorithm_params=settings,
                seed=number,
            )
            found, metrics = backend.gather_results(
                model=trained, training_algorithm=algorithm, central_context=context
            )
            trained, _ = algorithm.process_aggregated_statistics(context, metrics, trained, found)
            yield trained

    serve(rounds())


def flower_worker(batches: list[int], serve: Serve, model: str) -> None:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        import torch

        x, y = map(torch.as_tensor, client(int(context.node_config["partition-id"])).values())
        network = torch_cnn()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        sgd = torch.optim.SGD(network.parameters(), lr=LR)
        for rows in torch.randperm(len(y)).split(message.content["config"]["batch"]):
            sgd.zero_grad()
            torch_loss(network, x[rows], y[rows]).backward()
            sgd.step()
        metrics = MetricRecord({"num-examples": len(y)})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(min_train_nodes=len(SIZES), min_available_nodes=len(SIZES))

        def rounds() -> Iterator[Any]:  # as its strategy does them, without evaluation
            arrays = ArrayRecord(torch_cnn().state_dict())
            for number, batch in enumerate(batches, 1):
                messages = strategy.configure_train(number, arrays, ConfigRecord({"batch": batch}), grid)
                arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
                yield arrays.keys()  # fails where nobody answered

        serve(rounds())

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=len(SIZES), backend_config=backend)


class Library(NamedTuple):
    """One of those compared."""

    worker: Callable[[list[int], Serve, str], None]
    shown: tuple[str, ...]  # packages whose versions are reported
    pins: tuple[str, ...] = ()  # none: it runs in this environment


NUMERIC = ("optax==0.2.8", "numpy==2.4.6", "scipy==1.17.1")
TORCH = ("torch==2.13.0", "numpy==2.4.6")
LIBRARIES = {
    "fathom": Library(fathom_worker, ("fathom", "jax")),
    # FedJAX calls jax.tree_map, which left jax in 0.6. 0.5.3 came last before that, and is faster than 0.4.38.
    "fedjax": Library(
        fedjax_worker,
        ("fedjax", "jax"),
        ("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3", "dm-haiku==0.0.17", *NUMERIC),
    ),
    "pfl": Library(pfl_worker, ("pfl", "torch"), ("pfl==0.6.0", *TORCH)),
    "flower": Library(flower_worker, ("flwr", "ray", "torch"), ("flwr[simulation]==1.29.0", "ray==2.51.1", *TORCH)),
}


def work(name: str, batches: list[int], model: str) -> None:
    """Warm up, say which versions these are, then time one round for every line on stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log

    def serve(steps: Iterator[Any]) -> None:
        for _ in range(WARM_UP):
            next(steps)
        print(json.dumps({package: version(package) for package in LIBRARIES[name].shown}), file=answers, flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            next(steps)
            print(json.dumps(time.perf_counter() - began), file=answers, flush=True)

    LIBRARIES[name].worker(batches, serve, model)


def python_of(name: str, home: Path) -> list[str]:
    """The command of a library's interpreter; its environment is made on the first call."""
    pins = list(LIBRARIES[name].pins)
    if not pins:
        return [sys.executable]
    home = home / f"{name}-{pins[0].split('==')[1]}"
    python, installed = home / ("Scripts" if os.name == "nt" else "bin") / "python", home / "pins.txt"
    if not installed.exists() or installed.read_text().split() != pins:
        print(f"Installing {name} into {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        installed.write_text("\n".join(pins))
    return [str(python), "-I"]  # -I: nothing from PYTHONPATH


def start(name: str, home: Path, batches: list[int], model: str) -> subprocess.Popen[str]:
    quiet = {"JAX_PLATFORMS": "cpu", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [*python_of(name, home), __file__, "--worker", name, "--batches", json.dumps(batches), "--model", model]
    with (home / f"{name}.log").open("w") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        return subprocess.Popen(command, **pipes, text=True, env={**os.environ, **quiet})


def compare(names: list[str], rounds: int, model: str) -> dict[str, Any]:
    """Start the workers one after the other, let them take turns, and sum up."""
    from platformdirs import user_cache_path

    home = user_cache_path("fathom") / "peers"
    home.mkdir(parents=True, exist_ok=True)
    first = FIRST_BATCH[model]
    passes = {"fixed": [first] * rounds}
    if model == "cnn":
        passes |= {"moving, first pass": MOVING, "moving, second pass": MOVING}
    batches = [first] * WARM_UP + [batch for listed in passes.values() for batch in listed]
    workers: dict[str, Any] = {}
    versions, failed = {}, {}  # by library
    seconds: dict[str, dict[str, list[float]]] = {label: {} for label in passes}

    def ask(name: str) -> Any:
        answer = workers[name].stdout.readline()
        if not answer:
            failed[name] = f"its worker ended; see {home / name}.log"
            del workers[name]
        return json.loads(answer or "null")

    for name in names:
        try:
            workers[name] = start(name, home, batches, model)
            versions[name] = ask(name)  # printed once it is warm
        except (OSError, subprocess.CalledProcessError) as error:
            failed[name] = f"could not be installed: {error}"
    for label, listed in passes.items():
        for number, batch in enumerate(listed, 1):
            print(f"\r{label}: round {number} of {len(listed)}, batch {batch}   ", end="", file=sys.stderr, flush=True)
            for name in list(workers):
                print(file=workers[name].stdin, flush=True)
                if (took := ask(name)) is not None:
                    seconds[label].setdefault(name, []).append(took)
    print(file=sys.stderr)
    for worker in workers.values():
        worker.communicate()  # closes its stdin, at which it ends
    examples = sum(SIZES) if model == "cnn" else sum(size // 4 for size in SIZES)
    return {
        "model": model,
        "examples": examples,
        "seconds": seconds,
        "batches": passes,
        "versions": versions,
        "failed": failed,
        "machine": machine(),
    }


def machine() -> str:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    kind = f"{model[1] if model else platform.processor()}, {os.cpu_count()} cores"
    return f"{kind}; Python {platform.python_version()}; {datetime.date.today().isoformat()}"


def show(result: dict[str, Any]) -> None:
    """A table in Markdown: the median round where all are alike, the mean where batch sizes differ."""
    print("| workload | library | seconds a round | fastest to slowest | ms per example | over fathom's |")
    print("|---|---|---|---|---|---|")
    for label, by_name in result["seconds"].items():
        centre = statistics.median if label == "fixed" else statistics.mean
        for name, times in by_name.items():
            middle = centre(times)
            cells = f"{middle:.2f} | {min(times):.2f} to {max(times):.2f} | {1000 * middle / result['examples']:.2f}"
            ratio = f"{middle / centre(by_name['fathom']):.2f}" if "fathom" in by_name else "-"
            print(f"| {label} | {name} | {cells} | {ratio} |")
    print()
    for versions in result["versions"].values():
        print(", ".join(f"{package} {number}" for package, number in (versions or {}).items()))
    for name, why in result["failed"].items():
        print(f"{name} was left out: {why}")
    print(result["machine"])


def main() -> None:
    parser = argparse.ArgumentParser(description="A round of FedAvg on this CPU: fathom beside its peers.")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each library with a fixed batch size")
    parser.add_argument("--only", nargs="+", choices=[n for n in LIBRARIES if n != "fathom"], help="these peers alone")
    parser.add_argument(
        "--model", choices=FIRST_BATCH, default="cnn", help="what is trained; the LSTM with FedJAX alone"
    )
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--worker", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.worker, args.batches, args.model)
    peers = args.only or (["fedjax"] if args.model == "lstm" else [name for name in LIBRARIES if name != "fathom"])
    if args.model == "lstm" and peers != ["fedjax"]:
        parser.error("--model lstm compares with fedjax alone; leave --only out.")
    result = compare(["fathom", *peers], args.rounds, args.model)
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
