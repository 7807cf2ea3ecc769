"""Federated character recognition without a download: 62 classes, every client a synthetic writer.

The letter shapes are the centre lines of fonts that matplotlib ships, redrawn with a pen of the writer's own:
slant, size, stroke, wobble, ink, choice of fonts and choice of characters.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import ft2font
from matplotlib.path import Path as Outline
from scipy.ndimage import distance_transform_edt

SIDE = 28
GRID = 64  # side of the grid on which the shapes are stored
REACH = 26  # half of a shape's longer side, in cells of that grid
WAVES = 4  # wobble is a sum of WAVES * WAVES standing waves

# A fixed list and not a search: the fonts of the system, or of another matplotlib, must not change the data.
STYLES = {
    "DejaVuSans": ("", "-Oblique", "-Bold", "Mono", "Mono-BoldOblique"),
    "DejaVuSerif": ("", "-Italic"),
    "STIXGeneral": ("", "Italic", "BolIta"),
    "cm": ("r10", "ss10", "tt10", "mi10"),
}
# File, and where its digits, capitals and small letters begin. STIX holds alphabets for mathematics as well.
FONTS = (
    *((name + style, (ord("0"), ord("A"), ord("a"))) for name, styles in STYLES.items() for style in styles),
    ("STIXGeneral", (0x1D7E2, 0x1D5A0, 0x1D5BA)),  # sans serif
    ("STIXGeneral", (0x1D7F6, 0x1D608, 0x1D622)),  # slanted sans serif
    ("STIXGeneral", (0x1D7E2, 0x1D608, 0x1D4EA)),  # script, but for its capitals, too ornate for 28 pixels
)
# Hinting differs between versions of matplotlib, of which those before 3.10 want the flag as a number.
UNHINTED: Any = ft2font.LoadFlags.NO_HINTING if hasattr(ft2font, "LoadFlags") else 2

# Mean and standard deviation, over all images of all writers, of what makes a hand
TRAITS = {
    "slant": (0.06, 0.2),
    "turn": (0.0, 0.11),  # radians
    "size": (2.27, 0.12),  # log of half the height of a capital in pixels
    "aspect": (-0.05, 0.13),  # log of width over height
    "right": (0.0, 1.0),  # pixels
    "down": (0.0, 1.0),
    "stroke": (0.05, 0.24),  # log of half the stroke's width in pixels
    "blur": (0.35, 0.25),  # log of the width of the stroke's edge in pixels
    "ink": (0.85, 0.12),  # 1 is white
    "wobble": (-1.4, 0.2),  # log of the displacement, half the longer side of the shape being 1
}

Hand = dict[str, np.ndarray]  # every trait of n images, (n,) each


class Shapes(NamedTuple):
    """The pen paths of every font and character; half the longer side of each is the unit of length."""

    distance: np.ndarray  # (fonts * 62 * GRID * GRID,) from every cell to the path
    half: np.ndarray  # (fonts, 62, 2) half the width and half the height
    length: np.ndarray  # (fonts, 62) the longer side over the height of the font's X


def make(writers: int = 300, heterogeneity: float = 1.0, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Make a data set of `writers` clients, each "writer_000" -> {"x": (n, 28, 28) uint8, "y": (n,) int32}.

    Ink is 255 and paper 0. Labels are 0-9 for digits, 10-35 for A-Z and 36-61 for a-z. A writer has 50 to 400
    images, which depend on the seed, the heterogeneity and the writer's number, not on how many writers there
    are. With heterogeneity 0 all writers draw from one population (i.i.d. clients); with 1 they differ about
    as people do, and more beyond. The variety of all images together hardly changes with it, only how much of
    that variety lies between writers and how much within each.
    """
    if heterogeneity < 0:
        raise ValueError(f"heterogeneity must not be negative, got {heterogeneity}")
    return {f"writer_{index:03d}": _write(index, heterogeneity, seed) for index in range(writers)}


