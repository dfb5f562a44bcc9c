import re

from roundoff.report.parts import Cell, TableColumn, TableRow, table

COLUMNS = [TableColumn(name="recipe"), TableColumn(name="top-1", is_number=True)]


def test_a_row_has_its_cells_with_what_they_are_sorted_by():
    row = TableRow(cells=[Cell(shown="O2", value="O2"), Cell(shown="0.970", value=0.9704)])
    assert '<tr><td data-value="O2">O2</td><td class="number" data-value="0.9704">0.970</td></tr>' in table(
        COLUMNS, [row], noun="rows"
    )


def test_cells_without_a_number_have_nothing_to_be_sorted_by():
    for value in (None, float("nan")):
        row = TableRow(cells=[Cell(shown="O2", value="O2"), Cell(shown="-", value=value)])
        assert '<td class="number">-</td>' in table(COLUMNS, [row], noun="rows")


def test_an_infinite_number_is_one_that_the_script_reads():
    row = TableRow(cells=[Cell(shown="O2", value="O2"), Cell(shown="inf", value=float("inf"))])
    assert 'data-value="inf"' in table(COLUMNS, [row], noun="rows")


def test_headings_can_be_reached_by_key():
    headings = re.findall(r"<th .*?</th>", table(COLUMNS, [], noun="rows"))
    assert headings == [
        '<th scope="col"><button type="button">recipe</button></th>',
        '<th scope="col" class="number"><button type="button">top-1</button></th>',
    ]


def test_a_marked_row_carries_its_mark():
    row = TableRow(cells=[Cell(shown="O2"), Cell(shown="failed")], mark="failed")
    assert '<tr class="failed">' in table(COLUMNS, [row], noun="rows")


def test_hostile_cells_stay_text():
    row = TableRow(cells=[Cell(shown="<script>", value='"><script>'), Cell(shown="")])
    assert "<script>" not in table(COLUMNS, [row], noun="rows")
