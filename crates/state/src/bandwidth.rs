//! Buckets of the limits of bytes a second, which the sessions of several workers may share.
//! `crates/logic/src/bandwidth.rs` decides, `crates/proxy/src/bandwidth.rs` waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use logic::balance::StickyKey;
use logic::bandwidth::{Bandwidth, Bucket, Limit, Per, Ticket, Waiting};

use crate::lock::lock;

/// Parts of the table of sources with a lock each.
const PARTS: usize = 16;

/// Largest number of sources in one part of the table. The sessions of one more source have a limit each.
const MOST: usize = 4096;

/// Number of sources in one part above which those that need not be remembered are looked for.
const SWEEP: usize = 64;
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the client.
    Down,
    /// From the client.
    Up,
}

/// A bucket for each direction that has a limit.
pub struct Buckets(Mutex<Both>);

struct Both {
    of: Bandwidth,
    down: Option<Line>,
    up: Option<Line>,
    /// Last ticket of a limit that was removed: pieces may still wait with tickets up to this one.
    last: Ticket,
}

/// A bucket, and the pieces that wait for it.
struct Line {
    bucket: Bucket,
    waiting: Waiting,
}

impl Line {
    fn new(limit: Limit, now: Duration, last: Ticket) -> Self {
        Self { bucket: Bucket::new(limit, now), waiting: Waiting::after(last) }
    }
}

/// Whether a piece may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Goes,
    /// The piece must be held for this time, less what [`Buckets::earlier`] says.
    Waits(Ticket, Duration),
}

impl Buckets {
    /// Full buckets at `now`, the time since the start of the process.
    pub fn new(of: Bandwidth, now: Duration) -> Self {
        let last = Ticket::default();
        let line = |limit: Option<_>| limit.map(|limit| Line::new(limit, now, last));
        Self(Mutex::new(Both { of, down: line(of.down), up: line(of.up), last }))
    }

    /// Takes bytes.
    pub fn take(&self, way: Way, bytes: usize, now: Duration) -> Taken {
        let mut both = lock(&self.0);
        let Some(line) = both.line(way) else { return Taken::Goes };
        let wait = line.bucket.take(bytes, now);
        if wait.is_zero() {
            return Taken::Goes;
        }
        Taken::Waits(line.waiting.join(line.bucket.rate()), wait)
    }

    /// How much earlier a piece that waits may go, because others before it have left since it last asked.
    pub fn earlier(&self, way: Way, ticket: Ticket, now: Duration) -> Duration {
        let mut both = lock(&self.0);
        let Some(line) = both.line(way) else { return Duration::ZERO };
        line.waiting.earlier(ticket, now)
    }

    /// A piece that waited goes.
    pub fn goes(&self, way: Way, ticket: Ticket) {
        if let Some(line) = lock(&self.0).line(way) {
            line.waiting.goes(ticket);
        }
    }

    /// Gives back the bytes of a piece that waited and does not go. A limit that was set since has not counted them.
    pub fn give_back(&self, way: Way, ticket: Ticket, bytes: usize, now: Duration) {
        if let Some(line) = lock(&self.0).line(way)
            && line.waiting.has(ticket)
        {
            line.bucket.give_back(bytes);
            line.waiting.leaves(ticket, bytes, now);
        }
    }

    /// Follows a changed configuration.
    fn set(&self, of: Bandwidth, now: Duration) {
        let mut both = lock(&self.0);
        if both.of == of {
            return;
        }
        both.of = of;
        let mut last = both.last;
        for (way, limit) in [(Way::Down, of.down), (Way::Up, of.up)] {
            let line = both.line(way);
            match (line.as_mut(), limit) {
                (Some(line), Some(limit)) => line.bucket.set(limit, now),
                (_, limit) => {
                    last = line.as_ref().map_or(last, |gone| last.max(gone.waiting.last()));
                    *line = limit.map(|limit| Line::new(limit, now, last));
                }
            }
        }
        both.last = last;
    }

    fn is_full(&self, now: Duration) -> bool {
        let both = lock(&self.0);
        [&both.down, &both.up].into_iter().flatten().all(|line| line.bucket.is_full(now))
    }
}

impl Both {
    fn line(&mut self, way: Way) -> &mut Option<Line> {
        match way {
            Way::Down => &mut self.down,
            Way::Up => &mut self.up,
        }
    }
}

#[derive(Default)]
struct Part {
    buckets: HashMap<StickyKey, Arc<Buckets>>,
    /// When [`Part::sweep`] last looked at all of them: time since the start of the process.
    swept: Duration,
}

/// The buckets of one listener that sessions share. They stay over a reload.
#[derive(Default)]
pub struct SharedBuckets {
    listener: Mutex<Option<Arc<Buckets>>>,
    sources: [Mutex<Part>; PARTS],
}

impl SharedBuckets {
    /// Buckets for a session that begins at `now`, the time since the start of the process. `source` is `None` for a
    /// client without an address.
    pub fn of(&self, bandwidth: Bandwidth, source: Option<StickyKey>, now: Duration) -> Arc<Buckets> {
        let new = || Arc::new(Buckets::new(bandwidth, now));
        let shared = match (bandwidth.per, source) {
            (Per::Session, _) | (Per::Source, None) => return new(),
            (Per::Listener, _) => lock(&self.listener).get_or_insert_with(new).clone(),
            (Per::Source, Some(source)) => {
                let mut part = lock(&self.sources[source.spread() as usize % PARTS]);
                match part.buckets.get(&source) {
                    Some(known) => known.clone(),
                    None => {
                        part.sweep(now);
                        if part.buckets.len() >= MOST {
                            return new();
                        }
                        part.buckets.entry(source).or_insert_with(new).clone()
                    }
                }
            }
        };
        shared.set(bandwidth, now);
        shared
    }
}

