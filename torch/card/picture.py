"""Draws what a program held over time, with one allocator beside the others."""

GIB = 2**30
# The width and height of the picture, and where its axes begin and end.
WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 690, 56, 352
COLOURS = {"native": "#c0392b", "native, expandable": "#b9770e", "tight": "#1e8449"}
IN_USE = "#d5dbe1"
INK = "#24292f"
# Labels that are nearer to each other than this are moved apart.
LABEL_GAP = 18


def draw(results):
    """The picture as SVG: results by allocator, each with its card and what was held and active
    after each step.
    """
    steps = min(len(result["held"]) for result in results.values())
    top_gib = round_up(max(max(result["held"]) for result in results.values()) / GIB)

    def x(step):
        return LEFT + (RIGHT - LEFT) * step / (steps - 1)

    def y(size_bytes):
        return BOTTOM - (BOTTOM - TOP) * size_bytes / GIB / top_gib

    def points(values):
        return " ".join(
            f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(values[:steps])
        )

    first = next(iter(results.values()))
    used, card = first["active"], first["card"]
    lines = [
        text(LEFT - 44, 24, f"Serving on {card}: GiB held after each step", size=16, weight="600")
    ]
    lines.append(
        f'<polygon points="{x(0):.1f},{BOTTOM} {points(used)} {x(steps - 1):.1f},{BOTTOM}" '
        f'fill="{IN_USE}"/>'
    )
    for gib in range(0, top_gib + 1, 20):
        height = y(gib * GIB)
        lines.append(
            f'<line x1="{LEFT}" x2="{RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="{INK}" '
            f'opacity="0.12"/>'
        )
        lines.append(text(LEFT - 8, height + 4, str(gib), anchor="end"))
    for step in range(0, steps, 50):
        lines.append(text(x(step), BOTTOM + 20, f"step {step}" if step else "0", anchor="middle"))
    labels = [(y(used[steps - 1]), "in use", "#57606a")]
    for allocator, result in results.items():
        colour = COLOURS[allocator]
        lines.append(
            f'<polyline points="{points(result["held"])}" fill="none" stroke="{colour}" '
            f'stroke-width="2"/>'
        )
        peak_gib = max(result["held"]) / GIB
        labels.append((y(result["held"][steps - 1]), f"{allocator}: {peak_gib:.1f}", colour))
    for height, words, colour in apart(labels):
        lines.append(text(RIGHT + 8, height + 4, words, colour=colour, weight="600"))
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def apart(labels):
    """The labels from the lowest up, each far enough above the one below it."""
    placed, last = [], float("inf")
    for height, words, colour in sorted(labels, reverse=True):
        last = min(height, last - LABEL_GAP)
        placed.append((last, words, colour))
    return placed


def round_up(gib):
    return int(-(-gib // 20) * 20)


def text(x, y, words, anchor="start", colour=INK, size=13, weight="400"):
    style = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'
