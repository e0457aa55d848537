"""What the two translation demos share: sentences, training, resuming, scores, pictures, and lines
to translate.
"""

import contextlib
import functools
import itertools
import sys
import time
from pathlib import Path

import course
import folder
import keras
import numpy as np
from common import arguments, positive_int, print_result
from swaps import aligned_swaps

import tfattn
from tfattn import data, plot, training

LINES = 1000  # that are translated before the first of them is written


def run(description, name, model_class, presets, alignment):
    """A whole demo.

    Args:
        description: text of `--help`.   name: of the folder for what it writes.
        model_class: called with the sizes of both vocabularies and `course.Preset.model`.
        presets: dict, name to `course.Preset`: "toy" for the sentences from a grammar, others for
            `--data`.
        alignment: function of (model, source ids, target_in ids) to weights `(B, heads, T, S)` and
            the heads' titles.
    """
    options = _options(description, name, presets)
    keras.utils.set_random_seed(options.seed)
    try:
        if options.translate:
            _translate_lines(options)
        else:
            _train_and_show(options, model_class, presets[options.preset], alignment)
    except KeyboardInterrupt:
        kept = (
            ""
            if options.translate
            else "; what was trained up to the last whole epoch goes on with --resume"
        )
        raise SystemExit(f"\nstopped{kept}") from None


