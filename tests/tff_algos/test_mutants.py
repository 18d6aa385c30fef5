import ast

import pytest

from tests.tff_algos import mutants

SOURCE = """
import tensorflow as tf

def build(model, local, *, eta):
    def step(x, g):
        return x - eta * g, tf.sqrt(g)
    return step
"""
RENAMED = SOURCE.replace("x", "weights").replace("g)", "slope)").replace("* g", "* slope")


@pytest.mark.parametrize("source", [SOURCE, RENAMED], ids=["as written", "locals renamed"])
@pytest.mark.parametrize("old", ["x - eta * g", "(x-eta  *g)", "a - eta * b"])
def test_a_fragment_is_found_whatever_locals_are_called(source, old):
    tree, number = mutants.mutated(source, old, old.replace("-", "+"))
    wanted = ast.unparse(ast.parse(source)).replace("- eta", "+ eta")
    assert number == 1 and ast.unparse(tree) == wanted


@pytest.mark.parametrize(
    "old",
    [
        "x - rho * g",  # Not a setting of it.
        "x - eta * x",  # One name, one variable.
        "tf.square(g)",
        "x - eta",
        "sqrt(g)",  # What is called is meant as it stands.
    ],
)
def test_another_expression_is_not_found(old):
    assert mutants.mutated(SOURCE, old, "0.0")[1] == 0


def test_a_statement_is_replaced():
    tree, number = mutants.mutated(SOURCE, "return step", "")
    assert number == 1 and ast.unparse(tree).endswith("pass")


def test_a_fragment_that_is_nowhere_is_refused():
    with pytest.raises(AssertionError, match="holds 'no_such_name"):
        mutants.of_method("fedprox", "no_such_name(1)", "0.0")


def test_a_mutant_leaves_the_method_alone():
    from tff_algos import averaging, client
    from tff_algos.methods import fedprox

    mutant = mutants.of_method("fedprox", "local.client_weight(data)", "tf.ones([])")
    assert mutant.averaging is not averaging and mutant.averaging.client is mutant.client
    assert mutant.ClientResult is mutant.averaging.ClientResult
    assert fedprox.averaging is averaging and averaging.client is client
