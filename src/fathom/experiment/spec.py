"""What is to be run: a TOML file or command-line options, checked and filled in with defaults.

A part that is chosen by name (task, tuner, client_opt, server_opt, aggregate) is a table whose other keys are the
arguments of the function of that name: the signature is the schema.
"""

import difflib
import inspect
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import tomli_w

from fathom import optimizers, tasks, tuners
from fathom.core.aggregate import AGGREGATORS
from fathom.core.round import federated
from fathom.core.types import Algorithm, Batch, HParams
from fathom.data import Federation
from fathom.data.limits import one_line
from fathom.tuners.base import LOW, Schedule

Table = dict[str, Any]
DEEP, LONG = 8, 1000  # tables within tables, and characters of a text, that make sense in a spec
FLOAT32_MAX, FLOAT32_TINY = 3e38, 1.2e-38  # what a hyperparameter can be on a device


class SpecError(ValueError):
    """A spec that cannot be run: what was wrong, the value, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Spec:
    """A run, fully resolved: running it again gives the same run."""

    rounds: int
    cohort: int
    trials: int
    seed: int  # of the first trial; the others follow, seed + 1, seed + 2, ...
    every: int
    target: float  # test accuracy that is to be reached
    stop_at_target: bool  # whether a trial is done when it has reached it
    task: Table
    hparams: Table  # of the first round
    tuner: Table
    clamp: Table | None  # the box a tuner is kept in; None for those that only follow what they are given
    client_opt: Table
    server_opt: Table
    aggregate: Table
    guard: bool  # whether a run that diverges goes back to its last good state
    dropout: float  # how likely a sampled client is to vanish
    stragglers: float  # how likely one is to stop early

    def toml(self) -> str:
        """The spec as a TOML file."""
        return tomli_w.dumps({key: value for key, value in asdict(self).items() if value is not None})


def read(path: Path) -> Table:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such file; give a task's name or a spec that exists.") from error
    except (OSError, ValueError, RecursionError) as error:  # not text, not TOML, numbers too long, lists too deep
        raise SpecError(f"{path}: cannot be read as TOML: {error}.") from error


def resolve(raw: Mapping[str, Any]) -> Spec:
    """Check what was asked for and fill in what was not."""
    _check_size("the spec", raw)
    known = list(Spec.__dataclass_fields__)
    for key in raw:
        if key not in known:
            raise SpecError(f"a spec has no key {key!r}; it takes {_names(known)}.{_near(key, known)}")
    task = _named(raw, "task", {name: entry.load for name, entry in tasks.TASKS.items()}, "glyphs")
    defaults = tasks.TASKS[task["name"]].defaults
    aggregate = _named(raw, "aggregate", AGGREGATORS, "mean")
    tuner = _named(raw, "tuner", tuners.TUNERS, "fathom" if aggregate["name"] == "private" else "plumb")
    clamp = _clamp(raw, tuner["name"], _highest(task["name"], tuner["name"]))
    spec = Spec(
        rounds=_whole(raw, "rounds", defaults.rounds, least=1),
        cohort=_whole(raw, "cohort", defaults.cohort, least=1),
        trials=_whole(raw, "trials", 1, least=1),
        seed=_seed(raw),
        every=_whole(raw, "every", defaults.every, least=1),
        target=_target(raw.get("target", defaults.target)),
        stop_at_target=_switch(raw, "stop_at_target", False),
        task=task,
        hparams=_start(raw, tuner["name"], clamp, defaults.hparams),
        tuner=tuner,
        clamp=clamp,
        client_opt=_named(raw, "client_opt", optimizers.CLIENT, "sgd"),
        server_opt=_named(raw, "server_opt", optimizers.SERVER, "fedavg"),
        aggregate=aggregate,
        guard=_switch(raw, "guard", True),
        dropout=_chance(raw, "dropout"),
        stragglers=_chance(raw, "stragglers"),
    )
    _check_start(spec)
    return spec


def build(spec: Spec) -> tuple[Algorithm, Federation, Batch]:
    """The algorithm, the clients' data and the test set that a spec speaks of."""
    loaders = {name: entry.load for name, entry in tasks.TASKS.items()}
    task, federation, test = _make("task", loaders, spec.task)
    if spec.cohort > len(federation):
        raise SpecError(
            f"cohort={spec.cohort} exceeds the {len(federation)} clients of {spec.task['name']!r}; lower `cohort`."
        )
    options = {key: _schedule(value) if isinstance(value, dict) else value for key, value in spec.tuner.items()}
    tuner = _make("tuner", tuners.TUNERS, options)
    if spec.clamp:
        tuner = tuners.clamp(tuner, HParams(**spec.clamp["low"]), HParams(**spec.clamp["high"]))
    parts = {
        "client_opt": _make("client_opt", optimizers.CLIENT, spec.client_opt),
        "server_opt": _make("server_opt", optimizers.SERVER, spec.server_opt),
        "aggregator": _make("aggregate", AGGREGATORS, spec.aggregate),
    }
    switches = {"guard": spec.guard, "dropout": spec.dropout, "stragglers": spec.stragglers}
    hparams = HParams(**spec.hparams) if tuner.first is None else None
    try:
        algorithm = federated(task, tuner=tuner, hparams=hparams, **parts, **switches)
    except ValueError as error:  # parts that do not go together
        raise SpecError(f"[tuner] {spec.tuner['name']}: {error}") from error
    return algorithm, federation, test


