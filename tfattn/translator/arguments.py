"""The commands of `python -m tfattn.translator` and their arguments."""

import argparse
import contextlib
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tfattn.translator.presets import MODELS, PRESETS

__all__ = ["EXPORTS", "parse", "parser"]

PROGRAM = "python -m tfattn.translator"
# From a format to where it lies in the run's folder.
EXPORTS = {
    "saved_model": "saved_model",
    "onnx": "onnx",
    "ctranslate2": "ctranslate2",
    "litert": "model.tflite",
}
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int16", "float16")

DESCRIPTION = """
Trains models that translate, scores them, translates with them, and exports them.

Each command works on the folder of a run, --out DIR, which keeps the model and its vocabularies.
"""

TRAIN = """
Trains a model that translates, and scores it.

Without --data it learns English to French from a small grammar, in which adjectives change sides,
articles agree and negation wraps the verb; that takes a few minutes on two cores. With --data DIR
it learns from files: one sentence a line, tokens split by spaces, line n of train.en translated by
line n of train.de.

The folder --out keeps the model, its vocabularies, two pictures, and after each epoch all that the
run needs to go on. A run can be stopped at any time.
"""
TRAIN_EXAMPLES = """
examples:
  learn from files, and score the sentences of test_2016.en and test_2016.de with five beams:
    {program} train --data corpus --beam 5 --score test_2016 --out out/en-de
  go on with that run after it was stopped:
    {program} train --data corpus --beam 5 --score test_2016 --out out/en-de --resume
"""

SCORE = """
Scores trained models by BLEU: those in one or more folders, on one or more parts of a corpus.

Of several runs, as with several seeds, it also tells the mean and the standard deviation.
"""
SCORE_EXAMPLES = """
example:
    {program} score --beam 5 --parts val test_2016 --data corpus --out out/seed1 out/seed2
"""

TRANSLATE = """
Translates lines of a file or of standard input, and writes as many to standard output.
"""
TRANSLATE_EXAMPLES = """
examples:
    {program} translate --beam 5 --out out/en-de lines.en > lines.de
    echo "A man, in a hat." | {program} translate --raw --out out/en-de
"""

EXPORT = """
Writes the model of a run in a format that other programs run.
"""
EXPORT_EXAMPLES = """
example:
    {program} export --to ctranslate2 --quantization int8 --out out/en-de
"""


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    found = argparse.ArgumentParser(
        prog=PROGRAM,
        description=textwrap.dedent(DESCRIPTION),
        epilog=f"'{PROGRAM} COMMAND --help' shows the arguments of a command, with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = found.add_subparsers(dest="command", title="commands", required=True)
    for name, (summary, description, examples, add_arguments) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=textwrap.dedent(description),
            epilog=examples.format(program=PROGRAM),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_arguments(command)
    return found


def _train(command):
    _out(command, "folder of the run and its model")
    command.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="seed of everything random (default: %(default)s)",
    )

    corpus = command.add_argument_group("what to learn from")
    corpus.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with train.en, train.de, val.en, val.de, plain or packed (.gz)",
    )
    corpus.add_argument(
        "--languages",
        nargs=2,
        default=("en", "de"),
        metavar=("SOURCE", "TARGET"),
        help="endings of the files in --data (default: en de)",
    )
    corpus.add_argument(
        "--pairs",
        type=_positive_int,
        default=14_000,
        metavar="N",
        help="without --data: sentence pairs to draw from the grammar, of which a tenth is held "
        "out (default: %(default)s)",
    )
    corpus.add_argument(
        "--subwords",
        type=_count,
        metavar="N",
        help="entries of one vocabulary of subwords for both languages; 0 takes whole words "
        "(default: the preset's)",
    )

    train = command.add_argument_group("the model and its training")
    train.add_argument(
        "--model",
        choices=MODELS,
        default="transformer",
        help="a Transformer, or a recurrent model with Bahdanau's attention (default: %(default)s)",
    )
    train.add_argument(
        "--preset",
        choices=PRESETS["transformer"],
        help="size of the model, and how it is trained: toy for the grammar; tiny for some ten "
        "thousand pairs; tiny-simcut, a Transformer's, the same and 20 epochs with SimCut, of "
        "twice the time, or by --resume these alone for a run of tiny; base, the sizes of the "
        "papers (default: toy, or tiny with --data)",
    )
    train.add_argument(
        "--epochs",
        type=_positive_int,
        metavar="N",
        help="passes over the sentence pairs; a preset whose learning rate goes down to zero "
        "reaches it with the last of them (default: the preset's)",
    )
    train.add_argument(
        "--tokens",
        type=_positive_int,
        metavar="N",
        help="most tokens of a batch on its longer side, padding included; take less where "
        "memory is short (default: the preset's)",
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out after its last whole epoch",
    )

    score = command.add_argument_group("scoring")
    score.add_argument(
        "--score",
        metavar="PART",
        help="with --data: files to score at the end, such as test_2016 for test_2016.en and "
        "test_2016.de (default: val)",
    )
    score.add_argument(
        "--sentences",
        type=_positive_int,
        metavar="N",
        help="score the first N sentences only, in training too (default: all, or 1000 of the "
        "grammar's)",
    )
    _beams(score)


