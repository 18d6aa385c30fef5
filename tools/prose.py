"""Checks the prose of documents, help texts, error messages and docstrings: `docs/style.md`.

    python tools/prose.py --show=help

It needs no network and no package beyond the suite's own. `make lint` runs it. Any fault is an
error. There are no exceptions by file or by kind of text.
"""

import ast
import collections
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import markdown_it
import yaml

REPO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tff_suite import command_line, parser
from tools import checked_page

LONGEST_SENTENCE = 30
LONGEST_HELP = 200  # Characters: two lines of a terminal.
MOST_SENTENCES_OF_AN_ERROR = 2

# Kinds of text, all of which must be free of faults.
KINDS = {
    "readme": "README.md and CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "tutorials": "tutorials",
    "how-to": "how-to pages",
    "reference": "reference",
    "explanation": "explanation",
    "development": "pages on development",
    "papers": "the pages of papers/ and league/",
    "help": "--help texts",
    "errors": "error messages and warnings",
    "docstrings": "docstrings",
}
PARSER = parser.Parser(__doc__)
PARSER.positional("paths", "print all faults below these paths only", many=True, required=False)
PARSER.flag("show", help="Print the faults of this kind only.", choices=tuple(KINDS))
_PACKAGES = (
    "benchmarks",
    "examples",
    "reproduction",
    "simulation",
    "tasks",
    "tff_algos",
    "tff_suite",
    "tools",
)
_COMMANDS = ("reproduce.py", "run_experiment.py")

# Pattern → what to write instead.
WORDS = {
    r"(?:has|have|had) no meaning": "say what does not use or support it",
    r"means? (?:nothing|something)": "say what uses it",
    r"\w+ to whom": "split the sentence",
    r"whoever": "name the person or the part",
    r"whatever": "say 'any' or 'regardless of'",
    r"whose data whoever": "split the sentence",
    r"nobody": "say what does not, and why",
    r"c[ao]me to (?:need|be|hold)": "say 'need', 'become' or 'grow as needed'",
    r"such as are": "say which",
    r"of (?:its|their|his|her) own": "put 'own' before the noun",
    r"one's own": "say 'your own'",
    r"save that": "say 'except that'",
    r"(?<!there )(?:is|are|was|were) no "
    r"(?!longer|more|less|different|better|worse|matter)(?:\w+ )?\w+": (
        "say 'is not a', or what it is"
    ),
    r"that there (?:is|are)": "leave it out, or say 'existing'",
    r"where there (?:is|are) (?:one|any|none)": "say 'if present' or 'if any'",
    r"as ever": "say 'as usual', or leave it out",
    r"the very same": "say 'the same'",
    r"is there for": "say 'is for'",
    r"(?:is|are) not there": "say 'does not exist'",
    r"passed over": "say 'ignored' or 'skipped'",
    r"(?:is|are) asked for": "name who asks, or what to pass",
    r"tells? of": "say 'shows' or 'reveals'",
    r"in secret": "say 'silently'",
    r"thereof|whereof|wherein|whereupon|hitherto|herein": "split the sentence",
    r"the words of a round|in the words of|must be a word": "say 'primitives' or 'string'",
    r"rooms?": "say 'package'",
    r"crews?": "say 'worker pool'",
    r"desks?": "say 'scheduler' or 'coordinator'",
    r"(?:a|the|each|every|idle|more|of|other) hands?": "say 'worker' or 'executor'",
    r"(?:un)?seal(?:s|ed|ing)?": "say 'checksum'",
    r"counts? (?:nothing|for nothing)": "say 'has weight 0' or 'is left out'",
    r"such a one|the like": "name it",
    r"looked into": "say 'read'",
    r"go(?:es)? together": "say 'match' or 'contradict each other'",
    r"l(?:ie|ies|ay) on one another": "say 'overlap'",
    r"anybody|everybody|somebody": "name the person or the part",
    r"counts? alike|count(?:s|ed)? the same(?! \w)": "say 'has equal weight'",
    r"what \w+(?: \w+)? c[ao]me to": "say 'the result of'",
    r"(?:an?|one|any|own) \w+ of (?:TFF|Keras|NumPy|pandas|TFDS|TensorFlow|Ray|Python)'s"
    r"(?= (?:and|or|for|in|is|that|to|which)\b|[,.;:)]|$)": "say 'a TFF …', 'a Keras …'",
    r"(?:rounds|rows?|lines?|files|clients|steps|seeds|values?|numbers?|\d[\d,]*(?:\.\d+)?) a "
    r"(?:round|run|client|step|seed|row|task|method|paper|process|call|second|core)": ("say 'per'"),
}
_WORDS = [(re.compile(rf"\b(?:{pattern})\b", re.I), advice) for pattern, advice in WORDS.items()]

