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
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import orbax.checkpoint  # noqa: F401  once, for all copies of this process

from fathom.cli import app
from fathom.experiment import run, store  # noqa: F401

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
    if kind == "checkpoint":
        kill_in_checkpoint("run", after)
    if kind == "append":
        kill_in_append(after)
    app(arguments, prog_name="fathom")


class Started:
    """The command in a process of its own: a copy of this one, in which all is imported and nothing has begun."""

    def __init__(self, folder, kind, after, arguments):
        self.code = None
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.chdir(folder)
            log = os.open("log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            child(kind, after, arguments)
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            traceback.print_exc()
            os._exit(99)
        os._exit(0)

    def poll(self, flags=os.WNOHANG):
        """Its exit code, negative for a signal; None while it goes on."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, flags)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        return self.poll(0)


def records(out):
    """A run's records without the time they took; an error if any line is torn or there twice."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in store.read_rows(out)]


def killed_once(folder, kind, rng):
    """Start or resume the run and kill it; whether it was killed before its end."""
    out = folder / "run"
    arguments = ("run", "--resume", "run", "--checkpoint-every", "0") if (out / "spec.toml").exists() else COMMAND
    process = Started(folder, kind, rng.randrange(8), arguments)
    if kind == "random":
        before = (out / "records.jsonl").stat().st_mtime_ns if (out / "records.jsonl").exists() else 0
        if rng.random() < 0.9:  # most of them once it trains, the others anywhere after the start
            while process.poll() is None:
                path = out / "records.jsonl"
                if path.exists() and path.stat().st_mtime_ns != before and path.stat().st_size:
                    break
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 1.0))
        else:
            time.sleep(rng.uniform(0, 4.0))
        process.kill()
    code = process.wait()
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit code {code}: {(folder / 'log.txt').read_text()[-2000:]}")
    return code != 0


def torture(folder, kills, seed, tell=lambda counts: None):
    """Kill runs so many times; how many kills of each kind there were, and how many runs were brought to an end."""
    folder, rng, counts = Path(folder), random.Random(seed), Counter()
    assert Started(folder, "none", 0, [*COMMAND[:-4], "--out", "whole"]).wait() == 0
    untouched = records(folder / "whole")
    assert len(untouched) == ROUNDS
    done = 0
    while sum(counts[kind] for kind in KINDS) < kills or (folder / "run").exists():
        enough = sum(counts[kind] for kind in KINDS) >= kills
        kind = "none" if enough else KINDS[sum(counts[kind] for kind in KINDS) % len(KINDS)]
        if killed_once(folder, kind, rng):
            counts[kind] += 1
            if (folder / "run" / "spec.toml").exists():
                got = records(folder / "run")
                assert got == untouched[: len(got)]
        else:
            assert records(folder / "run") == untouched, "the run came to other records"
            done += 1
            (folder / "run").rename(folder / f"done-{done}")
        tell(counts)
    return counts, done


def main():
    parser = argparse.ArgumentParser(
        description="Kill a run again and again, and see that it comes to the same records."
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ["TERM"] = "dumb"

    def tell(counts):
        print(f"\r{sum(counts.values())} of {args.kills} kills   ", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        counts, runs = torture(folder, args.kills, args.seed, tell)
    print(file=sys.stderr)
    print(", ".join(f"{counts[kind]} at a random moment" if kind == "random" else f"{counts[kind]} within the {kind}"
                    for kind in KINDS) + f": {runs} runs, all to the same records")  # fmt: skip


if __name__ == "__main__":
    main()
