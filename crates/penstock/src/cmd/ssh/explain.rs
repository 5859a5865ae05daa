//! `penstock ssh explain`: explains one connection attempt step by step.

use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use hosts::fleet::ending::{Failure as Unreached, Phase, Reason};
use hosts::identity::{Found, Index};
use hosts::ssh::config::Resolved;
use hosts::ssh::place::NameWithPort;
use serde_json::{Value, json};
use ssh::identity::{Identities, Places, Store, certificate};
use ssh::{
    Explanation, Facts, HostVerifier, Keys, Offered, Place, Quantum, Step, Strict, Target, Terrapin, Verdict,
    explain,
};
use text::units;

use super::config::{refuse, summary};
use super::host_arguments::HostArguments;
use crate::output::{Failure, plain_lines, print, print_json};
use crate::threads;

/// Try to log in to a host, and report every step and advice
///
/// Connects, verifies the host's identity and logs in as `penstock run` would, then disconnects: no command is run
/// there. Shows the settings of the configuration and their lines, the messages of the host, the keys that were tried,
/// the source of each and the answer of the host.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    whom: HostArguments,
}

const EXAMPLES: &str = "\
Examples:
  penstock ssh explain web1
  penstock ssh explain deploy@web1 -J gate --json

Exit codes: 0 logged in; 1 not; 2 wrong usage, or the configuration has faults.";

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let asked = arguments.whom.asked()?;
    let config = arguments.whom.read()?;
    let resolved = config.resolve(&asked).map_err(|faults| refuse(&faults))?;
    let configured = Target::from_config(&config, &asked).map_err(wrong)?;
    let places = Places::of_user().map_err(Failure::runtime)?;
    let identities =
        Arc::new(Identities::load(Store::new(places)).map_err(|error| Failure::Runtime(error.into()))?);
    let hinted = configured.target.hinted(&config, identities.index());
    let target = hinted.map_err(wrong)?;
    let runtime = threads::runtime(2)?;
    let judge = Arc::clone(&identities) as Arc<dyn HostVerifier>;
    let story = runtime.block_on(explain(judge, Arc::new(Keys::new()), &target));
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    match arguments.whom.json {
        true => print_json(&format!("{:#}\n", as_json(&resolved, &target, &story, identities.index())))?,
        false => print(&plain_lines(&text(&resolved, &target, &story, identities.index())))?,
    }
    match story.outcome {
        Ok(_) => Ok(()),
        Err(failure) => {
            Err(Failure::runtime(format!("not logged in ({}: {})", failure.phase, failure.reason)))
        }
    }
}

/// Reports faults in the configuration.
fn wrong(failure: Unreached) -> Failure {
    let hint = failure.advice.map(|advice| format!("\n  hint: {advice}")).unwrap_or_default();
    Failure::usage(plain_lines(&format!("{}{hint}", failure.detail)))
}

fn text(resolved: &Resolved, target: &Target, story: &Explanation, index: &Index) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:11} {}", text.replace('\n', "\n            "));
    };
    line("host", &format!("{}: {}", resolved.typed, summary(resolved)));
    for setting in &resolved.settings {
        let place = setting.place.as_ref().map_or("command line".to_owned(), ToString::to_string);
        line("config", &format!("{} {} ({place})", setting.keyword.name(), setting.value));
    }
    if let Some(overruled) = target.overruled() {
        line("proxy", &overruled);
    }
    for step in &story.steps {
        match step {
            Step::Phase(phase) if *phase < Phase::Identity => {
                line(phase.word(), &reached(resolved, story, *phase))
            }
            Step::Phase(_) => {}
            Step::Identity { host, place, offered, verdict } => {
                line("identity", &format!("{host} at {place} showed {}", key(offered)));
                line("", &judged(verdict, host, place, offered, index));
            }
            Step::Handshake { host, facts } => {
                line("server", &format!("{host} is {}", facts.server));
                line("algorithms", &algorithms(facts));
            }
            Step::Attempt(attempt) => line("log in", &attempt.to_string()),
        }
    }
    match &story.outcome {
        Ok(facts) => line("done", &format!("logged in as {} with {}", resolved.user, or_none(&facts.key))),
        Err(failure) => {
            line("failed", &format!("{} ({}): {}", failure.phase, failure.reason, failure.detail));
            for advice in advice(resolved, failure, story) {
                line("advice", &advice);
            }
        }
    }
    out
}

/// Describes a phase before SSH: address and duration.
fn reached(resolved: &Resolved, story: &Explanation, phase: Phase) -> String {
    let facts = story.steps.iter().rev().find_map(|step| match step {
        Step::Handshake { host, facts } if host == resolved.identity() => Some(facts),
        _ => None,
    });
    let place = story.steps.iter().rev().find_map(|step| match step {
        Step::Identity { host, place, .. } if host == resolved.identity() => Some(place.to_string()),
        _ => None,
    });
    let took = facts.map(|facts| match phase {
        Phase::Resolve => facts.timings.resolve,
        _ => facts.timings.connect,
    });
    let took = took.map(units::duration);
    match (phase, place, took) {
        (Phase::Resolve, _, Some(took)) => format!("{} in {took}", resolved.host),
        (Phase::Resolve, ..) => resolved.host.clone(),
        (_, Some(place), Some(took)) => format!("{place} in {took}"),
        (_, Some(place), None) => place,
        _ => format!("{}:{}", resolved.host, resolved.port),
    }
}

