"""The arguments of `python -m tfattn.translator`."""

import argparse
import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras

from tfattn.translator import lines, report
from tfattn.translator.folder import Folder
from tfattn.translator.presets import MODELS, PRESETS
from tfattn.translator.run import Run

DESCRIPTION = """
Trains a model that translates, scores it, and translates with it.

Without --data it learns English to French from a small grammar, in which adjectives change sides,
articles agree and negation wraps the verb; that takes a few minutes on two cores. With --data DIR
it learns from files: one sentence a line, tokens split by spaces, line n of train.en translated by
line n of train.de.

The folder --out keeps the model, its vocabularies, two pictures, and after each epoch all that the
run needs to go on. A run can be stopped at any time.
"""

EPILOG = """
examples:
  learn from files, and score the sentences of test_2016.en and test_2016.de with five beams:
    python -m tfattn.translator --data corpus --beam 5 --score test_2016 --out out/en-de
  go on with that run after it was stopped:
    python -m tfattn.translator --data corpus --beam 5 --score test_2016 --out out/en-de --resume
  translate a file with its model:
    python -m tfattn.translator --translate --beam 5 --out out/en-de < lines.en > lines.de
"""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tfattn.translator",
        description=textwrap.dedent(DESCRIPTION),
        epilog=textwrap.dedent(EPILOG),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "--out",
        type=Path,
        default=Path("out/translator"),
        metavar="DIR",
        help="folder of the run and its model (default: %(default)s)",
    )
    found.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="seed of everything random (default: %(default)s)",
    )

    corpus = found.add_argument_group("what to learn from")
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
        type=int,
        metavar="N",
        help="entries of one vocabulary of subwords for both languages; 0 takes whole words "
        "(default: the preset's)",
    )

    train = found.add_argument_group("the model and its training")
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
        "thousand pairs; base, the sizes of the papers (default: toy, or tiny with --data)",
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

    score = found.add_argument_group("scoring")
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

    translate = found.add_argument_group("translating")
    translate.add_argument(
        "--translate",
        action="store_true",
        help="train nothing: read lines from standard input, and write their translations by the "
        "model in --out",
    )
    translate.add_argument(
        "--beam",
        type=_positive_int,
        default=1,
        metavar="K",
        help="keep the K best beginnings of a translation at each step, here and in --score; "
        "1 takes the likeliest word (default: %(default)s)",
    )
    translate.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="P",
        help="how much --beam likes long translations: 0 ranks by the sum of their tokens' log "
        "probabilities, 1 by the mean (default: %(default)s)",
    )
    return found


def _seed(text):
    number = int(text)
    if not 0 <= number < 2**32:  # as random generators take it
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 2**32, received {text}")
    return number


def _positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, received {text}")
    return number


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, those that depend on others filled in. Defaults to this process's arguments."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    if not 0 <= options.length_penalty < float("inf"):
        arguments_parser.error("--length-penalty must be a number of at least 0")
    if options.score and not options.data:
        arguments_parser.error("--score needs --data")
    options.preset = options.preset or ("tiny" if options.data else "toy")
    preset = PRESETS[options.model][options.preset]
    for setting in ("subwords", "tokens"):
        if getattr(options, setting) is None:
            setattr(options, setting, getattr(preset, setting))
    if options.sentences is None and not options.data:
        options.sentences = 1000
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    keras.utils.set_random_seed(options.seed)
    try:
        if options.translate:
            with _one_line_errors():
                model, words = lines.load(Folder(options.out))
            lines.translate_lines(model, words, report.search(options))
        else:
            with _one_line_errors():
                run = Run(options)
            report.show(run, *run.fit())
    except KeyboardInterrupt:
        kept = "; what was trained up to the last whole epoch goes on with --resume"
        raise SystemExit("\nstopped" + ("" if options.translate else kept)) from None


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Says in one line what a user can mend. What goes wrong in a training keeps its traceback."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
