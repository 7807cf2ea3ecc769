"""A run as it goes on, in the terminal: a live view, or plain lines where nobody is looking."""

from math import isfinite
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

Row = dict[str, Any]
BARS = "▁▂▃▄▅▆▇█"
CURVES = (
    ("test accuracy", "accuracy", "{:.1%}"),
    ("learning rate", "lr", "{:.4f}"),
    ("local epochs", "epochs", "{:.2f}"),
    ("batch size", "batch", "{:.1f}"),
    ("agreement", "agreement", "{:+.2f}"),
    ("alignment", "alignment", "{:+.2f}"),
    ("gain", "gain", "{:+.2f}"),
)
MEANING = {
    "accuracy": "of the global model, on held-out examples",
    "lr": "rises while updates agree and steps keep their promise",
    "epochs": "passes of a client over its data, per round",
    "batch": "examples of a local step",
    "agreement": "cosine of this update with the past ones (-H)",
    "alignment": "least cosine along the clients' paths (-G)",
    "gain": "what clients' last steps brought, over what they promised",
}


class View:
    """Shows rows as they come; a context manager."""

    def __init__(self, console: Console, title: str, spec: Any, past: list[Row]) -> None:
        """Of a run by this spec, of which rows have been recorded before."""
        self.console, self.title, self.trials, self.target = console, title, spec.trials, spec.target
        self.rows: list[Row] = []  # of the first trial, every round
        self.accuracy: dict[int, float] = {}
        self.reached: dict[int, int] = {}
        self.progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.task = self.progress.add_task("round", total=spec.rounds)
        self.undone: list[int] = []  # rounds
        self.rejected: dict[int, int] = {}
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=False)
        for row in past:
            self._take(row)

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self.live.start()
        else:
            self.console.print(self.title, highlight=False, soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def add(self, row: Row) -> None:
        """Take in one row."""
        self._take(row)
        if self.console.is_terminal:
            return
        if row["rolled_back"]:
            trial = f"trial {row['trial'] + 1}: " if self.trials > 1 else ""
            told = f"{trial}round {row['round']} diverged and was undone; lr is now {row['next_lr']:.3g}"
            self.console.print(told, highlight=False, soft_wrap=True)
        if (row["metrics"] or {}).get("accuracy") is not None:
            self.console.print(_line(row, self.trials), highlight=False, soft_wrap=True)

    def _take(self, row: Row) -> None:
        trial = row["trial"]
        accuracy = (row["metrics"] or {}).get("accuracy")
        if accuracy is not None:
            self.accuracy[trial] = accuracy
            if accuracy >= self.target:
                self.reached.setdefault(trial, row["round"])
        if trial == 0:
            self.rows.append(row)
        self.progress.update(self.task, completed=row["round"])
        self.rejected[trial] = row["rejected"]
        if row["rolled_back"]:
            self.undone.append(row["round"])

    def render(self) -> RenderableType:
        """The whole view."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(style="dim", overflow="fold")
        for label, name, form in CURVES:
            values = [v for v in (_value(row, name) for row in self.rows) if v is not None and isfinite(v)]
            if name == "gain" and not values:  # most tuners do not ask
                continue
            table.add_row(label, form.format(values[-1]) if values else "-", sparkline(values), MEANING[name])
        parts: list[RenderableType] = [self.progress, Text(), table]
        if not self.rows:
            parts.append(Text("\ncompiling the first round ...", style="dim"))
        else:
            parts.append(Text("\n" + self._goal(), style="dim"))
        if self.undone:
            told = f"rounds that diverged and were undone: {len(self.undone)}, the last was {self.undone[-1]}"
            parts.append(Text(told, style="yellow"))
        if rejected := sum(self.rejected.values()):
            parts.append(Text(f"broken updates that were set aside: {rejected}", style="yellow"))
        return Panel(Group(*parts), title=self.title, title_align="left", border_style="blue")

    def told(self) -> str:
        """What has been reached, in one line."""
        rounds = sorted(self.reached.values())
        span = f" in rounds {rounds[0]} to {rounds[-1]}" if rounds else ""
        return f"target {self.target:.4g} reached by {len(rounds)} of {self.trials} trials{span}"

    def _goal(self) -> str:
        target = f"target {self.target:.0%}"
        if self.trials == 1:
            return f"{target}: reached in round {self.reached[0]}" if self.reached else f"{target}: not yet reached"
        now = ", ".join(f"{a:.1%}" for _, a in sorted(self.accuracy.items()))
        return f"curves of trial 1; {target}: reached by {len(self.reached)} of {self.trials} trials; accuracy {now}"


def summary(console: Console, result: Row, out: str) -> None:
    """What came of a run, and where it was written."""

    def spread(value: Row | None, form: str) -> str:
        if value is None:
            return "not reached"
        return form.format(value["mean"]) + (f" ± {form.format(value['sd'])}" if value["sd"] is not None else "")

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for name, value in result["final"].items():
        table.add_row(f"final test {name}", spread(value, "{:.1%}" if "accuracy" in name else "{:.3f}"))
    table.add_row(f"rounds to {result['target']:.0%}", spread(result["rounds_to_target"], "{:.0f}"))
    table.add_row("local gradients to it", spread(result["gradients_to_target"], "{:,.0f}"))
    if len(result["trials"]) > 1:
        table.add_row("trials that reached it", result["reached_target"])
    if result["trials"]:
        last = result["trials"][0]["hparams"]
        table.add_row("ended with", f"lr {last['lr']:.3g}, E {last['epochs']:.3g}, B {last['batch']:.3g}")
    for name, label in {"rejected": "updates set aside", "rounds_undone": "rounds undone"}.items():
        if count := sum(trial[name] for trial in result["trials"]):
            table.add_row(label, f"{count:,}")
    if result["privacy"]:
        table.add_row(
            "privacy", "epsilon {epsilon:.3g} at delta {delta:g}, one client replaced".format(**result["privacy"])
        )
    table.add_row("seconds", f"{result['seconds']:.0f}")
    table.add_row("written to", out)
    console.print(table, highlight=False, soft_wrap=True)


def _line(row: Row, trials: int) -> str:
    trial = f"trial {row['trial'] + 1}  " if trials > 1 else ""
    gain = "" if row.get("gain") is None else f"gain {row['gain']:+.2f}  "
    return (
        f"{trial}round {row['round']:>4}  accuracy {row['metrics']['accuracy']:.3f}  lr {row['lr']:<8.3g}  "
        f"E {row['epochs']:.2f}  B {row['batch']:.1f}  agreement {row['agreement']:+.2f}  "
        f"alignment {row['alignment']:+.2f}  {gain}{row['seconds']:.0f}s"
    )


def _value(row: Row, name: str) -> float | None:
    return (row["metrics"] or {}).get(name) if name == "accuracy" else row[name]


def sparkline(values: list[float], width: int = 24) -> str:
    """A curve in one line of text, lowest value to highest."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)
