//! Text tables for people.

use std::fmt::Write as _;

/// Widest column: the formatting of the standard library panics beyond that.
const WIDEST: usize = 65_535;

/// Table whose columns are as wide as their widest cell.
#[derive(Debug, Default)]
pub struct Table {
    indent: &'static str,
    widest: Option<usize>,
    widest_first: Option<usize>,
    alignment: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Table with `indent` before each line.
    #[must_use]
    pub fn indented(indent: &'static str) -> Self {
        Self { indent, ..Self::default() }
    }

    /// Limits columns to `widest` characters. A longer cell shifts only its own row.
    #[must_use]
    pub fn widest(self, widest: usize) -> Self {
        Self { widest: Some(widest.min(WIDEST)), ..self }
    }

    /// Limits only the first column to `widest` characters. A longer cell shifts only its own row.
    #[must_use]
    pub fn widest_first(self, widest: usize) -> Self {
        Self { widest_first: Some(widest.min(WIDEST)), ..self }
    }

    /// Sets the first row. `>` before a name aligns the column to the right.
    pub fn header<'n>(&mut self, names: impl IntoIterator<Item = &'n str> + Clone) {
        let align = |name: &str| if name.starts_with('>') { Align::Right } else { Align::Left };
        self.alignment = names.clone().into_iter().map(align).collect();
        self.row(names.into_iter().map(|name| name.trim_start_matches('>')));
    }

    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    #[must_use]
    pub fn render(self) -> String {
        let mut out = String::new();
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut columns: Vec<(Align, usize)> =
            (0..count).map(|at| (self.alignment.get(at).copied().unwrap_or(Align::Left), 0)).collect();
        for row in &self.rows {
            for (at, (column, cell)) in columns.iter_mut().zip(row).enumerate() {
                let first = self.widest_first.filter(|_| at == 0);
                let widest = first.or(self.widest).unwrap_or(WIDEST);
                column.1 = column.1.max(cell.chars().count()).min(widest);
            }
        }
        for row in &self.rows {
            let mut line = String::from(self.indent);
            for ((align, width), cell) in columns.iter().zip(row) {
                // Writing to a String cannot fail.
                let _ = match align {
                    Align::Left => write!(line, "{cell:<width$}  "),
                    Align::Right => write!(line, "{cell:>width$}  "),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Formats a table with default alignment.
#[must_use]
pub fn of(rows: &[Vec<String>]) -> String {
    let mut table = Table::default();
    rows.iter().for_each(|row| table.row(row.iter().map(String::as_str)));
    table.render()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::default();
        table.header(["name", ">count"]);
        table.row(["a long name", "7"]);
        table.row(["b", "1234567"]);
        assert_eq!(table.render(), "name           count\na long name        7\nb            1234567\n");
        let mut table = Table::indented("  ");
        table.row(["a", "b"]);
        assert_eq!(table.render(), "  a  b\n");
    }

    #[test]
    fn a_cell_that_is_too_wide_moves_only_its_own_row() {
        let mut table = Table::default().widest(2);
        table.row(["a", "1"]);
        table.row(["wide", "2"]);
        assert_eq!(table.render(), "a   1\nwide  2\n");
    }

    #[test]
    fn a_limit_of_the_first_column_is_none_of_the_others() {
        let mut table = Table::default().widest_first(2);
        table.row(["a", "long", "1"]);
        table.row(["b", "x", "2"]);
        table.row(["a name"]);
        assert_eq!(table.render(), "a   long  1\nb   x     2\na name\n");
    }

    #[test]
    fn a_cell_may_have_any_length() {
        let long = "x".repeat(100_000);
        let mut table = Table::default();
        table.row([long.as_str(), "1"]);
        table.row(["short", "2"]);
        assert!(table.render().starts_with(&format!("{long}  1\nshort ")));
    }

    #[test]
    fn only_a_header_says_how_its_column_is_aligned() {
        let mut table = Table::default();
        table.row([">x"]);
        table.row([">y"]);
        assert_eq!(table.render(), ">x\n>y\n");
    }
}
