import dataclasses
import tomllib

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.experiment import spec as specs
from fathom.experiment.spec import SpecError, resolve


def test_an_empty_spec_is_the_default_run():
    spec = resolve({})
    assert (spec.task["name"], spec.tuner["name"]) == ("glyphs", "plumb")
    assert spec.clamp["high"] == {"lr": 1000.0, "epochs": 10.0, "batch": 5096.0}


def test_a_private_run_is_tuned_by_fathom_because_plumb_cannot():
    spec = resolve({"aggregate": {"name": "private", "clip": 1.0, "noise": 1.0}})
    assert spec.tuner["name"] == "fathom"


@settings(deadline=None)
@given(
    task=st.sampled_from(["glyphs", "synthetic"]),
    tuner=st.sampled_from(["plumb", "fathom", "fixed", {"name": "fathom", "form": "printed", "smoothing": 0.9}]),
    lr=st.floats(1e-6, 0.5),
    epochs=st.floats(0.01, 10),
    batch=st.floats(1, 5000),
    seed=st.integers(0, 2**31 - 1),
)
def test_a_resolved_spec_is_a_fixed_point(task, tuner, lr, epochs, batch, seed):
    hparams = {"lr": lr, "epochs": epochs, "batch": batch}
    start = {} if tuner == "plumb" else {"hparams": hparams}
    spec = resolve({"task": task, "tuner": tuner, **start, "seed": seed})
    assert resolve(tomllib.loads(spec.toml())) == spec


def test_a_schedule_is_spelled_by_name():
    decay = {"name": "exponential_decay", "init_value": 0.1, "transition_steps": 1, "decay_rate": 0.998}
    spec = resolve({"task": "synthetic", "tuner": {"name": "schedule", "lr": decay}})
    assert resolve(tomllib.loads(spec.toml())) == spec
    algorithm, _, _ = specs.build(spec)
    assert algorithm.tuner.scalars_up == 0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"task": "glyph"}, "there is no task 'glyph'; choose from glyphs, synthetic, "),
        ({"tuner": "fahtom"}, "there is no tuner 'fahtom'; choose from fathom, plumb, fixed, schedule. Did you mean"),
        ({"tuner": {"name": "fathom", "lr_rat": 1.0}}, "[tuner] fathom has no option 'lr_rat'; it takes form, lr_rate"),
        ({"tuner": {"name": "fixed", "lr_rate": 1.0}}, "it takes none. 'lr_rate' is an option of fathom, plumb."),
        ({"tuner": {"name": "fixed", "rate": 1.0}}, "[tuner] fixed has no option 'rate'; it takes none."),
        ({"tuner": {"form": "printed"}}, "[tuner] plumb has no option 'form'; it takes check_rate, lr_rate"),
        ({"tuner": {"form": "printed"}}, "smoothing. 'form' is an option of fathom."),
        ({"tuner": {"name": "fathom", "form": "prined"}}, "form='prined' is not known; choose from reference"),
        ({"tuner": {"lr_rate": "fast"}}, "[tuner] plumb: lr_rate='fast' must be a finite number."),
        ({"tuner": 3}, "tuner=3 is neither a name nor a table"),
        ({"task": {"name": "glyphs", "writers": 1.5}}, "[task] glyphs: writers=1.5 must be a whole number."),
        ({"task": {"heterogenity": 1.0}}, "Did you mean 'heterogeneity'?"),
        ({"round": 5}, "a spec has no key 'round'; it takes rounds"),
        ({"rounds": 0}, "rounds=0 must be a whole number of at least 1."),
        ({"rounds": True}, "rounds=True"),
        ({"cohort": -1}, "cohort=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**32}, "must leave room for 1 trials below 2**32"),
        ({"tuner": {"name": [1]}}, "there is no tuner [1]"),
        ({"task": {"name": {"a": 1}}}, "there is no task"),
        ({"hparams": {"lr": 1e-60}}, "[hparams] lr=1e-60 must be greater than 0."),
        ({"hparams": {"lr": 1e39}, "tuner": "fixed"}, "[hparams] lr=1e+39 must be a finite number."),
        ({"clamp": {"high": {"lr": -1}}}, "[clamp.high] lr=-1 must be greater than 0."),
        ({"target": 65}, "target=65 must be a fraction between 0 and 1, such as 0.65 for 65 %."),
        ({"target": float("nan")}, "target=nan"),
        ({"hparams": {"lr": -0.1}}, "[hparams] lr=-0.1 must be greater than 0."),
        ({"hparams": {"batch": 0.5}}, "[hparams] batch=0.5 must be at least 1."),
        ({"hparams": {"epochs": 0}}, "[hparams] epochs=0 must be greater than 0."),
        ({"hparams": {"lr": float("inf")}}, "[hparams] lr=inf must be a finite number."),
        ({"hparams": {"lrr": 1}}, "[hparams] has no 'lrr'; it takes lr, epochs, batch. Did you mean 'lr'?"),
        ({"hparams": {"lr": 0.05}}, "lr=0.05: plumb finds its learning rate itself, and has no first one to set"),
        ({"hparams": {"batch": 20}}, "such as --tuner fathom. Bounds are set by clamp.low.batch, clamp.high.batch."),
        ({"hparams": {"epochs": 0}, "tuner": "plumb"}, "[hparams] epochs=0 must be greater than 0."),
        ({"hparams": {"lr": 0.7}, "tuner": "fathom"}, "lies outside of the tuner's box, 0 to 0.5"),
        ({"clamp": {"hi": {}}}, "[clamp] has no 'hi'"),
        ({"clamp": {"low": {"lr": 0.9}}, "tuner": "fathom"}, "[clamp] low.lr=0.9 is above high.lr=0.5"),
        ({"server_opt": "adam"}, "Did you mean 'fedadam'?"),
        ({"client_opt": {"name": "fedprox", "mu": "x"}}, "mu='x' must be a finite number"),
        ({"tuner": {"name": "schedule", "lr": 0.1}}, "must be a table with the name of a schedule"),
        ({"tuner": {"name": "schedule", "lr": {"name": "exp"}}}, "there is no schedule 'exp'"),
        ({"tuner": {"name": "schedule", "lr": {"name": "exponential_decay"}}}, "exponential_decay needs init_value"),
    ],
)  # fmt: skip
def test_bad_specs_say_what_is_wrong_and_what_to_do(raw, message):
    with pytest.raises(SpecError) as caught:
        resolve(raw)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cohort_larger_than_the_federation_is_refused():
    with pytest.raises(SpecError, match="cohort=500 exceeds the 100 clients of 'synthetic'; lower `cohort`"):
        specs.build(resolve({"task": "synthetic", "cohort": 500}))


