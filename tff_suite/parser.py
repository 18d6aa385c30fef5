"""Reads command lines: one parser for every command of the suite, with absl's forms of flags.

    PARSER = parser.Parser(__doc__)
    PARSER.positional("run", "folder of a run", many=True)
    PARSER.flag("rounds", 200, "Rounds to show.", minimum=1)

    options = PARSER.parse(arguments)

A flag is a `tff_suite.hparams.Hparam`, so types and ranges are checked and explained as they are
for methods and tasks. Every command has `--help`, `--helpfull`, `--version`, `-v`, `-q` and
`--flagfile` besides its own flags. A command's docstring is its help: the summary, an indented
example, and then what only `--helpfull` prints.
"""

import difflib
import functools
import importlib.metadata
import os
import pathlib
import textwrap
import tomllib
import types
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from absl import flags as absl_flags

from tff_suite import command_line
from tff_suite.hparams import Hparam, HparamError

_SUITE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_MAX_FLAGFILES = 20
_MAX_FLAGFILE_SIZE = 1 << 20
_WIDTH = 96

# What every command has. None of it is a setting, so none of it is recorded.
_COMMON = (
    ("help", "h", "Print the help with the most used flags."),
    ("helpfull", None, "Print the help with every flag."),
    ("version", None, "Print the version of the suite."),
    ("verbose", "v", "Print the traceback of an error, too."),
    ("quiet", "q", "Print only results, warnings and errors."),
)


class Flag(NamedTuple):
    """A flag of a command.

    Attributes:
      name: Name without dashes.
      hparam: Type, default, range and help. A blank help hides the flag from every help page.
      form: `one` value; a `list` of texts, separated by commas; or `repeated`, a list of all values
        given.
      is_common: Whether `--help` shows it; `--helpfull` shows every flag.
      is_required: Whether it must be given.
      is_path: Whether `~` at its start means the home folder.
      section: Title of its section in the help.
    """

    name: str
    hparam: Hparam
    form: str = "one"
    is_common: bool = True
    is_required: bool = False
    is_path: bool = False
    section: str = "Flags:"


class Positional(NamedTuple):
    """An argument without a name.

    Attributes:
      name: Name in the result.
      help: Its description.
      choices: The allowed values; anything if empty.
      is_many: Whether it takes all arguments that follow.
      is_required: Whether it must be given.
    """

    name: str
    help: str
    choices: Sequence[str]
    is_many: bool
    is_required: bool


