//! What services show: certificates over TLS, host keys over SSH.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use access::keys::{Association, Kind, Live, Owner, Record, Set, fits};
use hosts::identity::FingerprintRecord;
use ssh::identity::{Identities, Places, Store, TYPES, fetch};
use ssh::{HostVerifier, Target};

/// Time limit of one handshake.
const LIMIT: Duration = Duration::from_secs(5);
/// Ports where TLS begins only after a command of the protocol.
const STARTTLS: [u16; 9] = [21, 25, 110, 119, 143, 389, 587, 4190, 5222];
/// Limit of the addresses of one host that are asked.
const MOST: usize = 16;

/// Asks the service that the records of a name are of, at all of its addresses.
pub(super) async fn ask(owner: &Owner, kind: Kind, wanted: &Set, addresses: &[IpAddr]) -> Vec<Live> {
    let addresses: BTreeSet<IpAddr> = addresses.iter().copied().take(MOST).collect();
    let mut found = Vec::new();
    match kind {
        Kind::Tlsa => {
            let Some((port, host)) = owner.service().filter(|(port, _)| !STARTTLS.contains(port)) else {
                return found;
            };
            for address in addresses {
                found.push(tls(SocketAddr::new(address, port), &host, wanted).await);
            }
        }
        Kind::Sshfp => {
            for address in addresses {
                found.push(ssh(address, owner, wanted).await);
            }
        }
        Kind::Cert | Kind::Openpgpkey => {}
    }
    found
}

async fn tls(address: SocketAddr, host: &Owner, wanted: &Set) -> Live {
    let shown = address.to_string();
    match dns::chain(address, &host.to_string(), LIMIT).await {
        Err(why) => Live::Silent { address: shown, why: why.to_string() },
        Ok(chain) if fits(wanted, &chain) => Live::Fits(shown),
        Ok(chain) => {
            let record = Association::Server.record(host.clone(), &chain);
            let text = record.map_or_else(|why| why.to_string(), |record| record.data_text());
            Live::Differs { address: shown, shown: text }
        }
    }
}

/// Compares every host key that the server has: a client may ask for any of them.
async fn ssh(address: IpAddr, owner: &Owner, wanted: &Set) -> Live {
    let shown = SocketAddr::new(address, 22).to_string();
    let silent = |why: String| Live::Silent { address: shown.clone(), why };
    let store = match Places::of_user().map(Store::new) {
        Ok(store) => store,
        Err(error) => return silent(error.to_string()),
    };
    let judge: Arc<dyn HostVerifier> = match Identities::load(store) {
        Ok(identities) => Arc::new(identities),
        Err(error) => return silent(error.to_string()),
    };
    let mut first_failure = None;
    let mut count = 0;
    for types in TYPES {
        let mut target = Target::new(&owner.to_string(), "penstock");
        target.addresses.known = vec![address];
        target.connect_timeout = LIMIT;
        target.algorithms.host_keys = types.iter().map(|name| (*name).to_owned()).collect();
        let key = match fetch(&target, types, judge.clone()).await {
            Ok(shown) => shown.key,
            Err(failure) => {
                first_failure = first_failure.or(Some(failure));
                continue;
            }
        };
        count += 1;
        let Some(FingerprintRecord { algorithm, hash, fingerprint }) = FingerprintRecord::of(&key) else {
            continue;
        };
        let record = Record::sshfp(owner.clone(), algorithm, hash, &fingerprint);
        if !wanted.contains(&record.data) {
            return Live::Differs { address: shown, shown: record.data_text() };
        }
    }
    match (count, first_failure) {
        (0, Some(failure)) => silent(failure.detail),
        _ => Live::Fits(shown),
    }
}
