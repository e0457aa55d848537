"""What a demo of translation learns from files."""

import pytest

from tests.demos.running import printed, result


@pytest.mark.slow
def test_learns_from_files_in_subwords(tmp_path):
    pairs = [("a dog barks .", "ein hund bellt ."), ("a cat sleeps .", "eine katze schläft .")] * 20
    for part in ("train", "val", "test"):
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(lines, encoding="utf-8")
    options = (
        "--data",
        tmp_path,
        "--preset",
        "toy",
        "--subwords",
        60,
        "--epochs",
        1,
        "--sentences",
        5,
    )
    output = printed("transformer_translation", *options, "--score", "test", folder=tmp_path)
    assert "40 pairs to learn from, 40 held out" in output
    assert result(output)["scored"] == "test"
    assert (tmp_path / "out" / "transformer_translation" / "attention.png").exists()
