import os
from pathlib import Path

import jax

# Most of the tests' time is XLA compiling small programs, which it does three times as fast without its optimisations.
# `XLA_FLAGS= pytest` tests with what users have.
if "XLA_FLAGS" not in os.environ:
    quick = "--xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""
    os.environ["XLA_FLAGS"] = f"{quick} --xla_backend_optimization_level=0"

jax.config.update("jax_num_cpu_devices", 2)
# Programs compiled by one test, worker or run serve the others.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)

if os.environ["XLA_FLAGS"].endswith("=0"):
    jax.devices()  # from here on the flags are set, and
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].split(" ")[0]  # commands, which train for longer, are optimised
