"""The commands of `python -m tfattn.translator` and their arguments."""

import argparse
import contextlib
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tfattn.translator.presets import MODELS, PRESETS

PROGRAM = "python -m tfattn.translator"
# From a format to its path in the run's folder.
EXPORTS = {
    "saved_model": "saved_model",
    "onnx": "onnx",
    "ctranslate2": "ctranslate2",
    "litert": "model.tflite",
}
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int16", "float16")

DESCRIPTION = """
Trains, scores, applies and exports translation models.

Each command works on the folder of a run, --out DIR, with the model and its vocabularies.
"""

TRAIN = """
Trains a translation model and scores it.

Without --data, the model learns English to French from sentences of a small grammar, in which
adjectives change sides, articles agree and negation wraps the verb; the training takes a few
minutes on two cores. With --data DIR it learns from files with one sentence per line and tokens
separated by spaces; line n of train.de translates line n of train.en.

The folder --out receives the model, its vocabularies, two figures and, after each epoch, a backup.
A run can be interrupted at any time and continued with --resume.
"""
TRAIN_EXAMPLES = """
examples:
  train on files, and score test_2016.en and test_2016.de with five beams:
    {program} train --data corpus --beam 5 --score test_2016 --out out/en-de
  continue that run after an interruption:
    {program} train --data corpus --beam 5 --score test_2016 --out out/en-de --resume
"""

SCORE = """
Scores the trained models in one or more folders by BLEU, on one or more parts of a corpus.

For several runs, as with several seeds, prints their mean and standard deviation too.
"""
SCORE_EXAMPLES = """
example:
    {program} score --beam 5 --parts val test_2016 --data corpus --out out/seed1 out/seed2
"""

TRANSLATE = """
Translates each line of a file or of standard input, and writes it to standard output.
"""
TRANSLATE_EXAMPLES = """
examples:
    {program} translate --beam 5 --out out/en-de lines.en > lines.de
    echo "A man, in a hat." | {program} translate --raw --out out/en-de
"""

