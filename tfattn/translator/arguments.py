"""The commands of `python -m tfattn.translator` and their arguments."""

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tfattn.translator.presets import MODELS, PRESETS

PROGRAM = "python -m tfattn.translator"
# From a format to its path in the run's folder.
EXPORTS = {
    "saved_model": "saved_model",
    "onnx": "onnx",
    "ctranslate2": "ctranslate2",
    "litert": "model.tflite",
    "page": "page.html",
}
# The tokenizers of sacrebleu that download nothing.
TOKENIZERS = ("none", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char")
PAGE_QUANTIZATIONS = ("int8", "float16")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int16", "float16")

TEXT = "UTF-8, or UTF-16 with a byte order mark; plain or compressed by gzip"

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
  continue from another run, such as an imported one, with your own pairs:
    {program} train --init out/en-de --data corpus --out out/mine
"""

SCORE = """
Scores the trained models in one or more folders on one or more parts of a corpus.

Prints BLEU and chrF by sacrebleu, with its signatures and 95% intervals by bootstrap with 1000
resamples, or fewer (at least 100) for more than 10,000 sentences, to save memory. For several runs,
as with several seeds, prints their mean and standard deviation too.
"""
SCORE_EXAMPLES = """
examples:
    {program} score --beam 5 --parts val test_2016 --data corpus --out out/seed1 out/seed2
  whether a second run differs from the first by more than chance:
    {program} score --parts test_2016 --out out/seed2 --compare out/seed1
  how likely given translations are, such as those of another program:
    {program} score --pairs pairs.tsv --out out/en-de
  several runs as one:
    {program} score --beam 5 --parts test_2016 --ensemble out/seed1 out/seed2
  translations into Chinese, without spaces between words:
    {program} score --tokenize zh --out out/en-zh
"""

TRANSLATE = """
Translates each line of a file or of standard input, and writes it to standard output.
"""
TRANSLATE_EXAMPLES = """
examples:
    {program} translate --beam 5 --out out/en-de lines.en > lines.de
    echo "A man, in a hat." | {program} translate --raw --out out/en-de
  by the mean probability of several runs, as with several seeds:
    {program} translate --beam 5 lines.en --ensemble out/seed1 out/seed2 > lines.de
"""

EXPORT = """
Exports the model of a run to a format of other programs.
"""
EXPORT_EXAMPLES = """
examples:
    {program} export --to ctranslate2 --quantization int8 --out out/en-de
  a page that translates in the browser, and shows how:
    {program} export --to page --out out/en-de
"""

IMPORT = """
Makes the folder of a run from that of a published translator (MarianMTModel, MarianTokenizer).

Reads config.json, model.safetensors (or pytorch_model.bin; each may be in shards, with an index),
source.spm, target.spm and vocab.json.
"""
IMPORT_EXAMPLES = """
examples:
    {program} import opus-mt-en-fr --out out/en-fr
"""


class WrongName(ValueError):
    """An argument names something that is not there: exit status 2, as for invalid arguments."""


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names for an error."""
    found = sorted(map(str, names))
    more = [f"{len(found) - most} more"] if len(found) > most else []
    return ", ".join([*found[:most], *more])


# Arguments with a path to read, and the pattern of such paths in the folder above or in `out`.
_FOLDERS = {
    **dict.fromkeys(("init", "compare", "ensemble", "out"), "*/model.keras"),
    "data": "*/train.*",
    "folder": "*/config.json",
}
_FILES = {"file": "*", "pairs": "*"}
_OTHERWISE = {"train": ("out", "pairs"), "import": ("out",)}  # in these commands not a path to read


def check_paths(options: argparse.Namespace) -> None:
    """Raises `WrongName` for a file or folder to read that does not exist."""
    for name, pattern in (_FOLDERS | _FILES).items():
        given = getattr(options, name, None) or []
        if name in _OTHERWISE.get(options.command, ()):
            continue
        for path in map(Path, given if isinstance(given, list) else [given]):
            if path == DEFAULT_OUT or path.exists() and path.is_dir() == (name in _FOLDERS):
                continue
            above = [path.parent] if name in _FILES else [path.parent, DEFAULT_OUT.parent]
            found = [each for at in above for each in at.glob(pattern) if each.is_file()]
            others = found if name in _FILES else {each.parent for each in found}
            raise WrongName(
                f"{_argument(name)}: there is no {'file' if name in _FILES else 'folder'} {path}"
                + (f", but {listed(others)}" if others else "")
            )


def _argument(name: str) -> str:
    return name.upper() if name in ("file", "folder") else "--" + name.replace("_", "-")


def _number(
    kind: type[Any], fits: Callable[[Any], bool], expected: str, metavar: str = "N"
) -> dict[str, Any]:
    """Settings of an option that is a number."""

    def number(text: str) -> Any:
        # For a ValueError, argparse's own message would name this function.
        with contextlib.suppress(ValueError):
            value = kind(text)
            if fits(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {expected}, received {text}")

    return {"type": number, "metavar": metavar}


_INFINITY = float("inf")
# The range of the seeds of random generators.
_SEED = _number(int, lambda n: 0 <= n < 2**32, "an integer of at least 0 and below 2**32")
_COUNT = _number(int, lambda n: n >= 0, "an integer of at least 0")
_POSITIVE_INT = _number(int, lambda n: n >= 1, "an integer of at least 1")
_BEAMS = _number(int, lambda n: 1 <= n <= 1000, "an integer from 1 to 1000", "K")
_PENALTY = _number(float, lambda x: 1 <= x < _INFINITY, "a number of at least 1", "X")
_TEMPERATURE = _number(float, lambda x: 0 < x < _INFINITY, "a number above 0", "T")
_EXPONENT = _number(float, lambda x: 0 <= x < _INFINITY, "a number of at least 0", "P")


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


def _train(command: argparse.ArgumentParser) -> None:
    _out(command, "folder of the run and its model")
    command.add_argument(
        "--seed",
        **_SEED,
        default=0,
        help="random seed (default: %(default)s)",
    )

    _corpus(command.add_argument_group("training data"))
    _fit(command.add_argument_group("model and training"))
    score = command.add_argument_group("scoring")
    score.add_argument(
        "--score",
        metavar="PART",
        help="with --data: files to score after the training, such as test_2016 for test_2016.en "
        "and test_2016.de (default: val)",
    )
    score.add_argument(
        "--sentences",
        **_POSITIVE_INT,
        help="score the first N sentences only, during training too (default: all, or 1000 for the "
        "grammar)",
    )
    _beams(score)


def _corpus(corpus: argparse._ActionsContainer) -> None:
    corpus.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"folder with train.en, train.de, val.en, val.de (also with .gz): {TEXT}",
    )
    _languages(corpus, "file name extensions in --data")
    corpus.add_argument(
        "--pairs",
        **_POSITIVE_INT,
        help="without --data: sentence pairs to draw from the grammar, including the held-out "
        f"tenth (default: {PAIRS})",
    )
    corpus.add_argument(
        "--symbols",
        nargs="+",
        metavar="SYMBOL",
        help="symbols of your own in the subword vocabulary, such as <2fr>: each is one entry, "
        "and is never split",
    )
    corpus.add_argument(
        "--subwords",
        **_COUNT,
        help="size of a subword vocabulary shared by both languages; 0 for word vocabularies "
        "(default: the preset's)",
    )


def _fit(train: argparse._ActionsContainer) -> None:
    train.add_argument(
        "--model",
        choices=MODELS,
        default="transformer",
        help="a Transformer, or a recurrent model with Bahdanau's attention (default: %(default)s)",
    )
    train.add_argument(
        "--init",
        metavar="DIR",
        help="folder of a run, trained or imported: start from its model and vocabularies",
    )
    train.add_argument(
        "--preset",
        choices=PRESETS["transformer"],
        help="model size and training settings: toy for the grammar; tiny for about ten thousand "
        "pairs; base for the sizes of the papers; finetune for --init "
        "(default: toy, tiny with --data, or finetune with --init)",
    )
    train.add_argument(
        "--epochs",
        **_POSITIVE_INT,
        help="passes over the sentence pairs; a preset with a cooldown ends at a learning rate of "
        "zero (default: the preset's)",
    )
    train.add_argument(
        "--tokens",
        **_POSITIVE_INT,
        help="maximum number of tokens on the longer side of a batch, including padding; decrease "
        "it to save memory (default: the preset's)",
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out after its last completed epoch",
    )
    train.add_argument(
        "--tensorboard",
        action="store_true",
        help="write the numbers of each epoch for TensorBoard too, to the folder tensorboard in "
        "--out; they are in epochs.csv in any case",
    )


def _score(command: argparse.ArgumentParser) -> None:
    runs = command.add_mutually_exclusive_group()
    runs.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[DEFAULT_OUT],
        metavar="DIR",
        help=f"folders of the runs (default: {DEFAULT_OUT})",
    )
    _ensemble(runs)
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
        **_POSITIVE_INT,
        help="score the first N sentences of each part only (default: all, or 1000 for the "
        "grammar)",
    )
    command.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        default="none",
        help="sacrebleu's tokenizer for BLEU: none for tokens separated by spaces; 13a or intl for "
        "plain text; zh, ja-mecab, ko-mecab or char where words have no spaces between them "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--compare",
        type=Path,
        metavar="DIR",
        help="folder of another run: print its scores, and the p-value of each run's difference "
        "from it, by paired bootstrap",
    )
    command.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="instead of translating, print the log-probability of each translation in this file, "
        f"which has a sentence, a tab and its translation on each line: {TEXT}",
    )
    search = command.add_argument_group("search")
    _beams(search)
    _rules(search)