def _write(index: int, heterogeneity: float, seed: int) -> dict[str, np.ndarray]:
    """Make all images of one writer."""
    rng = np.random.default_rng([seed, index])
    count = 50 + int(350 * rng.beta(1.3, 2.5))
    own = heterogeneity**2 / (heterogeneity**2 + 0.25)  # share of the variance that lies between writers

    mix = np.where(np.arange(62) < 10, 2.0, 1.0) / 72
    if heterogeneity > 0:
        # The small term keeps the draw defined where heterogeneity is huge.
        mix = rng.dirichlet(mix * 60 / heterogeneity**2 + 1e-3)
    labels = rng.choice(62, count, p=mix)

    favourites = rng.choice(len(FONTS), 3, replace=False)
    habit = favourites[rng.choice(3, 62, p=(0.6, 0.3, 0.1))]  # the writer's font for each character
    fonts = np.where(rng.random(count) < own, habit[labels], rng.integers(len(FONTS), size=count))

    def blend(writer: np.ndarray, image: np.ndarray) -> np.ndarray:
        return (own**0.5 * writer + (1 - own) ** 0.5 * image).astype(np.float32)

    traits = blend(rng.standard_normal(len(TRAITS)), rng.standard_normal((count, len(TRAITS)))).T
    hand = {name: mean + sd * trait for (name, (mean, sd)), trait in zip(TRAITS.items(), traits, strict=True)}
    forms = rng.standard_normal((62, 3, WAVES**2))  # the writer's own way with each character
    waves = np.clip(blend(forms[labels], rng.standard_normal((count, 3, WAVES**2))), -2, 2)
    ink = _draw(fonts, labels, hand, waves)
    ink += (0.02 + 0.06 * ink) * rng.standard_normal(ink.shape, np.float32)
    x = np.rint(255 * np.clip(ink, 0, 1)).astype(np.uint8).reshape(count, SIDE, SIDE)
    return {"x": x, "y": labels.astype(np.int32)}


def _draw(fonts: np.ndarray, labels: np.ndarray, hand: Hand, waves: np.ndarray) -> np.ndarray:
    """Draw ink (n, 784) from fonts (n,), labels (n,), a hand and heights of waves (n, 3, WAVES**2)."""
    shapes = _shapes()
    # Small letters are drawn larger than type would have it, so that size tells less about case.
    size = np.exp(hand["size"]) * shapes.length[fonts, labels] ** 0.6
    stretch = np.exp(hand["aspect"] / 2)
    sin, cos = np.sin(hand["turn"]), np.cos(hand["turn"])
    lean = -hand["slant"] / stretch  # minus, as rows count downwards
    # (n, 2, 2), from the plane of the shape to pixels
    warp = size * np.array([[cos * stretch, cos * lean - sin / stretch], [sin * stretch, sin * lean + cos / stretch]])
    warp = np.moveaxis(warp, 2, 0)

    # Shrink what would not fit, then keep the middle where the borders cut nothing off.
    stroke = np.exp(hand["stroke"])
    room = (SIDE / 2 - 1 - stroke)[:, None]
    reach = np.einsum("nij,nj->ni", np.abs(warp), shapes.half[fonts, labels])
    shrink = np.minimum(0.95 * room / reach, 1).min(1)
    slack = room - reach * shrink[:, None]
    middle = np.clip(np.stack([hand["right"], hand["down"]], -1), -slack, slack)
    back = np.linalg.inv(warp * shrink[:, None, None])

    # The place in the shape's plane and the pen's pressure, at every pixel, are sums of the basis functions.
    plan = np.zeros((len(labels), 3, 3 + WAVES**2), np.float32)
    plan[:, :2, 0] = -np.einsum("nij,nj->ni", back, middle)
    plan[:, :2, 1:3] = back
    plan[:, :2, 3:] = np.exp(hand["wobble"])[:, None, None] * waves[:, :2]
    plan[:, 2, 0] = 1
    plan[:, 2, 3:] = 0.2 * waves[:, 2]
    column, row, pressure = np.moveaxis(plan @ _basis(), 1, 0)  # (n, 784) each

    distance = (size * shrink)[:, None] * _sample(shapes.distance, (fonts * 62 + labels)[:, None], column, row)
    inside = stroke[:, None] * np.maximum(pressure, 0.5) - distance
    ramp = np.clip(inside / np.exp(hand["blur"])[:, None] + 0.5, 0, 1)
    return np.clip(hand["ink"], 0.45, 1)[:, None] * ramp * ramp * (3 - 2 * ramp)


