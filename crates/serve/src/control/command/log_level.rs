//! `log-level`: shows or changes the level of the process log, for a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::front::Said;
use serde_json::json;
use state::State;
use state::events::Level;
use state::log_level::{Changed, LONGEST};
use text::nearest::nearest;
use text::units;

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Duration of a change without `--for`: a debug level that an operator forgets does not fill the disk.
const USUAL: Duration = Duration::from_secs(600);

/// The error is a refusal with its reason, or `None` for wrong usage.
pub(super) fn run(state: &Arc<State>, who: &str, arguments: &[&str]) -> Result<Said, Option<String>> {
    let (level, time) = match *arguments {
        [] => return Ok(shown(state)),
        ["default"] => return reset(state, who).map_err(Some),
        [level] => (level, USUAL),
        [level, "for" | "--for", time] => {
            let read = config::duration(time).map_err(|why| format!("--for {time}: {why}"))?;
            if read.is_zero() || read > LONGEST {
                return Err(Some(format!(
                    "--for {time}: a level is changed for 24h at most, and for longer than 0"
                )));
            }
            (level, read)
        }
        _ => return Err(None),
    };
    if !LEVELS.contains(&level) {
        let near = nearest(level, LEVELS).map_or(String::new(), |near| format!(", did you mean \"{near}\"?"));
        let shown: String = level.chars().take(40).collect();
        return Err(Some(format!(
            "\"{shown}\" is no level{near}; there are {} and default",
            LEVELS.join(", ")
        )));
    }
    let changed = state.log_level.set(level, who.to_owned(), time)?;
    let lasts = units::duration(time);
    state.events.record(Level::Info, "log", format!("{who}: level {level} for {lasts}"));
    let (number, later) = (changed.number, state.clone());
    let timer = tokio::spawn(async move {
        tokio::time::sleep(time).await;
        if let Some(Changed { level, .. }) = later.log_level.end(number) {
            let message = format!("level {level} has ended: it is that of the start again");
            later.events.record(Level::Info, "log", message);
        }
    });
    state.log_level.keep_timer(Some(timer.abort_handle()));
    Ok(Said {
        text: format!("the log has level {level} for {lasts}, then that of the start again"),
        json: json!({ "level": level, "by": changed.by, "seconds_left": time.as_secs_f64() }).to_string(),
    })
}

fn shown(state: &State) -> Said {
    let Some(changed) = state.log_level.changed() else {
        return Said {
            text: "the log has the level of the start: PENSTOCK_LOG, else info".to_owned(),
            json: json!({ "level": null, "by": null, "seconds_left": null }).to_string(),
        };
    };
    let left = changed.until.saturating_duration_since(Instant::now());
    let Changed { level, by, .. } = changed;
    Said {
        text: format!("the log has level {level} for {} more, by {by}", units::duration(left)),
        json: json!({ "level": level, "by": by, "seconds_left": left.as_secs_f64() }).to_string(),
    }
}

fn reset(state: &State, who: &str) -> Result<Said, String> {
    let before = state.log_level.reset()?;
    state.log_level.keep_timer(None);
    if before.is_some() {
        state.events.record(Level::Info, "log", format!("{who}: the level of the start again"));
    }
    Ok(shown(state))
}

#[cfg(test)]
mod tests {
    use state::log_level::LogLevel;

    use super::*;

    #[tokio::test]
    async fn a_changed_level_has_one_task_however_often_it_is_changed() {
        let mut state = State::new(1);
        state.log_level = LogLevel::new(Some(|_| Ok(())));
        let state = Arc::new(state);
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for level in LEVELS.into_iter().cycle().take(50) {
            assert!(run(&state, "ann", &[level, "for", "24h"]).is_ok());
            // Aborted tasks end.
            tokio::task::yield_now().await;
        }
        assert_eq!(tasks(), before + 1);
        assert_eq!(state.log_level.changed().unwrap().level, "trace");
        assert!(run(&state, "ann", &["default"]).is_ok());
        tokio::task::yield_now().await;
        assert_eq!(tasks(), before);
        assert!(run(&state, "ann", &["debug", "for", "1ms"]).is_ok());
        while state.log_level.changed().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
