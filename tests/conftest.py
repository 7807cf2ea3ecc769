from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 2)
# Programs compiled by one test, worker or run serve the others.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
