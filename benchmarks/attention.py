"""Time and memory of attention layers against their peers.

    python benchmarks/attention.py              every case, about 20 minutes
    python benchmarks/attention.py --quick      whether every case runs, in tiny sizes
    python benchmarks/attention.py --case window --peer torch

Whole layer against whole layer, projections included, in graph mode and float32 where the case does
not say otherwise. Each peer of a case has its own process; they take their steps in turns, so that
what else the machine does slows both. A ratio is tfattn's over the peer's: of the median times, and
of the growth of peak memory from before the first step to after the last. Keras's layer has
tfattn's weights and inputs, and the two outputs are compared at tokens from the whole sequence
before anything is timed. So is KerasHub's, which is Keras's layer with KerasHub's positions in it.
Torch has weights and inputs of the same sizes, but other numbers: its outputs are not compared.
"""

import argparse
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from peers import Failures, Work, measure, print_header, print_row, serve, with_goal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class Case(NamedTuple):
    """One row of the table.

    Goals are ratios against the first peer, and `without_goal` of time against the layer without
    positions; None where there is none.
    """

    name: str
    batch: int
    tokens: int
    heads: int
    width: int  # of a head; the units of an additive score
    mask: str = "none"  # or "causal", "window"
    backward: bool = True
    layer: str = "multi_head"  # or "additive"
    positions: str = "none"  # or "rotary", "alibi", "t5 bias"
    time_goal: float | None = None
    memory_goal: float | None = None
    without_goal: float | None = None
    peers: tuple[str, ...] = ("keras", "torch")
    policy: str = "float32"
    calls: int | None = None  # eager calls in a step; one call of a graph where it is None

    @property
    def features(self) -> int:
        return self.width if self.layer == "additive" else self.heads * self.width


CASES = [
    Case("causal T 4096, forward", 1, 4096, 8, 64, "causal", False, time_goal=0.60),
    Case("causal T 4096", 1, 4096, 8, 64, "causal", time_goal=0.55, memory_goal=0.08),
    Case("no mask T 4096", 1, 4096, 8, 64, time_goal=0.95, memory_goal=0.10),
    # Keras would need over 30 GB here: the peer is tfattn itself at T 4096.
    Case("causal T 16384", 1, 16384, 8, 64, "causal", time_goal=17.0, peers=("T 4096",)),
    Case(
        "window 256 T 8192",
        1,
        8192,
        8,
        64,
        "window",
        time_goal=0.15,
        memory_goal=0.03,
        peers=("keras",),
    ),
    Case(
        "additive T 1024, forward",
        2,
        1024,
        1,
        256,
        "none",
        False,
        "additive",
        0.25,
        peers=("keras",),
    ),
    Case(
        "additive T 1024", 2, 1024, 1, 256, "none", True, "additive", 0.30, 0.02, peers=("keras",)
    ),
    Case("B 32 T 128", 32, 128, 8, 64, time_goal=1.0),
    Case("causal B 32 T 128", 32, 128, 8, 64, "causal", time_goal=1.0),
    Case("B 64 T 24", 64, 24, 4, 32, time_goal=0.80),
]
# Linear time: each length against half of it.
CASES += [
    Case(
        f"window 256 T {2**n}",
        1,
        2**n,
        8,
        64,
        "window",
        time_goal=2.2,
        peers=(f"T {2 ** (n - 1)}",),
    )
    for n in range(11, 16)
]

# What KerasHub and others hold for positions: turned copies of queries and keys, or T × T biases.
CASES += [
    Case(
        f"{positions}, causal T 4096",
        1,
        4096,
        8,
        64,
        "causal",
        positions=positions,
        time_goal=0.80,
        memory_goal=0.10,
        without_goal=1.15,
        peers=("keras_hub", "without"),
    )
    for positions in ("rotary", "alibi", "t5 bias")
]
# What positions cost at four times the length, against the same layer without them.
CASES += [
    Case(
        f"{positions}, causal T 16384",
        1,
        16384,
        8,
        64,
        "causal",
        positions=positions,
        time_goal=1.15,
        memory_goal=1.3,
        peers=("without",),
    )
    for positions in ("rotary", "alibi", "t5 bias")
]
# Half precision, also against our own layer in float32, and what a short eager call costs.
HALF = {"policy": "mixed_bfloat16", "peers": ("keras", "float32")}
CASES += [
    Case("causal T 2048, mixed_bfloat16", 1, 2048, 8, 64, "causal", **HALF),
    Case("causal T 4096, mixed_bfloat16", 1, 4096, 8, 64, "causal", **HALF),
    Case("no mask T 2048", 1, 2048, 8, 64, time_goal=1.0, peers=("keras",)),
    Case("no mask T 2048, mixed_bfloat16", 1, 2048, 8, 64, time_goal=1.0, **HALF),
]
EAGER = {"backward": False, "time_goal": 1.0, "peers": ("keras",), "calls": 100}
CASES += [
    Case("eager B 1 T 8, forward", 1, 8, 2, 8, **EAGER),
    Case("eager causal B 1 T 8, forward", 1, 8, 2, 8, "causal", **EAGER),
]

