//! Results as tables and notes in plain text.

use std::fmt::Write;

use text::table::Table;
use text::terminal;

use crate::results::{ContestantResult, GroupResult, Results, ScenarioResult};
use crate::sample::Metric;
use crate::stats::Summary;

/// Facts about a scenario, shown before its groups.
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

/// Table of all limits of a run; empty without limits.
pub fn limits(results: &Results) -> String {
    let lines = super::limits(results);
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from("Limits\n");
    let width = lines.iter().map(|line| line.verdict().len()).max().unwrap_or_default().max(12);
    for line in lines {
        let _ = writeln!(text, "  {:<width$}  {}: {}", line.verdict(), line.place, line.what);
        let _ =
            writeln!(text, "  {:<width$}  {}; limit {}, goal {}", "", line.measured, line.limit, line.goal);
    }
    text
}

/// Table of a group, with verdicts, limits and warnings below.
pub fn group(group: &GroupResult) -> String {
    plain(&raw_group(group))
}

/// Removes terminal control characters: versions, failures and logs are texts of other programs.
fn plain(text: &str) -> String {
    text.split('\n').map(terminal::plain).collect::<Vec<_>>().join("\n")
}

fn raw_group(group: &GroupResult) -> String {
    let mut text = format!("{}\n", group.title);
    let metrics: Vec<_> = std::iter::once(&group.headline).chain(&group.columns).collect();
    let mut table = Table::indented("  ");
    let head = head(group, &metrics);
    table.header(head.iter().map(String::as_str));
    group.contestants.iter().for_each(|contestant| table.row(row(contestant, &metrics)));
    text.push_str(&table.render());
    for line in super::remarks(group) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn head(group: &GroupResult, metrics: &[&Metric]) -> Vec<String> {
    let title = |metric: &Metric| format!(">{}", metric.title(&group.unit));
    let mut cells = vec![String::new(), title(metrics[0]), ">spread".to_owned()];
    cells.extend(metrics[1..].iter().map(|metric| title(metric)));
    cells
}

fn row(contestant: &ContestantResult, metrics: &[&Metric]) -> Vec<String> {
    let mut cells = vec![contestant.name.clone()];
    for (index, metric) in metrics.iter().enumerate() {
        let summary = Summary::of(&contestant.values_by_round(metric));
        cells.push(summary.as_ref().map_or_else(|| "-".to_owned(), |summary| metric.show(summary.median)));
        if index == 0 {
            let spread = summary.map(|summary| format!("+-{:.1} %", summary.spread() * 100.0));
            cells.push(spread.unwrap_or_else(|| "-".to_owned()));
        }
    }
    cells
}

/// Wraps text to lines of limited length; lines after the first are indented further.
fn wrapped(indent: &str, text: &str) -> String {
    text::wrap::wrapped(indent, &indent.repeat(2), text, WIDTH)
}

const WIDTH: usize = 110;