def test_bad_task_options_are_refused_by_the_task():
    with pytest.raises(SpecError, match="alpha=-1"):
        specs.build(resolve({"task": {"name": "synthetic", "alpha": -1.0}}))


def test_set_reaches_into_tables_and_reads_numbers():
    raw = {"task": "glyphs", "tuner": "fathom"}
    for assignment in (
        "tuner.form=printed",
        "clamp.high.lr=0.9",
        "hparams.lr=0.8",
        "rounds=7",
        "task.writers = 20",
    ):
        specs.set_option(raw, assignment)
    spec = resolve(raw)
    assert (spec.tuner["form"], spec.clamp["high"]["lr"], spec.rounds, spec.task["writers"]) == (
        "printed",
        0.9,
        7,
        20,
    )


@pytest.mark.parametrize("assignment", ["tuner.form", "=3", "rounds=5=x.y", "hparams.lr.x=1"])
def test_set_refuses_what_is_not_an_assignment(assignment):
    def put(raw):
        specs.set_option(raw, assignment)
        resolve(raw)

    with pytest.raises(SpecError):
        put({"hparams": {"lr": 0.1}})


def test_unreadable_specs_are_refused(tmp_path):
    with pytest.raises(SpecError, match="there is no such file"):
        specs.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = ")
    with pytest.raises(SpecError, match="cannot be read as TOML"):
        specs.read(tmp_path / "bad.toml")


def test_specs_are_plain_data():
    assert dataclasses.is_dataclass(resolve({}))


def by_set(raw, tuner):
    specs.set_option(raw, f"tuner={tuner}")


@pytest.mark.parametrize("change", [specs.change_tuner, by_set])
def test_a_tuner_brings_its_own_box_unless_one_was_asked_for(change):
    raw = tomllib.loads(resolve({"task": "synthetic", "tuner": "plumb"}).toml())
    change(raw, "fathom")
    assert resolve(raw) == resolve({"task": "synthetic", "tuner": "fathom"})
    raw = tomllib.loads(resolve(raw).toml())
    change(raw, "plumb")
    assert resolve(raw) == resolve({"task": "synthetic", "tuner": "plumb"})
    raw = {"task": "synthetic", "tuner": "plumb", "clamp": {"high": {"lr": 0.2}}}
    change(raw, "fathom")
    assert resolve(raw).clamp["high"]["lr"] == 0.2


@pytest.mark.parametrize("change", [specs.change_tuner, by_set])
def test_a_start_stays_with_the_tuner_that_it_was_for(change):
    raw = {"tuner": "fathom", "hparams": {"lr": 0.05}}
    change(raw, "plumb")
    assert resolve(raw) == resolve({})
    raw = {"tuner": "fathom", "hparams": {"lr": 0.05}}
    change(raw, "fixed")
    assert resolve(raw).hparams["lr"] == 0.05
    raw = tomllib.loads(resolve({}).toml())  # of plumb
    specs.set_option(raw, "hparams.lr=0.05")
    change(raw, "fixed")
    assert resolve(raw).hparams == {"lr": 0.05, "epochs": 1.0, "batch": 20.0}
    raw = {"tuner": "plumb", "hparams": {"lr": 0.05}}
    change(raw, "plumb")
    with pytest.raises(SpecError, match="finds its learning rate itself"):
        resolve(raw)
    raw = {"hparams": {"lr": 0.05}}  # given on its own: it would be ignored
    change(raw, "plumb")
    with pytest.raises(SpecError, match="finds its learning rate itself"):
        resolve(raw)


def test_a_tuner_without_a_start_begins_inside_its_box():
    spec = resolve({"clamp": {"low": {"batch": 16}, "high": {"lr": 2.0}}})
    assert spec.hparams == {"lr": 2.0, "epochs": 1.0, "batch": 16.0}
    assert resolve(tomllib.loads(spec.toml())) == spec
    algorithm, _, _ = specs.build(spec)
    hparams = algorithm.init(jax.random.key(0), 3).hparams
    assert [float(leaf[0]) for leaf in hparams] == [2.0, 1.0, 16.0]
    raw = tomllib.loads(spec.toml())  # a run's own spec, with another box
    specs.set_option(raw, "clamp.high.lr=5")
    specs.set_option(raw, "clamp.low.batch=8")
    assert resolve(raw) == resolve({"clamp": {"low": {"batch": 8}, "high": {"lr": 5.0}}})
