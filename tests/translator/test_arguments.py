"""The commands: their help, and invalid arguments refused before any work."""

import argparse
import re
import sys

import pytest

from tests.translator.command import status, write_corpus
from tfattn.translator.arguments import COMMANDS, DEFAULT_OUT, EXPORTS, parse, parser
from tfattn.translator.folder import Folder
from tfattn.translator.presets import MODELS, PRESETS
from tfattn.translator.translating import search


def test_help_names_every_command(ended, tmp_path, capsys):
    assert ended("--help", folder=tmp_path) == 0
    shown = capsys.readouterr().out
    for name, (summary, *_) in COMMANDS.items():
        assert re.search(f"^    {name} +{summary}$", shown, re.M)
    assert len(set(EXPORTS.values())) == len(EXPORTS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_commands_to_copy(command, ended, tmp_path, capsys):
    assert ended(command, "--help", folder=tmp_path) == 0
    shown = capsys.readouterr().out
    (commands,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert all(action.help for action in commands.choices[command]._actions)
    examples = re.findall(r"(?:    |\| )python -m (.*)", shown)
    assert examples
    for example in examples:  # each a line that the parser takes
        program, *arguments = example.split(" > ")[0].split()
        assert program == "tfattn.translator" and arguments[0] == command
        assert str(parse(arguments).out).count("out/")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", MODELS)
def test_train_options_default_to_those_of_the_preset(model):
    toy = parse(["train", "--model", model])
    tiny = parse(["train", "--model", model, "--data", "corpus"])
    for options, name in ((toy, "toy"), (tiny, "tiny")):
        preset = PRESETS[model][name]
        assert options.preset == name
        assert (options.subwords, options.tokens) == (preset.subwords, preset.tokens)
    numbers = ("--subwords", "0", "--tokens", "7", "--sentences", "1")
    given = parse(["train", "--data", "corpus", *numbers])
    assert (given.subwords, given.tokens, given.sentences) == (0, 7, 1)


def test_search_options_have_defaults():
    for command in ("train", "score", "translate"):
        assert search(parse([command, "--beam", "2"])).length_penalty == 1.0
        for given in (0.2, 0.0):
            options = ["--beam", "2", "--length-penalty", str(given)]
            assert search(parse([command, *options])).length_penalty == given
    given = ["--temperature", "0.5", "--seed", "7"]
    for more, temperature, seed in (([], 1.0, 0), (given, 0.5, 7)):
        drawn = search(parse(["translate", "--sample", *more]))
        assert (drawn.temperature, drawn.seed.get_config()["seed"]) == (temperature, seed)


@pytest.mark.parametrize(
    "model, name", [(model, name) for model in MODELS for name in PRESETS[model]]
)
def test_presets_have_valid_sizes_for_their_models(model, name):
    preset = PRESETS[model][name]
    made = MODELS[model](11, share_embeddings=bool(preset.subwords), **preset.sizes)
    assert preset.sizes.items() <= made.get_config().items()
    assert preset.cooldown < preset.epochs
    begin, end = preset.bpe_dropout
    assert 0 <= begin <= end < preset.epochs


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("train --epochs 0", "argument --epochs: must be an integer of at least 1, received 0"),
        ("train --beam two", "argument --beam: invalid int value: 'two'"),
        ("train --length-penalty x", "argument --length-penalty: invalid float value: 'x'"),
        ("train --score test", "--score needs --data"),
        ("train --languages en fr", "--languages needs --data"),
        ("train --data corpus --pairs 9", "--pairs cannot be combined with --data"),
        ("train --init out/run --subwords 9", "--init cannot be combined with --subwords"),
        ("train --preset finetune", "--preset finetune needs --init"),
        ("score --pairs lines --out a b", "--pairs needs a single folder in --out"),
        ("import", "the following arguments are required: FOLDER"),
        ("translate --sample --beam 2", "--sample cannot be combined with --beam"),
        ("translate --temperature 0.5", "--temperature needs --sample"),
        ("translate --seed 1", "--seed needs --sample"),
        ("score --ensemble a b --out c", "--ensemble cannot be combined with --out"),
        ("translate --out c --ensemble a b", "--ensemble cannot be combined with --out"),
        ("train --symbols <2fr>", "--symbols needs a subword vocabulary: --subwords N"),
        ("train --init out/run --symbols <2fr>", "--init cannot be combined with --symbols"),
        (
            "train --init out/run --data corpus --preset tiny --symbols <2fr>",
            "--init cannot be combined with --symbols",
        ),
        ("translate --stream --raw", "--stream cannot be combined with --raw"),
        ("translate --n-best 2 --beam 2 --stream", "--stream cannot be combined with --n-best"),
        ("score --pairs lines --beam 2", "--pairs cannot be combined with --beam"),
        ("score --pairs lines --tokenize zh", "--pairs cannot be combined with --tokenize"),
        ("score --pairs lines --sentences 2", "--pairs cannot be combined with --sentences"),
        ("score --pairs lines --data a", "--pairs cannot be combined with --data"),
        ("score --pairs lines --parts test", "--pairs cannot be combined with --parts"),
        ("score --pairs lines --min-length 2", "--pairs cannot be combined with --min-length"),
        ("score --pairs lines --compare a", "--pairs cannot be combined with --compare"),
        ("export", "the following arguments are required: --to"),
        ("export --to pickle", "argument --to: invalid choice: 'pickle'"),
        ("translate --sample --n-best 2", "--n-best cannot be combined with --sample"),
        (
            "export --to onnx --quantization int8",
            "--quantization int8 needs --to ctranslate2 or page",
        ),
        ("export --to page --quantization int16", "--quantization int16 needs --to ctranslate2"),
        ("export --to page --quantization int7", "--quantization: invalid choice: 'int7' (choose"),
        ("--translate", "the following arguments are required: command"),
        ("", "the following arguments are required: command"),
    ],
)
def test_commands_invalid_arguments_are_named_with_status_2(
    ended, tmp_path, capsys, arguments, said
):
    assert ended(*arguments.split(), folder=tmp_path) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder with a run of other files, a corpus of English and French, and a model."""
    monkeypatch.chdir(tmp_path)
    for name in ("corpus", "empty", "out/en-fr"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("train.en", "train.fr", "val.en", "val.fr.gz"):
        (tmp_path / "corpus" / name).touch()
    (tmp_path / "out" / "en-fr" / "model.keras").touch()
    (tmp_path / "lines.en").touch()
    Folder(tmp_path / "out" / "en-fr").add_to_record(
        settings={"languages": ["en", "fr"]}, data=str(tmp_path / "corpus")
    )


FILES = ", but train.en, train.fr, val.en, val.fr.gz"


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("train --data corpus", f"--languages: there is no file corpus/train.de{FILES}"),
        ("train --data empty", "--data: there is no file empty/train.en"),
        ("train --data corpu", "--data: there is no folder corpu, but corpus"),
        ("train --init out/en-de", "--init: there is no folder out/en-de, but out/en-fr"),
        ("score --out out/en-fr --parts dev", f"--parts: there is no file corpus/dev.en{FILES}"),
        ("score --out out/en-fr --data empty", "--data: there is no file empty/val.en"),
        ("score --out out/en-fr nowhere", "--out: there is no folder nowhere, but out/en-fr"),
        ("score --out out/en-fr --compare out/en-de", "--compare: there is no folder out/en-de, "),
        ("score --pairs corpus", "--pairs: there is no file corpus, but lines.en"),
        ("translate lines", "FILE: there is no file lines, but lines.en"),
        ("translate --ensemble out/en-fr out/x", "--ensemble: there is no folder out/x, but out/e"),
        ("export --to page --out out/en-de", "--out: there is no folder out/en-de, but out/en-fr"),
        ("import opus", "FOLDER: there is no folder opus"),
    ],
)
def test_commands_wrong_name_is_one_line_with_what_is_there_and_status_2(
    places, tmp_path, capsys, arguments, said
):
    assert status(*arguments.split()) == 2
    error = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert error.startswith(f"error: {said}") and error.count("\n") == 1
    assert not (tmp_path / "out" / "translator").exists()


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("train --seed -1", "Seed must be between 0 and 2**32 - 1"),
        ("train --beam 0", "BeamSearch: `num_beams` must be a positive integer"),
        ("train --length-penalty 0.2", "--length-penalty needs --beam K with K above 1"),
    ],
)
def test_commands_wrong_value_is_one_line_with_status_1(refused, tmp_path, arguments, said):
    assert refused(*arguments.split(), folder=tmp_path).startswith(f"error: {said}")


def test_commands_without_a_run_say_to_train(refused, places, tmp_path):
    said = "Train first, or use --out to choose its folder."
    assert said in refused("translate", folder=tmp_path)
    assert said in refused("export", "--to", "onnx", folder=tmp_path)
    assert "Use --data to choose the files to score." in refused("score", folder=tmp_path)


def test_score_of_another_part_is_refused_before_the_training(places, tmp_path, capsys):
    write_corpus(tmp_path, [("a b", "a b")] * 30, ["train", "val"])
    assert status("train", "--data", tmp_path, "--score", "tset") == 2
    assert "error: --score: there is no file " in capsys.readouterr().err
    assert not (tmp_path / "out" / "translator").exists()


def test_commands_interrupted_closed_or_failed_say_so_in_one_line(monkeypatch, capsys, tmp_path):
    def raising(error):
        def fail(*_):
            raise error

        for name in ("lines.translate", "__main__.Run", "converting.export"):
            monkeypatch.setattr(f"tfattn.translator.{name}", fail)

    monkeypatch.chdir(tmp_path)
    raising(KeyboardInterrupt())
    resume = " Run again with --resume to continue after the last completed epoch."
    for command, more in (("translate", ""), ("train", ""), ("train", resume)):
        assert status(command) == 130
        assert capsys.readouterr().err == f"\nInterrupted.{more}\n"
        Folder(DEFAULT_OUT).path.mkdir(parents=True, exist_ok=True)
        if command == "train":
            Folder(DEFAULT_OUT).backup.touch()
    raising(ValueError("one\n\n  two"))
    assert status("export", "--to", "onnx") == 1
    assert capsys.readouterr().err == "error: one two\n"
    raising(BrokenPipeError())
    with open(tmp_path / "pipe", "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert status("translate") == 1
    assert capsys.readouterr().err == ""
