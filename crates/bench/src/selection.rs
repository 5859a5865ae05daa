//! Which scenarios and groups are run: what was asked for by name, or what belongs to the extent of a run.

use std::fmt;
use std::time::Duration;

use crate::context::{Context, Extent};
use crate::error::Error;
use crate::scenario::{self, Group, Plan, Scenario};
use crate::trial::Rules;

/// What was asked for, scenario by scenario, in the order in which scenarios run.
pub struct Selection {
    choices: Vec<Choice>,
}

/// A scenario and what is wanted of it.
struct Choice {
    scenario: Box<dyn Scenario>,
    share: Share,
    /// Groups that are wanted in any case.
    named: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Those groups that belong to the run's extent.
    Extent,
    /// Nothing but groups with their names.
    Named,
}

/// A scenario that is about to be run.
#[derive(Debug)]
pub struct Planned {
    /// Its name.
    pub name: &'static str,
    /// Its question.
    pub question: &'static str,
    /// What is measured, or why it cannot be run.
    pub plan: Result<Plan, Error>,
}

impl Selection {
    /// Everything.
    pub fn all() -> Self {
        let choice = |scenario| Choice { scenario, share: Share::Extent, named: Vec::new() };
        Selection { choices: scenario::all().into_iter().map(choice).collect() }
    }

    /// What these words name: `all`, `SCENARIO` or `SCENARIO/GROUP`. Groups are looked for when it is planned.
    pub fn parse(words: &[String]) -> Result<Self, Error> {
        let Selection { mut choices } = Selection::all();
        let known: Vec<_> = choices.iter().map(|choice| choice.scenario.name()).collect();
        let mut wanted = vec![false; known.len()];
        choices.iter_mut().for_each(|choice| choice.share = Share::Named);
        for word in words {
            if word == "all" {
                choices.iter_mut().for_each(|choice| choice.share = Share::Extent);
                wanted.fill(true);
                continue;
            }
            let (name, group) = match word.split_once('/') {
                Some((name, group)) => (name, Some(group)),
                None => (word.as_str(), None),
            };
            let Some(index) = known.iter().position(|known| *known == name) else {
                let also = std::iter::once("all").chain(known.iter().copied());
                return Err(unknown("scenario", name, also));
            };
            wanted[index] = true;
            match group {
                Some(group) => choices[index].named.push(group.to_owned()),
                None => choices[index].share = Share::Extent,
            }
        }
        let choices = choices.into_iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(choice, _)| choice);
        Ok(Selection { choices: choices.collect() })
    }

    /// What is to be measured on this machine. A scenario that cannot be run here is no error; a group that does not
    /// exist is one.
    pub fn plan(&self, context: &Context) -> Result<Vec<Planned>, Error> {
        self.choices.iter().map(|choice| choice.plan(context)).collect()
    }
}

impl Choice {
    fn plan(&self, context: &Context) -> Result<Planned, Error> {
        let (name, question) = (self.scenario.name(), self.scenario.question());
        let mut plan = match self.scenario.plan(context) {
            Ok(plan) => plan,
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => return Ok(Planned { name, question, plan: Err(error) }),
        };
        for group in &self.named {
            // Where programs are missing there are fewer groups, and the report says which programs.
            if plan.groups.is_empty() && !plan.missing.is_empty() {
                continue;
            }
            if !plan.groups.iter().any(|known| known.id == *group) {
                let known = plan.groups.iter().map(|group| group.id.as_str());
                return Err(unknown(&format!("group in {name}"), group, known));
            }
        }
        let belongs = |group: &Group| context.extent == Extent::Full || group.extent == Extent::Quick;
        plan.groups.retain(|group| {
            self.named.contains(&group.id) || (self.share == Share::Extent && belongs(group))
        });
        Ok(Planned { name, question, plan: Ok(plan) })
    }
}

