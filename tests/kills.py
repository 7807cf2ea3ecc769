"""Kill a run again and again, and see that it comes to the same records.

    python tests/kills.py [--kills 200] [--seed 0]

A short run is started, killed with SIGKILL and resumed until it is done, over and over. Three kinds of kills take
turns: at a random moment after the start; while a checkpoint is being written; and half-way through the append of a
record. After each, the records must read without a torn or a repeated line; at the end they must equal, but for
the time they took, those of a run that nobody touched.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROUNDS = 40
COMMAND = ("run", "synthetic", "--rounds", str(ROUNDS), "--every", "1", "--out", "run", "--checkpoint-every", "0")
KINDS = ("random", "checkpoint", "append")


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_checkpoint(out, after):
    """Kill this process as soon as the checkpoint after so many is being written."""

    def watch():
        seen = set()
        while True:
            seen |= {path.name.split(".")[0] for path in Path(out, "checkpoints").glob("*tmp*")}
            if len(seen) > after:
                _die()

    threading.Thread(target=watch, daemon=True).start()


def kill_in_append(after):
    """Kill this process half-way through the append after so many."""
    from fathom.experiment import store

    whole, count = store.append, 0

    def append(out, rows):
        nonlocal count
        count += 1
        if count <= after:
            return whole(out, rows)
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        with (out / "records.jsonl").open("ab", buffering=0) as file:
            file.write(data[: len(data) // 2])
        _die()

    store.append = append


def child(kind, after, arguments):
    """The command, as it is killed from inside."""
    from fathom.cli import app

    if kind == "checkpoint":
        kill_in_checkpoint("run", after)
    if kind == "append":
        kill_in_append(after)
    sys.argv = ["fathom", *arguments]
    app()


def start(folder, kind, after, arguments, environment):
    command = [sys.executable, __file__, "--child", kind, "--after", str(after), "--", *arguments]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def records(out):
    """A run's records without the time they took; an error if any line is torn or there twice."""
    from fathom.experiment import store

    return [{key: value for key, value in row.items() if key != "seconds"} for row in store.read_rows(out)]


def killed_once(folder, kind, rng, environment):
    """Start or resume the run and kill it; whether it was killed before its end."""
    out = folder / "run"
    arguments = ("run", "--resume", "run", "--checkpoint-every", "0") if (out / "spec.toml").exists() else COMMAND
    process = start(folder, kind, rng.randrange(8), arguments, environment)
    if kind == "random":
        before = (out / "records.jsonl").stat().st_mtime_ns if (out / "records.jsonl").exists() else 0
        if rng.random() < 0.9:  # most of them once it trains, the others anywhere from the first instruction on
            while process.poll() is None:
                path = out / "records.jsonl"
                if path.exists() and path.stat().st_mtime_ns != before and path.stat().st_size:
                    break
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 1.0))
        else:
            time.sleep(rng.uniform(0, 4.0))
        process.kill()
    code = process.wait(timeout=300)
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit code {code}: {(folder / 'log.txt').read_text()[-2000:]}")
    return code != 0


def torture(folder, kills, seed, environment, tell=lambda counts: None):
    """Kill runs so many times; how many kills of each kind there were, and how many runs were brought to an end."""
    folder, rng, counts = Path(folder), random.Random(seed), Counter()
    subprocess.run([sys.executable, "-m", "fathom", *COMMAND[:-4], "--out", "whole"], cwd=folder, env=environment,
                   check=True, capture_output=True)  # fmt: skip
    untouched = records(folder / "whole")
    assert len(untouched) == ROUNDS
    run = 0
    while sum(counts[kind] for kind in KINDS) < kills or (folder / "run").exists():
        enough = sum(counts[kind] for kind in KINDS) >= kills
        kind = "none" if enough else KINDS[sum(counts[kind] for kind in KINDS) % len(KINDS)]
        if killed_once(folder, kind, rng, environment):
            counts[kind] += 1
            if (folder / "run" / "spec.toml").exists():
                got = records(folder / "run")
                assert got == untouched[: len(got)]
        else:
            assert records(folder / "run") == untouched, "the run came to other records"
            run += 1
            (folder / "run").rename(folder / f"done-{run}")
        tell(counts)
    return counts, run


def main():
    parser = argparse.ArgumentParser(
        description="Kill a run again and again, and see that it comes to the same records."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.after, args.arguments)

    def tell(counts):
        print(f"\r{sum(counts.values())} of {args.kills} kills   ", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        counts, runs = torture(folder, args.kills, args.seed, {**os.environ, "TERM": "dumb"}, tell)
    print(file=sys.stderr)
    print(", ".join(f"{counts[kind]} at a random moment" if kind == "random" else f"{counts[kind]} within the {kind}"
                    for kind in KINDS) + f": {runs} runs, all to the same records")  # fmt: skip
    return None


if __name__ == "__main__":
    main()
