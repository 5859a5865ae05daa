//! Selection of scenarios and groups: those named by the user, or those in the extent of the run.

use std::fmt;
use std::time::Duration;

use text::nearest::related;

use crate::context::{Context, Extent};
use crate::error::Error;
use crate::plan::{Group, Plan, Rules, Scenario};
use crate::scenario;

/// Selected groups by scenario, in the order of the run.
pub struct Selection {
    choices: Vec<Choice>,
}

struct Choice {
    scenario: Box<dyn Scenario>,
    share: Share,
    /// Names of groups that run with any extent.
    named: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// All groups in the run's extent.
    Extent,
    /// Only the groups in `named`.
    Named,
}

#[derive(Debug)]
pub struct Planned {
    pub name: &'static str,
    pub question: &'static str,
    /// The plan, or the reason why the scenario cannot run.
    pub plan: Result<Plan, Error>,
}

impl Selection {
    pub fn all() -> Self {
        let choice = |scenario| Choice { scenario, share: Share::Extent, named: Vec::new() };
        Selection { choices: scenario::all().into_iter().map(choice).collect() }
    }

    /// Parses `all`, `SCENARIO` or `SCENARIO/GROUP`. [`Selection::plan`] checks the names of groups.
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

    /// Plans the selected groups on this machine. A scenario that cannot run here is no error; an unknown group is one.
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
            // Missing programs cause missing groups, and the report names the programs.
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

/// Estimates the duration of the run without repeated rounds.
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
    let near = related(name, known.iter().copied()).into_iter().take(MOST_NEAR).map(str::to_owned).collect();
    let known = known.into_iter().map(str::to_owned).collect();
    Error::Unknown { what: what.to_owned(), name: name.to_owned(), near, known }
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
}
