//! One ACME order (RFC 8555 section 7.4), from the names to a certificate with its key or to a fault.

use std::sync::Arc;
use std::time::Duration;

use config::types::{AcmeCertificate, AcmeChallenge};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tls::Bundle;

use state::acme::{Challenges, Offer};

use super::dns::NameServer;
use super::fault::Fault;
use super::hooks::{HookCommand, Hooks};
use super::records::{Records, Removals, Zone};

/// The certificate to order, and the challenge that proves control of its names.
pub(super) struct Wanted<'a> {
    pub(super) certificate: &'a AcmeCertificate,
    pub(super) challenge: &'a AcmeChallenge,
    pub(super) profile: Option<&'a str>,
    /// Identifier of the certificate that the new one replaces (RFC 9773 section 5).
    pub(super) replaces: Option<CertificateIdentifier<'static>>,
    pub(super) limits: Limits,
}

/// Where the answers to challenges go.
pub(super) struct Answers {
    pub(super) challenges: Arc<Challenges>,
    /// Account of descriptors, for connections to name servers.
    pub(super) descriptors: Arc<state::account::Account>,
    /// Runs the commands of dns-01.
    pub(super) hooks: Arc<Hooks>,
    pub(super) removals: Removals,
}

/// Time limits of the authority's two slow steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Time limit of the validation of all names.
    pub(super) validation: Duration,
    pub(super) issuance: Duration,
}

impl Limits {
    pub(super) const USUAL: Self =
        Self { validation: Duration::from_secs(180), issuance: Duration::from_secs(180) };
}

/// Orders the certificate, completes the challenges and returns private key and chain as one PEM text.
pub(super) async fn order(
    account: &Account,
    wanted: &Wanted<'_>,
    answers: &Answers,
) -> Result<String, Fault> {
    let names = &wanted.certificate.names;
    let mut order = begin(account, wanted).await?;
    match wanted.challenge {
        AcmeChallenge::Dns01(settings) => {
            let server = NameServer::open(settings, answers.descriptors.clone()).await?;
            prove_and_remove(&mut order, wanted, settings.wait, answers, Zone::Updates(server)).await?;
        }
        AcmeChallenge::DnsCommand(command) => {
            let zone = Zone::Command(HookCommand::new(answers.hooks.clone(), command.clone()));
            prove_and_remove(&mut order, wanted, command.wait, answers, zone).await?;
        }
        AcmeChallenge::Http01 => prove_here(&mut order, wanted, Answer::Path, answers).await?,
        AcmeChallenge::TlsAlpn01 => prove_here(&mut order, wanted, Answer::Handshake, answers).await?,
    }
    let crypto = |error: rcgen::Error| Fault::Crypto(error.to_string());
    let mut request = CertificateParams::new(names.clone()).map_err(crypto)?;
    request.distinguished_name = DistinguishedName::new();
    let key = KeyPair::generate().map_err(crypto)?;
    let request = request.serialize_request(&key).map_err(crypto)?;
    order.finalize_csr(request.der()).await.map_err(of("finalize the order"))?;
    let policy = policy(wanted.limits.issuance);
    let chain = match order.poll_certificate(&policy).await {
        Ok(chain) => chain,
        Err(instant_acme::Error::Timeout(_)) => {
            return Err(Fault::Late { what: "sign the certificate", limit: wanted.limits.issuance });
        }
        Err(error) => return Err(of("fetch the certificate")(error)),
    };
    let text = format!("{}{chain}", key.serialize_pem());
    let bundle = Bundle::read(text.as_bytes()).map_err(Fault::Unusable)?;
    match names.iter().find(|name| !bundle.facts.names.contains(name)) {
        Some(missing) => Err(Fault::Unusable(format!("it is not for {missing}"))),
        None => Ok(text),
    }
}

fn of(doing: &'static str) -> impl FnOnce(instant_acme::Error) -> Fault {
    move |source| Fault::Authority { doing, source }
}

fn policy(limit: Duration) -> RetryPolicy {
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(limit)
}

async fn begin(account: &Account, wanted: &Wanted<'_>) -> Result<Order, Fault> {
    let identifiers: Vec<Identifier> =
        wanted.certificate.names.iter().cloned().map(Identifier::Dns).collect();
    let plain = || {
        let order = NewOrder::new(&identifiers);
        match wanted.profile {
            Some(profile) => order.profile(profile),
            None => order,
        }
    };
    if let Some(replaced) = wanted.replaces.clone() {
        match account.new_order(&plain().replaces(replaced)).await {
            Ok(order) => return Ok(order),
            // The authority may not know the old certificate, or may refuse `replaces`: order without `replaces`.
            Err(instant_acme::Error::Unsupported(_)) => {}
            Err(instant_acme::Error::Api(problem))
                if !problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":rateLimited")) => {}
            // The authority returned another `replaces` value than the one sent.
            Err(instant_acme::Error::Other(error)) if error.to_string().contains("replaces") => {}
            Err(error) => return Err(of("place the order")(error)),
        }
    }
    account.new_order(&plain()).await.map_err(of("place the order"))
}

