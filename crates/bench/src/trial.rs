//! Measures a group: starts and warms up all contestants, then runs rounds with one trial per contestant. A disturbance
//! usually lasts longer than a trial, so it affects all contestants of a round, and the round is repeated.

use std::time::Duration;

use crate::contestant::{Contestant, Running};
use crate::context::Context;
use crate::disturbance::{Disturbance, Watch};
use crate::error::Error;
use crate::load::gauge::Window;
use crate::plan::{Group, Rules};
use crate::results::{ContestantResult, GroupResult, ScenarioResult};
use crate::sample::{Metric, Sample};

/// Progress of a run, for people who watch.
#[derive(Debug)]
pub enum Step<'a> {
    /// A scenario begins. Its results contain only the facts known in advance.
    Scenario(&'a ScenarioResult),
    /// A group begins: title and number of contestants.
    Group(&'a str, usize),
    /// A contestant could not start, or failed.
    Failed(&'a str, &'a Error),
    /// A trial begins: contestant, round, number of rounds.
    Trial(&'a str, usize, usize),
    /// A trial has ended: contestant and headline figure.
    Figure(&'a str, String),
    /// A round was disturbed and is repeated.
    Repeated(&'a Disturbance),
    Finished(&'a GroupResult),
}

/// Callback for every step.
pub type Observer<'a> = &'a mut dyn FnMut(Step<'_>);

/// Measures a group. A contestant that fails takes no further part. After an interruption, the result contains the
/// complete rounds; without a complete round, `Interrupted` is returned, which is the only error.
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
    let mut planned_rounds = None;
    while accepted.len() < rules.rounds && field.iter().any(|entrant| entrant.running.is_some()) {
        let round = match play(context, group, rules, &mut field, accepted.len() + 1, observer) {
            Ok(round) => round,
            Err(Error::Interrupted) if !accepted.is_empty() || !rejected.is_empty() => {
                planned_rounds = Some(rules.rounds);
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
        limits: Vec::new(),
        rounds: Vec::new(),
        repeated: rejected.into_iter().map(|(disturbance, _)| disturbance).collect(),
        planned_rounds,
        disturbed: None,
    };
    for (disturbance, samples) in accepted {
        result.rounds.push(disturbance);
        for (contestant, sample) in result.contestants.iter_mut().zip(samples) {
            contestant.samples.extend(sample);
        }
    }
    result.conclude(&group.pairing, &group.limits);
    observer(Step::Finished(&result));
    Ok(result)
}

/// State of a contestant during the rounds.
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

/// Runs one round: a trial for each remaining contestant.
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

/// Runs a trial whose figures count. A trial without a finished or failed unit may have been too short, or another
/// process used the core: it is repeated with a longer window before it counts as a failure.
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

/// Keeps the calmest rounds if repeating did not produce enough undisturbed ones.
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

fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Largest window of a repeated trial that finished no unit.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests;
