//! Account of file descriptors: decides how many are for traffic, and whether a holder may take more.
//! `state/account.rs` keeps the counters and calls this module, which has no state, so that every situation can be
//! tested.
//!
//! A holder (a client connection or a client address) may use a percentage of the slots that other holders leave: the
//! fewer slots are free, the fewer each holder may have. So some slots stay free for the next client, and the operator
//! has no number to tune.

mod allowance;

pub use allowance::Allowance;

/// Minimum number of traffic slots without which the process does not start: four clients with a backend each.
pub const LEAST_TRAFFIC: usize = 8;

/// Slots that each source may always use, so that a small limit does not refuse all clients behind one address.
pub const LEAST_OF_SOURCE: usize = 16;

/// Minimum reserve for admin, control and checks when descriptors are few.
const LEAST_WATCH: usize = 12;

/// Slots reserved for clients, each counted with one backend connection, but at most three quarters of all slots. With 1024 descriptors,
/// 300 clients from 300 addresses that each take their maximum still leave slots for other clients.
const CLIENTS_FIRST: usize = 640;

/// Share of pipes for bulk flows, in percent of the slots that other holders leave; a flow without a pipe is copied.
const PIPES: u8 = 25;

/// Slots that a worker takes for UDP flows between two looks at the account, where there is room for many.
const FLOWS_AT_ONCE: usize = 64;

/// Percentage from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    /// `None` if `percent` is out of range.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 { Some(Self(percent)) } else { None }
    }

    pub fn get(self) -> u8 {
        self.0
    }

    fn of(self, count: usize) -> usize {
        // Divides first if the product would overflow.
        match count.checked_mul(usize::from(self.0)) {
            Some(product) => product / 100,
            None => count / 100 * usize::from(self.0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Share of one client connection, for slots beyond its own descriptor and its first backend connection.
    pub connection: Percent,
    /// Share of all client connections from one address, with all their slots.
    pub source: Percent,
}

impl Shares {
    /// Usage of a source; `None` if sources are not limited (100 percent).
    fn limited(self, source: Option<SourceUsage>) -> Option<SourceUsage> {
        source.filter(|_| self.source.get() < 100)
    }
}

/// Slots of all client connections from one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceUsage {
    pub held: usize,
    /// Part of `held` for additional backend connections.
    pub additional: usize,
}

/// Slots of one client connection for backends, except the first backend's slot, which is taken together with its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionUsage {
    /// Slots of additional backend connections.
    pub additional: usize,
    /// Slots of HTTP/2 backend connections that carry its requests and are charged to no other client.
    pub lines: usize,
}

impl ConnectionUsage {
    /// Slots that count in the share. The first connection to an HTTP/2 backend does not count: it replaces the one
    /// backend connection that each client may have.
    fn counted(self, slots: usize) -> usize {
        self.additional.saturating_add(self.lines.saturating_sub(slots))
    }
}

/// Maximum number of requests of one client connection that may wait for its share, when `others` wait already and
/// `most` may wait in all: half of the remaining places, so that one connection cannot fill the queue.
pub fn may_wait(most: usize, others: usize) -> usize {
    match most.saturating_sub(others) {
        0 => 0,
        left => left.div_ceil(2),
    }
}

/// Descriptors for purposes other than traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessNeeds {
    /// Always open: listening sockets, runtimes, logs.
    pub fixed: usize,
    /// Maximum for admin and control clients, checks, look-ups, files, and sockets that a reload opens.
    pub watch: usize,
}

/// Division of the process's descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// Descriptors that traffic can never use.
    pub reserve: usize,
    /// Part of `reserve` for admin, control, checks, look-ups and files.
    pub watch: Part,
    pub traffic: usize,
}

/// Wanted and available number of descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    wanted: usize,
    given: usize,
}

impl Part {
    /// Scales `count` by the available part of the wanted number; at least 1.
    pub fn of(self, count: usize) -> usize {
        if self.given >= self.wanted {
            return count;
        }
        (count * self.given / self.wanted).max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may open {limit} descriptors, and this configuration needs at least {needed}: raise the limit \
     (LimitNOFILE= of systemd, ulimit -n of a shell), or listen on fewer addresses with fewer workers"
)]
pub struct TooFew {
    pub limit: usize,
    /// Smallest limit that is sufficient.
    pub needed: usize,
}

