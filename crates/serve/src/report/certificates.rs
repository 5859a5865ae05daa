//! Certificates as they stand, for `penstock ctl certs`.

use std::sync::Arc;
use std::time::SystemTime;

use config::Config;
use serde::Serialize;

use super::text::{Table, printable, push_line};
use crate::acme;
use crate::events::timestamp;
use crate::front::Front;
use crate::plural::plural;
use crate::snapshot::ListenerPlan;
use crate::tls::{Certificate, Standing, Store};

/// A directory of certificates.
#[derive(Clone, Debug, Serialize)]
pub struct DirectoryReport {
    /// Its path.
    pub directory: String,
    /// Listeners that serve it.
    pub listeners: Vec<String>,
    /// What is wrong with it, a sentence each.
    pub faults: Vec<String>,
    /// Broken ones first, then by the time they have left.
    pub certificates: Vec<CertificateReport>,
    /// Those that are ordered from an authority, by name.
    pub orders: Vec<OrderReport>,
}

/// A certificate that is ordered, and ordered again when it is due.
#[derive(Clone, Debug, Serialize)]
pub struct OrderReport {
    /// NAME of its file.
    pub certificate: String,
    /// NAME of the section `[acme.NAME]`.
    pub acme: String,
    /// Names that it is for.
    pub names: Vec<String>,
    /// `waiting` until it is due, `ordering`, or `failed` and waiting to try again.
    pub state: &'static str,
    /// Not before this it is ordered.
    pub next: String,
    /// Why then.
    pub because: &'static str,
    /// Failures since the last success.
    pub failures: u32,
    /// Why the last order failed.
    pub reason: Option<String>,
}

/// A certificate as it stands.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateReport {
    /// NAME of its files.
    pub name: String,
    /// `ok`, `kept-old`, `refused`, `not-valid` or `revoked`.
    pub state: &'static str,
    /// Why it is not well.
    pub reason: Option<String>,
    /// Names that it is for. From here on: what is served, absent if nothing is.
    pub names: Vec<String>,
    /// Kind and size of its key.
    pub key: Option<String>,
    /// Distinguished name of its issuer.
    pub issuer: Option<String>,
    /// Serial number in hexadecimal.
    pub serial: Option<String>,
    /// Since when it is valid.
    pub not_before: Option<String>,
    /// Until when it is valid.
    pub not_after: Option<String>,
    /// Whole days until then; negative after it.
    pub days_left: Option<i64>,
    /// Certificates in the chain that is sent.
    pub chain_length: usize,
    /// The OCSP response that is sent with it.
    pub staple: StapleReport,
    /// What could be better.
    pub notes: Vec<String>,
    /// Its files: certificate, key, then what else there is.
    pub files: Vec<String>,
}

/// The OCSP response of a certificate.
#[derive(Clone, Debug, Serialize)]
pub struct StapleReport {
    /// `sent`, `none`, or `not-needed` for a certificate without a responder.
    pub state: &'static str,
    /// Where it came from: `file`, `responder`, or `kept` (from the responder, before a restart).
    pub origin: Option<&'static str>,
    /// When what it says was known.
    pub since: Option<String>,
    /// Until when it may be sent.
    pub until: Option<String>,
    /// Why there is none, or why a newer one is not used.
    pub reason: Option<String>,
    /// Responders that the certificate names.
    pub responders: Vec<String>,
}

