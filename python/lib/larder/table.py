"""Tables for people, in terminals and in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from larder import _native

if TYPE_CHECKING:
    import pandas

__all__ = ["Table", "frame"]

_STATISTICS = (
    ("allocated", "allocated_bytes.all", True),
    ("active", "active_bytes.all", True),
    ("requested", "requested_bytes.all", True),
    ("reserved", "reserved_bytes.all", True),
    ("  large pool", "reserved_bytes.large_pool", True),
    ("  small pool", "reserved_bytes.small_pool", True),
    ("inactive split", "inactive_split_bytes.all", True),
    ("allocations", "allocation.all", False),
    ("segments", "segment.all", False),
)


def frame(records: list[dict[str, Any]]) -> pandas.DataFrame:
    """Records as a data frame. pandas is wanted here and nowhere else."""
    import pandas

    return pandas.DataFrame.from_records(records)


class Table:
    """Rows under headings. The first column holds words, the others numbers."""

    def __init__(self, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        self.headings: list[str] = list(headings)
        """What stands above the columns."""
        self.rows: list[list[str]] = [list(row) for row in rows]
        """The cells of each row."""

    @classmethod
    def of_stats(cls, stats: Mapping[str, int]) -> Table:
        """The statistics that people look at first."""

        def cell(key: str, is_bytes: bool) -> str:
            return _native.format_size(max(0, stats[key])) if is_bytes else str(stats[key])

        rows = [
            [
                name,
                *(
                    cell(f"{key}.{part}", is_bytes)
                    for part in ("current", "peak", "allocated", "freed")
                ),
            ]
            for name, key, is_bytes in _STATISTICS
        ]
        return cls(["memory", "now", "peak", "total allocated", "total freed"], rows)

    def __str__(self) -> str:
        lines = [self.headings, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headings))]
        texts = []
        for line in lines:
            cells = [line[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
            texts.append("   ".join(cells).rstrip())
        texts.insert(1, "-" * (sum(widths) + 3 * (len(widths) - 1)))
        return "\n".join(texts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str) -> str:
            first, *others = cells
            text = f'<{tag} style="text-align:left;white-space:pre">{escape(first)}</{tag}>'
            text += "".join(
                f'<{tag} style="text-align:right">{escape(cell)}</{tag}>' for cell in others
            )
            return f"<tr>{text}</tr>"

        head = row(self.headings, "th")
        body = "".join(row(cells, "td") for cells in self.rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
