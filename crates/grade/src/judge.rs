//! Computes the grade from points, caps and warnings. Its only inputs are the observations and the time: no sockets, no
//! clock.
//!
//! Caps and warnings come from the section "Changes" of the rating guide; the version that introduced each is noted
//! where it is applied. Rules that the guide does not have are advice and do not change the grade.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::finding::{Effect, Finding};
use crate::letter::Letter;
use crate::observed::{
    ChainOrder, ChainSeen, Feature, Hash, Hsts, NameMatch, Observed, Staple, SuiteSeen, Trusted,
};
use crate::score::{Score, score};
use crate::suite::{Exchange, Mode};
use crate::version::Version;

#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The grade. `None` if too little could be observed.
    pub grade: Option<Letter>,
    /// The grade if the certificate were trusted and valid for this name.
    pub grade_if_trusted: Option<Letter>,
    pub score: Option<Score>,
    /// Findings that lower the grade first, then those that cost points, then advice.
    pub findings: Vec<Finding>,
}

pub fn judge(observed: &Observed, now: SystemTime) -> Verdict {
    let score = score(observed);
    let mut findings = Vec::new();
    for chain in &observed.chains {
        trust(chain, now, &mut findings);
        certificate(chain, now, &mut findings);
    }
    protocols(observed, &mut findings);
    ciphers(observed, &mut findings);
    features(observed, &mut findings);
    hsts(&observed.hsts, &mut findings);
    if let Some(score) = &score {
        points(score, &mut findings);
    }
    findings.sort_by_key(|finding| match finding.effect {
        Effect::Cap { at: letter } => (0, u8::MAX - letter as u8),
        Effect::NoPlus => (1, 0),
        Effect::Points { .. } => (2, 0),
        Effect::Advice => (3, 0),
    });
    let graded = observed.incomplete.is_empty().then_some(score.as_ref()).flatten();
    let letter = |is_counted: fn(&Finding) -> bool| {
        let score = graded?;
        let counted = || findings.iter().filter(|finding| is_counted(finding)).map(|finding| finding.effect);
        let caps = counted().filter_map(|effect| match effect {
            Effect::Cap { at: letter } => Some(letter),
            _ => None,
        });
        let earned = Letter::of_points(score.total);
        let plus = earned == Letter::A && !counted().any(|effect| effect == Effect::NoPlus);
        let earned = if plus { Letter::APlus } else { earned };
        Some(caps.fold(earned, Letter::max))
    };
    Verdict {
        grade: letter(|_| true),
        grade_if_trusted: letter(|finding| {
            !matches!(finding.effect, Effect::Cap { at: Letter::T | Letter::M })
        }),
        score,
        findings,
    }
}

