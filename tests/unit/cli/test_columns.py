"""Text in columns."""

from __future__ import annotations

from dataclasses import replace

from vgpurun.cli.views.columns import Column, lines

COLUMNS = (
    Column("ID"),
    Column("NAME", can_shrink=True),
    Column("IMAGE", can_shrink=True),
    Column("GPU", is_right=True),
)
ROWS = [("abc", "a-name-of-22-characters", "image:1", "10"), ("d", "b", "an-image-of-19-char", "1")]


def test_nothing_is_cut_in_a_pipe() -> None:
    assert lines(COLUMNS, ROWS, None) == [
        "ID   NAME                     IMAGE                GPU",
        "abc  a-name-of-22-characters  image:1               10",
        "d    b                        an-image-of-19-char    1",
    ]


def test_the_last_column_that_may_shrinks_first() -> None:
    assert lines(COLUMNS, ROWS, 50)[2] == "d    b                        an-image-of-19…    1"
    narrow = lines(COLUMNS, ROWS, 20)
    assert narrow[1:] == ["abc a-name-… image:1   10", "d   b        an-imag…   1"], "gaps shrink last"
    assert max(map(len, lines(COLUMNS, ROWS, 29))) == 29, "and only where they have to"


def test_a_column_stays_as_wide_as_it_says() -> None:
    columns = (*COLUMNS, Column("STATUS", can_shrink=True, least_width=11))
    rows = [(*ROWS[0], "Exited (0) 3 minutes ago")]
    assert lines(columns, rows, 55)[1] == "abc  a-name-of-22-characters  image:1   10  Exited (0)…"
    assert lines(columns, rows, 30)[1] == "abc a-name-… image:1  10 Exited (0)…"


def test_a_column_that_wraps_loses_no_word() -> None:
    columns = (*COLUMNS[:2], Column("WHY", can_shrink=True, wraps=True))
    rows = [("abc", "name", "it holds 2 GiB of 1 GiB"), ("d", "b", ""), ("e", "c", "so")]
    assert lines(columns, rows, 22) == [
        "ID   NAME  WHY",
        "abc  name  it holds 2",
        "           GiB of 1",
        "           GiB",
        "d    b",
        "e    c     so",
    ]
    assert len(lines(columns, rows, None)) == 4


def test_no_rows_are_titles_alone() -> None:
    assert lines(COLUMNS, [], 80) == ["ID  NAME  IMAGE  GPU"]


def test_columns_leave_in_their_order_where_there_is_no_room() -> None:
    identity, name, image, gpu = COLUMNS
    columns = (replace(identity, leaves=2), name, replace(image, leaves=1), gpu)
    shown = {width: lines(columns, ROWS, width)[1] for width in (None, 25, 24, 16, 15, 12, 5)}
    assert shown == {
        None: "abc  a-name-of-22-characters  image:1               10",
        25: "abc a-name-… image:1   10",
        24: "abc  a-name-of-22-…   10",
        16: "abc a-name-…  10",
        15: "a-name-of…   10",
        12: "a-name-…  10",
        5: "a-name-…  10",
    }
