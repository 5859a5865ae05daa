//! The way of an issued certificate through the gate of keys in the DNS: `crates/access/src/keys/gate.rs` decides.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use access::keys::{Association, Kind, Others, Owner, Set, sets};
use config::types::AcmeTlsa;
use dns::{Authorities, Plan, Roll, Services, TlsLook, Turns, Waiting};
use state::account::{Account, OF_REQUEST, Purpose};
use tls::Bundle;

use super::dns::signed_server;
use super::fault::Fault;

/// A certificate that may be used.
pub(super) struct Passed {
    roll: Roll,
    records: BTreeMap<(Owner, Kind), Set>,
    services: Vec<SocketAddr>,
    turns: Arc<dyn Turns>,
}

/// Pause between two looks at the services.
const PAUSE: Duration = Duration::from_millis(250);

/// The account of descriptors, for the questions of the gate.
struct Counted(Arc<Account>);

impl Turns for Counted {
    fn turn(&self) -> Pin<Box<dyn Future<Output = Box<dyn Send>> + Send + '_>> {
        Box::pin(async { Box::new(self.0.turn(Purpose::Authority, OF_REQUEST).await) as Box<dyn Send> })
    }
}

/// What is in use before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Another certificate for the same names.
    Certificate,
    /// None: a client that remembers a record could not connect anyway.
    Nothing,
}

/// Pushes the TLSA records of a certificate and waits until it may be used. `None` if it has no name that could have one.
/// `tell` gets what is waited for.
pub(super) async fn pass(
    settings: &AcmeTlsa,
    text: &str,
    before: Before,
    account: &Arc<Account>,
    tell: impl Fn(String),
) -> Result<Option<Passed>, Fault> {
    let (names, chain) = Bundle::chain(text.as_bytes()).map_err(Fault::Unusable)?;
    let mut records = Vec::new();
    let mut ports: Vec<u16> = settings.services.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    // A TLSA record has no wildcard inside of its name.
    for name in names.iter().filter(|name| !name.starts_with("*.")) {
        for port in &ports {
            let owner = Owner::parse(name).and_then(|host| Owner::of_service(*port, &host));
            let owner = owner.map_err(|fault| Fault::Tlsa(fault.to_string()))?;
            let record = Association::Server.record(owner, &chain);
            records.push(record.map_err(|fault| Fault::Unusable(fault.to_string()))?);
        }
    }
    if records.is_empty() {
        return Ok(None);
    }
    let server = signed_server(settings.server, &settings.key_file, "tlsa.key-file").await?;
    let failed = |fault: &dyn std::fmt::Display| Fault::Tlsa(fault.to_string());
    let mut authorities = Authorities::new(&settings.servers, None).map_err(|fault| failed(&fault))?;
    let records = sets(&records);
    let turns: Arc<dyn Turns> = Arc::new(Counted(account.clone()));
    let (wanted, leaving) = (records.clone(), Others::Remove);
    let plan = Plan { server, wanted, leaving, limit: settings.limit, turns: turns.clone() };
    let begun = Roll::begin(plan, &mut authorities).await;
    // It may hold sockets.
    drop(authorities);
    let mut roll = begun.map_err(|fault| failed(&fault))?;
    let services = settings.services.clone();
    if before == Before::Nothing {
        return Ok(Some(Passed { roll, records, services, turns }));
    }
    let visible = roll.visible(|waiting| {
        tell(match waiting {
            Waiting::For(servers) => format!("waiting for its TLSA record: {}", servers.join(", ")),
            Waiting::Until(rest) => {
                format!("its TLSA record is everywhere; {} s until no cache is without it", rest.as_secs())
            }
        });
    });
    visible.await.map_err(|fault| failed(&fault))?;
    Ok(Some(Passed { roll, records, services, turns }))
}

impl Passed {
    /// Waits until every address of the service shows the new certificate, then removes the record of the old one.
    pub(super) async fn left(mut self) -> Result<(), Fault> {
        let services = Services::At(&self.services);
        let look = TlsLook { wanted: self.records, services, start: None, turns: self.turns };
        let left = self.roll.left(PAUSE, &look).await;
        left.map_err(|fault| Fault::Tlsa(fault.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use logic::account::Division;
    use state::account::Wanted;

    use super::*;

    #[test]
    fn questions_of_the_gate_wait_for_descriptors_of_the_account() {
        let account = Account::new(1);
        let wanted = Wanted::default().with(Purpose::Authority, 1, OF_REQUEST);
        let division = Division { traffic: 50, ..Division::default() };
        account.set(100, division, account.shares(), wanted, 1);
        let counted = Counted(account);
        let ask = || match counted.turn().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        };
        let first = ask();
        assert!(first.is_some() && ask().is_none());
        drop(first);
        assert!(ask().is_some());
    }
}