/// Finds the faults that make clients refuse the certificate: T and M (guide, "Certificate inspection" and step 4 of
/// the methodology).
fn trust(chain: &ChainSeen, now: SystemTime, findings: &mut Vec<Finding>) {
    let mut untrusted = |code, what: String, why: &str, penstock: &str, other_servers: &str| {
        findings.push(finding(code, Effect::Cap { at: Letter::T }, what, why, penstock, other_servers));
    };
    let of = format!("the certificate with {} key", with_article(&chain.key.kind));
    if now > chain.not_after {
        untrusted(
            "expired",
            format!("{of} expired on {}", day(chain.not_after)),
            "browsers refuse the page with a warning that stops most people",
            "renew it; a new pair of files in the directory is served within a second, without a reload",
            "renew the certificate, and make sure that the server reads the new file",
        );
    } else if now < chain.not_before {
        untrusted(
            "not-yet-valid",
            format!("{of} is valid only from {} on", day(chain.not_before)),
            "browsers refuse the page",
            "check the clock of this machine, or serve the certificate before until then",
            "check the clock of the machine that issued it, and of this one",
        );
    }
    match &chain.trust {
        Trusted::Yes => {}
        Trusted::SelfSigned => untrusted(
            "self-signed",
            format!("{of} is self-signed"),
            "clients cannot tell it from a forgery: browsers show a warning",
            "get a certificate from an authority; for an authority of your own: penstock tls-grade --ca FILE",
            "get a certificate from an authority; for an authority of your own: penstock tls-grade --ca FILE",
        ),
        Trusted::UnknownIssuer(issuer) => untrusted(
            "unknown-issuer",
            format!("{of} was issued by \"{issuer}\", which is neither sent nor trusted here"),
            "either an intermediate certificate is missing, which fails with many programs though some browsers find \
             it by themselves, or the authority is a private one",
            "put the intermediate certificates behind the certificate in NAME.crt (certbot: fullchain.pem), or into \
             NAME.ca; for a private authority use --ca FILE",
            "configure the full chain, not the certificate alone (nginx: ssl_certificate with fullchain.pem); for a \
             private authority use --ca FILE",
        ),
        Trusted::Untrusted(why) => untrusted(
            "not-trusted",
            format!("{of} is not trusted: {why}"),
            "clients that check certificates refuse the connection",
            "get a new certificate from the authority, with its current intermediate certificates",
            "get a new certificate from the authority, with its current intermediate certificates",
        ),
    }
    if chain.weakest_hash == Hash::Sha1 {
        untrusted(
            "sha1",
            format!("{of}, or one above it, is signed with SHA-1"),
            "such signatures can be forged, and browsers have refused them since 2017",
            "get a new certificate: every authority signs with SHA-256 today",
            "get a new certificate: every authority signs with SHA-256 today",
        );
    }
    if chain.staple == Staple::Revoked {
        untrusted(
            "revoked",
            format!("{of} was revoked: the stapled OCSP response says so"),
            "the authority has withdrawn it, mostly because the key was lost",
            "get a new certificate with a new key",
            "get a new certificate with a new key",
        );
    }
    if chain.weakest_hash == Hash::Md5 {
        findings.push(finding(
            "md5",
            Effect::Cap { at: Letter::F },
            format!("{of}, or one above it, is signed with MD5 or MD2"),
            "such signatures can be forged with little effort",
            "get a new certificate",
            "get a new certificate",
        ));
    }
    if chain.name == NameMatch::No {
        let names = match chain.names.as_slice() {
            [] => "no name at all".to_owned(),
            names if names.len() > 5 => format!("{} and {} more", names[..5].join(", "), names.len() - 5),
            names => names.join(", "),
        };
        findings.push(finding(
            "name-mismatch",
            Effect::Cap { at: Letter::M },
            format!("{of} is for {names}, not for the name that was asked for"),
            "browsers refuse the page, as they would refuse an impostor",
            "put a certificate for this name into the directory; --name says which name to ask for",
            "install a certificate for this name; --name says which name to ask for",
        ));
    }
}

fn certificate(chain: &ChainSeen, now: SystemTime, findings: &mut Vec<Finding>) {
    let mut say = |code, effect, what: String, why: &str, penstock: &str, other_servers: &str| {
        findings.push(finding(code, effect, what, why, penstock, other_servers));
    };
    match chain.order {
        ChainOrder::InOrder => {}
        ChainOrder::OutOfOrder => say(
            "chain-order",
            Effect::Advice,
            "the certificates are sent in the wrong order".to_owned(),
            "clients of TLS 1.2 and older may insist on each certificate being followed by its issuer (RFC 5246 \
             section 7.4.2)",
            "nothing: Penstock puts them in order by itself, so another server answers here",
            "in the file: the server's certificate first, then the one that issued it, and so on",
        ),
        ChainOrder::Unrelated => say(
            "chain-extra",
            Effect::Advice,
            "certificates are sent that have nothing to do with this one".to_owned(),
            "they make each handshake longer, and some clients refuse it",
            "remove them from NAME.crt and NAME.ca",
            "remove them from the file",
        ),
    }
    let (left, whole) =
        (chain.not_after.duration_since(now), chain.not_after.duration_since(chain.not_before));
    if let (Ok(left), Ok(whole)) = (left, whole)
        && now >= chain.not_before
        && left < (whole / 5).min(Duration::from_hours(14 * 24))
    {
        say(
            "expires-soon",
            Effect::Advice,
            format!(
                "the certificate expires on {}, in {} days",
                day(chain.not_after),
                left.as_secs() / 86_400
            ),
            "by now it should have been renewed: something may have stopped doing that",
            "look at what renews it, and at `penstock ctl certs`",
            "look at what renews it",
        );
    }
    if let Staple::Unusable(why) = &chain.staple {
        say(
            "staple-unusable",
            Effect::NoPlus,
            format!("the stapled OCSP response is unusable: {why}"),
            "some clients refuse the connection, others ask the authority and wait",
            "remove the file NAME.ocsp, or look why it is not renewed",
            "find out why the server does not renew its OCSP responses",
        );
    } else if chain.must_staple == Feature::Yes && chain.staple == Staple::None {
        say(
            "must-staple",
            Effect::NoPlus,
            "the certificate says that an OCSP response comes with it, and none does".to_owned(),
            "Firefox refuses the page",
            "see `penstock ctl certs` for why there is no response, or get a certificate without must-staple",
            "switch stapling on (nginx: ssl_stapling on), or get a certificate without must-staple",
        );
    }
}

