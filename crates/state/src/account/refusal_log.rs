//! Event with the number of clients and requests that were refused descriptors: at the first refusal, then at most once
//! a minute.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::{Account, REFUSALS};

/// Minimum time between two events.
const EVERY: Duration = Duration::from_secs(60);

const HINT: &str =
    "`penstock ctl status` shows what holds them; the limits are LimitNOFILE and process.shares";

/// Numbers in the last event.
#[derive(Debug, Default)]
pub struct RefusalLog {
    at: Cell<Option<Instant>>,
    counts: Cell<[u64; REFUSALS.len()]>,
}

impl RefusalLog {
    /// Text of the event; `None` if no event is due.
    pub fn take(&self, account: &Account, now: Instant) -> Option<String> {
        let refusals = account.refusals();
        let before = self.counts.get();
        let new: Vec<_> = refusals
            .iter()
            .zip(before)
            .filter_map(|((reason, count), before)| Some((reason, count.checked_sub(before)?)))
            .filter(|(_, more)| *more > 0)
            .map(|(reason, more)| format!("{reason} {more}"))
            .collect();
        let is_due = self.at.get().is_none_or(|at| now.saturating_duration_since(at) >= EVERY);
        if new.is_empty() || !is_due {
            return None;
        }
        self.at.set(Some(now));
        self.counts.set(refusals.map(|(_, count)| count));
        Some(format!("clients or requests were refused descriptors: {} ({HINT})", new.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use logic::account::Refusal;

    use super::*;

    #[test]
    fn a_refusal_is_reported_at_once_and_those_after_it_once_a_minute() {
        let (account, refusal_log, now) = (Account::new(1), RefusalLog::default(), Instant::now());
        assert_eq!(refusal_log.take(&account, now), None);
        account.count(Refusal::Source);
        let expected =
            |counts: &str| Some(format!("clients or requests were refused descriptors: {counts} ({HINT})"));
        assert_eq!(refusal_log.take(&account, now), expected("source-share 1"));
        account.count(Refusal::Source);
        account.count(Refusal::NoDescriptors);
        assert_eq!(refusal_log.take(&account, now + EVERY / 2), None);
        assert_eq!(refusal_log.take(&account, now + EVERY), expected("no-descriptors 1, source-share 1"));
        assert_eq!(refusal_log.take(&account, now + EVERY * 2), None);
    }
}
