"""JAX, with its default preallocation, against a memory limit. Prints JSON."""

import json

import jax
import jax.numpy as jnp

MIB = 1 << 20
device = jax.devices("gpu")[0]
pool_bytes = (device.memory_stats() or {}).get("bytes_limit", 0)
held = []
refusal = ""
while not refusal and len(held) < 4000:
    try:
        held.append(jax.block_until_ready(jnp.zeros((16, 1 << 20), dtype=jnp.float32)))
    except Exception as error:
        refusal = type(error).__name__ + ": " + str(error)[:60]
granted = len(held)
del held
works = float(jnp.dot(jnp.ones(1000), jnp.ones(1000))) == 1000.0
print(
    json.dumps(
        {"pool_mib": pool_bytes / MIB, "granted_mib": granted * 64, "refusal": refusal, "works_afterwards": works}
    )
)
