"""A Transformer that translates: trained with `model.fit`, asked about sentences that it has never seen.

Without `--data` it learns English to French from a small grammar, in which adjectives change sides, articles agree and
negation wraps the verb; that takes a few minutes on two cores. With `--data DIR` it learns from real files, `train.en`,
`train.de`, `val.en`, `val.de` (plain or .gz), source language first.
"""

import time
from pathlib import Path

import keras
import numpy as np
from common import arguments, positive_int, print_result

import tfattn
from tfattn import data, plot, training

MAX_LENGTH = 40  # tokens of a sentence, its begin or end included


def main():
    options = _options()
    keras.utils.set_random_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        train, validation = _pairs(options)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    source_words = data.Vocabulary.from_sentences([source for source, _ in train], min_count=options.min_count)
    target_words = data.Vocabulary.from_sentences([target for _, target in train], min_count=options.min_count)
    print(
        f"{len(train)} pairs to learn from, {len(validation)} held out; {len(source_words)} + {len(target_words)} words"
    )

    began = time.perf_counter()
    model = _train(options, train, validation, source_words, target_words)
    sources, references = zip(*validation[: options.translate], strict=True)
    hypotheses = _translate(model, sources, source_words, target_words)
    seconds = time.perf_counter() - began

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    # The longest of the five has the most to show.
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    figure = _attention_figure(model, source, hypothesis, source_words, target_words)
    figure.savefig(options.out / "attention.png", dpi=150)
    model.save(options.out / "model.keras")
    print(f"figure and model: {options.out}")
    exact = np.mean([h == r for h, r in zip(hypotheses, references, strict=True)])
    print_result(
        {
            "exact_match": round(float(exact), 4),
            "bleu": round(training.corpus_bleu(hypotheses, references), 2),
            "val_loss": round(model.history.history["val_loss"][-1], 4),
            "parameters": model.count_params(),
            "seconds": round(seconds, 1),
        }
    )


def _options():
    parser = arguments(__doc__, "out/transformer_translation")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with train.en, train.de, val.en, val.de")
    parser.add_argument("--languages", nargs=2, default=("en", "de"), metavar=("SOURCE", "TARGET"),
                        help="endings of the files in --data (default: en de)")  # fmt: skip
    parser.add_argument("--pairs", type=positive_int, default=14_000, help="toy pairs, a tenth of them held out")
    parser.add_argument("--epochs", type=positive_int, default=5)
    parser.add_argument("--batch-size", type=positive_int, default=64, help="sentences a step")
    parser.add_argument(
        "--min-count", type=positive_int, default=None, help="rarer words are unknown (default: 1, 2 with --data)"
    )
    parser.add_argument("--translate", type=positive_int, default=1000, help="most held-out sentences to translate")
    options = parser.parse_args()
    if options.min_count is None:
        options.min_count = 2 if options.data else 1
    return options


def _pairs(options):
    """(training pairs, held-out pairs)."""
    if options.data is None:
        return data.split_pairs(data.toy_translation(options.pairs, seed=options.seed), seed=options.seed)
    source, target = options.languages

    def read(part):
        return data.read_parallel(_file(options.data, part, source), _file(options.data, part, target))

    return read("train"), read("val")


def _file(folder, part, language):
    packed = folder / f"{part}.{language}.gz"
    return packed if packed.exists() else folder / f"{part}.{language}"


def _train(options, train, validation, source_words, target_words):
    model = tfattn.Transformer(
        len(source_words), len(target_words), num_layers=2, width=128, num_heads=4, hidden_dim=256, dropout=0.1
    )
    steps = -(-len(train) // options.batch_size) * options.epochs
    model.compile(
        optimizer=keras.optimizers.Adam(
            tfattn.TransformerSchedule(model.width, warmup_steps=min(400, steps // 4 + 1), scale=0.4),
            beta_2=0.98,
            epsilon=1e-9,
        ),
        loss=tfattn.MaskedCrossentropy(label_smoothing=0.1),
        metrics=[tfattn.MaskedAccuracy(name="accuracy")],
        jit_compile=False,
    )

    def batches(pairs, seed=None):
        return data.translation_batches(
            pairs, source_words, target_words, options.batch_size, max_length=MAX_LENGTH, shuffle_seed=seed
        )

    held_out = batches(validation)
    model.build(((None, None), (None, None)))
    before = model.evaluate(held_out, verbose=0, return_dict=True)
    print(f"{model.count_params():,} parameters; validation loss before training {before['loss']:.4f}")
    # `shuffle=False`: the batches shuffle themselves, and Keras would warn that it cannot.
    model.fit(batches(train, options.seed), validation_data=held_out, epochs=options.epochs, shuffle=False)
    print(f"validation loss {before['loss']:.4f} before training, {model.history.history['val_loss'][-1]:.4f} after it")
    return model


def _translate(model, sentences, source_words, target_words, batch_size=200):
    """Greedy translations, in order."""
    encoded = [[*source_words.encode(sentence), source_words.end_id] for sentence in sentences]
    progress = keras.utils.Progbar(len(encoded), unit_name="sentence")
    translations = []
    for start in range(0, len(encoded), batch_size):
        ids = _rows(encoded[start : start + batch_size])
        written = tfattn.greedy_search(model.step, model.encode(ids), batch_size=len(ids), max_length=MAX_LENGTH)
        translations += [target_words.decode(row) for row in keras.ops.convert_to_numpy(written)]
        progress.update(len(translations))
    return translations


def _rows(encoded):
    """Lists of ids as one array `(B, S)`, padded with 0 to a multiple of 8, so that few shapes occur."""
    longest = -(-max(map(len, encoded)) // 8) * 8
    return np.array([row + [0] * (longest - len(row)) for row in encoded], "int32")


def _attention_figure(model, source, translation, source_words, target_words):
    """Where each written word looked in the source, head by head, in the decoder's last block."""
    source_ids = [*source_words.encode(source), source_words.end_id]
    target_ids = [*target_words.encode(translation), target_words.end_id]
    target_in = [target_words.begin_id, *target_ids[:-1]]
    weights = tfattn.attention_weights(model, (np.array([source_ids]), np.array([target_in])))
    last = [name for name in weights if name.endswith("cross_attention")][-1]
    heads = weights[last][0]  # (H, T, S)
    return plot.heatmaps(
        heads,
        row_labels=[target_words.words[i] for i in target_ids],
        column_labels=[source_words.words[i] for i in source_ids],
        titles=[f"head {h + 1}" for h in range(len(heads))],
        x_label="source (keys)",
        y_label="written word (queries)",
    )


if __name__ == "__main__":
    main()
