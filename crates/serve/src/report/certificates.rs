//! Status of all certificates, for `penstock ctl certs`.

use std::sync::Arc;
use std::time::SystemTime;

use config::Config;
use logic::acme::Reason;
use proxy::front::Front;
use proxy::snapshot::ListenerPlan;
use serde::Serialize;
use state::acme;
use state::events::timestamp;
use text::table::Table;
use text::terminal;
use text::units::count;
use tls::{Certificate, CertificateState, Issuer, Store};

use super::tables::push_line;

#[derive(Clone, Debug, Serialize)]
pub struct DirectoryReport {
    pub directory: String,
    pub listeners: Vec<String>,
    /// Faults of the directory, one sentence each.
    pub faults: Vec<String>,
    /// Sorted: broken certificates first, then by time to expiry.
    pub certificates: Vec<CertificateReport>,
    /// Orders from an authority into this directory, sorted by name.
    pub orders: Vec<OrderReport>,
}

/// Status of a certificate that is ordered and renewed automatically.
#[derive(Clone, Debug, Serialize)]
pub struct OrderReport {
    /// NAME of the certificate's file.
    pub certificate: String,
    /// NAME of the section `[acme.NAME]`.
    pub acme: String,
    pub names: Vec<String>,
    /// `waiting` until the order is due, `ordering`, or `failed` until the next attempt.
    pub state: &'static str,
    /// Earliest time of the next order.
    pub next_order: String,
    /// Serialized as one word.
    #[serde(serialize_with = "reason_word")]
    pub next_order_reason: Reason,
    /// Failures since the last success.
    pub failures: u32,
    /// Reason of the last failure.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CertificateReport {
    pub name: String,
    /// A word of [`CertificateState`].
    pub state: &'static str,
    /// Reason if the state is not ok.
    pub reason: Option<String>,
    /// DNS names in the served certificate. All fields from here on are empty if none is served.
    pub names: Vec<String>,
    /// Type and size of the public key.
    pub key: Option<String>,
    /// Distinguished name of the issuer.
    pub issuer: Option<String>,
    /// Whether this system trusts the issuer: without that, the default of `hsts` sends no header.
    pub issuer_trusted: Option<bool>,
    /// Serial number in hexadecimal.
    pub serial: Option<String>,
    /// Start of the validity.
    pub not_before: Option<String>,
    /// End of the validity.
    pub not_after: Option<String>,
    /// Whole days until the end of the validity; negative after it.
    pub days_left: Option<i64>,
    /// Number of certificates in the chain that is sent.
    pub chain_length: usize,
    /// OCSP response that is sent with the certificate.
    pub staple: StapleReport,
    /// Advice for a better certificate.
    pub notes: Vec<String>,
    /// Paths of the certificate, the key, then other files.
    pub files: Vec<String>,
}

/// Status of a certificate's OCSP response.
#[derive(Clone, Debug, Serialize)]
pub struct StapleReport {
    /// `sent`, `none`, or `not-needed` for a certificate without a responder.
    pub state: &'static str,
    /// `file`, `responder`, or `stored` (from the responder, before a restart).
    pub origin: Option<&'static str>,
    /// thisUpdate (RFC 6960 section 4.2.2.1).
    pub this_update: Option<String>,
    /// nextUpdate: the response is not sent after this time.
    pub next_update: Option<String>,
    /// Reason why there is no response, or why a newer one is not used.
    pub reason: Option<String>,
    /// URLs of the responders that the certificate names.
    pub responders: Vec<String>,
}

/// Reports every certificate, or those with `wanted` in a name.
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

/// Returns the certificate stores of the listeners, each once.
pub(crate) fn stores<'a>(listeners: impl Iterator<Item = &'a ListenerPlan>) -> Vec<&'a Arc<Store>> {
    let mut stores: Vec<&Arc<Store>> = Vec::new();
    for store in listeners.filter_map(|plan| plan.tls.as_ref()).flat_map(|tls| tls.stores()) {
        if !stores.iter().any(|other| Arc::ptr_eq(other, store)) {
            stores.push(store);
        }
    }
    stores
}

