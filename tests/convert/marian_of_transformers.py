"""Small Marian models with random weights, and what they compute: `python FILE folder`.

In a process of its own: transformers and TensorFlow do not share one.
"""

import importlib.util
import json
import pathlib
import sys

import numpy as np

B, T, S, V, D = 3, 5, 7, 23, 12

MODELS = {
    "swish": {"activation_function": "swish", "scale_embedding": True},
    "two vocabularies": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 29,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
}


def is_there():
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def sources():
    rng = np.random.default_rng(7)
    ids = rng.integers(1, V - 1, size=(B, S))
    ids[0, -3:] = [0, V - 1, V - 1]  # the end, then padding
    ids[1, -1] = 0
    return ids


def targets(start):
    ids = np.random.default_rng(8).integers(0, V - 1, size=(B, T))
    ids[:, 0] = start
    return ids


def taught(model, source, mask):
    """The model after some steps on the sources as their own translations: a model of random
    weights repeats one token for ever.
    """
    import torch

    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if "embed_positions" not in key:
                start = 1.0 if "norm.weight" in key else 0.0
                tensor.copy_(0.3 * torch.randn_like(tensor) + start)
    labels = source.masked_fill(mask == 0, -100)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model(source, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()


def main(folder):
    import torch
    import transformers

    torch.manual_seed(5)
    torch.set_num_threads(1)  # so small a model only waits for more
    for name, options in MODELS.items():
        sides = ("encoder", "decoder")
        config = transformers.MarianConfig(
            vocab_size=V,
            d_model=D,
            **{f"{side}_layers": 2 for side in sides},
            **{f"{side}_ffn_dim": 17 for side in sides},
            **{f"{side}_attention_heads": 3 for side in sides},
            max_position_embeddings=31,
            pad_token_id=V - 1,
            eos_token_id=0,
            decoder_start_token_id=V - 1,
            forced_eos_token_id=None,
            **options,
        )
        model = transformers.MarianMTModel(config).eval()
        source, target = torch.tensor(sources()), torch.tensor(targets(V - 1))
        mask = (source != V - 1).long()
        taught(model, source, mask)
        with torch.no_grad():
            logits = model(source, attention_mask=mask, decoder_input_ids=target).logits
            greedy = model.generate(
                source, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=11
            )
        path = pathlib.Path(folder, name)
        state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
        np.savez(f"{path}.state.npz", **state)
        np.savez(f"{path}.outputs.npz", logits=logits.numpy(), greedy=greedy.numpy())
        pathlib.Path(f"{path}.json").write_text(json.dumps(config.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1])
