"""Speaking roles in the text of Shakespeare's plays, and the rules by which a role is a client.

The text is Project Gutenberg's 100th (January 1994), from which McMahan et al. (2017) and LEAF
(Caldas et al. 2018) made their clients. In it a work begins at the line "by William Shakespeare",
below its title. A speech begins with two spaces, the speaker's name, a full stop and a space, and
continues in lines indented by four. *The Comedy of Errors* lacks the indentation, so all text
between two speeches belongs to the first one, as in LEAF. A client is a role in one play. The
published counts come from three ways of dropping small roles:

  ========  =========  =======  ====================================================================
  rule      published  reached  clients
  ========  =========  =======  ====================================================================
  mcmahan       1,146    1,146  roles of three lines or more, names as printed, so that "Shallow"
                                and "SHALLOW" are two (the paper says: at least two lines; the code
                                that the authors released drops roles of two)
  leaf          1,129    1,129  names in capitals, three lines or more and more than 80 characters,
                                so that there is a window of 80 to learn from
  tff             715      707  names in capitals, more than 80 characters, 23 plays and the start
                                of another under six titles
  ========  =========  =======  ====================================================================

LEAF has 4,226,158 windows; here there are 4,226,160. TFF made its clients from a later edition of
this etext, of June 2018. It runs from *All's Well That Ends Well* to the first act of *Titus
Andronicus*, and most of its plays have a new layout. Three things follow.

Only speeches in the form of 1994 are found, so plays with the new layout add nothing. Most plays in
the old form have lost their title lines. Their roles are filed under the last remaining title, and
equal names under one title are one client: Othello speaks in *Much Ado About Nothing*. `TFF_GROUPS`
is that grouping. TFF's reader has no special case for *The Comedy of Errors*. Text there that looks
like a speech becomes a client with a strange name (`OF_EPHESUS`).

A client is kept if its text has more than 80 characters, even if it has few speeches.

An example is not a speech: TFF cuts after the *first line* of each speech, so that n speeches make
n + 1 examples, the last of which may be empty.

The same rule gives 707 clients on the text of 1994, whose lines differ here and there; 663 of them
have exactly TFF's examples. TFF holds out floor((s + 12) / 10) of a client's s examples, at random
with an unknown seed. From this text the last ones are held out, see `test_fraction`.

`python -m tasks.formats.shakespeare_text --data_dir=...` prints the counts.
"""

import collections
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from tasks.formats import files
from tasks.task import DataError
from tff_suite import command_line, parser

PUBLISHED = {"tff": 715, "leaf": 1129, "mcmahan": 1146}

# Title in TFF's client ids to titles here of the plays whose roles are under it, of the last one
# only the start.
TFF_GROUPS = {
    "ALL'S WELL THAT ENDS WELL": (
        "THE TRAGEDY OF ANTONY AND CLEOPATRA",
        "AS YOU LIKE IT",
        "THE TRAGEDY OF CORIOLANUS",
        "CYMBELINE",
        "THE COMEDY OF ERRORS",
    ),
    "THE FIRST PART OF KING HENRY THE FOURTH": (
        "SECOND PART OF KING HENRY IV",
        "THE LIFE OF KING HENRY THE FIFTH",
        "THE FIRST PART OF HENRY THE SIXTH",
        "THE SECOND PART OF KING HENRY THE SIXTH",
        "THE THIRD PART OF KING HENRY THE SIXTH",
        "KING HENRY THE EIGHTH",
        "KING JOHN",
    ),
    "THE TRAGEDY OF KING LEAR": (
        "LOVE'S LABOUR'S LOST",
        "THE TRAGEDY OF MACBETH",
        "MEASURE FOR MEASURE",
        "THE MERCHANT OF VENICE",
        "THE MERRY WIVES OF WINDSOR",
        "A MIDSUMMER NIGHT'S DREAM",
    ),
    "MUCH ADO ABOUT NOTHING": ("THE TRAGEDY OF OTHELLO, MOOR OF VENICE",),
    "PERICLES, PRINCE OF TYRE": ("KING RICHARD THE SECOND", "KING RICHARD III"),
    "THE TAMING OF THE SHREW": (
        "THE TEMPEST",
        "THE LIFE OF TIMON OF ATHENS",
        "THE TRAGEDY OF TITUS ANDRONICUS",
    ),
}

