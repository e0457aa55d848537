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


def test_both_languages_have_the_same_twelve_lessons(slides):
    english, chinese = ([*slides.lessons(language)] for language in LANGUAGES)
    assert len(english) == 12
    for one, other in zip(english, chinese, strict=True):
        for field, pattern in {
            "minutes": r"\d+",
            "pages": r"tutorials/(\w+)",
            "drawing": r"drawings/([\w-]+)",
            "exercises": r"`(\w+)`",
        }.items():
            assert re.findall(pattern, one[field]) == re.findall(pattern, other[field]), one


def test_exercises_of_lessons_are_there_and_each_tutorial_is_in_a_lesson(slides):
    from tfattn import exercises

    english = [*slides.lessons("en")]
    for lesson in english:
        for name in re.findall(r"`(\w+)`", lesson["exercises"]):
            assert exercises.get(name)
    pages = {name for lesson in english for name in re.findall(r"tutorials/(\w+)", lesson["pages"])}
    assert pages == {path.stem for path in (ROOT / "demos").glob("*.py")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_deck_has_its_title_drawing_formula_and_the_questions_of_its_pages(decks, language):
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
    assert asked == sum(len(re.findall(r"\.\. dropdown::|\{dropdown\}", text)) for text in texts)


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
def test_no_slide_cuts_anything_off(decks, language, open_file, tmp_path):
    for number, (lesson, deck) in enumerate(decks[language], 1):
        path = tmp_path / f"{number}.html"
        path.write_text(deck, encoding="utf-8")
        page = open_file(path, 1280, 720)
        assert page.evaluate(OVERFLOW) == [], lesson["title"]
        assert page.evaluate("Math.min(...fitted())") >= 18, lesson["title"]


def test_arrow_keys_open_answers_and_move(decks, open_file, tmp_path):
    path = tmp_path / "deck.html"
    path.write_text(decks["en"][11][1], encoding="utf-8")
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
    assert page.locator("section.now h2").inner_text() == decks["en"][11][0]["title"]