impl Part {
    /// Forgets sources without a session whose buckets are full again: a new bucket is the same.
    fn sweep(&mut self, now: Duration) {
        // Not at every new source: there may be very many that owe something.
        if self.buckets.len() >= SWEEP && now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.buckets.retain(|_, buckets| Arc::strong_count(buckets) > 1 || !buckets.is_full(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::num::NonZeroU64;

    use logic::bandwidth::Limit;

    use super::*;

    fn bandwidth(per: Per, rate: u64) -> Bandwidth {
        let rate = NonZeroU64::new(rate).unwrap();
        Bandwidth { down: Some(Limit { rate, burst: rate }), up: None, per }
    }

    fn source(number: u32) -> Option<StickyKey> {
        Some(StickyKey::from(IpAddr::from(number.to_be_bytes())))
    }

    const NOW: Duration = Duration::from_secs(1);

    fn take(buckets: &Buckets, way: Way, bytes: usize) -> Duration {
        match buckets.take(way, bytes, NOW) {
            Taken::Goes => Duration::ZERO,
            Taken::Waits(_, wait) => wait,
        }
    }

    fn wait(buckets: &Buckets) -> Duration {
        take(buckets, Way::Down, 1000)
    }

    #[test]
    fn sessions_share_what_the_setting_says() {
        for (per, waits) in [(Per::Session, [0, 0, 0]), (Per::Source, [0, 1, 0]), (Per::Listener, [0, 1, 2])]
        {
            let shared = SharedBuckets::default();
            let of = |number| shared.of(bandwidth(per, 1000), source(number), NOW);
            let waited = [1, 1, 2].map(|number| wait(&of(number)).as_secs());
            assert_eq!(waited, waits, "{per}");
            assert_eq!(take(&of(1), Way::Up, usize::MAX), Duration::ZERO, "up has no limit");
        }
    }

    #[test]
    fn a_client_without_an_address_has_a_limit_of_its_own() {
        let shared = SharedBuckets::default();
        let of = || shared.of(bandwidth(Per::Source, 1000), None, NOW);
        assert_eq!((wait(&of()), wait(&of())), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_new_session_brings_the_new_limit_to_all_that_share_it() {
        let shared = SharedBuckets::default();
        let first = shared.of(bandwidth(Per::Listener, 1000), source(1), NOW);
        assert_eq!(wait(&first), Duration::ZERO);
        let more = Bandwidth { up: bandwidth(Per::Listener, 10).down, ..bandwidth(Per::Listener, 10_000) };
        let second = shared.of(more, source(2), NOW);
        assert_eq!(wait(&first), Duration::from_millis(100));
        assert_eq!(take(&second, Way::Up, 20), Duration::from_secs(1));
        drop(shared.of(bandwidth(Per::Listener, 10_000), source(1), NOW));
        assert_eq!(take(&second, Way::Up, 20), Duration::ZERO);
    }

    #[test]
    fn a_piece_of_a_limit_that_was_removed_gives_nothing_back_to_the_next_one() {
        let shared = SharedBuckets::default();
        let buckets = shared.of(bandwidth(Per::Listener, 1000), source(1), NOW);
        let Taken::Waits(old, _) = buckets.take(Way::Down, 100_000, NOW) else { panic!("it goes") };
        let none = Bandwidth { down: None, ..bandwidth(Per::Listener, 1000) };
        drop(shared.of(none, source(1), NOW));
        drop(shared.of(bandwidth(Per::Listener, 10), source(1), NOW));
        let Taken::Waits(new, wait) = buckets.take(Way::Down, 20, NOW) else { panic!("it goes") };
        assert_eq!(wait, Duration::from_secs(1));
        buckets.give_back(Way::Down, old, 100_000, NOW);
        buckets.goes(Way::Down, old);
        assert_eq!(take(&buckets, Way::Down, 10), Duration::from_secs(2), "nothing was given back");
        buckets.give_back(Way::Down, new, 20, NOW);
        assert_eq!(
            take(&buckets, Way::Down, 10),
            Duration::from_secs(1),
            "a known piece gives its bytes back"
        );
    }

    #[test]
    fn a_source_is_remembered_until_its_bucket_is_full_and_the_table_has_a_bound() {
        let shared = SharedBuckets::default();
        let of = |number, now| shared.of(bandwidth(Per::Source, 1000), source(number), now);
        let _ = of(0, NOW).take(Way::Down, 100_000, NOW);
        let known = || shared.sources.iter().map(|part| lock(part).buckets.len()).sum::<usize>();
        for number in 1..300_000 {
            drop(of(number, NOW));
        }
        assert!(known() <= PARTS * MOST, "{}", known());
        assert!(take(&of(0, NOW), Way::Down, 0) > Duration::ZERO, "it still owes bytes");
        let held: Vec<_> = (0..200_000).map(|number| of(number, NOW)).collect();
        assert_eq!(known(), PARTS * MOST);
        drop(held);
        let later = NOW + Duration::from_secs(1000);
        (1_000_000..1_000_500).for_each(|number| drop(of(number, later)));
        assert!(known() < PARTS * MOST, "those that owe nothing are forgotten");
    }
}
