"""What a user waits for: small Keras models with this package's layer over Keras's in its place.

    python benchmarks/models.py                 every row, about a quarter of an hour
    python benchmarks/models.py --quick         whether every row runs, in tiny sizes
    python benchmarks/models.py --case causal

A functional model of four blocks: attention, residual, layer norm. Both models have the same
weights, and their predictions are compared before anything is timed. They take their steps in turns
in this process: a ratio is the median over pairs of steps of tfattn's time over Keras's, and in
parentheses the interval that holds the true median with 95 percent. `train` is `train_on_batch`,
`predict` `predict_on_batch`. The first step is that of a new model in a process of its own, so it
traces and compiles; building is that of the functional model, without a step.

Last, texts of T tokens by greedy search of one model: by `decoding.Stepper` over a pass of all
tokens at each step, and over the model's own cache. The texts are compared.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from peers import Failures, Peer, PeerHere, Work, print_header, print_row, serve

import tfattn

GOAL = 1.0  # of a step's time
FIRST_GOAL, BUILD_GOAL = 1.2, 1.1
HEADS = 4


class Case(NamedTuple):
    """A model and its batch."""

    name: str
    batch: int
    tokens: int
    width: int
    causal: bool = False
    padded: bool = False
    jit: bool = False
    policy: str = "float32"
    blocks: int = 4


STEPS = [
    Case("B 2, T 32, D 64, causal", 2, 32, 64, causal=True),
    Case("B 2, T 32, D 64, no mask", 2, 32, 64),
    Case("B 2, T 32, D 64, causal, XLA", 2, 32, 64, causal=True, jit=True),
    Case("B 32, T 32, D 64, padding and causal", 32, 32, 64, causal=True, padded=True),
    Case("B 32, T 32, D 64, padding", 32, 32, 64, padded=True),
    Case("B 32, T 100, D 128, padding and causal", 32, 100, 128, causal=True, padded=True),
    Case("B 64, T 200, D 64, padding", 64, 200, 64, padded=True),
]
STEPS += [
    case._replace(name=f"{case.name}, mixed_bfloat16", policy="mixed_bfloat16") for case in STEPS
]
FIRST_STEPS = [
    Case(f"first step, causal T 2048, XLA, {blocks} blocks", 1, 2048, 64, True, jit=True)._replace(
        blocks=blocks
    )
    for blocks in (2, 6)
]
TEXTS = [
    Case(f"texts, B {batch}, T {tokens}, D 128", batch, tokens, 128)
    for batch, tokens in ((1, 32), (1, 128), (1, 512), (16, 32), (16, 128))
]
BUILDS = [Case("building, 6 blocks", 2, 32, 64, causal=True, blocks=6)]


def model_of(case: Case, kind: Callable[..., keras.layers.Layer]) -> keras.Model:
    x = inputs = keras.Input((case.tokens, case.width))
    options: dict[str, Any] = {"use_causal_mask": True} if case.causal else {}
    if case.padded:
        # Not by `Masking`: Keras's layer removes the mask of its inputs, so that the residual
        # connection loses it, and from the second block on the model attends to padding.
        options["key_mask"] = keras.ops.any(x != 0, axis=-1)  # (B, T)
    for _ in range(case.blocks):
        attention = kind(num_heads=HEADS, key_dim=case.width // HEADS)
        x = keras.layers.Add()([x, attention(query=x, value=x, **options)])
        x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))


def compiled(case: Case, kind: Callable[..., keras.layers.Layer]) -> keras.Model:
    model = model_of(case, kind)
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=case.jit)
    return model


def batch_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `(B, T, D)`, zero where padded, and targets."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(case.batch, case.tokens, case.width)).astype("float32")
    if case.padded:
        lengths = draw.integers(case.tokens // 2, case.tokens + 1, case.batch)
        x *= (np.arange(case.tokens) < lengths[:, None])[..., None]
    return x, draw.normal(size=(case.batch, case.tokens, 1)).astype("float32")


def in_pairs(ours: Callable[[], Any], theirs: Callable[[], Any], pairs: int) -> list[float]:
    """Ratios of their times, taken in turns; who begins changes from pair to pair."""
    ratios = []
    for pair in range(pairs):
        taken = {}
        for function in (ours, theirs) if pair % 2 else (theirs, ours):
            start = time.perf_counter()
            function()
            taken[function] = time.perf_counter() - start
        ratios.append(taken[ours] / taken[theirs])
    return sorted(ratios)


def told(ratios: list[float], goal: float) -> str:
    """The median, the interval that holds it with 95 percent, and whether the goal is met."""
    away = 0.98 * len(ratios) ** 0.5  # of ranks, from the middle: binomial
    low = ratios[max(0, int(len(ratios) / 2 - away))]
    high = ratios[min(len(ratios) - 1, int(len(ratios) / 2 + away))]
    median = statistics.median(ratios)
    missed = "" if median <= goal else ", missed"
    return f"{median:.2f} ({low:.2f} to {high:.2f}; goal {goal:g}{missed})"


KINDS = tfattn.MultiHeadAttention, keras.layers.MultiHeadAttention
NAMES = "tfattn", "keras"


def compare_steps(case: Case, pairs: int) -> None:
    keras.config.set_dtype_policy(case.policy)
    keras.utils.set_random_seed(0)
    ours, theirs = models = [compiled(case, kind) for kind in KINDS]
    ours.set_weights(theirs.get_weights())
    x, y = batch_of(case)
    predictions = [model.predict_on_batch(x) for model in models]
    tolerance = 1e-4 if case.policy == "float32" else 0.1
    real = np.any(x, axis=-1)  # a padded query is nobody's
    np.testing.assert_allclose(*(p[real] for p in predictions), rtol=tolerance, atol=tolerance)
    train, predict = (
        [lambda model=model: model.train_on_batch(x, y) for model in models],
        [lambda model=model: model.predict_on_batch(x) for model in models],
    )
    cells = []
    for functions in (train, predict):
        in_pairs(*functions, 5)  # compiles, and warms
        cells.append(told(in_pairs(*functions, pairs), GOAL))
    print_row(case.name, *cells)


def first_step(case: Case, name: str) -> Work:
    """The work of a peer: a step of a model that is built, and neither traced nor compiled."""
    model, batch = compiled(case, KINDS[NAMES.index(name)]), batch_of(case)
    return Work([lambda: model.train_on_batch(*batch)], list)


def compare_first_steps(case: Case, pairs: int) -> None:
    def first(name: str) -> float:
        if case not in FIRST_STEPS:  # in small
            peer = PeerHere(name, first_step(case, name))
            peer.step(0)
            return peer.seconds
        with Peer(case.name, name, ("--worker", case.name)) as peer:
            peer.step(0)
            return peer.seconds

    ratios = []
    for pair in range(pairs):
        taken = {name: first(name) for name in (NAMES if pair % 2 else NAMES[::-1])}
        ratios.append(taken["tfattn"] / taken["keras"])
    print_row(case.name, told(sorted(ratios), FIRST_GOAL), "")


def compare_builds(case: Case, pairs: int) -> None:
    functions = [lambda kind=kind: model_of(case, kind) for kind in KINDS]
    in_pairs(*functions, 1)
    print_row(case.name, told(in_pairs(*functions, pairs), BUILD_GOAL), "")


def compare_texts(case: Case, pairs: int) -> None:
    keras.utils.set_random_seed(0)
    sizes = {"width": case.width, "num_heads": HEADS, "hidden_dim": 4 * case.width}
    model = tfattn.CausalLM(1000, num_layers=case.blocks, **sizes)
    prompts = np.ones((case.batch, 1), "int32")
    model(prompts)
    stepper, search = tfattn.decoding.Stepper(model), tfattn.GreedySearch()

    def text(step, state):
        # No token ends a text.
        return np.asarray(search(step, state, case.batch, case.tokens, end_id=1001))

    ours, own, whole = functions = [
        lambda: text(stepper.step, stepper.encode(prompts, case.tokens)),
        lambda: text(model.step, model.encode(prompts, case.tokens)),
        lambda: text(model.step, model.encode(prompts)),
    ]
    texts = [function() for function in functions]  # compiles
    for other in texts[1:]:
        np.testing.assert_array_equal(other, texts[0])
    start = time.perf_counter()
    ours()
    rate = texts[0].size / (time.perf_counter() - start)
    print_row(
        f"{case.name}: {rate:.0f} tokens a second",
        told(in_pairs(ours, whole, max(1, pairs // 4)), GOAL),
        told(in_pairs(ours, own, pairs), BUILD_GOAL),
    )


def smaller(case: Case) -> Case:
    """The case in a size that takes no time."""
    return case._replace(batch=2, tokens=8, width=8, blocks=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="every row, in tiny sizes")
    parser.add_argument("--case", default="", help="only rows with this in their name")
    parser.add_argument("--pairs", type=int, default=80, help="of steps, in each row")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        case, name = options.worker
        return serve(first_step(next(each for each in FIRST_STEPS if each.name == case), name))
    print_header("model", "train", "predict")
    failures = Failures()
    work = [
        (STEPS, compare_steps, options.pairs),
        (FIRST_STEPS, compare_first_steps, 3),
        (BUILDS, compare_builds, max(1, options.pairs // 4)),
        (TEXTS, compare_texts, max(1, options.pairs // 4)),
    ]
    for cases, compare, pairs in work:
        for case in cases:
            if options.case in case.name:
                with failures.of(case.name):
                    compare(smaller(case) if options.quick else case, 1 if options.quick else pairs)
        if cases is BUILDS:
            print_header("text", "over whole passes", "over the model's cache")
    failures.end()


if __name__ == "__main__":
    main()
