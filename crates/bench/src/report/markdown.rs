//! Results as Markdown, for repositories, tickets and mail.

use std::fmt::Write;

use super::LimitLine;
use crate::results::{GroupResult, Results, ScenarioResult};
use crate::sample::Metric;
use crate::stats::Summary;

pub fn render(results: &Results) -> String {
    let mut text = format!("# Penstock benchmark, {}\n\n", results.started);
    let _ = writeln!(
        text,
        "`{}`: {} rounds of {} s each.\n",
        results.command, results.rounds, results.trial_seconds
    );
    if let Some(interruption) = super::interruption(results) {
        let _ = writeln!(text, "**Interrupted** {interruption}.\n");
    }
    for (name, value) in super::facts(results) {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text.push('\n');
    results.scenarios.iter().for_each(|one| scenario(&mut text, one));
    limits(&mut text, results);
    text.push_str("## Configurations\n\n");
    for one in &results.scenarios {
        for (title, configuration) in super::configurations(one) {
            let _ = writeln!(text, "{title}\n\n```text\n{}\n```\n", configuration.trim_end());
        }
    }
    text
}

fn limits(text: &mut String, results: &Results) {
    let lines = super::limits(results);
    if lines.is_empty() {
        return;
    }
    text.push_str("## Limits\n\n| group | what | limit | goal | measured | |\n|---|---|---|---|---|---|\n");
    for line in lines {
        let outcome = line.verdict();
        let LimitLine { place, what, limit, goal, measured, .. } = line;
        let _ = writeln!(text, "| {place} | {what} | {limit} | {goal} | {measured} | {outcome} |");
    }
    text.push('\n');
}

fn scenario(text: &mut String, scenario: &ScenarioResult) {
    let _ = writeln!(text, "## {}\n\n{}\n", scenario.name, scenario.question);
    if let Some(failed) = &scenario.failed {
        let _ = writeln!(text, "Not measured: {failed}\n");
    }
    for missing in &scenario.missing {
        let _ = writeln!(text, "- not installed: {} (Debian package `{}`)", missing.program, missing.package);
    }
    for note in &scenario.notes {
        let _ = writeln!(text, "- {note}");
    }
    if !scenario.notes.is_empty() || !scenario.missing.is_empty() {
        text.push('\n');
    }
    scenario.groups.iter().for_each(|one| group(text, one));
}

fn group(text: &mut String, group: &GroupResult) {
    let _ = writeln!(text, "### {}\n", group.title);
    let metrics: Vec<&Metric> = std::iter::once(&group.headline).chain(&group.columns).collect();
    let titles: Vec<_> = metrics.iter().map(|metric| metric.title(&group.unit)).collect();
    let _ = writeln!(text, "| | {} | spread | n |", titles.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(metrics.len() + 2));
    for contestant in &group.contestants {
        let cell = |metric: &&Metric| {
            let summary = Summary::of(&contestant.values_by_round(metric));
            summary.map_or_else(|| "-".to_owned(), |summary| metric.show(summary.median))
        };
        let cells: Vec<_> = metrics.iter().map(cell).collect();
        let spread =
            group.headline_of(contestant).map(|summary| format!("+-{:.1} %", summary.spread() * 100.0));
        let spread = spread.unwrap_or_else(|| "-".to_owned());
        let count = contestant.samples.len();
        let _ = writeln!(text, "| {} | {} | {spread} | {count} |", contestant.name, cells.join(" | "));
    }
    text.push('\n');
    for line in super::remarks(group) {
        let _ = writeln!(text, "- {line}");
    }
    text.push('\n');
}
