//! A whole run: all selected scenarios, into one set of results.

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::machine::Machine;
use crate::plan::Rules;
use crate::results::{FORMAT, Results, ScenarioResult};
use crate::selection::Planned;
use crate::trial::{self, Observer, Step};

/// Runs the plan. Results name the reason of a scenario that cannot run. An interruption keeps the results so far.
pub fn run(
    context: &Context,
    planned: Vec<Planned>,
    rules: Rules,
    command: String,
    observer: Observer<'_>,
) -> Results {
    let start = Instant::now();
    let mut results = Results {
        format: FORMAT,
        started: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        seconds: 0.0,
        command,
        rounds: rules.rounds,
        trial_seconds: rules.duration.as_secs_f64(),
        extent: context.extent,
        cores: context.cores.clone(),
        machine: Machine::look(&context.program),
        scenarios: Vec::new(),
        interrupted: None,
        dropped: None,
    };
    let mut left = planned.into_iter();
    while context.check().is_ok()
        && let Some(planned) = left.next()
    {
        let (scenario, dropped) = run_one(context, planned, rules, observer);
        results.dropped = dropped.map(|group| format!("{}/{group}", scenario.name));
        results.scenarios.push(scenario);
    }
    results.interrupted = context.interrupt.signal().map(|signal| signal.as_str().to_owned());
    results.seconds = start.elapsed().as_secs_f64();
    results
}

/// Runs one scenario. Also returns the name of the group that an interruption ended before its first complete round.
fn run_one(
    context: &Context,
    planned: Planned,
    rules: Rules,
    observer: Observer<'_>,
) -> (ScenarioResult, Option<String>) {
    let mut result = ScenarioResult {
        name: planned.name.to_owned(),
        question: planned.question.to_owned(),
        groups: Vec::new(),
        missing: Vec::new(),
        notes: Vec::new(),
        failed: None,
    };
    let plan = match planned.plan {
        Ok(plan) => plan,
        Err(error) => {
            observer(Step::Scenario(&result));
            observer(Step::Failed(planned.name, &error));
            result.failed = Some(error.to_string());
            return (result, None);
        }
    };
    (result.missing, result.notes) = (plan.missing, plan.notes);
    observer(Step::Scenario(&result));
    for group in &plan.groups {
        // The only error is an interruption; the groups before it have results.
        let Ok(measured) = trial::measure(context, group, rules, observer) else {
            return (result, Some(group.id.clone()));
        };
        result.groups.push(measured);
        if context.check().is_err() {
            break;
        }
    }
    (result, None)
}

pub const QUICK: Rules = Rules { rounds: 5, duration: Duration::from_millis(250) };

pub const FULL: Rules = Rules { rounds: 7, duration: Duration::from_secs(2) };
