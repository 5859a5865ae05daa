//! `penstock host why`: explains a decision about a host; connects only to ask the host for its key.

use std::net::IpAddr;
use std::sync::Arc;

use clap::Args;
use hosts::identity::{Address, Decision, Found, HostFile, Index, Name, Offered, Root, Verdict, unqueued};
use hosts::ssh::key::PublicKey;
use ssh::HostVerifier;
use ssh::identity::{self as judge, Identities, Store, fetch};

use super::known::failure;
use super::place::Place;
use crate::output::{Failure, plain, print, print_failed};
use crate::threads;

/// Explain the decision about a host, and its grounds
///
/// Asks the host for its key and judges it; nothing is recorded and nothing is sent but the handshake. With --key the
/// host is not asked.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  penstock host why web1\n  penstock host why web1 --key 'ssh-ed25519 AAAA...'"
)]
pub(super) struct Arguments {
    /// The host
    name: Name,
    /// Judge this key instead of asking the host
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    place: Place,
}

pub(super) fn run(store: &Store, arguments: &Arguments) -> Result<(), Failure> {
    let identities = Arc::new(Identities::load(store.clone()).map_err(failure)?);
    let runtime = threads::single()?;
    let name = &arguments.name;
    let mut text = grounds(identities.index(), name);
    let last_good = store.last_good(identities.index(), name.as_str(), 22);
    text.push_str(&last_good.map_or_else(String::new, |date| format!("last accepted {date}\n")));
    let mut unproved = false;
    let decision = runtime.block_on(async {
        let index = identities.index();
        let host = if let Found::Host(host) = index.find(name.as_str(), 22) { Some(host) } else { None };
        let target = arguments.place.target(name, host, index)?;
        if let Some(overruled) = target.overruled() {
            text.push_str(&format!("way       {}\n", plain(&overruled)));
        }
        let (offered, address): (Offered, Option<IpAddr>) = match &arguments.key {
            Some(key) => (judge::shown(&key.parse::<PublicKey>().map_err(Failure::usage)?), None),
            None => {
                let wanted = index.wanted(target.name.as_str(), Some(target.port));
                let shown = match fetch(&target, &wanted, Arc::clone(&identities) as Arc<dyn HostVerifier>).await {
                    Ok(shown) => shown,
                    Err(failure) => {
                        text.push_str(&format!("asked     {}\n", plain(&failure.detail)));
                        text.push_str("verdict   none: it could not be reached, and showed no key (--key checks a given key)\n");
                        if let Some(advice) = &failure.advice {
                            text.push_str(&format!("advice    {}\n", plain(advice)));
                        }
                        return Ok(None);
                    }
                };
                (shown.offered, shown.address.map(|address| address.ip().to_canonical()))
            }
        };
        let address_shown = address.map_or_else(String::new, |address| format!(" at {address}"));
        text.push_str(&format!("showed    {}{address_shown}\n", shown(&offered)));
        let pin = host.and_then(|host| host.pin(offered.key()));
        unproved = pin.is_some_and(|pin| pin.root() == Root::FirstUse);
        let mut decision = identities.decision(name.as_str(), address, target.port, &offered).await;
        if let Verdict::Refused { reason, advice, .. } = &mut decision.verdict {
            *advice = target.advice(*reason, std::mem::take(advice));
        }
        Ok::<Option<Decision>, Failure>(Some(decision))
    })?;
    if unproved {
        text.push_str("proof     none: that key was trusted on first use, and is not proved\n");
    }
    let Some(decision) = decision else {
        return Err(print_failed(&text, 1));
    };
    match decision.verdict {
        Verdict::Accepted { note } => {
            text.push_str(&format!(
                "verdict   accepted{}\n",
                note.map_or_else(String::new, |note| format!(": {note}"))
            ));
            print(&text)
        }
        Verdict::Refused { reason, message, advice } => {
            // `why` records nothing.
            text.push_str(&format!(
                "verdict   refused ({reason}): {}\nadvice    {}\n",
                plain(&message),
                plain(unqueued(&advice))
            ));
            Err(print_failed(&text, 1))
        }
    }
}

fn shown(offered: &Offered) -> String {
    match offered {
        Offered::Key(key) => format!("{} {}", key.algorithm(), key.fingerprint()),
        Offered::Certificate(certificate) => format!(
            "a certificate of {} for {}, with {} {}",
            certificate.authority.fingerprint(),
            plain(&certificate.principals.join(",")),
            certificate.key.algorithm(),
            certificate.key.fingerprint()
        ),
        Offered::Unreadable(blob, _) => {
            format!("{} {}, which is not a certificate", plain(blob.algorithm()), blob.fingerprint())
        }
    }
}

/// Describes what is known about the host before it shows a key.
fn grounds(index: &Index, name: &Name) -> String {
    let mut text = String::new();
    match index.find(name.as_str(), 22) {
        Found::Host(host) => {
            let what = if host.name() == name {
                String::new()
            } else {
                format!(" ({name} is another name or a hint of it)")
            };
            text.push_str(&format!("identity  {}{what}\n", host.name()));
            text.push_str(&lines(host));
        }
        Found::Unknown => text.push_str(&format!("identity  {name} is not enrolled\n")),
        Found::Damaged(damage) => text.push_str(&format!("identity  {} is damaged\n", plain(&damage.path))),
        Found::Ambiguous(names) => {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            text.push_str(&format!("identity  {name} is a hint of {}\n", names.join(" and ")));
        }
    }
    for authority in index.authorities().iter().filter(|authority| authority.speaks_for(name.as_str())) {
        text.push_str(&format!(
            "ca        @{} is its authority: a certificate is required\n",
            authority.name
        ));
    }
    text
}

fn lines(host: &HostFile) -> String {
    let mut text = String::new();
    for pin in host.pins() {
        let key = &pin.key;
        text.push_str(&format!(
            "pin       {} {} from={} {}\n",
            key.algorithm(),
            key.fingerprint(),
            pin.proof,
            pin.date
        ));
    }
    let hints = host.address();
    if hints != Address::default() {
        text.push_str(&format!("hints     {hints}\n"));
    }
    for signer in host.signers() {
        text.push_str(&format!("ca        {}\n", signer.authority));
    }
    if let Some(date) = host.retired() {
        text.push_str(&format!("retired   {date}\n"));
    }
    text
}
