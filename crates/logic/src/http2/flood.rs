//! How many frames a client may send that cost us work and move nothing: each kind has a budget for one connection, which
//! fills again with time and with real work. The frame layer reads and acts; here frames are only counted, by their headers
//! (RFC 9113 section 4.1), as bytes pass in either direction.

use std::time::{Duration, Instant};

/// A budget that is exhausted: the connection is ended with ENHANCE_YOUR_CALM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flood {
    /// Streams opened and reset, or misused so that we had to reset them.
    Resets,
    /// Streams opened beyond the limit.
    Refused,
    /// PING.
    Pings,
    /// SETTINGS.
    Settings,
    /// WINDOW_UPDATE.
    Windows,
    /// Frames of DATA, HEADERS or CONTINUATION that hold nothing, and CONTINUATION at all.
    Empty,
    /// PRIORITY and frames of kinds that we do not know.
    Idle,
}

impl Flood {
    const COUNT: usize = 7;

    /// Word for logs and metric labels.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Resets => "h2-flood-resets",
            Self::Refused => "h2-flood-refused",
            Self::Pings => "h2-flood-pings",
            Self::Settings => "h2-flood-settings",
            Self::Windows => "h2-flood-windows",
            Self::Empty => "h2-flood-empty",
            Self::Idle => "h2-flood-idle",
        }
    }

    /// Frames at once, and in a second.
    fn allowance(self) -> (u64, u64) {
        match self {
            Self::Resets => (200, 20),
            Self::Refused => (1000, 20),
            Self::Pings => (100, 10),
            Self::Settings => (20, 1),
            Self::Windows => (1000, 100),
            Self::Empty => (100, 10),
            Self::Idle => (200, 20),
        }
    }
}

/// The budgets of one connection.
#[derive(Clone, Debug)]
pub struct Budget {
    received: Scanner,
    sent: Scanner,
    /// Thousandths of frames that are left, by [`Flood`].
    left: [u64; Flood::COUNT],
    filled: Instant,
    exhausted: Option<Flood>,
    /// Frames that the client has sent.
    frames: u64,
}

impl Budget {
    /// Full budgets, for a connection whose first bytes are the client's preface and our frames.
    pub fn new(now: Instant) -> Self {
        Self {
            received: Scanner { skip: PREFACE.len() as u64, ..Scanner::default() },
            sent: Scanner::default(),
            left: ALL.map(|flood| flood.allowance().0 * THOUSAND),
            filled: now,
            exhausted: None,
            frames: 0,
        }
    }

    /// Frames that the client has sent so far, of every kind.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Counts what the client sent. `Err` from the moment a budget is exhausted.
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
                // A client may give each stream its window and its priority.
                self.earn(Flood::Windows, 2);
                self.earn(Flood::Idle, 2);
            }
            Kind::CONTINUATION => self.spend(Flood::Empty),
            Kind::RST_STREAM => self.spend(Flood::Resets),
            Kind::SETTINGS => self.spend(Flood::Settings),
            Kind::PING => self.spend(Flood::Pings),
            Kind::WINDOW_UPDATE => self.spend(Flood::Windows),
            _ => self.spend(Flood::Idle),
        }
    }

    /// Counts what we sent: work that earns the client frames, and streams that it made us reset.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut sent = std::mem::take(&mut self.sent);
        sent.feed(bytes, |frame| {
            if frame.kind == Kind::DATA && frame.length >= SUBSTANTIAL {
                // For each such frame a client may open the windows of stream and connection, and measure the line.
                self.earn(Flood::Windows, 2);
                self.earn(Flood::Pings, 1);
            }
            match (frame.kind, frame.code) {
                (Kind::DATA | Kind::HEADERS, _) if frame.flags & END_STREAM != 0 => {
                    self.earn(Flood::Resets, 1)
                }
                (
                    Kind::RST_STREAM,
                    PROTOCOL_ERROR | FLOW_CONTROL_ERROR | STREAM_CLOSED | FRAME_SIZE_ERROR,
                ) => {
                    self.spend(Flood::Resets);
                }
                (Kind::RST_STREAM, REFUSED_STREAM) => self.spend(Flood::Refused),
                // Our SETTINGS are answered by an acknowledgement, our PING too.
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
        *left = (*left + frames * THOUSAND).min(flood.allowance().0 * THOUSAND);
    }

    fn fill(&mut self, now: Instant) {
        let millis =
            u64::try_from(now.saturating_duration_since(self.filled).as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return;
        }
        self.filled += Duration::from_millis(millis);
        for (left, flood) in self.left.iter_mut().zip(ALL) {
            let (burst, rate) = flood.allowance();
            *left = left.saturating_add(rate.saturating_mul(millis)).min(burst * THOUSAND);
        }
    }
}

/// What is looked at of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: u32,
    /// Of a padded DATA frame.
    padding: u8,
    /// Of RST_STREAM.
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

/// Finds frames in bytes that come in any pieces.
#[derive(Clone, Debug, Default)]
struct Scanner {
    /// Bytes until the next frame begins.
    skip: u64,
    /// The front of a frame, and how much of it is there.
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

    /// Bytes to be looked at of the frame that has begun.
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

/// What an HTTP/2 client says first (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const ALL: [Flood; Flood::COUNT] =
    [Flood::Resets, Flood::Refused, Flood::Pings, Flood::Settings, Flood::Windows, Flood::Empty, Flood::Idle];

const THOUSAND: u64 = 1000;

/// Bytes of a frame's header, and with the longest payload that is looked at.
const HEADER: usize = 9;
const LONGEST_FRONT: usize = HEADER + 4;

/// DATA of so many bytes is work: less would let a client pay for tiny windows with the tiny frames that they cause.
const SUBSTANTIAL: u32 = 256;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const PADDED: u8 = 0x8;

/// RFC 9113 section 6.
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

/// RFC 9113 section 7.
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
        let mut budget = Budget::new(now);
        assert_eq!(budget.receive(PREFACE, now), Ok(()));
        budget
    }

    /// Frames that pass before the budget ends.
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
            (frame(2, 0, &[0; 5]), Flood::Idle),
            (frame(0xbb, 0, &[0; 100]), Flood::Idle),
        ] {
            let expected = usize::try_from(flood.allowance().0).unwrap();
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
    fn streams_that_a_client_makes_us_reset_count_as_its_resets() {
        let now = Instant::now();
        let mut budget = started(now);
        for _ in 0..201 {
            budget.send(&frame(Kind::RST_STREAM, 0, &[0, 0, 0, 1]));
        }
        assert_eq!(budget.receive(&frame(Kind::DATA, 0, b"x"), now), Err(Flood::Resets));
        // Those that are our own doing do not.
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
            let mut budget = Budget::new(now);
            let results: Vec<_> = bytes.chunks(size).map(|piece| budget.receive(piece, now)).collect();
            assert_eq!(budget.frames(), 303, "pieces of {size}");
            assert_eq!(results.last(), Some(&Err(Flood::Empty)), "pieces of {size}");
            assert!(results[..results.len() * 9 / 10].iter().all(Result::is_ok), "pieces of {size}");
        }
    }
}