def set_option(raw: Table, assignment: str) -> None:
    """Put `key=value` into a spec's tables; dots lead into them, and the value is read as TOML or else as text."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip() or key.count(".") > DEEP:
        raise SpecError(f"--set {assignment!r} is not of the form key=value, such as hparams.lr=0.05.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--set {key}: the value is too large or too deep ({error}); give a smaller one.") from error
    _check_size(f"--set {key.strip()}", value)
    *parents, last = key.strip().split(".")
    if parents[:1] == ["clamp"]:
        _forget_start(raw)
    table = raw
    for parent in parents:
        if isinstance(table.get(parent), str):
            table[parent] = {"name": table[parent]}
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise SpecError(f"--set {assignment!r}: {parent!r} is a value and has no key {last!r}.")
    if not parents and last == "tuner" and isinstance(value, str):
        change_tuner(raw, value)
    else:
        table[last] = value


def change_tuner(raw: Table, tuner: str) -> None:
    """Put another tuner into a spec's tables. What was for the one before alone goes with that.

    That is a box that is only what is usual for it, and a start where one of the two has its own.
    """
    task, before = (part.get("name") if isinstance(part, dict) else part for part in map(raw.get, ("task", "tuner")))
    if isinstance(task, str) and task in tasks.TASKS and isinstance(before, str) and before in tuners.TUNERS:
        highest = _highest(task, before)
        if _clamp(raw, before, highest) == _clamp({}, before, highest):
            raw.pop("clamp", None)
    _forget_start(raw)
    if isinstance(before, str) and before not in tuners.FIRST and tuner in tuners.FIRST:
        raw.pop("hparams", None)
    raw["tuner"] = tuner


def _forget_start(raw: Table) -> None:
    """Leave out what a run's own spec says of a start that its tuner has of its own: it goes with tuner and box."""
    try:
        own = resolve({key: value for key, value in raw.items() if key != "hparams"})
    except SpecError:
        return  # which is told when the whole is resolved
    if "tuner" in raw and own.tuner["name"] in tuners.FIRST and isinstance(raw.get("hparams"), dict):
        raw["hparams"] = {key: value for key, value in raw["hparams"].items() if own.hparams.get(key) != value}


def _highest(task: str, tuner: str) -> HParams:
    """The upper end of the box that is usual for a tuner on a task."""
    high = tasks.TASKS[task].defaults.high
    return high._replace(lr=tuners.SELF_BOUND.get(tuner, high.lr))


