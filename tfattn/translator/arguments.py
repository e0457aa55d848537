"""The commands of `python -m tfattn.translator` and the table of their options.

The parser, the checks of combinations, and the record of a run are made from the table.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
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
# From a format to its types of weights.
QUANTIZATIONS = {
    "ctranslate2": ("int8", "int8_float32", "int8_float16", "int16", "float16"),
    "page": ("int8", "float16"),
}
DEFAULT_OUT = Path("out/translator")
LANGUAGES = ("en", "de")

TEXT = "UTF-8, or UTF-16 with a byte order mark, plain or compressed by gzip"

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


def _at_least_1(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"must be an integer of at least 1, received {text}")


_INT: dict[str, Any] = {"type": int, "metavar": "N"}
_POSITIVE: dict[str, Any] = {"type": _at_least_1, "metavar": "N"}
_FLOAT: dict[str, Any] = {"type": float, "metavar": "X"}
_FLAG: dict[str, Any] = {"action": "store_true"}
_FOLDER: dict[str, Any] = {"type": Path, "metavar": "DIR"}
_FOLDERS: dict[str, Any] = {**_FOLDER, "nargs": "+"}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_LANGUAGES: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}

_RUN = "*/model.keras"
_OUT = Option("folder of the run (default: %(default)s)", _FOLDER, DEFAULT_OUT, reads=_RUN)
_NEW = _OUT._replace(help="folder of the new run (default: %(default)s)", reads="")
_ENSEMBLE = Option(
    "folders of several runs with the same vocabularies, instead of --out: translate by the mean "
    "of their probabilities, by default with the search of the first",
    _FOLDERS,
    excludes=("--out",),
    reads=_RUN,
)
_BEAMS = {
    "--beam": Option(
        "number of beams: hypotheses kept at each step; 1 is greedy search (default: 1, but for an "
        "imported run the number that it was published with)",
        {**_INT, "metavar": "K"},
    ),
    "--length-penalty": Option(
        "exponent of length normalization with --beam: 0 ranks by the sum of the tokens' log "
        "probabilities, 1 by their mean (default: 1.0)",
        {**_FLOAT, "metavar": "P"},
    ),
}
_SEARCH = {
    **_BEAMS,
    "--no-repeat-ngrams": Option("never repeat an n-gram of this size (default: off)", _INT),
    "--repetition-penalty": Option(
        "divide the scores of tokens already written by X, or multiply them if negative; 1 changes "
        "nothing (default: 1)",
        _FLOAT,
    ),
    "--min-length": Option("write at least N tokens (default: no minimum)", _INT),
    "--max-length": Option(
        "write at most N tokens, the end token included (default: 8 plus 1.5 times the tokens of "
        "the line, both rounded up to multiples of 8)",
        _INT,
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
        "--seed": Option("random seed (default: %(default)s)", _INT, 0, recorded=True),
    },
    "training data": {
        "--data": Option(
            "folder with train.en, train.de, val.en, val.de (also with .gz); pairs with a sentence "
            f"of 100 tokens or more are left out. {TEXT}",
            _FOLDER,
            reads="*/train.*",
        ),
        "--languages": Option(
            "file name extensions in --data (default: en de)",
            _LANGUAGES,
            needs="--data",
            recorded=True,
        ),
        "--pairs": Option(
            "without --data: sentence pairs to draw from the grammar, including the held-out tenth "
            "(default: %(default)s)",
            _INT,
            14_000,
            excludes=("--data",),
            recorded=True,
        ),
        "--symbols": Option(
            "symbols of your own in the subword vocabulary, such as <2fr>: each is one entry, and "
            "is never split",
            {"nargs": "+", "metavar": "SYMBOL"},
            recorded=True,
        ),
        "--subwords": Option(
            "size of a subword vocabulary shared by both languages; 0 for word vocabularies "
            "(default: the preset's)",
            _INT,
            recorded=True,
        ),
    },
    "model and training": {
        "--model": Option(
            "a Transformer, or a recurrent model with Bahdanau's attention (default: %(default)s)",
            {"choices": MODELS},
            "transformer",
            recorded=True,
        ),
        "--init": Option(
            "folder of a run, trained or imported: start from its model and vocabularies",
            _FOLDER,
            excludes=("--subwords", "--symbols"),
            reads=_RUN,
            recorded=True,
        ),
        "--preset": Option(
            "model size and training settings: toy for the grammar; tiny for about ten thousand "
            "pairs; base for the sizes of the papers; finetune for --init "
            "(default: toy, tiny with --data, or finetune with --init)",
            {"choices": PRESETS["transformer"]},
            recorded=True,
        ),
        "--epochs": Option(
            "passes over the sentence pairs; a preset with a cooldown ends at a learning rate of "
            "zero (default: the preset's)",
            _POSITIVE,
        ),
        "--tokens": Option(
            "maximum number of tokens on the longer side of a batch, including padding; decrease "
            "it to save memory (default: the preset's)",
            _INT,
            recorded=True,
        ),
        "--resume": Option("continue the run in --out after its last completed epoch", _FLAG),
    },
    "scoring": {
        "--score": Option(
            "with --data: files to score after the training, such as test_2016 for test_2016.en "
            "and test_2016.de (default: val)",
            {"metavar": "PART"},
            needs="--data",
        ),
        "--sentences": Option(
            "score the first N sentences only, during training too (default: all)",
            _POSITIVE,
            recorded=True,
        ),
        **_BEAMS,
    },
}
_SCORE = {
    "": {
        "--out": Option(
            f"folders of the runs (default: {DEFAULT_OUT})", _FOLDERS, [DEFAULT_OUT], reads=_RUN
        ),
        "--ensemble": _ENSEMBLE,
        "--data": Option(
            "folder of the files (default: the folder used for training)",
            _FOLDER,
            reads="*/train.*",
        ),
        "--parts": Option(
            "files to score, such as test_2016 for test_2016.en and test_2016.de; for a model of "
            "the grammar only val, its held-out sentences (default: val)",
            {"nargs": "+", "metavar": "PART"},
            ["val"],
        ),
        "--sentences": Option(
            "score the first N sentences of each part only (default: all)", _POSITIVE
        ),
        "--tokenize": Option(
            "sacrebleu's tokenizer for BLEU: none for tokens separated by spaces; 13a or intl for "
            "plain text; zh, ja-mecab, ko-mecab or char where words have no spaces between them "
            "(default: none)",
            {"choices": TOKENIZERS},
        ),
        "--compare": Option(
            "folder of another run: print its scores, and the p-value of each run's difference "
            "from it, by paired bootstrap",
            _FOLDER,
            reads=_RUN,
        ),
        "--pairs": Option(
            "instead of translating, print the log-probability of each translation in this file, "
            f"which has a sentence, a tab and its translation on each line: {TEXT}",
            _FILE,
            excludes=("--compare", "--tokenize", "--data", "--parts", "--sentences", *_SEARCH),
            reads="*",
        ),
    },
    "search": _SEARCH,
}
_TRANSLATE = {
    "": {
        "file": Option(
            f"text to translate, one sentence per line: {TEXT} (default: standard input)",
            {**_FILE, "nargs": "?"},
            reads="*",
        ),
        "--out": _OUT,
        "--ensemble": _ENSEMBLE,
        "--raw": Option(
            "read and write plain text: tokenize it, and detokenize the translation, as Moses "
            "does; needs sacremoses",
            _FLAG,
        ),
        "--stream": Option(
            "write each translation during the search, as far as it is final",
            _FLAG,
            excludes=("--raw", "--n-best"),
        ),
        "--n-best": Option(
            "with --beam K: write the N best hypotheses of each line, at most K, each on a line "
            "with its rank and score, separated by tabs",
            _POSITIVE,
            excludes=("--sample",),
        ),
    },
    "search": _SEARCH,
    "sampling": {
        "--sample": Option(
            "draw each token by its probability instead of searching for the best translation",
            _FLAG,
            excludes=("--beam",),
        ),
        "--temperature": Option(
            "with --sample: below 1, likely tokens are drawn more often (default: %(default)s)",
            {**_FLOAT, "metavar": "T"},
            1.0,
            needs="--sample",
        ),
        "--seed": Option(
            "random seed for --sample (default: %(default)s)", _INT, 0, needs="--sample"
        ),
    },
}
_EXPORT = {
    "": {
        "--to": Option("export format", {"choices": EXPORTS, "required": True}),
        "--out": _OUT,
        "--quantization": Option(
            "weight type for ctranslate2: int8, int8_float32, int8_float16, int16, float16 "
            "(default: none); for page: int8 or float16 (default: int8)",
            {"choices": QUANTIZATIONS["ctranslate2"], "metavar": "TYPE"},
        ),
    }
}
_IMPORT = {
    "": {
        "folder": Option(
            "folder of the translator", {**_FOLDER, "metavar": "FOLDER"}, reads="*/config.json"
        ),
        "--out": _NEW,
        "--languages": Option(
            "languages of the translator (default: those in tokenizer_config.json, or en de)",
            _LANGUAGES,
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


def recorded(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a training that a resumed run must share, with the types of a JSON file."""
    table = COMMANDS["train"].options
    found = {name[2:]: value(options, name) for name in table if table[name].recorded}
    return json.loads(json.dumps(found, default=str))


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
    formatter = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Trains, scores, applies and exports translation models.\n\nEach command works "
        "on the folder of a run, --out DIR, with the model and its vocabularies.",
        epilog=f"'{PROGRAM} COMMAND --help' shows the arguments of a command, with examples.",
        formatter_class=formatter,
    )
    commands = found.add_subparsers(dest="command", title="commands", required=True)
    for name, (summary, text, groups) in COMMANDS.items():
        description, heading, examples = text.partition("examples:\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=heading + examples,
            formatter_class=formatter,
        )
        for title, options in groups.items():
            group = command.add_argument_group(title) if title else command
            for flag, option in options.items():
                group.add_argument(flag, help=option.help, default=option.default, **option.kind)
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options and their dependent defaults; `arguments` defaults to `sys.argv[1:]`."""
    arguments_parser = parser()
    options = arguments_parser.parse_args(arguments)
    fail = arguments_parser.error
    table = COMMANDS[options.command].options
    given = [name for name in table if value(options, name) not in (None, table[name].default)]
    for name in given:
        for other in table[name].excludes:
            if other in given:
                fail(f"{name} cannot be combined with {other}")
        if table[name].needs and table[name].needs not in given:
            fail(f"{name} needs {table[name].needs}")
    if options.command == "train":
        options.languages = options.languages or (LANGUAGES if options.data else ("en", "fr"))
        default = "finetune" if options.init else "tiny" if options.data else "toy"
        options.preset = options.preset or default
        if options.preset == "finetune" and not options.init:
            fail("--preset finetune needs --init")
        preset = PRESETS[options.model][options.preset]
        options.subwords = preset.subwords if options.subwords is None else options.subwords
        options.tokens = preset.tokens if options.tokens is None else options.tokens
        if options.symbols and not options.subwords:
            fail("--symbols needs a subword vocabulary: --subwords N")
    elif options.command == "score" and options.pairs and len(options.out or ()) > 1:
        fail("--pairs needs a single folder in --out")
    elif options.command == "export" and options.quantization:
        formats = [to for to, types in QUANTIZATIONS.items() if options.quantization in types]
        if options.to not in formats:
            fail(f"--quantization {options.quantization} needs --to {' or '.join(formats)}")
    return options
