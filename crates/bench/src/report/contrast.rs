//! Comparison of two runs: figures that became better or worse, and contestants that only one run has.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::LimitLine;
use crate::compare::{Comparison, Verdict};
use crate::results::{ContestantResult, GroupResult, Results};

#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// Report for people.
    pub text: String,
    /// Number of figures in both runs. With 0, nothing was compared.
    pub compared: usize,
}

impl Contrast {
    /// Compares two runs: one line per common contestant with the ratio B / A, the contestants of only one run, and the
    /// differences that make the runs incomparable.
    pub fn of(a: &Results, b: &Results) -> Self {
        let mut contrast = Contrast { text: warnings(a, b), compared: 0 };
        let doubt = if a.differences(b).is_empty() { "" } else { ", on another machine" };
        let (first, second) = (groups(a), groups(b));
        for (place, group) in &first {
            if let Some(other) = second.get(place) {
                contrast.group(place, group, other, doubt);
            }
        }
        contrast.alone("A", &first, &second);
        contrast.alone("B", &second, &first);
        contrast.limits(a, b);
        if contrast.compared == 0 {
            contrast.text.push_str("the two runs have nothing in common that could be compared\n");
        }
        contrast
    }

    fn group(&mut self, place: &str, group: &GroupResult, other: &GroupResult, doubt: &str) {
        if group.headline != other.headline {
            let [a, b] = [group, other].map(|group| group.headline.title(&group.unit));
            let _ = writeln!(self.text, "{place}: not comparable: A has {a}, B has {b}");
            return;
        }
        let disturbed =
            if group.disturbed.is_some() || other.disturbed.is_some() { ", disturbed" } else { "" };
        let _ = writeln!(self.text, "{place}: {}", group.headline.title(&group.unit));
        for contestant in &group.contestants {
            let Some(again) = other.contestant(&contestant.name) else { continue };
            let (first, second) =
                (contestant.values_by_round(&group.headline), again.values_by_round(&group.headline));
            let _ = match Comparison::of_runs(&second, &first, group.headline.better()) {
                Some(comparison) => {
                    self.compared += 1;
                    writeln!(self.text, "  {:<14} {}{disturbed}{doubt}", contestant.name, line(&comparison))
                }
                None => {
                    writeln!(self.text, "  {:<14} {}", contestant.name, without_figures(contestant, again))
                }
            };
        }
        for (name, here, there) in [("A", group, other), ("B", other, group)] {
            let alone = here.contestants.iter().filter(|one| there.contestant(&one.name).is_none());
            let alone: Vec<_> = alone.map(|one| one.name.as_str()).collect();
            if !alone.is_empty() {
                let _ = writeln!(self.text, "  only in {name}: {}", alone.join(", "));
            }
        }
    }

    fn alone(&mut self, name: &str, here: &Groups<'_>, there: &Groups<'_>) {
        let alone: Vec<_> = here.keys().filter(|place| !there.contains_key(*place)).cloned().collect();
        if !alone.is_empty() {
            let _ = writeln!(self.text, "only in {name}: {}", alone.join(", "));
        }
    }

    /// Adds the common limits with their outcomes in both runs.
    fn limits(&mut self, a: &Results, b: &Results) {
        let text = &mut self.text;
        let key = |line: &LimitLine| (line.place.clone(), line.what.clone());
        let others: BTreeMap<_, _> = super::limits(b).into_iter().map(|line| (key(&line), line)).collect();
        let both = super::limits(a).into_iter().filter_map(|line| Some((others.get(&key(&line))?, line)));
        for (index, (second, first)) in both.enumerate() {
            if index == 0 {
                text.push_str("limits\n");
            }
            let mark = if first.outcome == second.outcome { "" } else { "  (changed)" };
            let _ = writeln!(text, "  {}: {}, limit {}{mark}", first.place, first.what, second.limit);
            for (name, line) in [("A", &first), ("B", second)] {
                let _ = writeln!(text, "    {name}: {:<12}  {}", line.verdict(), line.measured);
            }
            if first.limit != second.limit {
                let _ = writeln!(text, "    warning: A had another limit: {}", first.limit);
            }
        }
    }
}

/// Groups by scenario and name, sorted.
type Groups<'a> = BTreeMap<String, &'a GroupResult>;

fn groups(results: &Results) -> Groups<'_> {
    let mut groups = Groups::new();
    for (scenario, group) in results.groups() {
        groups.entry(format!("{}/{}", scenario.name, group.id)).or_insert(group);
    }
    groups
}

/// Warnings shown before the figures.
fn warnings(a: &Results, b: &Results) -> String {
    let mut text = String::new();
    for difference in a.differences(b) {
        let _ = writeln!(text, "warning: not the same machine: {difference}");
    }
    let versions: BTreeMap<_, _> = b.machine.programs.iter().map(|(name, version)| (name, version)).collect();
    for (name, version) in &a.machine.programs {
        if let Some(other) = versions.get(name).filter(|other| **other != version) {
            let _ = writeln!(text, "warning: not the same {name}: {version} / {other}");
        }
    }
    if a.trial_seconds != b.trial_seconds {
        let _ = writeln!(text, "warning: trials of {} s in A, {} s in B", a.trial_seconds, b.trial_seconds);
    }
    for (results, name) in [(a, "A"), (b, "B")] {
        for (scenario, group) in results.disturbed() {
            let _ = writeln!(text, "warning: {name} was disturbed in {}/{}", scenario.name, group.id);
        }
        for scenario in &results.scenarios {
            if let Some(failed) = &scenario.failed {
                let _ = writeln!(text, "warning: {name} could not measure {}: {failed}", scenario.name);
            }
        }
    }
    for (results, name) in [(a, "A"), (b, "B")] {
        if let Some(signal) = &results.interrupted {
            let _ =
                writeln!(text, "warning: {name} was interrupted by {signal} before everything was measured");
        }
        for (scenario, group) in results.groups() {
            if let Some(wanted) = group.planned_rounds {
                let (place, done) = (format!("{}/{}", scenario.name, group.id), group.rounds.len());
                let _ = writeln!(text, "warning: {name} has {done} of {wanted} rounds of {place}");
            }
        }
    }
    text
}

/// Explains why a common contestant has no comparable figures.
fn without_figures(first: &ContestantResult, second: &ContestantResult) -> String {
    let why = [("A", first), ("B", second)].map(|(name, contestant)| match &contestant.failed {
        Some(failed) => Some(format!("failed in {name}: {failed}")),
        None if contestant.samples.is_empty() => Some(format!("no samples in {name}")),
        None => None,
    });
    let why: Vec<_> = why.into_iter().flatten().collect();
    if why.is_empty() {
        "not comparable: it has no such figure".to_owned()
    } else {
        format!("not comparable: {}", why.join("; "))
    }
}

fn line(comparison: &Comparison) -> String {
    let interval = comparison.interval;
    let verdict = match comparison.verdict {
        Verdict::Better => "B is better",
        Verdict::Worse => "B is worse",
        Verdict::NoDifference => "no difference",
        Verdict::TooNoisy => "too noisy to say",
        Verdict::TooFewRounds => "too few rounds to say",
    };
    format!("{:.2} x ({:.2} to {:.2})  {verdict}", comparison.ratio, interval.low, interval.high)
}