/// What a listener here answers an authority with.
#[derive(Clone, Copy)]
enum Answer {
    /// http-01
    Path,
    /// tls-alpn-01
    Handshake,
}

/// Publishes the challenge answer for each name that is not yet validated, asks the authority to validate it, and waits for
/// that.
async fn prove_here(
    order: &mut Order,
    wanted: &Wanted<'_>,
    answer: Answer,
    answers: &Answers,
) -> Result<(), Fault> {
    let challenges = &answers.challenges;
    let kind = match answer {
        Answer::Path => ChallengeType::Http01,
        Answer::Handshake => ChallengeType::TlsAlpn01,
    };
    let mut offers: Vec<Offer> = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(of("read what is to be proved"))?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        let no_challenge = Fault::NoChallenge { name: name.clone(), challenge: wanted.challenge.word() };
        let Some(mut handle) = authorization.challenge(kind.clone()) else { return Err(no_challenge) };
        let proof = handle.key_authorization();
        offers.push(match answer {
            Answer::Path => challenges.offer_answer(&handle.token, proof.as_str()),
            Answer::Handshake => {
                challenges.offer_handshake(&name, proof.digest().as_ref()).map_err(Fault::Crypto)?
            }
        });
        handle.set_ready().await.map_err(of("say that a name can be looked at"))?;
    }
    if offers.is_empty() { Ok(()) } else { await_validation(order, wanted).await }
}

/// Proves control of all names in the DNS, and removes the records after success and after failure.
async fn prove_and_remove(
    order: &mut Order,
    wanted: &Wanted<'_>,
    wait: Duration,
    answers: &Answers,
    zone: Zone,
) -> Result<(), Fault> {
    let mut records = Records::new(zone, &wanted.certificate.name, answers.removals.clone());
    let proved = match prove_in_dns(order, wanted, wait, &mut records).await {
        Ok(Proved::Already) => Ok(()),
        Ok(Proved::Ready) => await_validation(order, wanted).await,
        Err(fault) => Err(fault),
    };
    records.remove().await;
    proved
}

/// Whether anything is left to be validated.
enum Proved {
    Already,
    Ready,
}

/// Adds the records of all names that are not yet validated, waits until the zone's servers have them, then asks the
/// authority to validate the names.
async fn prove_in_dns(
    order: &mut Order,
    wanted: &Wanted<'_>,
    wait: Duration,
    records: &mut Records,
) -> Result<Proved, Fault> {
    let mut proved = Proved::Already;
    for step in [DnsStep::Add, DnsStep::Tell] {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(of("read what is to be proved"))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            proved = Proved::Ready;
            let name = authorization.identifier().to_string();
            let no_challenge = Fault::NoChallenge { name: name.clone(), challenge: wanted.challenge.word() };
            let Some(mut handle) = authorization.challenge(ChallengeType::Dns01) else {
                return Err(no_challenge);
            };
            match step {
                DnsStep::Add => records.add(&name, handle.key_authorization().dns_value()).await?,
                DnsStep::Tell => {
                    handle.set_ready().await.map_err(of("say that a name can be looked at"))?;
                }
            }
        }
        if let (DnsStep::Add, Proved::Ready) = (step, &proved) {
            tokio::time::sleep(wait).await;
        }
    }
    Ok(proved)
}

#[derive(Clone, Copy)]
enum DnsStep {
    Add,
    /// Tell the authority that it can look.
    Tell,
}

async fn await_validation(order: &mut Order, wanted: &Wanted<'_>) -> Result<(), Fault> {
    let limit = wanted.limits.validation;
    let why = match order.poll_ready(&policy(limit)).await {
        Ok(OrderStatus::Ready) => return Ok(()),
        Ok(_) => None,
        Err(instant_acme::Error::Api(problem)) => Some(problem),
        Err(instant_acme::Error::Timeout(_)) => {
            return Err(Fault::Late { what: "look at the names", limit });
        }
        Err(error) => return Err(of("wait for the validation")(error)),
    };
    // The error of the order is not specific; each name's challenge has its own error.
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(of("read why the validation failed"))?;
        authorization.refresh().await.map_err(of("read why the validation failed"))?;
        let name = authorization.identifier().to_string();
        if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref())
        {
            let why = problem.detail.clone().or_else(|| problem.r#type.clone()).unwrap_or_default();
            return Err(Fault::Validation { name, challenge: wanted.challenge.word(), why });
        }
    }
    let why = why.map_or_else(|| "it does not say why".to_owned(), |problem| problem.to_string());
    let name = wanted.certificate.name.to_string();
    Err(Fault::Validation { name, challenge: wanted.challenge.word(), why })
}

#[cfg(test)]
mod tests;
