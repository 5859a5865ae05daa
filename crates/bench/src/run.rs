//! A whole run: scenario after scenario, into one set of results.

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::error::Error;
use crate::machine::Machine;
use crate::results::{FORMAT, Results, ScenarioResult};
use crate::scenario::Scenario;
use crate::trial::{self, Observer, Rules, Step};

/// Runs scenarios. What cannot run says why in the results; only an interruption ends the run.
pub fn run(
    context: &Context,
    scenarios: &[Box<dyn Scenario>],
    rules: Rules,
    command: String,
    observer: Observer<'_>,
) -> Result<Results, Error> {
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
        machine: Machine::look(),
        scenarios: Vec::new(),
    };
    for scenario in scenarios {
        context.check()?;
        results.scenarios.push(run_one(context, scenario.as_ref(), rules, observer)?);
    }
    results.seconds = start.elapsed().as_secs_f64();
    Ok(results)
}

fn run_one(
    context: &Context,
    scenario: &dyn Scenario,
    rules: Rules,
    observer: Observer<'_>,
) -> Result<ScenarioResult, Error> {
    observer(Step::Scenario(scenario.name()));
    let mut result = ScenarioResult {
        name: scenario.name().to_owned(),
        question: scenario.question().to_owned(),
        groups: Vec::new(),
        missing: Vec::new(),
        notes: Vec::new(),
        failed: None,
    };
    let plan = match scenario.plan(context) {
        Ok(plan) => plan,
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => {
            observer(Step::Failed(scenario.name(), &error));
            result.failed = Some(error.to_string());
            return Ok(result);
        }
    };
    (result.missing, result.notes) = (plan.missing, plan.notes);
    for group in &plan.groups {
        result.groups.push(trial::measure(context, group, rules, observer)?);
    }
    Ok(result)
}

/// The rules of a quick run.
pub const QUICK: Rules = Rules { rounds: 5, duration: Duration::from_millis(300) };

/// The rules of a full run.
pub const FULL: Rules = Rules { rounds: 7, duration: Duration::from_secs(2) };
