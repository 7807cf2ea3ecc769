"""Feed damaged and hostile files to everything that reads files; nothing may happen but success or a clear error.

    python tests/fuzz.py [--inputs 20000] [--seed 0] [--only NAME] [--at NUMBER]

Input NUMBER of a kind follows from seed, kind and number alone, so `--only KIND --at NUMBER` makes it again. Each
kind runs in a process of its own, with little memory and a watch on what it opens: a process that dies, hangs, asks
for gigabytes, runs a program or writes outside of its folder counts as a crash. Linux only.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuzz_kinds
from fathom.data.disk import DataError
from fathom.experiment.spec import SpecError

ROOM = 4 << 30  # bytes that an input may ask for; those that ask for too much ask for more
PATIENCE = 30  # seconds for one input
LINE = 3000  # characters of an error
OURS = str(Path(fuzz_kinds.__file__).parents[1] / "src" / "fathom")
RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class", "ctypes.dlopen"}
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}


class Escape(BaseException):
    """Something ran a program, or wrote outside of its folder."""


def watch(folder: Path) -> None:
    """From now on, refuse to run programs and to write outside of `folder`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        paths = [path for path in arguments[:2] if isinstance(path, str | bytes | os.PathLike)]
        if event in RUNS:
            raise Escape(f"{event} {arguments!r:.200}")
        if (opens or event in WRITES) and paths:
            for path in map(os.fsdecode, paths[: 1 if opens else 2]):
                # Names without a folder belong to rmtree, which works with folder handles.
                if "/" in path and not os.path.realpath(path).startswith((str(folder), "/dev/null")):
                    raise Escape(f"{event} {path!r:.200}")

    sys.addaudithook(hook)