/// Every certificate, or those with this text in their names.
pub fn read(front: &Front, wanted: Option<&str>) -> Vec<DirectoryReport> {
    let snapshot = front.snapshot.load();
    let plans: Vec<&ListenerPlan> = snapshot
        .config
        .listeners
        .iter()
        .filter_map(|listener| snapshot.listeners.get(&listener.name).map(|plan| &**plan))
        .collect();
    let wanted = wanted.map(str::to_ascii_lowercase);
    let is_wanted = |certificate: &Certificate| {
        let Some(wanted) = &wanted else { return true };
        let of_pair = certificate.pair.iter().flat_map(|pair| pair.facts().names.iter());
        of_pair.chain([&certificate.name]).any(|name| name.to_ascii_lowercase().contains(wanted))
    };
    let now = SystemTime::now();
    stores(plans.iter().copied())
        .into_iter()
        .map(|store| {
            let serves = |plan: &&&ListenerPlan| {
                plan.tls.as_ref().is_some_and(|tls| tls.stores().any(|other| Arc::ptr_eq(other, store)))
            };
            let certificates: Vec<_> =
                store.report().iter().filter(|it| is_wanted(it)).map(|it| one(it, now)).collect();
            let mut faults = store.faults();
            if wanted.is_some() {
                let files: Vec<_> = certificates.iter().flat_map(|one| &one.files).collect();
                faults.retain(|fault| files.iter().any(|file| fault.contains(file.as_str())));
            }
            DirectoryReport {
                directory: store.directory().display().to_string(),
                listeners: plans.iter().filter(serves).map(|plan| plan.settings.name.to_string()).collect(),
                faults,
                certificates,
                orders: orders(front, &snapshot.config, store, wanted.as_deref()),
            }
        })
        .filter(|it| wanted.is_none() || !it.certificates.is_empty() || !it.orders.is_empty())
        .collect()
}

/// The directories of these listeners, each once.
pub(crate) fn stores<'a>(listeners: impl Iterator<Item = &'a ListenerPlan>) -> Vec<&'a Arc<Store>> {
    let mut stores: Vec<&Arc<Store>> = Vec::new();
    for store in listeners.filter_map(|plan| plan.tls.as_ref()).flat_map(|tls| tls.stores()) {
        if !stores.iter().any(|other| Arc::ptr_eq(other, store)) {
            stores.push(store);
        }
    }
    stores
}

/// What is ordered into this directory.
fn orders(front: &Front, config: &Config, store: &Store, wanted: Option<&str>) -> Vec<OrderReport> {
    let sections = config.acme.iter().filter(|section| section.certificates_directory() == store.directory());
    let all = sections.flat_map(|section| {
        let report = |(name, standing): (Arc<str>, acme::Standing)| OrderReport {
            certificate: name.to_string(),
            acme: section.name.to_string(),
            names: standing.names,
            state: standing.phase.word(),
            next: timestamp(standing.next.at),
            because: standing.next.reason.words(),
            failures: standing.failures,
            reason: standing.reason,
        };
        front.state.acme.of_section(&section.name).into_iter().map(report)
    });
    all.filter(|order| wanted.is_none_or(|wanted| order.names.iter().any(|name| name.contains(wanted))))
        .collect()
}

fn one(certificate: &Certificate, now: SystemTime) -> CertificateReport {
    let pair = certificate.pair.as_deref();
    let facts = pair.map(|pair| pair.facts());
    let staple = pair.and_then(|pair| pair.staple(now));
    CertificateReport {
        name: certificate.name.clone(),
        state: certificate.standing.word(),
        reason: certificate.reason.clone(),
        names: facts.map(|facts| facts.names.clone()).unwrap_or_default(),
        key: facts.map(|facts| facts.key.clone()),
        issuer: facts.map(|facts| facts.issuer.clone()),
        serial: facts.map(|facts| facts.serial.iter().map(|byte| format!("{byte:02x}")).collect()),
        not_before: facts.map(|facts| timestamp(facts.not_before)),
        not_after: facts.map(|facts| timestamp(facts.not_after)),
        days_left: facts.map(|facts| days_between(now, facts.not_after)),
        chain_length: pair.map_or(0, |pair| pair.chain_length()),
        staple: StapleReport {
            state: match (&staple, facts.is_some_and(|facts| facts.responders.is_empty())) {
                (Some(_), _) => "sent",
                (None, true) => "not-needed",
                (None, false) => "none",
            },
            origin: staple.as_ref().map(|staple| staple.origin.word()),
            since: staple.as_ref().map(|staple| timestamp(staple.good.this_update)),
            until: staple.as_ref().map(|staple| timestamp(staple.good.until)),
            reason: pair.and_then(|pair| pair.staple_fault(now)),
            responders: facts.map(|facts| facts.responders.clone()).unwrap_or_default(),
        },
        notes: certificate.notes.clone(),
        files: certificate.files.iter().map(|path| path.display().to_string()).collect(),
    }
}

