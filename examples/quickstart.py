"""Train a small CNN over 300 synthetic writers while it tunes itself: `python examples/quickstart.py`."""

import os

import jax
import optax

import fathom

jax.config.update("jax_num_cpu_devices", os.cpu_count())  # one client per core at a time

task, federation, test = fathom.tasks.load("glyphs")
algorithm = fathom.federated(
    task,
    tuner=fathom.tuners.plumb(),
    client_opt=fathom.optimizers.sgd(),
    server_opt=optax.sgd(1.0),
)
for record in fathom.train(algorithm, federation, key=jax.random.key(0), rounds=100, cohort=10, test=test, every=5):
    if record.metrics:
        lr, epochs, batch = (value[0] for value in record.hparams)  # one value per client, here all the same
        accuracy = record.metrics["accuracy"]
        print(f"round {record.round:3d}: {accuracy=:.3f} with {lr=:.3f} {epochs=:.2f} {batch=:.1f}")
