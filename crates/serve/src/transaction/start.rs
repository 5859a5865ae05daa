//! The start as a change that an operator confirms: `penstock serve --commit-confirm`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::front::Denied;
use state::State;
use state::dsr::start_confirmation::Phase;
use text::units;

use super::Live;

/// What a confirmation did to the start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    Confirmed,
    /// There was nothing to confirm.
    Settled,
}

impl Live {
    /// The services of `dsr` listeners wait for a confirmation, if there is a limit.
    pub(crate) fn try_start(&mut self, state: &Arc<State>, limit: Option<Duration>) {
        let Some(limit) = limit else { return };
        let now = Instant::now();
        state.services.start_confirmation.begin(limit, now);
        self.started = Some(state.clone());
        let message = state.services.start_confirmation.line(now).unwrap_or_default();
        state.events.record(state::events::Level::Warning, SUBJECT, message);
    }

    pub(super) fn start_deadline(&self) -> Option<Instant> {
        self.started.as_ref()?.services.start_confirmation.deadline()
    }

    /// Gives the services up if the time is over and no operator has confirmed the start.
    pub(super) fn give_up_start(&self) {
        let Some(state) = &self.started else { return };
        if let Some(limit) = state.services.start_confirmation.expire(Instant::now()) {
            let message = format!(
                "the start was not confirmed within {}: their services are given up: this machine forwards no packets for them and does not answer for their addresses; start penstock again",
                units::duration(limit)
            );
            state.degrade(SUBJECT, &message);
        }
    }

    pub(super) fn confirm_start(&self) -> Result<Start, Denied> {
        match self.started.as_ref().map(|state| state.services.start_confirmation.confirm()) {
            None | Some(Phase::Settled) => Ok(Start::Settled),
            Some(Phase::Waiting { .. }) => Ok(Start::Confirmed),
            Some(Phase::GivenUp) => Err(Denied {
                message: "the time for it is over: the services of dsr listeners are given up".to_owned(),
                details: "  hint: start penstock again, and confirm in time".to_owned(),
            }),
        }
    }
}

/// In events, and in what is degraded.
const SUBJECT: &str = "dsr listeners";
