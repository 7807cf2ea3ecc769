"""The paper's bound along a run, and its theorems on a quadratic."""

import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import typer
from typer.testing import CliRunner

import fathom
from fathom import cli_theory
from fathom.report import bound, theory

KNOWN = theory.Constants(L=3.0, sigma=0.7, G=1.3, D=2.0)
SPEC = """
cohort = 3
rounds = 100000
trials = 1
every = {every}
task.name = "made"
tuner.name = "fixed"
client_opt.name = "{client_opt}"
server_opt.name = "fedavg"
aggregate.name = "mean"
"""


def lemma(lr, steps, rounds, m, c):
    """Lemma 1: the bound of FedAvg with constant hyperparameters, as the paper has it."""
    return {
        "progress": 2 * c.D / (lr * steps * rounds),
        "deviation 1": lr * c.L / m * (c.sigma**2 + c.G**2),
        "deviation 2": 5 * lr**2 * steps * c.L**2 * c.sigma**2,
        "deviation 3": 5 * lr**2 * steps**2 * c.L**2 * c.G**2,
    }


def row(number, lr=0.1, steps=(2, 4, 8), squared=(1.0, 1.0, 1.0), losses=(1.0, 1.0, 1.0), loss=1.0, **other):
    drift = [s * (lr * k) ** 2 for s, k in zip(squared, steps, strict=True)]
    clients = {"steps": list(steps), "examples": [5] * len(steps), "drift": drift, "loss": list(losses)}
    return {"round": number, "trial": 0, "lr": lr, "loss": loss, "rolled_back": False, "clients": clients, **other}