# The last line that TFF read.
_TFF_END = "Patient yourself, madam, and pardon me."

_NUM_PLAYS = 36
_AUTHOR = "by William Shakespeare"
_END = "THE END"
_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")
_UNINDENTED = "THE COMEDY OF ERRORS"
_WINDOW = 80

_FILES = ("t8.shakespeare.txt.gz", "t8.shakespeare.txt")
ADVICE = (
    "get t8.shakespeare.txt, the January 1994 edition, from "
    "https://ocw.mit.edu/ans7870/6/6.006/s08/lecturenotes/files/t8.shakespeare.txt and set "
    "--data_dir to its folder, or to the one above it if it is called shakespeare"
)


class Role(NamedTuple):
    """The lines of one role in one play.

    Attributes:
      play: Title of the play.
      name: The speaker's name.
      speeches: Its speeches in the play's order, each a tuple of lines.
    """

    play: str
    name: str
    speeches: tuple[tuple[str, ...], ...]

    @property
    def client_id(self) -> str:
        """Play and name in the form of TFF's client ids, e.g. `MUCH_ADO_ABOUT_NOTHING_OTHELLO`."""
        return re.sub(r"\W+", "_", f"{self.play}_{self.name}".replace(" ", "_"))

    @property
    def num_lines(self) -> int:
        """Number of lines in all speeches."""
        return sum(map(len, self.speeches))

    def running_text(self) -> str:
        """Returns all lines as one text, joined by blanks, from which LEAF cuts windows."""
        text = "".join(f"{line} " for speech in self.speeches for line in speech)
        return re.sub(r"   *", " ", text)


def find(data_dir: str) -> str | None:
    """Returns the path of the text in `data_dir` or its subfolder `shakespeare`, if it exists.

    Raises:
      DataError: If a folder may not be read.
    """
    return files.find(paths(data_dir), ADVICE)


def paths(data_dir: str) -> list[str]:
    """Returns the paths at which to look for the text, in order of preference."""
    folders = (os.path.join(data_dir, "shakespeare"), data_dir)
    return [os.path.join(folder, name) for folder in folders for name in _FILES]


def read(path: str) -> str:
    """Reads the text.

    Args:
      path: The file, compressed if its name ends in `.gz`.

    Raises:
      DataError: If it cannot be read or is not the complete text in the edition of 1994.
    """
    with files.reading(path, ADVICE), files.open_plain_or_gzip(path) as file:
        text = files.read_at_most(file).decode("latin-1")
    lines = _lines(text)
    num_plays = len({role.play for role in parse(text)})
    works = [title for title, _ in _works(lines)]
    num_ends = sum(_END in line for line in lines)
    twice = len(works) != len(set(works))
    # A text that is cut off within the last work has fewer ends than beginnings.
    if num_plays != _NUM_PLAYS or twice or num_ends < len(works):
        raise DataError(
            f"{path} is not the edition of 1994, is cut off or has a play twice: {num_plays} of "
            f"{_NUM_PLAYS} plays match, and {num_ends} of {len(works)} works have an end. {ADVICE}"
        )
    return text


def parse(text: str) -> list[Role]:
    """Finds all roles of all plays; the sonnets and the poem are skipped.

    Args:
      text: The whole text.

    Returns:
      Roles in the order of their first speeches, names as printed.
    """
    lines = _lines(text)
    roles = []
    for title, start in _works(lines):
        if title not in _POEMS:
            roles += _parse_play(title, lines, start)
    return roles


def _lines(text: str) -> list[str]:
    # Copies of the text differ in blanks at line ends, and a name is followed by a blank.
    return [line.rstrip() for line in text.splitlines()]


def _works(lines: Sequence[str]) -> list[tuple[str, int]]:
    """Returns the title of each work and the line after that of its author."""
    works, above = [], ""
    for number, line in enumerate(lines):
        if _AUTHOR in line:
            works.append((above.strip(), number + 1))
        above = line or above
    return works