impl Division {
    /// Divides `limit`. If it is small, the part for admin, control and checks is at most half of the non-fixed part.
    pub fn new(limit: usize, own: ProcessNeeds) -> Result<Self, TooFew> {
        let needed = own.fixed + LEAST_WATCH + LEAST_TRAFFIC;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let free = limit - own.fixed;
        let watch = own.watch.min(free / 2).max(LEAST_WATCH);
        let reserve = own.fixed + watch;
        Ok(Self { reserve, watch: Part { wanted: own.watch, given: watch }, traffic: limit - reserve })
    }

    /// Maximum number of open client connections if each takes `slots`.
    pub fn clients(self, slots: usize) -> usize {
        self.traffic / slots.max(1)
    }
}

/// Current state of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub limit: usize,
    /// Used slots. Idle backend connections do not count, because they are closed as soon as a slot is needed.
    pub taken: usize,
    /// Part of `taken` that is not for a client connection and its first backend connection.
    pub beside: usize,
}

text::meanings! {
    /// Why a holder gets no slot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Refusal {
        /// The process had no descriptor left for the client or its request.
        NoDescriptors = "no-descriptors",
        /// The client connection holds its share of the descriptors (`process.shares.connection`).
        Connection = "connection-share",
        /// The address of the client holds its share of the descriptors (`process.shares.source`).
        Source = "source-share",
    }
}

impl Usage {
    fn free(self) -> usize {
        self.limit.saturating_sub(self.taken)
    }

    /// Tells whether a holder of `held` slots may take `more` within its share.
    fn within(self, share: Percent, held: usize, more: usize) -> bool {
        held.saturating_add(more) <= share.of(self.free().saturating_add(held))
    }

    /// Decides whether to accept a client that takes `slots`. `source` is the usage of its address; `None` if the
    /// address does not count. The last quarter of all slots is for addresses that hold few: with shares alone, a dozen
    /// addresses would leave almost nothing to the next one.
    pub fn client(self, shares: Shares, source: Option<SourceUsage>, slots: usize) -> Result<(), Refusal> {
        let few = |held: usize| held + slots <= LEAST_OF_SOURCE;
        if let Some(SourceUsage { held, .. }) = shares.limited(source)
            && !few(held)
            && (!self.within(shares.source, held, slots)
                || self.free() < slots.saturating_add(self.limit / 4))
        {
            return Err(Refusal::Source);
        }
        if self.free() < slots { Err(Refusal::NoDescriptors) } else { Ok(()) }
    }

    /// Decides whether a client connection that holds `held` may take `slots` for an additional backend connection. The
    /// last quarter of all slots is reserved for new clients.
    pub fn additional(
        self,
        shares: Shares,
        held: ConnectionUsage,
        source: Option<SourceUsage>,
        slots: usize,
    ) -> Result<(), Refusal> {
        if !self.within(shares.connection, held.counted(slots), slots) {
            return Err(Refusal::Connection);
        }
        self.of_source(shares, source, slots)
    }

    /// Decides whether a client connection that holds `held` may take `slots` for a connection to an HTTP/2 backend
    /// that is opened for its request or charged to no client. The connection is charged to one client while it carries
    /// that client's requests, and then to another client with requests on it. Without requests it is charged to no
    /// client and can be closed for others, like an idle backend connection.
    pub fn line(
        self,
        shares: Shares,
        held: ConnectionUsage,
        source: Option<SourceUsage>,
        slots: usize,
    ) -> Result<(), Refusal> {
        match held.lines {
            0 => self.of_source(shares, source, slots),
            _ => self.additional(shares, held, source, slots),
        }
    }

    fn of_source(self, shares: Shares, source: Option<SourceUsage>, slots: usize) -> Result<(), Refusal> {
        // The last quarter of a source's share is for its new connections, so that other clients behind the address can
        // connect.
        let crowds = |source: SourceUsage| {
            let left = self.most_beside().saturating_sub(self.beside);
            let most = shares.source.of(left.saturating_add(source.additional));
            !self.within(shares.source, source.held, slots.saturating_add(source.held / 3))
                || source.additional.saturating_add(slots) > most
        };
        if shares.limited(source).is_some_and(crowds) {
            return Err(Refusal::Source);
        }
        self.beside_clients(slots)
    }

    /// Decides whether bulk flows that hold `held` slots in all may take a pipe of `slots`.
    pub fn pipe(self, held: usize, slots: usize) -> Result<(), Refusal> {
        if !self.within(Percent(PIPES), held, slots) {
            return Err(Refusal::Connection);
        }
        self.beside_clients(slots)
    }

