//! Marks of operators on backends: drained, ready, weight.

use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use config::types::Standing;
use serde_json::{Value, json};
use state::events::Level;
use state::{Admission, BackendState, Drain};

use super::{Call, Refusal, Step};
use crate::report;

/// Largest weight that an operator may set, equal to the limit in the configuration.
const MAX_WEIGHT: u32 = 1000;

impl Call<'_> {
    /// An answer that is given when what it says is stored.
    fn mark(&self, text: impl FnOnce() -> String, json: impl FnOnce() -> String) -> Step {
        Step::Marked(self.format.of(text, json), self.format)
    }

    /// Records a change and its operator as an event, and returns the answer. Both warn if clients get no backend, or
    /// this one gets no clients although it was asked to.
    fn changed(&self, backend: &BackendState, change: &str, fact: (&str, Value)) -> Step {
        // The number of usable backends may have changed: wake the task that evaluates the pool.
        backend.wake_health.notify_one();
        let warning = self.warning_after(backend);
        let mut said = format!("{}: {change}", self.who);
        let mut level = Level::Info;
        if let Some(warning) = &warning {
            said.push_str(&format!("; {warning}"));
            level = Level::Warning;
        }
        self.front.state.events.record(level, backend.subject(), said);
        self.mark(
            || {
                let (name, pool) = (text::terminal::line(&backend.name), text::terminal::line(&backend.pool));
                let warning =
                    warning.as_ref().map_or(String::new(), |warning| format!("\nwarning: {warning}"));
                format!("{name} of pool {pool}: {change}{warning}")
            },
            || {
                let mut answer = json!({ "pool": &*backend.pool, "backend": &*backend.name, fact.0: fact.1 });
                if let Some(warning) = &warning {
                    answer["warning"] = json!(warning);
                }
                answer.to_string()
            },
        )
    }

    fn warning_after(&self, changed: &BackendState) -> Option<String> {
        let pools = report::pools(self.front, Some(&changed.pool));
        let pool = pools.first()?;
        let backend = pool.backends.iter().find(|backend| *backend.name == *changed.name)?;
        let is_wanted = backend.admission == Admission::Ready && backend.weight_override != Some(0);
        match backend.state {
            _ if !is_wanted => {}
            state @ ("down" | "ejected") => {
                return Some(format!("it is {state}: it gets no sessions until it is up again"));
            }
            _ if backend.weight_override.is_none() && backend.weight == 0 => {
                return Some("its weight is 0: it gets no sessions".to_owned());
            }
            _ => {}
        }
        (pool.available == 0).then(|| {
            format!("no backend of pool {} takes new sessions now", text::terminal::line(&changed.pool))
        })
    }
}

pub(super) fn admit(call: &Call<'_>, admission: Admission) -> Result<Step, Refusal> {
    let backend = call.backend(call.arguments)?;
    if admission == Admission::Ready && backend.standing() == Standing::Leaving {
        let name = text::terminal::line(&backend.name);
        return Err(format!(
            "the DNS does not have {name} any more: it is removed when its sessions have ended"
        )
        .into());
    }
    if admission == Admission::Draining
        && backend.asked_admission() == Admission::Draining
        && let Some(earlier) = backend.drain()
    {
        return Ok(already_drained(call, &backend, &earlier));
    }
    backend.set_admission(admission);
    if admission == Admission::Draining {
        backend.note_drain(Drain { by: call.who.to_string(), at: SystemTime::now() });
    }
    marked(call);
    Ok(match admission {
        Admission::Draining => {
            let left = backend.in_flight.load(Relaxed);
            let change = match left {
                0 => "drained: no new sessions, none is open".to_owned(),
                left => format!(
                    "draining: no new sessions, {left} still open (penstock ctl backends shows when none is)"
                ),
            };
            call.changed(&backend, &change, ("admission", json!("draining")))
        }
        Admission::Ready => call.changed(&backend, "ready", ("admission", json!("ready"))),
    })
}

/// Answers the second operator who drains a backend: the first operator and the time of that drain are kept.
fn already_drained(call: &Call<'_>, backend: &BackendState, earlier: &Drain) -> Step {
    let ago = text::units::ago(earlier.at.elapsed().unwrap_or_default());
    let left = backend.in_flight.load(Relaxed);
    call.answer(
        || {
            let (name, pool) = (text::terminal::line(&backend.name), text::terminal::line(&backend.pool));
            let by = text::terminal::line(&earlier.by);
            let open = text::units::count(left as usize, "session");
            format!("{name} of pool {pool}: already drained by {by}, {ago}: no new sessions, {open} open")
        },
        || {
            let drained = json!({ "by": earlier.by, "at": state::events::timestamp(earlier.at) });
            json!({
                "pool": &*backend.pool,
                "backend": &*backend.name,
                "admission": "draining",
                "already_drained": drained,
            })
            .to_string()
        },
    )
}

/// An operator has set a mark: ends the warning about lost marks.
fn marked(call: &Call<'_>) {
    call.front.state.restore(crate::kept::MARKS_LOST);
}

pub(super) fn weight(call: &Call<'_>) -> Result<Step, Refusal> {
    let Some((weight, words)) = call.arguments.split_last() else { return Err(call.usage()) };
    let weight = match *weight {
        "default" => None,
        number => match number.parse::<u32>() {
            Ok(weight) if weight <= MAX_WEIGHT => Some(weight),
            _ => return Err(format!("a weight is a number from 0 to {MAX_WEIGHT}, or `default`").into()),
        },
    };
    let backend = call.backend(words)?;
    backend.set_weight_override(weight);
    marked(call);
    let change = weight.map_or("weight as configured".to_owned(), |weight| format!("weight {weight}"));
    Ok(call.changed(&backend, &change, ("weight", json!(weight))))
}
