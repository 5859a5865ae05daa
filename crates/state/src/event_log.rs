//! Events at a receiver of syslog messages, besides the process log: the writer thread is that of
//! `crates/state/src/access_log.rs`.

use std::sync::Arc;

use config::types::{Events, LogTarget};
use text::terminal::line;

use crate::State;
use crate::access_log::{AccessLog, AccessLogError, Lines};
use crate::events::{Event, Level};

/// Sends events to the receiver that the configuration names. Without one, it has no thread.
pub struct EventLog {
    state: Arc<State>,
    log: Option<AccessLog>,
}

impl EventLog {
    pub fn open(settings: &Events, state: &Arc<State>) -> Result<Self, AccessLogError> {
        let mut log = Self { state: state.clone(), log: None };
        log.set(settings)?;
        Ok(log)
    }

    /// Changes the receiver. The first one gets the events so far, too.
    pub fn set(&mut self, settings: &Events) -> Result<(), AccessLogError> {
        let target = settings.syslog.clone().map_or(LogTarget::Off, LogTarget::Syslog);
        match &self.log {
            Some(log) => log.set_target(&target),
            None if target == LogTarget::Off => {}
            None => {
                let log = AccessLog::start(Lines::Events, &target, self.state.clone())?;
                self.log = Some(log.clone());
                self.state.events.copy_to(move |event| log.try_send(message(event)));
            }
        }
        Ok(())
    }

    /// Sends what was recorded so far; time limit 2 s.
    pub fn close(&self) {
        if let Some(log) = &self.log {
            log.close();
        }
    }
}

/// One line that begins with the severity.
fn message(Event { at, level, subject, message, .. }: &Event) -> Vec<u8> {
    let (severity, word) = match level {
        Level::Info => (6, "info"),
        Level::Warning => (4, "warning"),
        Level::Error => (3, "error"),
    };
    format!("<{severity}>{at} {word} {}: {}\n", line(subject), line(message)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_its_severity() {
        let state = Arc::new(State::new(1));
        state.events.record(Level::Warning, "pool.app", "first\nsecond \u{1b}[31m");
        let event = state.events.last(1).remove(0);
        let text = String::from_utf8(message(&event)).unwrap();
        assert_eq!(text, format!("<4>{} warning pool.app: first\\nsecond \\u{{1b}}[31m\n", event.at));
    }
}
