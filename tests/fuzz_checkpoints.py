"""Feed damaged checkpoints to the reader: each is read as it was, or refused with an error of our own.

    python tests/fuzz_checkpoints.py [--inputs 2000] [--seed 0]

Apart from `fuzz.py`, because the library that reads the arrays cannot be used in a forked process.
"""

import argparse
import json
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fathom
from fathom.experiment import checkpoint
from fathom.experiment import spec as specs
from fuzz_files import Files, put
from fuzz_mutations import as_json, bent, damaged


@cache
def checkpointed() -> tuple[Files, Any]:
    """The files of a checkpoint, and what is needed to read it again."""
    task = fathom.Task(lambda key: jnp.zeros(3), lambda p, batch, key: (p - batch["x"]).sum(-1), lambda p, batch: {})
    hparams = fathom.HParams(0.1, 1.0, 2.0)
    algorithm = fathom.federated(task, tuner=fathom.tuners.fathom(), hparams=hparams)
    federation = fathom.Federation.from_arrays({"a": {"x": np.ones((2, 3), np.float32)}})
    told = {"fathom": "0", "jax": "0", "devices": ["cpu"]}
    facts = checkpoint.facts(specs.resolve({"rounds": 2}), federation, told)
    keys = jax.random.key(0)[None]
    with tempfile.TemporaryDirectory() as folder:
        options = {"key": keys, "rounds": 1, "cohort": 1, "snapshots": 0}
        (record,) = fathom.train(algorithm, federation, **options)
        with checkpoint.Writer(Path(folder), facts) as writer:
            writer.save(record.snapshot)
        paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return files, lambda out: checkpoint.load(out, algorithm, keys, 1, facts, None)


def saved(rng: Random) -> Files:
    files = dict(checkpointed()[0])
    for name in rng.sample(list(files), rng.choice((1, 1, 2))):
        if name.endswith("facts/metadata") and rng.random() < 0.7:
            files[name] = as_json(bent(rng, json.loads(files[name])))
        elif rng.random() < 0.1:
            del files[name]
        else:
            files[name] = damaged(rng, files[name])
    return files


def fuzz(inputs: int, seed: int) -> Counter:
    """How many were accepted and refused; anything else is raised."""
    counts, read, rng = Counter(), checkpointed()[1], Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        put(checkpointed()[0], out)
        good = jax.tree.map(np.asarray, jax.tree.leaves(read(out).snapshot._replace(states=())))
        for _ in range(inputs):
            shutil.rmtree(out)
            put(saved(rng), out)
            try:
                found = read(out)
                assert found is None or jax.tree.leaves(found.snapshot._replace(states=())) == good
                counts["none found" if found is None else "accepted"] += 1
            except specs.SpecError as error:
                counts["refused" if len(str(error).splitlines()) == 1 else "refused at length"] += 1
            outside = set(Path(folder).iterdir()) - {out}
            assert not outside, outside
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed damaged checkpoints to the reader.")
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = fuzz(args.inputs, args.seed)
    print(f"{sum(counts.values()):,} checkpoints: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