def outcome(kind: str, number: int, seed: int, folder: Path) -> str:
    """Feed one input: "accepted", "refused", or what went wrong."""
    rng = random.Random(f"{seed} {kind} {number}")
    source = folder / "in"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    shutil.rmtree(folder / "home", ignore_errors=True)
    entry = fuzz_kinds.KINDS[kind]
    case = entry.make(rng)
    try:
        entry.feed(case, source)
        told = "accepted"
    except (SpecError, DataError, ValueError) as error:
        told = judged(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        told = crash(error)
    left = set(os.listdir(folder)) - {"in", "home"}
    return f"it left {sorted(left)} behind" if left else told


def judged(error: ValueError) -> str:
    """Whether an error is one of ours, in one line of some length, and hides neither a lack of memory nor a blunder."""
    deepest = traceback.extract_tb(error.__traceback__)[-1]
    raised = deepest.filename.startswith(OURS) and "raise ValueError" in (deepest.line or "")
    ours = isinstance(error, SpecError | DataError) or (type(error) is ValueError and raised)
    for cause in chain(error):
        blunder = isinstance(cause, TypeError | AttributeError | LookupError) and not isinstance(cause, UnicodeError)
        at = traceback.extract_tb(cause.__traceback__)[-1].filename
        if isinstance(cause, MemoryError) or (
            blunder and at.startswith(OURS) and f"({type(cause).__name__}:" in str(error)
        ):
            return crash(cause)
    if not ours:
        return crash(error)
    if "\n" in str(error) or not 10 < len(str(error)) < LINE:
        return f"an error of {len(str(error))} characters, not one line: {str(error)[:200]!r}"
    return "refused"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def crash(error: BaseException) -> str:
    """A traceback in one line, the same for crashes at the same place."""
    frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    named = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return f"{named} @ {' > '.join(frames[-4:])}"


def work(kind: str, start: int, stop: int, seed: int, folder: Path, counts: Any, pipe: Any) -> None:
    """Feed inputs, and keep count where the parent sees it: the next number, accepted, refused."""
    warnings.simplefilter("ignore")
    os.environ["FATHOM_DATA"] = str(folder / "home")
    with open("/proc/self/statm") as file:
        room = int(file.read().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    watch(folder)
    for number in range(start, stop):
        counts[0] = number
        told = outcome(kind, number, seed, folder)
        if told in ("accepted", "refused"):
            counts[1 if told == "accepted" else 2] += 1
        else:
            pipe.send((number, told))
    counts[0] = stop


def fuzz(kind: str, start: int, stop: int, seed: int) -> tuple[int, int, dict[str, list[int]]]:
    """How many inputs of a kind were accepted and refused, and the crashes with the inputs that make them."""
    context = multiprocessing.get_context("fork")
    crashes: dict[str, list[int]] = {}
    counts = context.Array("q", [start, 0, 0], lock=False)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        while counts[0] < stop:
            out, into = context.Pipe(duplex=False)
            child = context.Process(target=work, args=(kind, counts[0], stop, seed, folder, counts, into))
            child.start()
            into.close()
            seen, since, hung = counts[0], time.monotonic(), False
            while child.is_alive() or out.poll():
                try:
                    while out.poll(0.2):
                        number, told = out.recv()
                        crashes.setdefault(told, []).append(number)
                except EOFError:
                    break
                if counts[0] != seen:
                    seen, since = counts[0], time.monotonic()
                elif time.monotonic() - since > PATIENCE:
                    hung = True
                    child.kill()
            child.join()
            if counts[0] < stop:
                told = f"no end within {PATIENCE} s" if hung else f"the process ended with {child.exitcode}"
                crashes.setdefault(told, []).append(counts[0])
                counts[0] += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return counts[1], counts[2], crashes


def main() -> int:
    """Fuzz, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=20_000, help="how many in all, shared out over the kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(fuzz_kinds.KINDS), help="one kind")
    parser.add_argument("--at", type=int, help="one input of that kind, with its traceback")
    options = parser.parse_args()
    kinds = [options.only] if options.only else list(fuzz_kinds.KINDS)
    if options.at is not None:
        return again(kinds[0], options.at, options.seed)
    fuzz_kinds.warm()
    each = -(-options.inputs // len(kinds))
    print(f"{'kind':<20}{'inputs':>8}{'accepted':>10}{'refused':>9}{'crashed':>9}{'seconds':>9}")
    failed, totals = False, [0, 0, 0, 0]
    for kind in kinds:
        began = time.monotonic()
        accepted, refused, crashes = fuzz(kind, 0, each, options.seed)
        row = [each, accepted, refused, sum(map(len, crashes.values()))]
        totals = [a + b for a, b in zip(totals, row, strict=True)]
        vacuous = each >= 50 and not (accepted and refused)
        note = "  it shows nothing that all, or none, are accepted" if vacuous else ""
        print(f"{kind:<20}{row[0]:>8,}{row[1]:>10,}{row[2]:>9,}{row[3]:>9,}{time.monotonic() - began:>9.1f}{note}")
        failed |= bool(crashes) or vacuous
        places: dict[str, tuple[str, list[int]]] = {}
        for told, numbers in crashes.items():
            places.setdefault(told.rpartition(" @ ")[2], (told, []))[1].extend(numbers)
        for told, numbers in places.values():
            print(f"  {len(numbers)} x {told}; --only {kind} --seed {options.seed} --at {min(numbers)}")
        sys.stdout.flush()
    print(f"{'all':<20}{totals[0]:>8,}{totals[1]:>10,}{totals[2]:>9,}{totals[3]:>9,}")
    return int(failed)


def again(kind: str, number: int, seed: int) -> int:
    """Make one input again, in this process, and show what comes of it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FATHOM_DATA"] = str(Path(folder) / "home")
        (Path(folder) / "in").mkdir()
        case = fuzz_kinds.KINDS[kind].make(random.Random(f"{seed} {kind} {number}"))
        print(f"{case!r:.2000}")
        fuzz_kinds.KINDS[kind].feed(case, Path(folder) / "in")
        print("accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
