//! Number of hosts at once, adapted to servers, bastions and this machine. `fleet/run/schedule.rs` starts as many hosts
//! as [`Pace::room`] allows and reports results. No sleep, no clock.
//!
//! Two limits are separate. A handshake costs CPU and counts against MaxStartups; a running command costs little more
//! than a descriptor. So the adaptive window limits hosts that are *starting*, and sessions only have a ceiling: a
//! thousand hosts that sleep do not delay the next host.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    /// Limit of hosts that are starting or connected.
    pub sessions: usize,
    /// Limit of hosts that are starting: name resolution, connection, handshakes.
    pub starting: usize,
}

/// Observation of one host, or of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The command of a host started. The duration counts from its turn.
    Up(Duration),
    /// The host failed before the start for a reason unrelated to the number of hosts at once.
    Failed,
    /// The server or the bastion closed the connection before the handshake.
    TurnedAway,
    /// The host did not start within its timeout.
    TimedOut,
    /// A local timer fired late by this duration: the CPU is busy.
    Late(Duration),
    /// This machine has no descriptor or memory left with `sessions` open sessions.
    Starved { sessions: usize },
}

/// Window with additive increase and multiplicative decrease (AIMD).
#[derive(Debug, Clone)]
pub struct Pace {
    ceiling: Ceiling,
    window: f64,
    growth: Growth,
    last_cut: Option<Instant>,
    /// Initial limit of sessions, and the time of the last change of the limit because of a lack of resources.
    most: usize,
    last_lack: Option<Instant>,
    /// Smoothed start time and lowest start time; the lowest is the time without a queue.
    usual: Option<Duration>,
    lowest: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// Adds one for each host that started: doubles per round, until the first decrease.
    Fast,
    /// Adds one per round.
    Slow,
    /// The operator set the number.
    None,
}

impl Pace {
    /// Pace of a whole run. The initial window is 64.
    #[must_use]
    pub fn adaptive(ceiling: Ceiling) -> Self {
        Self::new(ceiling, 64.0, Growth::Fast)
    }

    /// Pace of the hosts behind one bastion. The initial window is below 10, where MaxStartups of OpenSSH begins to
    /// act.
    #[must_use]
    pub fn behind_bastion(ceiling: Ceiling) -> Self {
        Self::new(ceiling, 8.0, Growth::Fast)
    }

    /// Fixed pace with the number of the operator; only a lack of descriptors lowers the number.
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

    /// Number of hosts that may start now. `starting` hosts are starting, `sessions` includes them.
    #[must_use]
    pub fn room(&self, starting: usize, sessions: usize) -> usize {
        let up = self.window().saturating_sub(starting);
        up.min(self.ceiling.sessions.max(1).saturating_sub(sessions))
    }

    /// How many hosts may be starting at the same time: name resolution, connection, handshakes.
    #[must_use]
    pub fn window(&self) -> usize {
        (self.window as usize).clamp(1, self.ceiling.starting.max(1))
    }

    #[must_use]
    pub fn sessions(&self) -> usize {
        self.ceiling.sessions
    }

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

    /// Raises the limit of sessions after a lack of resources: the other program that used them may have ended.
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

    /// True if the start takes much longer than the lowest time, so that more hosts would only queue. Hosts differ in
    /// distance, so the factor is large and the time must be noticeable; the effect is only an end of the growth.
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

    /// Lowers the window at most once per round: hosts that started before the change say nothing about the new window.
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

/// Delay before another try for a host that was turned away before its command was sent; `None` after the last try.
///
/// `luck` in `0.0..1.0` spreads hosts that were turned away together.
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
/// Time without a lack of resources before the limit of sessions is raised.
const QUIET: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
