//! Data that the tasks of all hosts share, and the connect step that commands and copies have in common.

use std::sync::Arc;
use std::time::Duration;

use hosts::fleet::ending::{Failure, Phase, Reason};
use tokio::sync::{mpsc, watch};

use super::board::{Board, Stage};
use super::engine::{Engine, Way};
use super::host::Host;
use super::job::Job;
use super::journal::Journal;
use super::output::Outbox;
use super::stop::{Brake, Stop, stopped, why};

pub(super) struct Shared {
    pub(super) hosts: Vec<Host>,
    pub(super) job: Job,
    pub(super) engine: Engine,
    pub(super) board: Arc<Board>,
    pub(super) brake: Brake,
    pub(super) out: Outbox,
    pub(super) journal: Option<Journal>,
    /// Hosts whose command has started, with the time that the connect step took.
    pub(super) up: mpsc::UnboundedSender<(usize, Duration)>,
}

impl Shared {
    /// Connects to a host, and records that the command is about to be sent.
    pub(super) async fn connect(
        &self,
        host: usize,
        stop: &mut watch::Receiver<Stop>,
    ) -> Result<Way, Failure> {
        let on_phase = |phase| self.board.set(host, Stage::At(phase));
        on_phase(Phase::Resolve);
        let way = tokio::select! {
            biased;
            stop = stopped(stop) => {
                let phase = self.board.phase(host);
                return Err(Failure::not_started(phase, Reason::Stopped, why(stop).to_owned()));
            }
            way = self.engine.connect(&self.hosts[host], &on_phase) => way?,
        };
        if let Some(journal) = &self.journal {
            let recorded = tokio::select! {
                biased;
                // The record may say that the command was sent. The ending, recorded later, says that the host has not
                // started it.
                stop = stopped(stop) => {
                    return Err(Failure::not_started(Phase::Start, Reason::Stopped, why(stop).to_owned()));
                }
                recorded = journal.sent(host) => recorded,
            };
            if let Err(error) = recorded {
                let detail = format!("not sent, since the record of this run cannot be written: {error}");
                return Err(Failure::not_started(Phase::Start, Reason::LocalError, detail));
            }
        }
        if let Way::Native(_) = way {
            on_phase(Phase::Start);
        }
        Ok(way)
    }
}
