"""One client's local work: SGD from x_t on its own examples, one slot of examples at a time.

Everything here is about a single client. Its number of steps, batch size and learning rate are data; only the
slot's width is a shape. `lanes.py` runs many of these side by side.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fathom.core.aggregate import Aggregator
from fathom.core.plan import Slots, shuffle
from fathom.core.trees import cosine, divide, dot, weighted_mean
from fathom.core.types import Array, Batch, ClientStats, Form, Key, Order, Params, State, Task

SEEN = 1e-3  # of a loss: a smaller change may be rounding, where products have three digits (TF32)
HUGE = 1e30  # what a client foretells at most, so that sums over clients stay finite


class Job(NamedTuple):
    """What one client is to do; every leaf a scalar."""

    trial: Array  # whose x_t it starts from
    start: Array  # its first row in the examples
    size: Array  # nu_i
    steps: Array  # K_i
    batch: Array  # examples per step
    lr: Array  # eta_L
    reach: Array  # times its batch's loss: what a step may promise, where steps are checked
    key: Key


class Check(NamedTuple):
    """A client's check on its own steps: what the last one was to bring, and what it brought, on its own batch."""

    loss: Array  # of this batch so far, summed over its examples
    before: Array  # mean loss of the last batch, before its step
    foretold: Array  # by how much that step was to lower it, had the loss been a plane
    gained: Array  # by how much it did


class Local(NamedTuple):
    """A client at work."""

    params: Params  # x_t^{i,k}
    opt: State  # of the client optimizer
    grad: Params  # this step's gradient so far; () where a step is one slot
    order: Array  # (2, capacity): this pass's order of examples and the next one's
    step: Array  # k
    slot: Array  # of this step
    stale: Array  # whether `order` is of an earlier pass
    loss: Array  # summed over the examples seen
    alignment: Array  # phi_i so far
    check: Check | tuple[()]  # () where no tuner asks


class Work(NamedTuple):
    """How local work is done: the parts that are fixed when a round is compiled."""

    task: Task
    opt: optax.GradientTransformationExtraArgs
    form: Form
    order: Order
    slots: Slots
    capacity: int  # the most examples a client has; 0 where their order is cyclic
    aggregator: Aggregator
    checks: bool = False

    def passes(self, job: Job) -> Array:
        """How many batches the client goes through: one a step, and the last once more where it is checked."""
        return job.steps + (job.steps > 0) if self.checks else job.steps


def begin(work: Work, x: Params) -> Local:
    """A client that has received x_t and done nothing yet."""
    zero = jnp.zeros((), jnp.int32)
    return Local(
        params=x,
        opt=work.opt.init(x),
        grad=jax.tree.map(jnp.zeros_like, x) if work.slots.split else (),
        order=jnp.zeros((2, work.capacity), jnp.int32),
        step=zero,
        slot=zero,
        stale=jnp.asarray(work.order == "shuffled"),
        loss=jnp.zeros((), jnp.float32),
        alignment=jnp.full((), jnp.inf, jnp.float32),
        check=Check(*(jnp.zeros((), jnp.float32) for _ in Check._fields)) if work.checks else (),
    )


def reorder(work: Work, job: Job, local: Local) -> Local:
    """Draw the orders of the pass the client is in and of the one after, into which a batch may run over."""
    now = local.step * job.batch // jnp.maximum(job.size, 1)
    keys = jax.vmap(lambda ahead: jax.random.fold_in(_order_key(job), now + ahead))(jnp.arange(2))
    order = jax.vmap(lambda key: shuffle(key, job.size, work.capacity))(keys)
    return local._replace(order=order.astype(jnp.int32), stale=jnp.zeros((), bool))