fn days_between(now: SystemTime, then: SystemTime) -> i64 {
    const DAY: u64 = 24 * 60 * 60;
    let days = |seconds: u64| i64::try_from(seconds / DAY).unwrap_or(i64::MAX);
    match then.duration_since(now) {
        Ok(left) => days(left.as_secs()),
        Err(over) => -1 - days(over.duration().as_secs()),
    }
}

/// The tables for people, of what `read` found for `wanted`.
pub fn text(directories: &[DirectoryReport], wanted: Option<&str>) -> String {
    let mut out = String::new();
    match wanted {
        Some(wanted) if directories.is_empty() => {
            push_line(&mut out, &format!("no certificate has \"{}\" in one of its names", printable(wanted)));
        }
        None if directories.is_empty() => push_line(&mut out, "no listener has tls"),
        _ => {}
    }
    for directory in directories {
        let count = plural(directory.certificates.len(), "certificate");
        let listeners = directory.listeners.join(", ");
        push_line(&mut out, &format!("{} ({listeners}): {count}", printable(&directory.directory)));
        for fault in &directory.faults {
            push_line(&mut out, &format!("  ! {}", printable(fault)));
        }
        let mut table = Table::default();
        table.header(["certificate", "state", ">days", "until", "key", "staple", "issuer", "names", "file"]);
        for certificate in &directory.certificates {
            table.row(row(certificate));
        }
        table.render(&mut out);
        for certificate in &directory.certificates {
            if let Some(reason) = &certificate.staple.reason {
                let line = format!("  {}: staple: {}", printable(&certificate.name), printable(reason));
                push_line(&mut out, &line);
            }
            for note in &certificate.notes {
                push_line(&mut out, &format!("  {}: {}", printable(&certificate.name), printable(note)));
            }
        }
        directory.orders.iter().for_each(|order| push_line(&mut out, &line(order)));
    }
    out
}

fn line(order: &OrderReport) -> String {
    let OrderReport { certificate, state, next, because, failures, .. } = order;
    let certificate = printable(certificate);
    match &order.reason {
        Some(reason) => {
            let times = plural(*failures as usize, "failure");
            format!("  ! {certificate}: {state}: {times}, the next try is at {next}: {}", printable(reason))
        }
        None => format!("  {certificate}: {state}: next order at {next}, {because}"),
    }
}

fn row(certificate: &CertificateReport) -> [String; 9] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
    let until = certificate.not_after.as_deref().and_then(|until| until.split('T').next());
    let shown =
        certificate.names.iter().take(NAMES).map(|name| printable(name)).collect::<Vec<_>>().join(" ");
    let names = match certificate.names.len().saturating_sub(NAMES) {
        0 if certificate.names.is_empty() => "-".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    };
    let state = if certificate.state == Standing::Ok.word() {
        certificate.state.to_owned()
    } else {
        certificate.state.to_uppercase()
    };
    [
        printable(&certificate.name),
        state,
        certificate.days_left.map_or("-".to_owned(), |days| days.to_string()),
        until.unwrap_or("-").to_owned(),
        text(&certificate.key),
        certificate.staple.state.to_owned(),
        text(&certificate.issuer),
        names,
        certificate.files.first().map_or("-".to_owned(), |file| printable(file)),
    ]
}

/// Names shown of a certificate.
const NAMES: usize = 3;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_whole_and_negative_once_it_is_over() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        assert_eq!(days_between(now, now + day * 30), 30);
        assert_eq!(days_between(now, now + day / 2), 0);
        assert_eq!(days_between(now, now - day / 2), -1);
        assert_eq!(days_between(now, now - day * 3), -4);
    }
}
