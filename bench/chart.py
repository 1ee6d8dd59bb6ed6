"""chart.py - line charts as SVG, without a library, readable on light and on dark pages."""
import math
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 250                   # of a panel
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 58, 46  # its margins
LIGHT = "#0072b2 #c24e00 #00785a #a3478b #7a6200 #1a1a1a #4b5bd4 #8a4b08 #b0003a #4f6d7a".split()
DARK = "#56b4e9 #ff9f5a #3fd0a4 #e29ad0 #e8d44d #f0f0f0 #9aa5ff #d9a066 #ff7a9c #a9c4d1".split()


def style():
    def rules(back, ink, grid, colours):
        lines = "".join(f".s{i}{{stroke:{c};fill:{c}}}" for i, c in enumerate(colours))
        return f".back{{fill:{back}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.floor{{stroke:{ink}}}{lines}"

    return ("<style>text{font:13px sans-serif}.title{font-weight:bold}polyline{fill:none!important;stroke-width:2}"
            ".floor{stroke-dasharray:5 4}" + rules("#fff", "#222", "#ddd", LIGHT) +
            "@media(prefers-color-scheme:dark){" + rules("#0d1117", "#ddd", "#30363d", DARK) + "}</style>")


def steps(low, high, log):
    """Values of y that get a line: about five round ones, or powers of ten with 2 and 5 between where these are few."""
    if log:
        tens = [10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        parts = (1,) if len(tens) > 4 else (1, 2, 5)
        return [t * p for t in tens for p in parts if low <= t * p <= high]
    step = 10.0**math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 6)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def panel(title, y_label, x_label, names, series, log=False, low=None, floor=None):
    """One panel. names: of the places along x. series: {label: [(place, y, least, most), ...]}, least and most being the
    ends of a bar. low: where y begins. floor: (y, label) of a dashed line."""
    ys = [v for points in series.values() for _, *rest in points for v in rest] + ([floor[0]] if floor else [])
    bottom, top = min(ys) if low is None else low, max(ys)
    if log:
        bottom, top = bottom / 1.1, top * 1.1
    else:
        margin = (top - bottom or abs(top) or 1) / 20
        bottom, top = bottom - margin if low is None else low, top + margin
    scale = math.log if log else float
    y_of = lambda v: HEIGHT - BOTTOM - (scale(v) - scale(bottom)) / (scale(top) - scale(bottom)) * (HEIGHT - TOP - BOTTOM)
    x_of = lambda i: LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / len(names)
    text = lambda x, y, words, more="": f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'
    out = [text(LEFT, 18, title, 'class="title"'), text(10, TOP - 8, y_label)]
    for v in steps(bottom, top, log):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(v):.1f}" y2="{y_of(v):.1f}"/>')
        out.append(text(LEFT - 8, y_of(v) + 4, f"{v:.6g}", 'text-anchor="end"'))
    out += [text(x_of(i), HEIGHT - BOTTOM + 18, name, 'text-anchor="middle"') for i, name in enumerate(names)]
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, 'text-anchor="middle"'))
    at = LEFT + 110
    if floor:
        y = y_of(floor[0])
        out.append(f'<line class="floor" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(WIDTH - RIGHT, y - 5, floor[1], 'text-anchor="end"'))
    for n, (label, points) in enumerate(series.items()):
        kind = f'class="s{n % len(LIGHT)}"'
        out.append(f'<polyline {kind} points="' + " ".join(f"{x_of(i):.1f},{y_of(v):.1f}" for i, v, *_ in points) + '"/>')
        for i, v, least, most in points:
            out.append(f'<circle {kind} cx="{x_of(i):.1f}" cy="{y_of(v):.1f}" r="3"/>')
            if most > least:
                out.append(f'<line {kind} x1="{x_of(i):.1f}" x2="{x_of(i):.1f}" y1="{y_of(least):.1f}" '
                           f'y2="{y_of(most):.1f}"/>')
        out += [f'<circle {kind} cx="{at}" cy="{TOP - 20}" r="4"/>', text(at + 8, TOP - 16, label)]
        at += 26 + 7.5 * len(label)
    return "\n".join(out)


def write(path, panels, note=""):
    """A file with panels below each other; note: a last line in small letters."""
    height = HEIGHT * len(panels) + (20 if note else 0)
    body = [f'<g transform="translate(0,{HEIGHT * i})">\n{p}\n</g>' for i, p in enumerate(panels)]
    if note:
        body.append(f'<text x="{LEFT}" y="{height - 8}" style="font-size:10px">{escape(note)}</text>')
    Path(path).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
                          f'height="{height}">\n{style()}\n<rect class="back" width="{WIDTH}" height="{height}"/>\n' +
                          "\n".join(body) + "\n</svg>\n")
    print(f"written: {path}")
