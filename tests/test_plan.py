import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom import HParams
from fathom.core.plan import WIDTHS, Slots, deal, plan, shuffle, slots
from reference import batch_size, steps


@settings(deadline=None, max_examples=300)
@given(
    size=st.integers(1, 5000),
    epochs=st.floats(0.015625, 10, width=32),
    batch=st.floats(0.015625, 6000, width=32),
    form=st.sampled_from(["reference", "printed"]),
)
def test_steps_and_batches_are_rounded_as_in_the_reference(size, epochs, batch, form):
    got = plan(jnp.array([size]), HParams(*jnp.array([[0.1], [epochs], [batch]], jnp.float32)), form, "shuffled")
    b = batch_size(batch)
    assert int(got.steps[0]) == steps(epochs, size, b, form)
    assert int(got.batch[0]) == min(b, size)


def test_hand_computed_plans():
    sizes = jnp.array([7, 21, 60, 1, 0])
    hparams = HParams(jnp.full(5, 0.1), jnp.full(5, 1.0), jnp.full(5, 6.5))  # 6.5 rounds up to 7
    assert plan(sizes, hparams, "reference", "shuffled").steps.tolist() == [1, 3, 9, 1, 0]
    assert plan(sizes, hparams, "printed", "shuffled").steps.tolist() == [1, 3, 8, 1, 0]
    assert plan(sizes, hparams, "reference", "shuffled").batch.tolist() == [7, 7, 7, 1, 0]
    assert plan(sizes, hparams, "reference", "cyclic").batch.tolist() == [7, 7, 7, 7, 7]


@settings(deadline=None, max_examples=50)
@given(size=st.integers(0, 40), seed=st.integers(0, 1000))
def test_a_shuffle_is_a_permutation_that_keeps_the_padding_behind(size, seed):
    order = np.asarray(shuffle(jax.random.key(seed), jnp.asarray(size), 40))
    assert sorted(order.tolist()) == list(range(40))
    assert order[size:].tolist() == list(range(size, 40))


def test_shuffles_are_uniform():
    orders = jax.vmap(lambda key: shuffle(key, jnp.asarray(4), 6))(jax.random.split(jax.random.key(0), 6000))
    _, counts = np.unique(np.asarray(orders)[:, :4], axis=0, return_counts=True)
    assert len(counts) == 24
    assert np.sum((counts - 250) ** 2 / 250) < 50  # chi square with 23 degrees of freedom, p = 0.001


def test_the_first_draws_of_a_shuffle_do_not_depend_on_the_room_behind():
    short, long = (shuffle(jax.random.key(3), jnp.asarray(9), room)[:9] for room in (9, 50))
    assert short.tolist() == long.tolist()


@pytest.mark.parametrize(
    ("batch", "first", "most", "expected"),
    [
        (20, 20, 400, Slots(20, False)),
        (16.4, 20, 400, Slots(20, False)),
        (5.5, 20, 400, Slots(6, False)),
        (0.2, 20, 400, Slots(3, False)),
        (256, 256, 400, Slots(48, True)),
        (256, 256, 30, Slots(30, False)),
        (49, 20, 400, Slots(48, True)),
    ],
)
def test_slots_take_a_batch_whole_where_they_can(batch, first, most, expected):
    assert slots(np.array([batch]), np.array(first), most) == expected


def test_trials_that_differ_do_not_all_pay_for_the_largest_batch():
    def lost(sizes, slots):
        """Of the examples that slots go through, how many are none."""
        rows = sum(-(-size // slots.width) * slots.width / size for size in sizes)
        return 1 - len(sizes) / rows

    for sizes in ([5, 40], [5] * 10 + [40], [4, 20, 256], [10, 14, 30], [6, 6, 6, 400]):
        chosen = slots(np.array(sizes), np.array(20), 400)
        assert chosen == Slots(12, split=True)
        assert lost(sizes, chosen) < lost(sizes, slots(np.array([max(sizes)]), np.array(20), 400))


def test_trials_that_hardly_differ_take_their_batches_whole():
    assert slots(np.array([5, 6, 6]), np.array(20)) == Slots(6, split=False)
    assert slots(np.array([30, 40, 45]), np.array(20)) == Slots(48, split=False)
    assert slots(np.array([60, 90]), np.array(20)) == Slots(48, split=True)


def test_a_whole_run_of_batch_sizes_needs_few_widths():
    for first in (256, 20, 16, 4):
        offered = {slots(np.array([b]), np.array(first)) for b in np.geomspace(0.3, 300, 500)}
        assert len(offered) <= len(WIDTHS) + 2


@settings(deadline=None, max_examples=30)
@given(work=st.lists(st.integers(0, 400), min_size=1, max_size=40), devices=st.integers(1, 8))
def test_every_job_is_dealt_once_and_no_device_is_left_far_behind(work, devices):
    dealt = np.asarray(deal(jnp.asarray(work), devices))
    assert dealt.shape == (devices, -(-len(work) // devices))
    assert sorted(job for job in dealt.ravel() if job < len(work)) == list(range(len(work)))
    loads = [sum(work[job] for job in own if job < len(work)) for own in dealt]
    assert max(loads) - min(loads) <= max(work)


def test_the_work_of_ten_writers_is_shared_evenly():
    sizes = [100, 130, 150, 160, 170, 185, 215, 239, 280, 351]
    assert sorted(sum(sizes[job] for job in own) for own in deal(jnp.asarray(sizes), 2).tolist()) == [986, 994]
