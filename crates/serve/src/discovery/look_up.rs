//! One look-up of a name that stands for backends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use config::types::DnsName;
use hickory_resolver::TokioResolver;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{RData, RecordType};
use logic::discovery::{Answer, Found, MOST, Rank, Service, ranks};

use crate::resolve::{Lookup, SystemLookup};

/// Time after which no further target of SRV records is looked up. Each look-up has its own limit in the resolver.
const TARGETS_LIMIT: Duration = Duration::from_secs(30);

/// Largest number of addresses of all targets, also of equal ones and of those that cannot be used: of 256 targets, 16 each.
const MOST_FOUND: usize = 16 * MOST;

/// Addresses of a target, and the number of those that were cut off.
type Cut = (Vec<SocketAddr>, usize);

/// Looks up a name once. The error says why there is no answer.
pub(super) async fn look_up(name: &DnsName) -> Result<Answer, String> {
    match name {
        DnsName::Addresses { host, port } => {
            let addresses = SystemLookup.lookup(host, *port).await.map_err(|error| error.to_string())?;
            let found = addresses.into_iter().map(|address| found(address, Rank::EQUAL, None));
            Ok(Answer { found: found.collect(), ..Answer::default() })
        }
        DnsName::Services { owner } => addresses_of(services(owner).await?).await,
    }
}

fn found(address: SocketAddr, rank: Rank, target: Option<Box<str>>) -> Found {
    Found { address: SocketAddr::new(address.ip().to_canonical(), address.port()), rank, target }
}

/// Asks the name servers of resolv.conf(5), which is read each time: getaddrinfo(3) knows no SRV records.
async fn services(owner: &str) -> Result<Vec<Service>, String> {
    let unknown = |error: NetError| format!("cannot find out which name servers to ask: {error}");
    let mut builder = TokioResolver::builder_tokio().map_err(unknown)?;
    builder.options_mut().cache_size = 0;
    let resolver = builder.build().map_err(unknown)?;
    let lookup = resolver.lookup(owner, RecordType::SRV).await.map_err(|error| match error {
        NetError::Dns(DnsError::NoRecordsFound(_)) => "no SRV record".to_owned(),
        error => error.to_string(),
    })?;
    let records = lookup.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(record) => Some(Service {
            priority: record.priority,
            weight: record.weight,
            port: record.port,
            target: record.target.to_ascii().into(),
        }),
        _ => None,
    });
    let mut records: Vec<_> = records.collect();
    if records.iter().all(|record| &*record.target == ".") {
        let why = if records.is_empty() { "no SRV record" } else { "its SRV record says that there is none" };
        return Err(why.to_owned());
    }
    records.retain(|record| &*record.target != ".");
    // Those of the lowest priority number remain, the same ones on every node.
    records.sort();
    records.dedup();
    records.truncate(MOST);
    Ok(records)
}

/// Looks up the targets, one after the other: a name takes no more descriptors than another.
async fn addresses_of(records: Vec<Service>) -> Result<Answer, String> {
    let began = Instant::now();
    let mut known: HashMap<&str, Option<Cut>> = HashMap::new();
    for record in &records {
        if !known.contains_key(&*record.target) {
            let may = began.elapsed() < TARGETS_LIMIT;
            let addresses = match may {
                true => SystemLookup.lookup(&record.target, 0).await.ok().filter(|found| !found.is_empty()),
                false => None,
            };
            known.insert(&record.target, addresses.map(cut));
        }
    }
    Ok(answer_of(&records, &known))
}

fn cut(mut addresses: Vec<SocketAddr>) -> Cut {
    // The same ones on every node.
    addresses.sort_unstable();
    let left_out = addresses.len().saturating_sub(MOST);
    addresses.truncate(MOST);
    addresses.shrink_to_fit();
    (addresses, left_out)
}

/// Puts the addresses of the targets together. Many records may have the same target: only a limit keeps a small answer
/// of a name server from becoming a million addresses.
fn answer_of(records: &[Service], known: &HashMap<&str, Option<Cut>>) -> Answer {
    let mut answer = Answer::default();
    for (record, rank) in records.iter().zip(ranks(records)) {
        match known.get(&*record.target) {
            Some(Some((addresses, left_out))) => {
                let taken = MOST_FOUND.saturating_sub(answer.found.len()).min(addresses.len());
                answer.left_out += left_out + (addresses.len() - taken);
                answer.found.extend(addresses.iter().take(taken).map(|address| {
                    found(SocketAddr::new(address.ip(), record.port), rank, Some(record.target.clone()))
                }));
            }
            _ if answer.unknown.contains(&record.target) => {}
            _ => answer.unknown.push(record.target.clone()),
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_records_of_one_target_with_many_addresses_do_not_multiply_without_a_limit() {
        let record = |port: u16| Service { priority: 0, weight: 1, port, target: "a".into() };
        let records: Vec<Service> = (1..=256).map(record).collect();
        let address = |last: u16| {
            let [high, low] = last.to_be_bytes();
            SocketAddr::from(([10, 0, high, low], 0))
        };
        let addresses: Vec<SocketAddr> = (0..4000).rev().map(address).collect();
        let known = HashMap::from([("a", Some(cut(addresses)))]);
        let answer = answer_of(&records, &known);
        assert_eq!(answer.found.len(), MOST_FOUND);
        assert_eq!(answer.left_out, 256 * 4000 - MOST_FOUND);
        assert_eq!(answer.found[0].address, SocketAddr::from(([10, 0, 0, 0], 1)));
    }
}
