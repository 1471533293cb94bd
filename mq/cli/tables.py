"""Tables that fit the terminal, for commands that print many numbers.

A table that is too wide first takes the compact form of its columns, then leaves out optional ones
and says which. Numbers are never cut. Long tables are printed in pages, so that memory does not
grow with them.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PAGE_ROWS = 1000
_GAP = 2
_FLEXIBLE_MIN = 16

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    title: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "right"
    # What stands in a narrow table instead; a column without cells there is shown by another one.
    compact: Column | None = None
    # 0 stays; the highest rank is left out first.
    rank: int = 0
    # Text that may be wrapped.
    is_flexible: bool = False
    # The colour of a cell, by its text; a terminal without colours shows the text alone.
    style: Callable[[str], str] = lambda _: ""

    def width(self, *, is_title_wrapped: bool) -> int:
        title = max(map(cell_len, self.title.split())) if is_title_wrapped else cell_len(self.title)
        lines = itertools.chain.from_iterable(cell.split("\n") for cell in self.cells)
        widest = max(map(cell_len, lines), default=0)
        return max(title, min(widest, _FLEXIBLE_MIN) if self.is_flexible else widest)


def print_pages(
    console: Console, items: Iterable[T], columns: Callable[[Sequence[T]], Sequence[Column]]
) -> int:
    """Prints all items, some at a time; how many there were."""
    iterator = iter(items)
    count = 0
    while page := list(itertools.islice(iterator, _PAGE_ROWS)):
        print_table(console, columns(page))
        count += len(page)
    return count


def print_table(console: Console, columns: Sequence[Column]) -> None:
    shown, is_title_wrapped, hidden = _fitting(columns, console.width)
    # The box puts one more space between columns.
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
        header_style="bold",
    )
    for column in shown:
        width = None if column.is_flexible else column.width(is_title_wrapped=is_title_wrapped)
        table.add_column(column.title, justify=column.justify, width=width, overflow="fold")
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(
            *(Text(cell, column.style(cell)) for cell, column in zip(row, shown, strict=True))
        )
    terminal_width = console.width
    # Where even that is too wide, the terminal breaks the lines: numbers stay whole.
    console.width = max(terminal_width, _total(shown, is_title_wrapped=is_title_wrapped))
    console.print(table)
    console.width = terminal_width
    if hidden:
        names = ", ".join(column.title for column in hidden)
        console.print(Text(f"Left out here: {names}. A wider terminal or --json shows all.", "dim"))
    console.print()


def _fitting(
    columns: Sequence[Column], width: int
) -> tuple[Sequence[Column], bool, Sequence[Column]]:
    """The columns to show, whether their titles are wrapped, and what was left out."""
    for is_title_wrapped in (False, True):
        if _total(columns, is_title_wrapped=is_title_wrapped) <= width:
            return columns, is_title_wrapped, []
    compact = [column.compact or column for column in columns]
    shown = [column for column in compact if column.cells]
    hidden: list[Column] = []
    while _total(shown, is_title_wrapped=True) > width:
        least = max(shown, key=lambda column: column.rank)
        if least.rank == 0:
            break
        shown.remove(least)
        hidden.append(least)
    return shown, True, [column for column in compact if column in hidden]


def _total(columns: Sequence[Column], *, is_title_wrapped: bool) -> int:
    widths = [column.width(is_title_wrapped=is_title_wrapped) for column in columns]
    return sum(widths) + _GAP * (len(widths) - 1)


# -- colours and texts of cells --------------------------------------------------------------------

_GOOD = frozenset({"leader", "healthy", "SEND_OK", "allow", "yes"})
_PLAIN = frozenset({"follower", "learner", "-", ""})


def state(text: str) -> str:
    """The colour of a state: green if it is good, none if it is ordinary, red otherwise."""
    return "green" if text in _GOOD else "" if text in _PLAIN else "red"


def nonzero(text: str) -> str:
    """The colour of a number that is best 0."""
    return "" if text in ("0", "-", "0 s") else "yellow"


def stored_at(stored_at_ms: int) -> str:
    """In UTC, to the millisecond."""
    try:
        seconds, milliseconds = divmod(stored_at_ms, 1000)
        moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{stored_at_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds:03d}"


def size(size_bytes: int) -> str:
    if size_bytes < 1024:
        return f"{size_bytes} B"
    value, units = size_bytes / 1024, iter(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while value >= 1023.95:
        value, unit = value / 1024, next(units)
    return f"{value:.1f} {unit}"


def counted(number: int, one: str, many: str = "") -> str:
    """With its noun: "1 queue", "2,000 queues"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cut_note(number: int, count_max: int | None) -> str:
    """For the line below a list of which `--count` has shown the beginning."""
    is_cut = count_max is not None and count_max < number
    return f"; the first {count_max:,} are shown" if is_cut else ""
