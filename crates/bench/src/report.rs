//! Reports of results: terminal text, Markdown, HTML. The JSON file is `results.rs`.

use std::fmt::Display;

use text::units;

use crate::limit::{LimitResult, Outcome};
use crate::results::{GroupResult, Results, ScenarioResult};

pub mod contrast;
pub mod html;
pub mod markdown;
mod svg;
pub mod terminal;

/// Lists the conditions of a run that affect its figures, as name and value.
pub fn facts(results: &Results) -> Vec<(String, String)> {
    let machine = &results.machine;
    let features = match machine.features.as_slice() {
        [] => "unknown".to_owned(),
        features => features.join(" "),
    };
    let mut facts = vec![
        ("processor", machine.cpu.clone()),
        ("processor's features", features),
        ("cores", format!("{} usable of {}", machine.cores[0], machine.cores[1])),
        ("memory", format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30))),
        ("kernel", machine.kernel.clone()),
        ("system", machine.system.clone()),
        ("virtual machine", machine.virtualization.clone().unwrap_or_else(|| "no".to_owned())),
        ("pinning", pinning(results)),
        ("simultaneous multithreading", machine.smt_words().to_owned()),
        ("frequency governor", machine.governor.clone().unwrap_or_else(|| "not available".to_owned())),
        ("huge pages", machine.huge_pages.clone().unwrap_or_else(|| "unknown".to_owned())),
    ];
    if let Some(nanoseconds) = machine.cache_line_ns {
        facts.push(("cache line from core to core and back", format!("{nanoseconds:.0} ns at the start")));
    }
    let mitigations: Vec<_> =
        machine.mitigations.iter().map(|(flaw, state)| format!("{flaw}: {state}")).collect();
    if !mitigations.is_empty() {
        facts.push(("mitigations", mitigations.join("; ")));
    }
    let mut facts: Vec<_> = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    facts.extend(machine.programs.iter().cloned());
    facts.push(("took".to_owned(), format!("{:.0} s", results.seconds)));
    if let Some(interruption) = interruption(results) {
        facts.push(("interrupted".to_owned(), interruption));
    }
    let disturbed: Vec<_> =
        results.disturbed().map(|(scenario, group)| format!("{}/{}", scenario.name, group.id)).collect();
    let judgement = match disturbed.len() {
        0 => match results.groups().map(|(_, group)| group.repeated.len()).sum() {
            0 => "no".to_owned(),
            repeated => format!("only in {}, repeated", units::count(repeated, "round")),
        },
        count => format!("yes, in {}: {}", units::count(count, "group"), disturbed.join(", ")),
    };
    facts.push(("disturbed".to_owned(), judgement));
    facts
}

/// Describes an interrupted run: the groups with results, and the unfinished group that was dropped.
pub fn interruption(results: &Results) -> Option<String> {
    let signal = results.interrupted.as_ref()?;
    let kept = results.groups().map(|(scenario, group)| match group.planned_rounds {
        Some(wanted) => format!("{}/{} ({} of {wanted} rounds)", scenario.name, group.id, group.rounds.len()),
        None => format!("{}/{}", scenario.name, group.id),
    });
    let kept: Vec<_> = kept.collect();
    let kept = if kept.is_empty() { "nothing".to_owned() } else { kept.join(", ") };
    let dropped =
        results.dropped.as_ref().map(|group| format!("; dropped: {group}, no round of it was complete"));
    let dropped = dropped.unwrap_or_default();
    Some(format!("by {signal}, before everything was measured; kept: {kept}{dropped}"))
}

/// A limit and its result as text.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitLine {
    pub place: String,
    pub what: String,
    /// Required value.
    pub limit: String,
    /// Value that the project wants to reach; `-` without one.
    pub goal: String,
    /// Measured value with its interval.
    pub measured: String,
    pub outcome: Outcome,
    pub trust: Trust,
}

/// Whether the verdicts of a group can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Calm,
    /// Some rounds were disturbed, and repeating them did not help.
    Disturbed,
}

impl Trust {
    pub fn of(group: &GroupResult) -> Self {
        if group.disturbed.is_some() { Trust::Disturbed } else { Trust::Calm }
    }

    /// Formats a verdict: `met`, `met (disturbed)`.
    pub fn mark(self, verdict: impl Display) -> String {
        match self {
            Trust::Calm => verdict.to_string(),
            Trust::Disturbed => format!("{verdict} (disturbed)"),
        }
    }
}

