"""Rotary positions and T5's biases as transformers has them, written into a file.

    python -m tests.helpers.positions_of_transformers FILE

In a process of its own: PyTorch's compiler does not load beside TensorFlow. `expected` runs it.
"""

import importlib.util
import sys

import numpy as np

H, T, P = 3, 61, 64
START = 17
CASES = ((10_000.0, 1.0, 61), (10_000.0, 1.0, 8192), (500_000.0, 0.5, 8192))  # base, part, length
BUCKETS = ((32, 128), (16, 100), (64, 1000))
LONG = 1201  # tokens beyond every distance that has a bucket of its own

# Arguments of transformers, by the scaling's name there and what distinguishes it.
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 2048},
    "yarn, not truncated": {
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
        "truncate": False,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
}


def heads():
    return np.random.default_rng(0).normal(size=(2, H, T, P)).astype("float32")


def table(num_buckets):
    return np.random.default_rng(1).normal(size=(num_buckets, H)).astype("float32")


def is_there():
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def write(path):
    import torch
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama import modeling_llama
    from transformers.models.t5.modeling_t5 import T5Attention

    def llama(name, base=10_000.0, part=1.0):
        given = {"rope_theta": base, "partial_rotary_factor": part}
        return transformers.LlamaConfig(
            hidden_size=H * P,
            num_attention_heads=H,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": name.split(",")[0], **given, **SCALINGS[name]},
        )

    found = {}
    for name in list(SCALINGS)[1:]:
        function = ROPE_INIT_FUNCTIONS[name.split(",")[0]]
        for base, part, length in CASES:
            config = llama(name, base, part)
            frequencies, magnitude = function(config, device="cpu", seq_len=length)
            key = f"frequencies {name} {base} {part} {length}"
            found[key] = np.array([*frequencies.numpy(), magnitude])
    for name in SCALINGS:
        x, at = torch.tensor(heads()), torch.arange(START, START + T)[None]
        cos, sin = modeling_llama.LlamaRotaryEmbedding(llama(name))(x, at)
        turned, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
        found[f"turned {name}"] = turned.numpy()
    for num_buckets, max_distance in BUCKETS:
        for bidirectional in (False, True):
            config = transformers.T5Config(
                d_model=H * P,
                num_heads=H,
                is_decoder=not bidirectional,
                relative_attention_num_buckets=num_buckets,
                relative_attention_max_distance=max_distance,
            )
            layer = T5Attention(config, has_relative_attention_bias=True)
            with torch.no_grad():
                layer.relative_attention_bias.weight.copy_(torch.tensor(table(num_buckets)))
                bias = layer.compute_bias(1, LONG, past_seen_tokens=LONG // 2).numpy()
            found[f"bias {num_buckets} {bidirectional}"] = bias
    np.savez(path, **found)


if __name__ == "__main__":
    write(sys.argv[1])