WINDOW = 256


def keras_step(case: Case, ours: bool) -> Callable[[], np.ndarray]:
    """One step of the layer of Keras or, where `ours`, of tfattn."""
    import keras
    import tensorflow as tf

    import tfattn

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(case.policy)
    layer, arguments = _layer(case, tfattn if ours else None, keras)
    shape = (case.batch, case.tokens, case.features)
    inputs = tf.random.stateless_normal(shape, (1, 2))
    call = (
        (lambda x: layer([x, x]))
        if case.layer == "additive" and not ours
        else (lambda x: layer(x, x, **arguments))
    )
    call(inputs[:, :4])  # builds
    layer.set_weights(_weights(case, layer, ours))

    @tf.function
    def forward(x):
        return call(x)

    @tf.function
    def both_ways(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(call(x)))
        # The function returns all of them: TensorFlow would not compute the others.
        return tape.gradient(loss, [x, *layer.trainable_variables])

    if case.calls:
        return lambda: [call(inputs) for _ in range(case.calls)][-1].numpy()
    if case.backward:
        return lambda: both_ways(inputs)[0].numpy()
    return lambda: forward(inputs).numpy()


def _layer(case: Case, tfattn: ModuleType | None, keras: ModuleType) -> tuple[Any, dict[str, Any]]:
    """The layer, and what it is called with beside its inputs."""
    if case.layer == "additive":
        return (
            tfattn.AdditiveAttention(units=case.width)
            if tfattn
            else keras.layers.AdditiveAttention()
        ), {}
    causal = {"use_causal_mask": True} if case.mask == "causal" else {}
    if tfattn is None and case.positions != "none":
        from keras_hub_positions import LAYERS

        return LAYERS[case.positions](case.heads, case.width), causal
    if tfattn is None:
        window = {"sliding_window": WINDOW} if case.mask == "window" else {}
        return keras.layers.MultiHeadAttention(case.heads, case.width, **window), causal
    window = {"attention_mask": tfattn.masks.window(WINDOW)} if case.mask == "window" else {}
    positions = {
        "none": lambda: None,
        "rotary": tfattn.RotaryPositions,
        "alibi": tfattn.AlibiPositions,
        "t5 bias": lambda: tfattn.RelativePositionBias(bidirectional=False),
    }[case.positions]()
    layer = tfattn.MultiHeadAttention(case.heads, case.width, positions=positions)
    return layer, {**causal, **window}


def _weights(case: Case, layer: Any, ours: bool) -> list[np.ndarray]:
    """The same numbers for both layers."""
    generator = np.random.default_rng(3)
    if case.layer == "additive":
        # Keras's layer has no projections; ours are the identity.
        scale = generator.normal(size=case.width, scale=0.1)
        shapes = [weight.shape for weight in layer.get_weights()]
        return [
            np.eye(case.width) if shape == (case.width,) * 2 else scale.reshape(shape)
            for shape in shapes
        ]
    return [generator.normal(size=weight.shape, scale=0.05) for weight in layer.get_weights()]