def _sample(field: np.ndarray, glyph: np.ndarray, column: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Read the stored distance at places (n, 784) of the shapes' planes, between cells bilinearly."""
    column, row = (place * REACH + (GRID - 1) / 2 for place in (column, row))
    near_column, near_row = np.clip(column, 0, GRID - 1.001), np.clip(row, 0, GRID - 1.001)
    beyond = np.abs(column - near_column) + np.abs(row - near_row)  # off the grid, distance goes on growing
    left, top = near_column.astype(np.int32), near_row.astype(np.int32)
    column, row = near_column - left.astype(np.float32), near_row - top.astype(np.float32)
    at = glyph.astype(np.int32) * GRID**2 + top * GRID + left
    upper = field[at] * (1 - column) + field[at + 1] * column
    lower = field[at + GRID] * (1 - column) + field[at + GRID + 1] * column
    return upper * (1 - row) + lower * row + beyond / REACH


@functools.cache
def _basis() -> np.ndarray:
    """Make the functions (3 + WAVES**2, 784) of a pixel that places are sums of: 1, x, y and the waves."""
    row, column = np.indices((SIDE, SIDE)) - (SIDE - 1) / 2
    # Sines are 0 at the borders, so wobble pushes no ink out of the picture.
    sines = np.sin(np.outer(np.arange(1, WAVES + 1), np.pi * (np.arange(SIDE) + 0.5) / SIDE))
    waves = [2 / ((i + 1) ** 2 + (j + 1) ** 2) * np.outer(sines[i], sines[j]) for i, j in np.ndindex(WAVES, WAVES)]
    return np.stack([np.ones((SIDE, SIDE)), column, row, *waves]).reshape(-1, SIDE * SIDE).astype(np.float32)


@functools.cache
def _shapes() -> Shapes:
    """Rasterise every character of every font, thin it to its centre line and measure distances to that."""
    masks = np.zeros((len(FONTS), 62, GRID, GRID), np.uint8)
    half = np.zeros((len(FONTS), 62, 2), np.float32)
    for f, (name, starts) in enumerate(FONTS):
        font = ft2font.FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")))
        font.set_size(2000, 72)  # large, as points of the outline are rounded
        codes = [start + i for start, many in zip(starts, (10, 26, 26), strict=True) for i in range(many)]
        for c, code in enumerate(codes):
            font.load_char(code, flags=UNHINTED)
            points, kinds = font.get_path()
            # Curves are cut to about half a unit, for which a fifth of the size is fine enough.
            polygons = [np.array(polygon) for polygon in Outline(points / 5, kinds).to_polygons()]
            edges = np.concatenate([np.stack([p[:-1], p[1:]]) for p in polygons], 1)  # (2, edges, 2)
            low, high = edges.min((0, 1)), edges.max((0, 1))
            half[f, c] = (high - low) / 2
            masks[f, c] = _fill((edges - (low + high) / 2) * (1, -1) / half[f, c].max())
    length = half.max(2) / half[:, [33], 1]
    half /= half.max(2, keepdims=True)
    _thin(masks.reshape(-1))
    distance = np.zeros((len(FONTS) * 62, GRID, GRID), np.float32)
    for glyph, mask in enumerate(masks.reshape(-1, GRID, GRID)):
        distance[glyph] = distance_transform_edt(mask == 0)
    return Shapes(distance.reshape(-1) / REACH, half, length)


def _fill(edges: np.ndarray) -> np.ndarray:
    """Fill an outline, given as edges (from and to, edges, x and y), with 1 on the grid."""
    fine = 4 * GRID
    (x, y), (to_x, to_y) = np.moveaxis(edges * (4 * REACH) + (fine - 1) / 2, 2, 1)
    # Step the winding number where an edge crosses the middle of a row, and add the steps up along the rows.
    rows, at = np.nonzero((y <= np.arange(fine)[:, None]) != (to_y <= np.arange(fine)[:, None]))
    columns = np.ceil(x[at] + (rows - y[at]) * (to_x - x)[at] / (to_y - y)[at]).astype(int)
    winding = np.zeros((fine, fine), int)
    np.add.at(winding, (rows, columns), np.where(to_y > y, 1, -1)[at])
    # A cell is inked where any of its 16 parts is: hairlines stay whole, and thinning undoes the rest.
    return (winding.cumsum(1) != 0).reshape(GRID, 4, GRID, 4).any((1, 3))


def _thin(flat: np.ndarray) -> None:
    """Thin pictures of 0 and 1 to centre lines in place, after Guo and Hall (1989).

    The pictures lie one after the other in a flat array. Their margins are empty, so that neighbours found
    across the end of a row or of a picture are empty too.
    """
    # The 8 neighbours, clockwise from the upper left, are the bits of a code.
    steps = (-GRID - 1, -GRID, -GRID + 1, 1, GRID + 1, GRID, GRID - 1, -1)
    a, b, c, d, e, f, g, h = ((np.arange(256) >> np.arange(8)[:, None]) & 1).astype(bool)
    branches = np.sum([~b & (c | d), ~d & (e | f), ~f & (g | h), ~h & (a | b)], 0)
    pairs = np.minimum(np.sum([a | b, c | d, e | f, g | h], 0), np.sum([b | c, d | e, f | g, h | a], 0))
    simple = (branches == 1) & (pairs >= 2) & (pairs <= 3)
    passes = (simple & ~((b | c | ~e) & d), simple & ~((f | g | ~a) & h))  # codes whose pixel may go
    changed = True
    while changed:
        changed = False
        for goes in passes:
            ink = np.flatnonzero(flat)
            code = np.zeros(len(ink), np.uint8)
            for bit, step in enumerate(steps):
                code |= flat[ink + step] << bit
            gone = ink[goes[code]]
            flat[gone] = 0
            changed |= len(gone) > 0