fn protocols(observed: &Observed, findings: &mut Vec<Finding>) {
    let accepts = |version| observed.versions.iter().any(|seen| seen.version == version);
    let newest = observed.versions.iter().map(|seen| seen.version).max();
    let mut say = |code, letter, what: &str, why: &str| {
        let penstock = "nothing: Penstock knows only TLS 1.2 and 1.3, so another server answers here";
        let other_servers = "allow only TLS 1.2 and 1.3 (nginx: ssl_protocols TLSv1.2 TLSv1.3)";
        findings.push(finding(
            code,
            Effect::Cap { at: letter },
            what.to_owned(),
            why,
            penstock,
            other_servers,
        ));
    };
    // Rule of the guide's first version.
    if accepts(Version::Ssl2) {
        say(
            "ssl2",
            Letter::F,
            "SSL 2.0 is accepted",
            "it is broken, and endangers other servers with the same key",
        );
    }
    // 2009i; F for this alone since 2009j.
    if accepts(Version::Ssl3) {
        let letter = if newest == Some(Version::Ssl3) { Letter::F } else { Letter::C };
        say("ssl3", letter, "SSL 3.0 is accepted", "an attacker on the path can read parts of it (POODLE)");
    }
    // 2009q.
    for version in [Version::Tls10, Version::Tls11] {
        if accepts(version) {
            let what = format!("{} is accepted", version.name());
            say(
                "old-version",
                Letter::B,
                &what,
                "it rests on MD5 and SHA-1, and no browser has used it since 2020",
            );
        }
    }
    // 2009k.
    if newest < Some(Version::Tls12) {
        say("no-tls12", Letter::C, "TLS 1.2 is not accepted", "current browsers cannot connect at all");
    }
    // 2009r.
    if newest == Some(Version::Tls12) {
        findings.push(finding(
            "no-tls13",
            Effect::Cap { at: Letter::AMinus },
            "TLS 1.3 is not accepted".to_owned(),
            "it is faster, hides the certificate, and has only safe ciphers",
            "remove tls.ciphers, or add TLS_AES_256_GCM_SHA384 to it",
            "switch it on (nginx: ssl_protocols TLSv1.2 TLSv1.3)",
        ));
    }
}

