//! Formats a report for people.

use std::fmt::Write as _;
use std::time::SystemTime;

use text::terminal::plain;
use text::wrap::wrapped;

use crate::finding::{Effect, Finding};
use crate::judge::{LONG_HSTS, PRELOAD_HSTS, day};
use crate::observed::{ChainOrder, ChainSeen, Feature, Hsts, NameMatch, Observed, Order, Staple, Trusted};
use crate::score::{SHARES, Score};
use crate::{Letter, Report};

/// Which server was tested, as far as known: the report gives the advice for that server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Penstock,
    Unknown,
}

/// Formats the whole report. It ends with a line break.
pub fn text(report: &Report, whose: Whose, now: SystemTime) -> String {
    let mut out = String::new();
    headline(&mut out, report);
    if let Some(score) = &report.verdict.score {
        points(&mut out, score, &report.observed);
    }
    out.push('\n');
    facts(&mut out, &report.observed, &report.trust, now);
    let is = |wanted: fn(&Effect) -> bool| {
        report.verdict.findings.iter().filter(move |finding| wanted(&finding.effect)).collect::<Vec<_>>()
    };
    let costly = is(|effect| matches!(effect, Effect::Cap { .. } | Effect::NoPlus));
    if !costly.is_empty() {
        section(&mut out, "What costs the A+", &costly, whose);
    } else if report.verdict.grade.is_some_and(|grade| grade != Letter::APlus) {
        out.push_str("\nWhat costs the A+\n  Too few points.\n");
    }
    section(
        &mut out,
        "What costs points, not the grade",
        &is(|effect| matches!(effect, Effect::Points { .. })),
        whose,
    );
    section(&mut out, "What could be better", &is(|effect| matches!(effect, Effect::Advice)), whose);
    if !report.observed.incomplete.is_empty() {
        out.push_str("\nNo grade, because this is not known\n");
        for what in &report.observed.incomplete {
            let _ = writeln!(out, "  - {what}");
        }
    }
    out
}

fn headline(out: &mut String, report: &Report) {
    let grade = match (report.verdict.grade, report.verdict.grade_if_trusted) {
        (None, _) => "no grade".to_owned(),
        (Some(grade @ (Letter::T | Letter::M)), Some(otherwise)) => {
            let why = if grade == Letter::M { "for this name" } else { "trusted" };
            format!("{grade}  (not {why}; it would be {otherwise})")
        }
        (Some(grade), _) => grade.to_string(),
    };
    let _ = writeln!(out, "{} at {}: {grade}\n", report.name, report.address);
}

fn points(out: &mut String, score: &Score, observed: &Observed) {
    let _ = writeln!(out, "Score {} of 100", score.total);
    let versions: Vec<_> = observed.versions.iter().map(|seen| seen.version.name()).collect();
    let (best, worst) = score.cipher_bits;
    let bits = if best == worst { format!("{best} bits") } else { format!("{worst} to {best} bits") };
    let rows = [
        ("protocols", score.protocols, versions.join(", ")),
        ("key exchange", score.key_exchange, format!("at the weakest {}", score.weakest_key)),
        ("ciphers", score.ciphers, bits),
    ];
    for ((name, points, why), share) in rows.into_iter().zip(SHARES) {
        let _ = writeln!(out, "  {name:<13} {points:>5} x {} %   {why}", share * 100.0);
    }
}

fn facts(out: &mut String, observed: &Observed, trust: &str, now: SystemTime) {
    for seen in &observed.versions {
        let names: Vec<String> = seen.suites.iter().map(|seen| seen.suite.name()).collect();
        let order = match seen.order {
            Order::Server => " (the server's order counts)",
            Order::Client => " (the client's order counts)",
            Order::Unknown => "",
        };
        let label = format!("{}{order}", seen.version.name());
        rows(out, &label, &names);
    }
    let groups: Vec<String> = observed.groups.iter().map(|seen| seen.group.name()).collect();
    row(out, "Groups", &groups.join(", "));
    row(out, "Post-quantum", word(observed.post_quantum));
    for chain in &observed.chains {
        certificate(out, chain, trust, now);
    }
    let resumption = [("TLS 1.3", observed.resumption_tls13), ("TLS 1.2", observed.resumption_tls12)];
    let resumption = resumption.map(|(version, feature)| format!("{version} {}", word(feature)));
    row(out, "Resumption", &resumption.join(", "));
    row(out, "ALPN", &if observed.alpn.is_empty() { "none".to_owned() } else { observed.alpn.join(", ") });
    let features = [
        ("renegotiation info", observed.secure_renegotiation),
        ("extended master secret", observed.extended_master_secret),
        ("fallback SCSV", observed.fallback_scsv),
        ("compression", observed.compression),
        ("heartbeat", observed.heartbeat),
    ];
    let features = features.map(|(name, feature)| format!("{name} {}", word(feature)));
    row(out, "Up to TLS 1.2", &features.join(", "));
    row(out, "HSTS", &hsts(&observed.hsts));
}