def _translate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help=f"text to translate, one sentence per line: {TEXT} (default: standard input)",
    )
    runs = command.add_mutually_exclusive_group()
    _out(runs, "folder of the run")
    _ensemble(runs)
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
    command.add_argument(
        "--n-best",
        **_POSITIVE_INT,
        help="with --beam K: write the N best hypotheses of each line, at most K, each on a line "
        "with its rank and score, separated by tabs",
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
        **_TEMPERATURE,
        help="with --sample: below 1, likely tokens are drawn more often (default: 1.0)",
    )
    sampling.add_argument(
        "--seed",
        **_SEED,
        help="random seed for --sample (default: 0)",
    )


def _export(command: argparse.ArgumentParser) -> None:
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
        help=f"weight type for ctranslate2: {', '.join(QUANTIZATIONS)} (default: none); for page: "
        "int8 or float16 (default: int8)",
    )


def _import(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the translator")
    _out(command, "folder of the new run")
    _languages(command, "languages of the translator", "those in tokenizer_config.json, or en de")


DEFAULT_OUT = Path("out/translator")
LANGUAGES = ("en", "de")
PAIRS = 14_000


def _languages(
    group: argparse._ActionsContainer, meaning: str, default: str = " ".join(LANGUAGES)
) -> None:
    group.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help=f"{meaning} (default: {default})",
    )


