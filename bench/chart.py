"""chart.py - lines, bars and lanes of time as SVG, without a library, readable on light and on dark pages."""
import math
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 250                   # of a panel of lines
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 58, 46  # its margins
LIGHT = "#0072b2 #c24e00 #00785a #a3478b #7a6200 #1a1a1a #4b5bd4 #8a4b08 #b0003a #4f6d7a".split()
DARK = "#56b4e9 #ff9f5a #3fd0a4 #e29ad0 #e8d44d #f0f0f0 #9aa5ff #d9a066 #ff7a9c #a9c4d1".split()


def style():
    def rules(back, ink, grid, colours):
        lines = "".join(f".s{i}{{stroke:{c};fill:{c}}}" for i, c in enumerate(colours))
        return (f".back{{fill:{back}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.floor{{stroke:{ink}}}"
                f".inside{{fill:{back}}}{lines}")

    return ("<style>text{font:13px sans-serif}.title{font-weight:bold}.large{font-size:15px}.small{font-size:11px}polyline{fill:none!important;stroke-width:2}"
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


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def number(value):
    """1,315; 7.7"""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def bars(title, columns):
    """Bars from the left, and their height. columns: [(heading, [(group, [(label, value), ...]), ...]), ...], which stand
    side by side, each with a scale of its own. The n-th bar of each group has the n-th colour."""
    bar, gap, name = 20, 26, 78  # the height of a bar, the room of a group's heading, the width of a label
    width = (WIDTH - 20) / len(columns)
    out = [text(10, 18, title, 'class="title"')]
    bottom = 0
    for c, (heading, groups) in enumerate(columns):
        left, y = 10 + width * c, 44
        top = max(value for _, rows in groups for _, value in rows)
        out.append(text(left, y, heading, 'class="title"'))
        for group, rows in groups:
            out.append(text(left + name, y + 20, group))
            y += gap
            for n, (label, value) in enumerate(rows):
                length = (width - name - 70) * value / top
                out.append(text(left + name - 8, y + 15, label, 'text-anchor="end"'))
                out.append(f'<rect class="s{n}" x="{left + name:.1f}" y="{y + 2}" width="{length:.1f}" height="{bar - 4}"/>')
                out.append(text(left + name + length + 6, y + 15, number(value)))
                y += bar
        bottom = max(bottom, y)
    return "\n".join(out), bottom + 8


def lanes(title, x_label, span, lanes, kinds):
    """Bars on lanes along one axis of time, and their height. span: its end in ms, which begins at 0. lanes: [(label, [(begin,
    end, kind, words), ...]), ...]; a bar without a length is a mark, with its words above. kinds: those that the legend
    names, each with its colour."""
    left, lane, top = 190, 40, 66
    x_of = lambda ms: left + (WIDTH - left - RIGHT) * ms / span
    bottom = top + lane * len(lanes)
    out, at = [text(10, 18, title, 'class="title"')], left
    for n, kind in enumerate(kinds):
        out += [f'<rect class="s{n}" x="{at}" y="32" width="12" height="12"/>', text(at + 17, 43, kind)]
        at += 40 + 7.5 * len(kind)
    for ms in steps(0, span, False):
        out.append(f'<line class="grid" x1="{x_of(ms):.1f}" x2="{x_of(ms):.1f}" y1="{top - 8}" y2="{bottom}"/>')
        out.append(text(x_of(ms), bottom + 16, f"{ms:.6g}", 'text-anchor="middle"'))
    out.append(text((left + WIDTH - RIGHT) / 2, bottom + 34, x_label, 'text-anchor="middle"'))
    for n, (label, events) in enumerate(lanes):
        y = top + lane * n
        out.append(text(left - 10, y + 26, label, 'text-anchor="end"'))
        free = 0 # above the lane
        for begin, end, kind, words in events:
            x, length = x_of(begin), x_of(end) - x_of(begin)
            colour = f'class="s{kinds.index(kind)}"'
            if end == begin:
                out.append(f'<line {colour} x1="{x:.1f}" x2="{x:.1f}" y1="{y + 6}" y2="{y + 34}" stroke-width="1.5"/>')
                if x > free:
                    out.append(text(x + 2, y + 6, words, 'class="small"'))
                    free = x + 2 + 7 * len(words)
                continue
            width = max(length - 1, 0.5) if length > 3 else length # neighbours are told apart by the gap
            out.append(f'<rect {colour} x="{x:.1f}" y="{y + 11}" width="{width:.1f}" height="22"/>')
            if words and length > 10 * len(words):
                out.append(text(x + length / 2, y + 26, words, 'text-anchor="middle" class="inside"'))
    return "\n".join(out), bottom + 42


def panel(title, y_label, x_label, names, series, log=False, low=None, floor=None, marked=None):
    """One panel of lines. names: of the places along x. series: {label: [(place, y, least, most), ...]}, least and most
    being the ends of a bar. low: where y begins. floor: (y, label) of a dashed line. marked: (place, label) of a dashed
    line upright."""
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
    if marked:
        x = x_of(marked[0])
        out.append(f'<line class="floor" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        out.append(text(x, TOP - 4, marked[1], 'text-anchor="middle"'))
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


def write(path, panels, notes=(), title=""):
    """A file with panels below each other: those of lines, or (text, height) of others. notes: lines at the end, in small
    letters."""
    body, y = [], 0
    if title:
        body.append(text(10, 22, title, 'class="title large"'))
        y = 34
    for p in panels:
        words, height = p if isinstance(p, tuple) else (p, HEIGHT)
        body.append(f'<g transform="translate(0,{y})">\n{words}\n</g>')
        y += height
    for note in notes:
        y += 15
        body.append(text(10, y, note, 'class="small"'))
    y += 10
    Path(path).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
                          f'height="{y}">\n{style()}\n<rect class="back" width="{WIDTH}" height="{y}"/>\n' +
                          "\n".join(body) + "\n</svg>\n")
    print(f"written: {path}")