def _score(command):
    command.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[DEFAULT_OUT],
        metavar="DIR",
        help=f"folders of the runs (default: {DEFAULT_OUT})",
    )
    command.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the files (default: that of the training)",
    )
    command.add_argument(
        "--parts",
        nargs="+",
        default=["val"],
        metavar="PART",
        help="files to score, such as test_2016 for test_2016.en and test_2016.de; of a model of "
        "the grammar val alone, its held-out sentences (default: val)",
    )
    command.add_argument(
        "--sentences",
        type=_positive_int,
        metavar="N",
        help="score the first N sentences of each part only (default: all, or 1000 of the "
        "grammar's)",
    )
    search = command.add_argument_group("the search")
    _beams(search)
    _rules(search)


def _translate(command):
    command.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="text to translate, a sentence a line; plain, or packed by gzip (default: standard "
        "input)",
    )
    _out(command, "folder of the run")
    command.add_argument(
        "--raw",
        action="store_true",
        help="take text as people write it, and write such text: punctuation is split off in the "
        "way of Moses and put back; needs sacremoses",
    )
    command.add_argument(
        "--stream",
        action="store_true",
        help="write each translation while it is found, as far as it is certain",
    )
    search = command.add_argument_group("the search")
    _beams(search)
    _rules(search)
    sampling = command.add_argument_group("sampling")
    sampling.add_argument(
        "--sample",
        action="store_true",
        help="draw each word by its probability, instead of a search for the best",
    )
    sampling.add_argument(
        "--temperature",
        type=_positive_number,
        metavar="T",
        help="with --sample: below 1 likely words are drawn more often (default: 1.0)",
    )
    sampling.add_argument(
        "--seed",
        type=_seed,
        metavar="N",
        help="with --sample: another one draws other words (default: 0)",
    )


def _export(command):
    command.add_argument("--to", choices=EXPORTS, required=True, help="the format")
    _out(command, "folder of the run")
    command.add_argument(
        "--into",
        type=Path,
        metavar="PATH",
        help="where to write (default: in --out, " + ", ".join(sorted(set(EXPORTS.values()))) + ")",
    )
    command.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        metavar="TYPE",
        help=f"of ctranslate2's weights: {', '.join(QUANTIZATIONS)} (default: none)",
    )


DEFAULT_OUT = Path("out/translator")


def _out(command, words):
    command.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help=f"{words} (default: %(default)s)",
    )


