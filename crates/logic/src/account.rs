//! The account of descriptors: how many of them are for traffic, and whether a holder may take more.
//! `serve/account.rs` keeps the numbers and asks here; nothing is counted here, so that every state can be tried.
//!
//! A holder may have a share of what the others leave: the less there is, the less each may have, and something is left
//! for whoever comes next, with no number that somebody would have to tune.

/// Places for traffic below which it makes no sense to serve: four clients, each with a backend.
pub const LEAST_TRAFFIC: usize = 8;

/// What a source may have in any case, so that a small limit does not shut out everybody behind one address.
pub const LEAST_OF_SOURCE: usize = 16;

/// What is kept back for admin, control and checks when descriptors are few.
const LEAST_WATCH: usize = 8;

/// What bulk flows may have of what the others leave, in percent: they go on without.
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

/// Descriptors that the process needs for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Whatever happens: sockets it listens on, runtimes, logs.
    pub fixed: usize,
    /// At most, for admin and control clients, checks, look-ups, files, sockets that a reload opens.
    pub watch: usize,
}

/// How the descriptors of a process are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// What traffic never gets.
    pub reserve: usize,
    /// What is for traffic.
    pub traffic: usize,
}

/// So few descriptors that nothing could be served.
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
    /// Divides `limit`. Where it is small, what watches gets at most half of what is not fixed.
    pub fn new(limit: usize, own: Own) -> Result<Self, TooFew> {
        let needed = own.fixed + LEAST_WATCH + LEAST_TRAFFIC;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let free = limit - own.fixed;
        let watch = own.watch.min(free / 2).max(LEAST_WATCH);
        let reserve = own.fixed + watch;
        Ok(Self { reserve, traffic: limit - reserve })
    }

    /// Client connections that may be open at once if each takes so many places.
    pub fn clients(self, places: usize) -> usize {
        self.traffic / places.max(1)
    }
}

/// The account as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    /// Places for traffic.
    pub limit: usize,
    /// Taken of these. What is given up as soon as it is wanted (idle backend connections) does not count.
    pub taken: usize,
}

/// Why a holder gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// There is not enough for anybody.
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

impl Books {
    fn free(self) -> usize {
        self.limit.saturating_sub(self.taken)
    }

    /// Whether who holds `held` may take `more`, by a share of what the others leave.
    fn within(self, share: Percent, held: usize, more: usize) -> bool {
        held.saturating_add(more) <= share.of(self.free().saturating_add(held))
    }

    /// Whether a client may come in that takes `places`. `source` is what its address holds, if its address counts.
    pub fn client(self, shares: Shares, source: Option<usize>, places: usize) -> Result<(), Refusal> {
        let few = |held: usize| held + places <= LEAST_OF_SOURCE;
        if let Some(held) = source
            && !few(held)
            && !self.within(shares.source, held, places)
        {
            return Err(Refusal::Source);
        }
        if self.free() < places { Err(Refusal::Full) } else { Ok(()) }
    }

    /// Whether a client connection that holds `held` for further backends may take `places` for one more. The last quarter
    /// of all is for those who come.
    pub fn further(
        self,
        shares: Shares,
        held: usize,
        source: Option<usize>,
        places: usize,
    ) -> Result<(), Refusal> {
        if !self.within(shares.connection, held, places) {
            return Err(Refusal::Connection);
        }
        // The last quarter of a source's share is for its new connections: neighbours behind one address come in.
        if source.is_some_and(|held| !self.within(shares.source, held, places.saturating_add(held / 3))) {
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

    /// Whether `places` may go to what is of no single client.
    pub fn beside_clients(self, places: usize) -> Result<(), Refusal> {
        let kept = self.limit.div_ceil(4);
        if self.free() < places.saturating_add(kept) { Err(Refusal::Full) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { connection: Percent(10), source: Percent(50) };

    #[test]
    fn traffic_gets_what_the_process_does_not_need_and_few_descriptors_are_shared_with_what_watches() {
        let own = Own { fixed: 40, watch: 160 };
        assert_eq!(Division::new(1000, own), Ok(Division { reserve: 200, traffic: 800 }));
        assert_eq!(Division::new(140, own), Ok(Division { reserve: 90, traffic: 50 }));
        assert_eq!(Division::new(56, own), Ok(Division { reserve: 48, traffic: 8 }));
        assert_eq!(Division::new(55, own), Err(TooFew { limit: 55, needed: 56 }));
        assert_eq!(Division::new(140, own).map(|division| division.clients(2)), Ok(25));
    }

    #[test]
    fn the_share_of_a_holder_shrinks_with_what_is_left() {
        let empty = Books { limit: 1000, taken: 0 };
        assert_eq!(empty.further(SHARES, 99, Some(0), 1), Ok(()));
        let alone = Books { limit: 1000, taken: 100 };
        assert_eq!(alone.further(SHARES, 100, Some(100), 1), Err(Refusal::Connection));
        let crowded = Books { limit: 1000, taken: 600 };
        assert_eq!(crowded.further(SHARES, 40, Some(40), 1), Ok(()));
        assert_eq!(crowded.further(SHARES, 0, Some(240), 1), Ok(()));
        assert_eq!(crowded.further(SHARES, 0, Some(250), 1), Err(Refusal::Source));
        assert_eq!(crowded.further(SHARES, 44, Some(44), 1), Err(Refusal::Connection));
        assert_eq!(crowded.further(SHARES, 0, Some(400), 1), Err(Refusal::Source));
        assert_eq!(crowded.further(SHARES, 0, None, 1), Ok(()));
    }

    #[test]
    fn the_last_quarter_is_for_clients() {
        let books = Books { limit: 1000, taken: 750 };
        assert_eq!(books.further(SHARES, 0, None, 1), Err(Refusal::Full));
        assert_eq!(books.pipe(0, 2), Err(Refusal::Full));
        assert_eq!(books.client(SHARES, Some(0), 2), Ok(()));
        assert_eq!(Books { limit: 1000, taken: 999 }.client(SHARES, None, 2), Err(Refusal::Full));
    }

    #[test]
    fn a_source_has_a_few_places_in_any_case() {
        let books = Books { limit: 20, taken: 14 };
        assert_eq!(books.client(SHARES, Some(14), 2), Ok(()));
        assert_eq!(Books { limit: 40, taken: 32 }.client(SHARES, Some(30), 2), Err(Refusal::Source));
    }

    #[test]
    fn no_number_is_too_large() {
        let books = Books { limit: usize::MAX, taken: 0 };
        assert_eq!(books.client(SHARES, Some(1000), 2), Ok(()));
        assert_eq!(books.further(SHARES, 1000, Some(5000), 1), Ok(()));
        assert_eq!(
            Books { limit: 1, taken: usize::MAX }.further(SHARES, 0, None, 1),
            Err(Refusal::Connection)
        );
    }
}
