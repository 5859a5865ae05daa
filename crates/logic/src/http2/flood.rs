//! Limits the HTTP/2 frames of a peer that cost CPU time but transfer no data. Each kind of frame has a budget per
//! connection, which refills with time and with useful work. The frame layer processes the frames; this module only
//! counts frame headers (RFC 9113 section 4.1) in the bytes of both directions.

use std::time::{Duration, Instant};

text::words! {
    /// Kind of frame with its own budget. An exhausted budget ends the connection with ENHANCE_YOUR_CALM. The words are
    /// the keys of `http2.flood` of a listener or pool.
    pub enum Flood: "kind of flood" {
        /// Streams that the client opened and reset, or misused so that Penstock reset them; streams that a backend
        /// reset.
        Resets = "resets",
        /// Streams opened beyond the limit.
        Refused = "refused",
        Pings = "pings",
        Settings = "settings",
        Windows = "windows",
        /// DATA and HEADERS frames without content, and all CONTINUATION frames.
        Empty = "empty",
        /// HEADERS frames of a backend: heads, interim responses and trailers. Those of clients are requests, which have
        /// limits of their own.
        Heads = "heads",
        /// PRIORITY and frames of unknown types.
        Other = "other",
    }
}

/// Number of frames of one kind that a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub burst: u32,
    /// Frames per second without a time limit.
    pub per_second: u32,
}

impl Flood {
    /// All words for logs with what they mean, for the documents.
    pub fn meanings() -> Vec<(&'static str, String)> {
        let meaning = |flood: &Self| format!("more frames than `http2.flood.{flood}` allows");
        Self::ALL.iter().map(|flood| (flood.reason(), meaning(flood))).collect()
    }

    /// Word for logs and metric labels.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Resets => "h2-flood-resets",
            Self::Refused => "h2-flood-refused",
            Self::Pings => "h2-flood-pings",
            Self::Settings => "h2-flood-settings",
            Self::Windows => "h2-flood-windows",
            Self::Empty => "h2-flood-empty",
            Self::Heads => "h2-flood-heads",
            Self::Other => "h2-flood-other",
        }
    }

    /// Default of the configuration.
    pub const fn default_allowance(self) -> Allowance {
        let (burst, per_second) = match self {
            Self::Resets => (200, 20),
            Self::Refused => (1000, 20),
            Self::Pings => (100, 10),
            Self::Settings => (20, 1),
            Self::Windows => (1000, 100),
            Self::Empty => (100, 10),
            Self::Heads => (2000, 100),
            Self::Other => (200, 20),
        };
        Allowance { burst, per_second }
    }
}

/// Allowances indexed by [`Flood`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowances([Allowance; COUNT]);

impl Allowances {
    pub const DEFAULT: Self = {
        let mut all = [Allowance { burst: 0, per_second: 0 }; COUNT];
        let mut at = 0;
        while at < COUNT {
            all[Flood::ALL[at] as usize] = Flood::ALL[at].default_allowance();
            at += 1;
        }
        Self(all)
    };

    pub fn new(of: impl Fn(Flood) -> Allowance) -> Self {
        let mut all = Self::default();
        Flood::ALL.iter().for_each(|flood| all.0[*flood as usize] = of(*flood));
        all
    }

    fn burst(&self, flood: Flood) -> u64 {
        u64::from(self.0[flood as usize].burst) * THOUSAND
    }
}

impl Default for Allowances {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const COUNT: usize = Flood::ALL.len();

/// The peer whose frames are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Backend,
}

#[derive(Clone, Debug)]
pub struct Budget {
    sender: Sender,
    received: Scanner,
    sent: Scanner,
    /// Remaining budget in thousandths of a frame, indexed by [`Flood`].
    left: [u64; COUNT],
    allowances: Allowances,
    filled: Instant,
    exhausted: Option<Flood>,
    /// Frames that the peer has sent.
    frames: u64,
}

