"""Test files as Bazel tests."""

# A file may hold long tests only, which is no failure.
_MAIN = """\
import sys
import pytest
code = pytest.main(["-p", "no:cacheprovider", "-m", "not long"] + sys.argv[1:])
sys.exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)
"""

def _pytest_main_impl(ctx):
    main = ctx.actions.declare_file(ctx.label.name + ".py")
    ctx.actions.write(main, _MAIN)
    return [DefaultInfo(files = depset([main]))]

_pytest_main = rule(implementation = _pytest_main_impl)

def pytest_tests(srcs, deps, data):
    """One py_test per file, which runs the file's quick tests with pytest.

    Args:
      srcs: the test files.
      deps: what each of them may import.
      data: what each of them may read.
    """
    _pytest_main(name = "pytest_main", testonly = True)
    for src in srcs:
        native.py_test(
            name = src[:-len(".py")],
            size = "large",
            srcs = [src, ":pytest_main"],
            main = "pytest_main.py",
            args = ["$(rootpath %s)" % src],
            data = data,
            deps = deps,
        )