fn ciphers(observed: &Observed, findings: &mut Vec<Finding>) {
    let penstock = "nothing: Penstock has no such cipher, so another server answers here";
    let other_servers =
        "allow only ECDHE with AES-GCM or ChaCha20 (nginx: ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20)";
    let all = || {
        let versions = observed.versions.iter();
        versions.flat_map(|seen| seen.suites.iter().map(move |suite| (seen.version, suite)))
    };
    let mut say = |code, letter, what: &str, why: &str, is_it: &dyn Fn(Version, &SuiteSeen) -> bool| {
        let mut names: Vec<String> = all()
            .filter(|(version, seen)| is_it(*version, seen))
            .map(|(_, seen)| seen.suite.name())
            .collect();
        names.sort();
        names.dedup();
        if let Some(first) = names.first() {
            let more = names.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let what = format!("{what}: {first}{more}");
            findings.push(finding(code, Effect::Cap { at: letter }, what, why, penstock, other_servers));
        }
    };
    // 2009: a category without points; 2009j for export ciphers.
    say(
        "no-encryption",
        Letter::F,
        "ciphers that do not encrypt are accepted",
        "every machine on the path can read the traffic",
        &|_, seen| seen.mode == Mode::Null,
    );
    say(
        "anonymous",
        Letter::F,
        "handshakes without a certificate are accepted",
        "any machine on the path can pose as this server",
        &|_, seen| seen.exchange == Exchange::Anonymous,
    );
    say(
        "broken-cipher",
        Letter::F,
        "ciphers of 56 bits and less are accepted",
        "they are broken within hours",
        &|_, seen| seen.mode != Mode::Null && seen.bits < 112,
    );
    // 2009i and 2009k.
    say(
        "rc4-modern",
        Letter::C,
        "RC4 is accepted with TLS 1.1 or newer",
        "an attacker can compute parts of the traffic",
        &|version, seen| seen.mode == Mode::Rc4 && version >= Version::Tls11,
    );
    say(
        "rc4",
        Letter::B,
        "RC4 is accepted",
        "an attacker can compute parts of the traffic",
        &|version, seen| seen.mode == Mode::Rc4 && version < Version::Tls11,
    );
    // 2009n.
    say(
        "small-blocks",
        Letter::C,
        "ciphers with blocks of 64 bits are accepted with TLS 1.1 or newer",
        "long connections leak (SWEET32)",
        &|version, seen| seen.has_small_blocks() && version >= Version::Tls11,
    );
    let accepts = |is_it: fn(&SuiteSeen) -> bool| all().any(|(_, seen)| is_it(seen));
    if all().next().is_none() {
        return;
    }
    // 2009p, both rules.
    if !accepts(|seen| matches!(seen.exchange, Exchange::Ecdhe | Exchange::Dhe)) {
        findings.push(finding(
            "no-forward-secrecy",
            Effect::Cap { at: Letter::B },
            "no cipher has forward secrecy".to_owned(),
            "with the key, an attacker can read all earlier recorded traffic",
            penstock,
            other_servers,
        ));
    } else if accepts(|seen| matches!(seen.exchange, Exchange::Rsa | Exchange::Ecdh)) {
        findings.push(finding(
            "static-keys",
            Effect::Advice,
            "some ciphers have no forward secrecy".to_owned(),
            "with the key, an attacker can read recorded traffic of clients that chose them",
            penstock,
            other_servers,
        ));
    }
    if !accepts(|seen| seen.mode == Mode::Aead) {
        findings.push(finding(
            "no-aead",
            Effect::Cap { at: Letter::B },
            "no cipher authenticates what it encrypts (AES-GCM, ChaCha20-Poly1305)".to_owned(),
            "older ciphers had padding oracles again and again",
            penstock,
            other_servers,
        ));
    } else if accepts(|seen| seen.mode == Mode::Cbc) {
        findings.push(finding(
            "cbc",
            Effect::Advice,
            "ciphers in CBC mode are accepted".to_owned(),
            "new padding oracles are found in implementations every few years",
            penstock,
            other_servers,
        ));
    }
}

