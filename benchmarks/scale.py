"""A training step over devices: what is counted on paper, and what XLA compiles and runs.

    python benchmarks/scale.py                  1, 2 and 8 devices; about five minutes
    python benchmarks/scale.py --layers 6 --width 512 --hidden 2048 --vocabulary 37000

Needs JAX. The devices are simulated: parts of one CPU, which share its cores and its memory. So
times say what splitting costs, and not what devices gain; they are ratios to one device. What XLA
plans holds for any devices: the operations of each, the memory of its arguments (weights and the
optimizer's averages) and of what it computes between, and what it sends, from the sizes of the
collectives in the compiled step, in rings. `paper` is `tfattn.training.step_cost`.
"""

import argparse
import math
import os
import re
import statistics
import time

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import keras
import numpy as np

import tfattn
from tfattn import training

MESHES = ((1, 1), (2, 1), (1, 2), (8, 1), (2, 4), (1, 8))  # devices for rows, and for weights
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1, "f16": 2, "bf16": 2}
COLLECTIVES = {  # what a device sends of an array among k devices, by the size of the output
    "all-reduce": lambda size, k: 2 * size * (k - 1) / k,
    "all-gather": lambda size, k: size * (k - 1) / k,
    "reduce-scatter": lambda size, k: size * (k - 1),
    "all-to-all": lambda size, k: size * (k - 1) / k,
    "collective-permute": lambda size, k: size,
}


def sent(text: str, devices: int) -> int:
    """Bytes that a device sends by a compiled program."""
    total = 0.0
    kinds = "|".join(COLLECTIVES)
    for shapes, kind, rest in re.findall(rf"= (\(.*?\)|\S+) ({kinds})(?:-start)?\((.*)", text):
        size = sum(
            BYTES[dtype] * math.prod(map(int, filter(None, shape.split(","))))
            for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
        )
        total += COLLECTIVES[kind](size, _group_size(rest, devices))
    return round(total)


def _group_size(text, devices):
    """Devices of a group, from `replica_groups={{0,1},{2,3}}` or `[2,4]<=[8]`."""
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(found[1])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return found[1].count(",") + 1
    return devices


def compiled(options, data_parallel, model_parallel):
    """(compiled step, its state, its data) of a model on a mesh of the first devices."""
    count = data_parallel * model_parallel
    devices = np.array(keras.distribution.list_devices()[:count])
    shape, axes = (data_parallel, model_parallel), ("batch", "model")
    mesh = keras.distribution.DeviceMesh(shape, axes, devices=devices)
    layout = training.transformer_layout(mesh)
    distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    with distribution.scope():
        keras.utils.set_random_seed(0)
        model = tfattn.Transformer(
            options.vocabulary,
            num_layers=options.layers,
            width=options.width,
            num_heads=8,
            hidden_dim=options.hidden,
            dropout=0.0,
            share_embeddings=True,
        )
        model.build(((None, None), (None, None)))
        model.compile("adam", tfattn.MaskedCrossentropy())
        model.optimizer.build(model.trainable_variables)
        ids = np.random.default_rng(0).integers(
            1, options.vocabulary, size=(options.rows, options.length)
        )
        place = distribution.get_data_layout(ids.shape).backend_layout
        ids = jax.device_put(ids.astype("int32"), place)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple([variable.value for variable in group] for group in groups)
        shardings = jax.tree.map(lambda array: array.sharding, state)
        step = jax.jit(model.train_step, out_shardings=(None, shardings), donate_argnums=0)
        data = ((ids, ids), ids)
        return step.lower(state, data).compile(), state, data, model.get_config()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rows", type=int, default=32, help="of a batch, on all devices")
    parser.add_argument("--length", type=int, default=32, help="tokens of a row, on either side")
    parser.add_argument("--steps", type=int, default=7, help="to time; 0 for none")
    options = parser.parse_args()
    print("| rows × weights | GFLOP a device | state, MB | between, MB | sent, MB | time |")
    print("|---|---|---|---|---|---|")
    alone = None
    for mesh in MESHES:
        step, state, data, config = compiled(options, *mesh)
        paper = training.step_cost(config, options.rows, options.length, options.length, *mesh)
        memory = step.memory_analysis()
        between = paper.gradients + paper.activations
        took = seconds(step, state, data, options.steps) if options.steps else math.nan
        alone = alone or took
        cells = [
            (step.cost_analysis()["flops"] / 1e9, paper.device_flops / 1e9),
            (memory.argument_size_in_bytes / 1e6, (paper.weights + paper.optimizer) / 1e6),
            (memory.temp_size_in_bytes / 1e6, between / 1e6),
            (sent(step.as_text(), math.prod(mesh)) / 1e6, paper.traffic / 1e6),
        ]
        cells = " | ".join(f"{found:.1f} (paper {counted:.1f})" for found, counted in cells)
        print(f"| {mesh[0]} × {mesh[1]} | {cells} | {took / alone:.2f} |", flush=True)


def seconds(step, state, data, steps):
    """The median time of a step, after one more."""
    times = []
    for _ in range(steps + 1):
        began = time.perf_counter()
        logs, state = step(state, data)
        jax.block_until_ready(state)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