/// Returns the advice for a failure, with the options of this command.
fn advice(resolved: &Resolved, failure: &Unreached, story: &Explanation) -> Vec<String> {
    let here = NameWithPort::of(&resolved.typed).filter(|_| failure.reason == Reason::NoAddress);
    let here =
        here.map(|meant| format!("for this once: penstock ssh explain {} -p {}", meant.host, meant.port));
    failure.advice.iter().chain(&story.hints).cloned().chain(here).collect()
}

fn or_none(key: &str) -> &str {
    if key.is_empty() { "no key: the server asked for none" } else { key }
}

fn key(offered: &Offered) -> String {
    match offered {
        Offered::Key(key) => format!("{} {}", key.algorithm(), key.fingerprint()),
        Offered::Certificate(key) => format!("a certificate, {} {}", key.algorithm(), key.fingerprint()),
    }
}

fn key_json(offered: &Offered) -> Value {
    let (Offered::Key(key) | Offered::Certificate(key)) = offered;
    json!({
        "type": key.algorithm(),
        "fingerprint": key.fingerprint().to_string(),
        "certificate": matches!(offered, Offered::Certificate(_)),
    })
}

fn judged(verdict: &Verdict, host: &str, place: &Place, offered: &Offered, index: &Index) -> String {
    match verdict {
        Verdict::Accepted { note } => {
            let note = note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            format!("accepted: {}{note}", grounds(host, place, offered, index))
        }
        Verdict::Refused { message, .. } => format!("refused: {message}"),
    }
}

/// Explains why a host was accepted, by the identities before the connection.
fn grounds(name: &str, place: &Place, offered: &Offered, index: &Index) -> String {
    let port = match place {
        Place::Address(address) => address.port(),
        Place::Jumped { port, .. } | Place::Command { port } => *port,
    };
    let host = if let Found::Host(host) = index.find(name, port) { Some(host) } else { None };
    let (key, authority) = match offered {
        Offered::Key(key) => (key.clone(), None),
        Offered::Certificate(blob) => match certificate(blob) {
            Ok(read) => (read.key, Some(read.authority)),
            Err(_) => (blob.clone(), None),
        },
    };
    let known = index.authorities_of(name, host);
    let authority = authority.and_then(|key| known.into_iter().find(|(_, known)| **known == key));
    match (authority, host.and_then(|host| host.pin(&key))) {
        (Some((called, key)), _) => {
            let called = called.map_or_else(String::new, |name| format!("@{name} "));
            format!("its certificate is signed by the authority {called}{}", key.fingerprint())
        }
        (None, Some(pin)) => format!("its key is pinned (from={} {})", pin.proof, pin.date),
        (None, None) => "the key matches its signed SSHFP records in the DNS".to_owned(),
    }
}

fn algorithms(facts: &Facts) -> String {
    let Some(negotiated) = &facts.negotiated else { return "not known".to_owned() };
    let quantum = match negotiated.quantum {
        Quantum::Safe => "post-quantum",
        Quantum::Exposed => "not post-quantum: a quantum computer could decrypt a recording",
    };
    let strict = match negotiated.terrapin() {
        Terrapin::Closed => "",
        Terrapin::CipherHolds => {
            "; the server has no strict key exchange, but this cipher is not affected by Terrapin"
        }
        Terrapin::Open => {
            "; vulnerable to Terrapin (CVE-2023-48795): the server has no strict key exchange, and with this cipher an attacker on the path can remove messages unnoticed"
        }
    };
    format!(
        "{} ({quantum}), host key {}, cipher {}, integrity {}{strict}",
        negotiated.kex, negotiated.host_key, negotiated.cipher, negotiated.mac
    )
}

fn as_json(resolved: &Resolved, target: &Target, story: &Explanation, index: &Index) -> Value {
    let steps: Vec<Value> = story
        .steps
        .iter()
        .map(|step| match step {
            Step::Phase(phase) => json!({ "step": "phase", "phase": phase.word() }),
            Step::Identity { host, place, offered, verdict } => json!({
                "step": "identity",
                "host": host,
                "address": place.to_string(),
                "key": key_json(offered),
                "accepted": matches!(verdict, Verdict::Accepted { .. }),
                "detail": judged(verdict, host, place, offered, index),
            }),
            Step::Handshake { host, facts } => json!({
                "step": "handshake",
                "host": host,
                "server": facts.server,
                "algorithms": facts.negotiated.as_ref().map(|found| json!({
                    "kex": found.kex,
                    "host_key": found.host_key,
                    "cipher": found.cipher,
                    "mac": found.mac,
                    "strict_kex": found.strict == Strict::Yes,
                    "terrapin_vulnerable": found.terrapin() == Terrapin::Open,
                })),
            }),
            Step::Attempt(attempt) => json!({ "step": "attempt", "text": attempt.to_string() }),
        })
        .collect();
    let (logged_in, failure) = match &story.outcome {
        Ok(facts) => (Value::from(facts.key.clone()), Value::Null),
        Err(failure) => (
            Value::Null,
            json!({
                "phase": failure.phase.word(),
                "reason": failure.reason.word(),
                "detail": failure.detail,
                "advice": advice(resolved, failure, story),
            }),
        ),
    };
    json!({
        "host": resolved.typed,
        "summary": summary(resolved),
        "unused_proxy": target.overruled(),
        "steps": steps,
        "logged_in_with": logged_in,
        "failure": failure,
    })
}
