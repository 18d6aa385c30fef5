"""The notebook, run from its first cell to its last."""

import pathlib

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(REPO / "examples" / "compare_methods.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept"
    client = nbclient.NotebookClient(
        notebook, timeout=1500, resources={"metadata": {"path": str(REPO / "examples")}}
    )
    client.execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    text = "".join(output.get("text", "") for output in outputs)
    assert text.count("After 30 rounds") == 4
    assert "fedavg - fedadam after round 30" in text
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
