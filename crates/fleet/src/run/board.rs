//! The current stage of every host: written by its task and the scheduler, read by the progress line.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosts::fleet::ending::Phase;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    At(Phase),
    /// The host refused the connection; its next attempt is scheduled.
    Waiting,
    /// The command ended with exit status 0.
    Ok,
    Failed,
}

/// Number of hosts in each stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hosts that wait for their first attempt or for a retry.
    pub left: usize,
    pub starting: usize,
    /// Hosts that run the command or copy files.
    pub running: usize,
    pub ok: usize,
    pub failed: usize,
}

/// One row for each host, without locks.
#[derive(Debug)]
pub struct Board {
    begin: Instant,
    rows: Vec<Row>,
    names: Vec<String>,
    /// Bytes of file content, copied to or from hosts.
    bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Row {
    stage: AtomicU8,
    /// Start of the stage, in milliseconds since the start of the run.
    since: AtomicU32,
}

impl Board {
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        let rows = names.iter().map(|_| Row::default()).collect();
        Self { begin: Instant::now(), rows, names, bytes: AtomicU64::new(0) }
    }

    #[must_use]
    pub fn name(&self, host: usize) -> &str {
        self.names.get(host).map_or("", String::as_str)
    }

    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    #[must_use]
    pub fn begin(&self) -> Instant {
        self.begin
    }

    pub fn set(&self, host: usize, stage: Stage) {
        let Some(row) = self.rows.get(host) else { return };
        let code = STAGES.iter().position(|known| *known == stage).unwrap_or(0);
        row.since
            .store(u32::try_from(self.begin.elapsed().as_millis()).unwrap_or(u32::MAX), Ordering::Relaxed);
        row.stage.store(u8::try_from(code).unwrap_or(0), Ordering::Relaxed);
    }

    #[must_use]
    pub fn stage(&self, host: usize) -> Stage {
        let code = self.rows.get(host).map_or(0, |row| row.stage.load(Ordering::Relaxed));
        STAGES[usize::from(code).min(STAGES.len() - 1)]
    }

    pub fn copied(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn phase(&self, host: usize) -> Phase {
        match self.stage(host) {
            Stage::At(phase) => phase,
            _ => Phase::Queued,
        }
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for host in 0..self.rows.len() {
            *match self.stage(host) {
                Stage::At(Phase::Queued) | Stage::Waiting => &mut counts.left,
                Stage::At(Phase::Run | Phase::Copy) => &mut counts.running,
                Stage::At(_) => &mut counts.starting,
                Stage::Ok => &mut counts.ok,
                Stage::Failed => &mut counts.failed,
            } += 1;
        }
        counts
    }

    /// Hosts that have started and not ended, the host that has been in its phase for the longest time first.
    #[must_use]
    pub fn at_work(&self) -> Vec<(usize, Phase, Duration)> {
        let now = u32::try_from(self.begin.elapsed().as_millis()).unwrap_or(u32::MAX);
        let mut busy: Vec<_> = (0..self.rows.len())
            .filter_map(|host| match self.stage(host) {
                Stage::At(phase) if phase != Phase::Queued => {
                    let since = self.rows[host].since.load(Ordering::Relaxed);
                    Some((host, phase, Duration::from_millis(u64::from(now.saturating_sub(since)))))
                }
                _ => None,
            })
            .collect();
        busy.sort_by_key(|(host, _, took)| (std::cmp::Reverse(*took), *host));
        busy
    }
}

const STAGES: [Stage; 11] = [
    Stage::At(Phase::Queued),
    Stage::At(Phase::Resolve),
    Stage::At(Phase::Connect),
    Stage::At(Phase::Identity),
    Stage::At(Phase::Authenticate),
    Stage::At(Phase::Start),
    Stage::At(Phase::Run),
    Stage::At(Phase::Copy),
    Stage::Waiting,
    Stage::Ok,
    Stage::Failed,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_comes_back_as_it_was_set_and_all_hosts_are_counted() {
        let board = Board::new(vec!["h".to_owned(); STAGES.len()]);
        for (host, stage) in STAGES.into_iter().enumerate() {
            board.set(host, stage);
            assert_eq!(board.stage(host), stage);
        }
        let counts = board.counts();
        assert_eq!(counts, Counts { left: 2, starting: 5, running: 2, ok: 1, failed: 1 });
        assert_eq!(board.at_work().len(), 7);
    }
}
