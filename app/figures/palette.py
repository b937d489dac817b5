"""The colours of the app, in one place, with their dark twins.

The five decision colours were chosen for colour-blind readers: the worst pair keeps a CIE difference of 30
under simulated protanopia, deuteranopia and tritanopia (Okabe-Ito reaches 12 on the same five roles).
Figures are built with the light colours; the browser swaps in the twins of `DARK` when the page is dark,
so a figure never has to know the theme.
"""

SKIPPED = "#ECEEF2"
NVFP4 = "#EEBB44"
INT8 = "#4477AA"
W4A16 = "#222255"
STOCK = "#6B6F94"
PURIFIED = "#CC3311"
UNKNOWN = "#F3DDE4"
CLEAR = "rgba(0,0,0,0)"
ACCENT = "#E4570B"
PAPER = "#FFFFFF"
INK = "#1D2130"
MUTED = "#5A6072"
LINE = "#D5D9E2"
GAP = "#FFFFFE"

RIGHT = "#B9C8BE"
WASTE = "#77AADD"
MISS = "#CC3311"

# Sequential scale for signals: dark blue is small, yellow is large, even in lightness.
SEQUENTIAL = ["#E9EEF6", "#BCD0E6", "#88AED2", "#5287B8", "#2C5E93", "#1B3A6B"]

# A dark page keeps the decision hues but for the 16-bit navy, which would vanish there (1.2:1): a light violet has
# 5.5:1 against a skipped cell. An absence stays an absence, as dark as the page, between lighter gaps.
DARK = {
    SKIPPED: "#20242E",
    PAPER: "#14161C",
    GAP: "#4A5160",
    INK: "#ECEEF4",
    MUTED: "#A6ADBD",
    LINE: "#3A404D",
    ACCENT: "#FF7A33",
    W4A16: "#A68AF0",
    STOCK: "#8A8FB8",
    UNKNOWN: "#4A3440",
    RIGHT: "#5C8570",
    SEQUENTIAL[0]: "#1E2633",
    SEQUENTIAL[1]: "#27405F",
    SEQUENTIAL[2]: "#34618F",
    SEQUENTIAL[3]: "#5A8DBE",
    SEQUENTIAL[4]: "#9CC3E6",
    SEQUENTIAL[5]: "#E2EFFB",
}