def _out(command: argparse._ActionsContainer, meaning: str) -> None:
    command.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help=f"{meaning} (default: %(default)s)",
    )


def _ensemble(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--ensemble",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folders of several runs with the same vocabularies, instead of --out: translate by "
        "the mean of their probabilities, by default with the search of the first",
    )


def _beams(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--beam",
        **_BEAMS,
        help="number of beams: hypotheses kept at each step; 1 is greedy search (default: 1, but "
        "for an imported run the number that it was published with)",
    )
    group.add_argument(
        "--length-penalty",
        **_EXPONENT,
        help="exponent of length normalization with --beam: 0 ranks by the sum of the tokens' log "
        "probabilities, 1 by their mean (default: 1.0)",
    )


def _rules(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--no-repeat-ngrams",
        **_POSITIVE_INT,
        help="never repeat an n-gram of this size (default: off)",
    )
    group.add_argument(
        "--repetition-penalty",
        **_PENALTY,
        help="divide the scores of tokens already written by X, or multiply them if negative; 1 "
        "changes nothing (default: 1)",
    )
    group.add_argument(
        "--min-length",
        **_POSITIVE_INT,
        help="write at least N tokens (default: no minimum)",
    )
    group.add_argument(
        "--max-length",
        **_POSITIVE_INT,
        help="write at most N tokens, the end token included (default: 8 plus 1.5 times the tokens "
        "of the line, both rounded up to multiples of 8)",
    )


