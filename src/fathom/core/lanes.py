"""Many clients on few copies of the model.

A lane is one copy of the model working through clients, one after another. Jobs wait in one queue, longest
first; a lane that is done banks its client's update and takes the next job, so no lane idles for long while
another job waits, and memory is bounded by the number of lanes and not by the cohort.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fathom.core import aggregate
from fathom.core.client import Check, Job, Local, Work, advance, begin, reorder
from fathom.core.guard import sound
from fathom.core.trees import dot
from fathom.core.types import Array, Batch, Params

PATIENCE = 16  # attending to lanes costs about as much as this share of the lanes standing still for a step


class Results(NamedTuple):
    """What each job came to; every leaf has shape (jobs,)."""

    loss: Array  # summed over the examples seen
    alignment: Array  # phi_i
    drift: Array  # squared norm of the update
    foretold: Array  # by how much the last step was to lower the loss of its batch; 0 where nobody asks
    gained: Array  # by how much it did


class _Carry(NamedTuple):
    job: Array  # (lanes,): which job a lane is on; the number of jobs where it is on none
    waiting: Array  # the first job nobody has taken
    lanes: Local  # each leaf (lanes, ...)
    banked: Params  # weighted sum of finished updates, each leaf (trials, ...); or all of them, each leaf (jobs, ...)
    results: Results


def run(work: Work, x: Params, bound: Array, examples: Batch, jobs: Job, lanes: int) -> tuple[Params, Results]:
    """Do all jobs; return the sum over clients of nu_i (x_t - x_i) for each trial, and each job's results.

    x: each leaf (trials, ...). bound: (trials,), how long an update may be. jobs: each leaf (jobs,). Where the
    aggregator needs each update, all are returned in place of their sum, each leaf (jobs, ...).
    """
    aggregator = work.aggregator
    count = jobs.size.shape[0]
    trials = jax.tree.leaves(x)[0].shape[0]
    jobs = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), jobs)
    jobs = jobs._replace(size=jobs.size.at[count].set(0), batch=jobs.batch.at[count].set(0))  # no job

    each = jax.vmap if lanes > 1 else _alone

    def current(job: Array) -> tuple[Job, Params]:
        """The lanes' jobs, and the x_t each starts from."""
        picked = jax.tree.map(lambda leaf: leaf[job], jobs)
        if trials == 1:
            return picked, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (lanes, *leaf.shape[1:])), x)
        return picked, jax.tree.map(lambda leaf: leaf[picked.trial], x)

    def finished(carry: _Carry) -> Array:
        return (carry.job < count) & (carry.lanes.step >= work.passes(current(carry.job)[0]))

    def working(carry: _Carry) -> Array:
        """The lanes that can take a step."""
        return (carry.job < count) & ~finished(carry) & ~carry.lanes.stale

    def attend(carry: _Carry) -> _Carry:
        """Bank what is finished, hand out what waits, draw new orders where a pass has ended."""
        done = finished(carry)
        job, start = current(carry.job)
        updates = jax.tree.map(_difference, start, carry.lanes.params)  # Delta_i = x_t - x_i
        drift = jax.vmap(dot)(updates, updates)
        check = carry.lanes.check
        told = (check.foretold, check.gained) if isinstance(check, Check) else (jnp.zeros_like(drift),) * 2
        outcome = Results(carry.lanes.loss, carry.lanes.alignment, drift, *told)
        usable = done & (job.size > 0) & sound(bound[job.trial], *outcome[:3])
        weights = jnp.where(usable, aggregator.weight(job.size) * aggregator.factor(jnp.sqrt(drift)), 0.0)
        place = jnp.where(done, carry.job, count)  # `count` is out of bounds, and dropped
        results = jax.tree.map(lambda r, o: r.at[place].set(o, mode="drop"), carry.results, outcome)
        if aggregator.needs_each:
            scaled = jax.tree.map(lambda u: _where(usable, u * weights.reshape(-1, *[1] * (u.ndim - 1)), 0.0), updates)
            banked = jax.tree.map(lambda b, u: b.at[place].set(u, mode="drop"), carry.banked, scaled)
        else:
            banked = aggregate.add(carry.banked, updates, weights, job.trial)

        turn = carry.waiting + jnp.cumsum(done) - 1
        taken = jnp.where(done, jnp.minimum(turn, count), carry.job)
        job, start = current(taken)
        fresh = each(partial(begin, work))(start)
        local = jax.tree.map(lambda f, old: _where(done, f, old), fresh, carry.lanes)
        if work.order == "shuffled":
            drawn = each(partial(reorder, work))(job, local)
            local = jax.tree.map(lambda d, old: _where(local.stale, d, old), drawn, local)
        return _Carry(taken, carry.waiting + jnp.sum(done), local, banked, results)

    def quiet(carry: _Carry) -> Array:
        """Some lane can work, and too few stand still for want of attention to interrupt it."""
        wanting = (carry.job < count) & (carry.lanes.stale | (finished(carry) & (carry.waiting < count)))
        return jnp.any(working(carry)) & (jnp.sum(wanting) < max(lanes // PATIENCE, 1))

    def step(carry: _Carry) -> _Carry:
        job, start = current(carry.job)
        local = each(partial(advance, work, examples))(start, job, carry.lanes)
        if lanes > 1:  # a lane on its own is attended to at once
            local = jax.tree.map(partial(_where, working(carry)), local, carry.lanes)
        return carry._replace(lanes=local)

    def cycle(carry: _Carry) -> _Carry:
        return jax.lax.while_loop(quiet, step, attend(carry))

    job = jnp.minimum(jnp.arange(lanes), count)
    carry = _Carry(
        job=job,
        waiting=jnp.minimum(jnp.asarray(lanes), count),
        lanes=each(partial(begin, work))(current(job)[1]),
        banked=jax.tree.map(
            lambda leaf: jnp.zeros((count if aggregator.needs_each else trials, *leaf.shape[1:]), jnp.float32), x
        ),
        results=Results(*(jnp.zeros(count, jnp.float32) for _ in Results._fields)),
    )
    carry = jax.lax.while_loop(lambda c: jnp.any(c.job < count), cycle, carry)
    return carry.banked, carry.results


def _alone(function: Callable) -> Callable:
    """`jax.vmap` over an axis of length 1, without the batched operations it would make."""

    def mapped(*args: Any) -> Any:
        out = function(*jax.tree.map(lambda leaf: leaf[0], args))
        return jax.tree.map(lambda leaf: leaf[None], out)

    return mapped


def _difference(a: Array, b: Array) -> Array:
    return a.astype(jnp.float32) - b.astype(jnp.float32)


def _where(mask: Array, a: Array, b: Array | float) -> Array:
    """jnp.where with a mask over the leading axis."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)
