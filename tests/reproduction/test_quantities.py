import pytest

from reproduction import quantities


@pytest.mark.parametrize(
    ("column", "label", "factor"),
    [
        ("eval/accuracy", "accuracy (%)", 100),
        ("train/loss", "training loss", 1),
        ("eval/recall_at_5", "recall at 5 (%)", 100),
        ("fairness/accuracy_avg_u", "mean accuracy over clients (%)", 100),
        (
            "fairness/accuracy_worst05_w",
            "mean accuracy of the worst 5 % of clients, weighted by test examples (%)",
            100,
        ),
        ("fairness/accuracy_std_u", "standard deviation of clients' accuracy (%)", 100),
        (
            "fairness/accuracy_error_rsd_t",
            "standard deviation of clients' errors over their mean, weighted by training examples",
            1,
        ),
        (
            "fairness/accuracy_angle",
            "angle between clients' accuracy and equal ones (degrees)",
            1,
        ),
        ("fairness/improved_fraction", "clients' improved fraction (%)", 100),
        ("train/direction_norm", "training direction norm", 1),
    ],
)
def test_a_column_in_words_and_its_unit(column, label, factor):
    quantity = quantities.of_column(column)
    assert (quantity.label, quantity.factor) == (label, factor)
    assert (quantity.bounds is None) == (factor == 1)


def test_better_words_keep_the_unit():
    assert quantities.of_column("eval/accuracy", "test accuracy").label == "test accuracy (%)"
    assert quantities.of_column("eval/mse", "error").label == "error"
