//! Results, told: in the terminal, as Markdown, as a page. The JSON file is `results.rs`.

use crate::results::{GroupResult, Results, ScenarioResult};

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
    let disturbed: Vec<_> =
        results.disturbed().map(|(scenario, group)| format!("{}/{}", scenario.name, group.id)).collect();
    let judgement = match disturbed.len() {
        0 => "no".to_owned(),
        count => format!("yes, in {count} groups: {}", disturbed.join(", ")),
    };
    facts.push(("disturbed".to_owned(), judgement));
    facts
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
            comparison.verdict,
            comparison.ratio,
            interval.low,
            interval.high,
            interval.confidence * 100.0
        ));
    }
    for bar in &group.bars {
        let kept = if bar.is_kept() { "kept" } else { "NOT kept" };
        let limit = &bar.bar;
        lines.push(format!(
            "bar: {} at most {:.2} x the best rival ({}): {:.2} x, {kept}; aim {:.2} x",
            limit.subject, limit.must, bar.rival, bar.ratio, limit.aim
        ));
    }
    for contestant in &group.contestants {
        if let Some(failed) = &contestant.failed {
            lines.push(format!("{}: {failed}", contestant.name));
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
    if let Some(reason) = group.disturbed() {
        lines.push(format!("DISTURBED: {reason}"));
    }
    if !group.repeated.is_empty() {
        lines.push(format!("{} rounds were disturbed and repeated", group.repeated.len()));
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
mod tests;
