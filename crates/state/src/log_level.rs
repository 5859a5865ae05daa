//! The level of the process log, which an operator may change for a time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::lock::lock;

/// Makes the log use a filter, such as `debug`; `None` is that of the start. The error says what is wrong with it.
pub type Apply = fn(Option<&str>) -> Result<(), String>;

/// Longest time of a changed level.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Default)]
pub struct LogLevel {
    apply: Option<Apply>,
    changed: Mutex<(u64, Option<Changed>)>,
    /// The task that ends the change in force.
    timer: Mutex<Option<AbortHandle>>,
}

/// A level that an operator set.
#[derive(Clone, Debug)]
pub struct Changed {
    pub level: String,
    pub by: String,
    pub until: Instant,
    /// Number of the change: an earlier one must not end a later one.
    pub number: u64,
}

impl LogLevel {
    /// `apply` changes the log of this process; without it there is none to change.
    pub fn new(apply: Option<Apply>) -> Self {
        Self { apply, changed: Mutex::default(), timer: Mutex::default() }
    }

    /// The level that an operator set, unless its time is over.
    pub fn changed(&self) -> Option<Changed> {
        lock(&self.changed).1.clone()
    }

    /// Sets the level until a time.
    pub fn set(&self, level: &str, by: String, time: Duration) -> Result<Changed, String> {
        let mut changed = lock(&self.changed);
        self.apply(Some(level))?;
        changed.0 += 1;
        let new = Changed { level: level.to_owned(), by, until: Instant::now() + time, number: changed.0 };
        changed.1 = Some(new.clone());
        Ok(new)
    }

    /// Sets the level of the start. Returns the one that was changed.
    pub fn reset(&self) -> Result<Option<Changed>, String> {
        let mut changed = lock(&self.changed);
        self.apply(None)?;
        Ok(changed.1.take())
    }

    /// Keeps the task that ends the change in force, instead of that of an earlier change, which is aborted.
    pub fn keep_timer(&self, task: Option<AbortHandle>) {
        let before = std::mem::replace(&mut *lock(&self.timer), task);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// Ends a change, if it is still in force.
    pub fn end(&self, number: u64) -> Option<Changed> {
        let mut changed = lock(&self.changed);
        let ended = changed.1.take_if(|changed| changed.number == number)?;
        // The filter of the start was in use before.
        let _ = self.apply(None);
        Some(ended)
    }

    fn apply(&self, level: Option<&str>) -> Result<(), String> {
        match self.apply {
            Some(apply) => apply(level),
            None => Err("this process has no log whose level can be changed".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(level: Option<&str>) -> Result<(), String> {
        if level == Some("loud") { Err("no level".to_owned()) } else { Ok(()) }
    }

    #[test]
    fn an_earlier_change_does_not_end_a_later_one() {
        let level = LogLevel::new(Some(apply));
        let first = level.set("debug", "a".to_owned(), LONGEST).unwrap();
        let second = level.set("trace", "b".to_owned(), LONGEST).unwrap();
        assert!(level.end(first.number).is_none());
        assert_eq!(level.changed().unwrap().level, "trace");
        assert!(level.set("loud", "c".to_owned(), LONGEST).is_err());
        assert_eq!(level.changed().unwrap().level, "trace", "a wrong level changes nothing");
        assert_eq!(level.end(second.number).unwrap().by, "b");
        assert!(level.changed().is_none());
        assert!(LogLevel::default().reset().is_err());
    }
}
