//! Tables and notes as plain text.

use std::fmt::Write;

use crate::results::{ContestantResult, GroupResult, Results, ScenarioResult};
use crate::sample::Metric;
use crate::stats::Summary;

/// What is to be known about a scenario before its groups.
pub fn scenario(scenario: &ScenarioResult) -> String {
    plain(&raw_scenario(scenario))
}

fn raw_scenario(scenario: &ScenarioResult) -> String {
    let mut text = format!("== {}\n{}\n", scenario.name, wrapped("", &scenario.question));
    for missing in &scenario.missing {
        let _ = writeln!(text, "  not installed: {} (Debian package {})", missing.program, missing.package);
    }
    for note in &scenario.notes {
        let _ = writeln!(text, "{}", wrapped("  ", &format!("- {note}")));
    }
    text
}

/// Every bar of a run in one table; nothing if there is none.
pub fn bars(results: &Results) -> String {
    let lines = super::bars(results);
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from("Bars\n");
    let width = lines.iter().map(|line| line.verdict().len()).max().unwrap_or_default().max(12);
    for line in lines {
        let _ = writeln!(text, "  {:<width$}  {}: {}", line.verdict(), line.place, line.what);
        let _ = writeln!(text, "  {:<width$}  {}; must {}, aim {}", "", line.measured, line.must, line.aim);
    }
    text
}

/// The table of a group, with verdicts, bars and warnings below it.
pub fn group(group: &GroupResult) -> String {
    plain(&raw_group(group))
}

/// Lines without what would move a cursor: versions, failures and logs are texts of other programs.
fn plain(text: &str) -> String {
    text.split('\n').map(super::plain).collect::<Vec<_>>().join("\n")
}

fn raw_group(group: &GroupResult) -> String {
    let mut text = format!("{}\n", group.title);
    let metrics: Vec<_> = std::iter::once(&group.headline).chain(&group.columns).collect();
    let mut rows = vec![head(group, &metrics)];
    rows.extend(group.contestants.iter().map(|contestant| row(contestant, &metrics)));
    text.push_str(&align(&rows));
    for line in super::remarks(group) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn head(group: &GroupResult, metrics: &[&Metric]) -> Vec<String> {
    let mut cells = vec![String::new(), metrics[0].title(&group.unit), "spread".to_owned()];
    cells.extend(metrics[1..].iter().map(|metric| metric.title(&group.unit)));
    cells
}

fn row(contestant: &ContestantResult, metrics: &[&Metric]) -> Vec<String> {
    let mut cells = vec![contestant.name.clone()];
    for (index, metric) in metrics.iter().enumerate() {
        let summary = Summary::of(&contestant.values(metric));
        cells.push(summary.as_ref().map_or_else(|| "-".to_owned(), |summary| metric.show(summary.median)));
        if index == 0 {
            let spread = summary.map(|summary| format!("+-{:.1} %", summary.spread() * 100.0));
            cells.push(spread.unwrap_or_else(|| "-".to_owned()));
        }
    }
    cells
}

/// Text in lines that are not too long, each after the first behind as many spaces more.
fn wrapped(indent: &str, text: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split_whitespace() {
        let line = lines.len() - 1;
        if lines[line].trim().is_empty() {
            lines[line].push_str(word);
        } else if lines[line].chars().count() + 1 + word.chars().count() <= WIDTH {
            lines[line].push(' ');
            lines[line].push_str(word);
        } else {
            lines.push(format!("{indent}{indent}{word}"));
        }
    }
    lines.join("\n")
}

const WIDTH: usize = 110;

/// The first column to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ =
                if column == 0 { write!(line, " {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
