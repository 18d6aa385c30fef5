"""The checker of prose finds bad sentences in every kind of place, and the suite has none."""

import types

import pytest

from tools import prose

LONG = "This sentence goes on " + "and on " * 14 + "until it ends."
BAD = "The worker asks nobody for a password."


def found_in(passages):
    return [fault.what for passage in passages for fault in prose.faults(passage)]


def document(sentence):
    return prose.of_markdown("readme", "README.md", f"# Title\n\n{sentence}\n")


def item(sentence):
    return prose.of_markdown("how-to", "docs/x.md", f"# Title\n\n- One.\n- {sentence}\n")


def cell(sentence):
    return prose.of_markdown("papers", "papers/x.md", f"| a | b |\n| - | - |\n| 1 | {sentence} |\n")


def module_docstring(sentence):
    return prose.of_docstrings("x.py", f'"""Does it.\n\n{sentence}\n"""\n')


def argument(sentence):
    source = f'def f(a):\n    """Does it.\n\n    Args:\n      a: {sentence}\n    """\n'
    return prose.of_docstrings("x.py", source)


def deviation(sentence):
    source = f'"""Does it.\n\nDeviations from the paper:\n  1. None.\n  2. {sentence}\n"""\n'
    return prose.of_docstrings("x.py", source)


def error(sentence):
    return prose.of_errors("x.py", f"raise ValueError({sentence!r})\n")


def formatted_error(sentence):
    return prose.of_errors("x.py", f"raise ValueError(f{'{name}: ' + sentence!r})\n")


def flag_help(sentence):
    return prose.of_help("x.py", f'PARSER.flag("x", None, {sentence!r})\n')


def positional_help(sentence):
    return prose.of_help("x.py", f'PARSER.positional("x", {sentence!r})\n')


def argparse_help(sentence):
    return prose.of_help("x.py", f'parser.add_argument("--x", help={sentence!r})\n')


def setting(sentence):
    return prose.of_settings("x.py", [types.SimpleNamespace(help=sentence)])


PLACES = [
    document,
    item,
    cell,
    module_docstring,
    argument,
    deviation,
    error,
    formatted_error,
    flag_help,
    positional_help,
    argparse_help,
    setting,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_bad_sentence_is_found(place):
    assert any("'nobody'" in what for what in found_in(place(BAD)))
    assert any("words in a sentence" in what for what in found_in(place(LONG)))
    assert not found_in(place("The worker accepts unauthenticated connections."))


def test_lengths_are_of_sentences_and_not_of_paragraphs():
    half = "These are fewer than thirty words, e.g. about a dozen of them, in 3.5 lines."
    assert prose.sentences(f"{half} {half}") == [half, half]
    assert not found_in(document(f"{half} {half} {half}"))


@pytest.mark.parametrize(
    "text",
    [
        "```\nnobody\n```",
        "Pass `nobody` to it.",
        "<!-- nobody -->",
        "| before | after |\n| - | - |\n| nobody | the worker |",
    ],
)
def test_code_comments_and_examples_of_bad_style_are_no_prose(text):
    assert not found_in(prose.of_markdown("how-to", "docs/x.md", text))


def test_formulas_of_a_docstring_are_no_prose():
    source = '"""Does it.\n\n  symbol  nobody  whoever\n\n    x ← nobody\n\nMore.\n"""\n'
    assert [p.text for p in prose.of_docstrings("x.py", source)] == ["Does it.", "More."]


def test_an_error_has_two_sentences_and_a_help_text_two_lines():
    assert found_in(error("It is wrong. Here. Do this. Or that."))
    assert found_in(setting("word " * 50))
    assert not found_in(document("It is wrong. Here. Do this. Or that."))


def test_no_text_has_faults():
    texts = list(prose.passages())
    assert {p.kind for p in texts} == set(prose.KINDS), "every kind has text"
    assert not [str(fault) for passage in texts for fault in prose.faults(passage)]


def test_the_report_counts_what_is_left_by_package():
    passage = prose.Passage("errors", "tasks/x.py", 0, BAD)
    told = prose.report(list(prose.faults(passage)), [passage])
    assert "warnings: 1 sentences, 7.0 words on average; 1 left: tasks 1" in told
