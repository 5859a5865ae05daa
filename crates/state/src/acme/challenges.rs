//! Responses to ACME challenges, by HTTP and by TLS handshake. Empty unless an order is pending; workers read without a
//! lock.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Path of HTTP challenges (RFC 8555 section 8.3).
const PREFIX: &str = "/.well-known/acme-challenge/";

/// ALPN protocol of TLS challenges (RFC 8737 section 6.2).
pub const ALPN: &[u8] = b"acme-tls/1";

#[derive(Debug, Default)]
pub struct Challenges {
    answers: ArcSwap<HashMap<Box<str>, Arc<str>>>,
    handshakes: ArcSwap<HashMap<Box<str>, Arc<ServerConfig>>>,
}

impl Challenges {
    /// Response for a path; `None` unless the path belongs to a pending order.
    pub fn answer(&self, path: &str) -> Option<Arc<str>> {
        let token = path.strip_prefix(PREFIX)?;
        self.answers.load().get(token).cloned()
    }

    /// TLS configuration for a client that offers these protocols; `None` if its handshake is not a pending challenge.
    pub fn handshake<'a>(
        &self,
        name: Option<&str>,
        mut protocols: impl Iterator<Item = &'a [u8]>,
    ) -> Option<Arc<ServerConfig>> {
        // An authority offers exactly one protocol (RFC 8737 section 3).
        if protocols.next() != Some(ALPN) || protocols.next().is_some() {
            return None;
        }
        let name = name?.to_ascii_lowercase();
        self.handshakes.load().get(name.as_str()).cloned()
    }

    /// Answers a token until the offer is dropped.
    pub fn offer_answer(self: &Arc<Self>, token: &str, answer: &str) -> Offer {
        let answer: Arc<str> = answer.into();
        change(&self.answers, |answers| drop(answers.insert(token.into(), answer.clone())));
        Offer { challenges: self.clone(), kind: Kind::Answer(token.into()) }
    }

    /// Answers TLS challenges for a name with this digest until the offer is dropped.
    pub fn offer_handshake(self: &Arc<Self>, name: &str, digest: &[u8]) -> Result<Offer, String> {
        let config = Arc::new(handshake_config(name, digest)?);
        change(&self.handshakes, |handshakes| drop(handshakes.insert(name.into(), config.clone())));
        Ok(Offer { challenges: self.clone(), kind: Kind::Handshake(name.into()) })
    }
}

/// Pending challenge; ends when dropped.
#[derive(Debug)]
pub struct Offer {
    challenges: Arc<Challenges>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Answer(Box<str>),
    Handshake(Box<str>),
}

impl Drop for Offer {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Answer(token) => change(&self.challenges.answers, |answers| drop(answers.remove(token))),
            Kind::Handshake(name) => {
                change(&self.challenges.handshakes, |handshakes| drop(handshakes.remove(name)));
            }
        }
    }
}

fn change<V: Clone>(map: &ArcSwap<HashMap<Box<str>, V>>, change: impl Fn(&mut HashMap<Box<str>, V>)) {
    map.rcu(|before| {
        let mut after = HashMap::clone(before);
        change(&mut after);
        after
    });
}

/// Creates a certificate that proves knowledge of the challenge (RFC 8737 section 3).
fn handshake_config(name: &str, digest: &[u8]) -> Result<ServerConfig, String> {
    if digest.len() != 32 {
        return Err("a challenge without a SHA-256 digest".to_owned());
    }
    let words = |error: rcgen::Error| error.to_string();
    let mut parameters = CertificateParams::new(vec![name.to_owned()]).map_err(words)?;
    parameters.distinguished_name = DistinguishedName::new();
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(words)?;
    let certificate = parameters.self_signed(&key).map_err(words)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| error.to_string())?;
    // rustls would refuse the certificate: its acmeIdentifier extension is critical and unknown to other clients.
    let certified = CertifiedKey::new(vec![certificate.der().clone()], key);
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let resolver = Arc::new(SingleCertAndKey::from(certified));
    let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_given_for_its_token_and_as_long_as_it_is_offered() {
        let challenges = Arc::new(Challenges::default());
        let offer = challenges.offer_answer("token", "token.thumb");
        let other = challenges.offer_answer("other", "other.thumb");
        assert_eq!(challenges.answer("/.well-known/acme-challenge/token").as_deref(), Some("token.thumb"));
        for path in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/token/", "/token", "token"]
        {
            assert!(challenges.answer(path).is_none(), "{path}");
        }
        drop(offer);
        assert!(challenges.answer("/.well-known/acme-challenge/token").is_none());
        assert!(challenges.answer("/.well-known/acme-challenge/other").is_some());
        drop(other);
        assert!(challenges.answers.load().is_empty());
    }

    #[test]
    fn a_handshake_is_for_those_who_offer_nothing_else_and_name_the_host() {
        let challenges = Arc::new(Challenges::default());
        let offer = challenges.offer_handshake("a.example", &[7; 32]).unwrap();
        let ask = |name, protocols: &[&'static [u8]]| {
            challenges.handshake(name, protocols.iter().copied()).is_some()
        };
        assert!(ask(Some("a.example"), &[ALPN]) && ask(Some("A.Example"), &[ALPN]));
        assert!(!ask(Some("b.example"), &[ALPN]) && !ask(None, &[ALPN]));
        assert!(!ask(Some("a.example"), &[ALPN, b"h2"]) && !ask(Some("a.example"), &[b"h2"]));
        drop(offer);
        assert!(!ask(Some("a.example"), &[ALPN]));
        assert!(challenges.offer_handshake("a.example", &[7; 31]).is_err());
    }
}