EXPORT = """
Exports the model of a run to a format of other programs.
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
        help="random seed (default: %(default)s)",
    )

    corpus = command.add_argument_group("training data")
    corpus.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with train.en, train.de, val.en, val.de, plain or compressed (.gz)",
    )
    corpus.add_argument(
        "--languages",
        nargs=2,
        default=("en", "de"),
        metavar=("SOURCE", "TARGET"),
        help="file name extensions in --data (default: en de)",
    )
    corpus.add_argument(
        "--pairs",
        type=_positive_int,
        default=14_000,
        metavar="N",
        help="without --data: sentence pairs to draw from the grammar, including the held-out "
        "tenth (default: %(default)s)",
    )
    corpus.add_argument(
        "--subwords",
        type=_count,
        metavar="N",
        help="size of a subword vocabulary shared by both languages; 0 for word vocabularies "
        "(default: the preset's)",
    )

    train = command.add_argument_group("model and training")
    train.add_argument(
        "--model",
        choices=MODELS,
        default="transformer",
        help="a Transformer, or a recurrent model with Bahdanau's attention (default: %(default)s)",
    )
    train.add_argument(
        "--preset",
        choices=PRESETS["transformer"],
        help="model size and training settings: toy for the grammar; tiny for about ten thousand "
        "pairs; tiny-simcut (Transformer only) adds 20 epochs with SimCut at twice the time, "
        "also to a resumed run of tiny; base for the sizes of the papers (default: toy, or tiny "
        "with --data)",
    )
    train.add_argument(
        "--epochs",
        type=_positive_int,
        metavar="N",
        help="passes over the sentence pairs; a preset with a cooldown ends at a learning rate of "
        "zero (default: the preset's)",
    )
    train.add_argument(
        "--tokens",
        type=_positive_int,
        metavar="N",
        help="maximum number of tokens on the longer side of a batch, including padding; decrease "
        "it to save memory (default: the preset's)",
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out after its last completed epoch",
    )

    score = command.add_argument_group("scoring")
    score.add_argument(
        "--score",
        metavar="PART",
        help="with --data: files to score after the training, such as test_2016 for test_2016.en "
        "and test_2016.de (default: val)",
    )
    score.add_argument(
        "--sentences",
        type=_positive_int,
        metavar="N",
        help="score the first N sentences only, during training too (default: all, or 1000 for the "
        "grammar)",
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
        help="folder of the files (default: the folder used for training)",
    )
    command.add_argument(
        "--parts",
        nargs="+",
        default=["val"],
        metavar="PART",
        help="files to score, such as test_2016 for test_2016.en and test_2016.de; for a model of "
        "the grammar only val, its held-out sentences (default: val)",
    )
    command.add_argument(
        "--sentences",
        type=_positive_int,
        metavar="N",
        help="score the first N sentences of each part only (default: all, or 1000 for the "
        "grammar)",
    )
    search = command.add_argument_group("search")
    _beams(search)
    _rules(search)


def _translate(command):
    command.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="text to translate, one sentence per line; plain or compressed by gzip (default: "
        "standard input)",
    )
    _out(command, "folder of the run")
    command.add_argument(
        "--raw",
        action="store_true",
        help="read and write plain text: tokenize it, and detokenize the translation, as Moses "
        "does; needs sacremoses",
    )
    command.add_argument(
        "--stream",
        action="store_true",
        help="write each translation during the search, as far as it is final",
    )
    search = command.add_argument_group("search")
    _beams(search)
    _rules(search)
    sampling = command.add_argument_group("sampling")
    sampling.add_argument(
        "--sample",
        action="store_true",
        help="draw each token by its probability instead of searching for the best translation",
    )
    sampling.add_argument(
        "--temperature",
        type=_positive_number,
        metavar="T",
        help="with --sample: below 1, likely tokens are drawn more often (default: 1.0)",
    )
    sampling.add_argument(
        "--seed",
        type=_seed,
        metavar="N",
        help="random seed for --sample (default: 0)",
    )


def _export(command):
    command.add_argument("--to", choices=EXPORTS, required=True, help="export format")
    _out(command, "folder of the run")
    command.add_argument(
        "--into",
        type=Path,
        metavar="PATH",
        help="path to write (default: in --out, " + ", ".join(sorted(set(EXPORTS.values()))) + ")",
    )
    command.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        metavar="TYPE",
        help=f"weight type for ctranslate2: {', '.join(QUANTIZATIONS)} (default: none)",
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
        help="number of beams: hypotheses kept at each step; 1 is greedy search "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--length-penalty",
        type=_non_negative_number,
        metavar="P",
        help="exponent of length normalization with --beam: 0 ranks by the sum of the tokens' log "
        "probabilities, 1 by their mean (default: 1.0)",
    )


def _rules(group):
    group.add_argument(
        "--no-repeat-ngrams",
        type=_positive_int,
        metavar="N",
        help="never repeat an n-gram of this size (default: off)",
    )
    group.add_argument(
        "--repetition-penalty",
        type=_at_least_one,
        metavar="X",
        help="divide the scores of tokens already written by X, or multiply them if negative; 1 "
        "changes nothing (default: 1)",
    )
    group.add_argument(
        "--min-length",
        type=_positive_int,
        metavar="N",
        help="write at least N tokens (default: no minimum)",
    )
    group.add_argument(
        "--max-length",
        type=_positive_int,
        metavar="N",
        help="write at most N tokens (default: 8 plus 1.5 times the tokens of the line)",
    )


COMMANDS = {
    "train": ("train a model and score it", TRAIN, TRAIN_EXAMPLES, _train),
    "score": ("score trained models by BLEU", SCORE, SCORE_EXAMPLES, _score),
    "translate": ("translate lines of text", TRANSLATE, TRANSLATE_EXAMPLES, _translate),
    "export": ("export a model to other formats", EXPORT, EXPORT_EXAMPLES, _export),
}


def _seed(text):
    expected = "an integer of at least 0 and below 2**32"  # the range of random generators' seeds
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
    """Parses a number; for a ValueError, argparse's own message would name this function."""
    with contextlib.suppress(ValueError):
        value = kind(text)
        if fits(value):
            return value
    raise argparse.ArgumentTypeError(f"must be {expected}, received {text}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options and their dependent defaults; `arguments` defaults to `sys.argv[1:]`."""
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
            arguments_parser.error("--sample cannot be combined with --beam")
        if options.stream and options.raw:
            arguments_parser.error("--raw cannot be combined with --stream")
    if options.command != "export":
        if options.length_penalty is None:
            options.length_penalty = 1.0
        elif options.beam == 1:
            arguments_parser.error("--length-penalty needs --beam K with K above 1")
    if options.command == "export" and options.quantization and options.to != "ctranslate2":
        arguments_parser.error("--quantization needs --to ctranslate2")
    return options
