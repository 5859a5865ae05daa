//! Computes the points of three categories by the rating guide.
//!
//! Source: SSL Server Rating Guide of SSL Labs, version 2009r of May 2025
//! (<https://github.com/ssllabs/research/wiki/SSL-Server-Rating-Guide>), section "Scoring":
//!
//! - **protocols**, 30 %: SSL 2.0 is 0 points, SSL 3.0 80, TLS 1.0 90, TLS 1.1 95, TLS 1.2 and 1.3 100; the mean of the
//!   best and the worst that is accepted (tables 3 and 4)
//! - **key exchange**, 30 %: the weakest that is accepted. Anonymous 0, export 40; otherwise by the shorter one of the
//!   certificate's key and the ephemeral key, as an RSA key of the same strength: below 512 bits 20 points, below 1024
//!   40, below 2048 80, below 4096 90, else 100 (table 5)
//! - **ciphers**, 40 %: none 0 points, below 128 bits 20, below 256 80, else 100; the mean of the best and the worst
//!   that is accepted (table 6)
//!
//! A category with 0 points makes the total 0.

use serde::Serialize;

use crate::group::Group;
use crate::observed::Observed;
use crate::suite::Exchange;
use crate::version::Version;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Points of 100.
    pub total: f64,
    /// Points of 100; 30 % of the total.
    pub protocols: f64,
    /// Points of 100; 30 % of the total.
    pub key_exchange: f64,
    /// Points of 100; 40 % of the total.
    pub ciphers: f64,
    /// The key that determined the points of the key exchange, in words.
    pub weakest_key: String,
    /// Strength of the strongest and of the weakest cipher, in bits.
    pub cipher_bits: (u16, u16),
}

/// Weight of each category in the total.
pub const SHARES: [f64; 3] = [0.3, 0.3, 0.4];

/// Computes the points. `None` if the listener accepted nothing that can be rated.
pub fn score(observed: &Observed) -> Option<Score> {
    let versions = observed.versions.iter().map(|seen| protocol_points(seen.version));
    let (best, worst) = ends(versions)?;
    let protocols = f64::midpoint(best, worst);
    let suites = || observed.versions.iter().flat_map(|seen| &seen.suites);
    let strongest = suites().map(|seen| seen.bits).max()?;
    let weakest = suites().map(|seen| seen.bits).min()?;
    let ciphers = f64::midpoint(cipher_points(strongest), cipher_points(weakest));
    let (key_exchange, weakest_key) = weakest_exchange(observed)?;
    let parts = [protocols, key_exchange, ciphers];
    let total = match parts.contains(&0.0) {
        true => 0.0,
        false => parts.iter().zip(SHARES).map(|(points, share)| points * share).sum(),
    };
    // Reports show tenths; smaller differences are floating-point errors.
    let total = (total * 10.0_f64).round() / 10.0;
    Some(Score { total, protocols, key_exchange, ciphers, weakest_key, cipher_bits: (strongest, weakest) })
}

fn ends(points: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    Some((points.clone().max_by(f64::total_cmp)?, points.min_by(f64::total_cmp)?))
}

fn protocol_points(version: Version) -> f64 {
    match version {
        Version::Ssl2 => 0.0,
        Version::Ssl3 => 80.0,
        Version::Tls10 => 90.0,
        Version::Tls11 => 95.0,
        Version::Tls12 | Version::Tls13 => 100.0,
    }
}

fn cipher_points(bits: u16) -> f64 {
    match bits {
        0 => 0.0,
        1..128 => 20.0,
        128..256 => 80.0,
        _ => 100.0,
    }
}

/// Returns the points for a key as strong as an RSA key of `rsa_bits`.
pub(crate) fn key_points(rsa_bits: u32) -> f64 {
    match rsa_bits {
        ..512 => 20.0,
        512..1024 => 40.0,
        1024..2048 => 80.0,
        2048..4096 => 90.0,
        _ => 100.0,
    }
}

/// Finds the weakest key that protects a key exchange: its points and its description.
fn weakest_exchange(observed: &Observed) -> Option<(f64, String)> {
    let mut found: Vec<(u32, f64, String)> = Vec::new();
    let mut add = |bits: u32, points: f64, what: String| found.push((bits, points, what));
    for chain in &observed.chains {
        add(
            chain.key.rsa_bits,
            key_points(chain.key.rsa_bits),
            format!("the {} key of a certificate", chain.key.kind),
        );
    }
    let suites = || observed.versions.iter().flat_map(|seen| &seen.suites);
    if suites().any(|seen| seen.exchange == Exchange::Ecdhe) {
        for Group(number) in observed.groups.iter().map(|seen| seen.group) {
            let group = Group(number);
            add(group.rsa_bits(), key_points(group.rsa_bits()), group.name());
        }
    }
    for seen in suites() {
        if seen.exchange == Exchange::Anonymous {
            add(0, 0.0, format!("{}, without any certificate", seen.suite.name()));
        } else if seen.suite.is_export() {
            add(512, 40.0, format!("{}, weakened for export", seen.suite.name()));
        } else if let Some(bits) = seen.dh_bits {
            add(bits, key_points(bits), format!("a Diffie-Hellman prime of {bits} bits"));
        }
    }
    let (bits, points, what) = found.into_iter().min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))?;
    let classical = what.starts_with("the RSA ") || what.contains("Diffie") || points == 0.0;
    Some((points, if classical { what } else { format!("{what} (as strong as RSA {bits})") }))
}
