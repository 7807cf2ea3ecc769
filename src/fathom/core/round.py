"""A round of federated training: local work, aggregation, server step, tuner step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fathom import optimizers
from fathom.core import aggregate, lanes
from fathom.core.client import Job, Work
from fathom.core.plan import ANY_BATCH, Plan, Slots, deal, plan
from fathom.core.trees import cosine, weighted_mean
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
    RoundStats,
    ServerState,
    Task,
    Tuner,
)


def federated(
    task: Task,
    *,
    tuner: Tuner,
    hparams: HParams,
    client_opt: optax.GradientTransformationExtraArgs | None = None,
    server_opt: optax.GradientTransformation | None = None,
) -> Algorithm:
    """Federated training of `task` from the first `hparams`, steered by `tuner`; FedAvg's steps by default.

    The hyperparameters are data: they are an argument and an output of a round, and one compiled program serves them
    all. `client_opt` is a client step of `fathom.optimizers`, which is told the round's learning rate; an optimizer
    with a rate of its own, such as `optax.sgd(0.1)`, would not listen to the tuner.

    `init(key, cohort)` makes the state of a run with `cohort` clients a round. `round(state, cohort, lanes=, slots=,
    order=)` does one round; how many lanes work side by side and how their batches are cut into slots changes the time
    it takes and not the result.
    """
    client_step = client_opt or optimizers.sgd()
    server_step = optax.with_extra_args_support(server_opt or optax.sgd(1.0))

    def init(key: Key, cohort: int) -> ServerState:
        key, params_key, tuner_key = jax.random.split(key, 3)
        params = jax.tree.map(jnp.asarray, task.init(params_key))
        start = HParams(*(jnp.broadcast_to(jnp.asarray(value, jnp.float32), (cohort,)) for value in hparams))
        first, tuner_state = tuner.init(tuner_key, start, params)
        zeros = jax.tree.map(jnp.zeros_like, params)
        done = jnp.zeros((), jnp.int32)
        return ServerState(params, server_step.init(params), first, tuner_state, zeros, done, key)

    def finish(state: ServerState, key: Key, total: Params, clients: ClientStats) -> tuple[ServerState, RoundInfo]:
        """The server's half of a round, from the clients' weighted sums; for one trial."""
        weight = jnp.sum(clients.examples).astype(jnp.float32)  # nu
        update = aggregate.mean(total, weight, state.params)  # Delta-bar_t
        stats = RoundStats(state.hparams, update, clients)
        steps, opt = server_step.update(update, state.opt, state.params, stats=stats)
        answered = weight > 0  # a round nobody answered leaves the model as it was
        params, opt = jax.tree.map(
            lambda new, old: jnp.where(answered, new, old),
            (optax.apply_updates(state.params, steps), opt),
            (state.params, state.opt),
        )
        next_hparams, tuner_state = tuner.update(key, stats, state.tuner)
        info = RoundInfo(
            hparams=state.hparams,
            next_hparams=next_hparams,
            update=update,
            clients=clients,
            agreement=cosine(update, state.smoothed),
            alignment=weighted_mean(clients.alignment, clients.examples),
            loss=weighted_mean(clients.loss, clients.examples),
        )
        smoothed = optax.tree.update_moment(update, state.smoothed, tuner.smoothing, 1)
        return ServerState(params, opt, next_hparams, tuner_state, smoothed, state.round + 1, state.key), info

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
        work = Work(task, client_step, tuner.form, order, slots, room if capacity is None else capacity)
        keys = jax.vmap(lambda s: jax.random.split(jax.random.fold_in(s.key, s.round)))(states)
        planned = plan(cohorts.size, states.hparams, tuner.form, order)
        jobs = _jobs(cohorts, states.hparams, planned, keys[:, 0])
        total, results = _spread(work, states.params, cohorts.examples, jobs, lanes, mesh, dealt)
        seen = planned.steps * planned.batch
        results = jax.tree.map(lambda leaf: leaf.reshape(seen.shape), results)
        clients = ClientStats(
            examples=cohorts.size,
            steps=planned.steps,
            grads=seen * task.unit,
            loss=results.loss / jnp.maximum(seen, 1),
            alignment=jnp.where(seen > 0, results.alignment, 0.0),
            drift=results.drift,
        )
        return jax.vmap(finish)(states, keys[:, 1], total, clients)

    def round(state: ServerState, cohort: Cohort, **options) -> tuple[ServerState, RoundInfo]:
        states, cohorts = jax.tree.map(lambda leaf: leaf[None], (state, cohort._replace(examples=())))
        out = rounds(states, cohorts._replace(examples=cohort.examples), **options)
        return jax.tree.map(lambda leaf: leaf[0], out)

    return Algorithm(init, round, rounds, task, tuner, HParams(*map(_hashable, hparams)))


def _hashable(value: Any) -> Any:
    """A hyperparameter as a number, or as a tuple of one per client."""
    return tuple(np.asarray(value).tolist()) if np.ndim(value) else float(value)


def _jobs(cohorts: Cohort, hparams: HParams, planned: Plan, keys: Key) -> Job:
    """One job per client and trial, in a row; keys follow from the run, the round and the client."""
    trials, cohort = cohorts.size.shape
    client_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, cohorts.client)
    jobs = Job(
        trial=jnp.broadcast_to(jnp.arange(trials)[:, None], (trials, cohort)),
        start=cohorts.start,
        size=cohorts.size,
        steps=planned.steps,
        batch=planned.batch,
        lr=hparams.lr,
        key=client_keys,
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1), jobs)


def _spread(
    work: Work, x: Params, examples: Batch, jobs: Job, lane_count: int, mesh: Mesh | None, dealt: Any = None
) -> tuple[Params, lanes.Results]:
    """Run the jobs longest first, dealt out over the devices of the mesh, and sum what they bring home.

    dealt: which jobs each device does, (devices, n), where it has the examples of those alone; by default they are
    dealt here.
    """
    count = jobs.size.shape[0]
    devices = 1 if mesh is None else mesh.size
    slots = jnp.append(jobs.steps * -(-jobs.batch // work.slots.width), -1)  # the last: no job
    if dealt is None:
        place = deal(slots[:count], devices)
    else:
        place = jnp.take_along_axis(dealt, jnp.argsort(-slots[dealt], 1), 1)
    own = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]])[place], jobs)
    own = own._replace(size=jnp.where(place < count, own.size, 0), steps=jnp.where(place < count, own.steps, 0))
    lane_count = min(lane_count, place.shape[1])

    def local(x: Params, examples: Batch, jobs: Job) -> tuple[Params, lanes.Results]:
        total, results = lanes.run(work, x, examples, jax.tree.map(lambda leaf: leaf[0], jobs), lane_count)
        if mesh is None:
            return total, jax.tree.map(lambda leaf: leaf[None], results)
        return jax.lax.psum(total, mesh.axis_names), jax.lax.all_gather(results, mesh.axis_names)

    if mesh is not None:
        axis = mesh.axis_names[0]
        rows = P() if dealt is None else P(axis)
        local = jax.shard_map(local, mesh=mesh, in_specs=(P(), rows, P(axis)), out_specs=(P(), P()), check_vma=False)
    total, results = local(x, examples, own)
    results = jax.tree.map(lambda leaf: jnp.zeros(count, leaf.dtype).at[place].set(leaf, mode="drop"), results)
    return total, results


def device_mesh(devices: list[Device]) -> Mesh | None:
    """A mesh that shares the clients out over these devices; None for a single one."""
    return None if len(devices) == 1 else Mesh(np.array(devices), ("clients",))