impl Budget {
    /// Creates the budgets for a new connection: full, but that for heads of a backend, which requests fill. The side that
    /// opens the connection sends the preface before its frames.
    pub fn new(sender: Sender, now: Instant, allowances: Allowances) -> Self {
        let preface = Scanner { skip: PREFACE.len() as u64, ..Scanner::default() };
        let (received, sent) = match sender {
            Sender::Client => (preface, Scanner::default()),
            Sender::Backend => (Scanner::default(), preface),
        };
        let mut left = allowances.0.map(|allowance| u64::from(allowance.burst) * THOUSAND);
        // No request has been sent yet, so hardly a head is due. Each takes microseconds in which other clients wait.
        left[Flood::Heads as usize] /= 10;
        Self { sender, received, sent, left, allowances, filled: now, exhausted: None, frames: 0 }
    }

    /// Number of frames of all kinds that the peer has sent.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Counts frames from the peer. `Err` as soon as a budget is exhausted.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), Flood> {
        self.fill(now);
        let mut received = std::mem::take(&mut self.received);
        let mut frames = 0;
        received.feed(bytes, |frame| {
            frames += 1;
            self.charge(frame);
        });
        self.received = received;
        self.frames += frames;
        self.exhausted.map_or(Ok(()), Err)
    }

    fn charge(&mut self, frame: Frame) {
        match frame.kind {
            Kind::DATA if frame.holds_nothing() && frame.flags & END_STREAM == 0 => self.spend(Flood::Empty),
            Kind::DATA => {}
            Kind::HEADERS => {
                if frame.length == 0 {
                    self.spend(Flood::Empty);
                }
                if self.sender == Sender::Backend {
                    self.spend(Flood::Heads);
                } else {
                    // A client may send a WINDOW_UPDATE and a PRIORITY for each stream.
                    self.earn(Flood::Windows, 2);
                    self.earn(Flood::Other, 2);
                }
            }
            Kind::CONTINUATION => self.spend(Flood::Empty),
            Kind::RST_STREAM => self.spend(Flood::Resets),
            Kind::SETTINGS => self.spend(Flood::Settings),
            Kind::PING => self.spend(Flood::Pings),
            Kind::WINDOW_UPDATE => self.spend(Flood::Windows),
            _ => self.spend(Flood::Other),
        }
    }

    /// Counts frames that Penstock sent: responses and requests add to the peer's budgets, and resets that the peer
    /// caused are deducted.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut sent = std::mem::take(&mut self.sent);
        sent.feed(bytes, |frame| {
            if frame.kind == Kind::DATA && frame.length > 0 {
                // gRPC measures the delay of the connection with a PING after data, however small.
                self.earn(Flood::Pings, 1);
            }
            let substantial = match self.sender {
                Sender::Client => SUBSTANTIAL,
                // A backend gains nothing by tiny windows: it only gets its own request slowly.
                Sender::Backend => 1,
            };
            if frame.kind == Kind::DATA && frame.length >= substantial {
                // For each such frame a peer may send two WINDOW_UPDATE (stream and connection).
                self.earn(Flood::Windows, 2);
            }
            if frame.kind == Kind::HEADERS && self.sender == Sender::Backend {
                // For each request a backend may open both windows, reset the stream after its response (RFC 9113
                // section 8.1), and send a head of several frames.
                self.earn(Flood::Windows, 2);
                self.earn(Flood::Resets, 1);
                self.earn(Flood::Empty, 2);
                self.earn(Flood::Other, 2);
                self.earn(Flood::Heads, MOST_HEADS);
            }
            match (frame.kind, frame.code) {
                (Kind::DATA | Kind::HEADERS, _)
                    if frame.flags & END_STREAM != 0 && self.sender == Sender::Client =>
                {
                    self.earn(Flood::Resets, 1)
                }
                (
                    Kind::RST_STREAM,
                    PROTOCOL_ERROR | FLOW_CONTROL_ERROR | STREAM_CLOSED | FRAME_SIZE_ERROR,
                ) => {
                    self.spend(Flood::Resets);
                }
                (Kind::RST_STREAM, REFUSED_STREAM) => self.spend(Flood::Refused),
                // The peer acknowledges each of Penstock's SETTINGS and PING frames.
                (Kind::SETTINGS, _) if frame.flags & ACK == 0 => self.earn(Flood::Settings, 1),
                (Kind::PING, _) if frame.flags & ACK == 0 => self.earn(Flood::Pings, 1),
                _ => {}
            }
        });
        self.sent = sent;
    }

    fn spend(&mut self, flood: Flood) {
        let left = &mut self.left[flood as usize];
        match left.checked_sub(THOUSAND) {
            Some(less) => *left = less,
            None => self.exhausted = self.exhausted.or(Some(flood)),
        }
    }

    fn earn(&mut self, flood: Flood, frames: u64) {
        let left = &mut self.left[flood as usize];
        *left = (*left + frames * THOUSAND).min(self.allowances.burst(flood));
    }

    fn fill(&mut self, now: Instant) {
        let millis =
            u64::try_from(now.saturating_duration_since(self.filled).as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return;
        }
        self.filled += Duration::from_millis(millis);
        for (left, allowance) in self.left.iter_mut().zip(self.allowances.0) {
            let filled = left.saturating_add(u64::from(allowance.per_second).saturating_mul(millis));
            *left = filled.min(u64::from(allowance.burst) * THOUSAND);
        }
    }
}