/// How long it takes to measure all of that, if nothing disturbs it.
pub fn estimate(planned: &[Planned], rules: Rules) -> Duration {
    let groups =
        planned.iter().filter_map(|planned| planned.plan.as_ref().ok()).flat_map(|plan| &plan.groups);
    groups.map(|group| group.estimate(rules)).sum()
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.choices.iter().map(|choice| (choice.scenario.name(), &choice.share, &choice.named));
        f.debug_list().entries(names).finish()
    }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<_> = known.collect();
    let mut near: Vec<_> = known.iter().map(|known| (distance(name, known), *known)).collect();
    near.retain(|(distance, known)| *distance <= 1 + known.len() / 4 || related(name, known));
    near.sort_unstable();
    let near: Vec<_> = near.into_iter().map(|(_, known)| known.to_owned()).take(MOST_NEAR).collect();
    let known = known.into_iter().map(str::to_owned).collect();
    Error::Unknown { what: what.to_owned(), name: name.to_owned(), near, known }
}

/// Whether one is a part of the other.
fn related(name: &str, known: &str) -> bool {
    name.len() >= 3 && (known.contains(name) || name.contains(known))
}

/// How many characters have to be put in, taken out, replaced or swapped with their neighbour to make one of the other
/// (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|word| word.chars().collect::<Vec<_>>());
    let mut before = Vec::new();
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (index, character) in one.iter().enumerate() {
        let mut next = vec![index + 1];
        for (column, there) in other.iter().enumerate() {
            let replaced = row[column] + usize::from(there != character);
            let mut least = replaced.min(row[column + 1] + 1).min(next[column] + 1);
            if index > 0 && column > 0 && one[index - 1] == *there && other[column - 1] == *character {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

const MOST_NEAR: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Interrupt;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn planned(extent: Extent, selected: &[&str]) -> Vec<(&'static str, Vec<String>)> {
        let context = Context::new("/nonexistent".into(), Interrupt::default(), extent).unwrap();
        let planned = Selection::parse(&words(selected)).unwrap().plan(&context).unwrap();
        let ids = |plan: Plan| plan.groups.into_iter().map(|group| group.id).collect();
        planned.into_iter().map(|planned| (planned.name, planned.plan.map(ids).unwrap_or_default())).collect()
    }

    #[test]
    fn groups_are_run_by_name_even_if_they_are_not_in_a_quick_run() {
        let chosen = planned(Extent::Quick, &["http/latency-unix", "sockets/kept-16"]);
        assert_eq!(chosen, [("sockets", words(&["kept-16"])), ("http", words(&["latency-unix"]))]);
        let quick = planned(Extent::Quick, &["sockets", "sockets/kept-256"]).remove(0).1;
        let full = planned(Extent::Full, &["sockets"]).remove(0).1;
        assert!(quick.contains(&"kept-256".to_owned()) && quick.contains(&"connection-12".to_owned()));
        assert!(quick.len() < full.len(), "{quick:?} {full:?}");
    }

    #[test]
    fn names_that_do_not_exist_are_answered_with_near_ones() {
        let Err(Error::Unknown { name, near, known, .. }) = Selection::parse(&words(&["sokets"])) else {
            panic!("it was taken");
        };
        assert_eq!((name.as_str(), near), ("sokets", words(&["sockets"])));
        assert!(known.contains(&"all".to_owned()) && known.contains(&"truststore".to_owned()));
        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Full).unwrap();
        let selection = Selection::parse(&words(&["http/keep-alive-tpc"])).unwrap();
        let Err(Error::Unknown { what, near, .. }) = selection.plan(&context) else { panic!("it was taken") };
        assert_eq!(what, "group in http");
        assert_eq!(near[0], "keep-alive-tcp");
        for wrong in ["all/x", "", "/", "http//"] {
            let result = Selection::parse(&words(&[wrong])).and_then(|selection| selection.plan(&context));
            assert!(matches!(result, Err(Error::Unknown { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn the_distance_of_two_words_is_the_number_of_changes() {
        for (one, other, expected) in [
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("same", "same", 0),
            ("tcp", "tls", 2),
            ("tpc", "tcp", 1),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
            assert_eq!(distance(other, one), expected, "{other} {one}");
        }
    }
}
