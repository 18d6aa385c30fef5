"""The shares of operations in a client's training."""

import pytest

from benchmarks import operations


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("_MklNativeConv2DBackpropFilter", "convolutions"),
        ("_MklFusedMatMul", "products of matrices"),
        ("StatelessRandomUniformFullInt", "random numbers"),
        ("_MklSoftmax", "Softmax"),
        ("Mul", "Mul"),
    ],
)
def test_operations_of_like_kind_count_together(operation, kind):
    assert operations.kind(operation) == kind


def test_shares_are_of_every_operation_of_a_clients_training():
    records = operations.shares("w4")
    assert sum(r["share"] for r in records) == pytest.approx(1, abs=0.01)
    number = {r["operations"]: r["number"] for r in records}
    # Forward, and for the kernel's gradient, in each of ten steps.
    assert number["products of matrices"] == 2 * 10
    assert records[0]["seconds"] > 0
    assert [r["share"] for r in records] == sorted((r["share"] for r in records), reverse=True)