_CODE = "`code`"
# A stop that ends no sentence.
_ABBREVIATIONS = re.compile(
    r"\b(?:e\.g|i\.e|et al|etc|vs|cf|eq|eqs|fig|figs|sec|app|tab|no|alg|resp|approx|ca|v|p|pp)\.",
    re.I,
)
_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_`]*[^\W_])")
_SECTION = re.compile(
    r"(Args|Arguments|Attributes|Returns|Raises|Yields|Note|Notes|Deviations from .*):$"
)
_ITEM = re.compile(r"(?:[-*]|\d+[.)]) +")
_FIELD = re.compile(r"[\w*`., ]{1,60}?: +")


class Passage(NamedTuple):
    """A piece of text that a reader perceives as a unit.

    Attributes:
      kind: One of `KINDS`.
      place: File, relative to the repository.
      line: Line of the file from 1; 0 if unknown.
      text: The text, with each piece of code replaced by one word.
    """

    kind: str
    place: str
    line: int
    text: str


class Fault(NamedTuple):
    """A fault in a passage, and how to fix it."""

    passage: Passage
    what: str

    def __str__(self):
        passage = self.passage
        line = f":{passage.line}" if passage.line else ""
        return f"{passage.place}{line}: {passage.kind}: {self.what}"


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text; abbreviations and decimal points do not end one."""
    held = _ABBREVIATIONS.sub(lambda found: found[0][:-1] + "\0", " ".join(text.split()))
    return [part.replace("\0", ".") for part in _END.split(held) if part.strip()]


def length(sentence: str) -> int:
    """Returns the number of words, without signs and operators."""
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def faults(passage: Passage) -> Iterator[Fault]:
    """Yields what breaks the rules in a passage."""
    parts = sentences(passage.text)
    for sentence in parts:
        if length(sentence) > LONGEST_SENTENCE:
            begin = " ".join(sentence.split()[:8])
            yield Fault(
                passage,
                f"{length(sentence)} words in a sentence (at most {LONGEST_SENTENCE}): {begin} …",
            )
    for pattern, advice in _WORDS:
        for found in pattern.finditer(" ".join(passage.text.split())):
            yield Fault(passage, f"'{found[0]}': {advice}")
    if passage.kind == "errors" and len(parts) > MOST_SENTENCES_OF_AN_ERROR:
        yield Fault(
            passage, f"{len(parts)} sentences (at most {MOST_SENTENCES_OF_AN_ERROR}): {parts[0]}"
        )
    if passage.kind == "help" and len(passage.text) > LONGEST_HELP:
        begin = " ".join(passage.text.split()[:8])
        yield Fault(passage, f"{len(passage.text)} characters (at most {LONGEST_HELP}): {begin} …")


def of_markdown(kind: str, place: str, text: str) -> Iterator[Passage]:
    """Yields the paragraphs, list items, headings and table cells of a document.

    Table columns `before` and `instead of` hold examples of bad text, so they are left out.
    """
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
    line, column, skipped = 0, 0, set()
    for token in tokens:
        if token.map:
            line = token.map[0] + 1
        if token.type == "table_open":
            skipped = set()
        elif token.type == "tr_open":
            column = 0
        elif token.type in ("th_open", "td_open"):
            column += 1
        elif token.type == "inline":
            if token.content.strip().lower() in ("before", "instead of"):
                skipped.add(column)
            if column in skipped:
                continue
            # A line of a table's cell is a passage.
            for words in "".join(_inline(child) for child in token.children).splitlines():
                if words.strip():
                    yield Passage(kind, place, line, words)
        elif token.type == "table_close":
            column, skipped = 0, set()


def _inline(token) -> str:
    if token.type == "text":
        return token.content
    if token.type == "code_inline":
        return _CODE
    if token.type == "html_inline" and token.content.startswith("<br"):
        return "\n"
    return " " if token.type in ("softbreak", "hardbreak") else ""


def of_docstrings(place: str, source: str) -> Iterator[Passage]:
    """Yields the paragraphs and items of a module's docstrings, without formulas and tables."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                line = node.body[0].lineno
                for offset, paragraph in _paragraphs(text):
                    yield Passage("docstrings", place, line + offset, _without_code(paragraph))


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line within the docstring, paragraph or item)."""
    begin, held, indent, in_section = 0, [], 0, False

    def flush():
        if held:
            joined = " ".join(held)
            held.clear()
            yield begin, joined

    for number, raw in enumerate(text.splitlines()):
        line = raw.strip()
        deep = len(raw) - len(raw.lstrip())
        if not line:
            yield from flush()
            continue
        if deep == 0:
            if in_section or _ITEM.match(line):
                yield from flush()
            in_section = bool(_SECTION.match(line))
            if in_section:
                continue
            indent = 0
        elif in_section:
            if not held or deep <= indent or _ITEM.match(line):
                yield from flush()
                indent = deep
        elif not held or not (_ITEM.match(held[0]) or deep == indent):
            # A formula, a table or code.
            yield from flush()
            continue
        if not held:
            begin = number
            if in_section:
                line = _FIELD.sub("", _ITEM.sub("", line), count=1)
        held.append(line)
    yield from flush()


def _without_code(text: str) -> str:
    return re.sub(r"``.+?``|`[^`]*`", _CODE, text)


def of_errors(place: str, source: str) -> Iterator[Passage]:
    """Yields the errors and warnings of a module."""
    for message in checked_page.messages(source):
        yield Passage("errors", place, 0, _without_code(message.text))


# Functions that take a help text → its place among the arguments without a name.
_HELP = {"flag": 2, "positional": 1, "add_argument": None}


def of_help(place: str, source: str) -> Iterator[Passage]:
    """Yields the help texts that a module passes to `tff_suite.parser` or argparse."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr not in _HELP:
            continue
        index = _HELP[node.func.attr]
        given = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        given += [] if index is None else node.args[index : index + 1]
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Passage("help", place, value.lineno, _without_code(value.value))