def advance(work: Work, examples: Batch, x: Params, job: Job, local: Local) -> Local:
    """Go through one slot of examples; if it is the last of its batch, take the step.

    Where steps are checked, a client that has taken all of them goes through its last batch again, and looks.
    """
    looks = local.step >= job.steps if work.checks else jnp.zeros((), bool)
    number = local.step - looks  # of the step
    seat = local.slot * work.slots.width + jnp.arange(work.slots.width)  # place in the batch
    taken = seat < job.batch
    rows = job.start + _example(work, job, local.order, number, seat)
    batch = jax.tree.map(lambda feature: feature[rows], examples)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.fold_in(_step_key(job), number), s))(seat)

    def batch_loss(params: Params) -> tuple[Array, Array]:
        def loss(example: Batch, key: Key) -> Array:
            value = work.task.loss(params, jax.tree.map(lambda feature: feature[None], example), key)
            if jnp.shape(value) != (1,):
                raise ValueError(f"the loss of 1 example has shape {jnp.shape(value)}; return one value per row, (n,).")
            return value[0]

        total = jnp.sum(jnp.where(taken, jax.vmap(loss)(batch, keys), 0.0))
        return total / jnp.maximum(job.batch, 1), total

    grad, loss = jax.grad(batch_loss, has_aux=True)(local.params)  # g_i(x_t^{i,k}), or this slot's part of it
    local = local._replace(loss=local.loss + jnp.where(looks, 0.0, loss))
    if isinstance(local.check, Check):
        local = local._replace(check=local.check._replace(loss=local.check.loss + loss))
    if work.slots.split:
        grad = jax.tree.map(jnp.add, local.grad, grad)
    stepped = _step(work, x, job, local, grad)
    if isinstance(local.check, Check):
        looked = local._replace(step=local.step + 1, slot=jnp.zeros_like(local.slot), check=_look(job, local.check))
        stepped = jax.tree.map(lambda a, b: jnp.where(looks, a, b), looked, stepped)
    if not work.slots.split:
        return stepped
    last = (local.slot + 1) * work.slots.width >= job.batch
    stepped = stepped._replace(grad=jax.tree.map(jnp.zeros_like, grad))
    waiting = local._replace(grad=grad, slot=local.slot + 1)
    return jax.tree.map(lambda a, b: jnp.where(last, a, b), stepped, waiting)


def _step(work: Work, x: Params, job: Job, local: Local, grad: Params) -> Local:
    """One step of the client optimizer, and what it does to phi_i."""
    updates, opt = work.opt.update(grad, local.opt, local.params, learning_rate=job.lr, reference=x)
    check = local.check
    if isinstance(check, Check):
        check = check._replace(
            loss=jnp.zeros_like(check.loss),
            before=check.loss / jnp.maximum(job.batch, 1),
            foretold=jnp.clip(-dot(grad, updates), 0.0, HUGE),
        )
        updates = jax.tree.map(lambda u: (within_reach(check, job.reach) * u).astype(u.dtype), updates)
    params = optax.apply_updates(local.params, updates)
    # The path so far, x_t - x_t^{i,k}: with this step in the reference form, without it in the printed one.
    path = jax.tree.map(jnp.subtract, x, params if work.form == "reference" else local.params)
    step = local.step + 1
    size = jnp.maximum(job.size, 1)
    crossed = step * job.batch // size > local.step * job.batch // size
    return local._replace(
        params=params,
        opt=opt,
        step=step,
        slot=jnp.zeros((), jnp.int32),
        stale=crossed & (step < job.steps) & (work.order == "shuffled"),
        alignment=jnp.minimum(local.alignment, cosine(grad, path)),  # phi_i
        check=check,
    )


def within_reach(check: Check, reach: Array) -> Array:
    """What a step is multiplied by, at most 1, so that it promises no more than `reach` times its batch's loss.

    Where the loss is negative nothing can be said, and the step is left as it is.
    """
    most = reach * check.before
    return jnp.where((most > 0) & (check.foretold > most), most / jnp.maximum(check.foretold, most), 1.0)


def _look(job: Job, check: Check) -> Check:
    """What the last step brought; at most as much as was foretold before it was cut, either way.

    A step too short for its effect to be seen brought what was foretold; one that came to no number, its opposite.
    """
    gained = check.before - check.loss / jnp.maximum(job.batch, 1)
    gained = jnp.clip(jnp.nan_to_num(gained, nan=-jnp.inf), -check.foretold, check.foretold)
    return check._replace(gained=jnp.where(check.foretold <= SEEN * jnp.abs(check.before), check.foretold, gained))


def gain(clients: ClientStats) -> Array:
    """What the last steps of a round's clients brought, over what they were to bring; NaN where that is nothing."""
    foretold = weighted_mean(clients.foretold, clients.examples)
    return jnp.where(foretold > 0, divide(weighted_mean(clients.gained, clients.examples), foretold), jnp.nan)


def _example(work: Work, job: Job, order: Array, step: Array, seat: Array) -> Array:
    """Which of its examples a client meets at these seats of this step's batch.

    The examples are gone through again and again, reshuffled each time; a batch may run over the end of one
    pass into the next.
    """
    size = jnp.maximum(job.size, 1)
    place = step * job.batch + seat
    if work.order == "cyclic":
        return place % size
    ahead = place // size - step * job.batch // size  # 0: this pass, 1: the next
    return order[jnp.clip(ahead, 0, 1), place % size]


def _order_key(job: Job) -> Key:
    return jax.random.fold_in(job.key, 0)


def _step_key(job: Job) -> Key:
    return jax.random.fold_in(job.key, 1)