@contextlib.contextmanager
def _one_line_errors():
    """Says in one line what a user can mend. What goes wrong in a training keeps its traceback."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


def _options(description, name, presets):
    parser = arguments(description, f"out/{name}")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with train.en, train.de, val.en, val.de"
    )
    parser.add_argument("--languages", nargs=2, default=("en", "de"), metavar=("SOURCE", "TARGET"),
                        help="endings of the files in --data (default: en de)")  # fmt: skip
    parser.add_argument(
        "--pairs", type=positive_int, default=14_000, help="toy pairs, a tenth of them held out"
    )
    parser.add_argument(
        "--preset", choices=presets, help="size of the model (default: toy, or tiny with --data)"
    )
    parser.add_argument(
        "--subwords",
        type=int,
        metavar="N",
        help="entries of a joint vocabulary of subwords; 0: words",
    )
    parser.add_argument("--epochs", type=positive_int, help="passes over the training sentences; where a preset cools "
                        "down, the rate reaches zero with the last of them")  # fmt: skip
    parser.add_argument(
        "--tokens",
        type=positive_int,
        help="tokens of a batch, on its longer side, padding included",
    )
    parser.add_argument(
        "--beam",
        type=positive_int,
        default=1,
        metavar="K",
        help="beams in the final search (default: 1)",
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="P",
        # fmt: skip
        help="of the beams: 0 ranks by the sum, 1 by the mean of a token (default: 1)",
    )
    parser.add_argument(
        "--score", metavar="PART", help="with --data: files to score at the end, such as test_2016"
    )
    parser.add_argument(
        "--sentences",
        type=positive_int,
        metavar="N",
        # fmt: skip
        help="most held-out sentences to score, in training too (default: 1000 toy ones, all)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument(
        "--translate", action="store_true", help="translate standard input with the model in --out"
    )
    options = parser.parse_args()
    options.preset = options.preset or ("tiny" if options.data else "toy")
    preset = presets[options.preset]
    for setting in ("subwords", "tokens"):
        if getattr(options, setting) is None:
            setattr(options, setting, getattr(preset, setting))
    if not 0 <= options.length_penalty < float("inf"):
        parser.error("--length-penalty must be a number of at least 0")
    if options.score and not options.data:
        parser.error("--score needs --data")
    if options.sentences is None and not options.data:
        options.sentences = 1000
    return options


def _train_and_show(options, model_class, preset, alignment):
    began = time.perf_counter()
    with _one_line_errors():
        # What is missing for the pictures and the scores is missed now, and not after the training.
        plot.loss_curve([0.0])
        training.corpus_bleu(["a"], ["a"])
        backup = training.Backup(options.out / "backup.npz")
        train, validation = _pairs(options)
        scored = validation if options.score is None else _read(options, options.score)
        sentences = folder.fingerprint(line for pair in (*train, *validation) for line in pair)
        folder.check_run(options, preset, backup, sentences)
        folder.choose_epochs(options, preset, backup)
        words = source_words, target_words = folder.vocabularies(options, backup, train)
        phases, held_out = _batches(options, preset, train, validation, words)
        folder.record_run(options, preset, backup, sentences, words)
    earlier = sum(backup.history.get("seconds", []))  # in epochs before --resume
    print(
        f"{len(train) - course.too_long(train, words)} pairs to learn from, {len(validation)} held out; "
        f"vocabulary {len(source_words)}"
        + ("" if options.subwords else f" + {len(target_words)} words")
    )
    sizes = {"share_embeddings": bool(options.subwords), "seed": options.seed, **preset.model}
    model = model_class(len(source_words), len(target_words), **sizes)
    model.build(((None, None), (None, None)))
    history = _train(
        options, preset, model, backup, phases, held_out, validation[: options.sentences], words
    )
    with folder.replacing(options.out / "model.keras") as path:
        model.save(path)
    folder.keep(options, model=folder.fingerprints(words))

    sources, references = zip(*scored[: options.sentences], strict=True)
    hypotheses = _translate(
        model, sources, source_words, target_words, _search(options), progress=True
    )
    seconds = earlier + time.perf_counter() - began

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    # The longest of the five has the most to show.
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    _attention_figure(model, alignment, source, hypothesis, source_words, target_words).savefig(
        options.out / "attention.png", dpi=150
    )
    plot.loss_curve(history).savefig(options.out / "loss.png", dpi=150)
    print(f"figures and model: {options.out}")
    exact = np.mean([h == r for h, r in zip(hypotheses, references, strict=True)])
    swaps = (
        {}
        if options.data
        else {"aligned_swaps": aligned_swaps(model, alignment, scored, source_words, target_words)}
    )
    best = int(np.argmax(history["val_bleu"]))  # the first of equals, which is the one that is kept
    print_result(
        {
            "exact_match": round(float(exact), 4),
            "bleu": round(training.corpus_bleu(hypotheses, references), 2),
            "scored": options.score or "val",
            "sentences": len(sources),
            "val_bleu": round(history["val_bleu"][best], 2),
            "val_loss": round(history["val_loss"][best], 4),
            "best_epoch": best + 1,
            **swaps,
            "parameters": model.count_params(),
            "epochs": len(history["loss"]),
            "training_seconds": round(sum(history["seconds"]), 1),  # of all epochs
            # of all of it; of a life before --resume, its whole epochs
            "seconds": round(seconds, 1),
        }
    )


def _pairs(options):
    """(training pairs, held-out pairs)."""
    if options.data is None:
        return data.split_pairs(
            data.toy_translation(options.pairs, seed=options.seed), seed=options.seed
        )
    return _read(options, "train"), _read(options, "val")


def _read(options, part):
    def path(language):
        packed = options.data / f"{part}.{language}.gz"
        return packed if packed.exists() else options.data / f"{part}.{language}"

    source, target = options.languages
    return data.read_parallel(path(source), path(target))


def _batches(options, preset, train, validation, words):
    """The phases of the training, and the batches of the validation loss."""
    try:
        phases = course.phases(preset, train, words, options)
    except ValueError as error:
        raise ValueError(
            f"--tokens {options.tokens}, lines of at most {course.MAX_LENGTH} tokens: {error}"
        ) from None
    # No line of these is left out, however long; a row has a mark more, and is padded to a multiple
    # of four.
    longest = max(
        len(side.encode(line))
        for pair in validation
        for side, line in zip(words, pair, strict=True)
    )
    return phases, data.token_batches(validation, *words, max(options.tokens, 1024, longest + 4))


def _train(options, preset, model, backup, phases, held_out, scored, words):
    """Trains, puts the best weights into the model, and returns the history of all epochs."""
    model.compile(
        optimizer=keras.optimizers.Adam(
            course.rate(preset, [len(phase.batches) for phase in phases for _ in phase.epochs]),
            beta_2=0.98,
            epsilon=1e-9,
            use_ema=True,
            ema_momentum=1 - 1 / preset.look_back,
        ),
        loss=course.loss(preset),
        metrics=[tfattn.MaskedAccuracy(name="accuracy")],
        jit_compile=False,
    )
    before = model.evaluate(held_out, verbose=0, return_dict=True)
    print(
        f"{model.count_params():,} parameters; validation loss before training {before['loss']:.4f}"
    )
    best = folder.best_weights(options)
    sources, references = zip(*scored, strict=True)
    judge = training.AveragedWeights(
        [
            training.ValidationBleu(
                lambda model, sources: _translate(model, sources, *words),
                sources,
                references,
                every=preset.bleu_every,
            ),
            folder.BestWeights(best, "val_bleu", backup.best("val_bleu")),
        ]
    )
    for phase in phases:
        if backup.epoch < phase.epochs.stop or phase is phases[-1]:
            # `shuffle=False`: the batches shuffle themselves, and Keras would warn that it cannot.
            history = model.fit(
                phase.batches,
                validation_data=held_out,
                epochs=phase.epochs.stop,
                initial_epoch=backup.epoch,
                shuffle=False,
                callbacks=[phase.counter, judge, _Clock(), backup],
            ).history
    model.load_weights(best)
    print(
        f"validation loss {before['loss']:.4f} at the start, {history['val_loss'][-1]:.4f} in the last epoch"
    )
    return history


class _Clock(keras.callbacks.Callback):
    """Notes what each epoch took, the judging of it among it."""

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = round(time.perf_counter() - self.began, 1)


def _search(options):
    if options.beam == 1:
        return tfattn.greedy_search
    return functools.partial(
        tfattn.beam_search, num_beams=options.beam, length_penalty=options.length_penalty
    )


def _translate(
    model, sentences, source_words, target_words, search=tfattn.greedy_search, progress=False
):
    return tfattn.translate(
        model, sentences, source_words, target_words, search, batch_size=128, progress=progress
    )


def _translate_lines(options):
    """Standard input to standard output: line by line where somebody types, a thousand at a time
    where a file comes.
    """
    with _one_line_errors():
        path = options.out / "model.keras"
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is not there: train first, or name its folder with --out"
            )
        model = keras.models.load_model(path)
        words = [data.load_vocabulary(path) for path in folder.vocabulary_paths(options)]
        folder.check_vocabularies(options, "model", words)
    at_once = LINES
    if sys.stdin.isatty():
        print("One sentence a line, tokens split by spaces; end with Ctrl-D.", file=sys.stderr)
        at_once = 1
    # One broken byte is no reason to lose the other lines.
    sys.stdin.reconfigure(errors="replace")
    sys.stdout.reconfigure(errors="replace")
    while lines := list(itertools.islice(sys.stdin, at_once)):
        for translation in _translate(
            model, [line.strip() for line in lines], *words, _search(options)
        ):
            print(translation, flush=True)


def _attention_figure(model, alignment, source, translation, source_words, target_words):
    """Where each written token looked in the source."""
    source_ids = [*source_words.encode(source), source_words.end_id]
    target_ids = [*target_words.encode(translation), target_words.end_id]
    target_in = [target_words.begin_id, *target_ids[:-1]]
    weights, titles = alignment(model, np.array([source_ids]), np.array([target_in]))
    return plot.heatmaps(
        weights[0],
        row_labels=[target_words.words[i] for i in target_ids],
        column_labels=[source_words.words[i] for i in source_ids],
        titles=titles,
        x_label="source (keys)",
        y_label="written token (queries)",
    )
