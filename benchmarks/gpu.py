"""Attention on a GPU, with JAX or PyTorch, against the backend's own.

    KERAS_BACKEND=jax python benchmarks/gpu.py
    KERAS_BACKEND=torch python benchmarks/gpu.py --case window
    KERAS_BACKEND=torch python benchmarks/gpu.py --quick        small, in float32; a CPU will do

`tfattn.attend` against `jax.nn.dot_product_attention` (cuDNN's on a GPU, where it takes the case),
or against `torch.nn.functional.scaled_dot_product_attention` and, on a GPU, FlexAttention. And a
training step of a Transformer against the same one with the dense path. Each peer has its own
process; they take their steps in turns. A ratio is tfattn's over the peer's: of the median times,
and of the growth of peak memory, the device's where there is a GPU. All get the same numbers, and
samples of their outputs are compared before anything is timed.
"""

import argparse
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from peers import (
    Failures,
    Work,
    measure,
    print_header,
    print_row,
    process_memory,
    serve,
    with_goal,
)

BACKEND = os.environ.setdefault("KERAS_BACKEND", "jax")
# Else the first of the processes would take most of the GPU's memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
PEERS = {"jax": ["jax"], "torch": ["sdpa", "flex"]}
LENGTHS = (4096, 16384, 65536)
WINDOW, DOCUMENTS = 1024, 8
HEADS, WIDTH = 8, 64


class Case(NamedTuple):
    """A row of the table."""

    name: str  # of the mask, or of the bias
    tokens: int
    backward: bool = True

    @property
    def title(self) -> str:
        return f"{self.name} T {self.tokens}" + (
            ", forward and backward" if self.backward else ", forward"
        )


def cases(length: int) -> list[Case]:
    names = ("none", "causal", "window", "documents", "alibi")
    found = [Case(name, length, backward) for name in names for backward in (False, True)]
    return [*found, Case("transformer", length)]


def on_gpu() -> bool:
    if BACKEND == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import torch

    return torch.cuda.is_available()


def device_name() -> str:
    if BACKEND == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def device_memory() -> float:
    """Peak memory of the device in GB."""
    if BACKEND == "jax":
        import jax

        return jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e9
    import torch

    return torch.cuda.max_memory_allocated() / 1e9


def documents(tokens: int) -> np.ndarray:
    """The document of each token, `(1, T)`: of unequal lengths, in order."""
    starts = np.sort(np.random.default_rng(2).integers(0, tokens, DOCUMENTS - 1))
    return np.searchsorted(starts, np.arange(tokens), side="right")[None].astype("int32")


def ours(case: Case) -> Callable[..., Any]:
    import tfattn
    from tfattn import biases, masks

    mask = {
        "none": lambda: None,
        "causal": masks.causal,
        "window": lambda: masks.causal() & masks.window(WINDOW),
        "documents": lambda: masks.causal() & masks.segments(documents(case.tokens)),
        "alibi": masks.causal,
    }[case.name]()
    bias = biases.alibi(HEADS) if case.name == "alibi" else None
    return lambda q, k, v: tfattn.attend(
        query=q, key=k, value=v, mask=mask, bias=bias, path="streamed"
    )


def rules(case: Case) -> tuple[Any, Any]:
    """The mask `(T, S)` and the bias `(H, T, S)` as tensors, as a peer without rules needs them."""
    from keras import ops

    queries = ops.arange(case.tokens, dtype="int32")[:, None]
    distances = queries - ops.arange(case.tokens, dtype="int32")
    mask = distances >= 0
    if case.name == "window":
        mask = ops.logical_and(mask, distances < WINDOW)
    if case.name == "documents":
        of = ops.convert_to_tensor(documents(case.tokens))
        mask = ops.logical_and(mask, ops.transpose(of) == of)
    if case.name != "alibi":
        return mask, None
    slopes = ops.convert_to_tensor(-slopes_of_heads()[:, None, None], dtype())
    return mask, slopes * ops.cast(ops.abs(distances), dtype())


def slopes_of_heads() -> np.ndarray:
    return 2.0 ** (-8 / HEADS * np.arange(1, HEADS + 1))


def theirs(case: Case, peer: str) -> Callable[..., Any] | None:
    """The peer's attention; None where it has none for the case."""
    if peer == "jax":
        return _theirs_of_jax(case)
    if peer == "sdpa":
        return _sdpa(case)
    return _flex(case) if on_gpu() else None


def _theirs_of_jax(case):
    import jax

    options = {"is_causal": case.name != "none"}
    if case.name == "window":
        options["local_window_size"] = (WINDOW - 1, 0)
    if case.name in ("documents", "alibi"):
        mask, bias = rules(case)
        options = {"mask": mask[None, None]}
        if bias is not None:
            options = {"is_causal": True, "bias": bias[None]}
    implementation = "cudnn" if on_gpu() else "xla"

    def attend(query, key, value):
        by_token = [x.swapaxes(1, 2) for x in (query, key, value)]
        found = jax.nn.dot_product_attention(*by_token, **options, implementation=implementation)
        return found.swapaxes(1, 2)

    return attend


def _sdpa(case):
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    if case.name in ("none", "causal"):
        return functools.partial(_by_torch, attend, is_causal=case.name == "causal")
    mask, bias = rules(case)
    if bias is not None:
        mask = bias.masked_fill_(~mask, float("-inf"))
    return functools.partial(_by_torch, attend, attn_mask=mask[None])


def _by_torch(attend, query, key, value, **options):
    return attend(query, key, value, **options)