def _parse_play(title: str, lines: Sequence[str], start: int) -> list[Role]:
    """Parses one play, which begins at line `start` and ends before the next work's author."""
    unindented = title == _UNINDENTED
    indent = "" if unindented else "  "
    speech_begins = re.compile(rf"{indent}([a-zA-Z][a-zA-Z ]*)\. (.*)")
    speech_goes_on = re.compile(rf"{indent * 2}(.*)")
    speeches = collections.defaultdict(list)
    speaker = None
    for line in map(lines.__getitem__, range(start, len(lines))):
        if _AUTHOR in line:
            break
        if match := speech_begins.match(line):
            speaker, words = match.groups()
            if unindented and speaker.upper().startswith("ACT "):
                speaker = None
            else:
                speeches[speaker].append([words])
        elif speaker and (match := speech_goes_on.match(line)):
            if unindented and line.startswith("<"):
                speaker = None
            else:
                speeches[speaker][-1].append(match.group(1))
    return [Role(title, name, tuple(map(tuple, said))) for name, said in speeches.items()]


def roles(text: str, rule: str) -> list[Role]:
    """Returns the clients by one of the published rules, see the module's docstring.

    Args:
      text: The whole text.
      rule: `tff`, `leaf` or `mcmahan`.

    Returns:
      Roles in the order of their first speeches. With `tff`, `speeches` are TFF's examples.
    """
    if rule == "tff":
        return [_cut_as_tff(r) for r in _parse_as_tff(text) if len(r.running_text()) > _WINDOW]
    found = parse(text)
    if rule == "mcmahan":
        return [role for role in found if role.num_lines >= 3]
    merged = collections.defaultdict(list)
    for role in found:
        merged[role.play, role.name.upper()] += role.speeches
    found = [Role(play, name, tuple(said)) for (play, name), said in merged.items()]
    return [r for r in found if r.num_lines >= 3 and len(r.running_text()) > _WINDOW]


def _parse_as_tff(text: str) -> list[Role]:
    """Finds roles as TFF's reader does: in one pass, ignoring any text between two speeches."""
    group_of = {play: group for group, plays in TFF_GROUPS.items() for play in plays}
    speech_begins = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
    speeches = collections.defaultdict(list)
    group, above, own = None, "", None
    for line in _lines(text):
        if _AUTHOR in line:
            group = group_of.get(above.strip())
        above = line or above
        if group is None:
            continue
        if match := speech_begins.match(line):
            name, words = match.groups()
            own = speeches[group, name.upper()]
            own.append([words])
            if words == _TFF_END:
                break
        elif own and line.startswith("    "):
            own[-1].append(line[4:])
    return [Role(play, name, tuple(map(tuple, said))) for (play, name), said in speeches.items()]


def _cut_as_tff(role: Role) -> Role:
    """Returns a role whose text is cut after the first line of each speech."""
    examples: list[tuple[str, ...]] = []
    rest: Sequence[str] = ()
    for first, *others in role.speeches:
        examples.append((*rest, first))
        rest = others
    # The last one ends with a line break, if it is not empty.
    return role._replace(speeches=(*examples, (*rest, "")))


PARSER = parser.Parser(
    """Prints the number of clients of each rule beside the published one.

    python -m tasks.formats.shakespeare_text --data_dir=data
"""
)
PARSER.flag("data_dir", help="Folder of t8.shakespeare.txt[.gz].", required=True, path=True)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints each rule's number of clients beside the published one; returns an exit code."""
    data_dir = PARSER.parse(arguments).data_dir
    path = find(data_dir)
    if path is None:
        raise files.missing(os.path.join(data_dir, _FILES[0]), ADVICE, paths(data_dir))
    text = read(path)
    print(f"{'rule':8} {'published':>9} {'clients':>9} {'speeches':>9} {'lines':>9} {'windows':>9}")
    for rule, published in PUBLISHED.items():
        clients = roles(text, rule)
        speeches = sum(len(role.speeches) for role in clients)
        lines = sum(role.num_lines for role in clients)
        windows = sum(max(0, len(role.running_text()) - _WINDOW) for role in clients)
        row = f"{len(clients):9,} {speeches:9,} {lines:9,} {windows:9,}"
        print(f"{rule:8} {published:9,} {row}")
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