fn certificate(out: &mut String, chain: &ChainSeen, trust: &str, now: SystemTime) {
    let names = match chain.names.as_slice() {
        [] => "no name".to_owned(),
        names if names.len() > 4 => format!("{} and {} more", names[..4].join(", "), names.len() - 4),
        names => names.join(", "),
    };
    let fits = match chain.name {
        NameMatch::Yes => "",
        NameMatch::No => " (not for this name)",
    };
    row(out, "Certificate", &format!("{}, {}, for {names}{fits}", chain.key.kind, chain.signature));
    let time = match (chain.not_after.duration_since(now), chain.not_before <= now) {
        (Err(_), _) => format!("expired on {}", day(chain.not_after)),
        (Ok(_), false) => format!("valid only from {} on", day(chain.not_before)),
        (Ok(left), true) => {
            format!("valid until {}, {} days from now", day(chain.not_after), left.as_secs() / 86_400)
        }
    };
    row(out, "  time", &time);
    let order = match (chain.length, chain.order) {
        (1, _) => "the certificate alone".to_owned(),
        (length, ChainOrder::InOrder) => format!("{length} certificates, in order"),
        (length, ChainOrder::OutOfOrder) => format!("{length} certificates, in the wrong order"),
        (length, ChainOrder::Unrelated) => format!("{length} certificates, not all of them related"),
    };
    let trusted = match &chain.trust {
        Trusted::Yes => format!("trusted by {trust}"),
        Trusted::SelfSigned => format!("self-signed, not trusted by {trust}"),
        Trusted::UnknownIssuer(_) => format!("leads to none of {trust}"),
        Trusted::Untrusted(why) => format!("not trusted: {why}"),
    };
    row(out, "  chain", &format!("{order}; {trusted}"));
    let staple = match (&chain.staple, chain.responder, chain.must_staple) {
        (Staple::Good { until: Some(until) }, ..) => format!("good, until {}", day(*until)),
        (Staple::Good { until: None }, ..) => "good, with no expiry date".to_owned(),
        (Staple::Revoked, ..) => "revoked".to_owned(),
        (Staple::Unusable(why), ..) => format!("unusable: {why}"),
        (Staple::None, _, Feature::Yes) => "none, though the certificate promises one".to_owned(),
        (Staple::None, Feature::Yes, _) => "none, though the certificate names a responder".to_owned(),
        (Staple::None, ..) => "none; the certificate names no responder".to_owned(),
    };
    row(out, "  OCSP staple", &staple);
}

fn hsts(hsts: &Hsts) -> String {
    match hsts {
        Hsts::Missing => "not sent".to_owned(),
        Hsts::Unknown(why) => format!("not known: {why}"),
        Hsts::Malformed(value) => format!("not readable: {value}"),
        Hsts::Sent(policy) => {
            let long =
                if policy.max_age < LONG_HSTS { "too short for an A+" } else { "long enough for an A+" };
            let preload = match (policy.preload, policy.include_sub_domains) {
                (Feature::Yes, Feature::Yes) if policy.max_age >= PRELOAD_HSTS => "; may be preloaded",
                (Feature::Yes, _) => "; asks for preloading but does not meet its rules",
                _ => "",
            };
            format!("{} ({} days, {long}{preload})", policy.value, policy.max_age / 86_400)
        }
    }
}

fn section(out: &mut String, title: &str, findings: &[&Finding], whose: Whose) {
    if findings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    for finding in findings {
        let effect = match finding.effect {
            Effect::Cap { at: letter } => format!("{letter}: "),
            Effect::NoPlus => String::new(),
            Effect::Points { points } => format!("{points} points: "),
            Effect::Advice => String::new(),
        };
        wrap(out, "  - ", &format!("{effect}{}", finding.what));
        wrap(out, "    why: ", &finding.why);
        match whose {
            Whose::Penstock => wrap(out, "    do:  ", &finding.penstock),
            Whose::Unknown
                if finding.penstock == finding.other_servers || finding.penstock.starts_with(NOT_OURS) =>
            {
                wrap(out, "    do:  ", &finding.other_servers)
            }
            Whose::Unknown => {
                wrap(out, "    do, with Penstock: ", &finding.penstock);
                wrap(out, "    do, elsewhere:     ", &finding.other_servers);
            }
        }
    }
}

fn rows(out: &mut String, label: &str, values: &[String]) {
    let _ = writeln!(out, "{label}");
    for value in values {
        let _ = writeln!(out, "  {}", plain(value));
    }
}

fn row(out: &mut String, label: &str, value: &str) {
    wrap(out, &format!("{label:<14} "), value);
}

/// Wraps text and indents the following lines. Names in certificates and field values are chosen by the server.
fn wrap(out: &mut String, start: &str, text: &str) {
    let indent = " ".repeat(start.chars().count());
    let _ = writeln!(out, "{}", wrapped(start, &indent, &plain(text), WIDTH).trim_end());
}

fn word(feature: Feature) -> &'static str {
    match feature {
        Feature::Yes => "yes",
        Feature::No => "no",
        Feature::Unknown => "unknown",
    }
}

const WIDTH: usize = 100;

/// Start of the advice for Penstock where its listeners cannot have the fault.
const NOT_OURS: &str = "nothing: ";