def _check_size(where: str, value: Any, deep: int = 0) -> None:
    """Refuse values that are too large to make sense, or even to be shown in a message."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise SpecError(f"{where} has an integer of {value.bit_length()} bits; 64 are the most.")
    if isinstance(value, str) and len(value) > LONG:
        raise SpecError(f"{where} has a text of {len(value):,} characters, {value[:20]!r}...; {LONG:,} are the most.")
    if isinstance(value, Mapping | list | tuple):
        if deep > DEEP:
            raise SpecError(f"{where} has tables or lists more than {DEEP} deep; a spec has none that deep.")
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            _check_size(where, item, deep + 1)


def _named(raw: Mapping[str, Any], part: str, choices: Mapping[str, Callable], default: str) -> Table:
    """A part chosen by name, with every argument of its function filled in and checked."""
    table = raw.get(part, default)
    table = {"name": table} if isinstance(table, str) else table
    if not isinstance(table, dict):
        raise SpecError(f"{part}={table!r} is neither a name nor a table; give one of {_names(choices)}.")
    name = table.get("name", default)
    given = {key: value for key, value in table.items() if key != "name"}
    function = choose(part, name, choices)
    return {"name": name, **arguments(f"[{part}] {name}", function, given, choices)}


def choose(part: str, name: Any, choices: Mapping[str, Callable]) -> Callable:
    """The function of that name."""
    if not isinstance(name, str) or name not in choices:
        raise SpecError(f"there is no {part} {name!r}; choose from {_names(choices)}.{_near(name, choices)}")
    return choices[name]


def arguments(where: str, function: Callable, given: Mapping[str, Any], others: Mapping[str, Callable] = {}) -> Table:
    """The arguments of a function: those given, checked, and the defaults of the others.

    Where one is not this function's, the message says which of the `others` has it.
    """
    parameters = inspect.signature(function).parameters
    for key, value in given.items():
        if key not in parameters:
            takes = f"it takes {_names(parameters)}" if parameters else "it takes none"
            owners = [other for other, made in others.items() if key in inspect.signature(made).parameters]
            owned = f" {key!r} is an option of {_names(owners)}." if owners else ""
            raise SpecError(f"{where} has no option {key!r}; {takes}.{_near(key, parameters)}{owned}")
        _check_type(f"{where}: {key}", value, parameters[key])
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in given]
    if missing:
        raise SpecError(f"{where} needs {_names(missing)}.")
    filled = {name: given.get(name, parameter.default) for name, parameter in parameters.items()}
    return {name: value for name, value in filled.items() if value is not None}


def _check_type(where: str, value: Any, parameter: inspect.Parameter) -> None:
    kind, default = parameter.annotation, parameter.default
    if set(get_args(kind)) in ({int, NoneType}, {float, NoneType}, {str, NoneType}):
        (kind,) = {*get_args(kind)} - {NoneType}
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise SpecError(f"{where}={value!r} is not known; choose from {_names(get_args(kind))}.")
    elif kind is bool or isinstance(default, bool):
        if not isinstance(value, bool):
            raise SpecError(f"{where}={value!r} must be true or false.")
    elif kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise SpecError(f"{where}={value!r} must be a whole number.")
    elif kind is float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise SpecError(f"{where}={value!r} must be a finite number.")
    elif kind is str:
        if not isinstance(value, str):
            raise SpecError(f"{where}={value!r} must be a text.")
    elif Schedule in get_args(kind):
        if not isinstance(value, dict):
            raise SpecError(f"{where}={value!r} must be a table with the name of a schedule and its arguments.")
        _schedule(value)


def _schedule(table: Mapping[str, Any]) -> Callable:
    """An optax schedule from its name and arguments."""
    choices = tuners.SCHEDULES
    name = table.get("name")
    given = {key: value for key, value in table.items() if key != "name"}
    for key, value in given.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise SpecError(f"schedule {name}: {key}={value!r} must be a finite number, or true or false.")
    filled = arguments(f"schedule {name}", choose("schedule", name, choices), given)
    return _make("schedule", choices, {"name": name, **filled})


def _whole(raw: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{key}={value!r} must be a whole number of at least {least}.")
    return value


def _seed(raw: Mapping[str, Any]) -> int:
    seed, trials = _whole(raw, "seed", 0, least=0), _whole(raw, "trials", 1, least=1)
    if seed + trials > 2**32:
        raise SpecError(f"seed={seed} must leave room for {trials} trials below 2**32; choose a smaller one.")
    return seed


def _switch(raw: Mapping[str, Any], key: str, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise SpecError(f"{key}={value!r} must be true or false.")
    return value


def _chance(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key, 0.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise SpecError(f"{key}={value!r} must be a probability, from 0 to 1.")
    return float(value)


def _target(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise SpecError(f"target={value!r} must be a fraction between 0 and 1, such as 0.65 for 65 %.")
    return float(value)


def _hparams(raw: Mapping[str, Any], part: str, defaults: HParams, zero: bool = False) -> Table:
    """A table of lr, epochs and batch; `zero` allows values that bound but could not be used."""
    given = raw.get(part, {})
    if not isinstance(given, dict):
        raise SpecError(f"{part}={given!r} must be a table of {_names(HParams._fields)}.")
    for key in given:
        if key not in HParams._fields:
            near = _near(key, HParams._fields)
            raise SpecError(f"[{part}] has no {key!r}; it takes {_names(HParams._fields)}.{near}")
    table = {**defaults._asdict(), **given}
    for key, value in table.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < FLOAT32_MAX:
            raise SpecError(f"[{part}] {key}={value!r} must be a finite number.")
        least, fits = (1, value >= 1) if key == "batch" else (0, value >= 0 if zero else value > FLOAT32_TINY)
        if not fits:
            bound = f"at least {least}" if key == "batch" or zero else "greater than 0"
            raise SpecError(f"[{part}] {key}={value!r} must be {bound}.")
        table[key] = float(value)
    return table


def _start(raw: Mapping[str, Any], tuner: str, clamp: Table | None, usual: HParams) -> Table:
    """The hyperparameters of the first round; a tuner that has its own takes no others."""
    first = tuners.FIRST.get(tuner)
    table = _hparams(raw, "hparams", first or usual)
    if first is None:
        return table
    for key, value in first._asdict().items():
        own = min(max(value, clamp["low"][key]), clamp["high"][key]) if clamp else value
        if key in raw.get("hparams", {}) and table[key] != own:
            what = {"lr": "learning rate", "epochs": "epochs", "batch": "batch size"}[key]
            raise SpecError(
                f"[hparams] {key}={table[key]:g}: {tuner} finds its {what} itself, and has no first one to set; leave "
                f"{key} out, or take a tuner that goes by it, such as --tuner fathom. Bounds are set by "
                f"clamp.low.{key}, clamp.high.{key}."
            )
        table[key] = own
    return table


def _clamp(raw: Mapping[str, Any], tuner: str, high: HParams) -> Table | None:
    """The box for a tuner; no box, unless one is asked for, around those that only follow what they are given."""
    given = raw.get("clamp", {})
    if not isinstance(given, dict):
        raise SpecError(f"clamp={given!r} must be a table with tables `low` and `high`.")
    for key in given:
        if key not in ("low", "high"):
            raise SpecError(f"[clamp] has no {key!r}; it takes low, high.{_near(key, ('low', 'high'))}")
    if tuner in tuners.OPEN_LOOP and not given:
        return None
    given = {f"clamp.{side}": table for side, table in given.items()}
    low, high_ = _hparams(given, "clamp.low", LOW, zero=True), _hparams(given, "clamp.high", high)
    bounds = {"low": low, "high": high_}
    for key in HParams._fields:
        if bounds["low"][key] > bounds["high"][key]:
            raise SpecError(
                f"[clamp] low.{key}={bounds['low'][key]:g} is above high.{key}={bounds['high'][key]:g}; swap them."
            )
    return bounds


def _check_start(spec: Spec) -> None:
    """A run must not start outside of the box its tuner is kept in."""
    for key, value in spec.hparams.items():
        if spec.clamp and not spec.clamp["low"][key] <= value <= spec.clamp["high"][key]:
            side = "low" if value < spec.clamp["low"][key] else "high"
            raise SpecError(
                f"[hparams] {key}={value:g} lies outside of the tuner's box, {spec.clamp['low'][key]:g} to "
                f"{spec.clamp['high'][key]:g}; start inside or move the box: --set clamp.{side}.{key}={value:g}."
            )


def _make(part: str, choices: Mapping[str, Callable], table: Mapping[str, Any]) -> Any:
    """What the function named in a table makes of the table's other keys."""
    try:
        return choices[table["name"]](**{key: value for key, value in table.items() if key != "name"})
    except (TypeError, ValueError) as error:
        raise SpecError(f"[{part}] {table['name']}: {error}") from error


def _names(choices: Iterable[Any]) -> str:
    return ", ".join(str(choice) for choice in choices)


def _near(key: Any, choices: Iterable[Any]) -> str:
    near = difflib.get_close_matches(str(key), [str(choice) for choice in choices], 1)
    return f" Did you mean {near[0]!r}?" if near else ""
