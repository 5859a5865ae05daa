//! Results, told: in the terminal, as Markdown, as a page. The JSON file is `results.rs`.

use std::fmt::Display;

use crate::results::{GroupResult, Results, ScenarioResult};
use crate::scenario::bar::{BarResult, Outcome};

pub mod contrast;
pub mod html;
pub mod markdown;
mod svg;
pub mod terminal;

/// What is to be known about a run before its figures mean anything: name and value.
pub fn facts(results: &Results) -> Vec<(String, String)> {
    let machine = &results.machine;
    let mut facts = vec![
        ("processor", machine.cpu.clone()),
        ("cores", format!("{} usable of {}", machine.cores[0], machine.cores[1])),
        ("memory", format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30))),
        ("kernel", machine.kernel.clone()),
        ("system", machine.system.clone()),
        ("virtual machine", machine.virtualization.clone().unwrap_or_else(|| "no".to_owned())),
        ("pinning", pinning(results)),
        ("simultaneous multithreading", machine.smt.clone()),
        ("frequency governor", machine.governor.clone().unwrap_or_else(|| "not to be seen".to_owned())),
        ("huge pages", machine.huge_pages.clone().unwrap_or_else(|| "unknown".to_owned())),
    ];
    if let Some(distance) = machine.distance {
        facts.push(("cache line from core to core and back", format!("{distance:.0} ns at the start")));
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
        0 => "no".to_owned(),
        count => format!("yes, in {}: {}", groups(count), disturbed.join(", ")),
    };
    facts.push(("disturbed".to_owned(), judgement));
    facts
}

/// What is to be said about a run that did not come to its end: which groups it has, and which it has not although it
/// had begun with it.
pub fn interruption(results: &Results) -> Option<String> {
    let signal = results.interrupted.as_ref()?;
    let kept = results.groups().map(|(scenario, group)| match group.interrupted {
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

/// So many groups, in words.
pub fn groups(count: usize) -> String {
    if count == 1 { "1 group".to_owned() } else { format!("{count} groups") }
}

/// A text in one line, without what would move a cursor, change colours or turn the direction of writing.
pub fn plain(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// A bar in words, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct BarLine {
    /// Scenario and group.
    pub place: String,
    /// The figure.
    pub what: String,
    /// What has to be kept.
    pub must: String,
    /// What is aimed for.
    pub aim: String,
    /// What came out, with its interval.
    pub measured: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether the rounds that say so are to be trusted.
    pub trust: Trust,
}

/// Whether verdicts of a group are to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Its rounds were calm.
    Calm,
    /// Something disturbed its rounds to the end.
    Disturbed,
}

impl Trust {
    /// What belongs behind every verdict of this group.
    pub fn of(group: &GroupResult) -> Self {
        if group.disturbed.is_some() { Trust::Disturbed } else { Trust::Calm }
    }

    /// A verdict, as it is shown: `kept`, `kept (disturbed)`.
    pub fn mark(self, verdict: impl Display) -> String {
        match self {
            Trust::Calm => verdict.to_string(),
            Trust::Disturbed => format!("{verdict} (disturbed)"),
        }
    }
}

impl BarLine {
    fn new(place: String, group: &GroupResult, result: &BarResult) -> Self {
        let unit = &group.unit;
        let bar = &result.bar;
        BarLine {
            place,
            what: bar.what(unit),
            must: bar.limit(bar.must),
            aim: bar.aim.map_or_else(|| "-".to_owned(), |aim| bar.limit(aim)),
            measured: result.shown(),
            outcome: result.outcome(),
            trust: Trust::of(group),
        }
    }

    /// What became of it in words, and whether that is to be trusted.
    pub fn verdict(&self) -> String {
        self.trust.mark(self.outcome)
    }

    /// All of it in one line, for where the place is known.
    pub fn sentence(&self) -> String {
        let BarLine { what, must, measured, .. } = self;
        let outcome = self.verdict();
        let aim = if self.aim == "-" { String::new() } else { format!(", aim {}", self.aim) };
        format!("bar: {what}: must {must}{aim}: {measured}: {outcome}")
    }
}

/// The bars of a group.
pub fn bars_of(group: &GroupResult) -> Vec<BarLine> {
    group.bars.iter().map(|bar| BarLine::new(group.id.clone(), group, bar)).collect()
}

/// Every bar of a run.
pub fn bars(results: &Results) -> Vec<BarLine> {
    let line = |(scenario, group, bar): (&ScenarioResult, &GroupResult, &BarResult)| {
        BarLine::new(format!("{}/{}", scenario.name, group.id), group, bar)
    };
    results.bars().map(line).collect()
}

/// What is to be said about a group below its table.
pub fn remarks(group: &GroupResult) -> Vec<String> {
    let mut lines = Vec::new();
    for pair in &group.pairs {
        let comparison = &pair.comparison;
        let interval = comparison.interval;
        lines.push(format!(
            "{} against {}: {} ({:.2} x, {:.2} to {:.2} with {:.0} %)",
            pair.subject,
            pair.other,
            Trust::of(group).mark(comparison.verdict),
            comparison.ratio,
            interval.low,
            interval.high,
            interval.confidence * 100.0
        ));
    }
    lines.extend(bars_of(group).iter().map(BarLine::sentence));
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
            lines.push(format!("{}: far from its others in round {}", contestant.name, rounds.join(", ")));
        }
    }
    if let Some(wanted) = group.interrupted {
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

/// Configurations of a scenario, each once, with a title.
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
        ([], _) => "none: there is one core only".to_owned(),
        (target, load) => {
            format!("target on core {}, load and backends on core {}", list(target), list(load))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
