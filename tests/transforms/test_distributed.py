"""Two processes of `jax.distributed`, two CPU devices each, and one program."""

import os
import pathlib
import socket
import subprocess
import sys

_WORKER = """
import sys
import jax

rank, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(
    f"127.0.0.1:{port}", num_processes=2, process_id=rank, initialization_timeout=60
)
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import cases
import oracle
from jax_transconv import conv_transpose2d

assert jax.process_count() == 2, jax.process_count()
assert len(jax.devices()) == 4, jax.devices()
case = cases.Case("distributed", 4, 4, 6, 16, 5, 4, 4, (2, 2), (1, 1))
data = case.data()
want = case.expected()
mesh = jax.make_mesh((4,), ("a",), (AxisType.Auto,))

def place(array, spec):
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh, spec), lambda index: array[index]
    )

def passes(x, w, b, dy):
    y, pullback = jax.vjp(lambda *a: conv_transpose2d(*a, **case.kwargs), x, w, b)
    return y, *pullback(dy)

for spec in (P("a"), P(None, None, "a")):
    args = (data.x, data.weight, data.bias, data.dy)
    args = [place(a, s) for a, s in zip(args, (spec, P(), P(), spec))]
    run = jax.jit(passes)
    text = run.lower(*args).compile().as_text()
    assert " all-gather" not in text
    assert (" collective-permute" in text) == (len(spec) == 3)
    for name, value in zip(("y", "dx", "dw", "db"), run(*args)):
        expected = want[name]
        for shard in value.addressable_shards:
            part = oracle.Expected(
                expected.value[shard.index],
                expected.scale[shard.index],
                expected.reduction,
            )
            oracle.assert_close(np.asarray(shard.data), part, case.dtype, what=name)
print("right")
"""


def test_two_processes():
    """Cut over the batch and over the height, across the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tests = pathlib.Path(__file__).parents[1]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(
            [str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        results = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            with worker:
                worker.kill()
    for worker, (out, err) in zip(workers, results, strict=True):
        assert worker.returncode == 0, err
        assert out.split()[-1] == "right"