def run(path, rows, every=1, client_opt="sgd"):
    path.mkdir(exist_ok=True)
    (path / "spec.toml").write_text(SPEC.format(every=every, client_opt=client_opt))
    (path / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_with_constant_lr_and_steps_every_beta_is_1_and_the_bound_is_lemma_1s():
    lr, steps = np.full(50, 0.07), np.full(50, 6.0)
    for values in theory.betas(lr, steps).values():
        np.testing.assert_allclose(values, 1, rtol=1e-12)
    for name, values in theory.terms(lr, steps, 10, KNOWN).items():
        expected = [lemma(0.07, 6, rounds, 10, KNOWN)[name] for rounds in range(1, 51)]
        np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_the_terms_are_lemma_1s_at_the_means_divided_by_the_printed_betas():
    rng = np.random.default_rng(0)
    lr, steps = rng.uniform(0.01, 0.3, 40), rng.integers(1, 30, 40).astype(float)
    at_means = lemma(lr.mean(), steps.mean(), 40, 10, KNOWN)
    pairs = zip(theory.TERMS, theory.BETAS, strict=True)
    for name, beta in pairs:
        term, factor = theory.terms(lr, steps, 10, KNOWN)[name][-1], theory.betas(lr, steps)[beta][-1]
        assert abs(factor - 1) > 0.01
        assert term == pytest.approx(at_means[name] / factor, rel=1e-9)


def test_the_sums_of_a_short_run_by_hand():
    terms = theory.terms(np.array([0.1, 0.2]), np.array([2.0, 3.0]), 4, KNOWN)
    assert terms["progress"][1] == pytest.approx(2 * 2 / (0.2 + 0.6))
    assert terms["deviation 1"][1] == pytest.approx(3 * (0.02 + 0.12) / (4 * 0.8) * (0.49 + 1.69))
    assert terms["deviation 2"][1] == pytest.approx(5 * 9 * (0.004 + 0.072) / 0.8 * 0.49)
    assert terms["deviation 3"][1] == pytest.approx(5 * 9 * (0.008 + 0.216) / 0.8 * 1.69)


def test_estimates_find_what_records_were_made_with(tmp_path):
    steps, sigma2, g2 = (2, 4, 8), 0.5, 2.0
    noisy = [g2 + sigma2 / k for k in steps]
    losses = [s / (2 * 3.0) for s in noisy]  # a quadratic with L = 3
    rows = [row(1, 0.1, steps, noisy, losses, loss=5.0), row(2, 0.2, (1, 4, 4), [2.5, 2.125, 2.125], [9] * 3, loss=1.5)]
    found = theory.measure(run(tmp_path / "r", rows))["constants"]
    values = {name: constant["value"] for name, constant in found.items()}
    assert values == pytest.approx({"L": 3.0, "sigma": sigma2**0.5, "G": g2**0.5, "D": 3.5})
    assert all(constant["estimated"] for constant in found.values())


def test_rounds_between_records_go_by_the_last_record_before(tmp_path):
    rows = [row(2, 0.1, (2, 2, 2)), row(4, 0.3, (6, 6, 6)), row(5, 0.2, (4, 4, 4))]
    found = theory.measure(run(tmp_path / "r", rows, every=2), KNOWN._asdict())
    lr, steps = np.array([0.1, 0.1, 0.1, 0.3, 0.2]), np.array([2.0, 2.0, 2.0, 6.0, 4.0])
    (trial,) = found["trials"]
    assert trial["round"] == [2, 4, 5]
    for name, values in {**theory.terms(lr, steps, 3, KNOWN), **theory.betas(lr, steps)}.items():
        assert trial[name] == pytest.approx(values[[1, 3, 4]])
    assert trial["bound"][-1] == pytest.approx(sum(trial[name][-1] for name in theory.TERMS))
    assert any("every 2 rounds" in note for note in found["notes"])


def test_lr_is_checked_against_1_over_l(tmp_path):
    out = run(tmp_path / "r", [row(1, 0.1), row(2, 0.3), row(3, 0.5)])
    found = theory.measure(out, {"L": 4.0})
    assert found["lr_limit"] == 0.25
    assert (found["trials"][0]["rounds_above_limit"], found["trials"][0]["first_above_limit"]) == (2, 2)
    assert theory.measure(out, {"L": 2.0})["trials"][0]["rounds_above_limit"] == 0  # lr = 1/L is allowed


def test_undone_rounds_and_clients_that_did_not_answer_do_not_count(tmp_path):
    good = [row(1, 0.1), row(2, 0.2, loss=0.5)]
    odd = row(2, 0.2, loss=0.5)
    for name, value in {"steps": 0, "examples": 0, "drift": None, "loss": None}.items():
        odd["clients"][name].append(value)
    undone = row(3, 9.0, rolled_back=True, loss=0.1)
    assert theory.measure(run(tmp_path / "a", good)) == theory.measure(run(tmp_path / "b", [good[0], odd, undone]))


def test_what_the_bound_is_not_about_is_said(tmp_path):
    same = [row(1, steps=(3, 3, 3)), row(2, steps=(3, 3, 3))]
    found = theory.measure(run(tmp_path / "r", same, client_opt="momentum"))
    assert any("'momentum'" in note for note in found["notes"])
    assert any("sigma" in note for note in found["notes"])
    assert found["constants"]["sigma"]["value"] == 0
    assert not any("sigma" in note for note in theory.measure(run(tmp_path / "s", [row(1), row(2)]))["notes"])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([row(1)], [], "has 1 records of a trial; the bound needs 2"),
        ([row(1), {"round": 2}], [], "is not as fathom wrote it"),
        ([row(1, losses=(0, 0, 0)), row(2, losses=(0, 0, 0))], [], "give --smoothness"),
        ([row(1), row(2)], ["--smoothness", "-1"], "L=-1 must be finite and above 0."),
        (None, [], "records.jsonl cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(rows, options, message, tmp_path):
    out = run(tmp_path / "r", rows or [])
    if rows is None:
        (out / "records.jsonl").unlink()
    done = command([str(out), *options])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def command(arguments):
    app = typer.Typer()
    app.command()(cli_theory.theory)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})


def test_the_command_shows_terms_betas_estimates_and_the_check(tmp_path):
    out = str(run(tmp_path / "r", [row(1, 0.1), row(2, 0.3), row(3, 0.2)]))
    told = command([out]).stdout
    assert all(name in told for name in (*theory.TERMS, *theory.BETAS, "bound"))
    assert "as printed; divides" in told
    assert "L     ≈ 0.5 " in told
    assert "lr <= 1/L = 2 holds in every round (L may be larger than its estimate)" in told
    told = command([out, "--smoothness", "4", "--noise", "0"]).stdout
    assert "L     = 4 " in told
    assert "lr <= 1/L = 0.25 fails in 1 of 3 rounds, first in round 2" in told
    found = json.loads(command([out, "--json", "--fall", "7"]).stdout)
    assert found["constants"]["D"] == {"value": 7.0, "estimated": False, "how": "given"}
    assert len(found["trials"][0]["bound"]) == 3


class Shown(NamedTuple):
    """What the panel needs of a run that is shown."""

    name: str
    path: Path


def test_the_picture_has_a_line_for_every_term_and_beta(tmp_path):
    found = theory.measure(run(tmp_path / "r", [row(1, 0.1), row(2, 0.3)]))
    figure = bound.figure(found)
    labels = [str(line.get_label()) for axis in figure.axes for line in axis.lines]
    assert {*theory.TERMS, *theory.BETAS, "bound", "lr"} <= set(labels)
    html = bound.section([Shown("<b>", tmp_path / "r"), Shown("none", tmp_path)])
    assert html.count("<img") == 1
    assert html == bound.section([Shown("<b>", tmp_path / "r")])
    assert "&lt;b&gt;, trial 1: L ≈ 0.5" in html
    assert bound.section([Shown("none", tmp_path)]) == ""