def _beams(group):
    group.add_argument(
        "--beam",
        type=_positive_int,
        default=1,
        metavar="K",
        help="keep the K best beginnings of a translation at each step; 1 takes the likeliest word "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--length-penalty",
        type=_non_negative_number,
        metavar="P",
        help="how much --beam likes long translations: 0 ranks by the sum of their tokens' log "
        "probabilities, 1 by the mean (default: 1.0)",
    )


def _rules(group):
    group.add_argument(
        "--no-repeat-ngrams",
        type=_positive_int,
        metavar="N",
        help="write no N tokens in a row twice (default: repeat as it comes)",
    )
    group.add_argument(
        "--repetition-penalty",
        type=_at_least_one,
        metavar="X",
        help="make tokens that are written already less likely: their scores are divided by X, or "
        "multiplied where negative; 1 changes nothing (default: 1)",
    )
    group.add_argument(
        "--min-length",
        type=_positive_int,
        metavar="N",
        help="write at least N tokens (default: as many as it likes)",
    )
    group.add_argument(
        "--max-length",
        type=_positive_int,
        metavar="N",
        help="write at most N tokens (default: 8 more than one and a half times those of the line)",
    )


COMMANDS = {
    "train": ("train a model, and score it", TRAIN, TRAIN_EXAMPLES, _train),
    "score": ("score trained models by BLEU", SCORE, SCORE_EXAMPLES, _score),
    "translate": ("translate lines of text", TRANSLATE, TRANSLATE_EXAMPLES, _translate),
    "export": ("write a model for other programs", EXPORT, EXPORT_EXAMPLES, _export),
}


def _seed(text):
    expected = "an integer of at least 0 and below 2**32"  # as random generators take it
    return _number(text, int, lambda value: 0 <= value < 2**32, expected)


def _count(text):
    return _number(text, int, lambda value: value >= 0, "an integer of at least 0")


def _positive_int(text):
    return _number(text, int, lambda value: value >= 1, "an integer of at least 1")


def _at_least_one(text):
    return _number(text, float, lambda value: 1 <= value < INFINITY, "a number of at least 1")


def _positive_number(text):
    return _number(text, float, lambda value: 0 < value < INFINITY, "a number above 0")


def _non_negative_number(text):
    return _number(text, float, lambda value: 0 <= value < INFINITY, "a number of at least 0")


INFINITY = float("inf")


def _number(text, kind, fits, expected):
    """The number that a text writes; argparse would name the function where it writes none."""
    with contextlib.suppress(ValueError):
        value = kind(text)
        if fits(value):
            return value
    raise argparse.ArgumentTypeError(f"must be {expected}, received {text}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, those that depend on others filled in. Defaults to this process's arguments."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    if options.command == "train":
        if options.score and not options.data:
            arguments_parser.error("--score needs --data")
        options.preset = options.preset or ("tiny" if options.data else "toy")
        if options.preset not in PRESETS[options.model]:
            arguments_parser.error(f"--model {options.model} has no --preset {options.preset}")
        preset = PRESETS[options.model][options.preset]
        for setting in ("subwords", "tokens"):
            if getattr(options, setting) is None:
                setattr(options, setting, getattr(preset, setting))
        if options.sentences is None and not options.data:
            options.sentences = 1000
    if options.command == "translate":
        for setting, default in (("temperature", 1.0), ("seed", 0)):
            if getattr(options, setting) is None:
                setattr(options, setting, default)
            elif not options.sample:
                arguments_parser.error(f"--{setting} needs --sample")
        if options.sample and options.beam > 1:
            arguments_parser.error("--sample and --beam are two searches: name one")
        if options.stream and options.raw:
            arguments_parser.error(
                "--raw needs whole sentences, and --stream writes pieces of them"
            )
    if options.command != "export":
        if options.length_penalty is None:
            options.length_penalty = 1.0
        elif options.beam == 1:
            arguments_parser.error("--length-penalty needs --beam K with K above 1")
    if options.command == "export" and options.quantization and options.to != "ctranslate2":
        arguments_parser.error("--quantization needs --to ctranslate2")
    return options
