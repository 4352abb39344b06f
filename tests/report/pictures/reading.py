"""Reads pictures back: which devices stand in which cell, in JAX's own drawing, in ours, and in SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def devices_in(label: str) -> tuple[int, ...]:
    """`0,2`, `0+1`, `0–7` and `0,2,…,14` as the numbers that they stand for."""
    numbers = [int(number) for number in re.findall(r"\d+", label)]
    if "–" in label:
        return tuple(range(numbers[0], numbers[1] + 1))
    if "…" in label:
        return tuple(range(numbers[0], numbers[2] + 1, numbers[1] - numbers[0]))
    return tuple(numbers)


def boxes_in(drawing: str) -> list[list[tuple[int, ...]]]:
    """The cells of a drawing in box characters, JAX's or ours; what stands beside the box is left out."""
    rows: list[list[list[str]]] = []
    for line in drawing.splitlines():
        if re.search(r"[┌├└]", line):
            rows.append([])
        elif "│" in line and rows:
            rows[-1].append(line.split("│")[1:-1])
    return [[devices_in("".join(map(str.strip, cell))) for cell in zip(*row, strict=True)] for row in rows if row]


def cells_in(picture: str) -> dict[str, tuple[int, ...]]:
    """The cells of an SVG by the elements that they hold, with the devices that their labels show."""
    found = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        title, label = group.find(f"{SVG}title"), group.find(f"{SVG}text")
        found[title.text.partition("]")[0] + "]"] = devices_in(label.text)
    return found


def texts_in(picture: str) -> list[str]:
    """All letters that an SVG shows."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]
