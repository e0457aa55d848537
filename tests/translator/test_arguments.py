"""The command line: what it says of itself, and what it refuses before anything is trained."""

import pytest

from tfattn.translator.__main__ import parse, parser
from tfattn.translator.presets import MODELS, PRESETS

OPTIONS = (
    *("--seed", "--out", "--data", "--languages", "--pairs", "--subwords", "--model", "--preset"),
    *("--epochs", "--tokens", "--resume", "--score", "--sentences"),
    *("--translate", "--beam", "--length-penalty"),
)


def test_help_names_every_option_and_has_commands_to_copy(ended, tmp_path, capsys):
    assert ended("--help", folder=tmp_path) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {option}" in shown for option in OPTIONS)
    described = {action.option_strings[-1] for action in parser()._actions if action.help}
    assert described == {"--help", *OPTIONS}
    commands = [line.split() for line in shown.splitlines() if line.startswith("    python -m")]
    assert len(commands) == 3
    for command in commands:  # each a line that the parser takes
        assert command[:3] == ["python", "-m", "tfattn.translator"]
        arguments = command[3 : command.index("<") if "<" in command else None]
        assert parse(arguments).out.name == "en-de"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", MODELS)
def test_what_is_not_given_is_the_presets(model):
    toy, tiny = parse(["--model", model]), parse(["--model", model, "--data", "corpus"])
    for options, name in ((toy, "toy"), (tiny, "tiny")):
        preset = PRESETS[model][name]
        assert options.preset == name
        assert (options.subwords, options.tokens) == (preset.subwords, preset.tokens)
    assert (toy.sentences, tiny.sentences) == (1000, None)
    given = parse(["--data", "corpus", "--subwords", "0", "--tokens", "7", "--sentences", "5"])
    assert (given.subwords, given.tokens, given.sentences) == (0, 7, 5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PRESETS["transformer"])
def test_a_preset_gives_its_model_sizes_that_it_takes(model, name):
    preset = PRESETS[model][name]
    made = MODELS[model](11, share_embeddings=bool(preset.subwords), **preset.sizes)
    assert preset.sizes.items() <= made.get_config().items()
    assert all(end <= preset.epochs - preset.cooldown for _, end in preset.curriculum)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--seed", "-1"], "argument --seed: must be at least 0 and below 2**32, received -1"),
        (["--seed", str(2**32)], "argument --seed: must be at least 0 and below 2**32"),
        (["--epochs", "0"], "argument --epochs: must be at least 1, received 0"),
        (["--length-penalty", "-0.5"], "--length-penalty must be a number of at least 0"),
        (["--length-penalty", "nan"], "--length-penalty must be a number of at least 0"),
        (["--score", "test"], "--score needs --data"),
    ],
)
def test_a_number_out_of_range_is_refused_by_the_name_of_its_option(
    ended, tmp_path, capsys, arguments, said
):
    assert ended(*arguments, folder=tmp_path) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("model", MODELS)
def test_what_is_missing_is_named(model, ended, tmp_path):
    error = ended("--model", model, "--data", tmp_path / "nowhere", folder=tmp_path)
    assert error.startswith("error: ") and "train.en" in error
    error = ended("--translate", folder=tmp_path)
    assert error.startswith("error: ") and "train first" in error
    assert list(tmp_path.iterdir()) == []


def test_what_is_scored_at_the_end_is_looked_for_at_the_start(ended, tmp_path, capsys):
    for part in ("train", "val"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a b\n" * 30)
    error = ended("--data", tmp_path, "--score", "tset", folder=tmp_path)
    assert error.startswith("error: ") and "tset.en" in error
    assert "Epoch" not in capsys.readouterr().out and not (tmp_path / "out").exists()
