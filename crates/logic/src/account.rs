//! The account of descriptors: how many of them are for traffic, and whether a holder may take more.
//! `serve/account.rs` keeps the numbers and asks here; this file counts nothing, so that every state can be tested.
//!
//! A holder (a client connection, or an address) may have a share, in percent, of what the other holders leave: the fewer places
//! are free, the fewer each holder may have. So some are left for the next client, without a number for the operator to tune.

mod allowance;

pub use allowance::Allowance;

/// Fewest places for traffic with which the process starts: four clients, each with a backend.
pub const LEAST_TRAFFIC: usize = 8;

/// Places that a source may have in any case, so that a small limit does not shut out all clients behind one address.
pub const LEAST_OF_SOURCE: usize = 16;

/// What is kept back for admin, control and checks when descriptors are few.
const LEAST_WATCH: usize = 12;

/// Places that are only for clients with one backend each; three quarters of all places where that is less. With 1024 descriptors,
/// 300 clients from 300 addresses that each take what they can still leave places for other clients.
const CLIENTS_FIRST: usize = 640;

/// Share of bulk flows, in percent of what others leave: a flow without a pipe is copied.
const PIPES: u8 = 25;

/// A share in percent, from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    /// `None` if it is out of range.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// As a number.
    pub fn get(self) -> u8 {
        self.0
    }

    fn of(self, count: usize) -> usize {
        // Divided first where the product would not fit.
        match count.checked_mul(usize::from(self.0)) {
            Some(product) => product / 100,
            None => count / 100 * usize::from(self.0),
        }
    }
}

/// The shares of holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of one client connection: what it takes beyond its own descriptor and that of one backend.
    pub connection: Percent,
    /// Of all client connections from one address, with what they take.
    pub source: Percent,
}

impl Shares {
    /// What a source holds, if sources are limited: those that may have everything are not.
    fn limited(self, source: Option<SourceUsage>) -> Option<SourceUsage> {
        source.filter(|_| self.source.get() < 100)
    }
}

/// What all client connections from one address hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceUsage {
    /// Places.
    pub held: usize,
    /// Of these, for further backend connections.
    pub further: usize,
}

/// What one client connection holds for backends, beside the place of the first one that was taken with its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionUsage {
    /// Places of further backend connections.
    pub further: usize,
    /// Places of connections to HTTP/2 backends that carry its requests, and that no other client holds.
    pub lines: usize,
}

impl ConnectionUsage {
    /// What counts in the share. The first connection to an HTTP/2 backend does not: it stands for the backend connection that
    /// each client may have.
    fn counted(self, places: usize) -> usize {
        self.further.saturating_add(self.lines.saturating_sub(places))
    }
}

/// How many requests of one client connection may wait for its share, where `others` wait already and `most` may in all:
/// half of what the others leave, so that one connection does not fill the queue for all.
pub fn may_wait(most: usize, others: usize) -> usize {
    match most.saturating_sub(others) {
        0 => 0,
        left => left.div_ceil(2),
    }
}

/// Descriptors that the process needs for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Always: sockets it listens on, runtimes, logs.
    pub fixed: usize,
    /// At most, for admin and control clients, checks, look-ups, files, sockets that a reload opens.
    pub watch: usize,
}

/// How the descriptors of a process are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// What traffic never gets.
    pub reserve: usize,
    /// The part of it that is for admin, control, checks, look-ups and files.
    pub watch: Part,
    /// What is for traffic.
    pub traffic: usize,
}

/// What was wanted, and what there is of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    wanted: usize,
    given: usize,
}

impl Part {
    /// As many of `count` as fit where less was given than wanted, and at least one.
    pub fn of(self, count: usize) -> usize {
        if self.given >= self.wanted {
            return count;
        }
        (count * self.given / self.wanted).max(1)
    }
}

/// There are too few descriptors to serve anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} descriptors, and this configuration needs at least {needed}: raise the limit \
     (LimitNOFILE= of systemd, ulimit -n of a shell), or listen on fewer addresses with fewer workers"
)]
pub struct TooFew {
    /// The limit.
    pub limit: usize,
    /// The least that works.
    pub needed: usize,
}

