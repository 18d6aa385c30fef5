import itertools

import numpy as np
import pytest
from matplotlib import pyplot

from tests import canvas
from tff_suite import figures, palette

LONG = "mean test accuracy over all of the clients of the federation, weighted by their examples"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


# How people without the receptor for long and for medium waves see linear RGB: Machado, Oliveira
# and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
PROTANOPIA = [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0519]]
DEUTERANOPIA = [[0.3673, 0.8606, -0.2280], [0.2801, 0.6726, 0.0472], [-0.0118, 0.0429, 0.9689]]
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(colour, sight):
    """Returns CIE L*a*b* of an sRGB colour `#rrggbb` as it is seen."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(TO_XYZ) @ np.clip(np.array(sight) @ linear, 0, 1)
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 1e-4))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPIA, DEUTERANOPIA])
def test_colours_differ_for_colour_blind_readers_and_from_paper(sight):
    """A difference of 2.3 is just noticeable; 10 is told apart at a glance."""
    for one, other in itertools.combinations([*palette.COLOURS.values(), "#ffffff"], 2):
        assert np.linalg.norm(lab(one, sight) - lab(other, sight)) > 10, (one, other)


def test_equal_lines_show_both():
    """The first is wider than the second, which lies on it."""
    assert figures.width(0, 2) > figures.width(1, 2) + 1
    places = [figures.sparse(i, 2, 100) for i in range(2)]
    first, second = (set(range(start, 100, step)) for start, step in places)
    assert first and second and not first & second


def labelled():
    figure, axes = figures.panels()
    axes[0, 0].plot([1, 2], label="fedavg")
    axes[0, 0].set(xlabel=LONG, ylabel=LONG, title=LONG)
    figures.legend(figure)
    return figure


def test_long_words_are_broken_and_nothing_leaves_the_canvas():
    assert canvas.hidden(figures.fit(labelled())) == []
    name = "fedavg_with_a_name_that_has_no_blank_and_goes_on_and_on_and_on_and_on"
    figure, axes = figures.panels(2)
    axes[0, 0].plot([1, 2], label=name)
    axes[0, 1].set(title=name, ylabel=name)
    figures.legend(figure, [figures.note(LONG)])
    assert canvas.hidden(figures.fit(figure)) == []


@pytest.mark.parametrize("width", ["3", True, 0, -3, np.nan, 1e6])
def test_a_width_that_is_no_number_of_inches_is_refused(width):
    with pytest.raises(ValueError, match="must be a number of inches, 2 to 20"):
        figures.fit(labelled(), width)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_a_long_title_ends_before_the_legend(columns):
    """Panels that share their labels are so near each other that its lines would reach it."""
    figure, axes = figures.panels(columns, width=0.8, height=0.5, sharey=True)
    for panel in axes[0]:
        panel.plot([1, 2], label="one seed")
    figure.suptitle("a client of MNIST " * 30, x=0.01, ha="left")
    figures.legend(figure)
    assert canvas.hidden(figures.fit(figure)) == []


def test_the_check_sees_what_is_hidden():
    """Each of what the check is for, made on purpose."""
    figure, axes = figures.panels()
    axes[0, 0].set_ylabel(LONG)
    assert any("leaves the canvas" in p for p in canvas.hidden(figure)), "a label too long"
    figure, axes = figures.panels()
    axes[0, 0].set_ylabel("accuracy")
    figure.set_layout_engine("none")
    axes[0, 0].set_position([0, 0, 1, 1])
    assert any("leaves the canvas" in p for p in canvas.hidden(figure)), "no room for it"
    figure, axes = figures.panels()
    axes[0, 0].plot([0, 1, 2], label="fedavg")
    axes[0, 0].set_ylim(0, 1)
    assert any("'fedavg' is cut" in p for p in canvas.hidden(figure))
    figure, axes = figures.panels()
    axes[0, 0].plot([1, 2], label="fedavg")
    figure.legend(loc="center")
    assert any("lies on" in p for p in canvas.hidden(figure)), "a legend on the panel"
    figure, axes = figures.panels()
    axes[0, 0].set_xticks(range(60), [f"round {i}" for i in range(60)])
    assert any("lie on one another" in p for p in canvas.hidden(figure))


def test_the_check_sees_what_is_cut_and_what_lies_on_what_in_a_panel():
    def problems(draw):
        figure, axes = figures.panels()
        axes[0, 0].plot([0, 1], [0, 1], "o", label="fedavg")
        axes[0, 0].set(xlim=(-0.2, 1.2), ylim=(-0.2, 1.2))
        draw(axes[0, 0])
        return canvas.hidden(figures.fit(figure))

    assert problems(lambda axes: None) == []
    band = problems(lambda axes: axes.fill_between([0, 1], [0, 1], [1, 2]))
    assert any("band or bar" in p for p in band)
    bar = problems(lambda axes: axes.errorbar([0.5], [0.5], [0.8]))
    assert any("band or bar" in p for p in bar)
    mark = problems(lambda axes: axes.text(0.98, 0.98, "words"))
    assert any("'words' lies on a mark of 'fedavg'" in p for p in mark)

    def words(axes):
        axes.text(0.4, 0.5, "words")
        axes.text(0.45, 0.5, "others")

    assert any("'words' lies on 'others'" in p for p in problems(words))

    def enlarged(axes):
        axes.set_gid("zoom")
        axes.plot([-5, 0, 1], [0.5, 0.5, 0.6], label="begins before")
        axes.plot([0, 1], [0, 5], label="leaves", gid="beyond")
        axes.plot([0, 1], [0, 5], label="is cut")

    assert [p for p in problems(enlarged) if "cut" in p] == ["panel 0: the line 'is cut' is cut"]

    def published(axes):
        for at in (0.5, 0.51):
            style = {"transform": axes.get_yaxis_transform(), "clip_on": False, "gid": "published"}
            axes.plot(1.02, at, "D", **style)

    assert any("a published mark lies on another" in p for p in problems(published))


def test_a_figure_without_room_is_an_error(tmp_path):
    """Words or a mark far off their panel would leave it none, and all of it lay anywhere."""
    figure, axes = figures.panels()
    axes[0, 0].plot([1, 2], label="fedavg")
    axes[0, 0].set_ylim(1, 2)
    axes[0, 0].plot(1, -900, "D", clip_on=False)
    axes[0, 0].set_ylim(1, 2)
    with pytest.raises(ValueError, match="leaves no space for its panels"):
        figures.fit(figure)
    with pytest.raises(ValueError, match="leaves no space for its panels"):
        figures.save(figure, str(tmp_path / "a"))
    assert not list(tmp_path.iterdir())


def test_labels_of_points_lie_on_no_line_no_mark_and_no_other():
    figure, axes = figures.panels()
    (axes,) = axes[0]
    points = [(0, 0), (1, 1), (1.03, 1), (2, 0)]
    axes.plot(*zip(*points, strict=True), "-o")
    figures.fit(figure)
    figures.label_points(axes, [(f"{i}00", point, "black") for i, point in enumerate(points)])
    assert len(axes.texts) == 4 and canvas.hidden(figure) == []


def test_panels_have_their_size_whatever_stands_around_them():
    sizes = []
    for make in (labelled, lambda: figures.panels()[0]):
        figure = figures.fit(make())
        box = figure.axes[0].get_window_extent()
        sizes.append((box.width, box.height))
    assert sizes[0] == pytest.approx(sizes[1], abs=2)


def test_fitting_twice_changes_nothing():
    figure = figures.fit(labelled())
    size, words = figure.get_size_inches(), figure.axes[0].get_ylabel()
    figures.fit(figure)
    assert figure.get_size_inches() == pytest.approx(size, abs=0.02)
    assert figure.axes[0].get_ylabel() == words


def test_ticks_of_rounds_are_whole_numbers():
    figure, axes = figures.panels()
    axes[0, 0].plot([0, 1, 2, 3], [1, 2, 3, 4])
    figures.whole_numbers(axes[0, 0].xaxis)
    figure.draw_without_rendering()
    assert all(float(t).is_integer() for t in axes[0, 0].get_xticks())
    figures.ticks_at(axes[0, 0].xaxis, [1, 2])
    figure.draw_without_rendering()
    assert [t.get_text() for t in axes[0, 0].get_xticklabels()] == ["1", "2"]
