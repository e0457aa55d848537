"""Each mutation of `mutations.txt` can be made: its text is in the code, and its test is there."""

import functools

from tests import mutations


@functools.cache
def text_of(path):
    file = mutations.ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def test_mutation_replaces_what_stands_once_and_names_a_test():
    found = mutations.mutations()
    assert len(found) > 100
    for each in found:
        times = text_of(each.path).count(each.old)
        assert times == 1, f"{each.name}: its text stands {times} times in {each.path}"
        file, _, test = each.test.partition("::")
        function = f"def {test.partition('[')[0]}("
        assert function in text_of(file), f"{each.name}: no {function} in {file}"
