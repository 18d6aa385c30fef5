"""What of a figure cannot be seen, by the extents of its artists against the figure's."""

import itertools

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

# Pixels that rounding may cost.
_SLACK = 1.0


def hidden(figure: Figure) -> list[str]:
    """Returns what leaves the canvas, what lies on something else, and which curves are cut.

    Words and panels with all that stands around them must lie within the figure, and none on
    another; lines, bands and bars must lie within their panel. In a panel that enlarges a part of
    another, those that are marked as going beyond it may leave it, and all may begin before it.
    Words in a panel lie on no other words and on no mark, and no published mark on another.
    """
    figure.draw_without_rendering()
    renderer = figure._get_renderer()
    outer = figure.bbox
    things = {}
    for i, axes in enumerate(figure.axes):
        things[f"panel {i}"] = axes.get_tightbbox(renderer)
    for i, legend in enumerate(figure.legends):
        things[f"legend {i}"] = legend.get_window_extent(renderer)
    texts = [t for t in (figure._suptitle, *figure.texts) if t is not None and t.get_text()]
    for text in dict.fromkeys(texts):
        things[repr(text.get_text())] = text.get_window_extent(renderer)
    problems = [
        f"{name} leaves the canvas: {box.extents.round(1)} of {outer.extents.round(1)}"
        for name, box in things.items()
        if not (
            box.x0 >= outer.x0 - _SLACK
            and box.y0 >= outer.y0 - _SLACK
            and box.x1 <= outer.x1 + _SLACK
            and box.y1 <= outer.y1 + _SLACK
        )
    ]
    for (one, a), (other, b) in itertools.combinations(things.items(), 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        if across > _SLACK and down > _SLACK:
            problems.append(f"{one} lies on {other}")
    for i, axes in enumerate(figure.axes):
        inner = axes.get_window_extent(renderer)
        if axes.get_label() != "<colorbar>" and min(inner.width, inner.height) < figure.dpi:
            problems.append(f"panel {i} is smaller than an inch: {inner}")
        if axes.get_label() != "<colorbar>":
            problems += [f"panel {i}: {p}" for p in _cut(axes)]
        problems += [f"panel {i}: {p}" for p in _on_one_another(axes, renderer)]
        problems += [f"panel {i}: {p}" for p in _labels_on_labels(axes, renderer)]
    return problems


def _cut(axes):
    """Returns the lines, bands and bars of which the panel's limits cut something off."""
    inner = axes.get_window_extent()
    zoom = axes.get_gid() == "zoom"
    drawn = {}
    for line in axes.get_lines():
        drawn[line] = "line", line.get_transform().transform(line.get_xydata().astype(float))
    problems = []
    for collection in axes.collections:
        if isinstance(collection, PathCollection):
            problems.append("marks of a kind that this does not look at")
            continue
        paths = [path.vertices for path in collection.get_paths() if len(path.vertices)]
        if paths:
            points = collection.get_transform().transform(np.concatenate(paths))
            drawn[collection] = "band or bar", points
    for artist, (kind, points) in drawn.items():
        points = points[np.isfinite(points).all(axis=1)]
        if zoom:
            if artist.get_gid() == "beyond":
                continue
            points = points[points[:, 0] >= inner.x0 - _SLACK]
        right = np.inf if artist.get_gid() == "published" else inner.x1 + _SLACK
        within = (points >= (inner.x0 - _SLACK, inner.y0 - _SLACK)).all() and (
            points <= (right, inner.y1 + _SLACK)
        ).all()
        if len(points) and not within:
            problems.append(f"the {kind} {artist.get_label()!r} is cut")
    return problems


def _on_one_another(axes, renderer):
    """Returns words in a panel that lie on words or marks, and published marks on one another."""
    problems = []
    words = {t: t.get_window_extent(renderer) for t in axes.texts if t.get_text()}
    for (one, a), (other, b) in itertools.combinations(words.items(), 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        if across > _SLACK and min(a.y1, b.y1) - max(a.y0, b.y0) > _SLACK:
            problems.append(f"{one.get_text()!r} lies on {other.get_text()!r}")
    published = []
    for line in axes.get_lines():
        points = line.get_transform().transform(line.get_xydata().astype(float))
        if line.get_gid() == "published":
            published += [(point, line.get_markersize() * axes.figure.dpi / 72) for point in points]
        if line.get_marker() in ("None", "", None):
            continue
        for text, box in words.items():
            if any(box.contains(x, y) for x, y in points):
                problems.append(f"{text.get_text()!r} lies on a mark of {line.get_label()!r}")
    for (one, size), (other, _) in itertools.combinations(published, 2):
        if np.abs(one - other).max() < 0.75 * size:
            problems.append("a published mark lies on another")
    return problems


def _labels_on_labels(axes, renderer):
    """Returns the ticks' labels that touch their neighbours."""
    problems = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        labels = [
            tick.label1.get_window_extent(renderer)
            for tick in axis.get_major_ticks()
            if tick.label1.get_visible()
            and tick.label1.get_text()
            and low - 1e-9 <= tick.get_loc() <= high + 1e-9
        ]
        for one, other in itertools.pairwise(labels):
            if one.overlaps(other):
                problems.append(f"labels of the {axis.axis_name} axis lie on one another")
                break
    return problems
