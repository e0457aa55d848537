"""The slides of the lessons: each deck has what its lesson names, and fits its screen."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ("en", "zh")


@pytest.fixture(scope="module")
def slides():
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    spec = importlib.util.spec_from_file_location("slides", ROOT / "docs" / "slides.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def decks(slides):
    """From a language to the lessons and their decks."""
    return {
        language: [(lesson, slides.deck(language, lesson)) for lesson in slides.lessons(language)]
        for language in LANGUAGES
    }


@pytest.mark.slow
def test_lessons_are_the_same_twelve_in_both_languages_with_all_tutorials(slides):
    import exercises

    english, chinese = ([*slides.lessons(language)] for language in LANGUAGES)
    assert len(english) == 12
    patterns = {
        "minutes": r"\d+",
        "pages": r"(?:demos|tutorials)/(\w+)",
        "drawing": r"drawings/([\w-]+)",
        "exercises": r"`(\w+)`",
    }
    named = {field: set() for field in patterns}
    for one, other in zip(english, chinese, strict=True):
        for field, pattern in patterns.items():
            names = re.findall(pattern, one[field])
            assert names == re.findall(pattern, other[field]), one
            named[field] |= {*names}
    assert all(exercises.get(name) for name in named["exercises"])
    assert named["pages"] == {path.stem for path in (ROOT / "demos").glob("[!_]*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_deck_has_title_drawing_formula_and_the_questions_of_its_pages(decks, language):
    asked = 0
    for lesson, deck in decks[language]:
        assert f"<h2>{lesson['title']}</h2>" in deck and "[[" not in deck, lesson
        second = deck.split("<section")[2]
        assert "data:image/svg+xml;base64," in second and "<math" in second, lesson
        assert "problematic" not in deck and "system-message" not in deck, lesson
        questions = re.findall(r'<div class="question">(.*?)</div>', deck, re.DOTALL)
        assert all(len(re.sub("<.*?>", "", each).strip()) > 10 for each in questions), lesson
        assert deck.count("<details>") == len(questions)
        asked += len(questions)
    folder = ROOT / ("demos" if language == "en" else "docs/zh/tutorials")
    texts = [path.read_text("utf-8") for path in folder.iterdir() if path.suffix in (".py", ".md")]
    answers = r"\.\. dropdown::|\{dropdown\} (?!画图的代码)"
    assert asked == sum(len(re.findall(answers, text)) for text in texts)


OVERFLOW = """() => {
  open(true);
  const cut = [];
  for (const [number, slide] of slides.entries()) {
    const room = slide.getBoundingClientRect();
    for (const part of slide.querySelectorAll("*")) {
      const text = part.closest(".text"), box = part.getBoundingClientRect();
      const right = text ? text.getBoundingClientRect().right : room.right;
      const body = part.closest(".body"), bottom = (body ?? slide).getBoundingClientRect().bottom;
      if (box.left < room.left || box.right > right + 1 || box.bottom > bottom + 1)
        cut.push(`slide ${number + 1}: ${part.localName} ${part.textContent.slice(0, 40)}`);
    }
  }
  return cut;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_slide_cuts_nothing_off(decks, language, open_file, tmp_path):
    page = None
    for number, (lesson, deck) in enumerate(decks[language]):
        path = tmp_path / f"{number}.html"
        path.write_text(deck, encoding="utf-8")
        if page is None:
            page = open_file(path, 1280, 720)
        else:  # in the same window, which is faster
            page.goto(path.as_uri())
            assert open_file.faults.pop(0) == path.as_uri()
        assert page.locator("h2").first.inner_text() == lesson["title"]
        assert page.evaluate(OVERFLOW) == [], lesson["title"]
        assert page.evaluate("Math.min(...fitted())") >= 18, lesson["title"]


@pytest.mark.slow
def test_arrow_keys_open_answers_and_move(decks, open_file, tmp_path):
    path, (lesson, deck) = tmp_path / "deck.html", decks["en"][11]
    path.write_text(deck, encoding="utf-8")
    page = open_file(path, 1280, 720)
    number = page.evaluate("slides.findIndex((slide) => slide.querySelector('details'))")
    for _ in range(number):
        page.keyboard.press("ArrowRight")
    answer = page.locator("section.now details")
    assert answer.get_attribute("open") is None
    page.keyboard.press("ArrowRight")
    assert answer.get_attribute("open") is not None
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == f"#{number + 2}"  # Playwright hears of a new one later
    page.keyboard.press("Home")
    assert page.locator("section.now h2").inner_text() == lesson["title"]
