"""Runs rounds: samples cohorts, keeps the devices fed, yields a record of every round."""

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fathom.core.evaluate import chunks, evaluate
from fathom.core.feed import feed, put, sampler
from fathom.core.plan import slots
from fathom.core.round import device_mesh
from fathom.core.types import (
    Algorithm,
    Batch,
    ClientStats,
    Cohort,
    Device,
    HParams,
    Key,
    Order,
    Params,
    RoundInfo,
    ServerState,
    Tuner,
)
from fathom.data import Federation

GIVE_UP = 20  # rounds in a row that came to nothing, in every trial


class Totals(NamedTuple):
    """What each trial has cost so far; Python's integers, which do not overflow."""

    gradients: list[int]
    up: list[int]
    down: list[int]
    rejected: list[int]
    idle: list[int]  # rounds in a row, up to the last, that were undone or brought nothing that could be used
    ended: list[int]  # the round after which a trial was done; 0 while it goes on


class Snapshot(NamedTuple):
    """All that a run needs to go on after a round, to the same bits: pass it to `train` as `start`."""

    round: int
    states: ServerState  # each leaf (trials, ...)
    totals: Totals
    seconds: float


class Record(NamedTuple):
    """What one round of one trial showed, as numpy arrays and Python numbers.

    `rejected`, `gradients`, `bytes_up`, `bytes_down` and `seconds` count from the start of the run.
    """

    round: int  # from 1
    trial: int
    hparams: HParams  # what the round used; each leaf (cohort,)
    next_hparams: HParams
    agreement: float  # c_glob: cosine of the update with the smoothed past ones
    alignment: float  # c_loc: weighted mean of the clients' phi_i
    clients: ClientStats  # each leaf (cohort,)
    gradients: int  # per-example gradients computed by clients
    bytes_up: int  # from clients to server: updates, and the tuner's numbers
    bytes_down: int  # from server to clients: the model, and the tuner's numbers
    loss: float  # training loss along the clients' paths
    metrics: dict[str, float] | None  # on the test set; None between evaluations
    seconds: float
    rejected: int = 0  # updates that were not finite, or absurdly long, and were set aside
    gain: float | None = None  # what clients' last steps brought, over what they promised; None if none did, or told
    rolled_back: bool = False  # the round was undone: the run went back to its last good state, with half the lr
    snapshot: Snapshot | None = None  # of all trials, with the last one's record; None where none was asked for