fn features(observed: &Observed, findings: &mut Vec<Finding>) {
    let accepts = |is_it: fn(Version) -> bool| observed.versions.iter().any(|seen| is_it(seen.version));
    let foreign = "nothing: Penstock does not do this, so another server answers here";
    let mut say = |code, effect, what: &str, why: &str, penstock: &str, other_servers: &str| {
        findings.push(finding(code, effect, what.to_owned(), why, penstock, other_servers));
    };
    // 2009d.
    if observed.compression == Feature::Yes {
        let why = "an attacker on the path can guess cookies (CRIME)";
        say(
            "compression",
            Effect::Cap { at: Letter::C },
            "TLS compression is on",
            why,
            foreign,
            "switch it off, or update OpenSSL",
        );
    }
    // 2009d.
    if observed.secure_renegotiation == Feature::No {
        let why = "an attacker on the path can inject a request before that of a client";
        let other_servers = "update the TLS library: all have it since 2010 (RFC 5746)";
        say(
            "no-secure-renegotiation",
            Effect::Cap { at: Letter::AMinus },
            "secure renegotiation is not announced",
            why,
            foreign,
            other_servers,
        );
    }
    // 2009i; newer versions need no TLS_FALLBACK_SCSV (RFC 8446 section 4.1.3).
    if observed.fallback_scsv == Feature::No && accepts(|version| version < Version::Tls12) {
        let why = "an attacker on the path can make browsers use an older version than both could";
        let other_servers = "allow only TLS 1.2 and 1.3, or update the TLS library (RFC 7507)";
        say(
            "no-fallback-scsv",
            Effect::NoPlus,
            "TLS_FALLBACK_SCSV is not understood",
            why,
            foreign,
            other_servers,
        );
    }
    if observed.heartbeat == Feature::Yes {
        let why = "nothing on TCP needs it, and its best known implementation gave away memory (Heartbleed)";
        say("heartbeat", Effect::Advice, "heartbeats are offered", why, foreign, "update the TLS library");
    }
    if observed.post_quantum == Feature::No && accepts(|version| version == Version::Tls13) {
        say(
            "no-post-quantum",
            Effect::Advice,
            "there is no post-quantum key exchange",
            "what is recorded today can be read once large quantum computers exist; current browsers \
             offer X25519MLKEM768",
            "put X25519MLKEM768 first in tls.groups, or remove that key",
            "update the TLS library (OpenSSL 3.5 has it) and allow X25519MLKEM768",
        );
    }
    if [observed.resumption_tls12, observed.resumption_tls13] == [Feature::No; 2] {
        say(
            "no-resumption",
            Effect::Advice,
            "sessions are not resumed",
            "every connection costs a full handshake, on both sides",
            "look whether the name is served by several machines without common ticket keys",
            "switch a session cache or tickets on",
        );
    }
}

fn hsts(hsts: &Hsts, findings: &mut Vec<Finding>) {
    let why = "without it the first connection may be an unencrypted one, and stay so (RFC 6797)";
    let mut say = |code, effect, what: String, why: &str, penstock: &str, other_servers: &str| {
        findings.push(finding(code, effect, what, why, penstock, other_servers));
    };
    let other_servers = "send the header Strict-Transport-Security: max-age=31536000";
    match hsts {
        Hsts::Missing => say(
            "no-hsts",
            Effect::NoPlus,
            "Strict-Transport-Security is not sent".to_owned(),
            why,
            "set hsts = \"365d\" on the listener: without it the header is sent only if the server's own system trusts the issuer",
            other_servers,
        ),
        Hsts::Malformed(value) => say(
            "bad-hsts",
            Effect::NoPlus,
            format!("browsers cannot read the value of Strict-Transport-Security, \"{value}\""),
            why,
            "set hsts = \"365d\" on the listener, or remove the header that a backend sends",
            other_servers,
        ),
        Hsts::Unknown(reason) => say(
            "hsts-unknown",
            Effect::NoPlus,
            format!("whether Strict-Transport-Security is sent is not known: {reason}"),
            "an A+ needs it",
            "see that the listener answers GET /",
            "see that it answers GET / over HTTP/1.1",
        ),
        Hsts::Sent(policy) => {
            // 2009d says "long"; SSL Labs' API documentation says 180 days (LONG_MAX_AGE).
            if policy.max_age < LONG_HSTS {
                say(
                    "short-hsts",
                    Effect::NoPlus,
                    format!("Strict-Transport-Security is for {} days only", policy.max_age / 86_400),
                    "who comes back later than that may do so unencrypted; an A+ needs 180 days",
                    "set hsts = \"365d\" on the listener",
                    other_servers,
                );
            }
            let whole = policy.max_age >= PRELOAD_HSTS && policy.include_sub_domains == Feature::Yes;
            if policy.preload == Feature::Yes && !whole {
                say(
                    "hsts-preload",
                    Effect::Advice,
                    "Strict-Transport-Security says preload and is not good enough for it".to_owned(),
                    "browsers' preload lists take only names whose header has includeSubDomains and a max-age of at least 31536000",
                    "set hsts = \"preload\" on the listener",
                    "send Strict-Transport-Security: max-age=63072000; includeSubDomains; preload",
                );
            }
        }
    }
}