def _flex(case):
    import torch
    from torch.nn.attention import flex_attention as flex

    (of,) = torch.as_tensor(documents(case.tokens), device=torch_device())
    slopes = torch.as_tensor(slopes_of_heads(), dtype=torch.float32, device=torch_device())

    def visible(b, h, q, k):
        seen = q >= k
        if case.name == "window":
            seen = seen & (q - k < WINDOW)
        return seen & (of[q] == of[k]) if case.name == "documents" else seen

    def with_bias(score, b, h, q, k):
        return score - slopes[h] * (q - k)

    plan = None
    if case.name != "none":
        tokens = case.tokens
        plan = flex.create_block_mask(visible, None, None, tokens, tokens, device=torch_device())
    bias = with_bias if case.name == "alibi" else None
    attend = torch.compile(flex.flex_attention)
    return lambda q, k, v: attend(q, k, v, score_mod=bias, block_mask=plan)


def torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype() -> str:
    return "bfloat16" if on_gpu() else "float32"


def step_of(case: Case, attend: Callable[..., Any]) -> Callable[[], np.ndarray]:
    """A step: some numbers of the output, or of the gradient of the query."""
    draw = np.random.default_rng(1).normal
    arrays = [draw(size=(1, HEADS, case.tokens, WIDTH)).astype("float32") for _ in range(3)]
    every = slice(None, None, max(1, case.tokens // 16))
    if BACKEND == "jax":
        import jax

        operands = [jax.numpy.asarray(x, dtype()) for x in arrays]
        run = attend
        if case.backward:
            run = jax.grad(lambda *x: (attend(*x).astype("float32") ** 2).sum(), (0, 1, 2))
        run = jax.jit(run)

        def step():
            found = jax.block_until_ready(run(*operands))
            found = found[0] if case.backward else found
            return np.asarray(found[:, :, every, :4].astype("float32"))

        return step
    import torch

    operands = [
        torch.as_tensor(x, dtype=getattr(torch, dtype()), device=torch_device()) for x in arrays
    ]
    for x in operands:
        x.requires_grad_(case.backward)

    def step():
        with torch.set_grad_enabled(case.backward):
            found = attend(*operands)
            if case.backward:
                found = torch.autograd.grad((found.float() ** 2).sum(), operands)[0]
        return found[:, :, every, :4].float().cpu().numpy()

    return step


def transformer_step(case: Case, path: str) -> Callable[[], np.ndarray]:
    """A training step of a Transformer whose attention takes one path."""
    import keras

    import tfattn

    keras.utils.set_random_seed(1)
    if on_gpu():
        keras.config.set_dtype_policy("mixed_bfloat16")
    width = HEADS * WIDTH // 4
    model = tfattn.CausalLM(500, num_layers=2, width=width, num_heads=HEADS, hidden_dim=4 * width)
    model.compile("adam", tfattn.MaskedCrossentropy())
    ids = np.random.default_rng(1).integers(1, 500, (2, case.tokens + 1))

    def step():
        with tfattn.attention_path(path):
            loss = model.train_on_batch(ids[:, :-1], ids[:, 1:])
        return np.asarray(loss, "float32")

    return step


def worker(case: Case, peer: str) -> None:
    import tfattn  # noqa: F401  so that it does not count as memory

    memory = device_memory if on_gpu() else process_memory
    before = memory()  # a peer's mask or bias as an array counts
    if case.name == "transformer":
        step = transformer_step(case, "streamed" if peer == "tfattn" else "dense")
    else:
        step = step_of(case, ours(case) if peer == "tfattn" else theirs(case, peer))
    serve(Work([step], lambda: [float(x) for x in step().ravel()], memory, before))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short sequences, few repetitions")
    parser.add_argument("--tokens", type=int, help="this length alone")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--pairs", type=int, default=9, help="least number of steps of each peer")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if BACKEND not in PEERS:
        parser.error(f"KERAS_BACKEND must be one of {', '.join(PEERS)}, not {BACKEND}")
    if options.worker:
        length, index, peer = options.worker
        return worker(cases(int(length))[int(index)], peer)
    print(f"{BACKEND} on {device_name()}, {dtype()}\n")
    print_header("case", "peer", "time ratio", "memory ratio", "tfattn grows", "peer grows")
    failures = Failures()
    lengths = [options.tokens] if options.tokens else [256] if options.quick else LENGTHS
    for length in lengths:
        for index, case in enumerate(cases(length)):
            if options.case in case.title and (case.name != "transformer" or length == lengths[0]):
                with failures.of(case.title):
                    compare(case, index, 3 if options.quick else options.pairs)
    failures.end()


def compare(case: Case, index: int, pairs: int) -> None:
    """Prints the case's rows."""
    for peer in ["dense"] if case.name == "transformer" else PEERS[BACKEND]:
        if peer == "flex" and not on_gpu():
            continue
        arguments = ("--worker", case.tokens, index)
        tolerance = 0.05 if on_gpu() else 1e-3
        try:
            mine, other = measure(case.title, ("tfattn", peer), arguments, pairs, tolerance)
        except RuntimeError as error:  # its process died, as a rule out of memory
            print_row(case.title, peer, str(error).strip().splitlines()[-1][:80], "", "", "")
            continue
        ratios = [mine.seconds / other.seconds, mine.growth / max(other.growth, 1e-3)]
        grown = [f"{each.growth:.2f} GB" for each in (mine, other)]
        print_row(case.title, peer, *(with_goal(x, None) for x in ratios), *grown)


if __name__ == "__main__":
    main()