impl Division {
    /// Divides `limit`. Where it is small, the part for admin, control and checks is at most half of what is not fixed.
    pub fn new(limit: usize, own: Own) -> Result<Self, TooFew> {
        let needed = own.fixed + LEAST_WATCH + LEAST_TRAFFIC;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let free = limit - own.fixed;
        let watch = own.watch.min(free / 2).max(LEAST_WATCH);
        let reserve = own.fixed + watch;
        Ok(Self { reserve, watch: Part { wanted: own.watch, given: watch }, traffic: limit - reserve })
    }

    /// Client connections that may be open at once if each takes so many places.
    pub fn clients(self, places: usize) -> usize {
        self.traffic / places.max(1)
    }
}

/// The account as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Places for traffic.
    pub limit: usize,
    /// Taken of these. What is given up as soon as it is wanted (idle backend connections) does not count.
    pub taken: usize,
    /// Of these, for other things than a client connection and its first backend connection.
    pub beside: usize,
}

/// Why a holder gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// There are not enough free places for any client.
    Full,
    /// The client connection has its share.
    Connection,
    /// The address has its share.
    Source,
}

impl Refusal {
    /// Word for logs and metric labels.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Connection => "connection-share",
            Self::Source => "source-share",
        }
    }
}

impl Usage {
    fn free(self) -> usize {
        self.limit.saturating_sub(self.taken)
    }

    /// Whether a holder of `held` may take `more`, by a share of what the others leave.
    fn within(self, share: Percent, held: usize, more: usize) -> bool {
        held.saturating_add(more) <= share.of(self.free().saturating_add(held))
    }

    /// Whether a client may come in that takes `places`. `source` is what its address holds, if its address counts. The last
    /// quarter of all places is for addresses that hold few: a share of what the others leave alone would be halved to nothing
    /// by a dozen addresses.
    pub fn client(self, shares: Shares, source: Option<SourceUsage>, places: usize) -> Result<(), Refusal> {
        let few = |held: usize| held + places <= LEAST_OF_SOURCE;
        if let Some(SourceUsage { held, .. }) = shares.limited(source)
            && !few(held)
            && (!self.within(shares.source, held, places)
                || self.free() < places.saturating_add(self.limit / 4))
        {
            return Err(Refusal::Source);
        }
        if self.free() < places { Err(Refusal::Full) } else { Ok(()) }
    }

    /// Whether a client connection that holds `held` may take `places` for one more backend connection. The last quarter of all
    /// places is kept for new clients.
    pub fn further(
        self,
        shares: Shares,
        held: ConnectionUsage,
        source: Option<SourceUsage>,
        places: usize,
    ) -> Result<(), Refusal> {
        if !self.within(shares.connection, held.counted(places), places) {
            return Err(Refusal::Connection);
        }
        self.of_source(shares, source, places)
    }

    /// Whether a client connection that holds `held` may take `places` for one more connection to an HTTP/2 backend: one that is
    /// opened for its request, or that no client holds. Such a connection counts in the share of one client whose requests it
    /// carries, until these have ended, and then in that of another client that has requests there. Without requests it
    /// counts in no share and is free for others, as an idle backend connection is.
    pub fn line(
        self,
        shares: Shares,
        held: ConnectionUsage,
        source: Option<SourceUsage>,
        places: usize,
    ) -> Result<(), Refusal> {
        match held.lines {
            0 => self.of_source(shares, source, places),
            _ => self.further(shares, held, source, places),
        }
    }

    fn of_source(self, shares: Shares, source: Option<SourceUsage>, places: usize) -> Result<(), Refusal> {
        // The last quarter of a source's share is for its new connections: neighbours behind one address come in.
        let crowds = |source: SourceUsage| {
            let left = self.most_beside().saturating_sub(self.beside);
            let most = shares.source.of(left.saturating_add(source.further));
            !self.within(shares.source, source.held, places.saturating_add(source.held / 3))
                || source.further.saturating_add(places) > most
        };
        if shares.limited(source).is_some_and(crowds) {
            return Err(Refusal::Source);
        }
        self.beside_clients(places)
    }

