"""A round of federated training: local work, aggregation, server step, tuner step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fathom import optimizers
from fathom.core import guard as guards
from fathom.core import lanes
from fathom.core.aggregate import Aggregator, mean
from fathom.core.client import Job, Work, gain
from fathom.core.plan import ANY_BATCH, Plan, Slots, deal, failures, plan, reach
from fathom.core.trees import cosine, unit, weighted_mean
from fathom.core.types import (
    Algorithm,
    Array,
    Batch,
    ClientStats,
    Cohort,
    Device,
    HParams,
    Key,
    Order,
    Params,
    RoundInfo,
    RoundStats,
    ServerState,
    Task,
    Tuner,
)

START = HParams(lr=0.1, epochs=1.0, batch=20.0)


def federated(
    task: Task,
    *,
    tuner: Tuner,
    hparams: HParams | None = None,
    client_opt: optax.GradientTransformationExtraArgs | None = None,
    server_opt: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
    guard: bool = True,
    dropout: float = 0.0,
    stragglers: float = 0.0,
) -> Algorithm:
    """Federated training of `task` from the first `hparams`, steered by `tuner`; FedAvg's steps by default.

    The hyperparameters are data: they are an argument and an output of a round, and one compiled program serves them
    all. `tuners.plumb()` has its own first ones and takes no others; with another tuner they must suit the task
    (by default lr 0.1, one epoch, batches of 20).

    `client_opt` is a client step of `fathom.optimizers`, which is told the round's learning rate; an optimizer with a
    rate of its own, such as `optax.sgd(0.1)`, would not listen to the tuner. `aggregator` is one of `fathom.aggregate`:
    the weighted mean by default, a robust or a private one.

    A client whose update is not finite, or absurdly long, is left out. With `guard`, a round after which the run would
    diverge is undone: it goes back to its last good state, with half the learning rate (`core/guard.py`). Under a
    private aggregator neither lengths nor losses are looked at, because they would tell of clients.

    To simulate clients that fail: one in a round's cohort vanishes with probability `dropout`, and with probability
    `stragglers` it stops early, anywhere, and sends what it has.

    `init(key, cohort)` makes the state of a run with `cohort` clients a round. `round(state, cohort, lanes=, slots=,
    order=)` does one round; how many lanes work side by side and how their batches are cut into slots changes the time
    it takes and not the result.
    """
    if tuner.first is not None and hparams is not None:
        raise ValueError(f"this tuner has first values of its own, so {hparams} would be ignored; leave out `hparams`.")
    started = hparams or tuner.first or START
    aggregator = aggregator or mean()
    guard = guard and aggregator.privacy is None
    if aggregator.privacy is not None and (tuner.per_client or tuner.checks):
        needs = "each client's own numbers" if tuner.per_client else "what clients' last steps brought"
        raise ValueError(f"it needs {needs}, which a private aggregator hides; choose another tuner, such as fathom.")
    client_step = client_opt or optimizers.sgd()
    server_step = optax.with_extra_args_support(server_opt or optax.sgd(1.0))

    def init(key: Key, cohort: int) -> ServerState:
        key, params_key, tuner_key = jax.random.split(key, 3)
        params = jax.tree.map(jnp.asarray, task.init(params_key))
        start = HParams(*(jnp.broadcast_to(jnp.asarray(value, jnp.float32), (cohort,)) for value in started))
        first, tuner_state = tuner.init(tuner_key, start, params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        opt, done = server_step.init(params), jnp.zeros((), jnp.int32)
        # Copied, because a round may take the place of the state it starts from: no two parts can share a buffer.
        good = jax.tree.map(jnp.copy, guards.Good(params, opt, first, tuner_state, zeros)) if guard else ()
        return ServerState(params, opt, first, tuner_state, zeros, done, key, guards.init(good, params))

    def finish(
        state: ServerState, key: Key, noise_key: Key, banked: Params, clients: ClientStats, drift: Array
    ) -> tuple[ServerState, RoundInfo]:
        """The server's half of a round, for one trial. drift: of all that answered, also those set aside."""
        weights = aggregator.weight(clients.examples)
        combined = aggregator.combine(noise_key, banked, weights)
        update = jax.tree.map(lambda u, x: u.astype(x.dtype), combined, state.params)  # Delta-bar_t
        stats = RoundStats(state.hparams, update, aggregator.signals(noise_key, clients))
        steps, opt = server_step.update(update, state.opt, state.params, stats=stats)
        # A round that brought nothing leaves the model as it was; but a private one must not show that it did.
        used = jnp.any(clients.examples > 0) | (aggregator.privacy is not None)
        params, opt = jax.tree.map(
            lambda new, old: jnp.where(used, new, old),
            (optax.apply_updates(state.params, steps), opt),
            (state.params, state.opt),
        )
        next_hparams, tuner_state = tuner.update(key, stats, state.tuner)
        past = unit(update) if tuner.directions else update
        smoothed = optax.tree.update_moment(past, state.smoothed, tuner.smoothing, 1)

        answered = jnp.sum(clients.steps > 0)
        rejected = jnp.sum((clients.steps > 0) & (clients.examples == 0))
        loss = jnp.where(rejected < answered, weighted_mean(clients.loss, clients.examples), jnp.nan)
        loss = jnp.where(answered > 0, loss, 0.0)
        middle, length = guards.medians(  # which one client in many cannot move
            jnp.stack([clients.loss, jnp.sqrt(drift)]), jnp.stack([clients.examples > 0, jnp.isfinite(drift)])
        )
        after = guards.Good(params, opt, next_hparams, tuner_state, smoothed)
        struck = guards.strikes(state.guard, middle, answered, rejected)
        bad = jnp.zeros((), bool)
        if guard:
            bad = guards.diverged(struck, answered, jnp.sum((clients.steps > 0) & ~jnp.isfinite(drift)))
            back = guards.go_back(state.guard.good, state.hparams)
            after = jax.tree.map(lambda a, b: jnp.where(bad, b, a), after, back)
        before = guards.Good(*(getattr(state, name) for name in guards.Good._fields)) if guard else ()
        learned = guards.learn(state.guard, struck, bad, before, middle, length)
        info = RoundInfo(
            hparams=state.hparams,
            next_hparams=after.hparams,
            update=update,
            clients=clients,
            agreement=cosine(update, state.smoothed),
            alignment=weighted_mean(stats.clients.alignment, stats.clients.examples),
            loss=loss,
            rejected=rejected,
            rolled_back=bad,
            gain=gain(stats.clients) if tuner.checks else None,
        )
        return ServerState(**after._asdict(), round=state.round + 1, key=state.key, guard=learned), info

    def rounds(
        states: ServerState,
        cohorts: Cohort,
        *,
        lanes: int = 1,
        slots: Slots = ANY_BATCH,
        capacity: int | None = None,
        order: Order = "shuffled",
        mesh: Mesh | None = None,
        dealt: Any = None,
    ) -> tuple[ServerState, RoundInfo]:
        cohorts = jax.tree.map(jnp.asarray, cohorts)
        room = jax.tree.leaves(cohorts.examples)[0].shape[0] if order == "shuffled" else 0
        held = room if capacity is None else capacity
        work = Work(task, client_step, tuner.form, order, slots, held, aggregator, tuner.checks)
        keys = jax.vmap(lambda s: jax.random.split(jax.random.fold_in(s.key, s.round), 3))(states)
        client_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys[:, 0], cohorts.client)
        done = failures(client_keys, dropout, stragglers) if dropout or stragglers else 1.0
        planned = plan(cohorts.size, states.hparams, tuner.form, order, done)
        size = jnp.where(planned.steps > 0, cohorts.size, 0)
        bound = jax.vmap(guards.bound)(states.guard, states.params)  # (trials,)
        if aggregator.privacy is not None:
            bound = jnp.full_like(bound, jnp.inf)
        jobs = _jobs(cohorts._replace(size=size), states, planned, client_keys)
        banked, results = _spread(work, states.params, bound, cohorts.examples, jobs, lanes, mesh, dealt)
        seen = planned.steps * planned.batch
        results = jax.tree.map(lambda leaf: leaf.reshape(seen.shape), results)
        if aggregator.needs_each:
            banked = jax.tree.map(lambda leaf: leaf.reshape(*seen.shape, *leaf.shape[1:]), banked)
        usable = (size > 0) & guards.sound(bound[:, None], *results[:3])
        known = jax.tree.map(lambda leaf: jnp.where(usable, leaf, 0.0), results)
        clients = ClientStats(
            examples=jnp.where(usable, size, 0),
            steps=planned.steps,
            grads=(seen + planned.batch * (planned.steps > 0) if tuner.checks else seen) * task.unit,
            loss=known.loss / jnp.maximum(seen, 1),
            alignment=known.alignment,
            drift=known.drift,
            foretold=known.foretold if tuner.checks else None,
            gained=known.gained if tuner.checks else None,
        )
        drift = jnp.where(size > 0, results.drift, jnp.nan)
        return jax.vmap(finish)(states, keys[:, 1], keys[:, 2], banked, clients, drift)

    def round(state: ServerState, cohort: Cohort, **options) -> tuple[ServerState, RoundInfo]:
        states, cohorts = jax.tree.map(lambda leaf: leaf[None], (state, cohort._replace(examples=())))
        out = rounds(states, cohorts._replace(examples=cohort.examples), **options)
        return jax.tree.map(lambda leaf: leaf[0], out)

    return Algorithm(init, round, rounds, task, tuner, HParams(*map(_hashable, started)), aggregator.privacy)


