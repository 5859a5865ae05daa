//! How many hosts are worked on at once: adapts to what servers, bastions and this machine bear.
//! `fleet/run/schedule.rs` starts what [`Pace::room`] allows and tells what happened. Never sleeps, never asks a clock.
//!
//! Two numbers are kept apart. A handshake costs CPU and counts against MaxStartups; a running command costs a
//! descriptor and little more. So the window that adapts is the number of hosts *on their way up*, and sessions only
//! have a ceiling: a thousand hosts that sleep do not hold back the next one.

use std::time::{Duration, Instant};

/// What may never be exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    /// Hosts with a connection or on their way to one.
    pub sessions: usize,
    /// Hosts on their way up: resolving, connecting, shaking hands.
    pub starting: usize,
}

/// What was seen of one host, or of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// Its command was started this long after its turn came.
    Up(Duration),
    /// It failed before that for a reason that has nothing to do with how many are tried at once.
    Failed,
    /// The server, or the bastion before it, hung up at the door.
    TurnedAway,
    /// It did not get up in time.
    TimedOut,
    /// Our own timer fired this much too late: the processor is busy.
    Late(Duration),
    /// This machine has no descriptor or memory left, with so many sessions open.
    Starved {
        /// Sessions at that moment.
        sessions: usize,
    },
}

/// One window that grows while all goes well and shrinks when it does not (AIMD).
#[derive(Debug, Clone)]
pub struct Pace {
    ceiling: Ceiling,
    window: f64,
    growth: Growth,
    last_cut: Option<Instant>,
    /// Sessions that were allowed at first, and when a lack of something last lowered that, or it was raised again.
    most: usize,
    last_lack: Option<Instant>,
    /// Smoothed time to get up, and the lowest it has been: the path without a queue.
    usual: Option<Duration>,
    lowest: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// One more for each that got up: doubles in each round, until the first cut.
    Fast,
    /// One more per round.
    Slow,
    /// The user said how many.
    None,
}

impl Pace {
    /// For a whole run: starts at 64.
    #[must_use]
    pub fn adaptive(ceiling: Ceiling) -> Self {
        Self::new(ceiling, 64.0, Growth::Fast)
    }

    /// For the hosts behind one bastion: starts below the 10 at which OpenSSH's default MaxStartups begins to refuse.
    #[must_use]
    pub fn behind_bastion(ceiling: Ceiling) -> Self {
        Self::new(ceiling, 8.0, Growth::Fast)
    }

    /// The number that the user asked for, whatever happens; only a lack of descriptors lowers it.
    #[must_use]
    pub fn fixed(sessions: usize) -> Self {
        let ceiling = Ceiling { sessions, starting: sessions };
        Self::new(ceiling, sessions as f64, Growth::None)
    }

    fn new(ceiling: Ceiling, window: f64, growth: Growth) -> Self {
        let window = window.min(ceiling.starting as f64).max(1.0);
        let most = ceiling.sessions;
        Self { ceiling, window, growth, last_cut: None, most, last_lack: None, usual: None, lowest: None }
    }

    /// How many more may start, with so many on their way up and so many sessions (those included).
    #[must_use]
    pub fn room(&self, starting: usize, sessions: usize) -> usize {
        let up = self.window().saturating_sub(starting);
        up.min(self.ceiling.sessions.max(1).saturating_sub(sessions))
    }

    /// Hosts that may be on their way up at once.
    #[must_use]
    pub fn window(&self) -> usize {
        (self.window as usize).clamp(1, self.ceiling.starting.max(1))
    }

    /// Sessions that may be open at once.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.ceiling.sessions
    }

    /// Takes note of what happened.
    pub fn observe(&mut self, sign: Sign, now: Instant) {
        match sign {
            Sign::Up(took) => {
                self.time(took);
                self.try_more(now);
                if !self.is_queueing() {
                    self.grow();
                }
            }
            Sign::Failed => {}
            Sign::TurnedAway => self.cut(HARD, now),
            Sign::TimedOut => self.cut(GENTLE, now),
            Sign::Late(by) if by >= BUSY => self.cut(GENTLE, now),
            Sign::Late(_) => {}
            Sign::Starved { sessions } => {
                self.ceiling.sessions = self.ceiling.sessions.min(sessions.saturating_sub(1)).max(1);
                self.last_lack = Some(now);
            }
        }
    }

    /// What was short may be there again: somebody else may have taken it for a while.
    fn try_more(&mut self, now: Instant) {
        let is_quiet = |last: Instant| now.saturating_duration_since(last) >= QUIET;
        if self.ceiling.sessions < self.most && self.last_lack.is_some_and(is_quiet) {
            self.ceiling.sessions = (self.ceiling.sessions + self.ceiling.sessions / 4 + 1).min(self.most);
            self.last_lack = Some(now);
        }
    }

    fn time(&mut self, took: Duration) {
        self.usual = Some(self.usual.map_or(took, |usual| (usual * 15 + took) / 16));
        self.lowest = Some(self.lowest.map_or(took, |lowest| lowest.min(took)));
    }

    /// Getting up takes far longer than it can: more at once would only wait longer. Hosts differ in their distance, so
    /// this takes a large factor and a time that somebody would notice, and it only ends the growth.
    fn is_queueing(&self) -> bool {
        match (self.usual, self.lowest) {
            (Some(usual), Some(lowest)) => usual > lowest * 4 && usual > NOTICED,
            _ => false,
        }
    }

    fn grow(&mut self) {
        let step = match self.growth {
            Growth::Fast => 1.0,
            Growth::Slow => 1.0 / self.window,
            Growth::None => 0.0,
        };
        self.window = (self.window + step).min(self.ceiling.starting as f64).max(1.0);
    }

    /// One cut per round: what was started before it says nothing about the new window.
    fn cut(&mut self, keep: f64, now: Instant) {
        if self.growth == Growth::None {
            return;
        }
        let round = self.usual.unwrap_or(ROUND).clamp(ROUND, ROUND * 8);
        if self.last_cut.is_some_and(|last| now.saturating_duration_since(last) < round) {
            return;
        }
        self.last_cut = Some(now);
        self.growth = Growth::Slow;
        self.window = (self.window * keep).max(FLOOR.min(self.ceiling.starting as f64)).max(1.0);
    }
}

/// How a host that was turned away before its command was sent is tried again, or `None` if it has had its chances.
///
/// `luck` in `0.0..1.0` spreads those that were turned away together.
#[must_use]
pub fn again_after(attempts: u32, luck: f64) -> Option<Duration> {
    let base = Duration::from_millis(*[300, 1_000, 3_000, 8_000].get(attempts.checked_sub(1)? as usize)?);
    Some(base.mul_f64(0.5 + luck.clamp(0.0, 1.0)))
}

const HARD: f64 = 0.5;
const GENTLE: f64 = 0.8;
const FLOOR: f64 = 4.0;
const ROUND: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_millis(100);
const NOTICED: Duration = Duration::from_secs(1);
/// How long nothing has to be short before more is tried.
const QUIET: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