def of_settings(place: str, hparams: Iterable) -> Iterator[Passage]:
    """Yields the help texts of settings (`tff_suite.hparams.Hparam`)."""
    for hparam in hparams:
        yield Passage("help", place, 0, _without_code(hparam.help))


def _settings() -> Iterator[Passage]:
    import tasks
    import tff_algos
    from simulation import run_hparams

    yield from of_settings("simulation/run_hparams.py", run_hparams.RUN_HPARAMS)
    yield from of_settings("tff_algos/training_settings.py", tff_algos.registry.TRAINING_HPARAMS)
    for package, folder in ((tff_algos, "tff_algos/methods"), (tasks, "tasks/datasets")):
        for name in package.names():
            spec = package.get(name)
            yield from of_settings(f"{folder}: {name}", spec.hparams)
            for line in (*spec.known_problems, *spec.used_for, *spec.history):
                yield Passage("reference", f"{folder}: {name}", 0, _without_code(line))


def _sections() -> dict[str, str]:
    """Returns page within docs/ or examples/ → its section of the manual."""
    nav = yaml.safe_load((REPO / "mkdocs.yml").read_text())["nav"]
    return {
        page: section.lower()
        for part in nav
        for section, pages in part.items()
        if isinstance(pages, list)
        for entry in pages
        for page in entry.values()
    }


def _documents() -> Iterator[tuple[str, pathlib.Path]]:
    for name in ("README.md", "CONTRIBUTING.md"):
        yield "readme", REPO / name
    yield "changelog", REPO / "CHANGELOG.md"
    sections = _sections()
    for path in sorted((REPO / "docs").rglob("*.md")):
        yield sections[path.relative_to(REPO / "docs").as_posix()], path
    yield sections["examples/README.md"], REPO / "examples" / "README.md"
    for folder in ("papers", "league"):
        for path in sorted((REPO / folder).rglob("*.md")):
            yield "papers", path


def passages() -> Iterator[Passage]:
    """Yields the repository's prose, each text once."""
    seen = set()
    for passage in _passages():
        if (passage.kind, passage.place, passage.text) not in seen:
            seen.add((passage.kind, passage.place, passage.text))
            yield passage


def _passages():
    for kind, path in _documents():
        yield from of_markdown(kind, path.relative_to(REPO).as_posix(), path.read_text())
    yield from _settings()
    paths = [path for folder in _PACKAGES for path in sorted((REPO / folder).rglob("*.py"))]
    for path in [*paths, *(REPO / name for name in _COMMANDS)]:
        place, source = path.relative_to(REPO).as_posix(), path.read_text()
        yield from of_help(place, source)
        yield from of_errors(place, source)
        yield from of_docstrings(place, source)


def _package(place: str) -> str:
    return re.split(r"[/:]", place)[0]


def report(found: list[Fault], texts: list[Passage]) -> str:
    """Returns a table: kind, sentences, mean length, faults by package."""
    lines = []
    for kind, what in KINDS.items():
        # A heading, a table's cell or a caption is no sentence.
        parts = [s for p in texts if p.kind == kind for s in sentences(p.text) if s[-1] in ".!?"]
        mean = sum(map(length, parts)) / len(parts) if parts else 0
        by_package = collections.Counter(
            _package(fault.passage.place) for fault in found if fault.passage.kind == kind
        )
        counts = ", ".join(f"{package} {n}" for package, n in by_package.most_common())
        state = f"{by_package.total()} left: {counts}" if counts else "no faults"
        lines.append(f"{what}: {len(parts)} sentences, {mean:.1f} words on average; {state}")
    return "\n".join(lines)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints faults and counts; returns the exit code."""
    options = PARSER.parse(arguments)
    texts = list(passages())
    found = [fault for passage in texts for fault in faults(passage)]
    shown = [
        fault
        for fault in found
        if fault.passage.place.startswith(tuple(options.paths) or "")
        and options.show in (None, fault.passage.kind)
    ]
    for fault in shown:
        print(fault)
    if options.paths:
        return int(bool(shown))
    print(report(found, texts))
    if found:
        print(f"{len(found)} faults; docs/style.md has the rules.")
    return int(bool(found))


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