/// Fields of a frame that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: u32,
    padding: u8,
    code: u32,
}

impl Frame {
    fn holds_nothing(&self) -> bool {
        match self.flags & PADDED != 0 {
            true => u32::from(self.padding) + 1 >= self.length,
            false => self.length == 0,
        }
    }
}

/// Finds frames in a byte stream that arrives in pieces of any size.
#[derive(Clone, Debug, Default)]
struct Scanner {
    /// Bytes until the next frame begins.
    skip: u64,
    /// Received first bytes of a frame; `have` is their number.
    front: [u8; LONGEST_FRONT],
    have: usize,
}

impl Scanner {
    fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (self.wanted() - self.have).min(bytes.len());
            self.front[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            let wanted = self.wanted();
            if self.have == wanted {
                let frame = self.frame();
                self.skip = u64::from(frame.length) - (wanted - HEADER) as u64;
                self.have = 0;
                found(frame);
            }
        }
    }

    /// First bytes of the current frame that must be read.
    fn wanted(&self) -> usize {
        if self.have < HEADER {
            return HEADER;
        }
        match (self.front[3], self.length()) {
            (Kind::RST_STREAM, 4..) => HEADER + 4,
            (Kind::DATA, 1..) if self.front[4] & PADDED != 0 => HEADER + 1,
            _ => HEADER,
        }
    }

    fn length(&self) -> u32 {
        u32::from_be_bytes([0, self.front[0], self.front[1], self.front[2]])
    }

    fn frame(&self) -> Frame {
        let [.., a, b, c, d] = self.front;
        let wanted = self.wanted();
        Frame {
            kind: self.front[3],
            flags: self.front[4],
            length: self.length(),
            padding: if wanted == HEADER + 1 { a } else { 0 },
            code: if wanted == HEADER + 4 { u32::from_be_bytes([a, b, c, d]) } else { 0 },
        }
    }
}

/// First bytes of an HTTP/2 client (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const THOUSAND: u64 = 1000;

/// Size of a frame header in bytes. `LONGEST_FRONT` adds the longest part of a payload that is read.
const HEADER: usize = 9;
const LONGEST_FRONT: usize = HEADER + 4;

/// Minimum DATA length in bytes that adds to a client's budget of windows: otherwise it could use tiny windows to cause
/// tiny frames, and earn budget with them.
const SUBSTANTIAL: u32 = 256;

/// HEADERS frames that a backend may send for each request: 32 interim responses, which are all that Penstock passes on,
/// the head, and the trailers.
const MOST_HEADS: u64 = 34;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;

/// Frame types (RFC 9113 section 6).
struct Kind;

impl Kind {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
}