def train(
    algorithm: Algorithm,
    federation: Federation,
    *,
    key: Key,
    rounds: int,
    cohort: int | Sequence[Sequence[Any]],
    test: Batch | None = None,
    every: int = 1,
    until: Callable[[dict[str, float]], bool] | None = None,
    order: Order = "shuffled",
    lanes: int | None = None,
    devices: Sequence[Device] | None = None,
    start: Snapshot | None = None,
    snapshots: float | None = None,
) -> Iterator[Record]:
    """Train on a federation, one Record a round.

    key: a random key, or an array of them: one trial each, all in one program; every trial then has a record.
    cohort: how many clients to sample each round, or the ids of the clients of every round.
    test: arrays to evaluate on every `every` rounds and after the last; or several such sets by name, of which
    "test" gives the metrics their plain names and another, say "unseen", gives "unseen_accuracy".
    until: whether a trial with these metrics is done: its later rounds are neither run nor recorded.
    order: "shuffled" reshuffles a client's examples for every pass; "cyclic" takes them as they stand.
    lanes, devices: how the work is spread (by default: all devices, and on each one lane for a CPU or as many as
    can be kept busy for an accelerator, at most 128). They change the time a round takes and not its result. Where
    `jax.distributed` runs on several hosts, all devices are those of all hosts: call this alike on each.
    snapshots: seconds from one record with a snapshot to the next; 0 for one every round. The last round has one, too.
    start: a snapshot of the same run, to go on from.
    """
    _check(algorithm.hparams, key, order, rounds=rounds, every=every, lanes=1 if lanes is None else lanes)
    sample, size = sampler(federation, cohort, rounds)
    test_sets = _test_sets(test)
    if until and not test_sets:
        raise ValueError("until is asked about metrics, and there are none without a test set; give `test`.")

    def records() -> Iterator[Record]:
        began = time.perf_counter()
        keys = _keys(key)
        used = list(devices or jax.devices())
        mesh = device_mesh(used)
        whole, split = (
            NamedSharding(mesh, P(*axes)) if mesh else SingleDeviceSharding(used[0]) for axes in ((), ("clients",))
        )
        if not split.is_fully_addressable:
            _agree(federation, jax.random.key_data(keys).tolist(), rounds, size, every, start and start.round)
        capacity = int(federation.sizes.max()) if order == "shuffled" else 0  # examples that are put in order
        tests = {name: put(chunks(batch, parts=len(used)), split) for name, batch in test_sets.items()}
        # A round takes the place of the state it starts from; a snapshot is left whole.
        states = _init(algorithm, keys, size) if start is None else jax.tree.map(jnp.copy, start.states)
        states = put(states, whole)
        first = 1 if start is None else start.round + 1
        model_bytes = _bytes(states.params) // len(keys)
        totals = Totals(*([0] * len(keys) for _ in Totals._fields)) if start is None else start.totals
        hparams = _of_running(jax.device_get(states.hparams), totals)
        if start and all(start.totals.ended):
            return
        began -= 0.0 if start is None else start.seconds
        saved = time.perf_counter()
        ahead = _works_ahead(used[0])
        done: tuple | None = None  # the last round, as far as it is known

        def report(
            number: int, places: list, info: RoundInfo, metrics: dict | None, totals: Totals, kept: ServerState | None
        ) -> Iterator[Record]:
            metrics = jax.device_get(metrics)
            seconds = time.perf_counter() - began
            snapshot = None if kept is None else Snapshot(number, kept, totals, seconds)
            running = [trial for trial, ended in enumerate(totals.ended) if ended in (0, number)]
            for trial in running:
                record = _record(number, trial, info, metrics, totals, seconds, len(places[trial]))
                yield record._replace(snapshot=snapshot if trial == running[-1] else None)
            _refuse_divergence(number, info, totals)

        supplies = feed(federation, sample, jax.random.key_data(keys).tolist(), first, rounds, size, whole, split)
        for number, supply in enumerate(supplies, first):
            states, info = _round(
                algorithm,
                states,
                supply.cohorts,
                lanes=lanes or _default_lanes(used[0], federation.sizes, len(keys) * size),
                slots=slots(hparams.batch, algorithm.hparams.batch, capacity or None),
                capacity=capacity,
                order=order,
                mesh=mesh,
                dealt=supply.dealt,
                running=None if until is None else np.array(totals.ended) == 0,
            )
            metrics = None
            if tests and (number % every == 0 or number == rounds):
                metrics = {
                    prefix + name: value
                    for prefix, cut in tests.items()
                    for name, value in evaluate(algorithm.task, states.params, *cut, mesh=mesh).items()
                }
            if ahead and done:
                yield from report(*done)  # while the devices do this round
            info = jax.device_get(info)
            totals = _add(totals, info, list(map(len, supply.places)), algorithm.tuner, model_bytes)
            if until and metrics is not None:
                metrics = jax.device_get(metrics)
                totals = _ends(totals, number, metrics, until)
            hparams = _of_running(info.next_hparams, totals)
            last = number == rounds or all(totals.ended)
            kept = None
            if snapshots is not None and (time.perf_counter() - saved >= snapshots or last):
                # Copied before the next round takes its place; every device has the whole, and one of them is enough.
                kept = jax.tree.map(lambda leaf: jnp.copy(leaf.addressable_data(0)), states)
                saved = time.perf_counter()
            done = (number, supply.places, info, metrics, totals, kept)
            if not ahead:
                yield from report(*done)
            if last:
                break
        if ahead and done:
            yield from report(*done)

    return records()


def _check(hparams: HParams, key: Key, order: Order, **counts: int) -> None:
    """Refuse what could not be run, or would be run as something else."""
    for name, value in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")
    if order not in get_args(Order):
        raise ValueError(f"order={order!r} is not known; choose from {', '.join(get_args(Order))}.")
    if not isinstance(key, jax.Array):
        raise ValueError(f"key={key!r} is not a random key; give jax.random.key(0), or an array of keys.")
    for name, value, least in zip(HParams._fields, hparams, (0, 0, 1), strict=True):
        if not np.all(np.isfinite(value)) or not np.all(np.asarray(value) >= least) or not np.all(value):
            bound = f"at least {least}" if least else "greater than 0"
            raise ValueError(f"hparams: {name}={value!r} must be {bound} and finite.")


def _agree(federation: Federation, *settings: Any) -> None:
    """Refuse to start where the hosts were not given the same clients and settings: they would wait for each other."""
    facts = repr((federation.ids, federation.sizes.tolist(), settings))
    seen = multihost_utils.process_allgather(np.uint32(zlib.crc32(facts.encode())))
    if len(set(np.ravel(seen).tolist())) > 1:
        raise ValueError("the hosts have different clients or settings; give each the same data and the same command.")


def _test_sets(test: Batch | None) -> dict[str, Batch]:
    """Test sets by the prefix of their metrics."""
    if not test:
        return {}
    several = all(isinstance(value, dict) for value in test.values())
    sets = {"" if name == "test" else f"{name}_": batch for name, batch in test.items()} if several else {"": test}
    for name, batch in sets.items():
        if {len(feature) for feature in batch.values()} & {0}:
            raise ValueError(f"test set {name.rstrip('_') or 'test'!r} has no examples; give some, or leave it out.")
    return sets