/// Adds a finding for each category with less than 100 points, unless another finding already covers it.
fn points(score: &Score, findings: &mut Vec<Finding>) {
    let lost = |points: f64, share: f64| ((100.0 - points) * share * 10.0).round() / 10.0;
    if score.key_exchange == 0.0 {
        // Anonymous key exchange, which has its own finding.
    } else if score.key_exchange <= 40.0 {
        // The guide calls such keys broken (2009d, and 2009k for Diffie-Hellman).
        findings.push(finding(
            "broken-key",
            Effect::Cap { at: Letter::F },
            format!("the weakest key exchange can be broken: {}", score.weakest_key),
            "who breaks it can read everything, or pose as this server",
            "use a certificate with an ECDSA P-256 or RSA 2048 key",
            "use a key of at least 2048 bits, and ECDHE instead of short Diffie-Hellman primes",
        ));
    } else if score.key_exchange < 90.0 {
        findings.push(finding(
            "weak-key",
            Effect::Cap { at: Letter::B },
            format!("the weakest key exchange is short: {}", score.weakest_key),
            "1024 bits are within reach of states",
            "use a certificate with an ECDSA P-256 or RSA 2048 key",
            "use a key of at least 2048 bits, and ECDHE instead of short Diffie-Hellman primes",
        ));
    } else if score.key_exchange < 100.0 {
        findings.push(finding(
            "key-points",
            Effect::Points { points: lost(score.key_exchange, 0.3) },
            format!("the weakest key exchange is {}", score.weakest_key),
            "it is safe; the guide gives full points from RSA 4096 on, at the price of slower handshakes",
            "leave it; for the points alone: a certificate with a P-384 key, and tls.groups = [\"P-384\"]",
            "leave it; for the points alone: a certificate with a P-384 key, and only P-384 for the key exchange",
        ));
    }
    if score.ciphers < 100.0 && score.cipher_bits.1 >= 128 {
        findings.push(finding(
            "cipher-points",
            Effect::Points { points: lost(score.ciphers, 0.4) },
            "ciphers with a key of 128 bits are accepted".to_owned(),
            "they are safe, and TLS 1.3 demands that servers have one of them (RFC 8446 section 9.1); the guide gives \
             full points to 256 bits only",
            "leave it where clients need them; for the points leave out tls.ciphers and policy = \"compatible\"",
            "leave it; for the points alone allow only those with AES-256 and ChaCha20",
        ));
    }
}

impl SuiteSeen {
    fn has_small_blocks(&self) -> bool {
        self.suite.has_small_blocks()
    }
}

fn finding(
    code: &'static str,
    effect: Effect,
    what: String,
    why: &str,
    penstock: &str,
    other_servers: &str,
) -> Finding {
    Finding {
        code,
        effect,
        what,
        why: why.to_owned(),
        penstock: penstock.to_owned(),
        other_servers: other_servers.to_owned(),
    }
}

fn with_article(kind: &str) -> String {
    // Chooses "an" or "a": "an ECDSA", "an RSA", "a DSA".
    let vowel = kind.starts_with(['E', 'R', 'A']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// Formats a date: `2026-12-20`.
pub(crate) fn day(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| "an unknown day".to_owned(), |time| time.strftime("%F").to_string())
}

/// 180 days, in seconds.
pub(crate) const LONG_HSTS: u64 = 15_552_000;
/// One year, in seconds (<https://hstspreload.org>).
pub(crate) const PRELOAD_HSTS: u64 = 31_536_000;

#[cfg(test)]
mod tests;
