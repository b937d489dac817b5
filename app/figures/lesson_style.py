"""The look that all lesson and comparison figures share. No fixed type sizes: the page sets them,
because presenter mode shows the same figures to a whole room."""

from __future__ import annotations

from app.figures import palette, spec

BY_BITS = {0: palette.SKIPPED, 4: palette.NVFP4, 8: palette.INT8, 16: palette.W4A16}


def layout(x: str, y: str, **over) -> dict:
    """Layout of a static figure with two titled axes, a legend on top and no zooming by touch."""
    base = spec.layout(
        plot_bgcolor=palette.CLEAR,
        margin={"l": 10, "r": 10, "t": 8, "b": 10},
        xaxis=axis(x), yaxis=axis(y), dragmode=False, hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": palette.CLEAR},
        hoverlabel={"bgcolor": palette.PAPER, "bordercolor": palette.LINE, "font": {"color": palette.INK}},
    )  # fmt: skip
    base["font"] = {"color": palette.INK}
    base.update(over)
    return base


def axis(title: str = "", **over) -> dict:
    """One axis: a quiet grid, room for its labels, not draggable."""
    base = {
        "title": {"text": title, "standoff": 8}, "automargin": True, "fixedrange": True, "zeroline": False,
        "gridcolor": palette.LINE, "linecolor": palette.LINE, "tickcolor": palette.LINE, "color": palette.MUTED,
    }  # fmt: skip
    base.update(over)
    return base


def rule(y: float | None = None, x: float | None = None, dash: str = "solid") -> dict:
    """A straight line across the figure in the accent colour: the threshold that a person moves."""
    line = {"color": palette.ACCENT, "width": 3, "dash": dash}
    if y is not None:
        return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line}


def band(x0: float, x1: float, colour: str, opacity: float = 0.2) -> dict:
    """A shaded stretch of the x axis, behind the data."""
    return {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": x0, "x1": x1, "layer": "below",
            "fillcolor": colour, "opacity": opacity, "line": {"width": 0}}  # fmt: skip
