//! The steps by which the new process of an upgrade takes over. `crates/serve/src/upgrade/take_over.rs` speaks with the old one.

use std::path::Path;
use std::sync::Arc;

use proxy::front::Front;
use state::State;
use sys::pid_file::PidFile;
use tokio::task::spawn_blocking;

use super::{StartError, system};
use crate::kept::Found;
use crate::reload::Opened;
use crate::signals::Signals;
use crate::upgrade::older;
use crate::upgrade::protocol::TICKETS;
use crate::upgrade::take_over::{TakeOver, Word};

/// Says that this process is ready, and waits for the state of the old one. `None` if this process is told to stop.
pub(super) async fn state(
    take_over: &Arc<TakeOver>,
    opened: &Opened,
    (state, tls): (&State, &tls::Shared),
    signals: &mut Signals,
) -> Result<Option<Found>, StartError> {
    let (asking, keys) = (take_over.clone(), opened.keys().cloned().collect::<Vec<_>>());
    let heard = spawn_blocking(move || asking.ready(keys.iter()));
    tokio::select! {
        heard = heard => {
            let heard = heard.map_err(std::io::Error::other).map_err(system("hear the old process"))??;
            if let Some((_, keys)) = heard.iter().find(|(word, _)| word == TICKETS) {
                tls.take_ticket_keys(keys);
            }
            Ok(Some(Found::passed_on(&heard, &state.events)))
        }
        () = signals.stop() => Ok(None),
    }
}

/// Waits for the word to serve. False if this process is told to stop.
pub(super) async fn is_told_to_serve(
    take_over: &Arc<TakeOver>,
    signals: &mut Signals,
) -> Result<bool, StartError> {
    let asking = take_over.clone();
    let heard = spawn_blocking(move || asking.prepared());
    tokio::select! {
        heard = heard => {
            let word = heard.map_err(std::io::Error::other).map_err(system("hear the old process"))??;
            if word == Word::OldIsGone {
                tracing::warn!("the old process has ended before its last word: this one serves");
            }
            Ok(true)
        }
        () = signals.stop() => Ok(false),
    }
}

/// Says that this process serves, waits until the old one has freed what only one may have, and takes that. Nothing of it can end
/// this process any more.
pub(super) async fn serve(
    take_over: &Arc<TakeOver>,
    front: &Arc<Front>,
    pid_file: Option<&Path>,
    own: Option<PidFile>,
) -> Option<PidFile> {
    let saying = take_over.clone();
    // It does not panic.
    let _ = spawn_blocking(move || saying.serving()).await;
    if let Err(error) = older::follow(take_over.clone(), front.clone()) {
        tracing::warn!("the end of the old process will not be told: {error}");
    }
    let path = pid_file?;
    let taken = match own.or_else(|| take_over.pid_file(path)) {
        Some(file) => Ok(file),
        None => PidFile::take(path),
    };
    let written = taken.and_then(|mut file| file.write().map(|()| file));
    written.map_err(|error| front.state.degrade("process.pid-file", &error.to_string())).ok()
}
