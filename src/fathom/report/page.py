"""The report as one HTML page, which needs nothing else: no server, no network.

Everything that comes from a run directory is escaped, and a policy in the page keeps any script but ours from running.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from fathom.report import bound, series, tables
from fathom.report.read import Run

Section = Callable[[Sequence[Run]], str]  # HTML, or nothing


class MissingError(ValueError):
    """A package that is not installed."""


def asset(name: str) -> str:
    """One of the files beside this one."""
    return (resources.files("fathom.report") / "assets" / name).read_text(encoding="utf-8")


def plotly() -> str:
    """The library that draws the charts."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingError("reports need plotly; install it with: pip install 'fathom[report]'.") from error
    return get_plotlyjs()


def page(runs: Sequence[Run]) -> str:
    """The page of some runs."""
    library, ours = plotly(), asset("charts.js") + "\nreport();\n"
    data = {"runs": series.described(runs), "clients": series.clients(runs)}
    return fill(
        asset("report.html"),
        {
            "policy": f"default-src 'none'; script-src {_hash(library)} {_hash(ours)}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'",
            "title": html.escape(", ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"),
            "style": asset("style.css"),
            "lead": html.escape(lead(runs)),
            "sections": "\n".join(section for make in SECTIONS if (section := make(runs))),
            "data": as_json(data),
            "plotly": library,
            "charts": ours,
        },
    )


def fill(template: str, parts: dict[str, str]) -> str:
    """A template with its {{names}} replaced, in one pass: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def as_json(data: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def lead(runs: Sequence[Run]) -> str:
    """What is shown, in one line."""
    told = [f"{run.name}: {tables.state(run)}" for run in runs if run.state != "finished"]
    cohorts = sorted({run.spec["cohort"] for run in runs})
    tasks = list(dict.fromkeys(run.spec["task"]["name"] for run in runs))
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    line = f"{count} of {', '.join(tasks)}, {' or '.join(map(str, cohorts))} clients a round."
    return " ".join([line, *(f"{one}." for one in told)])


def _charts(group: str, title: str, note: str) -> Section:
    def section(runs: Sequence[Run]) -> str:
        if not any(run.measured for run in runs):
            return ""
        grid = f'<div class="grid" data-charts="{group}"></div>'
        return f'<section><h2>{title}</h2><p class="note">{note}</p>{grid}</section>'

    return section


def _table(make: Callable[[Sequence[Run]], tables.Table]) -> Section:
    def section(runs: Sequence[Run]) -> str:
        table = make(runs)
        return f"<section><h2>{html.escape(table.title)}</h2>{tables.to_html(table)}</section>" if table.rows else ""

    return section


def _clients(runs: Sequence[Run]) -> str:
    spans = {run.name: series.last_rounds(run) for run in runs}
    rounds = {name: f"rounds {span[0]} to {span[1]}" for name, span in spans.items() if span}
    alike = len(set(rounds.values())) == 1
    told = list(rounds.values())[:1] if alike else [f"{name}: {span}" for name, span in rounds.items()]
    if not told:
        return ""
    note = (
        f"The last recorded rounds ({'; '.join(told)}), all trials together; a client that was sampled twice counts "
        "twice, one that did not answer not at all. Heights show the share of a run's clients."
    )
    return (
        f'<section><h2>Clients</h2><p class="note">{html.escape(note)}</p>'
        '<div class="grid" data-charts="clients"></div></section>'
    )


BAND = (
    "Lines are means over trials; the band reaches from the lowest trial to the highest, and is missing with one trial."
)

# What the page is made of, in this order.
SECTIONS: tuple[Section, ...] = (
    _table(tables.results),
    _table(tables.verdicts),
    _charts(
        "accuracy",
        "Test accuracy",
        f"{BAND} The thin grey line is the target. Costs are those of one trial so far, averaged over trials.",
    ),
    _charts(
        "hparams",
        "Hyperparameters",
        "What clients were asked to do in each round, and how many steps that made. These axes need not begin at 0.",
    ),
    _charts(
        "signals",
        "Signals",
        "The two cosines that FATHOM steers by, measured whatever the tuner; and the gain, where a tuner asks for it.",
    ),
    _clients,
    bound.section,
    _table(tables.trouble),
    _table(tables.differences),
    _table(tables.environment),
)


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