impl LimitLine {
    fn new(place: String, group: &GroupResult, result: &LimitResult) -> Self {
        let unit = &group.unit;
        let limit = &result.limit;
        LimitLine {
            place,
            what: limit.what(unit),
            limit: limit.show_limit(limit.value),
            goal: limit.goal.map_or_else(|| "-".to_owned(), |goal| limit.show_limit(goal)),
            measured: result.shown(),
            outcome: result.outcome(),
            trust: Trust::of(group),
        }
    }

    /// Formats the outcome with a mark if the group was disturbed.
    pub fn verdict(&self) -> String {
        self.trust.mark(self.outcome)
    }

    /// Formats the limit in one line without the name of the group.
    pub fn to_line(&self) -> String {
        let LimitLine { what, limit, measured, .. } = self;
        let outcome = self.verdict();
        let goal = if self.goal == "-" { String::new() } else { format!(", goal {}", self.goal) };
        format!("limit: {what}: {limit}{goal}: {measured}: {outcome}")
    }
}

pub fn limits_of(group: &GroupResult) -> Vec<LimitLine> {
    group.limits.iter().map(|limit| LimitLine::new(group.id.clone(), group, limit)).collect()
}

/// Returns all limits of a run.
pub fn limits(results: &Results) -> Vec<LimitLine> {
    let line = |(scenario, group, limit): (&ScenarioResult, &GroupResult, &LimitResult)| {
        LimitLine::new(format!("{}/{}", scenario.name, group.id), group, limit)
    };
    results.limits().map(line).collect()
}

/// Returns the remarks shown below the table of a group.
pub fn remarks(group: &GroupResult) -> Vec<String> {
    let mut lines = Vec::new();
    for pair in &group.pairs {
        let comparison = &pair.comparison;
        let interval = comparison.interval;
        lines.push(format!(
            "{} against {}: {} ({:.2} x, {:.2} to {:.2} with {:.0} %)",
            pair.subject,
            pair.other,
            Trust::of(group).mark(comparison.outcome(&group.headline, &group.unit)),
            comparison.ratio,
            interval.low,
            interval.high,
            interval.confidence * 100.0
        ));
    }
    lines.extend(limits_of(group).iter().map(LimitLine::to_line));
    for contestant in &group.contestants {
        if let Some(failed) = &contestant.failed {
            lines.push(format!("FAILED: {}: {failed}", contestant.name));
        }
        if contestant.errors() > 0 {
            let first =
                contestant.samples.iter().find_map(|sample| sample.first_error.as_deref()).unwrap_or("?");
            lines.push(format!(
                "{}: {} failed, the first with: {first}",
                contestant.name,
                contestant.errors()
            ));
        }
        if let Some(summary) = group.headline_of(contestant).filter(|summary| !summary.outliers.is_empty()) {
            let rounds: Vec<_> = summary.outliers.iter().map(|index| (index + 1).to_string()).collect();
            lines.push(format!("{}: outlier in round {}", contestant.name, rounds.join(", ")));
        }
    }
    if let Some(wanted) = group.planned_rounds {
        lines.push(format!("INTERRUPTED after {} of {wanted} rounds", group.rounds.len()));
    }
    if let Some(reason) = &group.disturbed {
        lines.push(format!("DISTURBED: {reason}"));
    }
    if !group.repeated.is_empty() {
        let repeated = match group.repeated.len() {
            1 => "1 round was".to_owned(),
            count => format!("{count} rounds were"),
        };
        lines.push(format!("{repeated} disturbed and repeated"));
    }
    lines
}

/// Returns the different configurations of a scenario, with titles.
pub fn configurations(scenario: &ScenarioResult) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for group in &scenario.groups {
        for contestant in group.contestants.iter().filter(|contestant| !contestant.configuration.is_empty()) {
            let title = format!("{}/{}: {}", scenario.name, group.id, contestant.name);
            all.push((title, contestant.configuration.clone()));
        }
    }
    all
}

fn pinning(results: &Results) -> String {
    let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (&results.cores.target[..], &results.cores.load[..]) {
        ([], _) => "none: there is only one core".to_owned(),
        (target, load) => {
            format!("target on core {}, load and backends on core {}", list(target), list(load))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
