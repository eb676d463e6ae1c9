"""Progress: a bar in a notebook for work that takes seconds. Elsewhere there is none."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from larder import _native

__all__ = ["Bar", "arrange"]

_bar: Bar | None = None


class Bar:
    """A bar that a notebook shows below the cell that works."""

    def __init__(self, display: Any, html: Any) -> None:
        self._display = display
        self._html = html
        self._handle: Any = None

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        """So much of something is done; None where it is over."""
        shown = self._html("" if done is None else bar_of(what, done, total or 0))
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        elif self._handle is not None:
            self._handle.update(shown)
        if done is None:
            self._handle = None


def bar_of(what: str, done: int, total: int) -> str:
    """The bar as HTML. Where nobody knows how much there is, it says only that there is work."""
    value = f' value="{min(done, total)}" max="{total}"' if total > 0 else ""
    return f"<progress{value}></progress> {escape(what)}"


def arrange() -> None:
    """Shows bars from now on, if this is a notebook."""
    global _bar
    ipython = sys.modules.get("IPython")
    if _bar is not None or ipython is None:
        return
    shell = ipython.get_ipython()
    # A terminal's IPython shows no HTML.
    if shell is None or not hasattr(shell, "kernel"):
        return
    from IPython.display import HTML, display

    _bar = Bar(display, HTML)
    _native.on_progress(_bar)
