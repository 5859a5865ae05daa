//! Two runs side by side: what became better or worse between them.

use std::fmt::Write;

use super::BarLine;
use crate::compare::{Comparison, Verdict};
use crate::results::Results;

/// A line for each contestant that both runs have, B divided by A, and what forbids comparing them.
pub fn render(a: &Results, b: &Results) -> String {
    let mut text = String::new();
    for difference in a.machine.differences(&b.machine) {
        let _ = writeln!(text, "warning: not the same machine: {difference}");
    }
    if a.trial_seconds != b.trial_seconds {
        let _ = writeln!(text, "warning: trials of {} s and {} s", a.trial_seconds, b.trial_seconds);
    }
    for (results, name) in [(a, "A"), (b, "B")] {
        for (scenario, group) in results.disturbed() {
            let _ = writeln!(text, "warning: {name} was disturbed in {}/{}", scenario.name, group.id);
        }
    }
    for (results, name) in [(a, "A"), (b, "B")] {
        if let Some(signal) = &results.interrupted {
            let _ =
                writeln!(text, "warning: {name} was interrupted by {signal} before everything was measured");
        }
        let groups =
            results.scenarios.iter().flat_map(|one| one.groups.iter().map(move |group| (one, group)));
        for (scenario, group) in groups {
            if let Some(wanted) = group.interrupted {
                let (place, done) = (format!("{}/{}", scenario.name, group.id), group.rounds.len());
                let _ = writeln!(text, "warning: {name} has {done} of {wanted} rounds of {place}");
            }
        }
    }
    let mut found = 0;
    for scenario in &a.scenarios {
        let others = b.scenarios.iter().filter(|other| other.name == scenario.name);
        for group in &scenario.groups {
            let other = others.clone().flat_map(|other| &other.groups).find(|other| other.id == group.id);
            let Some(other) = other.filter(|other| other.headline == group.headline) else { continue };
            let _ = writeln!(text, "{}/{}: {}", scenario.name, group.id, group.headline.title(&group.unit));
            for contestant in &group.contestants {
                let Some(again) = other.contestant(&contestant.name) else { continue };
                let (first, second) = (contestant.values(&group.headline), again.values(&group.headline));
                let Some(comparison) = Comparison::of_runs(&second, &first, group.headline.better()) else {
                    continue;
                };
                let _ = writeln!(text, "  {:<14} {}", contestant.name, line(&comparison));
                found += 1;
            }
        }
    }
    bars(&mut text, a, b);
    if found == 0 {
        text.push_str("the two runs have nothing in common\n");
    }
    text
}

/// Bars that both runs have, with what became of them in each.
fn bars(text: &mut String, a: &Results, b: &Results) {
    let others = super::bars(b);
    let both = super::bars(a).into_iter().filter_map(|line| {
        let same = |other: &&BarLine| (&other.place, &other.what) == (&line.place, &line.what);
        others.iter().find(same).cloned().map(|other| (line, other))
    });
    for (index, (first, second)) in both.enumerate() {
        if index == 0 {
            text.push_str("bars\n");
        }
        let mark = if first.outcome == second.outcome { "" } else { "  (changed)" };
        let _ = writeln!(text, "  {}: {}, must {}{mark}", first.place, first.what, second.must);
        for (name, line) in [("A", &first), ("B", &second)] {
            let _ = writeln!(text, "    {name}: {:<12}  {}", line.outcome.to_string(), line.measured);
        }
        if first.must != second.must {
            let _ = writeln!(text, "    warning: A had another limit: {}", first.must);
        }
    }
}

fn line(comparison: &Comparison) -> String {
    let interval = comparison.interval;
    let verdict = match comparison.verdict {
        Verdict::Faster => "B is better",
        Verdict::Slower => "B is worse",
        Verdict::NoDifference => "no difference",
        Verdict::TooNoisy => "too noisy to say",
    };
    format!("{:.2} x ({:.2} to {:.2})  {verdict}", comparison.ratio, interval.low, interval.high)
}
