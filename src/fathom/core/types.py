"""The few types that everything else speaks: what a round is asked, what it reports, who decides the next."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

Array = jax.Array
Key = jax.Array
Params = Any  # any pytree of arrays
Batch = Any  # a dict of arrays, one row per example
State = Any
Device = Any  # what jax.devices() lists
Form = Literal["reference", "printed"]
Order = Literal["shuffled", "cyclic"]


class HParams(NamedTuple):
    """What the server asks of each client this round; every leaf has shape (cohort,).

    >>> HParams(lr=0.1, epochs=1.0, batch=20.0)
    HParams(lr=0.1, epochs=1.0, batch=20.0)
    """

    lr: Any  # client learning rate, eta_L
    epochs: Any  # passes over local data, E; may be fractional
    batch: Any  # examples per local step, B; real-valued, rounded only in plan.py


class Cohort(NamedTuple):
    """The clients of one round: where their examples lie, and whose they are."""

    examples: Batch  # (N, ...) per feature; a client's examples are contiguous
    start: Any  # (cohort,) int32: a client's first row
    size: Any  # (cohort,) int32: its number of rows, nu_i; 0 for a client that is not there
    client: Any  # (cohort,) uint32: names the client; its randomness follows from this, not from its place


class ClientStats(NamedTuple):
    """Scalars a client sends home with its update; every leaf has shape (cohort,)."""

    examples: Array  # aggregation weight, nu_i; 0 where no update came, or none that could be used
    steps: Array  # local steps taken, K_i; 0 where no update came
    grads: Array  # per-example gradients computed: the paper's unit of local work
    loss: Array  # mean training loss along the local path
    alignment: Array  # phi_i: the least cosine between a step's gradient and the path so far
    drift: Array  # squared norm of the client's update
    foretold: Any = None  # by how much its last step was to lower the loss of its batch; None where no tuner asks
    gained: Any = None  # by how much it did


class RoundStats(NamedTuple):
    """All that a tuner may see: what a deployed server would see, and no more."""

    hparams: HParams
    update: Params  # weighted mean of x_t - x_i: a pseudo-gradient, so any optax optimizer can take it
    clients: ClientStats  # each leaf (cohort,)


class Tuner(NamedTuple):
    """Chooses the next round's HParams: a pair of pure functions, and what it needs from the round.

    `init(key, hparams, params)` returns the first proposal and a state; `update(key, stats, state)` the next.
    """

    init: Callable[[Key, HParams, Params], tuple[HParams, State]]
    update: Callable[[Key, RoundStats, State], tuple[HParams, State]]
    first: HParams | None = None  # where it starts, of its own; None: from what it is given
    form: Form = "reference"  # how the paper is read where it contradicts itself: rounding of K_i, path of phi_i
    smoothing: float = 0.5  # alpha: memory of the past update that a record's agreement is measured against
    directions: bool = False  # whether that memory is of directions, so that a long update counts no more than others
    scalars_up: int = 1  # numbers each client sends for the tuner, beside its update
    scalars_down: int = 3  # numbers each client is sent for the tuner, beside the model
    per_client: bool = False  # whether it needs each client's numbers, where others make do with weighted sums
    checks: bool = False  # whether clients bound their steps, and see their last batch again: `foretold`, `gained`


class Task(NamedTuple):
    """What is learned: parameters, a loss per example, and metrics per example.

    `loss(params, batch, key)` returns one value per row of `batch`. Training always calls it on one row at a
    time (vectorised), each with a key of its own, so padding can be masked exactly and dropout does not depend
    on how a batch is cut. `metrics(params, batch)` returns a dict from name to one value per row, or to a pair
    (values, weights) where an example counts for more than one (the tokens of a sentence).
    """

    init: Callable[[Key], Params]
    loss: Callable[[Params, Batch, Key], Array]
    metrics: Callable[[Params, Batch], dict[str, Any]]
    unit: int = 1  # gradients that an example counts for: the words of a sentence


class ServerState(NamedTuple):
    """All that a run carries from one round to the next."""

    params: Params  # x_t
    opt: State  # of the server optimizer
    hparams: HParams  # of the coming round, each leaf (cohort,)
    tuner: State
    smoothed: Params  # past updates, exponentially smoothed: what `agreement` is measured against
    round: Array  # int32: rounds done
    key: Key
    guard: State  # what is usual, and the last good state


class RoundInfo(NamedTuple):
    """What a round showed; nothing here is needed to go on."""

    hparams: HParams  # what the round used
    next_hparams: HParams
    update: Params  # weighted mean of x_t - x_i
    clients: ClientStats
    agreement: Array  # c_glob: cosine of this update with the smoothed past ones
    alignment: Array  # c_loc: weighted mean of the clients' alignment
    loss: Array  # weighted mean of the clients' training loss; NaN if clients answered, and none could be used
    rejected: Array  # int32: clients whose update was set aside
    rolled_back: Array  # bool: the round was undone, and the run set back to an earlier one
    gain: Any = None  # what clients' last steps brought, over what they were to bring; None where no tuner asks


class Algorithm(NamedTuple):
    """Federated training as pure functions: `init(key, cohort)` and `round(state, cohort)`.

    `rounds` is `round` for several trials at once: every leaf of its arguments but `cohort.examples` has a
    leading axis of trials.
    """

    init: Callable[..., ServerState]
    round: Callable[..., tuple[ServerState, RoundInfo]]
    rounds: Callable[..., tuple[ServerState, RoundInfo]]
    task: Task
    tuner: Tuner
    hparams: HParams
    privacy: Any = None  # of its aggregator, for the accountant