COMMANDS = {
    "train": ("train a model and score it", TRAIN, TRAIN_EXAMPLES, _train),
    "score": ("score trained models by BLEU and chrF", SCORE, SCORE_EXAMPLES, _score),
    "translate": ("translate lines of text", TRANSLATE, TRANSLATE_EXAMPLES, _translate),
    "export": ("export a model to other formats", EXPORT, EXPORT_EXAMPLES, _export),
    "import": ("import a published translator", IMPORT, IMPORT_EXAMPLES, _import),
}


# By command, pairs of an option and another that it excludes or needs.
_CONFLICTS = {
    "train": (("pairs", "data"), ("subwords", "init"), ("symbols", "init")),
    "score": (("pairs", "compare"),),
    "translate": (("raw", "stream"), ("n_best", "stream")),
}
_NEEDS = {
    "train": (("score", "data"), ("languages", "data")),
    "translate": tuple((option, "sample") for option in ("temperature", "seed")),
}


def _given(options: argparse.Namespace, name: str) -> bool:
    value = getattr(options, name)
    return value is not None and value is not False


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options and their dependent defaults; `arguments` defaults to `sys.argv[1:]`."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    beam = getattr(options, "beam", None) or 1
    fail = arguments_parser.error
    for option, other in _CONFLICTS.get(options.command, ()):
        if _given(options, option) and _given(options, other):
            fail(f"{_argument(option)} cannot be combined with {_argument(other)}")
    for option, other in _NEEDS.get(options.command, ()):
        if _given(options, option) and not _given(options, other):
            fail(f"{_argument(option)} needs {_argument(other)}")
    if options.command == "train":
        options.languages = options.languages or LANGUAGES
        options.pairs = options.pairs or PAIRS
        default = "finetune" if options.init else "tiny" if options.data else "toy"
        options.preset = options.preset or default
        if options.preset == "finetune" and not options.init:
            fail("--preset finetune needs --init")
        if options.preset not in PRESETS[options.model]:
            others = listed(PRESETS[options.model])
            fail(f"--model {options.model} has no --preset {options.preset}, but {others}")
        preset = PRESETS[options.model][options.preset]
        for setting in ("subwords", "tokens"):
            if getattr(options, setting) is None:
                setattr(options, setting, getattr(preset, setting))
        if options.symbols and not options.subwords:
            fail("--symbols needs a subword vocabulary: --subwords N")
        if options.sentences is None and not options.data:
            options.sentences = 1000
    if options.command == "score" and options.pairs:
        if options.beam or options.tokenize != "none":
            fail("--pairs cannot be combined with --beam or --tokenize")
        if len(options.out) > 1:
            fail("--pairs needs a single folder in --out")
    if options.command == "translate":
        options.temperature = options.temperature or 1.0
        options.seed = options.seed or 0
        if options.sample and beam > 1:
            fail("--sample cannot be combined with --beam")
        if options.n_best and (options.sample or beam < max(2, options.n_best)):
            fail("--n-best N needs --beam K with K above 1 and at least N")
    if options.command not in ("export", "import") and options.length_penalty is not None:
        # An imported run has beams of its own.
        if options.beam == 1 or options.command == "train" and beam == 1:
            fail("--length-penalty needs --beam K with K above 1")
    if options.command == "export" and options.quantization:
        if options.to not in ("ctranslate2", "page"):
            fail("--quantization needs --to ctranslate2 or --to page")
        if options.to == "page" and options.quantization not in PAGE_QUANTIZATIONS:
            kinds = " or ".join(PAGE_QUANTIZATIONS)
            fail(f"--quantization {options.quantization}: --to page takes {kinds}")
    return options
