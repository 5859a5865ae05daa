//! Marks of operators on backends: drained, ready, weight.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use config::types::Standing;
use serde_json::{Value, json};
use state::events::Level;
use state::{Admission, BackendState, Drain, LONGEST_DRAIN};

use super::call::{Call, Refusal, Step};
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
    fn changed(&self, backend: &BackendState, change: &str, facts: &[(&str, Value)]) -> Step {
        // The number of usable backends may have changed: wake the task that evaluates the pool.
        backend.wake_health.notify_one();
        // Services of packets follow at once, and not with their next look at all backends.
        self.front.state.health_changes.send_replace(());
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
                let mut answer = json!({ "pool": &*backend.pool, "backend": &*backend.name });
                for (name, value) in facts {
                    answer[*name] = value.clone();
                }
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

pub(super) fn ready(call: &Call<'_>) -> Result<Step, Refusal> {
    let backend = call.backend(call.arguments)?;
    if backend.standing() == Standing::Leaving {
        let name = text::terminal::line(&backend.name);
        return Err(format!(
            "the DNS does not have {name} any more: it is removed when its sessions have ended"
        )
        .into());
    }
    backend.set_admission(Admission::Ready);
    marked(call);
    Ok(call.changed(&backend, "ready", &[("admission", json!("ready"))]))
}

pub(super) fn drain(call: &Call<'_>) -> Result<Step, Refusal> {
    let (words, time) = match call.arguments {
        [words @ .., "for" | "--for", time] if !words.is_empty() => (words, Some(drain_time(time)?)),
        words => (words, None),
    };
    let backend = call.backend(words)?;
    let until = time.map(|time| Instant::now() + time);
    let earlier = backend.drain().filter(|_| backend.asked_admission() == Admission::Draining);
    if let Some(earlier) = &earlier
        && lasts_as_long(earlier, until)
    {
        return Ok(already_drained(call, &backend, earlier, time));
    }
    backend.note_drain(Drain { by: call.who.to_string(), at: SystemTime::now(), until });
    marked(call);
    let lasts = time.map_or(String::new(), |time| format!(" for {}", text::units::duration(time)));
    let instead = earlier.and_then(|earlier| earlier.until).map_or(String::new(), |end| {
        let left = text::units::duration(end.saturating_duration_since(Instant::now()));
        let now = if time.is_none() { "until `ready` now; " } else { "" };
        format!("; {now}it would have ended in {left}")
    });
    let open = backend.in_flight.load(Relaxed);
    let change = match open {
        left if gets_packets(call, &backend) => {
            format!("draining{lasts}: no new flows; {}{instead}", remembered(left))
        }
        0 => format!("drained{lasts}: no new sessions, none is open{instead}"),
        left => format!(
            "draining{lasts}: no new sessions, {left} still open (penstock ctl backends shows when none is){instead}"
        ),
    };
    let left = json!(time.map(|time| time.as_secs_f64()));
    let facts = [("admission", json!("draining")), ("seconds_left", left), ("open", json!(open))];
    Ok(call.changed(&backend, &change, &facts))
}

fn drain_time(time: &str) -> Result<Duration, Refusal> {
    let read = config::duration(time).map_err(|why| format!("--for {time}: {why}"))?;
    if read.is_zero() || read > LONGEST_DRAIN {
        let days = LONGEST_DRAIN.as_secs() / 86_400;
        return Err(format!(
            "--for {time}: a drain with an end lasts {days}d at most, and longer than 0; without --for it lasts until `ready`"
        )
        .into());
    }
    Ok(read)
}

/// Whether a drain does not end before `until`: a second operator may make it longer, and end it by `ready`.
fn lasts_as_long(earlier: &Drain, until: Option<Instant>) -> bool {
    match (earlier.until, until) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(earlier), Some(new)) => earlier >= new,
    }
}

/// Whether a `dsr` listener has the pool: what is open is counted as flows, whose end is seen late.
fn gets_packets(call: &Call<'_>, backend: &BackendState) -> bool {
    let services = call.front.state.services.all();
    services.iter().any(|(report, _)| *report.pool == *backend.pool)
}

/// How many flows of a backend are remembered.
fn remembered(flows: u32) -> String {
    let number = match flows {
        0 => return "none is remembered".to_owned(),
        1 => "1 is remembered".to_owned(),
        flows => format!("{flows} are remembered"),
    };
    format!(
        "{number}, among them those of connections that have ended within the last minute (penstock ctl backends shows when none is)"
    )
}

/// Answers an operator who drains a backend that drains already. The server keeps the operator and the end of the first
/// drain, also if this operator `asked` for a shorter time.
fn already_drained(
    call: &Call<'_>,
    backend: &BackendState,
    earlier: &Drain,
    asked: Option<Duration>,
) -> Step {
    let ago = text::units::ago(earlier.at.elapsed().unwrap_or_default());
    let left = earlier.until.map(|until| until.saturating_duration_since(Instant::now()));
    let open = backend.in_flight.load(Relaxed);
    call.answer(
        || {
            let (name, pool) = (text::terminal::line(&backend.name), text::terminal::line(&backend.pool));
            let by = text::terminal::line(&earlier.by);
            let left =
                left.map_or(String::new(), |left| format!(", for {} more", text::units::duration(left)));
            let open = match gets_packets(call, backend) {
                true => format!("no new flows; {}", remembered(open)),
                false => format!("no new sessions, {} open", text::units::count(open as usize, "session")),
            };
            let asked = asked.map_or(String::new(), |time| {
                let time = text::units::duration(time);
                format!("; it does not end after {time}: only `ready` ends a drain earlier")
            });
            format!("{name} of pool {pool}: already drained by {by}, {ago}{left}: {open}{asked}")
        },
        || {
            let drained = json!({
                "by": earlier.by,
                "at": state::events::timestamp(earlier.at),
                "seconds_left": left.map(|left| left.as_secs_f64()),
            });
            json!({
                "pool": &*backend.pool,
                "backend": &*backend.name,
                "admission": "draining",
                "already_drained": drained,
                "open": open,
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
    Ok(call.changed(&backend, &change, &[("weight", json!(weight))]))
}
