//! `log-level`: shows or changes the level of the process log, for a time.

use std::time::{Duration, Instant};

use serde_json::json;
use state::events::Level;
use state::log_level::{Changed, LONGEST};
use text::units;

use super::{Call, Refusal, Step, did_you_mean};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Time of a change that names none: nobody shall find a full disk because a level was forgotten.
const USUAL: Duration = Duration::from_secs(600);

pub(super) fn run(call: &Call<'_>) -> Result<Step, Refusal> {
    let (level, time) = match *call.arguments {
        [] => return Ok(shown(call)),
        ["default"] => return reset(call),
        [level] => (level, USUAL),
        [level, "for", time] => {
            let read = config::duration(time).map_err(|why| Refusal::from(format!("for {time}: {why}")))?;
            if read.is_zero() || read > LONGEST {
                return Err(
                    format!("for {time}: a level is changed for 24h at most, and for longer than 0").into()
                );
            }
            (level, read)
        }
        _ => return Err(call.usage()),
    };
    if !LEVELS.contains(&level) {
        let hint = did_you_mean(level, LEVELS.into_iter());
        let shown: String = level.chars().take(40).collect();
        return Err(
            format!("\"{shown}\" is no level{hint}; there are {} and default", LEVELS.join(", ")).into()
        );
    }
    let state = call.front.state.clone();
    let changed = state.log_level.set(level, call.who.to_string(), time).map_err(Refusal::from)?;
    let lasts = units::duration(time);
    state.events.record(Level::Info, "log", format!("{}: level {level} for {lasts}", call.who));
    let number = changed.number;
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        if let Some(Changed { level, .. }) = state.log_level.end(number) {
            state.events.record(
                Level::Info,
                "log",
                format!("level {level} has ended: it is that of the start again"),
            );
        }
    });
    Ok(call.answer(
        || format!("the log has level {level} for {lasts}, then that of the start again"),
        || json!({ "level": level, "by": changed.by, "seconds_left": time.as_secs_f64() }).to_string(),
    ))
}

fn shown(call: &Call<'_>) -> Step {
    let changed = call.front.state.log_level.changed();
    let left = |changed: &Changed| changed.until.saturating_duration_since(Instant::now());
    call.answer(
        || match &changed {
            None => "the log has the level of the start: PENSTOCK_LOG, else info".to_owned(),
            Some(it) => {
                format!("the log has level {} for {} more, by {}", it.level, units::duration(left(it)), it.by)
            }
        },
        || match &changed {
            None => json!({ "level": null, "by": null, "seconds_left": null }).to_string(),
            Some(it) => {
                json!({ "level": it.level, "by": it.by, "seconds_left": left(it).as_secs_f64() }).to_string()
            }
        },
    )
}

fn reset(call: &Call<'_>) -> Result<Step, Refusal> {
    let state = &call.front.state;
    if state.log_level.reset().map_err(Refusal::from)?.is_some() {
        state.events.record(Level::Info, "log", format!("{}: the level of the start again", call.who));
    }
    Ok(shown(call))
}