def _hashable(value: Any) -> Any:
    """A hyperparameter as a number, or as a tuple of one per client."""
    return tuple(np.asarray(value).tolist()) if np.ndim(value) else float(value)


def _jobs(cohorts: Cohort, states: ServerState, planned: Plan, keys: Key) -> Job:
    """One job per client and trial, in a row; keys follow from the run, the round and the client."""
    trials, cohort = cohorts.size.shape
    jobs = Job(
        trial=jnp.broadcast_to(jnp.arange(trials)[:, None], (trials, cohort)),
        start=cohorts.start,
        size=cohorts.size,
        steps=planned.steps,
        batch=planned.batch,
        lr=states.hparams.lr,
        reach=jnp.broadcast_to(reach(states.round)[:, None], (trials, cohort)),
        key=keys,
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1), jobs)


def _spread(
    work: Work,
    x: Params,
    bound: Array,
    examples: Batch,
    jobs: Job,
    lane_count: int,
    mesh: Mesh | None,
    dealt: Any = None,
) -> tuple[Params, lanes.Results]:
    """Run the jobs longest first, dealt out over the devices of the mesh, and sum (or gather) what they bring home.

    dealt: which jobs each device does, (devices, n), where it has the examples of those alone; by default they are
    dealt here.
    """
    count = jobs.size.shape[0]
    devices = 1 if mesh is None else mesh.size
    slots = jnp.append(work.passes(jobs) * -(-jobs.batch // work.slots.width), -1)  # the last: no job
    if dealt is None:
        place = deal(slots[:count], devices)
    else:
        place = jnp.take_along_axis(dealt, jnp.argsort(-slots[dealt], 1), 1)
    own = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]])[place], jobs)
    own = own._replace(size=jnp.where(place < count, own.size, 0), steps=jnp.where(place < count, own.steps, 0))
    lane_count = min(lane_count, place.shape[1])

    def local(x: Params, bound: Array, examples: Batch, jobs: Job) -> tuple[Params, lanes.Results]:
        own = jax.tree.map(lambda leaf: leaf[0], jobs)
        banked, results = lanes.run(work, x, bound, examples, own, lane_count)
        each = (banked, results) if work.aggregator.needs_each else results  # a row for every job
        if mesh is None:
            each = jax.tree.map(lambda leaf: leaf[None], each)
        else:
            each = jax.lax.all_gather(each, mesh.axis_names)
        if work.aggregator.needs_each:
            return each
        return banked if mesh is None else jax.lax.psum(banked, mesh.axis_names), each

    if mesh is not None:
        axis = mesh.axis_names[0]
        rows = P() if dealt is None else P(axis)
        specs = (P(), P(), rows, P(axis))
        local = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(), P()), check_vma=False)
    banked, results = local(x, bound, examples, own)

    def in_order(leaf: Array) -> Array:
        """From (devices, n, ...) to (jobs, ...)."""
        return jnp.zeros((count, *leaf.shape[2:]), leaf.dtype).at[place].set(leaf, mode="drop")

    banked = jax.tree.map(in_order, banked) if work.aggregator.needs_each else banked
    return banked, jax.tree.map(in_order, results)


def device_mesh(devices: list[Device]) -> Mesh | None:
    """A mesh that shares the clients out over these devices; None for a single one."""
    return None if len(devices) == 1 else Mesh(np.array(devices), ("clients",))
