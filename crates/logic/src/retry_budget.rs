//! How many requests may be tried again: a share of all requests, and a few a second in any case. In an outage of a whole
//! pool, retries then cannot multiply the load.

use std::time::Duration;

/// Limit of the retries to a pool, over [`Budget::WINDOW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Share of the requests that may be tried again, in percent.
    pub percent: u8,
    /// Retries a second over all workers that are allowed also if there are few requests.
    pub least: u32,
}

/// Requests and retries of the last seconds, as one worker sees them.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    seconds: [Second; SECONDS],
}

const SECONDS: usize = 10;

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Number of this second since the start of the process, plus one.
    number: u64,
    requests: u32,
    retries: u32,
}

impl Budget {
    pub const WINDOW: Duration = Duration::from_secs(SECONDS as u64);

    /// Counts a request that comes for the first time. `now` is the time since the start of the process.
    pub fn count(&mut self, now: Duration) {
        let second = self.second(now);
        second.requests = second.requests.saturating_add(1);
    }

    /// Tests whether one more request may be tried again. Each of `workers` has an equal part of [`Rule::least`].
    pub fn has_left(&self, rule: Rule, workers: usize, now: Duration) -> bool {
        let oldest = (now.as_secs() + 2).saturating_sub(SECONDS as u64);
        let within = self.seconds.iter().filter(|second| second.number >= oldest);
        let (requests, retries) = within.fold((0_u64, 0_u64), |(requests, retries), second| {
            (requests + u64::from(second.requests), retries + u64::from(second.retries))
        });
        // In percent of a retry, and for all workers, so that a part of one retry is not lost.
        let workers = workers.max(1) as u64;
        let share = requests * u64::from(rule.percent) * workers;
        let least = u64::from(rule.least) * SECONDS as u64 * 100;
        (retries + 1) * 100 * workers <= share + least
    }

    /// Counts a retry.
    pub fn spend(&mut self, now: Duration) {
        let second = self.second(now);
        second.retries = second.retries.saturating_add(1);
    }

    fn second(&mut self, now: Duration) -> &mut Second {
        let number = now.as_secs() + 1;
        let second = &mut self.seconds[(number % SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn try_again(budget: &mut Budget, rule: Rule, workers: usize, now: Duration) -> bool {
        let has_left = budget.has_left(rule, workers, now);
        if has_left {
            budget.spend(now);
        }
        has_left
    }

    #[test]
    fn retries_are_a_share_of_the_requests_and_a_few_in_any_case() {
        let rule = Rule { percent: 20, least: 0 };
        let mut budget = Budget::default();
        assert!(!try_again(&mut budget, rule, 1, at(0)));
        for _ in 0..100 {
            budget.count(at(500));
        }
        let retries = (0..100).filter(|_| try_again(&mut budget, rule, 1, at(600))).count();
        assert_eq!(retries, 20);
        let few = Rule { percent: 20, least: 3 };
        let retries = (0..100).filter(|_| try_again(&mut budget, few, 1, at(600))).count();
        assert_eq!(retries, 30, "three a second, for ten seconds");
        let retries = (0..100).filter(|_| try_again(&mut Budget::default(), few, 4, at(600))).count();
        assert_eq!(retries, 100, "each with a budget of its own");
        let mut part = Budget::default();
        let retries = (0..100).filter(|_| try_again(&mut part, few, 4, at(600))).count();
        assert_eq!(retries, 7, "a quarter of 30");
        let none = Rule { percent: 0, least: 0 };
        assert!(!try_again(&mut budget, none, 1, at(700)));
    }

    #[test]
    fn what_was_ten_seconds_ago_counts_no_longer() {
        let rule = Rule { percent: 100, least: 0 };
        let mut budget = Budget::default();
        budget.count(at(999));
        assert!(budget.has_left(rule, 1, at(9_999)));
        assert!(!budget.has_left(rule, 1, at(10_000)));
        assert!(!budget.has_left(rule, 1, at(u64::from(u32::MAX))));
    }

    /// SplitMix64: a seed names a whole run.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = *state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    #[test]
    fn in_every_ten_seconds_of_random_traffic_retries_stay_within_the_budget() {
        for seed in 0..200 {
            let mut random = seed;
            let rule =
                Rule { percent: (next(&mut random) % 101) as u8, least: (next(&mut random) % 5) as u32 };
            let (mut budget, mut now) = (Budget::default(), 0);
            let (mut requests, mut retries): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
            for _ in 0..2_000 {
                now += next(&mut random) % 100;
                match next(&mut random) % 3 {
                    0 => {
                        budget.count(at(now));
                        requests.push(now / 1000);
                    }
                    _ if try_again(&mut budget, rule, 1, at(now)) => retries.push(now / 1000),
                    _ => {}
                }
                let since = (now / 1000 + 1).saturating_sub(SECONDS as u64);
                let of = |all: &[u64]| all.iter().filter(|second| **second >= since).count() as u64;
                let (requests, retries) = (of(&requests), of(&retries));
                // Requests leave the window before the retries that they have paid for: those may still be within it.
                let paid = u64::from(rule.percent) * (requests + 20 * 10) / 100 + u64::from(rule.least) * 10;
                assert!(retries <= paid, "seed {seed}: {retries} retries, {requests} requests, {rule:?}");
            }
            // Over the whole run there is no slack.
            let windows = now / 1000 / SECONDS as u64 + 2;
            let paid = u64::from(rule.percent) * requests.len() as u64 / 100
                + u64::from(rule.least) * SECONDS as u64 * windows;
            let all = retries.len() as u64;
            assert!(all <= 2 * paid + 1, "seed {seed}: {all} of {paid}");
        }
    }
}
