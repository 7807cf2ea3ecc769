"""How fast this machine trains: rounds of a task's model on random examples."""

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fathom import tasks, tuners
from fathom.core.engine import train
from fathom.core.round import device_mesh, federated
from fathom.core.types import Algorithm, Batch, Cohort, Device, Key, Task
from fathom.data import Federation
from fathom.data.synthetic import CLASSES, FEATURES
from fathom.data.text import BEGIN, FIRST
from fathom.experiment.run import environment
from fathom.experiment.spec import choose
from fathom.tasks import femnist, glyphs, nextword, stackoverflow, synthetic

SIZES = (100, 130, 150, 160, 170, 185, 215, 239, 280, 351)  # examples of a client, over and over; their mean is 198
MOVING = (1.0, 0.7, 0.45, 0.3, 0.2)  # batch sizes of a pass, as parts of the first
WORDS = 10_000  # of the vocabulary
LIMIT = 40.0  # seconds after which no further pass is begun, from the third on

Rng = np.random.Generator
Row = dict[str, Any]


def _images(rng: Rng, n: int) -> Batch:
    return {"x": rng.integers(0, 256, (n, 28, 28), np.uint8), "y": rng.integers(0, 62, n, np.int32)}


def _vectors(rng: Rng, n: int) -> Batch:
    x = rng.standard_normal((n, FEATURES), np.float32)
    return {"x": x, "y": rng.integers(0, CLASSES, n, np.int32)}


def _sentences(rng: Rng, n: int) -> Batch:
    tokens = rng.integers(FIRST, FIRST + WORDS, (n, stackoverflow.LENGTH + 1), np.uint16)
    tokens[:, 0] = BEGIN
    return {"tokens": tokens}


# Of each task: what makes it, and what makes random examples for it.
BENCHES: dict[str, tuple[Callable[[], Task], Callable[[Rng, int], Batch]]] = {
    "femnist": (lambda: Task(femnist.init, femnist.loss, femnist.metrics), _images),
    "stackoverflow": (lambda: nextword.task(WORDS), _sentences),
    "glyphs": (lambda: Task(glyphs.init, glyphs.loss, glyphs.metrics), _images),
    "synthetic": (lambda: Task(synthetic.init, synthetic.loss, synthetic.metrics), _vectors),
}