/// Reports the orders into the directory of `store`.
fn orders(front: &Front, config: &Config, store: &Store, wanted: Option<&str>) -> Vec<OrderReport> {
    let sections = config.acme.iter().filter(|section| section.certificates_directory() == store.directory());
    let all = sections.flat_map(|section| {
        let report = |(name, standing): (Arc<str>, acme::RenewalState)| OrderReport {
            certificate: name.to_string(),
            acme: section.name.to_string(),
            names: standing.names,
            state: standing.phase.word(),
            next_order: timestamp(standing.next.at),
            next_order_reason: standing.next.reason,
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
        issuer_trusted: pair.map(|pair| pair.issuer() == Issuer::Trusted),
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
            this_update: staple.as_ref().map(|staple| timestamp(staple.good.this_update)),
            next_update: staple.as_ref().map(|staple| timestamp(staple.good.until)),
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

/// Formats the result of `read` for `wanted` as tables for people.
pub fn text(directories: &[DirectoryReport], wanted: Option<&str>) -> String {
    let mut out = String::new();
    match wanted {
        Some(wanted) if directories.is_empty() => {
            push_line(
                &mut out,
                &format!("no certificate has \"{}\" in one of its names", terminal::line(wanted)),
            );
        }
        None if directories.is_empty() => push_line(&mut out, "no listener has tls"),
        _ => {}
    }
    for directory in directories {
        let count = count(directory.certificates.len(), "certificate");
        let listeners = directory.listeners.join(", ");
        push_line(&mut out, &format!("{} ({listeners}): {count}", terminal::line(&directory.directory)));
        for fault in &directory.faults {
            push_line(&mut out, &format!("  ! {}", terminal::line(fault)));
        }
        let mut table = Table::indented("  ");
        table.header(["certificate", "state", ">days", "until", "key", "staple", "issuer", "names", "file"]);
        for certificate in &directory.certificates {
            table.row(row(certificate));
        }
        out.push_str(&table.render());
        for certificate in &directory.certificates {
            if let Some(reason) = &certificate.staple.reason {
                let line =
                    format!("  {}: staple: {}", terminal::line(&certificate.name), terminal::line(reason));
                push_line(&mut out, &line);
            }
            for note in &certificate.notes {
                push_line(
                    &mut out,
                    &format!("  {}: {}", terminal::line(&certificate.name), terminal::line(note)),
                );
            }
        }
        directory.orders.iter().for_each(|order| push_line(&mut out, &line(order)));
    }
    out
}

fn line(order: &OrderReport) -> String {
    let OrderReport { certificate, state, next_order, failures, .. } = order;
    let certificate = terminal::line(certificate);
    match &order.reason {
        Some(reason) => {
            let times = count(*failures as usize, "failure");
            format!(
                "  ! {certificate}: {state}: {times}, next try at {next_order}: {}",
                terminal::line(reason)
            )
        }
        None => format!(
            "  {certificate}: {state}: next order at {next_order}, {}",
            order.next_order_reason.words()
        ),
    }
}

fn reason_word<S: serde::Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.word())
}

fn row(certificate: &CertificateReport) -> [String; 9] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), terminal::line);
    let until = certificate.not_after.as_deref().and_then(|until| until.split('T').next());
    let shown =
        certificate.names.iter().take(NAMES).map(|name| terminal::line(name)).collect::<Vec<_>>().join(" ");
    let names = match certificate.names.len().saturating_sub(NAMES) {
        0 if certificate.names.is_empty() => "-".to_owned(),
        0 => shown,
        more => format!("{shown} and {more} more"),
    };
    let state = if certificate.state == CertificateState::Ok.word() {
        certificate.state.to_owned()
    } else {
        certificate.state.to_uppercase()
    };
    [
        terminal::line(&certificate.name),
        state,
        certificate.days_left.map_or("-".to_owned(), |days| days.to_string()),
        until.unwrap_or("-").to_owned(),
        text(&certificate.key),
        certificate.staple.state.to_owned(),
        text(&certificate.issuer),
        names,
        certificate.files.first().map_or("-".to_owned(), |file| terminal::line(file)),
    ]
}

/// Largest number of names shown per certificate.
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
