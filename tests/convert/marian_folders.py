"""Small folders as published translators have them, and what `transformers` makes of them:
`python -m tests.convert.marian_folders FOLDER`, in a process of its own, since transformers and
TensorFlow do not share one.
"""

import importlib.util
import io
import json
import pathlib
import random
import sys

import numpy as np

NUM_BEAMS, LONGEST, MARGIN, FIRST = 6, 63, 1e-3, 9
CODES = [">>fra<<", ">>deu<<"]
SIZES = {"layers": 2, "ffn_dim": 32, "attention_heads": 4}

# From a name to: whether source and target share their vocabulary, steps of training, sentences.
FOLDERS = {"one-vocabulary": (True, 200, 60), "two-vocabularies": (False, 200, 32)}


def is_there():
    needed = ("torch", "transformers", "sentencepiece", "safetensors")
    return all(importlib.util.find_spec(name) for name in needed)


def words(seed):
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "é")]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(400)]


def sentences(count):
    """Of 1 to 40 tokens; with codes, ligatures, wide letters, unknown characters and spaces."""
    rng = random.Random(3)
    own, odd = words(1), ["Ｋａ", "ﬁ", "☃", "x  y", "<unk2>", "ma.", "né,", ">>fra<<"]
    found = [">>fra<<", "ba", ">>deu<<ba"]
    for i in range(count - len(found)):
        some = rng.choices(own, k=1 + i % 12)
        if i % 5 == 0:
            some[rng.randrange(len(some))] = rng.choice(odd)
        code = rng.choice([*CODES, ">>xyz<<"]) + " " if i % 3 == 0 else ""
        found.append(code + " ".join(some))
    return found


def pieces(seed):
    """A sentencepiece model, as bytes, and its pieces."""
    import sentencepiece

    rng, own, model = random.Random(seed), words(seed), io.BytesIO()
    lines = [" ".join(rng.choices(own, k=rng.randint(1, 12))) + " ." for _ in range(600)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=110,
        minloglevel=2,
        normalization_rule_name="nmt_nfkc",
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), [processor.id_to_piece(i) for i in range(len(processor))]


def table(found):
    """From a piece to its id: the end and the unknown first, padding last."""
    ordinary = [piece for piece in dict.fromkeys(found) if piece not in ("<unk>", "<s>", "</s>")]
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *ordinary, "<pad>"])}