def measure(
    name: str = "femnist",
    cohort: int = 10,
    lanes: int | None = None,
    batch: float | None = None,
    rounds: int = 10,
    moving: bool = False,
    trials: int = 1,
) -> Row:
    """Time `rounds` rounds of FedAvg, one local epoch each, after a first pass that compiles.

    moving: the batch size goes through MOVING, over and over, and `rounds` is rounded up to whole passes; otherwise a
    pass is one round. After LIMIT seconds no third pass, or later one, is begun.

    What the figures mean (a round is one of every trial, where there are several):
    examples_per_second: examples that clients hold and go through, so the few that fill up a last batch do not count.
    mflop_per_example: of the matrix products in the gradient of one example's loss; see `flops`.
    fraction_of_peak: mflop_per_example * examples_per_second, over the speed of a large matrix product here.
    compile_seconds: rounds of the first pass less the median of later ones with the same batch size. This is with an
    empty cache, and takes in the first copy of the data to the device.
    host_fraction: share of a round in which the device waits for Python: 1 - (fastest call of the compiled round
    alone) / (fastest round). 0 where noise hides it; None if the batch size moves.
    memory_bytes: the most that a device had in use after the first pass, or where it does not tell, the process.
    """
    choose("task", name, {key: make for key, (make, _) in BENCHES.items()})
    start = tasks.TASKS[name].defaults.hparams
    start = start if batch is None else start._replace(batch=batch)
    counts = {"cohort": cohort, "lanes": 1 if lanes is None else lanes, "rounds": rounds, "trials": trials}
    for key, value in counts.items():
        if value < 1:
            raise ValueError(f"{key}={value} must be at least 1.")
    if not (math.isfinite(start.batch) and start.batch >= 1):
        raise ValueError(f"batch={batch} must be at least 1 and finite.")

    make, examples = BENCHES[name]
    task, rng = make(), np.random.default_rng(0)
    sizes = [SIZES[client % len(SIZES)] for client in range(cohort)]
    federation = Federation.from_arrays({client: examples(rng, n) for client, n in enumerate(sizes)})
    batches = jnp.asarray([start.batch * part for part in MOVING] if moving else [start.batch])
    tuner = tuners.schedule(batch=lambda done: batches[done % len(batches)])
    algorithm = federated(task, tuner=tuner, hparams=start)

    keys = jax.random.split(jax.random.key(0), trials)
    programs: list[Row] = []  # how each compiled round spreads its work

    def traced(states: Any, cohorts: Cohort, **options: Any) -> Any:
        # This runs once for every program that is compiled.
        programs.append({key: options[key] for key in ("lanes", "slots", "capacity", "order", "mesh")})
        return algorithm.rounds(states, cohorts, **options)

    passes = -(-rounds // len(batches))
    records = train(
        algorithm._replace(rounds=traced),
        federation,
        key=keys,
        rounds=(1 + passes) * len(batches),
        cohort=cohort,
        lanes=lanes,
    )

    def one_round() -> None:
        for _ in range(trials):
            next(records)

    with closing(records):  # pyright: ignore[reportArgumentType]
        cold = [_seconds(one_round) for _ in batches]
        memory_bytes, memory_of = _memory(jax.devices())
        warm: list[list[float]] = []  # a list per pass
        began = time.perf_counter()
        while len(warm) < min(passes, 2) or (len(warm) < passes and time.perf_counter() - began < LIMIT):
            warm.append([_seconds(one_round) for _ in batches])

    alone = None if moving else _alone(algorithm, federation, keys, programs[0])
    bare = [_seconds(alone) for _ in warm] if alone else []
    seconds = float(np.median(np.mean(warm, 1)))  # of a round
    work, peak = flops(task, examples(rng, 1)), _matmul_flops()
    return {
        "task": name,
        "cohort": cohort,
        "trials": trials,
        "lanes": programs[0]["lanes"],
        "batch": [round(float(b), 2) for b in batches],
        "rounds": len(warm) * len(batches),
        "seconds_per_round": seconds,
        "rounds_per_second": 1 / seconds,
        "examples_per_second": trials * sum(sizes) / seconds,
        "mflop_per_example": work / 1e6,
        "peak_gflop_per_second": peak / 1e9,
        "fraction_of_peak": work * trials * sum(sizes) / seconds / peak,
        "compile_seconds": float(sum(np.maximum(np.array(cold) - np.median(warm, 0), 0))),
        "programs": len(programs),
        "host_fraction": max(0.0, 1 - min(bare) / min(map(min, warm))) if bare else None,
        "memory_bytes": memory_bytes,
        "memory_of": memory_of,
        "environment": environment(),
    }


def flops(task: Task, example: Batch) -> int:
    """Floating-point operations of the matrix products in the gradient of one example's loss.

    Counted in the traced program, with loops multiplied out: XLA's cost analysis counts the body of a loop once, which
    for the LSTM is a third. Of `femnist` it is 71.6 million, where XLA says 72.7 with all that is not a product.
    """
    params, key = jax.eval_shape(task.init, jax.random.key(0)), jax.random.key(0)
    gradient = jax.grad(lambda params: task.loss(params, example, key)[0])
    return _products(jax.make_jaxpr(gradient)(params).jaxpr)


def _products(jaxpr: Any) -> int:
    total = 0
    for step in jaxpr.eqns:
        if step.primitive.name == "dot_general":
            (summed, _), _ = step.params["dimension_numbers"]
            inner = math.prod(step.invars[0].aval.shape[axis] for axis in summed)
            total += 2 * inner * step.outvars[0].aval.size
        times = step.params["length"] if step.primitive.name == "scan" else 1
        total += times * sum(_products(inner) for inner in jax.extend.core.jaxprs_in_params(step.params))
    return total


def _alone(algorithm: Algorithm, federation: Federation, keys: Key, options: Row) -> Callable[[], Any]:
    """A call of the compiled round and nothing else, its arguments on the device; compiled and called once."""
    mesh = options["mesh"]
    put = partial(jax.device_put, device=NamedSharding(mesh, P()) if mesh else jax.devices()[0])
    columns = (
        federation.starts.astype(np.int32),
        federation.sizes.astype(np.int32),
        federation.names(np.arange(len(federation))),
    )
    cohorts = put(Cohort(federation.examples, *(np.stack([column] * len(keys)) for column in columns)))
    states = put(jax.jit(jax.vmap(lambda key: algorithm.init(key, len(federation))))(keys))

    @partial(jax.jit, donate_argnums=0)
    def step(states: Any, cohorts: Cohort) -> Any:
        states, info = algorithm.rounds(states, cohorts, **options)
        return states, info._replace(update=())

    def call() -> None:
        nonlocal states
        states, _ = jax.block_until_ready(step(states, cohorts))

    call()
    return call


def _matmul_flops() -> float:
    """Operations a second of a large float32 matrix product on every device at once, at the default precision."""
    devices = jax.devices()
    mesh, width = device_mesh(devices), 1536 if devices[0].platform == "cpu" else 8192
    square = np.ones((len(devices), width, width), np.float32)
    square = jax.device_put(square, NamedSharding(mesh, P(mesh.axis_names[0])) if mesh else devices[0])
    product = jax.jit(lambda x: x @ x)

    def call() -> None:
        jax.block_until_ready(product(square))

    call()
    return len(devices) * 2 * width**3 / min(_seconds(call) for _ in range(5))


def _memory(devices: list[Device]) -> tuple[int | None, str]:
    """The most bytes that were in use, and whether on one device or by the process."""
    stats = [device.memory_stats() for device in devices]
    if all(stats):
        return max(each["peak_bytes_in_use"] for each in stats), "device"
    try:
        import resource
    except ImportError:  # Windows
        return None, "process"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024, "process"


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