    /// Whether bulk flows that hold `held` in all may take a pipe of `places`.
    pub fn pipe(self, held: usize, places: usize) -> Result<(), Refusal> {
        if !self.within(Percent(PIPES), held, places) {
            return Err(Refusal::Connection);
        }
        self.beside_clients(places)
    }

    fn beside_clients(self, places: usize) -> Result<(), Refusal> {
        let kept = self.limit.div_ceil(4);
        let fits = self.free() >= places.saturating_add(kept)
            && self.beside.saturating_add(places) <= self.most_beside();
        if fits { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Places that may be used for other things than clients with one backend each.
    fn most_beside(self) -> usize {
        self.limit.saturating_sub(CLIENTS_FIRST).max(self.limit / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(limit: usize, taken: usize) -> Usage {
        Usage { limit, taken, beside: 0 }
    }

    fn holds(held: usize) -> SourceUsage {
        SourceUsage { held, further: 0 }
    }

    fn beyond(further: usize) -> ConnectionUsage {
        ConnectionUsage { further, lines: 0 }
    }

    const SHARES: Shares = Shares { connection: Percent(10), source: Percent(50) };

    #[test]
    fn traffic_gets_what_the_process_does_not_need_and_few_descriptors_are_shared_with_admin_and_checks() {
        let own = Own { fixed: 40, watch: 160 };
        let sizes = |limit| Division::new(limit, own).map(|division| (division.reserve, division.traffic));
        assert_eq!(sizes(1000), Ok((200, 800)));
        assert_eq!(sizes(140), Ok((90, 50)));
        assert_eq!(sizes(60), Ok((52, 8)));
        assert_eq!(sizes(59), Err(TooFew { limit: 59, needed: 60 }));
        assert_eq!(Division::new(140, own).map(|division| division.clients(2)), Ok(25));
    }

    #[test]
    fn places_of_admin_and_control_become_fewer_with_what_is_kept_back_for_them() {
        let own = Own { fixed: 40, watch: 160 };
        let places = |limit| Division::new(limit, own).map(|division| division.watch.of(64));
        assert_eq!(places(1000), Ok(64));
        assert_eq!(places(140), Ok(20));
        assert_eq!(places(60), Ok(4));
        let few = Own { fixed: 40, watch: 4 };
        assert_eq!(Division::new(60, few).map(|division| division.watch.of(64)), Ok(64));
        assert_eq!(Part { wanted: 1000, given: 12 }.of(64), 1);
    }

    #[test]
    fn the_share_of_a_holder_shrinks_with_what_is_left() {
        let empty = plain(1000, 0);
        assert_eq!(empty.further(SHARES, beyond(99), Some(holds(0)), 1), Ok(()));
        let alone = plain(1000, 100);
        assert_eq!(alone.further(SHARES, beyond(100), Some(holds(100)), 1), Err(Refusal::Connection));
        let crowded = plain(1000, 600);
        assert_eq!(crowded.further(SHARES, beyond(40), Some(holds(40)), 1), Ok(()));
        assert_eq!(crowded.further(SHARES, beyond(0), Some(holds(230)), 1), Ok(()));
        assert_eq!(crowded.further(SHARES, beyond(0), Some(holds(250)), 1), Err(Refusal::Source));
        assert_eq!(crowded.further(SHARES, beyond(44), Some(holds(44)), 1), Err(Refusal::Connection));
        assert_eq!(crowded.further(SHARES, beyond(0), Some(holds(400)), 1), Err(Refusal::Source));
        assert_eq!(crowded.further(SHARES, beyond(0), None, 1), Ok(()));
    }

    #[test]
    fn connections_to_http2_backends_count_in_the_shares_but_for_the_first_of_a_client() {
        let line = |usage: Usage, lines| {
            usage.line(SHARES, ConnectionUsage { further: 0, lines }, Some(holds(lines)), 1)
        };
        assert_eq!(line(plain(1000, 0), 100), Ok(()));
        assert_eq!(line(plain(1000, 100), 101), Err(Refusal::Connection));
        // A tenth of what is free is nothing here.
        let few = Usage { limit: 20, taken: 11, beside: 0 };
        assert_eq!((line(few, 0), line(few, 1)), (Ok(()), Err(Refusal::Connection)));
        let (alone, both) = (plain(1000, 100), ConnectionUsage { further: 60, lines: 41 });
        assert_eq!(alone.further(SHARES, both, None, 1), Err(Refusal::Connection));
        assert_eq!(alone.further(SHARES, ConnectionUsage { lines: 39, ..both }, None, 1), Ok(()));
        // Of what clients may use beside one backend each, an address leaves another one half.
        let usage = |beside| Usage { limit: 1000, taken: 100 + beside, beside };
        let from = |further| Some(SourceUsage { held: 50 + further, further });
        assert_eq!(usage(179).line(SHARES, ConnectionUsage::default(), from(179), 1), Ok(()));
        assert_eq!(usage(180).line(SHARES, ConnectionUsage::default(), from(180), 1), Err(Refusal::Source));
        assert_eq!(usage(180).line(SHARES, ConnectionUsage::default(), from(0), 1), Ok(()));
        assert_eq!(usage(360).line(SHARES, ConnectionUsage::default(), None, 1), Err(Refusal::Full));
    }

    #[test]
    fn three_hundred_clients_find_places_where_descriptors_are_few() {
        let further =
            |limit, beside| Usage { limit, taken: beside, beside }.further(SHARES, beyond(0), None, 1);
        assert_eq!(further(1000, 359), Ok(()));
        assert_eq!(further(1000, 360), Err(Refusal::Full));
        assert_eq!(further(400, 99), Ok(()));
        assert_eq!(further(400, 100), Err(Refusal::Full));
        assert_eq!(further(10_000, 7499), Ok(()));
        assert_eq!(Usage { limit: 1000, taken: 359, beside: 359 }.pipe(0, 2), Err(Refusal::Full));
    }

    #[test]
    fn the_last_quarter_is_for_clients() {
        let usage = plain(1000, 750);
        assert_eq!(usage.further(SHARES, beyond(0), None, 1), Err(Refusal::Full));
        assert_eq!(usage.pipe(0, 2), Err(Refusal::Full));
        assert_eq!(usage.client(SHARES, Some(holds(0)), 2), Ok(()));
        assert_eq!(plain(1000, 999).client(SHARES, None, 2), Err(Refusal::Full));
    }

    #[test]
    fn a_source_has_a_few_places_in_any_case() {
        let usage = plain(20, 14);
        assert_eq!(usage.client(SHARES, Some(holds(14)), 2), Ok(()));
        assert_eq!(plain(40, 32).client(SHARES, Some(holds(30)), 2), Err(Refusal::Source));
    }

    #[test]
    fn a_source_that_may_have_everything_is_not_limited() {
        let all = Shares { source: Percent(100), ..SHARES };
        assert_eq!(plain(40, 40).client(all, Some(holds(40)), 2), Err(Refusal::Full));
        assert_eq!(plain(40, 36).client(all, Some(holds(36)), 2), Ok(()));
        assert_eq!(plain(1000, 600).further(all, beyond(0), Some(holds(600)), 1), Ok(()));
    }

    #[test]
    fn no_connection_fills_the_queue_for_the_others() {
        assert_eq!(may_wait(100, 0), 50);
        assert_eq!(may_wait(100, 50), 25);
        assert_eq!(may_wait(100, 99), 1);
        assert_eq!((may_wait(100, 100), may_wait(100, 200), may_wait(0, 0)), (0, 0, 0));
    }

    #[test]
    fn no_number_is_too_large() {
        let usage = plain(usize::MAX, 0);
        assert_eq!(usage.client(SHARES, Some(holds(1000)), 2), Ok(()));
        assert_eq!(usage.further(SHARES, beyond(1000), Some(holds(5000)), 1), Ok(()));
        assert_eq!(plain(1, usize::MAX).further(SHARES, beyond(0), None, 1), Err(Refusal::Connection));
    }
}