def write_tokenizer(folder, shared):
    """Writes the files of `MarianTokenizer`; returns the size of each vocabulary."""
    (source, of_source), (target, of_target) = pieces(1), pieces(2)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    if shared:
        tables = {"vocab.json": table([*CODES, *of_source, *of_target])}
    else:
        tables = {"vocab.json": table(of_source), "target_vocab.json": table(of_target)}
    size = min(map(len, tables.values()))  # the same padding on both sides
    settings = {"source_lang": "en", "target_lang": "fr", "separate_vocabs": not shared}
    settings["clean_up_tokenization_spaces"] = not shared
    for name, content in (*tables.items(), ("tokenizer_config.json", settings)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return size


def config(size, shared):
    return {
        "model_type": "marian",
        "vocab_size": size,
        "decoder_vocab_size": size,
        "d_model": 16,
        **{f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()},
        "max_position_embeddings": 128,
        "activation_function": "swish" if shared else "gelu",
        "scale_embedding": shared,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": shared,
        "pad_token_id": size - 1,
        "decoder_start_token_id": size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }


def generation(size, shared):
    """As published, for one vocabulary: other tokens get the probability of padding."""
    return {
        "bad_words_ids": [[size - 1]],
        "decoder_start_token_id": size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "pad_token_id": size - 1,
        "max_length": LONGEST + 1,
        "num_beams": NUM_BEAMS,
        "renormalize_logits": shared,
        "forced_bos_token_id": None if shared else FIRST,
    }


def rows_of(ids, filling):
    import torch

    longest = max(map(len, ids))
    return torch.tensor([row + [filling] * (longest - len(row)) for row in ids])


def randomize(model):
    """Weights that no initializer gives."""
    import torch

    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if "embed_positions" not in key:
                start = 1.0 if "norm.weight" in key else 0.0
                tensor.copy_(0.3 * torch.randn_like(tensor) + start)


def teach(model, sources, steps):
    """Some steps on made-up translations: a model of random weights repeats one token for ever."""
    import torch

    size, padding = model.config.vocab_size, model.config.pad_token_id
    targets = [
        [*(2 + 7 * token % (size - 3) for token in row[: len(row) * 2 // 3]), 0] for row in sources
    ]
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    rng = random.Random(0)
    for _ in range(steps):
        batch = rng.sample(range(len(sources)), 32)
        source = rows_of([sources[i] for i in batch], padding)
        labels = rows_of([targets[i] for i in batch], -100)
        optimizer.zero_grad()
        model(source, attention_mask=(source != padding).long(), labels=labels).loss.backward()
        optimizer.step()
    model.final_logits_bias[0, padding] = 3.0  # often the best, were it not forbidden


def generated(model, tokenizer, lines, processors=()):
    """(Rows of ids from the first to the end, texts)."""
    import torch

    ids, texts, padding = [], [], model.config.pad_token_id
    for i in range(0, len(lines), 50):
        batch = tokenizer(lines[i : i + 50], return_tensors="pt", padding=True)
        with torch.no_grad():
            rows = model.generate(**batch, logits_processor=list(processors))
        texts += tokenizer.batch_decode(rows, skip_special_tokens=True)
        ids += [[token for token in row[1:] if token != padding] for row in rows.tolist()]
    return ids, texts


def moved(ids, scores):
    """A processor of scores that moves each at random."""
    import torch

    return scores + MARGIN * torch.randn_like(scores)


def logits(model, sources):
    """Arrays: sources with padding, targets, and the logits of these."""
    import torch

    source = rows_of(sources, model.config.pad_token_id)
    target = np.random.default_rng(8).integers(0, model.config.pad_token_id, (len(sources), 5))
    target[:, 0] = model.config.decoder_start_token_id
    mask = (source != model.config.pad_token_id).long()
    with torch.no_grad():
        found = model(source, attention_mask=mask, decoder_input_ids=torch.tensor(target)).logits
    return {"source": source.numpy(), "target": target, "logits": found.numpy()}


def main(path, name):
    import torch
    import transformers

    torch.set_num_threads(1)  # so small a model only waits for more
    torch.manual_seed(5)
    folder, (shared, steps, count) = pathlib.Path(path, name), FOLDERS[name]
    folder.mkdir()
    size = write_tokenizer(folder, shared)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    lines = sentences(count + count // 2)
    lines = [line for line in lines if len(tokenizer(line)["input_ids"]) <= 41]  # with the end
    inputs = [tokenizer(line)["input_ids"] for line in lines]
    model = transformers.MarianMTModel(transformers.MarianConfig(**config(size, shared)))
    randomize(model.eval())
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    np.savez(pathlib.Path(path, f"{name}.state.npz"), **state)
    np.savez(pathlib.Path(path, f"{name}.logits.npz"), **logits(model, inputs[:8]))
    teach(model, inputs, steps)
    model.generation_config = transformers.GenerationConfig(**generation(size, shared))
    model.save_pretrained(folder)
    if not shared:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    ids, texts = generated(model, tokenizer, lines)
    others, _ = generated(model, tokenizer, lines, [moved])
    kept = [i for i in range(len(lines)) if ids[i] == others[i]][:count]
    wanted = {"lines": lines, "inputs": inputs, "ids": ids, "texts": texts}
    wanted = {name: [values[i] for i in kept] for name, values in wanted.items()}
    pathlib.Path(path, f"{name}.json").write_text(json.dumps(wanted), encoding="utf-8")


if __name__ == "__main__":
    for each in FOLDERS:
        main(sys.argv[1], each)