/// Error codes (RFC 9113 section 7).
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test needs some moment to begin with")]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        out.extend([kind, flags, 0, 0, 0, 1]);
        out.extend(payload);
        out
    }

    fn started(now: Instant) -> Budget {
        let mut budget = Budget::new(Sender::Client, now, Allowances::default());
        assert_eq!(budget.receive(PREFACE, now), Ok(()));
        budget
    }

    /// Number of frames that pass before the budget is exhausted.
    fn passed(budget: &mut Budget, bytes: &[u8], now: Instant) -> (usize, Flood) {
        (0..10_000)
            .find_map(|count| budget.receive(bytes, now).err().map(|flood| (count, flood)))
            .expect("the flood is noticed")
    }

    #[test]
    fn each_kind_of_flood_is_noticed_when_its_budget_is_used_up() {
        let now = Instant::now();
        for (bytes, flood) in [
            (frame(Kind::RST_STREAM, 0, &[0, 0, 0, 8]), Flood::Resets),
            (frame(Kind::PING, 0, &[0; 8]), Flood::Pings),
            (frame(Kind::PING, ACK, &[0; 8]), Flood::Pings),
            (frame(Kind::SETTINGS, 0, &[]), Flood::Settings),
            (frame(Kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]), Flood::Windows),
            (frame(Kind::DATA, 0, &[]), Flood::Empty),
            (frame(Kind::DATA, PADDED, &[3, 0, 0, 0]), Flood::Empty),
            (frame(Kind::CONTINUATION, 0, b"x"), Flood::Empty),
            (frame(2, 0, &[0; 5]), Flood::Other),
            (frame(0xbb, 0, &[0; 100]), Flood::Other),
        ] {
            let expected = flood.default_allowance().burst as usize;
            assert_eq!(passed(&mut started(now), &bytes, now), (expected, flood));
        }
    }

    #[test]
    fn data_never_exhausts_a_budget() {
        let now = Instant::now();
        let mut budget = started(now);
        for bytes in [frame(0, 0, b"x"), frame(0, PADDED, &[1, b'x', 0]), frame(0, END_STREAM, b"")] {
            for _ in 0..5000 {
                assert_eq!(budget.receive(&bytes, now), Ok(()));
            }
        }
    }

    #[test]
    fn budgets_fill_again_with_time() {
        let now = Instant::now();
        let mut budget = started(now);
        let ping = frame(Kind::PING, 0, &[0; 8]);
        for second in 0..100 {
            for _ in 0..10 {
                assert_eq!(budget.receive(&ping, now + Duration::from_secs(second)), Ok(()));
            }
        }
    }

    #[test]
    fn data_that_we_send_earns_window_updates_and_crumbs_do_not() {
        let now = Instant::now();
        let update = frame(Kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]);
        let mut budget = started(now);
        for _ in 0..5000 {
            budget.send(&frame(Kind::DATA, 0, &[0; 1000]));
            assert_eq!(budget.receive(&update, now), Ok(()));
            assert_eq!(budget.receive(&update, now), Ok(()));
        }
        let mut budget = started(now);
        let ended = (0..5000).any(|_| {
            budget.send(&frame(Kind::DATA, 0, b"x"));
            budget.receive(&update, now).is_err()
        });
        assert!(ended);
    }

    #[test]
    fn data_of_any_size_earns_pings() {
        let now = Instant::now();
        let mut budget = started(now);
        for _ in 0..5000 {
            budget.send(&frame(Kind::DATA, 0, b"x"));
            assert_eq!(budget.receive(&frame(Kind::PING, 0, &[0; 8]), now), Ok(()));
        }
    }

    #[test]
    fn a_backend_may_answer_each_request_with_many_heads_and_not_one_with_thousands() {
        let now = Instant::now();
        let (head, request) = (frame(Kind::HEADERS, 0, b"x"), frame(Kind::HEADERS, END_STREAM, b"x"));
        let mut budget = Budget::new(Sender::Backend, now, Allowances::default());
        budget.send(PREFACE);
        // As many at once as a connection may carry, each with a head and trailers.
        for _ in 0..1000 {
            budget.send(&request);
        }
        assert_eq!(budget.receive(&head.repeat(2000), now), Ok(()));
        for _ in 0..1000 {
            budget.send(&request);
            assert_eq!(budget.receive(&head.repeat(34), now), Ok(()));
        }
        budget.send(&request);
        assert_eq!(budget.receive(&head.repeat(2001), now), Err(Flood::Heads));
        // A new connection owes nothing yet.
        let mut new = Budget::new(Sender::Backend, now, Allowances::default());
        new.send(PREFACE);
        new.send(&request);
        assert_eq!(new.clone().receive(&head.repeat(200 + 34), now), Ok(()));
        assert_eq!(new.receive(&head.repeat(200 + 35), now), Err(Flood::Heads));
    }

    #[test]
    fn a_backend_may_reset_each_request_once_and_floods_like_a_client() {
        let now = Instant::now();
        let reset = frame(Kind::RST_STREAM, 0, &[0, 0, 0, 0]);
        let mut budget = Budget::new(Sender::Backend, now, Allowances::default());
        budget.send(PREFACE);
        for _ in 0..5000 {
            budget.send(&frame(Kind::HEADERS, END_STREAM, b"x"));
            assert_eq!(budget.receive(&reset, now), Ok(()));
            budget.send(&frame(Kind::DATA, 0, b"x"));
            assert_eq!(budget.receive(&frame(Kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]), now), Ok(()));
        }
        for (bytes, flood) in [
            (reset, Flood::Resets),
            (frame(Kind::PING, 0, &[0; 8]), Flood::Pings),
            (frame(Kind::SETTINGS, 0, &[]), Flood::Settings),
            (frame(Kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]), Flood::Windows),
            (frame(Kind::DATA, 0, &[]), Flood::Empty),
            (frame(Kind::CONTINUATION, 0, b"x"), Flood::Empty),
            (frame(0xbb, 0, &[0; 100]), Flood::Other),
        ] {
            // The heads themselves are no flood here.
            let allowances = Allowances::new(|flood| match flood {
                Flood::Heads => Allowance { burst: 100_000, per_second: 1 },
                other => other.default_allowance(),
            });
            let mut budget = Budget::new(Sender::Backend, now, allowances);
            let bytes = [frame(Kind::HEADERS, 0, b"x"), bytes].concat();
            let expected = flood.default_allowance().burst as usize;
            assert_eq!(passed(&mut budget, &bytes, now), (expected, flood), "its own heads earn nothing");
        }
    }

    #[test]
    fn streams_that_a_client_makes_us_reset_count_as_its_resets() {
        let now = Instant::now();
        let mut budget = started(now);
        for _ in 0..201 {
            budget.send(&frame(Kind::RST_STREAM, 0, &[0, 0, 0, 1]));
        }
        assert_eq!(budget.receive(&frame(Kind::DATA, 0, b"x"), now), Err(Flood::Resets));
        // Streams that Penstock resets for its own reasons do not count.
        let mut budget = started(now);
        for _ in 0..1000 {
            budget.send(&frame(Kind::RST_STREAM, 0, &[0, 0, 0, 2]));
        }
        assert_eq!(budget.receive(&frame(Kind::DATA, 0, b"x"), now), Ok(()));
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let now = Instant::now();
        let mut bytes = PREFACE.to_vec();
        for _ in 0..101 {
            bytes.extend(frame(Kind::DATA, 0, &[7; 300]));
            bytes.extend(frame(Kind::RST_STREAM, 0, &[0, 0, 0, 8]));
            bytes.extend(frame(Kind::DATA, PADDED, &[2, 0, 0]));
        }
        for size in [1, 2, 3, 7, 9, 10, 13, 64, 1000, 100_000] {
            let mut budget = Budget::new(Sender::Client, now, Allowances::default());
            let results: Vec<_> = bytes.chunks(size).map(|piece| budget.receive(piece, now)).collect();
            assert_eq!(budget.frames(), 303, "pieces of {size}");
            assert_eq!(results.last(), Some(&Err(Flood::Empty)), "pieces of {size}");
            assert!(results[..results.len() * 9 / 10].iter().all(Result::is_ok), "pieces of {size}");
        }
    }

    #[test]
    fn the_allowance_of_the_configuration_counts() {
        let now = Instant::now();
        let allowances = Allowances::new(|flood| match flood {
            Flood::Pings => Allowance { burst: 2, per_second: 1 },
            other => other.default_allowance(),
        });
        let mut budget = Budget::new(Sender::Client, now, allowances);
        budget.receive(PREFACE, now).unwrap();
        let ping = frame(6, 0, &[0; 8]);
        budget.receive(&ping, now).unwrap();
        budget.receive(&ping, now).unwrap();
        budget.receive(&ping, now + Duration::from_secs(1)).unwrap();
        assert_eq!(budget.receive(&ping, now + Duration::from_secs(1)), Err(Flood::Pings));
    }
}