class Parser:
    """The flags of a command."""

    def __init__(self, text: str):
        """Initialises for a command without flags.

        Args:
          text: The docstring of the command's module. Its first paragraph and its first indented
            block, the examples, start every help.
        """
        self.summary, self.examples, self.details = _parts(text)
        self.flags: dict[str, Flag] = {}
        self._positionals: list[Positional] = []

    def flag(
        self,
        name: str,
        default: Any = None,
        help: str = "",
        *,
        form: str = "one",
        common: bool = True,
        required: bool = False,
        path: bool = False,
        **limits: Any,
    ) -> None:
        """Adds a flag.

        Args:
          name: Name without dashes.
          default: Value in force if the flag is not given.
          help: One or two sentences; an empty text hides the flag from every help page.
          form: See `Flag`.
          common: See `Flag.is_common`.
          required: See `Flag.is_required`.
          path: See `Flag.is_path`.
          **limits: Fields of `Hparam` such as `type`, `minimum` and `choices`; the type of a flag
            without a default is `str` unless given.
        """
        if default is None or form != "one":
            limits.setdefault("type", str)
        hparam = Hparam(name, default, help, source="", flag=name, **limits)
        self.add(Flag(name, hparam, form, common, required, path))

    def add(self, flag: Flag) -> None:
        """Adds a flag that was declared elsewhere."""
        self.flags[flag.name] = flag

    def positional(
        self,
        name: str,
        help: str,
        *,
        choices: Iterable[str] = (),
        many: bool = False,
        required: bool = True,
    ) -> None:
        """Adds an argument without a name; see `Positional`. One with `many` comes last."""
        self._positionals.append(Positional(name, help, tuple(choices), many, required))

    def parse(self, arguments: Sequence[str]) -> types.SimpleNamespace:
        """Reads a command line.

        Args:
          arguments: The arguments, without the program's name. `--flagfile=` is expanded.

        Returns:
          Name → value of every flag and positional argument, as attributes. Arguments that are not
          given have their default, or an empty list for `repeated` and `many`. `given` is the set
          of flags that were given.

        Raises:
          HparamError: If anything is wrong; the message is one line.
          command_line.Answered: If the command line requests help or the version.
        """
        given, rest = self.read(arguments)
        values = {flag.name: self._default(flag) for flag in self.flags.values()}
        values |= given
        for flag in self.flags.values():
            if flag.is_required and flag.name not in given:
                raise HparamError(f"--{flag.name} must be set; see --help.")
        values |= self._assigned(rest)
        return types.SimpleNamespace(**values, given=frozenset(given))

    def read(self, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Reads flags without filling in defaults.

        Args:
          arguments: As for `parse`.

        Returns:
          Flag → value of those that are given, and the positional arguments.

        Raises:
          HparamError: If a flag is unknown or its value refused.
          command_line.Answered: If the command line requests help or the version.
        """
        arguments = expand_flagfiles(arguments)
        values = absl_flags.FlagValues()
        # Flags and other arguments may come in any order.
        values.set_gnu_getopt()
        self._define(values, arguments)
        try:
            rest = values(["", *arguments])[1:]
        except absl_flags.IllegalFlagValueError as e:
            # absl puts `flag --x=1: ` before the reason, which names the flag itself.
            reason = e.__cause__ or e.__context__
            if isinstance(reason, HparamError):
                raise reason from None
            raise HparamError(command_line.one_line(e)) from e
        except absl_flags.UnrecognizedFlagError as e:
            raise HparamError(self.unknown(e.flagname, arguments)) from e
        except (absl_flags.Error, ValueError) as e:  # ValueError: `--noflag=value`.
            raise HparamError(command_line.one_line(e)) from e
        given = {n: values[n].value for n in self.flags if n in values and values[n].present}
        if values["version"].value:
            raise command_line.Answered(f"tff-algos {version()}")
        if values["help"].value or values["helpfull"].value:
            raise command_line.Answered(self.help(bool(values["helpfull"].value), given))
        command_line.set_verbosity(values["verbose"].value - values["quiet"].value)
        return given, rest

    def unknown(self, name: str, arguments: Sequence[str]) -> str:
        """Returns the message about an unknown flag, with the most likely intended one."""
        del arguments
        return said_of_unknown("flag", name, self.names(), "--")

    def names(self) -> list[str]:
        """Returns the names of all flags, also of those that every command has."""
        return [*self.flags, *(flag for flag, _, _ in _COMMON)]

    def help(self, full: bool, given: dict[str, Any]) -> str:
        """Returns the help.

        Args:
          full: Whether to show every flag and the rest of the docstring.
          given: Flag → value of those that are given.
        """
        del given
        parts = [self.head()]
        positionals = [described(p.name.upper(), _of_positional(p)) for p in self._positionals]
        if positionals:
            parts.append("\n".join(["Arguments:", *positionals]))
        return "\n\n".join([*parts, *self.sections(full), *self.tail(full)])

    def head(self) -> str:
        """Returns the summary and the examples, which start every help."""
        examples = textwrap.indent(self.examples, "  ")
        return f"{self.summary}\n\n{'Examples' if chr(10) in examples else 'Example'}:\n{examples}"

    def sections(self, full: bool) -> list[str]:
        """Returns the flags under their titles: those of `--help`, or all if `full`."""
        lines: dict[str, list[str]] = {}
        for flag in self.flags.values():
            if flag.hparam.help and (full or flag.is_common):
                lines.setdefault(flag.section, []).append(_of_flag(flag))
        return ["\n".join([title, *some]) for title, some in lines.items()]

    def tail(self, full: bool) -> list[str]:
        """Returns the flags that all commands share, and, if `full`, the rest of the docstring."""
        common = []
        for name, short, text in _COMMON:
            text = text[:1].lower() + text[1:]
            common.append(f"  {f'-{short}, ' if short else ''}--{name}: {text}")
        common.append("  --flagfile=<file>: read flags from a file, one on each line.")
        parts = ["\n".join(["Of every command:", *common])]
        return [self.details, *parts] if full and self.details else parts

    def _define(self, values: Any, arguments: Sequence[str]) -> None:
        """Defines only the flags that the arguments may name.

        A command line names a dozen of hundreds of flags, and a page of commands is parsed a
        thousand times.
        """
        # absl would look for the module of each flag among all that are imported, half of its time.
        place = {"flag_values": values, "module_name": __name__}
        for name, short, _ in _COMMON:
            absl_flags.DEFINE_boolean(name, False, "", short_name=short, **place)
        named = {argument.lstrip("-").partition("=")[0] for argument in arguments}
        named |= {name.removeprefix("no") for name in named}
        for name in named & self.flags.keys():
            flag = self.flags[name]
            reader = _Reader(flag)
            if flag.form == "repeated":
                absl_flags.DEFINE_multi(reader, None, name, None, "", **place)
            elif flag.hparam.type is bool:
                boolean = absl_flags.BooleanFlag(name, None, "")
                boolean.parser = reader
                absl_flags.DEFINE_flag(boolean, **place)
            else:
                absl_flags.DEFINE(reader, name, None, "", **place)

    def _default(self, flag: Any) -> Any:
        return [] if flag.form == "repeated" else flag.hparam.default

    def _assigned(self, rest: Sequence[str]) -> dict[str, Any]:
        """Returns positional arguments by name."""
        values: dict[str, Any] = {}
        rest = list(rest)
        for wanted in self._positionals:
            taken, rest = (rest, []) if wanted.is_many else (rest[:1], rest[1:])
            if wanted.is_required and not taken:
                raise HparamError(f"{wanted.name.upper()} is missing: {wanted.help}; see --help.")
            for text in taken:
                if wanted.choices and text not in wanted.choices:
                    told = said_of_unknown(wanted.name, text, wanted.choices)
                    raise HparamError(f"{told} Known: {', '.join(wanted.choices)}.")
            values[wanted.name] = taken if wanted.is_many else next(iter(taken), None)
        if rest:
            raise HparamError(f"Unexpected argument {rest[0]!r}: flags have the form --name=value.")
        return values


class _Reader(absl_flags.ArgumentParser):
    """Converts the text of a flag to the type of its `Hparam`."""

    def __init__(self, flag: Flag):
        super().__init__()
        self._flag = flag

    def parse(self, argument: Any) -> Any:
        flag, hparam = self._flag, self._flag.hparam
        label = f"--{flag.name}"
        if flag.form == "list":
            return [hparam.check(part, label) for part in absl_flags.ListParser().parse(argument)]
        if flag.is_path:
            # A shell leaves the tilde in `--flag=~/x`; a folder `~` is dangerous to remove.
            argument = os.path.expanduser(argument)
        read = _read_bool if hparam.type is bool else hparam.type
        try:
            value = read(argument)
        except ValueError:
            value = argument  # Which `check` refuses in the words that it has for this.
        return hparam.check(value, label)


def _read_bool(argument: Any) -> Any:
    # `--flag` and `--noflag` come as numbers 1 and 0.
    return absl_flags.BooleanParser().parse(int(argument) if argument in (0, 1) else argument)


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Returns all values given to one flag, in order, before the other flags are known.

    Args:
      flag: Name without dashes.
      arguments: The arguments, without the program's name. `--flagfile=` is expanded.

    Raises:
      HparamError: If the flag has no value.
    """
    values = absl_flags.FlagValues()
    values.set_gnu_getopt()  # Else the value in `--task synthetic` would end the search.
    absl_flags.DEFINE_multi_string(flag, [], "", flag_values=values)
    try:
        values(["", *expand_flagfiles(arguments)], known_only=True)
    except absl_flags.Error as e:
        raise HparamError(command_line.one_line(e)) from e
    return values[flag].value


def said_of_unknown(
    kind: str, name: str, known: Iterable[str], prefix: str = "", first: Iterable[str] = ()
) -> str:
    """Returns one line that a name is unknown, with the closest known name.

    Args:
      kind: What it should name, such as `flag`.
      name: The unknown name.
      known: The known names.
      prefix: Text before each name.
      first: Known names that are suggested before others, even if those are closer.
    """
    known = list(known)
    if name in known:  # From Python, where the command's own flags cannot be set.
        return f"{kind.capitalize()} {prefix}{name} is for the command only."
    closest = (difflib.get_close_matches(name, some, n=1) for some in (list(first), known))
    close = next(filter(None, closest), None)
    hint = f" Did you mean {prefix}{close[0]}?" if close else ""
    return f"Unknown {kind} {prefix}{name}.{hint}"


def _parts(text: str) -> tuple[str, str, str]:
    """Returns the summary, the examples and the rest of a docstring."""
    blocks = [block.strip("\n") for block in text.split("\n\n") if block.strip()]
    # A formatter moves a single example at the end of a docstring to the margin.
    examples = next((block for block in blocks if block.startswith(("    ", "python "))), "")
    summary = "" if blocks[0] == examples else blocks[0]
    rest = [block for block in blocks if block not in (summary, examples)]
    return summary, textwrap.dedent(examples), "\n\n".join(rest).rstrip()


def _of_flag(flag: Flag) -> str:
    hparam = flag.hparam
    facts = [] if hparam.default in (None, [], False) else [f"default: {hparam.default}"]
    facts += ["required"] if flag.is_required else []
    facts += [hparam.describe_range()] if hparam.describe_range() else []
    facts += ["may be given several times"] if flag.form == "repeated" else []
    shown = "text,..." if flag.form == "list" else kind_of(hparam)
    # A switch is given without a value.
    value = "" if hparam.type is bool else f"=<{shown}>"
    return described(f"--{flag.name}{value}", hparam.help, facts)


def _of_positional(argument: Positional) -> str:
    words = argument.help + (f"; one of {', '.join(argument.choices)}" if argument.choices else "")
    return words + (" (one or more)" if argument.is_many and argument.is_required else "")


def kind_of(hparam: Hparam) -> str:
    """Returns the kind of value that a flag takes, as the help shows it."""
    return {bool: "true|false", int: "int", float: "float", str: "text"}[hparam.type]


def described(flag: str, text: str, facts: Sequence[str] = ()) -> str:
    """Returns a flag's entry in a help: its form, and below it the description, wrapped.

    Args:
      flag: The flag as the user gives it, such as `--rounds=<int>`.
      text: Its description.
      facts: Text in parentheses after the description, such as the default.
    """
    text = f"{text} ({'; '.join(facts)})" if facts else text
    body = textwrap.fill(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {flag}\n{body}"


@functools.cache
def version() -> str:
    """Returns the version of the suite, of this checkout or of the installed package."""
    try:
        text = pathlib.Path(_SUITE, "pyproject.toml").read_text(encoding="utf-8")
        return tomllib.loads(text)["project"]["version"]
    except (OSError, KeyError, ValueError):
        return importlib.metadata.version("tff-algos")


def expand_flagfiles(arguments: Sequence[str]) -> list[str]:
    """Replaces `--flagfile=` by the lines of the flag file, as absl does.

    Unlike absl, it reports errors of reading, and files that include themselves.

    Args:
      arguments: Command line without the program's name.

    Raises:
      HparamError: If a file cannot be read or includes itself.
    """
    expanded, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*expanded, argument, *rest]
        name, equals, path = argument.partition("=")
        if name not in ("--flagfile", "-flagfile"):
            expanded.append(argument)
            continue
        if not equals:
            if not rest:
                raise HparamError("--flagfile needs a file: --flagfile=<file>.")
            path = rest.pop(0)
        expanded += _lines_of(path, ())
    return expanded


def _lines_of(path: str, within: Any) -> Any:
    """Returns the flags of a flag file; `within` are the files that include it."""
    path = _find_flagfile(path.strip(), within)
    if path in within:
        raise HparamError(f"--flagfile={path} includes itself.")
    if len(within) == _MAX_FLAGFILES:
        raise HparamError(f"--flagfile={path}: more than {_MAX_FLAGFILES} files within each other.")
    try:
        # Some editors begin a file with a byte order mark, which utf-8-sig drops.
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MAX_FLAGFILE_SIZE + 1)
    except (OSError, ValueError) as e:  # UnicodeDecodeError, or a zero byte in the path.
        reason = getattr(e, "strerror", None) or command_line.one_line(e)
        raise HparamError(f"--flagfile={path} cannot be read: {reason}.") from e
    if len(text) > _MAX_FLAGFILE_SIZE:
        raise HparamError(f"--flagfile={path} is longer than {_MAX_FLAGFILE_SIZE} characters.")
    flags = []
    for line in map(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if name in ("--flagfile", "-flagfile") and equals:
            flags += _lines_of(value, (*within, path))
        elif line and not line.startswith(("#", "//")):
            flags.append(line)
    return flags


def _find_flagfile(path: str, within: Any) -> Any:
    """Returns the path of a flag file: relative to the working folder, else to the suite's.

    Files that a file of the suite includes are looked for in the suite first.
    """
    if "\0" in path:
        raise HparamError("--flagfile must not contain a zero byte.")
    path = os.path.expanduser(path)
    bases = [os.getcwd(), _SUITE]
    if within and within[-1].startswith(_SUITE + os.sep):
        bases.reverse()
    places = [os.path.join(base, path) for base in bases]
    return os.path.realpath(next(filter(os.path.exists, places), places[0]))
