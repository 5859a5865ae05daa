//! Measures a group: everybody is started and warmed up, then rounds, in each of which everybody has one trial.
//! What disturbs a machine lasts longer than a trial, so it hits all contestants of a round, and the round is repeated.

use std::time::Duration;

use crate::context::Context;
use crate::disturbance::{Disturbance, Watch};
use crate::error::Error;
use crate::load::Window;
use crate::results::{ContestantResult, GroupResult, ScenarioResult};
use crate::sample::{Metric, Sample};
use crate::scenario::{Contestant, Group, Running};

/// How a group is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Rounds that count.
    pub rounds: usize,
    /// Length of a trial.
    pub duration: Duration,
}

impl Rules {
    /// The window of a trial that counts.
    pub fn window(self) -> Window {
        Window { warm_up: (self.duration / 10).min(LONGEST_WARM_UP), duration: self.duration }
    }

    /// The window of the trial that warms a contestant up.
    pub fn first_window(self) -> Window {
        Window { warm_up: Duration::ZERO, duration: (self.duration / 2).min(LONGEST_WARM_UP) }
    }
}

/// What happens meanwhile, for people who watch.
#[derive(Debug)]
pub enum Step<'a> {
    /// A scenario begins. Nothing is in its results yet but what is known beforehand.
    Scenario(&'a ScenarioResult),
    /// A group begins, with so many contestants.
    Group(&'a str, usize),
    /// A contestant could not be started or failed.
    Failed(&'a str, &'a Error),
    /// A trial begins: contestant, round, rounds.
    Trial(&'a str, usize, usize),
    /// A trial gave this headline figure.
    Figure(&'a str, String),
    /// A round was disturbed and is repeated.
    Repeated(&'a Disturbance),
    /// A group is finished.
    Finished(&'a GroupResult),
}

/// Told about every step.
pub type Observer<'a> = &'a mut dyn FnMut(Step<'_>);

/// Measures a group. A contestant that fails is left out from there on. An interruption ends everything: rounds that
/// are complete make a result that says so, and without any it is the error, the only one that there is.
pub fn measure(
    context: &Context,
    group: &Group,
    rules: Rules,
    observer: Observer<'_>,
) -> Result<GroupResult, Error> {
    observer(Step::Group(&group.title, group.contestants.len()));
    let mut field = start(context, group, rules, observer)?;
    let mut accepted: Vec<(Disturbance, Vec<Option<Sample>>)> = Vec::new();
    let mut rejected = Vec::new();
    let mut interrupted = None;
    while accepted.len() < rules.rounds && field.iter().any(|entrant| entrant.running.is_some()) {
        let round = match play(context, group, rules, &mut field, accepted.len() + 1, observer) {
            Ok(round) => round,
            Err(Error::Interrupted) if !accepted.is_empty() || !rejected.is_empty() => {
                interrupted = Some(rules.rounds);
                break;
            }
            Err(error) => return Err(error),
        };
        if round.0.is_disturbed() && rejected.len() < rules.rounds {
            observer(Step::Repeated(&round.0));
            rejected.push(round);
        } else {
            accepted.push(round);
        }
    }
    if accepted.is_empty() {
        std::mem::swap(&mut accepted, &mut rejected);
    }
    choose_calmest(&mut accepted, &mut rejected);
    let mut result = GroupResult {
        id: group.id.clone(),
        title: group.title.clone(),
        unit: group.unit.clone(),
        headline: group.headline.clone(),
        columns: group.columns.clone(),
        contestants: field.into_iter().map(|entrant| entrant.result).collect(),
        pairs: Vec::new(),
        bars: Vec::new(),
        rounds: Vec::new(),
        repeated: rejected.into_iter().map(|(disturbance, _)| disturbance).collect(),
        interrupted,
        disturbed: None,
    };
    for (disturbance, samples) in accepted {
        result.rounds.push(disturbance);
        for (contestant, sample) in result.contestants.iter_mut().zip(samples) {
            contestant.samples.extend(sample);
        }
    }
    result.conclude(&group.pairing, &group.bars);
    observer(Step::Finished(&result));
    Ok(result)
}

/// A contestant on its way through the rounds.
struct Entrant {
    running: Option<Box<dyn Running>>,
    result: ContestantResult,
}

fn start(
    context: &Context,
    group: &Group,
    rules: Rules,
    observer: Observer<'_>,
) -> Result<Vec<Entrant>, Error> {
    let mut field = Vec::new();
    let (needed, limit) = (group.descriptors, context.descriptors);
    let forbidden = (limit < needed).then(|| Error::Descriptors { group: group.id.clone(), needed, limit });
    if let Some(error) = &forbidden {
        observer(Step::Failed(&group.title, error));
    }
    for contestant in &group.contestants {
        context.check()?;
        let mut result = ContestantResult {
            name: contestant.name.clone(),
            version: contestant.version.clone(),
            configuration: String::new(),
            failed: None,
            samples: Vec::new(),
            summaries: Default::default(),
        };
        if let Some(error) = &forbidden {
            result.failed = Some(describe(error));
            field.push(Entrant { running: None, result });
            continue;
        }
        let running = match warm(context, contestant, rules.first_window()) {
            Ok(running) => {
                result.configuration = running.configuration();
                Some(running)
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                observer(Step::Failed(&contestant.name, &error));
                result.failed = Some(describe(&error));
                None
            }
        };
        field.push(Entrant { running, result });
    }
    Ok(field)
}

fn warm(context: &Context, contestant: &Contestant, window: Window) -> Result<Box<dyn Running>, Error> {
    let mut running = (contestant.start)(context)?;
    running.trial(context, window)?;
    Ok(running)
}

/// One round: a trial for everybody who is still there.
fn play(
    context: &Context,
    group: &Group,
    rules: Rules,
    field: &mut [Entrant],
    number: usize,
    observer: Observer<'_>,
) -> Result<(Disturbance, Vec<Option<Sample>>), Error> {
    let running = field.iter().filter_map(|entrant| entrant.running.as_ref());
    let elsewhere = running.flat_map(|running| running.elsewhere()).collect();
    let mut watch = Watch::begin(&context.cores, elsewhere);
    let mut samples = Vec::new();
    for entrant in field {
        context.check()?;
        let Some(running) = &mut entrant.running else {
            samples.push(None);
            continue;
        };
        observer(Step::Trial(&entrant.result.name, number, rules.rounds));
        match counted(context, running.as_mut(), rules.window()) {
            Ok(sample) => {
                observer(Step::Figure(&entrant.result.name, shown(&group.headline, &sample)));
                samples.push(Some(sample));
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                observer(Step::Failed(&entrant.result.name, &error));
                entrant.result.failed = Some(describe(&error));
                entrant.running = None;
                samples.push(None);
            }
        }
        watch.look();
    }
    Ok((watch.end(), samples))
}

/// A trial whose figures count. One in which nothing was finished, and nothing failed, may have been too short, or somebody
/// else had the core: it is made longer before that is held against anybody.
fn counted(context: &Context, running: &mut dyn Running, mut window: Window) -> Result<Sample, Error> {
    let longest = (window.duration * 4).min(LONGEST_ATTEMPT);
    loop {
        let sample = running.trial(context, window)?;
        match sample.fault() {
            None => return Ok(sample),
            Some(_) if sample.units <= 0.0 && sample.errors == 0 && window.duration < longest => {
                window.duration *= 2;
            }
            Some(fault) => return Err(Error::Worthless(fault)),
        }
    }
}

/// If rounds were disturbed to the end, the calmest of all are taken.
fn choose_calmest<S>(accepted: &mut Vec<(Disturbance, S)>, rejected: &mut Vec<(Disturbance, S)>) {
    let rounds = accepted.len();
    let disturbed = accepted.iter().any(|(disturbance, _)| disturbance.is_disturbed());
    if disturbed {
        accepted.append(rejected);
        accepted.sort_by(|(a, _), (b, _)| a.severity().total_cmp(&b.severity()));
        rejected.extend(accepted.drain(rounds..));
    }
}

fn shown(metric: &Metric, sample: &Sample) -> String {
    metric.of(sample).map_or_else(|| "-".to_owned(), |value| metric.show(value))
}

/// An error and its causes.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// How long a trial may become in which nothing was finished.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(4);

const LONGEST_WARM_UP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
