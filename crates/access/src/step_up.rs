//! Who has given a one-time password lately, so that a change does not ask for one each time: by source and by subject. An operator
//! at another address gives one of its own. The table is bounded: of the entries the older half goes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::policy::Subject;

/// Begins the message of a server that refuses a change for want of a one-time password; a client that reads it may ask its user.
pub const NEEDED: &str = "a one-time password is needed";

/// Entries of the table.
const MOST: usize = 4096;

#[derive(Debug)]
pub struct StepUps<S> {
    proved: HashMap<(S, Subject), Instant>,
}

impl<S> Default for StepUps<S> {
    fn default() -> Self {
        Self { proved: HashMap::new() }
    }
}

impl<S: Clone + Eq + Hash> StepUps<S> {
    /// Takes note of a password that was good.
    pub fn proved(&mut self, source: &S, subject: &Subject, now: Instant) {
        if self.proved.len() >= MOST {
            let mut times: Vec<Instant> = self.proved.values().copied().collect();
            let middle = times.len() / 2;
            let (_, median, _) = times.select_nth_unstable(middle);
            let median = *median;
            self.proved.retain(|_, at| *at > median);
        }
        self.proved.insert((source.clone(), subject.clone()), now);
    }

    /// Whether a password is still enough that was given up to so long ago.
    pub fn is_fresh(&self, source: &S, subject: &Subject, lasts: Duration, now: Instant) -> bool {
        let at = self.proved.get(&(source.clone(), subject.clone()));
        at.is_some_and(|at| now.saturating_duration_since(*at) < lasts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test needs some instant to count from")]

    use super::*;

    #[test]
    fn a_password_is_enough_for_a_time_for_one_user_at_one_address() {
        let (mut steps, now) = (StepUps::default(), Instant::now());
        let [ann, bob] = ["ann", "bob"].map(|name| Subject::User(name.to_owned()));
        let certificate = Subject::Certificate("ann".to_owned());
        let lasts = Duration::from_secs(300);
        steps.proved(&1, &ann, now);
        assert!(steps.is_fresh(&1, &ann, lasts, now) && steps.is_fresh(&1, &ann, lasts, now + lasts / 2));
        assert!(!steps.is_fresh(&1, &ann, lasts, now + lasts), "it is over");
        assert!(!steps.is_fresh(&2, &ann, lasts, now), "another address");
        assert!(!steps.is_fresh(&1, &bob, lasts, now) && !steps.is_fresh(&1, &certificate, lasts, now));
        steps.proved(&1, &ann, now + lasts);
        assert!(steps.is_fresh(&1, &ann, lasts, now + lasts), "a second one");
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_latest() {
        let (mut steps, now) = (StepUps::default(), Instant::now());
        let ann = Subject::User("ann".to_owned());
        for source in 0..20_000u32 {
            steps.proved(&source, &ann, now + Duration::from_millis(source.into()));
        }
        assert!(steps.proved.len() <= MOST);
        let now = now + Duration::from_secs(20);
        assert!(steps.is_fresh(&19_999, &ann, Duration::from_secs(60), now));
    }
}