def _keys(key: Key) -> Key:
    """One typed key per trial, from a key or an array of keys, old style or new."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jnp.atleast_1d(key if typed else jax.random.wrap_key_data(key))


@partial(jax.jit, static_argnames=("algorithm", "cohort"))
def _init(algorithm: Algorithm, keys: Key, cohort: int) -> ServerState:
    return jax.vmap(lambda key: algorithm.init(key, cohort))(keys)


@partial(
    jax.jit,
    static_argnames=("algorithm", "lanes", "slots", "capacity", "order", "mesh"),
    donate_argnames=("states",),
)
def _round(algorithm: Algorithm, states: ServerState, cohorts: Cohort, running: Any, **options) -> Any:
    """One compiled round of every trial; the update itself stays on the device, unless somebody asks.

    running: which trials go on, where some may have ended: nobody works for those.
    """
    if running is not None:
        cohorts = cohorts._replace(size=jnp.where(running[:, None], cohorts.size, 0))
    states, info = algorithm.rounds(states, cohorts, **options)
    return states, info._replace(update=())


def _add(totals: Totals, info: RoundInfo, sampled: list[int], tuner: Tuner, model_bytes: int) -> Totals:
    """The totals after one more round. Whoever was sampled was sent the model; who answered sent an update."""
    sampled = [0 if ended else n for n, ended in zip(sampled, totals.ended, strict=True)]
    up, down = (model_bytes + 4 * n for n in (tuner.scalars_up, tuner.scalars_down))
    more = Totals(
        gradients=info.clients.grads.sum(1, dtype=np.int64).tolist(),
        up=[n * up for n in (info.clients.steps > 0).sum(1).tolist()],
        down=[n * down for n in sampled],
        rejected=info.rejected.tolist(),
        idle=(info.rolled_back | np.isnan(info.loss)).astype(int).tolist(),
        ended=[0] * len(sampled),
    )
    totals = Totals(*([a + b for a, b in zip(*pair, strict=True)] for pair in zip(totals, more, strict=True)))
    return totals._replace(idle=[n if now else 0 for n, now in zip(totals.idle, more.idle, strict=True)])


def _ends(totals: Totals, number: int, metrics: dict[str, np.ndarray], until: Callable) -> Totals:
    """The totals, with the trials that are done after this round."""
    each = [{name: float(values[trial]) for name, values in metrics.items()} for trial in range(len(totals.ended))]
    pairs = zip(totals.ended, each, strict=True)
    return totals._replace(ended=[ended or (number if until(own) else 0) for ended, own in pairs])


def _of_running(hparams: HParams, totals: Totals) -> HParams:
    """The hyperparameters of the trials that go on: those of the others are of no use, and no longer count."""
    running = np.array(totals.ended) == 0
    return HParams(*(leaf[running] for leaf in hparams))


def _refuse_divergence(number: int, info: RoundInfo, totals: Totals) -> None:
    """Stop once every trial is beyond help."""
    finite = np.isfinite([leaf.mean(1) for leaf in info.next_hparams]).all(0)
    idle = np.array(totals.idle) >= GIVE_UP
    running = np.array(totals.ended) == 0
    if np.any(running) and np.all((idle | ~finite)[running]):
        which = "training" if len(idle) == 1 else "every trial"
        what = (
            f"the last {GIVE_UP} rounds came to nothing"
            if idle[running].all()
            else "hyperparameters are no longer finite"
        )
        raise FloatingPointError(
            f"{which} diverged: {what} after round {number}; start from a lower lr, or bound it with `clamp`."
        )


def _record(
    number: int,
    trial: int,
    info: RoundInfo,
    metrics: dict[str, np.ndarray] | None,
    totals: Totals,
    seconds: float,
    present: int,
) -> Record:
    """One trial's record, without the clients that only filled up the cohort."""
    hparams, next_hparams, clients = jax.tree.map(
        lambda leaf: leaf[trial, :present], (info.hparams, info.next_hparams, info.clients)
    )
    return Record(
        round=number,
        trial=trial,
        hparams=hparams,
        next_hparams=next_hparams,
        agreement=float(info.agreement[trial]),
        alignment=float(info.alignment[trial]),
        clients=clients,
        gradients=totals.gradients[trial],
        bytes_up=totals.up[trial],
        bytes_down=totals.down[trial],
        loss=float(info.loss[trial]),
        metrics=None if metrics is None else {name: float(v[trial]) for name, v in metrics.items()},
        seconds=seconds,
        rejected=totals.rejected[trial],
        gain=None if info.gain is None or math.isnan(info.gain[trial]) else float(info.gain[trial]),
        rolled_back=bool(info.rolled_back[trial]),
    )


def _works_ahead(device: Device) -> bool:
    """Whether the next round is started before the last is reported, so that the device does not wait for that.

    Not on a CPU, where both would share the cores.
    """
    return device.platform != "cpu"


def _default_lanes(device: Device, sizes: np.ndarray, jobs: int) -> int:
    """One lane on a CPU, where clients one after another are fastest; as many as can be kept busy on an accelerator.

    A round lasts as long as its longest client, whatever the lanes: more than all work divided by that only idle.
    """
    longest = np.quantile(sizes, 1 - 1 / (jobs + 1))
    return 1 if device.platform == "cpu" else min(math.ceil(jobs * sizes.mean() / longest), 128)


def _bytes(params: Params) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
