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
from fathom.core.trees import cosine
from fathom.core.types import Array, Batch, Form, Key, Order, Params, State, Task


class Job(NamedTuple):
    """What one client is to do; every leaf a scalar."""

    trial: Array  # whose x_t it starts from
    start: Array  # its first row in the examples
    size: Array  # nu_i
    steps: Array  # K_i
    batch: Array  # examples per step
    lr: Array  # eta_L
    key: Key


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


class Work(NamedTuple):
    """How local work is done: the parts that are fixed when a round is compiled."""

    task: Task
    opt: optax.GradientTransformationExtraArgs
    form: Form
    order: Order
    slots: Slots
    capacity: int  # the most examples a client has; 0 where their order is cyclic
    aggregator: Aggregator


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
    )


def reorder(work: Work, job: Job, local: Local) -> Local:
    """Draw the orders of the pass the client is in and of the one after, into which a batch may run over."""
    now = local.step * job.batch // jnp.maximum(job.size, 1)
    keys = jax.vmap(lambda ahead: jax.random.fold_in(_order_key(job), now + ahead))(jnp.arange(2))
    order = jax.vmap(lambda key: shuffle(key, job.size, work.capacity))(keys)
    return local._replace(order=order.astype(jnp.int32), stale=jnp.zeros((), bool))


def advance(work: Work, examples: Batch, x: Params, job: Job, local: Local) -> Local:
    """Go through one slot of examples; if it is the last of its batch, take the step."""
    seat = local.slot * work.slots.width + jnp.arange(work.slots.width)  # place in the batch
    taken = seat < job.batch
    rows = job.start + _example(work, job, local, seat)
    batch = jax.tree.map(lambda feature: feature[rows], examples)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.fold_in(_step_key(job), local.step), s))(seat)

    def batch_loss(params: Params) -> tuple[Array, Array]:
        def loss(example: Batch, key: Key) -> Array:
            value = work.task.loss(params, jax.tree.map(lambda feature: feature[None], example), key)
            if jnp.shape(value) != (1,):
                raise ValueError(f"the loss of 1 example has shape {jnp.shape(value)}; return one value per row, (n,).")
            return value[0]

        total = jnp.sum(jnp.where(taken, jax.vmap(loss)(batch, keys), 0.0))
        return total / jnp.maximum(job.batch, 1), total

    grad, loss = jax.grad(batch_loss, has_aux=True)(local.params)  # g_i(x_t^{i,k}), or this slot's part of it
    local = local._replace(loss=local.loss + loss)
    if not work.slots.split:
        return _step(work, x, job, local, grad)
    grad = jax.tree.map(jnp.add, local.grad, grad)
    last = (local.slot + 1) * work.slots.width >= job.batch
    stepped = _step(work, x, job, local, grad)._replace(grad=jax.tree.map(jnp.zeros_like, grad))
    waiting = local._replace(grad=grad, slot=local.slot + 1)
    return jax.tree.map(lambda a, b: jnp.where(last, a, b), stepped, waiting)


def _step(work: Work, x: Params, job: Job, local: Local, grad: Params) -> Local:
    """One step of the client optimizer, and what it does to phi_i."""
    updates, opt = work.opt.update(grad, local.opt, local.params, learning_rate=job.lr, reference=x)
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
        stale=crossed & (work.order == "shuffled"),
        alignment=jnp.minimum(local.alignment, cosine(grad, path)),  # phi_i
    )


def _example(work: Work, job: Job, local: Local, seat: Array) -> Array:
    """Which of its examples a client meets at these seats of its batch.

    The examples are gone through again and again, reshuffled each time; a batch may run over the end of one
    pass into the next.
    """
    size = jnp.maximum(job.size, 1)
    place = local.step * job.batch + seat
    if work.order == "cyclic":
        return place % size
    ahead = place // size - local.step * job.batch // size  # 0: this pass, 1: the next
    return local.order[jnp.clip(ahead, 0, 1), place % size]


def _order_key(job: Job) -> Key:
    return jax.random.fold_in(job.key, 0)


def _step_key(job: Job) -> Key:
    return jax.random.fold_in(job.key, 1)
