"""What the demos of translation say of themselves, and of what is missing."""

import pytest

from tests.demos.running import TRANSLATORS, last_line, run


@pytest.mark.parametrize("name", TRANSLATORS)
def test_what_is_missing_is_named(name, ended, tmp_path):
    error, _ = ended(name, "--data", tmp_path / "nowhere", folder=tmp_path)
    assert error.startswith("error: ") and "train.en" in error
    assert not (tmp_path / "out").exists()
    error, _ = ended(name, "--translate", folder=tmp_path)
    assert error.startswith("error: ") and "train first" in error


@pytest.mark.slow
def test_what_is_scored_at_the_end_is_looked_for_at_the_start(tmp_path):
    for part in ("train", "val"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a b\n" * 30)
    done = run(TRANSLATORS[0], "--data", tmp_path, "--score", "tset", folder=tmp_path)
    assert done.returncode == 1 and "tset.en" in last_line(done.stderr)
    assert "Epoch" not in done.stdout and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", TRANSLATORS)
def test_help_names_every_option(name, ended, tmp_path):
    status, output = ended(name, "--help", folder=tmp_path)
    assert status == 0
    for option in (
        *(
            "--seed",
            "--out",
            "--data",
            "--languages",
            "--pairs",
            "--preset",
            "--subwords",
            "--epochs",
            "--tokens",
        ),
        *("--beam", "--length-penalty", "--score", "--sentences", "--resume", "--translate"),
    ):
        assert option in output