    /// Number of slots that UDP flows may take now. The last quarter of all slots is reserved for clients, and so are the
    /// first ones, as with everything that is beside a client and its backend.
    pub fn room_for_flows(self) -> usize {
        let of_all = self.free().saturating_sub(self.limit.div_ceil(4));
        of_all.min(self.most_beside().saturating_sub(self.beside))
    }

    /// Number of slots that one of `workers` workers may take for UDP flows before it looks at the account again, while
    /// the others do the same: one, unless there is room for many. A look reads memory that every worker writes.
    pub fn flows_at_once(self, workers: usize) -> usize {
        let room = self.room_for_flows();
        let is_ample = room >= workers.saturating_mul(2 * FLOWS_AT_ONCE);
        if is_ample { FLOWS_AT_ONCE } else { room.min(1) }
    }

    fn beside_clients(self, slots: usize) -> Result<(), Refusal> {
        let kept = self.limit.div_ceil(4);
        let fits = self.free() >= slots.saturating_add(kept)
            && self.beside.saturating_add(slots) <= self.most_beside();
        if fits { Ok(()) } else { Err(Refusal::NoDescriptors) }
    }

    /// Maximum number of slots for anything but clients with one backend each.
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
        SourceUsage { held, additional: 0 }
    }

    fn beyond(additional: usize) -> ConnectionUsage {
        ConnectionUsage { additional, lines: 0 }
    }

    const SHARES: Shares = Shares { connection: Percent(10), source: Percent(50) };

    #[test]
    fn traffic_gets_what_the_process_does_not_need_and_few_descriptors_are_shared_with_admin_and_checks() {
        let own = ProcessNeeds { fixed: 40, watch: 160 };
        let sizes = |limit| Division::new(limit, own).map(|division| (division.reserve, division.traffic));
        assert_eq!(sizes(1000), Ok((200, 800)));
        assert_eq!(sizes(140), Ok((90, 50)));
        assert_eq!(sizes(60), Ok((52, 8)));
        assert_eq!(sizes(59), Err(TooFew { limit: 59, needed: 60 }));
        assert_eq!(Division::new(140, own).map(|division| division.clients(2)), Ok(25));
    }

    #[test]
    fn slots_of_admin_and_control_become_fewer_with_what_is_kept_back_for_them() {
        let own = ProcessNeeds { fixed: 40, watch: 160 };
        let slots = |limit| Division::new(limit, own).map(|division| division.watch.of(64));
        assert_eq!(slots(1000), Ok(64));
        assert_eq!(slots(140), Ok(20));
        assert_eq!(slots(60), Ok(4));
        let few = ProcessNeeds { fixed: 40, watch: 4 };
        assert_eq!(Division::new(60, few).map(|division| division.watch.of(64)), Ok(64));
        assert_eq!(Part { wanted: 1000, given: 12 }.of(64), 1);
    }

    #[test]
    fn flows_leave_a_quarter_and_what_the_first_clients_need() {
        assert_eq!(plain(10_000, 0).room_for_flows(), 7_500);
        assert_eq!(plain(10_000, 7_000).room_for_flows(), 500);
        assert_eq!(plain(10_000, 7_600).room_for_flows(), 0);
        assert_eq!(Usage { limit: 1_000, taken: 300, beside: 300 }.room_for_flows(), 60);
        assert_eq!(Usage { limit: 100, taken: 30, beside: 25 }.room_for_flows(), 0);
    }

    #[test]
    fn flows_look_at_the_account_each_time_when_it_is_short() {
        assert_eq!(plain(10_000, 0).flows_at_once(4), FLOWS_AT_ONCE);
        assert_eq!(
            plain(10_000, 7_490).flows_at_once(1),
            1,
            "ten are left, and clients may take them meanwhile"
        );
        assert_eq!(plain(10_000, 7_499).flows_at_once(64), 1);
        assert_eq!(plain(10_000, 7_500).flows_at_once(1), 0);
        let ample = 4 * 2 * FLOWS_AT_ONCE;
        assert_eq!(plain(10_000, 7_500 - ample).flows_at_once(4), FLOWS_AT_ONCE);
        assert_eq!(plain(10_000, 7_501 - ample).flows_at_once(4), 1);
    }

    #[test]
    fn the_share_of_a_holder_shrinks_with_what_is_left() {
        let empty = plain(1000, 0);
        assert_eq!(empty.additional(SHARES, beyond(99), Some(holds(0)), 1), Ok(()));
        let alone = plain(1000, 100);
        assert_eq!(alone.additional(SHARES, beyond(100), Some(holds(100)), 1), Err(Refusal::Connection));
        let crowded = plain(1000, 600);
        assert_eq!(crowded.additional(SHARES, beyond(40), Some(holds(40)), 1), Ok(()));
        assert_eq!(crowded.additional(SHARES, beyond(0), Some(holds(230)), 1), Ok(()));
        assert_eq!(crowded.additional(SHARES, beyond(0), Some(holds(250)), 1), Err(Refusal::Source));
        assert_eq!(crowded.additional(SHARES, beyond(44), Some(holds(44)), 1), Err(Refusal::Connection));
        assert_eq!(crowded.additional(SHARES, beyond(0), Some(holds(400)), 1), Err(Refusal::Source));
        assert_eq!(crowded.additional(SHARES, beyond(0), None, 1), Ok(()));
    }

    #[test]
    fn connections_to_http2_backends_count_in_the_shares_but_for_the_first_of_a_client() {
        let line = |usage: Usage, lines| {
            usage.line(SHARES, ConnectionUsage { additional: 0, lines }, Some(holds(lines)), 1)
        };
        assert_eq!(line(plain(1000, 0), 100), Ok(()));
        assert_eq!(line(plain(1000, 100), 101), Err(Refusal::Connection));
        // With few free slots, the share is 0: only the first HTTP/2 connection is allowed.
        let few = Usage { limit: 20, taken: 11, beside: 0 };
        assert_eq!((line(few, 0), line(few, 1)), (Ok(()), Err(Refusal::Connection)));
        let (alone, both) = (plain(1000, 100), ConnectionUsage { additional: 60, lines: 41 });
        assert_eq!(alone.additional(SHARES, both, None, 1), Err(Refusal::Connection));
        assert_eq!(alone.additional(SHARES, ConnectionUsage { lines: 39, ..both }, None, 1), Ok(()));
        // Of the slots besides one backend per client, one address leaves half to another address.
        let usage = |beside| Usage { limit: 1000, taken: 100 + beside, beside };
        let from = |additional| Some(SourceUsage { held: 50 + additional, additional });
        assert_eq!(usage(179).line(SHARES, ConnectionUsage::default(), from(179), 1), Ok(()));
        assert_eq!(usage(180).line(SHARES, ConnectionUsage::default(), from(180), 1), Err(Refusal::Source));
        assert_eq!(usage(180).line(SHARES, ConnectionUsage::default(), from(0), 1), Ok(()));
        assert_eq!(usage(360).line(SHARES, ConnectionUsage::default(), None, 1), Err(Refusal::NoDescriptors));
    }

    #[test]
    fn three_hundred_clients_find_places_where_descriptors_are_few() {
        let additional =
            |limit, beside| Usage { limit, taken: beside, beside }.additional(SHARES, beyond(0), None, 1);
        assert_eq!(additional(1000, 359), Ok(()));
        assert_eq!(additional(1000, 360), Err(Refusal::NoDescriptors));
        assert_eq!(additional(400, 99), Ok(()));
        assert_eq!(additional(400, 100), Err(Refusal::NoDescriptors));
        assert_eq!(additional(10_000, 7499), Ok(()));
        assert_eq!(Usage { limit: 1000, taken: 359, beside: 359 }.pipe(0, 2), Err(Refusal::NoDescriptors));
    }

    #[test]
    fn the_last_quarter_is_for_clients() {
        let usage = plain(1000, 750);
        assert_eq!(usage.additional(SHARES, beyond(0), None, 1), Err(Refusal::NoDescriptors));
        assert_eq!(usage.pipe(0, 2), Err(Refusal::NoDescriptors));
        assert_eq!(usage.client(SHARES, Some(holds(0)), 2), Ok(()));
        assert_eq!(plain(1000, 999).client(SHARES, None, 2), Err(Refusal::NoDescriptors));
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
        assert_eq!(plain(40, 40).client(all, Some(holds(40)), 2), Err(Refusal::NoDescriptors));
        assert_eq!(plain(40, 36).client(all, Some(holds(36)), 2), Ok(()));
        assert_eq!(plain(1000, 600).additional(all, beyond(0), Some(holds(600)), 1), Ok(()));
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
        assert_eq!(usage.additional(SHARES, beyond(1000), Some(holds(5000)), 1), Ok(()));
        assert_eq!(plain(1, usize::MAX).additional(SHARES, beyond(0), None, 1), Err(Refusal::Connection));
    }
}