# A federation of quadratics, f_i(x) = mean over its examples c of 1/2 sum(curve (x - c)^2).
CURVE = np.array([1.0, 0.3, 2.0])
CENTRES = [np.random.default_rng(i).normal(size=(n, 3)).astype(np.float32) for i, n in enumerate((4, 8, 12))]
WEIGHTS = np.array([len(c) for c in CENTRES]) / 24
START = np.array([2.0, -1.0, 0.5])
LR = 0.1


def loss(i, x):
    return np.mean(np.sum(CURVE * (x - CENTRES[i]) ** 2, 1)) / 2


def grad(i, x):
    return CURVE * (x - CENTRES[i].mean(0))


def whole(x):
    return sum(w * loss(i, x) for i, w in enumerate(WEIGHTS))


def path(i, steps):
    x = [START]
    for _ in range(steps):
        x.append(x[-1] - LR * grad(i, x[-1]))
    return x


def marginal(steps):
    """The mean over clients of the last of so many local steps."""
    return -LR * sum(w * grad(i, path(i, steps)[steps - 1]) for i, w in enumerate(WEIGHTS))


def after(steps, part):
    """x_t where only a part of the last local step was taken."""
    return sum(w * path(i, steps - 1)[-1] for i, w in enumerate(WEIGHTS)) + part * marginal(steps)


def slope(x):
    return sum(w * grad(i, x) for i, w in enumerate(WEIGHTS))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_theorem_1_the_subgradient_is_the_finite_difference_in_the_marginal_step(steps):
    for part in (0.0, 0.4, 1.0):
        subgradient = slope(after(steps, part)) @ marginal(steps)
        difference = (whole(after(steps, part + 1e-5)) - whole(after(steps, part - 1e-5))) / 2e-5
        assert subgradient == pytest.approx(difference, rel=1e-6)
    at_start = slope(after(steps, 0.0)) @ marginal(steps)
    assert at_start <= whole(after(steps, 1.0)) - whole(after(steps, 0.0))  # a subgradient: it lies below the chord


def test_theorem_1_holds_for_the_steps_that_the_engine_takes():
    def point_loss(x, batch, key=None):
        return jnp.sum(CURVE * (x - batch["c"]) ** 2, -1) / 2

    clients = {str(i): {"c": c} for i, c in enumerate(CENTRES)}
    algorithm = fathom.federated(
        fathom.Task(lambda key: jnp.asarray(START, jnp.float32), point_loss, lambda x, b: {"loss": point_loss(x, b)}),
        tuner=fathom.tuners.fixed(),
        hparams=fathom.HParams(lr=LR, epochs=10.0, batch=40.0),  # whole batches, in 1, 2 and 3 steps
        client_opt=fathom.optimizers.sgd(),
        server_opt=optax.sgd(1.0),
    )
    (record,) = fathom.train(
        algorithm,
        fathom.Federation.from_arrays(clients),
        key=jax.random.key(0),
        rounds=1,
        cohort=[list(clients)],
        test={"c": np.concatenate(CENTRES)},
        devices=jax.devices()[:1],
    )
    assert record.clients.steps.tolist() == [1, 2, 3]
    ends = [(i, w, path(i, i + 1)[i]) for i, w in enumerate(WEIGHTS)]  # a step before the end of each client's path
    before, last = sum(w * x for _, w, x in ends), -LR * sum(w * grad(i, x) for i, w, x in ends)
    subgradient = slope(before + last / 2) @ last  # halfway, where it is the whole difference for a quadratic
    assert record.metrics["loss"] - whole(before) == pytest.approx(subgradient, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_theorem_2_the_subgradient_is_the_finite_difference_in_the_marginal_step(steps):
    def local(part):
        """J(l) as printed: from x^{K-1}, a part of a step along the gradient at x^K."""
        moved = [path(i, steps)[steps - 1] - part * LR * grad(i, path(i, steps)[steps]) for i in range(3)]
        return sum(w * loss(i, x) for i, (w, x) in enumerate(zip(WEIGHTS, moved, strict=True)))

    subgradient = -LR * sum(
        w * grad(i, path(i, steps)[steps - 1]) @ grad(i, path(i, steps)[steps]) for i, w in enumerate(WEIGHTS)
    )
    assert subgradient == pytest.approx((local(1e-5) - local(-1e-5)) / 2e-5, rel=1e-6)
    assert subgradient <= local(1.0) - local(0.0)