def torch_step(case: Case) -> Callable[[], np.ndarray]:
    """One step of the same layer with torch's fused attention."""
    import torch

    generator = torch.Generator().manual_seed(1)
    width = case.features
    inputs = torch.randn(
        case.batch, case.tokens, width, generator=generator, requires_grad=case.backward
    )
    random = np.random.default_rng(3)
    maps = [torch.nn.Linear(width, width) for _ in range(4)]
    with torch.no_grad():
        for linear in maps:
            linear.weight.copy_(torch.as_tensor(random.normal(size=(width, width), scale=0.05)))

    def heads(x):
        return x.unflatten(-1, (case.heads, case.width)).transpose(1, 2)  # (B, H, T, D)

    def forward():
        query, key, value = (heads(linear(inputs)) for linear in maps[:3])
        attend = torch.nn.functional.scaled_dot_product_attention
        pooled = attend(query, key, value, is_causal=case.mask == "causal")
        return maps[3](pooled.transpose(1, 2).flatten(2))

    def both_ways():
        for tensor in (inputs, *(p for linear in maps for p in linear.parameters())):
            tensor.grad = None
        forward().square().sum().backward()
        return inputs.grad.numpy()

    def without_gradient():
        with torch.no_grad():
            return forward().numpy()

    return both_ways if case.backward else without_gradient


def smaller(case: Case) -> Case:
    """The case in a size that takes no time."""
    calls = None if case.calls is None else 2
    return case._replace(batch=1, tokens=8, heads=2, width=8, calls=calls)


def work_of(case: Case, peer: str, quick: bool = False) -> Work:
    """The work of a peer."""
    if peer.startswith("T "):
        case = case._replace(tokens=int(peer[2:]))
    if peer == "without":
        case = case._replace(positions="none")
    if peer == "float32":
        case = case._replace(policy="float32")
    theirs = peer in ("keras", "keras_hub")
    streams = quick and case.tokens >= 1024
    case = smaller(case) if quick else case
    step = torch_step(case) if peer == "torch" else keras_step(case, ours=not theirs)
    if streams and not theirs and peer != "torch":  # in small too
        step = functools.partial(streamed, step)
    # The first step traces and compiles. Its numbers come from the whole sequence: the first tokens
    # of a causal one see few keys, and the last ones see every block.
    every = max(1, case.tokens // 16)
    return Work([step], lambda: [float(x) for x in step()[:, ::every, :8].ravel()])


def streamed(step: Callable[[], np.ndarray]) -> np.ndarray:
    """The step, block by block whatever its size."""
    import tfattn

    with tfattn.attention_path("streamed"):
        return step()


def available(peer: str) -> bool:
    if peer not in ("torch", "keras_hub"):
        return True
    import importlib.util

    return importlib.util.find_spec(peer) is not None


def compare(case: Case, index: int, name: str, options: argparse.Namespace) -> None:
    """Prints the row of a case and a peer."""
    exact = case.policy == "float32"
    tolerance = (1e-3 if exact else 0.1) if name in ("keras", "keras_hub") else None
    here = functools.partial(work_of, case, quick=True) if options.quick else None
    ours, peer = measure(
        case.name, ("tfattn", name), ("--worker", index), options.pairs, tolerance, here
    )
    goals = case.time_goal, case.memory_goal
    goals = goals if name == case.peers[0] else (None, None)
    goals = (case.without_goal, None) if name == "without" and case.without_goal else goals
    goals = (None, None) if options.quick else goals
    ratios = ours.seconds / peer.seconds, ours.growth / max(peer.growth, 1e-3)
    time_ratio, memory_ratio = map(with_goal, ratios, goals)
    cells = [titled(case), name, f"{1e3 * ours.seconds:.1f} ms", f"{1e3 * peer.seconds:.1f} ms"]
    growth = [f"{ours.growth:.2f} GB", f"{peer.growth:.2f} GB"]
    print_row(*cells, time_ratio, *growth, memory_ratio)


def titled(case: Case) -> str:
    return case.name if case.name.endswith("forward") else f"{case.name}, forward and backward"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="every case, in tiny sizes")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--peer", choices=["keras", "keras_hub", "torch"], help="only this peer")
    parser.add_argument("--pairs", type=int, default=9, help="least number of steps of each peer")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        index, peer = options.worker
        return serve(work_of(CASES[int(index)], peer))
    print_header(
        "case", "peer", "tfattn", "peer", "time ratio", "tfattn grows", "peer grows", "memory ratio"
    )
    failures = Failures()
    for index, case in enumerate(CASES):
        if options.case not in titled(case):
            continue
        for name in case.peers:
            if available(name) and options.peer in (None, name):
                with failures.of(f"{titled(case)}, {name}"):
                    compare(case, index, name, options)
    failures.end()


if __name__ == "__main__":
    main()
