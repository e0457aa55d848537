"""The commands of `python -m tfattn.translator` and the table of their options.

The parser, the checks of names and combinations, and the record of a run are made from the table.
"""

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
# From a format to the types of its weights.
QUANTIZATIONS = {
    "ctranslate2": ("int8", "int8_float32", "int8_float16", "int16", "float16"),
    "page": ("int8", "float16"),
}
DEFAULT_OUT = Path("out/translator")
LANGUAGES = ("en", "de")
PAIRS = 14_000  # drawn from the grammar
GRAMMAR_SENTENCES = 1000  # scored of those

TEXT = "UTF-8, plain or compressed by gzip"

TRAIN = """
Trains a translation model and scores it.

Without --data, the model learns English to French from sentences of a small grammar, in which
adjectives change sides, articles agree and negation wraps the verb; the training takes a few
minutes on two cores. With --data DIR it learns from files with one sentence per line and tokens
separated by spaces; line n of train.de translates line n of train.en.

The folder --out receives the model, its vocabularies, two figures and, after each epoch, a backup.
A run can be interrupted at any time and continued with --resume.

examples:
  train on files, and score test_2016.en and test_2016.de with five beams:
    %(prog)s --data corpus --beam 5 --score test_2016 --out out/en-de
  continue that run after an interruption:
    %(prog)s --data corpus --beam 5 --score test_2016 --out out/en-de --resume
  continue from another run, such as an imported one, with your own pairs:
    %(prog)s --init out/en-de --data corpus --out out/mine
"""

SCORE = """
Scores the trained models in one or more folders on one or more parts of a corpus.

Prints BLEU and chrF by sacrebleu, with its signatures and 95% intervals by bootstrap with 1000
resamples, or fewer (at least 100) for more than 10,000 sentences, to save memory. For several runs,
as with several seeds, prints their mean and standard deviation too.

examples:
    %(prog)s --beam 5 --parts val test_2016 --data corpus --out out/seed1 out/seed2
  whether a second run differs from the first by more than chance:
    %(prog)s --parts test_2016 --out out/seed2 --compare out/seed1
  how likely given translations are, such as those of another program:
    %(prog)s --pairs pairs.tsv --out out/en-de
  several runs as one:
    %(prog)s --beam 5 --parts test_2016 --ensemble out/seed1 out/seed2
  translations into Chinese, without spaces between words:
    %(prog)s --tokenize zh --out out/en-zh
"""

TRANSLATE = """
Translates each line of a file or of standard input, and writes it to standard output.

examples:
    %(prog)s --beam 5 --out out/en-de lines.en > lines.de
    echo "A man, in a hat." | %(prog)s --raw --out out/en-de
  by the mean probability of several runs, as with several seeds:
    %(prog)s --beam 5 lines.en --ensemble out/seed1 out/seed2 > lines.de
"""

EXPORT = """
Exports the model of a run to a format of other programs.

examples:
    %(prog)s --to ctranslate2 --quantization int8 --out out/en-de
  a page that translates in the browser, and shows how:
    %(prog)s --to page --out out/en-de
"""

IMPORT = """
Makes the folder of a run from that of a published translator (MarianMTModel, MarianTokenizer).

Reads config.json, model.safetensors (or pytorch_model.bin; each may be in shards, with an index),
source.spm, target.spm and vocab.json.

examples:
    %(prog)s opus-mt-en-fr --out out/en-fr
"""


class WrongName(ValueError):
    """An option names something that is not there: exit status 2, as for invalid arguments."""

    def __init__(self, option: str, missing: str, there: Iterable[object] = ()):
        names = sorted(map(str, there))
        shown = [*names[:10], *([f"{len(names) - 10} more"] if len(names) > 10 else [])]
        but = f", but {', '.join(shown)}" if shown else ""
        super().__init__(f"{option}: there is no {missing}{but}")


class Option(NamedTuple):
    """An argument of a command."""

    help: str  # its line in `--help`
    kind: dict[str, Any]  # arguments of `add_argument`: how its value is read
    default: Any = None
    needs: str = ""  # another option, without which it cannot be given
    excludes: tuple[str, ...] = ()  # other options, with which it cannot be given
    reads: str = ""  # for a path to read, such paths in the folder above; "*" for a file
    recorded: bool = False  # whether a resumed run must have the same value


def _option(reads: str = "", **kind: Any) -> Callable[..., Option]:
    """Function from the help of an option of this kind, and its further entries, to the option."""
    return functools.partial(Option, kind=kind, reads=reads)


