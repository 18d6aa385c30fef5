"""FedCAda's Figure 3."""

import numpy as np
import pytest

from reproduction import adjustments


def test_net_factor_of_fedcadas_adjustment():
    """Steps shrink for nine rounds only; the paper says always."""
    table = adjustments.table(0.9, 0.99, 400)
    first = table[table.option == "1"].set_index("round_num")
    t = np.arange(1, 401)
    np.testing.assert_allclose(first.phi1, 0.9**t)
    np.testing.assert_allclose(table[table.option == "2"].phi2, 0.99 ** (2 * t))
    np.testing.assert_allclose(table[table.option == "3"].phi1, np.sin(0.9**t))
    np.testing.assert_allclose(table[table.option == "4"].phi1, np.sqrt(0.9**t))
    assert (table[table.option == "none"].step_factor == 1).all()
    factor = first.step_factor
    np.testing.assert_allclose(factor, np.sqrt(1 + 0.99**t) / (1 + 0.9**t))
    assert factor[1] == pytest.approx(0.74, abs=0.005)
    assert (factor[:9] < 1).all() and (factor.loc[10:] > 1).all()
    assert factor.idxmax() == 37 and factor.max() == pytest.approx(1.274, abs=5e-4)
    slow = adjustments.table(0.1, 0.99, 400)
    assert (slow[slow.option == "1"].step_factor > 1).all()


def test_the_command_writes_the_figure(tmp_path, capsys):
    output = tmp_path / "fig3.png"
    assert adjustments.main([f"--output={output}", "--rounds=20"]) == 0
    paths = [str(output), str(output.with_suffix(".pdf"))]
    assert capsys.readouterr().out.split() == paths
    assert output.stat().st_size > 5000 and output.with_suffix(".pdf").exists()
    (tmp_path / "file").touch()
    assert adjustments.main([f"--output={tmp_path}/file/fig3.png"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("wrong", ["--rounds=1000000000000", "--beta1=nan", "--beta2=2"])
def test_numbers_out_of_range_are_refused(tmp_path, capsys, wrong):
    assert adjustments.main([f"--output={tmp_path / 'x'}", wrong]) == 2
    assert f"error: {wrong.split('=')[0]}=" in capsys.readouterr().err
