//! A new certificate: its TLSA records, its file, and the services that show it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use access::keys::{Kind, Owner, Set, sets};
use dns::{Authorities, Roll, RollFault, Services, TlsLook, Unlimited};
use sys::file::{self, Access};
use tls::Bundle;
use zeroize::Zeroizing;

use crate::cmd::dns::services::StartTls;
use crate::cmd::dns::wanted::{NextArguments, at, read};
use crate::output::Failure;

/// Pause between two looks at the services.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Certificate {
    text: Zeroizing<Vec<u8>>,
    wanted: BTreeMap<(Owner, Kind), Set>,
}

impl Certificate {
    /// Reads the file that `--next` names.
    pub(super) fn read(next: &Path, names: &NextArguments) -> Result<Self, Failure> {
        let text = read(next)?;
        Bundle::read(&text).map_err(|why| at(next, why))?;
        let records = names.records(next, &text)?;
        Ok(Self { text, wanted: sets(&records) })
    }

    pub(super) fn wanted(&self) -> BTreeMap<(Owner, Kind), Set> {
        self.wanted.clone()
    }

    /// Moves the file into place. A server that may read the old one may read the new one.
    pub(super) fn install(&self, into: &Path) -> Result<(), String> {
        file::replace(into, &self.text, Access::AsBefore).map_err(|error| error.to_string())
    }

    /// Waits until every address shows the certificate; then the old record goes. `at` are the addresses; empty: those of its
    /// names.
    pub(super) async fn left(
        &self,
        at: &[SocketAddr],
        start: Option<StartTls>,
        roll: &mut Roll,
        authorities: &Authorities,
    ) -> Result<(), RollFault> {
        let services = match at.is_empty() {
            true => Services::OfNames(authorities),
            false => Services::At(at),
        };
        let start = start.map(StartTls::start);
        let look = TlsLook { wanted: self.wanted(), services, start, turns: Arc::new(Unlimited) };
        roll.left(PAUSE, &look).await
    }
}