def _number(
    kind: type[Any], fits: Callable[[Any], bool], expected: str, metavar: str = "N"
) -> Callable[..., Option]:
    def number(text: str) -> Any:
        # For a ValueError, argparse's own message would name this function.
        with contextlib.suppress(ValueError):
            value = kind(text)
            if fits(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {expected}, received {text}")

    return _option(type=number, metavar=metavar)


_INFINITY = float("inf")
# The range of the seeds of random generators.
_seed = _number(int, lambda n: 0 <= n < 2**32, "an integer of at least 0 and below 2**32")
_count = _number(int, lambda n: n >= 0, "an integer of at least 0")
_positive = _number(int, lambda n: n >= 1, "an integer of at least 1")
_beams = _number(int, lambda n: 1 <= n <= 1000, "an integer from 1 to 1000", "K")
_penalty = _number(float, lambda x: 1 <= x < _INFINITY, "a number of at least 1", "X")
_temperature = _number(float, lambda x: 0 < x < _INFINITY, "a number above 0", "T")
_exponent = _number(float, lambda x: 0 <= x < _INFINITY, "a number of at least 0", "P")
_flag = _option(action="store_true")
_corpus = _option(type=Path, metavar="DIR", reads="*/train.*")
_run = _option(type=Path, metavar="DIR", reads="*/model.keras")
_runs = _option(type=Path, nargs="+", metavar="DIR", reads="*/model.keras")
_languages = _option(nargs=2, metavar=("SOURCE", "TARGET"))

_OUT = _run("folder of the run (default: %(default)s)", default=DEFAULT_OUT)
_NEW = _OUT._replace(help="folder of the new run (default: %(default)s)", reads="")
_ENSEMBLE = _runs(
    "folders of several runs with the same vocabularies, instead of --out: translate by the mean "
    "of their probabilities, by default with the search of the first",
)
_BEAMS = {
    "--beam": _beams(
        "number of beams: hypotheses kept at each step; 1 is greedy search (default: 1, but for an "
        "imported run the number that it was published with)"
    ),
    "--length-penalty": _exponent(
        "exponent of length normalization with --beam: 0 ranks by the sum of the tokens' log "
        "probabilities, 1 by their mean (default: 1.0)"
    ),
}
_SEARCH = {
    **_BEAMS,
    "--no-repeat-ngrams": _positive("never repeat an n-gram of this size (default: off)"),
    "--repetition-penalty": _penalty(
        "divide the scores of tokens already written by X, or multiply them if negative; 1 changes "
        "nothing (default: 1)"
    ),
    "--min-length": _positive("write at least N tokens (default: no minimum)"),
    "--max-length": _positive(
        "write at most N tokens, the end token included (default: 8 plus 1.5 times the tokens of "
        "the line, both rounded up to multiples of 8)"
    ),
}


class Command(NamedTuple):
    """A command: its line in `--help`, its own help, and its options by their heading."""

    summary: str
    text: str
    groups: dict[str, dict[str, Option]]

    @property
    def options(self) -> dict[str, Option]:
        return {name: option for group in self.groups.values() for name, option in group.items()}


_TRAIN = {
    "": {
        "--out": _NEW._replace(help="folder of the run and its model (default: %(default)s)"),
        "--seed": _seed("random seed (default: %(default)s)", default=0, recorded=True),
    },
    "training data": {
        "--data": _corpus(
            f"folder with train.en, train.de, val.en, val.de (also with .gz): {TEXT}"
        ),
        "--languages": _languages(
            f"file name extensions in --data (default: {' '.join(LANGUAGES)})",
            needs="--data",
            recorded=True,
        ),
        "--pairs": _positive(
            "without --data: sentence pairs to draw from the grammar, including the held-out tenth "
            f"(default: {PAIRS})",
            excludes=("--data",),
            recorded=True,
        ),
        "--symbols": _option(nargs="+", metavar="SYMBOL")(
            "symbols of your own in the subword vocabulary, such as <2fr>: each is one entry, and "
            "is never split",
            recorded=True,
        ),
        "--subwords": _count(
            "size of a subword vocabulary shared by both languages; 0 for word vocabularies "
            "(default: the preset's)",
            recorded=True,
        ),
    },
    "model and training": {
        "--model": _option(choices=MODELS)(
            "a Transformer, or a recurrent model with Bahdanau's attention (default: %(default)s)",
            default="transformer",
            recorded=True,
        ),
        "--init": _run(
            "folder of a run, trained or imported: start from its model and vocabularies",
            excludes=("--subwords", "--symbols"),
            recorded=True,
        ),
        "--preset": _option(choices=PRESETS["transformer"])(
            "model size and training settings: toy for the grammar; tiny for about ten thousand "
            "pairs; base for the sizes of the papers; finetune for --init "
            "(default: toy, tiny with --data, or finetune with --init)",
            recorded=True,
        ),
        "--epochs": _positive(
            "passes over the sentence pairs; a preset with a cooldown ends at a learning rate of "
            "zero (default: the preset's)"
        ),
        "--tokens": _positive(
            "maximum number of tokens on the longer side of a batch, including padding; decrease "
            "it to save memory (default: the preset's)",
            recorded=True,
        ),
        "--resume": _flag("continue the run in --out after its last completed epoch"),
        "--tensorboard": _flag(
            "write the numbers of each epoch for TensorBoard too, to the folder tensorboard in "
            "--out; they are in epochs.csv in any case"
        ),
    },
    "scoring": {
        "--score": _option(metavar="PART")(
            "with --data: files to score after the training, such as test_2016 for test_2016.en "
            "and test_2016.de (default: val)",
            needs="--data",
        ),
        "--sentences": _positive(
            "score the first N sentences only, during training too (default: all, or 1000 for the "
            "grammar)",
            recorded=True,
        ),
        **_BEAMS,
    },
}
_SCORE = {
    "": {
        "--out": _runs(f"folders of the runs (default: {DEFAULT_OUT})", default=[DEFAULT_OUT]),
        "--ensemble": _ENSEMBLE,
        "--data": _corpus("folder of the files (default: the folder used for training)"),
        "--parts": _option(nargs="+", metavar="PART")(
            "files to score, such as test_2016 for test_2016.en and test_2016.de; for a model of "
            "the grammar only val, its held-out sentences (default: val)",
            default=["val"],
        ),
        "--sentences": _positive(
            "score the first N sentences of each part only (default: all, or 1000 for the grammar)"
        ),
        "--tokenize": _option(choices=TOKENIZERS)(
            "sacrebleu's tokenizer for BLEU: none for tokens separated by spaces; 13a or intl for "
            "plain text; zh, ja-mecab, ko-mecab or char where words have no spaces between them "
            "(default: none)"
        ),
        "--compare": _run(
            "folder of another run: print its scores, and the p-value of each run's difference "
            "from it, by paired bootstrap",
        ),
        "--pairs": _option(type=Path, metavar="FILE", reads="*")(
            "instead of translating, print the log-probability of each translation in this file, "
            f"which has a sentence, a tab and its translation on each line: {TEXT}",
            excludes=("--compare", "--beam", "--tokenize"),
        ),
    },
    "search": _SEARCH,
}
_TRANSLATE = {
    "": {
        "file": _option(type=Path, nargs="?", metavar="FILE", reads="*")(
            f"text to translate, one sentence per line: {TEXT} (default: standard input)",
        ),
        "--out": _OUT,
        "--ensemble": _ENSEMBLE,
        "--raw": _flag(
            "read and write plain text: tokenize it, and detokenize the translation, as Moses "
            "does; needs sacremoses"
        ),
        "--stream": _flag(
            "write each translation during the search, as far as it is final",
            excludes=("--raw", "--n-best"),
        ),
        "--n-best": _positive(
            "with --beam K: write the N best hypotheses of each line, at most K, each on a line "
            "with its rank and score, separated by tabs"
        ),
    },
    "search": _SEARCH,
    "sampling": {
        "--sample": _flag(
            "draw each token by its probability instead of searching for the best translation"
        ),
        "--temperature": _temperature(
            "with --sample: below 1, likely tokens are drawn more often (default: 1.0)",
            needs="--sample",
        ),
        "--seed": _seed("random seed for --sample (default: 0)", needs="--sample"),
    },
}
_EXPORT = {
    "": {
        "--to": _option(choices=EXPORTS, required=True)("export format"),
        "--out": _OUT,
        "--into": _option(type=Path, metavar="PATH")(
            f"path to write (default: in --out, {', '.join(sorted(EXPORTS.values()))})"
        ),
        "--quantization": _option(choices=QUANTIZATIONS["ctranslate2"], metavar="TYPE")(
            f"weight type for ctranslate2: {', '.join(QUANTIZATIONS['ctranslate2'])} "
            "(default: none); for page: int8 or float16 (default: int8)"
        ),
    }
}
_IMPORT = {
    "": {
        "folder": _option(type=Path, metavar="FOLDER")(
            "folder of the translator", reads="*/config.json"
        ),
        "--out": _NEW,
        "--languages": _languages(
            "languages of the translator (default: those in tokenizer_config.json, or en de)"
        ),
    }
}
COMMANDS = {
    "train": Command("train a model and score it", TRAIN, _TRAIN),
    "score": Command("score trained models by BLEU and chrF", SCORE, _SCORE),
    "translate": Command("translate lines of text", TRANSLATE, _TRANSLATE),
    "export": Command("export a model to other formats", EXPORT, _EXPORT),
    "import": Command("import a published translator", IMPORT, _IMPORT),
}


def value(options: argparse.Namespace, name: str) -> Any:
    """The value of an option by its name in the table."""
    return getattr(options, name.lstrip("-").replace("-", "_"))


def check_paths(options: argparse.Namespace) -> None:
    """Raises `WrongName` for a file or folder to read that does not exist."""
    for name, option in COMMANDS[options.command].options.items():
        given = value(options, name)
        if given is None or not option.reads:
            continue
        is_file = option.reads == "*"
        for path in given if isinstance(given, list) else [given]:
            if path == DEFAULT_OUT or path.exists() and path.is_dir() != is_file:
                continue
            above = [path.parent] if is_file else [path.parent, DEFAULT_OUT.parent]
            found = [each for at in above for each in at.glob(option.reads) if each.is_file()]
            others = found if is_file else {each.parent for each in found}
            label = name if name.startswith("-") else name.upper()
            raise WrongName(label, f"{'file' if is_file else 'folder'} {path}", others)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    found = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Trains, scores, applies and exports translation models.\n\nEach command works "
        "on the folder of a run, --out DIR, with the model and its vocabularies.",
        epilog=f"'{PROGRAM} COMMAND --help' shows the arguments of a command, with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = found.add_subparsers(dest="command", title="commands", required=True)
    for name, entry in COMMANDS.items():
        description, heading, examples = entry.text.partition("examples:\n")
        command = commands.add_parser(
            name,
            help=entry.summary,
            description=description,
            epilog=heading + examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        runs: argparse._ActionsContainer = command
        if "--ensemble" in entry.options:
            runs = command.add_mutually_exclusive_group()
        for title, options in entry.groups.items():
            group = command.add_argument_group(title) if title else command
            for flag, option in options.items():
                place = runs if flag in ("--out", "--ensemble") else group
                place.add_argument(flag, help=option.help, default=option.default, **option.kind)
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options and their dependent defaults; `arguments` defaults to `sys.argv[1:]`."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    fail = arguments_parser.error
    table = COMMANDS[options.command].options
    given = {name for name in table if value(options, name) is not None}
    for name in sorted(given):
        for other in table[name].excludes:
            if other in given:
                fail(f"{name} cannot be combined with {other}")
        if table[name].needs and table[name].needs not in given:
            fail(f"{name} needs {table[name].needs}")
    beam = getattr(options, "beam", None) or 1
    if options.command == "train":
        options.languages = options.languages or LANGUAGES
        options.pairs = options.pairs or PAIRS
        default = "finetune" if options.init else "tiny" if options.data else "toy"
        options.preset = options.preset or default
        if options.preset == "finetune" and not options.init:
            fail("--preset finetune needs --init")
        if options.preset not in PRESETS[options.model]:
            others = ", ".join(PRESETS[options.model])
            fail(f"--model {options.model} has no --preset {options.preset}, but {others}")
        preset = PRESETS[options.model][options.preset]
        for setting in ("subwords", "tokens"):
            if getattr(options, setting) is None:
                setattr(options, setting, getattr(preset, setting))
        if options.symbols and not options.subwords:
            fail("--symbols needs a subword vocabulary: --subwords N")
        options.sentences = options.sentences or (None if options.data else GRAMMAR_SENTENCES)
    elif options.command == "score":
        if options.pairs and len(options.out) > 1:
            fail("--pairs needs a single folder in --out")
    elif options.command == "translate":
        if options.sample and beam > 1:
            fail("--sample cannot be combined with --beam")
        if options.n_best and (options.sample or beam < max(2, options.n_best)):
            fail("--n-best N needs --beam K with K above 1 and at least N")
    elif options.command == "export" and options.quantization:
        formats = [to for to, types in QUANTIZATIONS.items() if options.quantization in types]
        if options.to not in formats:
            fail(f"--quantization {options.quantization} needs --to {' or '.join(formats)}")
    if "--length-penalty" in given:
        # An imported run has beams of its own.
        if options.beam == 1 or options.command == "train" and beam == 1:
            fail("--length-penalty needs --beam K with K above 1")
    return options
