"""The parser that all commands share."""

import pytest

from tff_suite import command_line, parser
from tff_suite.hparams import HparamError

_TEXT = """Draws a figure of runs.

    python -m figures DIR --rounds=3

Colours are those of the methods.
"""


@pytest.fixture
def small():
    made = parser.Parser(_TEXT)
    made.positional("kind", "what to draw", choices=["curves", "bars"])
    made.positional("run", "folder of a run", many=True)
    made.flag("rounds", 200, "Rounds to show.", minimum=1)
    made.flag("rate", help="Rate.", type=float, common=False)
    made.flag("log", False, "A logarithmic axis.")
    made.flag("rows", help="Rows.", form="list")
    made.flag("import", help="Module.", form="repeated")
    made.flag("output", "", "File.", path=True)
    made.flag("child", help="")
    return made


def test_every_form_of_a_flag_and_any_order(small, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = ["--rounds", "3", "curves", "-rate=0.5", "a", "--log", "b", "--rows=x, y", "--import=m"]
    options = small.parse([*given, "--import=n", "--output=~/f", "--rounds=4", "--nolog"])
    assert (options.kind, options.run) == ("curves", ["a", "b"])
    assert (options.rounds, options.rate, options.log) == (4, 0.5, False)
    assert (options.rows, getattr(options, "import")) == (["x", "y"], ["m", "n"])
    assert options.output == "/home/me/f"
    assert options.given == {"rounds", "rate", "rows", "import", "output", "log"}


def test_what_is_not_given_is_at_its_default(small):
    options = small.parse(["bars", "a"])
    assert (options.rounds, options.rate, options.log, options.rows) == (200, None, False, None)
    assert getattr(options, "import") == [] and not options.given


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rond=3"], "Unknown flag --rond. Did you mean --rounds?"),
        (["--versoin"], "Unknown flag --versoin. Did you mean --version?"),
        (["--xyzzy"], "Unknown flag --xyzzy."),
        (["curves", "a", "--rounds=0"], "--rounds=0 must be >= 1."),
        (["curves", "a", "--rate=fast"], "--rate='fast' must be a number."),
        (["curve", "a"], "Unknown kind curve. Did you mean curves? Known: curves, bars."),
        ([], "KIND is missing: what to draw; see --help."),
        (["curves"], "RUN is missing: folder of a run; see --help."),
        (["curves", "a", "--rounds"], "rounds"),
        (["curves", "a", "--nolog=3"], "--nolog=3"),
        (["--flagfile=/no/such"], "--flagfile=/no/such cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(small, arguments, says):
    with pytest.raises(HparamError) as e:
        small.parse(arguments)
    assert says in str(e.value) and "\n" not in str(e.value)


def test_a_flag_that_must_be_set():
    made = parser.Parser(_TEXT)
    made.flag("output", help="File.", required=True)
    with pytest.raises(HparamError, match=r"^--output must be set; see --help.$"):
        made.parse([])


def answer(of, *arguments):
    with pytest.raises(command_line.Answered) as e:
        of.parse(arguments)
    return str(e.value)


def test_help_begins_with_the_example_and_is_short_unless_asked(small):
    short, full = answer(small, "-h"), answer(small, "--helpfull")
    for text in (short, full):
        assert text.startswith(
            "Draws a figure of runs.\n\nExample:\n  python -m figures DIR --rounds=3\n\n"
        )
        assert "--rounds=<int>" in text and "default: 200" in text and "\n  --log\n" in text
        assert "--child" not in text and "one of curves, bars" in text
    assert "--rate" in full and "Colours are" in full
    assert "--rate" not in short and "Colours are" not in short


def test_help_is_an_answer_to_right_flags_only(small):
    with pytest.raises(HparamError, match="Unknown flag --rond"):
        small.parse(["--help", "--rond=3"])


def test_the_version_is_that_of_the_package(small):
    name, number = answer(small, "--version").split()
    assert name == "tff-algos" and number[0].isdigit() and "." in number


@pytest.fixture(autouse=True)
def usual_verbosity():
    yield
    command_line.set_verbosity(0)


def test_quiet_and_verbose(small, capsys):
    @command_line.reported
    def main(arguments):
        small.parse(arguments)
        command_line.say("working")
        raise HparamError("no luck")

    codes = [main(["bars", "a", *flags]) for flags in ([], ["-q"], ["--verbose"])]
    out, err = capsys.readouterr()
    assert codes == [2, 2, 2] and out == "working\n" * 2
    assert err.count("error: no luck\n") == 3 and err.count("Traceback") == 1


def test_defects_are_not_reported_as_mistakes_of_the_user():
    @command_line.reported
    def main(arguments):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main([])
